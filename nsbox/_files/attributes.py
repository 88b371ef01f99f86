"""Extended attributes that a copy of a file keeps: the user's own, and access lists. Not overlayfs's."""

from __future__ import annotations

import errno
import os

OVERLAY = "user.overlay."  # the names of overlayfs's own attributes, with its mount option userxattr
_OURS = ("user.", "system.posix_acl")
LACK = "this Python has no os.listxattr, which CPython before 3.11.3 lacks with musl"
REMEDY = "use Python 3.11.3 or later"
_MOST = 1 << 20  # bytes of one file's names and values; a tmpfs has room for hundreds of MB


def has_attributes() -> bool:
    """Return whether this Python has functions for attributes."""
    return hasattr(os, "listxattr")


def names_of(file: int | str, path: str) -> list[str]:
    """Return the names of all attributes that a user may set, overlayfs's among them; path: for errors.

    Raises OSError: E2BIG, from the kernel, if the names have more than 64 KiB (listxattr(2)); ENOSYS if this Python
    can't ask for them: then a copy could lose some.
    """
    if not has_attributes():
        raise OSError(errno.ENOSYS, f"{LACK}: {REMEDY}", path or ".")
    try:
        return [name for name in os.listxattr(file) if name.startswith(_OURS)]
    except OSError as error:
        if error.errno is None:  # a signal handler's own
            raise
        if error.errno == errno.ENOTSUP:
            return []
        what = "has too many extended attributes" if error.errno == errno.E2BIG else error.strerror
        raise OSError(error.errno, what, path or ".") from None


def attributes_of(file: int | str, path: str) -> dict[str, bytes]:
    """Return the values by name; {} if the file system has no attributes. path: for errors.

    Raises OSError: E2BIG for a file that has more than 1 MiB of them.
    """
    found: dict[str, bytes] = {}
    left = _MOST
    for name in names_of(file, path):
        if name.startswith(OVERLAY):
            continue
        found[name] = value = os.getxattr(file, name)
        left -= len(name) + len(value)
        if left < 0:
            raise OSError(errno.E2BIG, f"has more than {_MOST} bytes of extended attributes", path or ".")
    return found


def give(file: int | str, values: dict[str, bytes]) -> None:
    """Set them. Raises an OSError that names one that can't be set: without an access list, permissions differ."""
    for name, value in values.items():
        try:
            os.setxattr(file, name, value)
        except OSError as error:
            if error.errno is None:
                raise
            raise OSError(error.errno, f"the attribute {name} can't be set there: {error.strerror}") from None
