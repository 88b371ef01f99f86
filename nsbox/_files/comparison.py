"""Contents of files, compared and hashed: holes aren't read, and no more is read than the caller allows."""

from __future__ import annotations

import errno
import hashlib
import os

_PART = 1 << 16  # bytes that are compared together
BLOCK = 1 << 16  # bytes that are hashed together
LEAST = 1 << 12  # bytes for which each read counts at least, when files are hashed


def same_contents(left: int, right: int, most: int) -> tuple[bool | None, int]:
    """Return whether two regular files of the same size hold the same bytes, and how many bytes of both were read.

    What is a hole in both isn't read. left, right: descriptors. most: if more bytes would have to be read, the answer
    is None. Raises OSError.
    """
    at, cost, size = 0, 0, os.fstat(left).st_size
    while at < size:
        at = min(_next_data(left, at, size), _next_data(right, at, size))
        if at >= size:
            break
        count = min(max(_end_of_data(fd, at, size) for fd in (left, right)) - at, _PART)
        cost += 2 * max(count, BLOCK)
        if cost > most:
            return None, cost
        first, second = (_read(fd, at, count) for fd in (left, right))
        if first != second or not first:  # one has become shorter meanwhile
            return False, cost
        at += len(first)
    return True, cost


def _next_data(fd: int, at: int, size: int) -> int:
    try:
        return os.lseek(fd, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:  # a hole to the end
            raise
        return size


def _end_of_data(fd: int, at: int, size: int) -> int:
    try:
        return min(os.lseek(fd, at, os.SEEK_HOLE), size)  # there is one at the end of each file, lseek(2)
    except OSError as error:
        if error.errno != errno.ENXIO:  # it has become shorter
            raise
        return at


def _read(fd: int, at: int, count: int) -> bytes:
    """Return up to `count` bytes of a file at an offset."""
    data = b""
    while len(data) < count:
        more = os.pread(fd, count - len(data), at + len(data))
        if not more:
            break
        data += more
    return data


def digest(fd: int, most: int) -> tuple[bytes | None, int]:
    """Return a digest of a file's size and contents (None if it takes more than `most` bytes), and how many were read.

    Holes aren't read, and blocks of zeros don't count. So a file and its copy with other holes have the same digest.
    """
    size, at, cost = os.fstat(fd).st_size, 0, 0
    total = hashlib.sha256(b"%d" % size)
    while (at := _next_data(fd, at, size)) < size:
        at -= at % BLOCK
        cost += max(min(BLOCK, size - at), LEAST)
        if cost > most:
            return None, cost
        _add(total, at, _read(fd, at, BLOCK))
        at += BLOCK
    return total.digest(), cost


def digest_of(content: bytes) -> bytes:
    """Return the digest of a file that has this content."""
    total = hashlib.sha256(b"%d" % len(content))
    for at in range(0, len(content), BLOCK):
        _add(total, at, content[at : at + BLOCK])
    return total.digest()


def _add(total: hashlib._Hash, at: int, block: bytes) -> None:
    if block.strip(b"\0"):
        total.update(b"%d:%d:" % (at, len(block)))
        total.update(block)
