"""Two directories that change places before a chosen system call of a set-up, and again later: no timing."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from nsbox_testing.faults import EXIT, NUMBERS, THOROUGH, Call, Spawn

MOVE_MOUNT = NUMBERS.get("move_mount", -1)
PATHS = {NUMBERS.get(name, -1) for name in ("move_mount", "open_tree", "openat2")}
"""Of calls with which a set-up finds something by its path."""

_libc = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def exchange(one: Path, other: Path) -> None:
    """Let two directories change places."""
    ret = _libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    assert ret == 0, os.strerror(ctypes.get_errno())


class Swap:
    """Exchanges two directories before one call of a process, and again later.

    is_its: whether a call is that process's. first: which of its calls, from 0; -1: none. length: how many calls later
    it is undone, at the latest before the call `end`, or one of the numbers `ends`.
    """

    def __init__(
        self,
        places: tuple[Path, Path],
        is_its: Callable[[Call], bool],
        first: int = -1,
        length: int = 0,
        end: int = 0,
        *,
        ends: Collection[int] = (EXIT,),
    ) -> None:
        self._places, self._is_its, self._first, self._length = places, is_its, first, length
        self._end, self._ends = end, ends
        self.numbers: list[int] = []  # of the calls so far
        self.is_swapped = False

    def __call__(self, call: Call, spawn: Spawn) -> None:
        if not self._is_its(call):
            return
        number, is_last = len(self.numbers), call.number in self._ends
        begins = number == self._first and not is_last
        if begins or (self.is_swapped and (is_last or number in (self._first + self._length, self._end))):
            exchange(*self._places)
            self.is_swapped = not self.is_swapped
        self.numbers.append(call.number)


def moments(numbers: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return first, length and end of the swaps to try, by the calls of an undisturbed run."""
    last = len(numbers) - 1 - list(numbers)[::-1].index(MOVE_MOUNT)  # soon afterwards, the command runs
    begins = [first for first in range(last + 1) if THOROUGH or numbers[first] in PATHS]
    assert len(begins) > 5
    lengths = (1, 2, 3, 5, 8, len(numbers)) if THOROUGH else (1, len(numbers))
    return [(first, length, last + 1) for first in begins for length in lengths]
