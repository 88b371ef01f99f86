"""The calls that only macOS's C core has. Apart from the other modules of _core, none touches the core."""

from __future__ import annotations

import os

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.paths import PACKAGE
from nsbox._core.abi import constants as c
from nsbox._core.abi import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsbox._core.abi import CData

PROGRAM = "/usr/bin/sandbox-exec"
HELPER = os.path.join(PACKAGE, "_helper")
_MESSAGE = 4096


def ways() -> tuple[bool, bool]:
    """Return whether libsandbox can compile and apply profiles, and whether it can do both at once."""
    flags = lib.nsbox_seatbelt_ways()
    return bool(flags & c.WAY_COMPILED), bool(flags & c.WAY_INIT)


def is_confined() -> bool:
    """Return whether this process is in a sandbox already; False if that can't be found out."""
    return lib.nsbox_seatbelt_confined() > 0


def has_ended(pid: int, *, block: bool) -> bool:
    """Return whether a child has ended, without reaping it. block: wait for its end. Raises OSError."""
    while True:
        ret = lib.nsbox_has_ended(pid, block)
        if ret >= 0:
            return bool(ret)
        if -ret != 4:  # EINTR; Python's signal handlers have run by now
            raise OSError(-ret, os.strerror(-ret))


class Profile:
    """What confines a command, as the C core expects it.

    compiled: a profile of compile(), or None.
    helper: the path of the helper program. It keeps the lifeline, and applies the profile if none is compiled.
    profile_fd: a file with what the helper has to know; -1: nothing. It is closed with this object.
    flags: further flags of abi.h.
    pipe: for reports; C closes it. The GIL keeps other threads from starting a process that would inherit it meanwhile.
    """

    __slots__ = ("compiled", "flags", "helper", "pipe", "profile_fd")

    def __init__(
        self, compiled: CData | None, helper: bytes, profile_fd: int, flags: int, pipe: tuple[int, int]
    ) -> None:
        self.compiled, self.helper, self.profile_fd, self.flags, self.pipe = compiled, helper, profile_fd, flags, pipe

    def __del__(self, *, _close: Callable[[int], None] = os.close) -> None:
        for fd in (self.profile_fd, *self.pipe):
            if fd > 2:
                _close(fd)

    def fill(self, r: CData, keep: list[object]) -> None:
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


def compile(profile: bytes, params: Sequence[tuple[bytes, bytes]]) -> CData:
    """Return a compiled profile, which is freed when nothing uses it any more; raises ValueError with what is wrong."""
    flat = [part for pair in params for part in pair]
    texts = [ffi.from_buffer("char[]", text) for text in (profile, *flat)]
    array = ffi.new("char *[]", [*texts[1:], ffi.NULL])
    message = ffi.new("char[]", _MESSAGE)
    compiled = lib.nsbox_seatbelt_compile(texts[0], array, message, _MESSAGE)
    if compiled == ffi.NULL:
        raise ValueError(ffi.string(message).decode(errors="replace").strip() or "libsandbox doesn't say why")
    return ffi.gc(compiled, lib.nsbox_seatbelt_free)
