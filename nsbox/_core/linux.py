"""The calls that only Linux's C core has. With _core.call and _core.darwin all that touches it."""

from __future__ import annotations

import errno
import sys
from _weakref import ref

from nsbox._base.frozen import TYPE_CHECKING, remembered
from nsbox._base.lean_os import os
from nsbox._core import call
from nsbox._core.abi import constants, ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def death_signal(number: int) -> int:
    """Have another signal come when the thread ends that made this process, 0 for none; return which it was.

    Raises OSError.
    """
    ret: int = lib.nsbox_death_signal(number)
    if ret < 0:
        raise OSError(-ret, os.strerror(-ret))
    return ret


def open_in_root(root: int, path: bytes) -> int:
    """Open a file for reading, as it is found by who has the directory for a root; raises OSError."""
    fd: int = lib.nsbox_open_in_root(root, ffi.from_buffer("char[]", path))
    if fd < 0:
        raise OSError(-fd, os.strerror(-fd), os.fsdecode(path))
    return fd


_mappings: dict[ref[UserNamespace], tuple[int, tuple[int, int]]] = {}  # descriptors, and what they are of


def _is_still(fd: int, what: tuple[int, int]) -> bool:
    """Say if a descriptor is of this: a program that becomes a daemon closes all that it knows nothing of."""
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == what


class UserNamespace:
    """A user namespace that nobody is in, for idmapped mounts; its descriptor ends with it; no child has that."""

    __slots__ = ("__weakref__", "_key", "_made", "fd")

    def __init__(self, uid_map: str, gid_map: str) -> None:
        """Make it; raises OSError."""
        self._made: list[int] = []
        self._key = ref(self)
        _sweep()
        size = 1 << 14
        stack = ffi.new("uint8_t[]", size + 64)  # for a process that is in it meanwhile
        start = ffi.cast("uint8_t *", (int(ffi.cast("uintptr_t", stack)) + 63) // 64 * 64)
        maps = [ffi.from_buffer("char[]", text.encode() + b"\0") for text in (uid_map, gid_map)]
        self._made.extend(
            map(lib.nsbox_idmap, *zip((*maps, start, size), strict=True))
        )  # in one step: see _base.owners
        self.fd = self._made[0]
        if self.fd < 0:
            raise OSError(-self.fd, os.strerror(-self.fd))
        found = os.fstat(self.fd)
        _mappings[self._key] = self.fd, (found.st_dev, found.st_ino)
        self._made = []

    def is_open(self) -> bool:
        """Say if the descriptor is there, and its own."""
        known = _mappings.get(self._key)
        return known is not None and _is_still(*known)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # the kernel closes it; the names of this module may have gone
            return
        _let_go(self._key)
        while self._made:  # a signal's handler has raised before it was known
            fd = self._made.pop()
            if fd >= 0:
                os.close(fd)


def _let_go(key: ref[UserNamespace]) -> None:
    """Close a mapping's descriptor, and only then forget it: a signal's handler may raise in between."""
    known = _mappings.get(key)
    if known is not None and _is_still(*known):
        os.close(known[0])
    _mappings.pop(key, None)


def _sweep() -> None:
    """Let go of those that have gone, while a signal's handler raised in __del__()."""
    for key in list(_mappings):
        if key() is None:
            _let_go(key)


def _after_fork() -> None:
    """Close all in a child: a preexec_fn runs there."""
    for key in list(_mappings):
        _let_go(key)


os.register_at_fork(after_in_child=_after_fork)


def refused_idmap(path: str, namespace: UserNamespace) -> int:
    """Return 0 if what is at path, and all that is mounted below, can be mounted with this mapping; else the errno.

    EINVAL: a file system there has no idmapped mounts; EPERM: the mount is one already. Raises OSError for all else.
    """
    ret = -int(lib.nsbox_try_idmap(ffi.from_buffer("char[]", os.fsencode(path) + b"\0"), namespace.fd))
    if ret not in (0, errno.EINVAL, errno.EPERM):
        raise OSError(ret, os.strerror(ret), path)
    return ret


def is_dumpable() -> bool:
    """Say if this process wants to be dumpable, PR_SET_DUMPABLE. Raises OSError while that can't be told."""
    ret = int(lib.nsbox_dumpable())
    if ret < 0:
        raise OSError(-ret, os.strerror(-ret))
    return ret == 1


def refused_calls() -> tuple[tuple[str, int], ...]:
    """Return the calls that sandboxes are made of and a seccomp filter refuses, with its errno; -1: it kills."""
    errors = ffi.new("int32_t[]", constants.CALLS)
    stack = ffi.new("uint8_t[]", (1 << 14) + 64)
    start = ffi.cast("uint8_t *", (int(ffi.cast("uintptr_t", stack)) + 63) // 64 * 64)
    if lib.nsbox_refused_calls(errors, start, 1 << 14) < 0:
        return ()
    names = [name for name in dir(lib) if name.startswith("NSBOX_CALL_")]
    found = ((name.removeprefix("NSBOX_CALL_").lower(), errors[getattr(lib, name)]) for name in names)
    return tuple(sorted((name, error) for name, error in found if error))


def has_locked_securebits() -> bool:
    """Say if SECBIT_NO_SETUID_FIXUP can't be set in this process, capabilities(7)."""
    return bool(int(lib.nsbox_securebits()) & 1 << 3)


def hold_ids_at_forks() -> None:
    """Let no spawn change its ids while this process forks: a child would stay as dumpable as it finds the memory."""
    os.register_at_fork(
        before=lib.nsbox_hold_ids, after_in_parent=lib.nsbox_release_ids, after_in_child=lib.nsbox_forget_ids
    )


def landlock_abi() -> int:
    """Return the version of the kernel's Landlock; 0 where there is none."""
    return int(max(0, lib.nsbox_landlock_abi()))


@remembered
def syscalls() -> tuple[str, dict[str, int]]:
    """Return the machine that the C core was built for, and its system calls by name, by the kernel headers."""
    machine, *words = ffi.string(lib.nsbox_syscalls()).decode().split()
    return machine, dict(zip(words[::2], map(int, words[1::2]), strict=True))


def numbers_of(names: Iterable[str]) -> tuple[str, dict[str, int]]:
    """Return what syscalls() does, of these system calls; those that the machine lacks are left out."""
    machine, _, rows = ffi.string(lib.nsbox_syscalls()).decode().partition("\n")
    rows = f"\n{rows}\n"
    found = {}
    for name in names:
        _, is_there, rest = rows.partition(f"\n{name} ")
        if is_there:
            found[name] = int(rest[: rest.index("\n")])
    return machine, found


def init_image(name: str = "init") -> bytes:
    """Return the program that becomes pid 1: the "init", or that of a "session"."""
    return bytes(ffi.buffer(getattr(lib, f"nsbox_{name}_bytes")(), getattr(lib, f"nsbox_{name}_size")()))


def plan_check(plan: bytes) -> tuple[int, int]:
    """Return 0 or -EINVAL, and the index of the first malformed op (-1: the header)."""
    bad = ffi.new("int32_t *")
    ret = lib.nsbox_plan_check(ffi.from_buffer("uint8_t[]", plan), len(plan), bad)
    return ret, bad[0]


def last_word(init_says: int) -> bytes:
    """Return what an init said at its end, for used_by_others(); b"" when it ended without a word."""
    try:
        return os.read(init_says, 64)
    except BlockingIOError:
        return b""


def used_by_others(text: bytes) -> tuple[int, int, int] | None:
    """Return what an init's children used, by its last word: user and system microseconds, bytes of the largest."""
    if len(text) != ffi.sizeof("nsbox_word"):
        return None
    word = ffi.from_buffer("nsbox_word *", text)
    return (word.user_us, word.system_us, word.max_rss) if word.said == constants.SAID_EMPTY else None


def start_relay(program: bytes, fds: tuple[int, int, int], devnull: int) -> int:
    """Start the program, a relay of network lists, with these descriptors; return a pidfd of it. Raises OSError.

    It is no child of this process, unless nobody else reaps orphans here: see nsbox_relay_start() in calls.h.
    """
    size = 1 << 15
    stack = ffi.new("uint8_t[]", size + 64)  # for two processes, up to their exec or end
    start = ffi.cast("uint8_t *", (int(ffi.cast("uintptr_t", stack)) + 63) // 64 * 64)
    given = ffi.new("int32_t[]", fds)
    path = ffi.from_buffer("char[]", program + b"\0")
    pidfd = int(lib.nsbox_relay_start(path, given, devnull, call.adopt_inits, start, size))
    if pidfd < 0:
        raise OSError(-pidfd, os.strerror(-pidfd), os.fsdecode(program))
    return pidfd
