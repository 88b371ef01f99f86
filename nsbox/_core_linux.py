"""The calls that only Linux's C core has. With _core and _core_darwin all that touches it."""

from __future__ import annotations

from nsbox._core import ffi, lib
from nsbox._early import os
from nsbox._frozen import TYPE_CHECKING, remembered

if TYPE_CHECKING:
    from collections.abc import Iterable


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
