"""Which directories a client's roots stand for, and what is left of a policy within them."""

from __future__ import annotations

import os
from urllib.parse import unquote_to_bytes, urlsplit

from nsbox._base.errors import NsboxError, PolicyError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.paths import is_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nsbox._policy.policy import Policy


def directory_of(uri: str) -> str:
    """Return the directory that a root's URI names, without links in its path; raises ValueError.

    uri: a file URI of this machine (RFC 8089), such as file:///home/me/project.
    """
    parts = urlsplit(uri)
    if parts.scheme != "file":
        raise ValueError("isn't a file URI")
    if parts.netloc not in ("", "localhost"):
        raise ValueError("is on another machine")
    path = os.fsdecode(unquote_to_bytes(parts.path))
    if "\0" in path or not path.startswith("/"):
        raise ValueError("isn't an absolute path")
    real = os.path.realpath(path)
    if not os.path.isdir(real):
        raise ValueError("isn't a directory on this machine")
    return real


def directories(uris: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the directories that roots name, and for each root that names none a sentence that says why."""
    found: list[str] = []
    problems = []
    for uri in uris:
        try:
            path = directory_of(uri)
        except (ValueError, OSError) as error:
            problems.append(f"the root {uri} is ignored: it {error}")
        else:
            if path not in found:
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
