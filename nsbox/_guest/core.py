"""The C core of branches, by ctypes: a library without libc of its own, from a file in memory.

The names and the fields are abi_branch.h's; tests/abi compares them.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from typing import Any

_ALIGNMENT = 64
MOST_MOUNTS = 16


class Parameters(ctypes.Structure):
    """nsbox_branch: what a branch is made of, and what has come of it."""

    _fields_ = [
        ("request", ctypes.c_void_p),
        ("image_fd", ctypes.c_int32),
        ("lifeline_fd", ctypes.c_int32),
        ("pid_fd", ctypes.c_int32),
        ("user_fd", ctypes.c_int32),
        ("net_fd", ctypes.c_int32),
        ("relay_fd", ctypes.c_int32),
        ("relay_id", ctypes.c_uint64),
        ("init_pid", ctypes.c_int32),
        ("init_pidfd", ctypes.c_int32),
        ("says_fd", ctypes.c_int32),
        ("setup_fd", ctypes.c_int32),
        ("error", ctypes.c_int32),
        ("op", ctypes.c_int32),
        ("step", ctypes.c_uint32),
        ("n_mounts", ctypes.c_uint32),
        ("mounts", ctypes.c_int32 * MOST_MOUNTS),
        ("detail", ctypes.c_char * 64),
    ]


class CoreError(Exception):
    """A call has failed: error is an errno, step, op and detail say where."""

    def __init__(self, error: int, step: int, op: int, detail: str = "") -> None:
        """Keep the four."""
        super().__init__(f"{os.strerror(error)} (errno {error}, step {step}, op {op})")
        self.error, self.step, self.op, self.detail = error, step, op, detail

    def told(self) -> dict[str, Any]:
        """Return the message that says so."""
        return {"failed": self.error, "step": self.step, "op": self.op, "detail": self.detail}


class Core:
    """The library, and the request that all branches of this interpreter share."""

    def __init__(self, library_fd: int, image_fd: int, blob: bytes, relocations: list[int]) -> None:
        """Load the library; raises OSError.

        library_fd, image_fd: files in memory, with the library and with the init image.
        blob: the request, whose pointers are offsets in it.
        relocations: the positions of its pointers.
        """
        self._library: Any = ctypes.CDLL(f"/proc/self/fd/{library_fd}")
        for name in ("begin", "enter"):
            function = getattr(self._library, f"nsbox_branch_{name}")
            function.argtypes, function.restype = [ctypes.POINTER(Parameters)], ctypes.c_int32
        self._library.nsbox_branch_end.argtypes = [ctypes.POINTER(Parameters), ctypes.c_int32]
        self._library.nsbox_branch_end.restype = ctypes.c_int32
        self._library.nsbox_branch_fork.argtypes = []
        self._library.nsbox_branch_fork.restype = ctypes.c_int32
        self._image_fd = image_fd
        self._buffer = (ctypes.c_char * (len(blob) + _ALIGNMENT))()
        start = ctypes.addressof(self._buffer)
        offset = -start % _ALIGNMENT
        content = bytearray(blob)
        for position in relocations:
            (target,) = struct.unpack_from("=Q", content, position)
            struct.pack_into("=Q", content, position, start + offset + target)
        ctypes.memmove(start + offset, bytes(content), len(content))
        self._request = start + offset
        self.user_fd = -1
        self.lifeline_fd = -1
        self.pid_fd = -1

    def parameters(self, mounts: Sequence[int] = (), relay: tuple[int, int] = (-1, 0)) -> Parameters:
        """Return what a branch of this process is made of.

        mounts: descriptors of detached mounts, for the branch's plan.
        relay: a socket to the relay of its network list, and its number there; (-1, 0): there is no list.
        """
        p = Parameters(request=self._request, image_fd=self._image_fd, lifeline_fd=self.lifeline_fd)
        p.pid_fd, p.user_fd = self.pid_fd, self.user_fd
        p.net_fd = -1
        p.relay_fd, p.relay_id = relay
        p.n_mounts = len(mounts)
        p.mounts[: len(mounts)] = mounts
        p.init_pidfd = p.says_fd = p.setup_fd = -1
        p.op = -1
        return p

    def _check(self, p: Parameters, ret: int) -> int:
        if ret < 0:
            raise CoreError(p.error or -ret, p.step, p.op, p.detail.decode("ascii", "replace"))
        return ret

    def begin(self, p: Parameters) -> None:
        """Make a pid namespace and its pid 1, for the next child; raises CoreError."""
        self._check(p, self._library.nsbox_branch_begin(ctypes.byref(p)))

    def end(self, p: Parameters, has_forked: bool) -> None:
        """After the fork, in the parent; raises CoreError."""
        self._check(p, self._library.nsbox_branch_end(ctypes.byref(p), has_forked))

    def enter(self, p: Parameters) -> None:
        """Confine this process, the child; raises CoreError, after which it must exit."""
        self._check(p, self._library.nsbox_branch_enter(ctypes.byref(p)))

    def fork(self) -> None:
        """Put this process, a kernel's fork, out of its siblings' reach; raises CoreError, after which it must exit."""
        ret = self._library.nsbox_branch_fork()
        if ret < 0:
            raise CoreError(-ret, 0, -1)

    def close(self, p: Parameters) -> None:
        """In a branch: close what belongs to the interpreter."""
        fds = (self._image_fd, self.lifeline_fd, self.pid_fd, self.user_fd, p.init_pidfd, p.says_fd, p.setup_fd)
        for fd in fds:
            if fd >= 0:
                try:
                    os.close(fd)
                except OSError:
                    pass
