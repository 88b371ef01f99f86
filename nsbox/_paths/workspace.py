"""From a caller's paths for a workspace to the fields of a Policy.

Paths and patterns are resolved, links on the way noted, and what git needs is added. Whether the fields make sense
together is for Policy itself to check.

Lean: `_paths.git` (1.3 ms) is imported if git's files are asked for.
"""

from __future__ import annotations

import os

from nsbox._base.checks import check_answer, check_bool, check_path, check_target, sequence
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.paths import is_below
from nsbox._paths.patterns import is_pattern, is_wild, split
from nsbox._paths.resolution import Resolution, check_read
from nsbox._paths.user_homes import check_workspace

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


def workspace(names: Resolution, path: object, wishes: dict[str, Any]) -> dict[str, Any]:
    """Return the fields about files of a policy for work in one directory: write, read, deny, links.

    names: resolves the paths.
    path: the workspace.
    wishes: what Policy.workspace() takes by name. read, write, deny and read_only are taken out of it; defaults for
        workdir and seccomp are added.
    """
    read, write, deny = (sequence(name, wishes.pop(name, ())) for name in ("read", "write", "deny"))
    is_read_only = wishes.pop("read_only", False)
    check_bool("read_only", is_read_only)
    root = names.existing("workspace", path)
    if not os.path.isdir(root):
        raise PolicyError("workspace", f"{root} isn't a directory")
    if root == "/":
        raise PolicyError(
            "workspace", "'/' is the whole file system; if you mean that, Policy.host() (nsbox run --host)"
        )
    wishes.setdefault("workdir", root)
    wishes.setdefault("seccomp", "default")
    writable = tuple(names.existing("write", _plain(p)) for p in write)
    readable = [real for p in read for real in _readable(names, p)]
    check_workspace(root, readable if is_read_only else writable, field="read" if is_read_only else "write")
    if is_read_only:
        readable = [root, *readable]
    else:
        writable = (root, *writable)
    files: dict[str, Any] = {"write": writable, "read": _with_tools(names, wishes, readable)}
    denied = tuple(deny)
    files["deny"] = _denied(names, denied, (*writable, *files["read"]))
    check_read(files["read"])
    names.check((root, *writable))  # an earlier command may have made links in what is read-only now
    before = files["write"], files["read"]
    add_git(names, root, files)
    if is_read_only:
        files["read"] = tuple(dict.fromkeys((*files["read"], *files["write"][len(writable) :])))
        files["write"] = writable
    if (files["write"], files["read"]) != before:  # patterns with "**/" apply to git's directories too
        files["deny"] = _denied(names, denied, (*files["write"], *files["read"]))
    files["links"] = names.links()
    return files


def changed(policy: Any, changes: dict[str, Any]) -> None:
    """Replace read, write, deny and tools_bin among the changes of a workspace policy by their resolved values."""
    names = Resolution()
    if "write" in changes:
        paths = (names.existing("write", _plain(path)) for path in sequence("write", changes["write"]))
        changes["write"] = tuple(paths)
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


def check_devices(value: object) -> tuple[str, ...]:
    """Return the devices of a policy, paths below /dev, as a tuple; raises PolicyError."""
    paths = tuple(dict.fromkeys(check_path("devices", path) for path in sequence("devices", value)))
    for path in paths:
        if not is_below(path, "/dev") or path == "/dev":
            raise PolicyError("devices", f"{path} isn't below /dev")
    return paths


def check_links(value: object) -> tuple[tuple[str, str], ...]:
    """Return the links of a policy, pairs of a link and its target, as a tuple; raises PolicyError."""
    pairs = sequence("links", value)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise PolicyError("links", "must have pairs: a link and its target")
    return tuple((check_path("links", at), check_target("links", to)) for at, to in pairs)


def _plain(path: object) -> object:
    """Return a path for write; raises PolicyError for a pattern, unless a file has that very name."""
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
    paths: list[str] = []
    for path in sequence("deny", deny):
        text = _text(path)
        if text is None or not is_pattern(text):
            paths.append(names.denied("deny", path))
        elif text.startswith("**/"):
            paths += [_pattern(names, "deny", place) for place in everywhere(text, named)]
        else:
            paths.append(_pattern(names, "deny", text))
    return tuple(dict.fromkeys(paths))


def everywhere(pattern: str, named: Iterable[str]) -> list[str]:
    """Return absolute patterns for one that begins with "**/": one below each directory that the policy shows."""
    paths = [path for path in dict.fromkeys(named) if not is_pattern(path)]
    tops = [path for path in paths if not any(other != path and is_below(path, other) for other in paths)]
    return [f"{top.rstrip('/')}/{pattern}" for top in tops]


def _pattern(names: Resolution, field: str, text: str) -> str:
    """Return a pattern in which the path before the first wildcard is resolved like any other path."""
    parts = text.split("/")
    first = next(i for i, part in enumerate(parts) if is_wild(part))
    base = names.denied(field, "/".join(parts[:first]) or ("/" if text.startswith("/") else "."))
    return based(field, base, split("/" + "/".join(parts[first:]))[1])


def based(field: str, base: str, rest: Iterable[str]) -> str:
    """Return the pattern that consists of `base`, a directory without links on the way, and components below it."""
    if ".." in rest:
        raise PolicyError(field, f"{'/'.join(rest)!r} has a '..' behind a wildcard")
    return f"{base.rstrip('/')}/{'/'.join(part for part in rest if part not in ('', '.'))}"


def _with_tools(names: Resolution, wishes: dict[str, Any], readable: Iterable[str]) -> tuple[str, ...]:
    """Resolve tools_bin in the wishes; return what is readable, with tools_bin added."""
    if wishes.get("tools_bin") is None:
        return tuple(readable)
    wishes["tools_bin"] = tools = names.existing("tools_bin", wishes["tools_bin"])
    if not os.path.isdir(tools):
        raise PolicyError("tools_bin", f"{tools} isn't a directory")
    return (*readable, tools)


def add_git(names: Resolution, root: str, found: dict[str, Any]) -> None:
    """If the workspace's .git is a file, as in a worktree or a submodule, add the directories that git then needs.

    found: the fields write, read and deny, which are changed.
    """
    try:
        mode = os.lstat(f"{root}/.git").st_mode
    except OSError as error:
        check_answer(error)
        return
    if mode & 0o170000 != 0o100000:  # not a regular file: inode(7)
        return
    from nsbox._paths.git import directories  # seldom needed

    git = directories(root)
    named = (*found["write"], *found["read"], *found["deny"])
    if git.problem or any(is_below(path, at) for path in (*git.write, *git.read) for at in found["deny"]):
        return
    found["write"] = (*found["write"], *(path for path in git.write if path not in named))
    found["read"] = (*found["read"], *(path for path in git.read if path not in named))
    names.add_links(git.links)
