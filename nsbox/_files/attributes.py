"""Extended attributes that a copy of a file keeps: the user's own, and access lists. Not overlayfs's."""

from __future__ import annotations

import errno
import os

OVERLAY = "user.overlay."  # the names of overlayfs's own attributes, with its mount option userxattr
_OURS = ("user.", "system.posix_acl")


def attributes_of(file: int | str) -> dict[str, bytes]:
    """Return the values by name; {} if the file system has no attributes. Raises OSError."""
    try:
        names = os.listxattr(file)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        return {}
    return {name: os.getxattr(file, name) for name in names if name.startswith(_OURS) and not name.startswith(OVERLAY)}


def give(file: int | str, values: dict[str, bytes]) -> None:
    """Set them. Raises an OSError that names one that can't be set: without an access list, permissions differ."""
    for name, value in values.items():
        try:
            os.setxattr(file, name, value)
        except OSError as error:
            raise OSError(error.errno, f"the attribute {name} can't be set there: {error.strerror}") from None
