"""What a workspace would open of a home: all of it, or a directory in which programs keep keys.

Homes are the caller's, those of the workspace's owner, and everybody's. For directories of keys, the owners of the
directories around it count too: under sudo, one in a user's ~/.config may be root's.

A home has keys and tokens to read, and files that programs outside obey later: .profile, .bashrc, .config. A caller who
starts in it seldom means to open all that. So a home, and each directory around one, is no workspace unless the caller
names it once more. Neither is a directory in a home whose name begins with a dot, nor anything in one of KEYS. Deeper
in other ones, as in ~/.cache/build, programs work.

Directories are compared by device and inode: a home has other names by links and by bind mounts.
"""

from __future__ import annotations

import os

from nsbox._base.checks import check_answer
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, remembered
from nsbox._base.paths import is_below
from nsbox._paths.patterns import KEY_DIRECTORIES

try:
    import pwd
except ImportError:  # Windows, where policies can be made too
    pwd = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

KEYS = (*KEY_DIRECTORIES, ".config", ".mozilla", ".password-store", ".local/share/keyrings")  # in a home
_USUAL = ("/home", "/root", "/Users", "/var/home", "/var/root")  # hier(7); macOS; rpm-ostree systems


def check_workspace(root: str, named: Iterable[str], *, field: str = "write", instead: str = "") -> None:
    """Raise PolicyError if a workspace would open a home or a directory of keys, unless the caller names it too.

    root: the workspace, an absolute path without links.
    named: the paths that the caller names besides.
    field: the field that has these, or the key of a configuration file. "read": the workspace is read-only.
    instead: what to do if it is meant. Default: name it in that field too.
    """
    if any(is_below(root, path) for path in named):
        return
    problem = exposure(root, is_read_only=field == "read")
    if problem is not None:
        raise PolicyError(
            "workspace",
            f"{root} {problem}; work in a project's own directory, or, if you mean "
            f"it, {instead or f'say {field}=[{root!r}] too'}",
        )


def exposure(root: str, *, is_read_only: bool = False) -> str | None:
    """Return what of a home a workspace would open, and the risk, for a text about it; None if it opens nothing.

    root: an absolute path without links.
    """
    home = home_in(root)
    if home is not None:
        what = "is a home directory" if home == root else f"has the home directory {home} in it"
        risk = "" if is_read_only else " and change what you run later (.bashrc)"
        return f"{what}: commands could read its keys (.ssh, .aws){risk}"
    keys = keys_at(root)
    if keys is None:
        return None
    what = "is" if keys == root else f"is in {keys}," if is_below(root, keys) else f"has {keys} in it,"
    risk = "read" if is_read_only else "read and change"
    return f"{what} where programs keep keys and settings: commands could {risk} them"


def home_in(root: str) -> str | None:
    """Return the home directory that a directory is or contains; `root` itself if it is one. None: there is none.

    root: an absolute path without links.
    """
    try:
        own = os.stat(root)
    except OSError as error:
        check_answer(error)
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


def keys_at(root: str) -> str | None:
    """Return the directory of keys that a directory is, is in or contains; None if there is none.

    root: an absolute path without links.
    """
    above: dict[tuple[int, int] | None, str] = {}  # root, and the directories around it
    owners = set()
    at = root
    try:
        while at != "/":
            status = os.stat(at)
            above[status.st_dev, status.st_ino] = at
            owners.add(status.st_uid)
            at = os.path.dirname(at)
    except OSError as error:
        check_answer(error)
        return None
    for home in dict.fromkeys(_homes_of_users(*owners)):
        if not home.startswith("/") or (own := _identity(home)) is None:
            continue
        if os.path.basename(root).startswith(".") and _identity(os.path.dirname(root)) == own:
            return root
        for name in KEYS:
            place = f"{home}/{name}"
            identity = _identity(place)
            if identity is None:
                continue
            if identity in above:
                return above[identity]
            is_elsewhere = "/" in name or os.path.islink(place)  # what has any other in it has the home in it
            if is_elsewhere and is_below(real := os.path.realpath(place), root):
                return real
    return None


def _identity(path: str) -> tuple[int, int] | None:
    """Return what a path leads to, by device and inode; None if it leads nowhere. Most of KEYS do."""
    if not os.access(path, os.F_OK):  # without the cost of an exception
        return None
    try:
        status = os.stat(path)
    except OSError as error:
        check_answer(error)
        return None
    return status.st_dev, status.st_ino


def _is(path: str, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), status)
    except OSError as error:
        check_answer(error)
        return False


def _homes(owner: int) -> Iterator[str]:
    """Yield the homes of the caller and of the directory's owner, and the usual ones."""
    yield from _homes_of_users(owner)
    yield from _USUAL


def _homes_of_users(*owners: int) -> Iterator[str]:
    """Yield the homes of the caller, by HOME and the user database, and of a directory's owners."""
    yield getattr(os, "environ", {}).get("HOME", "")
    if pwd is not None:
        for uid in {os.getuid(), os.geteuid(), *owners}:
            yield _home_of(uid)


@remembered
def _home_of(uid: int) -> str:
    """Return a user's home by the user database, "" if it has none."""
    try:
        return pwd.getpwuid(uid).pw_dir
    except (KeyError, OverflowError):
        return ""
