"""The calls that only Linux's C core has. Apart from the other modules of _core, none touches the core."""

from __future__ import annotations

import errno
import os
import sys
from weakref import ref

from nsbox._base.frozen import TYPE_CHECKING, remembered
from nsbox._core import call
from nsbox._core.abi import constants, ffi, lib
from nsbox._core.command import Used

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Literal

    from nsbox._core.abi import CData


_mappings: dict[ref[UserNamespace], tuple[int, tuple[int, int]]] = {}  # descriptors, with their files' device and inode


def _is_still(fd: int, what: tuple[int, int]) -> bool:
    """Return whether a descriptor is still this file's: a program that becomes a daemon closes those that aren't its.

    what: device and inode.
    """
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == what


class UserNamespace:
    """A user namespace without a process, for idmapped mounts. It closes its descriptor, which no child inherits."""

    __slots__ = ("__weakref__", "_key", "_made", "fd")

    def __init__(self, uid_map: str, gid_map: str) -> None:
        """Make it; raises OSError."""
        self._made: list[int] = []
        self._key = ref(self)
        _sweep()
        size = 1 << 14
        stack = ffi.new("uint8_t[]", size + 64)  # for a process that is in the namespace meanwhile
        start = ffi.cast("uint8_t *", (int(ffi.cast("uintptr_t", stack)) + 63) // 64 * 64)
        maps = [ffi.from_buffer("char[]", text.encode() + b"\0") for text in (uid_map, gid_map)]
        self._made.extend(
            map(lib.nsbox_idmap, *zip((*maps, start, size), strict=True))
        )  # in one step: see _base.owners
        self.fd = self._made[0]
        if self.fd < 0:
            raise OSError(-self.fd, os.strerror(-self.fd))
        status = os.fstat(self.fd)
        _mappings[self._key] = self.fd, (status.st_dev, status.st_ino)
        self._made = []

    def is_open(self) -> bool:
        """Return whether the descriptor is open, and still the namespace's."""
        mapping = _mappings.get(self._key)
        return mapping is not None and _is_still(*mapping)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # the kernel closes it; the names of this module may have gone
            return
        _let_go(self._key)
        while self._made:  # a signal handler has raised before _mappings had it
            fd = self._made.pop()
            if fd >= 0:
                os.close(fd)


def _let_go(key: ref[UserNamespace]) -> None:
    """Close a mapping's descriptor, and only then forget it: a signal handler may raise in between."""
    mapping = _mappings.get(key)
    if mapping is not None and _is_still(*mapping):
        os.close(mapping[0])
    _mappings.pop(key, None)


def _sweep() -> None:
    """Let go of mappings whose objects have gone: a signal handler may have raised in their __del__()."""
    for key in list(_mappings):
        if key() is None:
            _let_go(key)


def _after_fork() -> None:
    """In a child, close all: a preexec_fn may run there."""
    for key in list(_mappings):
        _let_go(key)


os.register_at_fork(after_in_child=_after_fork)


def refused_idmap(path: str, namespace: UserNamespace) -> int:
    """Return 0 if what is at path, with everything mounted below, can be mounted with this mapping; else the errno.

    EINVAL: a file system there doesn't support idmapped mounts. EPERM: the mount is one already. Any other error is
    raised as OSError.
    """
    ret = -lib.nsbox_try_idmap(ffi.from_buffer("char[]", os.fsencode(path) + b"\0"), namespace.fd)
    if ret not in (0, errno.EINVAL, errno.EPERM):
        raise OSError(ret, os.strerror(ret), path)
    return ret


def is_dumpable() -> bool:
    """Return whether this process wants to be dumpable, PR_SET_DUMPABLE. Raises OSError while that isn't known."""
    ret = lib.nsbox_dumpable()
    if ret < 0:
        raise OSError(-ret, os.strerror(-ret))
    return ret == 1


def refused_calls() -> tuple[tuple[str, int], ...]:
    """Return the calls that sandboxes need and a seccomp filter refuses, each with its errno; -1: it kills."""
    errors = ffi.new("int32_t[]", constants.CALLS)
    stack = ffi.new("uint8_t[]", (1 << 14) + 64)
    start = ffi.cast("uint8_t *", (int(ffi.cast("uintptr_t", stack)) + 63) // 64 * 64)
    if lib.nsbox_refused_calls(errors, start, 1 << 14) < 0:
        return ()
    names = [name for name in dir(lib) if name.startswith("NSBOX_CALL_")]
    calls = ((name.removeprefix("NSBOX_CALL_").lower(), errors[getattr(lib, name)]) for name in names)
    return tuple(sorted((name, error) for name, error in calls if error))


class Overlays:
    """A request for throw-away overlays, which can be made again and again: see nsbox_overlays in calls.h."""

    def __init__(self, places: Sequence[tuple[str, Sequence[str]]], size: int) -> None:
        """Encode it.

        places: the directories, as paths in a kept tree, each with the paths in it that its overlay lacks.
        size: the most bytes that are written to all of them together; 0: the kernel's default.
        """
        self._keep: list[object] = []
        self._rows = ffi.new("nsbox_overlay[]", len(places))
        for row, (path, hidden) in zip(self._rows, places, strict=True):
            row.lower, row.hidden = self._text(path), self._texts(hidden)
        self._size = size

    def _text(self, path: str) -> CData:
        text = ffi.from_buffer("char[]", os.fsencode(path) + b"\0")
        self._keep.append(text)
        return text

    def _texts(self, paths: Sequence[str]) -> CData:
        texts = ffi.new("char *[]", [*map(self._text, paths), ffi.NULL])
        self._keep.append(texts)
        return texts

    def make(self, user: int, mount: int, socket: int) -> tuple[int, int, int] | None:
        """Make them; None: each arrives through the socket. Else an errno, the step, and the index of the overlay.

        user, mount: descriptors of the kept tree's namespaces.
        """
        size = 1 << 15
        stack = ffi.new("uint8_t[]", size + 64)
        start = ffi.cast("uint8_t *", (int(ffi.cast("uintptr_t", stack)) + 63) // 64 * 64)
        amounts = (len(self._rows), self._size, self._rows, start, size, 0, 0)
        request = ffi.new("nsbox_overlays *", (user, mount, socket, *amounts))
        ret = lib.nsbox_make_overlays(request)
        return None if ret >= 0 else (-ret, request.step, request.at)


def has_locked_securebits() -> bool:
    """Return whether SECBIT_NO_SETUID_FIXUP can't be set in this process, capabilities(7)."""
    return bool(lib.nsbox_securebits() & 1 << 3)


def hold_ids_at_forks() -> None:
    """Keep spawns from changing ids while this process forks: a child would inherit whether the memory is dumpable."""
    os.register_at_fork(
        before=lib.nsbox_hold_ids, after_in_parent=lib.nsbox_release_ids, after_in_child=lib.nsbox_forget_ids
    )


def landlock_abi() -> int:
    """Return the version of the kernel's Landlock ABI; 0 if there is none."""
    return max(0, lib.nsbox_landlock_abi())


@remembered
def syscalls() -> tuple[str, dict[str, int]]:
    """Return the machine that the C core was built for, and its system calls by name, from the kernel headers."""
    machine, *words = ffi.string(lib.nsbox_syscalls()).decode().split()
    return machine, dict(zip(words[::2], map(int, words[1::2]), strict=True))


def numbers_of(names: Iterable[str]) -> tuple[str, dict[str, int]]:
    """Return the same as syscalls(), but only of these system calls, without those that the machine lacks."""
    machine, _, rows = ffi.string(lib.nsbox_syscalls()).decode().partition("\n")
    rows = f"\n{rows}\n"
    numbers = {}
    for name in names:
        _, is_there, rest = rows.partition(f"\n{name} ")
        if is_there:
            numbers[name] = int(rest[: rest.index("\n")])
    return machine, numbers


def init_image(name: Literal["init", "session"] = "init") -> bytes:
    """Return the program that becomes pid 1: the "init", or a "session"'s."""
    if name == "init":
        return bytes(ffi.buffer(lib.nsbox_init_bytes(), lib.nsbox_init_size()))
    return bytes(ffi.buffer(lib.nsbox_session_bytes(), lib.nsbox_session_size()))


def branch_library() -> bytes:
    """Return the shared library by which an interpreter makes branches: csrc/branch/branch.h."""
    return bytes(ffi.buffer(lib.nsbox_branch_bytes(), lib.nsbox_branch_size()))


def last_word(init_says: int) -> bytes:
    """Return what an init reported at its end, for used_by_others(); b"" if it reported nothing."""
    try:
        return os.read(init_says, 64)
    except BlockingIOError:
        return b""


def used_by_others(text: bytes) -> Used | None:
    """Return what an init's children used, from its last word; None if that says nothing of it."""
    if len(text) != ffi.sizeof("nsbox_word"):
        return None
    word = ffi.from_buffer("nsbox_word *", text)
    return Used(word.user_us, word.system_us, word.max_rss) if word.said == constants.SAID_EMPTY else None


def start_relay(program: bytes, fds: tuple[int, int, int], devnull: int) -> int:
    """Start the program, a relay of network lists, with these descriptors; return its pidfd. Raises OSError.

    It is no child of this process, unless no other process reaps orphans here: see nsbox_relay_start() in calls.h.
    """
    size = 1 << 15
    stack = ffi.new("uint8_t[]", size + 64)  # for two processes, up to their exec or end
    start = ffi.cast("uint8_t *", (int(ffi.cast("uintptr_t", stack)) + 63) // 64 * 64)
    numbers = ffi.new("int32_t[]", fds)
    path = ffi.from_buffer("char[]", program + b"\0")
    pidfd = lib.nsbox_relay_start(path, numbers, devnull, call.adopt_inits, start, size)
    if pidfd < 0:
        raise OSError(-pidfd, os.strerror(-pidfd), os.fsdecode(program))
    return pidfd
