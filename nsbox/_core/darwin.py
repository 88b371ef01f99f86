"""The calls that only macOS's C core has. With _core.call and _core.linux all that touches it."""

from __future__ import annotations

import os

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.paths import PACKAGE
from nsbox._core.abi import constants as c
from nsbox._core.abi import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

PROGRAM = "/usr/bin/sandbox-exec"
HELPER = os.path.join(PACKAGE, "_helper")
_MESSAGE = 4096


def ways() -> tuple[bool, bool]:
    """Return whether libsandbox can compile and apply profiles, and whether it can do both at once."""
    found = lib.nsbox_seatbelt_ways()
    return bool(found & c.WAY_COMPILED), bool(found & c.WAY_INIT)


def is_confined() -> bool:
    """Say if this process is in a sandbox already. Where that can't be asked: no."""
    return bool(lib.nsbox_seatbelt_confined() > 0)


def has_ended(pid: int, *, block: bool) -> bool:
    """Say if a child has ended, without reaping it; block: wait for that. Raises OSError."""
    while True:
        ret = lib.nsbox_has_ended(pid, block)
        if ret >= 0:
            return bool(ret)
        if -ret != 4:  # EINTR; Python's signal handlers have run by now
            raise OSError(-ret, os.strerror(-ret))


class Profile:
    """What confines a command, as the C core takes it.

    compiled: a profile of compile(), or None. helper: the path of our helper program, which keeps the lifeline, and
    applies a profile where there is no compiled one: what it is told is in the file profile_fd (-1: nothing), which is
    closed with this.
    flags: more of abi.h's. pipe: for reports; C closes it. (That no other thread starts something that would inherit it
    while it is made is the GIL's doing.)
    """

    __slots__ = ("compiled", "flags", "helper", "pipe", "profile_fd")

    def __init__(self, compiled: Any, helper: bytes, profile_fd: int, flags: int, pipe: tuple[int, int]) -> None:
        self.compiled, self.helper, self.profile_fd, self.flags, self.pipe = compiled, helper, profile_fd, flags, pipe

    def __del__(self, *, _close: Callable[[int], None] = os.close) -> None:
        for fd in (self.profile_fd, *self.pipe):
            if fd > 2:
                _close(fd)

    def fill(self, r: Any, keep: list[object]) -> None:
        """Put it into a request."""
        if self.compiled is not None:
            r.profile = self.compiled
        (r.pipe_read, r.pipe_write), self.pipe = self.pipe, (0, 0)
        r.helper = helper = ffi.from_buffer("char[]", self.helper)
        keep.append(helper)
        r.flags |= self.flags
        if self.profile_fd >= 0:
            r.flags |= c.BY_HELPER
            r.profile_fd = self.profile_fd


def compile(profile: bytes, params: Sequence[tuple[bytes, bytes]]) -> Any:
    """Return a compiled profile, which is freed when nobody has it any more; raises ValueError with what is wrong."""
    flat = [part for pair in params for part in pair]
    texts = [ffi.from_buffer("char[]", text) for text in (profile, *flat)]
    array = ffi.new("char *[]", [*texts[1:], ffi.NULL])
    message = ffi.new("char[]", _MESSAGE)
    found = lib.nsbox_seatbelt_compile(texts[0], array, message, _MESSAGE)
    if found == ffi.NULL:
        raise ValueError(ffi.string(message).decode(errors="replace").strip() or "libsandbox doesn't say why")
    return ffi.gc(found, lib.nsbox_seatbelt_free)
