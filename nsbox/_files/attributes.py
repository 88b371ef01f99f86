"""Extended attributes that come along with a file: the user's own, and access lists. Not overlayfs's."""

from __future__ import annotations

import errno
import os

OVERLAY = "user.overlay."  # the names of overlayfs's own attributes, with its mount option userxattr
_OURS = ("user.", "system.posix_acl")


def attributes_of(file: int | str) -> dict[str, bytes]:
    """Return names and values. Raises OSError; a file system that has none has none of these."""
    try:
        names = os.listxattr(file)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        return {}
    return {name: os.getxattr(file, name) for name in names if name.startswith(_OURS) and not name.startswith(OVERLAY)}


def give(file: int | str, found: dict[str, bytes]) -> None:
    """Set them; raises OSError that says which one can't be: without an access list, permissions would be others."""
    for name, value in found.items():
        try:
            os.setxattr(file, name, value)
        except OSError as error:
            raise OSError(error.errno, f"the attribute {name} can't be set there: {error.strerror}") from None
