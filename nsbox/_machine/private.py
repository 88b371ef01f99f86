"""Asks the machine for files that permissions keep from others, and that root's commands would be able to read."""

from __future__ import annotations

import os
import stat

from nsbox._base.paths import is_below
from nsbox._machine.minimal import check_scarcity

_SECRETS = (
    *("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/security/opasswd"),
    *("/etc/sudoers", "/etc/sudoers.d", "/etc/krb5.keytab", "/etc/ssl/private"),
    *(f"/etc/ssh/ssh_host_{kind}_key" for kind in ("rsa", "dsa", "ecdsa", "ed25519")),
)
_PRIVATE_BELOW = ("/etc", "/usr/local/etc", "/opt", *(f"/home/linuxbrew/.linuxbrew/{name}" for name in ("etc", "var")))
_PUBLIC = ("/var/lib/dpkg", "/var/lib/pacman/local", "/var/lib/rpm")  # large, and for everybody to read
_MOST_ENTRIES = 50_000  # that are looked at below each of them
_MOST_MASKS = 64  # in one directory, each of which is a mount; one with more is hidden as a whole


def secrets() -> tuple[str, ...]:
    """For uid 0 all names, since they may come to exist later; for others those whose permissions let them read."""
    return tuple(path for path in _SECRETS if os.geteuid() == 0 or os.access(path, os.R_OK))


def private_files(directories: tuple[tuple[str, str | None], ...] = ()) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """For uid 0, whom permission bits don't stop: what they keep from everybody else, files and whole directories.

    Returns also the directories that have so many entries that not all were looked at.
    """
    if os.geteuid() != 0:
        return (), ()
    found: list[str] = []
    data = [path for path, _ in directories if is_below(path, "/var/lib") and path not in _PUBLIC]
    passed_over = [directory for root in (*_PRIVATE_BELOW, *data) for directory in _add_private(root, found)]
    return tuple(sorted(found)), tuple(sorted(passed_over))


def _add_private(root: str, found: list[str]) -> list[str]:
    """Add what is private below root, the highest first; return the directories that were left out."""
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
            check_scarcity(error)
        if len(private) > _MOST_MASKS and directory != root:
            directories[at + 1 :] = [d for d in directories[at + 1 :] if not is_below(d, directory)]
            private = [directory]
        found += private
    return []


def _mode(entry: os.DirEntry[str]) -> int | None:
    """Return an entry's mode; None for a link, or if it can't be told."""
    try:
        return None if entry.is_symlink() else entry.stat(follow_symlinks=False).st_mode
    except OSError as error:
        check_scarcity(error)
        return None
