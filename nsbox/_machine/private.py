"""Asks the machine for files that permissions keep from others, and that root's commands would be able to read."""

from __future__ import annotations

import os
import stat

from nsbox._base.checks import check_answer
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.paths import is_below

if TYPE_CHECKING:
    from collections.abc import Collection

_SECRETS = (
    *("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/security/opasswd"),
    *("/etc/sudoers", "/etc/sudoers.d", "/etc/krb5.keytab", "/etc/ssl/private"),
    *(f"/etc/ssh/ssh_host_{kind}_key" for kind in ("rsa", "dsa", "ecdsa", "ed25519")),
)
_PRIVATE_BELOW = ("/etc", "/usr/local/etc", "/opt", *(f"/home/linuxbrew/.linuxbrew/{name}" for name in ("etc", "var")))
_PUBLIC = ("/var/lib/dpkg", "/var/lib/pacman/local", "/var/lib/rpm")  # large, and readable for all users
_MOST_ENTRIES = 50_000  # entries that are looked at below each of them
_MOST_FILES = 2_000_000  # entries that closed_to_others() looks at: several systems of the usual size
_PASSABLE = stat.S_IROTH | stat.S_IXOTH
_MOST_MASKS = 64  # masks in one directory, each a mount; a directory that needs more is hidden as a whole


def secrets() -> tuple[str, ...]:
    """Return files with secrets. For uid 0 these are all names, since they may exist later; else those it can read."""
    return tuple(path for path in _SECRETS if os.geteuid() == 0 or os.access(path, os.R_OK))


def private_files(directories: tuple[tuple[str, str | None], ...] = ()) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return, for uid 0, the files and whole directories that permission bits keep from all other users.

    Also return the directories that have too many entries to look at all of them. For other users both are empty.
    """
    if os.geteuid() != 0:
        return (), ()
    private: list[str] = []
    data = [path for path, _ in directories if is_below(path, "/var/lib") and path not in _PUBLIC]
    passed_over = [directory for root in (*_PRIVATE_BELOW, *data) for directory in _add_private(root, private)]
    return tuple(sorted(private)), tuple(sorted(passed_over))


def closed_to_others(root: str, uids: Collection[int], gids: Collection[int]) -> list[str] | None:
    """Return what of these owners all others may not read at or below a path; None if that can't be found out.

    For a directory that others may not list or enter, that is the directory alone.

    root: a path without links on the way. uids, gids: whoever owns a file by one or the other.
    """
    found: list[str] = []
    left, directories = _MOST_FILES, [root]
    try:
        if _is_closed(os.lstat(root), uids, gids):
            return [root]
        for directory in directories if os.path.isdir(root) else ():
            try:
                entries = os.scandir(directory)
            except (FileNotFoundError, NotADirectoryError):  # it has gone
                continue
            with entries:
                for entry in entries:
                    left -= 1
                    try:
                        is_closed = not entry.is_symlink() and _is_closed(entry.stat(follow_symlinks=False), uids, gids)
                    except FileNotFoundError:
                        continue
                    if is_closed:
                        found.append(entry.path)
                    elif entry.is_dir(follow_symlinks=False):
                        directories.append(entry.path)
            if left < 0:
                return None
    except OSError as error:
        check_answer(error)
        return None
    return found


def _is_closed(status: os.stat_result, uids: Collection[int], gids: Collection[int]) -> bool:
    if status.st_uid not in uids and status.st_gid not in gids:
        return False
    needed = _PASSABLE if stat.S_ISDIR(status.st_mode) else stat.S_IROTH
    return status.st_mode & needed != needed


def _add_private(root: str, found: list[str]) -> list[str]:
    """Add private paths below root to `found`, the highest first; return the directories that were left out."""
    left, directories = _MOST_ENTRIES, [root]
    for at, directory in enumerate(directories):
        private = []
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    left -= 1
                    if left < 0:
                        return directories[at:]
                    if (mode := _mode(entry)) is None:
                        continue
                    if not mode & (stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH):
                        private.append(entry.path)
                    elif stat.S_ISDIR(mode):
                        directories.append(entry.path)
        except OSError as error:
            check_answer(error)
        if len(private) > _MOST_MASKS and directory != root:
            directories[at + 1 :] = [d for d in directories[at + 1 :] if not is_below(d, directory)]
            private = [directory]
        found += private
    return []


def _mode(entry: os.DirEntry[str]) -> int | None:
    """Return an entry's mode; None for a link, or if it can't be found out."""
    try:
        return None if entry.is_symlink() else entry.stat(follow_symlinks=False).st_mode
    except OSError as error:
        check_answer(error)
        return None
