"""Ops: the frozen steps that a plan is a flat tuple of, each of which can describe itself in one line.

What an op is, and how it describes itself, is here. Which ops a policy needs, and in which order, is up to a backend;
how they are carried out is up to C. Nothing here asks the operating system anything.
"""

from __future__ import annotations

from nsbox._base.checks import (
    check_bool,
    check_bytes,
    check_cover,
    check_data,
    check_fd,
    check_hostname,
    check_mode,
    check_path,
    check_target,
    is_iterable,
)
from nsbox._base.display import printable, type_phrase
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, fields, frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Literal


_CHECKS: dict[str, Callable[[str, object], object]] = {
    "optional": check_bool,
    "nofollow": check_bool,
    "read_only": check_bool,
    "cover": check_cover,
    "nests": check_bool,
    "src": check_path,
    "dest": check_path,
    "upper": check_path,
    "work": check_path,
    "target": check_target,
    "size": check_bytes,
    "mode": check_mode,
    "fd": check_fd,
    "data": check_data,
}


@frozen
class Op(Frozen):
    """One step of a plan. Every field is checked; PolicyError names the one that is wrong."""

    def __post_init__(self) -> None:
        for field in fields(self):
            check = _CHECKS.get(field.name)
            if check is not None:
                name = f"{type(self).__name__}.{field.name}"
                object.__setattr__(self, field.name, check(name, getattr(self, field.name)))

    def describe(self) -> str:
        """Return one line that says what the op does."""
        name, what = self.row()
        return f"{name} {printable(what)}" if what else name

    def row(self) -> tuple[str, str]:
        """Return the op's name and its operands, for tables."""
        raise NotImplementedError

    def primitives(self) -> tuple[Op, ...]:
        """Return the ops that are carried out for this one: itself, unless it is composite."""
        return (self,)


def _flags(*words: str | None) -> str:
    flags = [word for word in words if word]
    return f" [{', '.join(flags)}]" if flags else ""


@frozen
class _Bind(Op):
    """A recursive bind of src on dest, nosuid, and cut off from later mounts of the host.

    src: an absolute path of the host.
    dest: an absolute path in the sandbox.
    optional: a missing src isn't an error, as with bwrap's --bind-try.
    nofollow: a symlink anywhere in src is an error, since a command may have planted it.
    """

    src: str
    dest: str
    optional: bool = False
    nofollow: bool = False

    def row(self) -> tuple[str, str]:
        words = {Bind: "rw", RoBind: "ro", DevBind: "rw, devices"}[type(self)]
        optional, nofollow = "optional" if self.optional else None, "nofollow" if self.nofollow else None
        return "bind", f"{self.src} -> {self.dest}{_flags(words, optional, nofollow)}"


@frozen
class Bind(_Bind):
    """Bind src on dest, writable; device nodes in it don't work.

    src: an absolute path of the host.
    dest: an absolute path in the sandbox.
    optional: a missing src isn't an error, as with bwrap's --bind-try.
    nofollow: a symlink anywhere in src is an error, since a command may have planted it.
    """


@frozen
class RoBind(_Bind):
    """Bind src on dest, read-only with all mounts below it. The fields are Bind's."""


@frozen
class DevBind(_Bind):
    """Bind src on dest, writable, with working device nodes. The fields are Bind's."""


@frozen
class Device(Op):
    """One device node of the host, on a read-only mount: any command can use it, and none can change it.

    src: the node's path on the host.
    dest: its path in the sandbox.
    """

    src: str
    dest: str

    def row(self) -> tuple[str, str]:
        return "device", f"{self.src} -> {self.dest}"


@frozen
class BindFd(Op):
    """Bind what an open descriptor refers to, so that no name is looked up again.

    fd: the descriptor, which must stay open until the spawn.
    dest: an absolute path in the sandbox.
    read_only: make the mount read-only.
    """

    fd: int
    dest: str
    read_only: bool = False

    def row(self) -> tuple[str, str]:
        return "bind", f"fd {self.fd} -> {self.dest}{_flags('ro' if self.read_only else 'rw')}"


@frozen
class Tmpfs(Op):
    """Mount a fresh tmpfs.

    dest: an absolute path in the sandbox.
    size: the most bytes in it; None: the kernel's default, half of the memory.
    mode: the permission bits of its root directory.
    """

    dest: str
    size: int | None = None
    mode: int = 0o755

    def row(self) -> tuple[str, str]:
        return "tmpfs", f"{self.dest}{_flags(f'mode {self.mode:04o}', f'size {self.size}' if self.size else None)}"


@frozen
class Proc(Op):
    """Mount a procfs of the sandbox's own pid namespace.

    dest: an absolute path in the sandbox.
    cover: make kernel settings in it read-only: True for all, "sys" for those below sys, some of which the owner of a
        namespace may change.
    nests: in spite of that, let a sandbox inside mount a procfs of its own, whose settings aren't covered unless it
        covers them itself.
    """

    dest: str
    cover: bool | Literal["sys"] = False
    nests: bool = False

    def row(self) -> tuple[str, str]:
        what = {False: None, True: "settings read-only", "sys": "sys read-only"}[self.cover]
        return "proc", f"{self.dest}{_flags(what, 'nests' if self.nests else None)}"


@frozen
class Devpts(Op):
    """Mount a devpts instance of the sandbox's own at dest. Needs uid 0 mapped in the first user namespace."""

    dest: str

    def row(self) -> tuple[str, str]:
        return "devpts", self.dest


@frozen
class Console(Op):
    """If the command's standard output is a terminal, show that as a device file at dest."""

    dest: str

    def row(self) -> tuple[str, str]:
        return "console", f"{self.dest}{_flags('if stdout is a terminal')}"


DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
# Files of procfs that tell uid 0 about the machine, even without capabilities; container runtimes mask them too.
PROC_SECRETS = (
    *("acpi", "kcore", "latency_stats", "timer_list", "sched_debug", "scsi"),
    *("slabinfo", "vmallocinfo", "pagetypeinfo", "kpagecount", "kpageflags", "kpagecgroup", "dynamic_debug"),
)


@frozen
class Dev(Op):
    """Make a minimal /dev like bwrap's --dev: null zero full random urandom tty, pts, shm, ptmx, and the usual links.

    dest: an absolute path in the sandbox.
    size: the most bytes in it and its shm, since it is a tmpfs; None: the kernel's default.
    """

    dest: str
    size: int | None = None

    def row(self) -> tuple[str, str]:
        return "dev", f"{self.dest}{_flags(f'size {self.size}' if self.size else None)}"

    def primitives(self) -> tuple[Op, ...]:
        at = self.dest.rstrip("/")
        links = {"stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
        links |= {"fd": "/proc/self/fd", "core": "/proc/kcore", "ptmx": "pts/ptmx"}
        return (
            Tmpfs(self.dest, size=self.size),
            *(Device(f"/dev/{name}", f"{at}/{name}") for name in DEVICES),
            *(Symlink(target, f"{at}/{name}") for name, target in links.items()),
            Dir(f"{at}/shm", 0o1777),
            Devpts(f"{at}/pts"),
            Console(f"{at}/console"),
        )


@frozen
class Mqueue(Op):
    """Mount the POSIX message queues of the sandbox's ipc namespace at dest."""

    dest: str

    def row(self) -> tuple[str, str]:
        return "mqueue", self.dest


@frozen
class Dir(Op):
    """Make a directory at dest with these permission bits; one that exists is left as it is."""

    dest: str
    mode: int = 0o755

    def row(self) -> tuple[str, str]:
        return "dir", f"{self.dest}{_flags(f'mode {self.mode:04o}')}"


def _amount(data: bytes | int) -> str:
    return f"{len(data)} bytes" if isinstance(data, bytes) else f"fd {data}"


@frozen
class File(Op):
    """Write a new file.

    dest: an absolute path in the sandbox.
    data: its contents: bytes, or a descriptor that is read to the end before the spawn.
    mode: its permission bits.
    """

    dest: str
    data: bytes | int
    mode: int = 0o644

    def row(self) -> tuple[str, str]:
        return "file", f"{_amount(self.data)} -> {self.dest}{_flags(f'mode {self.mode:04o}')}"


@frozen
class BindData(Op):
    """Mount a file with given contents on dest, which may therefore lie in a read-only directory.

    dest: an absolute path in the sandbox.
    data: the contents: bytes, or a descriptor that is read to the end before the spawn.
    mode: its permission bits.
    read_only: make the mount read-only.
    """

    dest: str
    data: bytes | int
    mode: int = 0o600
    read_only: bool = False

    def row(self) -> tuple[str, str]:
        words = _flags("ro" if self.read_only else "rw", f"mode {self.mode:04o}")
        return "bind-data", f"{_amount(self.data)} -> {self.dest}{words}"


@frozen
class Symlink(Op):
    """Make a symbolic link at dest; it may exist already if it has the same target."""

    target: str
    dest: str

    def row(self) -> tuple[str, str]:
        return "symlink", f"{self.dest} -> {self.target}"


@frozen
class RemountRo(Op):
    """Make the mount at dest read-only, but not those below it."""

    dest: str

    def row(self) -> tuple[str, str]:
        return "remount-ro", self.dest


@frozen
class Freeze(Op):
    """Make the caller's file system at dest read-only through every mount of it, or writable again if thaw is True.

    For the overlay of a transaction; policies can't have it.
    """

    dest: str
    thaw: bool = False

    def row(self) -> tuple[str, str]:
        return "thaw" if self.thaw else "freeze", self.dest


@frozen
class Chmod(Op):
    """Change the permission bits of something that an earlier op made at dest."""

    dest: str
    mode: int

    def row(self) -> tuple[str, str]:
        return "chmod", f"{self.dest}{_flags(f'mode {self.mode:04o}')}"


MAX_LAYERS = 10


@frozen
class _Layered(Op):
    """An overlay of directories. lower: 1 to 10 of them from the bottom up (fsconfig(2) takes 255 bytes)."""

    lower: tuple[str, ...]
    dest: str

    def __post_init__(self) -> None:
        name = type(self).__name__
        value: object = self.lower
        if isinstance(value, str) or not is_iterable(value):
            raise PolicyError(f"{name}.lower", f"is {type_phrase(value)}, must be a sequence of paths")
        lower = tuple(check_path(f"{name}.lower", path) for path in self.lower)
        least = 2 if isinstance(self, RoOverlay) else 1
        if not least <= len(lower) <= MAX_LAYERS:
            raise PolicyError(f"{name}.lower", f"has {len(lower)} layers, must have {least} to {MAX_LAYERS}")
        object.__setattr__(self, "lower", lower)
        Op.__post_init__(self)


@frozen
class Overlay(_Layered):
    """Mount a writable overlay, whose changes go to a directory of the host.

    lower: 1 to 10 directories of the host, from the bottom up.
    dest: an absolute path in the sandbox.
    upper: the directory of the host that changes go to.
    work: an empty directory on the same file system as upper.
    nofollow: a symlink anywhere in lower, upper or work is an error, since a command may have planted it.
    """

    upper: str
    work: str
    nofollow: bool = False

    def row(self) -> tuple[str, str]:
        nofollow = "nofollow" if self.nofollow else None
        return "overlay", f"{' + '.join((*self.lower, self.upper))} -> {self.dest}{_flags('rw', nofollow)}"


@frozen
class RoOverlay(_Layered):
    """Mount a read-only overlay. lower: 2 to 10 directories of the host, from the bottom up."""

    def row(self) -> tuple[str, str]:
        return "overlay", f"{' + '.join(self.lower)} -> {self.dest}{_flags('ro')}"


@frozen
class TmpOverlay(_Layered):
    """Mount an overlay whose changes are kept in memory and end with the sandbox. lower, dest: as for Overlay."""

    def row(self) -> tuple[str, str]:
        return "overlay", f"{' + '.join((*self.lower, 'tmpfs'))} -> {self.dest}{_flags('rw, dropped')}"


@frozen
class Mask(Op):
    """Hide a file or a directory: what is at dest can't be read, written or entered.

    dest: an absolute path in the sandbox.
    optional: a missing dest isn't an error.
    nofollow: a symlink anywhere in dest is an error.
    """

    dest: str
    optional: bool = False
    nofollow: bool = False

    def row(self) -> tuple[str, str]:
        optional, nofollow = "optional" if self.optional else None, "nofollow" if self.nofollow else None
        return "mask", f"{self.dest}{_flags(optional, nofollow)}"


@frozen
class Hostname(Op):
    """Set the host name, at most 64 bytes. Needs the uts namespace."""

    name: str

    def __post_init__(self) -> None:
        check_hostname("Hostname.name", self.name)

    def row(self) -> tuple[str, str]:
        return "hostname", self.name


@frozen
class Loopback(Op):
    """Bring up the loopback interface of the sandbox's own net namespace."""

    def row(self) -> tuple[str, str]:
        return "loopback", "up"


@frozen
class Over(Op):
    """A new file system over a kept tree's; the mounts below that are lifted before it is covered."""

    op: Tmpfs | Proc
    lifted: tuple[str, ...] = ()

    def row(self) -> tuple[str, str]:
        name, what = self.op.row()
        return name, what


@frozen
class Lifted(Op):
    """Number `index` of all mounts that were lifted, put down on dest."""

    index: int
    dest: str

    def row(self) -> tuple[str, str]:
        return "lifted", self.dest


OPS: tuple[type[Op], ...] = (
    *(Bind, RoBind, DevBind, Device, BindFd, Tmpfs, Proc, Dev, Devpts, Console, Mqueue, Dir, File, BindData, Symlink),
    *(RemountRo, Chmod, Overlay, RoOverlay, TmpOverlay, Mask, Hostname, Loopback),
)


def primitives(ops: Iterable[Op]) -> Iterator[Op]:
    """Yield the ops that are carried out: composite ones are replaced by their parts."""
    for op in ops:
        yield from op.primitives()
