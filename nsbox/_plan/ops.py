"""Ops: the frozen steps that a plan is a flat tuple of, each of which can describe itself in one line.

Here lives what an op is and says. Which ops there are for a policy, and in which order, is a backend's business; how an
op is carried out is C's. No module here asks the operating system anything.
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
    """One step of a plan. Construction checks every field and raises PolicyError with its name."""

    def __post_init__(self) -> None:
        for field in fields(self):
            check = _CHECKS.get(field.name)
            if check is not None:
                name = f"{type(self).__name__}.{field.name}"
                object.__setattr__(self, field.name, check(name, getattr(self, field.name)))

    def describe(self) -> str:
        """Say in one line what the op does."""
        name, what = self.row()
        from nsbox._base.display import printable  # for errors and explain() alone

        return f"{name} {printable(what)}" if what else name

    def row(self) -> tuple[str, str]:
        """Return the op's name and its operands, for tables."""
        raise NotImplementedError

    def primitives(self) -> tuple[Op, ...]:
        """Return the ops that are carried out for this one; most stand for themselves."""
        return (self,)


def _flags(*words: str | None) -> str:
    said = [word for word in words if word]
    return f" [{', '.join(said)}]" if said else ""


@frozen
class _Bind(Op):
    """A recursive bind of src on dest, nosuid, cut off from later mounts of the host.

    optional: a missing src is no error. nofollow: a symlink anywhere in src is one, since somebody may have planted it.
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
    """Bind src on dest, writable, without its device nodes. optional: a missing src is no error (as --bind-try)."""


@frozen
class RoBind(_Bind):
    """Bind src on dest, read-only with all mounts below it."""


@frozen
class DevBind(_Bind):
    """Bind src on dest, writable, with working device nodes."""


@frozen
class Device(Op):
    """One device node of the host: it can be used, but not be changed, whoever the command is (a read-only mount)."""

    src: str
    dest: str

    def row(self) -> tuple[str, str]:
        return "device", f"{self.src} -> {self.dest}"


@frozen
class BindFd(Op):
    """Bind what an open descriptor refers to, so that no name is looked up again. It must stay open until the spawn."""

    fd: int
    dest: str
    read_only: bool = False

    def row(self) -> tuple[str, str]:
        return "bind", f"fd {self.fd} -> {self.dest}{_flags('ro' if self.read_only else 'rw')}"


@frozen
class Tmpfs(Op):
    """A fresh tmpfs. size in bytes; None: the kernel's default, half of the memory."""

    dest: str
    size: int | None = None
    mode: int = 0o755

    def row(self) -> tuple[str, str]:
        return "tmpfs", f"{self.dest}{_flags(f'mode {self.mode:04o}', f'size {self.size}' if self.size else None)}"


@frozen
class Proc(Op):
    """A procfs of the sandbox's own pid namespace. cover: kernel settings in it are made read-only.

    cover: True for all, "sys" for those below sys, of which the owner of a namespace may change some.
    nests: even so, a sandbox in this one may make a procfs of its own, in which they aren't, unless it covers them.
    """

    dest: str
    cover: bool | Literal["sys"] = False
    nests: bool = False

    def row(self) -> tuple[str, str]:
        what = {False: None, True: "settings read-only", "sys": "sys read-only"}[self.cover]
        return "proc", f"{self.dest}{_flags(what, 'nests' if self.nests else None)}"


@frozen
class Devpts(Op):
    """A devpts instance of its own. Needs uid 0 mapped in the first user namespace."""

    dest: str

    def row(self) -> tuple[str, str]:
        return "devpts", self.dest


@frozen
class Console(Op):
    """The terminal that the command's standard output is, if it is one, as a device file."""

    dest: str

    def row(self) -> tuple[str, str]:
        return "console", f"{self.dest}{_flags('if stdout is a terminal')}"


DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


@frozen
class Dev(Op):
    """A minimal /dev: null zero full random urandom tty, pts, shm, ptmx, and the usual links. As bwrap's --dev.

    It is a tmpfs, whose size in bytes bounds what can be written to it and to its shm; None: the kernel's default.
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
    """The POSIX message queues of the sandbox's ipc namespace."""

    dest: str

    def row(self) -> tuple[str, str]:
        return "mqueue", self.dest


@frozen
class Dir(Op):
    """A directory; one that exists is left as it is."""

    dest: str
    mode: int = 0o755

    def row(self) -> tuple[str, str]:
        return "dir", f"{self.dest}{_flags(f'mode {self.mode:04o}')}"


def _amount(data: bytes | int) -> str:
    return f"{len(data)} bytes" if isinstance(data, bytes) else f"fd {data}"


@frozen
class File(Op):
    """A new file with the given contents: bytes, or a descriptor that is read to its end before the spawn."""

    dest: str
    data: bytes | int
    mode: int = 0o644

    def row(self) -> tuple[str, str]:
        return "file", f"{_amount(self.data)} -> {self.dest}{_flags(f'mode {self.mode:04o}')}"


@frozen
class BindData(Op):
    """A file with the given contents, mounted on dest, so that dest may lie in a read-only directory."""

    dest: str
    data: bytes | int
    mode: int = 0o600
    read_only: bool = False

    def row(self) -> tuple[str, str]:
        words = _flags("ro" if self.read_only else "rw", f"mode {self.mode:04o}")
        return "bind-data", f"{_amount(self.data)} -> {self.dest}{words}"


@frozen
class Symlink(Op):
    """A symbolic link at dest; the very same one already there is fine."""

    target: str
    dest: str

    def row(self) -> tuple[str, str]:
        return "symlink", f"{self.dest} -> {self.target}"


@frozen
class RemountRo(Op):
    """Makes the one mount at dest read-only."""

    dest: str

    def row(self) -> tuple[str, str]:
        return "remount-ro", self.dest


@frozen
class Freeze(Op):
    """Makes the caller's file system at dest read-only by whichever mount it is written to, or writable again.

    For the overlay of a transaction; no op of a policy.
    """

    dest: str
    thaw: bool = False

    def row(self) -> tuple[str, str]:
        return "thaw" if self.thaw else "freeze", self.dest


@frozen
class Chmod(Op):
    """Changes the mode of something that an earlier op has made."""

    dest: str
    mode: int

    def row(self) -> tuple[str, str]:
        return "chmod", f"{self.dest}{_flags(f'mode {self.mode:04o}')}"


MAX_LAYERS = 10


@frozen
class _Layered(Op):
    """An overlay of directories: lower ones from the bottom up. At most ten (fsconfig(2) takes 255 bytes)."""

    lower: tuple[str, ...]
    dest: str

    def __post_init__(self) -> None:
        name = type(self).__name__
        given: object = self.lower
        if isinstance(given, str) or not is_iterable(given):
            raise PolicyError(f"{name}.lower", f"is a {type(given).__name__}, must be a sequence of paths")
        lower = tuple(check_path(f"{name}.lower", path) for path in self.lower)
        least = 2 if isinstance(self, RoOverlay) else 1
        if not least <= len(lower) <= MAX_LAYERS:
            raise PolicyError(f"{name}.lower", f"has {len(lower)} layers, must have {least} to {MAX_LAYERS}")
        object.__setattr__(self, "lower", lower)
        Op.__post_init__(self)


@frozen
class Overlay(_Layered):
    """A writable overlay: changes go to `upper` on the host; `work` is an empty directory on the same file system."""

    upper: str
    work: str

    def row(self) -> tuple[str, str]:
        return "overlay", f"{' + '.join((*self.lower, self.upper))} -> {self.dest}{_flags('rw')}"


@frozen
class RoOverlay(_Layered):
    """A read-only overlay of at least two directories."""

    def row(self) -> tuple[str, str]:
        return "overlay", f"{' + '.join(self.lower)} -> {self.dest}{_flags('ro')}"


@frozen
class TmpOverlay(_Layered):
    """An overlay whose changes live in memory and end with the sandbox."""

    def row(self) -> tuple[str, str]:
        return "overlay", f"{' + '.join((*self.lower, 'tmpfs'))} -> {self.dest}{_flags('rw, dropped')}"


@frozen
class Mask(Op):
    """Hides a file or a directory: what is at dest can't be read, written or entered.

    optional: it may be missing. nofollow: a symlink anywhere in dest is an error.
    """

    dest: str
    optional: bool = False
    nofollow: bool = False

    def row(self) -> tuple[str, str]:
        optional, nofollow = "optional" if self.optional else None, "nofollow" if self.nofollow else None
        return "mask", f"{self.dest}{_flags(optional, nofollow)}"


@frozen
class Hostname(Op):
    """Sets the host name; needs the uts namespace."""

    name: str

    def __post_init__(self) -> None:
        check_hostname("Hostname.name", self.name)

    def row(self) -> tuple[str, str]:
        return "hostname", self.name


@frozen
class Loopback(Op):
    """Brings the loopback interface of the sandbox's own net namespace up."""

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
    """Yield the ops that are carried out, composite ones taken apart."""
    for op in ops:
        yield from op.primitives()
