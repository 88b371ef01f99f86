"""Which directories a client's roots stand for, and what is left of a policy within them."""

from __future__ import annotations

import os
from urllib.parse import unquote_to_bytes, urlsplit

from nsbox._base.errors import NsboxError, PolicyError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.paths import is_below
from nsbox._paths.resolution import Resolution

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nsbox._policy.policy import Policy


def directory_of(uri: str, names: Resolution | None = None) -> str:
    """Return the directory that a root's URI names, without links in its path; raises ValueError.

    uri: a file URI of this machine (RFC 8089), such as file:///home/me/project.
    names: notes the links on the way to it. Default: None.
    """
    parts = urlsplit(uri)
    if parts.scheme != "file":
        raise ValueError("isn't a file URI")
    if parts.netloc not in ("", "localhost"):
        raise ValueError("is on another machine")
    path = os.fsdecode(unquote_to_bytes(parts.path))
    if "\0" in path or not path.startswith("/"):
        raise ValueError("isn't an absolute path")
    try:
        real = (names or Resolution()).entry("roots", path)
    except PolicyError:
        real = ""
    if not os.path.isdir(real):
        raise ValueError("isn't a directory on this machine")
    return real


def directories(uris: Iterable[str], writable: Iterable[str] = ()) -> tuple[list[str], list[str]]:
    """Return the directories that roots name, and for each root that names none a sentence that says why.

    A root whose path leads out of where commands can write names none: one of them may have made the link.

    writable: directories where commands can write, besides the roots themselves and what this process has opened.
        Default: nothing.
    """
    named: list[tuple[str, str, Resolution]] = []
    problems = []
    for uri in uris:
        names = Resolution()
        try:
            named.append((uri, directory_of(uri, names), names))
        except (ValueError, OSError) as error:
            problems.append(f"the root {uri} is ignored: it {error}")
    found: list[str] = []
    places = (*writable, *(path for _, path, _ in named))
    for uri, path, names in named:
        redirected = [text for _, _, text in names.problems(places)]
        if redirected:
            problems.append(f"the root {uri} is ignored: {redirected[0]}")
        elif path not in found:
            found.append(path)
    return found, problems


def narrowed(policy: Policy, roots: Sequence[str]) -> tuple[Policy, list[str]]:
    """Return the policy within roots: commands can write to what is in both. And the roots of which nothing is left.

    What the policy lets commands read alone stays readable. Commands start in the first root of which something is
    left. A policy for the whole host can't be narrowed: there, roots only say where commands start.

    roots: directories, as absolute paths without links.

    Raises PolicyError if nothing is left of any root.
    """
    if policy.base != "workspace":
        return (policy.with_(workdir=roots[0]) if roots else policy), []
    write: list[str] = []
    starts: list[str] = []
    outside = []
    for root in roots:
        parts = [part for path in policy.write if (part := _common(path, root)) is not None]
        patterns = "*?["
        parts += [
            part
            for path in policy.read
            if not any(sign in path for sign in patterns) and (part := _common(path, root)) is not None
        ]
        seen = [path for path in parts if _allows(policy.can_read, path)]
        mine = [path for path in seen if _allows(policy.can_write, path)]
        write += [path for path in mine if path not in write]
        starts += [*mine, *seen][:1]
        if not seen:
            outside.append(root)
    if not starts:
        raise PolicyError("workspace", f"the policy allows none of the client's roots: {', '.join(roots)}")
    return policy.child(write=write, read=policy.read, workdir=starts[0]), outside


def _common(path: str, root: str) -> str | None:
    """Return the directory that is in both; None if there is none."""
    real = os.path.realpath(path)
    if is_below(root, real):
        return root
    return real if is_below(real, root) else None


def _allows(question: Callable[[str], bool], path: str) -> bool:
    try:
        return os.path.isdir(path) and question(path)
    except (NsboxError, OSError):
        return False
