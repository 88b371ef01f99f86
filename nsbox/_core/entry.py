"""The messages to a session about a command, and its answers, as bytes: abi.h's nsbox_entry and others."""

from __future__ import annotations

from struct import Struct

from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ENTRY = Struct("=7Q2I2i4I")
_SAME = 2**32 - 1
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
    ids: tuple[int | None, int | None, Sequence[int] | None] = (None, None, None),
) -> bytes:
    """Return an nsbox_entry with everything that it points to.

    targets: the numbers of the command's descriptors, ascending.
    ids: the uid, the gid and the supplementary groups; None: pid 1's.
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
    uid, gid, groups = ids
    place = 0
    if cwd is not None:
        place = at + len(pool)
        pool += cwd + b"\0"
    pool += bytes(-(at + len(pool)) % 4)
    listed = at + len(pool)
    pool += Struct(f"={len(groups or ())}I").pack(*(groups or ()))
    own = (_SAME if uid is None else uid, _SAME if gid is None else gid, len(groups or ()), 0)
    fixed = ENTRY.pack(at + len(pool), *arrays, numbers, place, listed, len(targets), flags, umask, pgid, *own)
    return b"".join((fixed, *head, Struct(f"={len(targets)}i").pack(*targets), pool))
