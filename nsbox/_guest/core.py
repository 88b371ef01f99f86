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
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432  # syscall(2), on all machines except alpha
_CREATE = 6  # FSCONFIG_CMD_CREATE
_CLOEXEC = 1
_FAR = (4_000_000, 2_000_000, 1_000_000, 30_000)  # the next pid is one more; /proc/sys/kernel/pid_max bounds it
_SKIPPED = 300  # pids, where the kernel lets no process choose one (CONFIG_CHECKPOINT_RESTORE)


class Parameters(ctypes.Structure):
    """nsbox_branch: what a branch is made of, and what has come of it."""

    _fields_ = [
        ("request", ctypes.c_void_p),
        ("image_fd", ctypes.c_int32),
        ("lifeline_fd", ctypes.c_int32),
        ("pid_fd", ctypes.c_int32),
        ("spare", ctypes.c_int32),
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
        for name in ("look", "begin", "enter"):
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
        self.lifeline_fd = -1
        self.pid_fd = -1

    def parameters(self, mounts: Sequence[int] = (), relay: tuple[int, int] = (-1, 0)) -> Parameters:
        """Return what a branch of this process is made of.

        mounts: descriptors of detached mounts, for the branch's plan.
        relay: a socket to the relay of its network list, and its number there; (-1, 0): there is no list.
        """
        p = Parameters(request=self._request, image_fd=self._image_fd, lifeline_fd=self.lifeline_fd)
        p.pid_fd = self.pid_fd
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

    def look(self, p: Parameters) -> None:
        """Record what is mounted where branches will mount something; raises CoreError."""
        self._check(p, self._library.nsbox_branch_look(ctypes.byref(p)))

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
        fds = (self._image_fd, self.lifeline_fd, self.pid_fd, p.init_pidfd, p.says_fd, p.setup_fd)
        for fd in fds:
            if fd >= 0:
                try:
                    os.close(fd)
                except OSError:
                    pass


def fork_far() -> int:
    """Fork, as os.fork() does; raises OSError. The child has a pid that no process of a branch is likely to have.

    Libraries compare pids to notice that they were forked: OpenSSL and tempfile begin new random numbers then. A branch
    is the second process of a new pid namespace. If the interpreter were one too, libraries would see no difference,
    and all branches would have the same numbers, keys among them.
    """
    if not _choose():
        for _ in range(_SKIPPED):
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
    return os.fork()


def _choose() -> bool:
    """Let the next process of this pid namespace have a high pid; return whether the kernel does that.

    It is a setting in a procfs that isn't mounted anywhere, since the one in /proc is read-only.
    """
    try:
        proc = _procfs()
    except OSError:
        return False
    try:
        file = os.open("sys/kernel/ns_last_pid", os.O_WRONLY | os.O_CLOEXEC, dir_fd=proc)
    except OSError:
        return False
    finally:
        os.close(proc)
    try:
        return any(_write(file, number) for number in _FAR)
    finally:
        os.close(file)


def _write(file: int, number: int) -> bool:
    try:
        os.pwrite(file, str(number).encode("ascii"), 0)
    except OSError:
        return False
    return True


def _procfs() -> int:
    context = _call(_FSOPEN, b"proc", _CLOEXEC)
    try:
        _call(_FSCONFIG, context, _CREATE, None, None, 0)
        return _call(_FSMOUNT, context, _CLOEXEC, 0)
    finally:
        os.close(context)


def _call(number: int, *arguments: object) -> int:
    ret = int(ctypes.CDLL(None, use_errno=True).syscall(number, *arguments))
    if ret < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return ret
