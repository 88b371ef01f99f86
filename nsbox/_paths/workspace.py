"""From the paths that a workspace policy is given to its fields: resolved, with patterns, links on the way, and git's.

What the fields mean together is checked by Policy itself.
"""

from __future__ import annotations

from nsbox._base.checks import sequence
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.lean_os import os
from nsbox._base.paths import is_below
from nsbox._paths.patterns import is_pattern, is_wild, split
from nsbox._paths.resolution import Resolution, check_read

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


def workspace(
    names: Resolution, path: object, read: object, write: object, deny: object, wishes: dict[str, Any]
) -> dict[str, Any]:
    """Return the fields of a policy for work in one directory. wishes: the others, to which defaults are added."""
    root = names.existing("workspace", path)
    if not os.path.isdir(root):
        raise PolicyError("workspace", f"{root} is no directory")
    if root == "/":
        raise PolicyError(
            "workspace", "'/' is the whole file system; if that is meant, Policy.host() (nsbox run --host)"
        )
    wishes.setdefault("workdir", root)
    wishes.setdefault("seccomp", "default")
    writable = (root, *(names.existing("write", _plain(p)) for p in sequence("write", write)))
    readable = [found for p in sequence("read", read) for found in _readable(names, p)]
    found: dict[str, Any] = {"write": writable, "read": _with_tools(names, wishes, readable)}
    denied = tuple(sequence("deny", deny))
    found["deny"] = _denied(names, denied, (*writable, *found["read"]))
    check_read(found["read"])
    names.check(writable)
    before = found["write"], found["read"]
    add_git(names, root, found)
    if (found["write"], found["read"]) != before:  # "**/" counts from there too
        found["deny"] = _denied(names, denied, (*found["write"], *found["read"]))
    found["links"] = names.links()
    return found


def changed(policy: Any, changes: dict[str, Any]) -> None:
    """Resolve what with_() is given for read, write, deny and tools_bin of a workspace policy, in its place."""
    names = Resolution()
    if "write" in changes:
        found = (names.existing("write", _plain(path)) for path in sequence("write", changes["write"]))
        changes["write"] = tuple(found)
    if "read" in changes:
        changes["read"] = tuple(at for path in sequence("read", changes["read"]) for at in _readable(names, path))
    if changes.get("tools_bin") is not None:
        changes["read"] = _with_tools(names, changes, changes.get("read", policy.read))
    named = (*changes.get("write", policy.write), *changes.get("read", policy.read))
    if "deny" in changes:
        changes["deny"] = _denied(names, changes["deny"], named)
    check_read(changes.get("read", ()))
    names.check(changes.get("write", policy.write))
    if links := names.links():
        changes.setdefault("links", (*policy.links, *(pair for pair in links if pair[0] not in dict(policy.links))))


def _plain(path: object) -> object:
    """Return what write is given; raises PolicyError for a pattern that is no name of something."""
    text = _text(path)
    if text is not None and is_pattern(text) and not os.path.lexists(text):
        raise PolicyError("write", f"{text}: patterns are for read and deny; name what is to be writable")
    return path


def _text(path: object) -> str | None:
    text = os.fspath(path) if hasattr(path, "__fspath__") else path
    return text if isinstance(text, str) else None


def _readable(names: Resolution, path: object) -> list[str]:
    text = _text(path)
    if text is None or not is_pattern(text) or os.path.lexists(text):
        return [names.existing("read", path)]
    return [_pattern(names, "read", text)]


def _denied(names: Resolution, deny: object, named: Iterable[str]) -> tuple[str, ...]:
    found: list[str] = []
    for path in sequence("deny", deny):
        text = _text(path)
        if text is None or not is_pattern(text):
            found.append(names.denied("deny", path))
        elif text.startswith("**/"):
            found += [_pattern(names, "deny", place) for place in everywhere(text, named)]
        else:
            found.append(_pattern(names, "deny", text))
    return tuple(dict.fromkeys(found))


def everywhere(pattern: str, named: Iterable[str]) -> list[str]:
    """Return what a pattern of deny is that begins with "**/": one for each directory that the policy shows."""
    paths = [path for path in dict.fromkeys(named) if not is_pattern(path)]
    tops = [path for path in paths if not any(other != path and is_below(path, other) for other in paths)]
    return [f"{top.rstrip('/')}/{pattern}" for top in tops]


def _pattern(names: Resolution, field: str, text: str) -> str:
    """Return a pattern with the path before its first wildcard resolved as any other."""
    parts = text.split("/")
    first = next(i for i, part in enumerate(parts) if is_wild(part))
    base = names.denied(field, "/".join(parts[:first]) or ("/" if text.startswith("/") else "."))
    return based(field, base, split("/" + "/".join(parts[first:]))[1])


def based(field: str, base: str, rest: Iterable[str]) -> str:
    """Return the pattern of components, in a directory without links."""
    if ".." in rest:
        raise PolicyError(field, f"{'/'.join(rest)!r} has a '..' behind a wildcard")
    return f"{base.rstrip('/')}/{'/'.join(part for part in rest if part not in ('', '.'))}"


def _with_tools(names: Resolution, wishes: dict[str, Any], readable: Iterable[str]) -> tuple[str, ...]:
    """Resolve tools_bin, and return what is readable with it."""
    if wishes.get("tools_bin") is None:
        return tuple(readable)
    wishes["tools_bin"] = tools = names.existing("tools_bin", wishes["tools_bin"])
    if not os.path.isdir(tools):
        raise PolicyError("tools_bin", f"{tools} is no directory")
    return (*readable, tools)


def add_git(names: Resolution, root: str, found: dict[str, Any]) -> None:
    """Add what git needs where the workspace's .git is a file: a worktree's, or a submodule's."""
    try:
        mode = os.lstat(f"{root}/.git").st_mode
    except OSError:
        return
    if mode & 0o170000 != 0o100000:  # inode(7): no regular file
        return
    from nsbox._paths.git import directories  # seldom needed

    git = directories(root)
    named = (*found["write"], *found["read"], *found["deny"])
    if git.problem or any(is_below(path, at) for path in (*git.write, *git.read) for at in found["deny"]):
        return
    found["write"] = (*found["write"], *(path for path in git.write if path not in named))
    found["read"] = (*found["read"], *(path for path in git.read if path not in named))
    names.add_links(git.links)
