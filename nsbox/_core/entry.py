"""The messages to a session about a command, and its answers, as bytes: abi.h's nsbox_entry and others."""

from __future__ import annotations

from struct import Struct

from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ENTRY = Struct("=6Q2I2i")
TOLD = Struct("=IiII3qQ")
ASKING = Struct("=IiQ")


def encode_entry(
    programs: Sequence[bytes],
    argv: Sequence[bytes],
    envp: Sequence[bytes],
    cwd: bytes | None,
    targets: Sequence[int],
    flags: int,
    umask: int,
    pgid: int,
) -> bytes:
    """Return an nsbox_entry with everything that it points to.

    targets: the numbers of the command's descriptors, ascending.
    """
    rows = (programs, argv, envp)
    at = ENTRY.size
    arrays = []
    for row in rows:
        arrays.append(at)
        at += 8 * (len(row) + 1)
    numbers, at = at, at + 4 * len(targets)
    head, pool = [], bytearray()
    for row in rows:
        offsets = []
        for text in row:
            offsets.append(at + len(pool))
            pool += text + b"\0"
        head.append(Struct(f"={len(row) + 1}Q").pack(*offsets, 0))
    place = 0
    if cwd is not None:
        place = at + len(pool)
        pool += cwd + b"\0"
    fixed = ENTRY.pack(at + len(pool), *arrays, numbers, place, len(targets), flags, umask, pgid)
    return b"".join((fixed, *head, Struct(f"={len(targets)}i").pack(*targets), pool))
