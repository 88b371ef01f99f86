"""Buffers that C borrows for one call: arenas for the children of a spawn, arrays of strings, stamps of ops.

Python owns every one of them, and keeps it until the call is over.
"""

from __future__ import annotations

import os
from itertools import repeat

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._core.abi import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsbox._core.abi import CData


class _Arena:
    """Stacks and work space for the children of one spawn. The next spawn uses them again."""

    def __init__(self, size: int) -> None:
        total = size + ffi.sizeof("nsbox_result")
        # Shared, so that a fork doesn't make its pages copy-on-write: for a process that is being killed, the kernel
        # fails to write to such a page, without any error.
        flags = lib.MAP_SHARED | lib.MAP_ANONYMOUS
        memory = lib.mmap(ffi.NULL, total, lib.PROT_READ | lib.PROT_WRITE, flags, -1, 0)
        if memory == ffi.cast("void *", -1):
            raise OSError(ffi.errno, os.strerror(ffi.errno))
        munmap = lib.munmap  # of this object: the names of the module may have gone by then
        self.memory = ffi.gc(memory, lambda memory: munmap(memory, total), total)
        self.size = size
        self.pointer = ffi.cast("uint8_t *", memory)
        self.result = ffi.cast("nsbox_result *", self.pointer + size)


_USUAL = 256  # ops for which a pooled arena has room
_arenas: list[_Arena] = []
_abandoned: list[object] = []  # memory that processes of a killed set-up may still use
os.register_at_fork(after_in_child=_arenas.clear)  # they are the parent's


def _take_arena(nops: int) -> _Arena:
    if nops <= _USUAL:
        try:
            return _arenas.pop()  # atomic; each thread gets its own
        except IndexError:
            pass
    return _Arena(lib.nsbox_arena_size(max(nops, _USUAL)))


def _give_back(arena: _Arena, nops: int) -> None:
    if nops <= _USUAL and len(_arenas) < 64:
        _arenas.append(arena)


_characters = repeat("char[]")


class Strings:
    """A char*[] that ends in NULL. Its pointers lead to the buffers of the bytes objects, which end in NUL."""

    __slots__ = ("_keep", "array", "items")

    def __init__(self, items: Sequence[bytes]) -> None:
        self.items = items
        self._keep = [*map(ffi.from_buffer, _characters, items)]
        self.array = ffi.new("char *[]", [*self._keep, ffi.NULL])


def _strings(items: Sequence[bytes], keep: list[object]) -> CData:
    strings = Strings(items)
    keep.append(strings)
    return strings.array


class Stamps:
    """What the ops of a kept sandbox have found and made: an nsbox_stamp for each, which C fills in."""

    __slots__ = ("array",)

    def __init__(self, watched: Sequence[int]) -> None:
        """watched: for each op, a value of abi.h's nsbox_watched."""
        self.array = ffi.new("nsbox_stamp[]", [(0, 0, 0, 0, 0, value) for value in watched] or 1)

    def copy(self) -> Stamps:
        """Return the same stamps once more."""
        stamps = Stamps.__new__(Stamps)
        stamps.array = ffi.new("nsbox_stamp[]", len(self.array))
        ffi.buffer(stamps.array)[:] = ffi.buffer(self.array)[:]
        return stamps
