"""Whose home directory a workspace would open: the caller's, its owner's, or everybody's.

A home has keys and tokens to read, and files that programs outside obey later: .profile, .bashrc, .config. A caller who
starts in it seldom means to open all that. So a home, and each directory around one, is no workspace unless the caller
names it once more.

Directories are compared by device and inode: a home has other names by links and by bind mounts.
"""

from __future__ import annotations

import os

from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, remembered
from nsbox._base.paths import is_below

try:
    import pwd
except ImportError:  # Windows, where policies can be made too
    pwd = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_USUAL = ("/home", "/root", "/Users", "/var/home", "/var/root")  # hier(7); macOS; rpm-ostree systems


def check_workspace(root: str, named: Iterable[str], *, field: str = "write", instead: str = "") -> None:
    """Raise PolicyError if a workspace is a home directory or has one in it, unless the caller names it too.

    root: the workspace, an absolute path without links.
    named: the paths that the caller names besides.
    field: the field that has these, or the key of a configuration file. "read": the workspace is read-only.
    instead: what to do if it is meant. Default: name it in that field too.
    """
    if any(is_below(root, path) for path in named):
        return
    home = home_in(root)
    if home is None:
        return
    what = "is a home directory" if home == root else f"has the home directory {home} in it"
    risk = "read its keys (.ssh, .aws)" + ("" if field == "read" else " and change what you run later (.bashrc)")
    raise PolicyError(
        "workspace",
        f"{root} {what}: commands could {risk}; work in a project's own directory, or, if you mean "
        f"it, {instead or f'say {field}=[{root!r}] too'}",
    )


def home_in(root: str) -> str | None:
    """Return the home directory that a directory is or contains; `root` itself if it is one. None: there is none.

    root: an absolute path without links.
    """
    try:
        own = os.stat(root)
    except OSError:
        return None
    for path in dict.fromkeys(_homes(own.st_uid)):
        if not path.startswith("/") or not os.path.isdir(path):
            continue
        home = at = os.path.realpath(path)
        while at != "/":
            if _is(at, own):
                return root if at == home else home
            at = os.path.dirname(at)
    return None


def _is(path: str, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), status)
    except OSError:
        return False


def _homes(owner: int) -> Iterator[str]:
    """Yield the homes of the caller, by HOME and the user database; of the directory's owner; and the usual ones."""
    yield getattr(os, "environ", {}).get("HOME", "")
    if pwd is not None:
        for uid in {os.getuid(), os.geteuid(), owner}:
            yield _home_of(uid)
    yield from _USUAL


@remembered
def _home_of(uid: int) -> str:
    """Return a user's home by the user database, "" if it has none."""
    try:
        return pwd.getpwuid(uid).pw_dir
    except (KeyError, OverflowError):
        return ""
