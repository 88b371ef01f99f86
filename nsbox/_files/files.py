"""Files by descriptors: in trees that other processes may change meanwhile, or have made, no symlink is ever followed.

Any depth, any names, any modes: nothing here is recursive. On request, what this user owns but can't enter is opened.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import stat
import time
from collections.abc import Iterator

from nsbox._base import owners
from nsbox._base.descriptors import walked
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._core import abi
from nsbox._files.attributes import attributes_of

if TYPE_CHECKING:
    from typing import Any

    from nsbox._base.owners import Owner

NOREPLACE, EXCHANGE = 1, 2  # renameat2(2)
NO_FLAGS = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)  # from a file system (FUSE, NFS, 9p) without these
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_PATH = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_SYMLINKS = 4  # RESOLVE_NO_SYMLINKS
_COARSE = 5  # CLOCK_REALTIME_COARSE
_KEPT = 64  # directories that are kept open
_DEEPEST = 100_000  # levels; if a process goes on adding to what is being removed, this ends it
_MOST_NAMES = 1_000_000  # a directory with more isn't listed
_AT_ONCE = 10_000  # names in memory while a directory is emptied


class Tree:
    """A directory and what is below it. Paths in it are relative; "" is the directory itself.

    forceful: for trees of our own: what can't be read or entered gets that permission while it is open here.
    """

    def __init__(self, path: str | int, *, forceful: bool = False) -> None:
        """Open it by its path, or by another descriptor of it; raises OSError."""
        self._forceful = forceful and os.geteuid() != 0
        if isinstance(path, str):
            self._top = self._open(path, None, os.O_DIRECTORY)
        else:
            self._top = self._reopened(path)
        self.fd = self._top.fd
        self._kept: list[_Opened] = []  # the innermost directories of the last path
        self._keeps = False

    def close(self) -> None:
        self._let_go(0)
        self.fd = -1
        self._top.close()

    @property
    def status(self) -> os.stat_result:
        """The directory's own status, with the mode that it has while it isn't open here."""
        found = os.fstat(self.fd)
        if self._top.handle is None or not self._top.is_forced(found.st_mode):
            return found
        reduced: Any = found.__reduce__()  # with the nanoseconds, which only the second part has
        row, more = reduced[1]
        return os.stat_result((stat.S_IFMT(found.st_mode) | self._top.mode, *row[1:]), more)

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def walking(self) -> Iterator[None]:
        """Keep some directories open for the next path. Not while they are moved: paths would lead to the old ones."""
        before, self._keeps = self._keeps, True
        try:
            yield
        finally:
            self._keeps = before
            if not before:
                self._let_go(0)

    @contextlib.contextmanager
    def dir(self, path: str) -> Iterator[int]:
        """Open a directory. Raises FileNotFoundError, and NotADirectoryError, also if a symlink is on the way."""
        while self._kept and not f"{path}/".startswith(f"{self._kept[-1].path}/"):
            self._let_go(len(self._kept) - 1)
        at, fd = (self._kept[-1].path, self._kept[-1].fd) if self._kept else ("", self.fd)
        try:
            for name in path[len(at) :].strip("/").split("/") if path != at else ():
                _check_name(name)
                opened = self._open(name, fd, os.O_DIRECTORY)
                at, fd = join(at, name), opened.fd
                opened.path = at
                self._kept.append(opened)
                if len(self._kept) > _KEPT:
                    self._kept.pop(0).close()
            copied = os.dup(fd)
            try:
                yield copied
            finally:
                os.close(copied)
        finally:
            if not self._keeps:
                self._let_go(0)

    def _let_go(self, count: int) -> None:
        """Close what is kept open, except the outermost `count`, and restore the modes."""
        while len(self._kept) > count:
            self._kept.pop().close()

    @contextlib.contextmanager
    def parent(self, path: str) -> Iterator[tuple[int, str]]:
        """Open the directory that path is in; yield it, and the name of path there."""
        above, _, name = path.rpartition("/")
        _check_name(name)
        with self.dir(above) as fd:
            yield fd, name

    @contextlib.contextmanager
    def file(self, path: str) -> Iterator[int]:
        """Open a regular file for reading; raises OSError (EINVAL) if it is none."""
        with self.parent(path) as (above, name):
            if not stat.S_ISREG(os.lstat(name, dir_fd=above).st_mode):
                raise OSError(errno.EINVAL, "is no regular file any more", path)
            opened = self._open(name, above, 0)
        try:
            if not stat.S_ISREG(os.fstat(opened.fd).st_mode):
                raise OSError(errno.EINVAL, "is no regular file any more", path)
            yield opened.fd
        finally:
            opened.close()

    def stat(self, path: str) -> os.stat_result | None:
        """Return the status of path, without following a link; None if nothing is there."""
        if path in ("", "."):
            return self.status
        try:
            with self.parent(path) as (above, name):
                return os.lstat(name, dir_fd=above)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def link(self, path: str) -> str:
        """Return the target of a symlink."""
        with self.parent(path) as (above, name):
            return os.readlink(name, dir_fd=above)

    def attributes(self, path: str, status: os.stat_result) -> dict[str, bytes]:
        """Return the attributes that a copy of path keeps: of files, directories and FIFOs. Raises OSError."""
        if stat.S_ISDIR(status.st_mode):
            with self.dir("" if path == "." else path) as fd:
                return attributes_of(fd, path)
        if stat.S_ISREG(status.st_mode):
            with self.file(path) as fd:
                return attributes_of(fd, path)
        if not stat.S_ISFIFO(status.st_mode):
            return {}
        with self.parent(path) as (above, name), opened_path(name, above) as at:
            return attributes_of(at, path)

    def names(self, path: str, most: int = _MOST_NAMES) -> list[str]:
        """Return the names in a directory, sorted. Raises OSError: E2BIG as soon as there are more than `most`."""
        with self.dir(path) as fd, os.scandir(fd) as scanned:
            names = [entry.name for entry in itertools.islice(scanned, most + 1)]
        if len(names) > most:
            raise OSError(errno.E2BIG, f"has more names than the {most} that are looked at", path or ".")
        return sorted(names)

    def entries(self, path: str) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the names in a directory, sorted, with their status. Files that vanish meanwhile are left out."""
        for name in self.names(path):
            status = self.stat(join(path, name))
            if status is not None:
                yield name, status

    def _reopened(self, fd: int) -> _Opened:
        """Open a directory by another descriptor of it, which needn't be readable (O_PATH)."""
        if self._forceful and os.fstat(fd).st_mode & 0o700 != 0o700:
            return self._forced(owners.opened(os.dup, fd), ".", os.O_DIRECTORY, 0o700)
        return _Opened(_owned(".", _OPEN | os.O_DIRECTORY, fd))

    def _forced(self, handle: Owner, name: str, flags: int, needed: int, above: int | None = None) -> _Opened:
        """Open a file, and first give it the mode that this requires.

        handle: the file (O_PATH).
        name: its name in `above`; ".": the handle itself.
        """
        mode = stat.S_IMODE(os.fstat(handle.fileno()).st_mode)
        try:
            os.chmod(f"/proc/self/fd/{handle.fileno()}", mode | needed)
            return _Opened(_owned(name, _OPEN | flags, handle.fileno() if name == "." else above), handle, mode)
        except BaseException:
            _Opened(None, handle, mode).close()
            raise

    def _open(self, name: str, above: int | None, flags: int) -> _Opened:
        needed = 0o700 if flags & os.O_DIRECTORY else 0o400
        try:
            opened = _Opened(_owned(name, _OPEN | flags, above))
        except PermissionError:
            if not self._forceful:
                raise
        else:
            if not self._forceful or os.fstat(opened.fd).st_mode & needed == needed:
                return opened
            opened.close()
        return self._forced(_owned(name, _PATH, above), name, flags, needed, above)


def _owned(name: str, flags: int, above: int | None) -> Owner:
    return owners.opened(functools.partial(os.open, dir_fd=above), name, flags)


def _check_name(name: str) -> None:
    if name == "..":  # it would lead out
        raise OSError(errno.EINVAL, "is no name of a file in a directory", name)


class _Opened:
    """A descriptor, and another one of the same file (O_PATH): close() gives that its `mode` back."""

    __slots__ = ("_owner", "handle", "mode", "path")

    def __init__(self, owner: Owner | None, handle: Owner | None = None, mode: int = 0) -> None:
        self._owner, self.handle, self.mode = owner, handle, mode
        self.path = ""

    @property
    def fd(self) -> int:
        return -1 if self._owner is None else self._owner.fileno()

    def close(self) -> None:
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.close()
        handle, self.handle = self.handle, None
        if handle is not None:
            if self.is_forced(os.fstat(handle.fileno()).st_mode):  # unless its owner has changed it meanwhile
                with contextlib.suppress(OSError):
                    os.chmod(f"/proc/self/fd/{handle.fileno()}", self.mode)
            handle.close()

    def is_forced(self, mode: int) -> bool:
        """Return whether a mode is the one that the file has been given while it is open."""
        return stat.S_IMODE(mode) in (self.mode | 0o400, self.mode | 0o700)


def opened_plainly(path: str) -> Tree:
    """Open a directory by an absolute path without any symlink on it; raises OSError."""
    fd = os.open("/", _PATH | os.O_DIRECTORY)
    try:
        for name in path.strip("/").split("/") if path != "/" else ():
            inner = os.open(name, _PATH | os.O_DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = inner
        return Tree(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def opened_path(name: str, above: int) -> Iterator[str]:
    """Yield a path of this very file, for calls that take no descriptor. It isn't opened, and no link is followed."""
    handle = os.open(name, _PATH, dir_fd=above)
    try:
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


def set_mode(above: int, name: str, kind: int, mode: int) -> os.stat_result:
    """Set the mode of a file of this kind (S_IFMT), and return its status. Raises OSError for others, and for links."""
    handle = os.open(name, _PATH, dir_fd=above)
    try:
        if stat.S_IFMT(os.fstat(handle).st_mode) != kind:
            raise OSError(errno.ENOTDIR, "has become something else", name)
        os.chmod(f"/proc/self/fd/{handle}", mode)
        return os.fstat(handle)
    finally:
        os.close(handle)


def start_of_time(tree: Tree, since: int | None = None) -> int:
    """Return a time in nanoseconds: every change from now on has it, or a later one; no change before does.

    since: an earlier moment, as time.time_ns() has it. Changes after that, and before now, may have either. So there
        may be no need to wait.

    The kernel stamps inodes by a clock that stands still for some milliseconds (4 with HZ=250), and is late by as much.
    It uses the exact clock if a process has asked for the inode's time since its last change (Linux 6.13). So this
    waits until the first clock is past the other. On file systems with whole seconds, changes of this second count.
    """
    exact = time.time_ns() if since is None else since
    while (now := time.clock_gettime_ns(_COARSE)) <= exact:
        time.sleep(0.0005)
    has_seconds = os.fstat(tree.fd).st_ctime_ns % 1_000_000_000 == 0
    return now - now % 1_000_000_000 if has_seconds else now


def join(path: str, name: str) -> str:
    """Return the path of a name in the directory path."""
    return f"{path}/{name}" if path else name


def open_beneath(above: int, path: str, flags: int, resolve: int) -> int:
    """Open an existing file as openat2(2) does, with its RESOLVE_ flags; raises OSError.

    EAGAIN: something on the way was renamed meanwhile, so the kernel can't tell whether a ".." has led outside.
    """
    name = abi.ffi.from_buffer("char[]", os.fsencode(path))
    for _ in range(64):
        fd = abi.lib.nsbox_open_beneath(above, name, flags | os.O_CLOEXEC, resolve)
        if fd >= 0:
            return fd
        if fd != -errno.EAGAIN:
            break
    if fd in (-errno.ENOSYS, -errno.EPERM) and resolve & _NO_SYMLINKS:  # from a filter, such as a workspace's profile
        return walked(above, path, flags | os.O_CLOEXEC)
    raise OSError(-fd, os.strerror(-fd), path)


def rename(from_dir: int, name: str, to_dir: int, new: str, flags: int = 0) -> None:
    """Rename as renameat2(2) does; only Linux has flags other than 0. Raises OSError."""
    if not flags:
        os.rename(name, new, src_dir_fd=from_dir, dst_dir_fd=to_dir)
        return
    ffi = abi.ffi
    old_name, new_name = ffi.from_buffer("char[]", os.fsencode(name)), ffi.from_buffer("char[]", os.fsencode(new))
    ret = abi.lib.nsbox_rename(from_dir, old_name, to_dir, new_name, flags)
    if ret < 0:
        raise OSError(-ret, os.strerror(-ret), name, None, new)


def sync_directory(path: str) -> None:
    """Wait until the device has the names in a directory; raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync(fd: int) -> None:
    """Wait until the device has all of a file system, as syncfs(2) does; raises OSError."""
    ret = abi.lib.nsbox_sync(fd)
    if ret < 0:
        raise OSError(-ret, os.strerror(-ret))


def remove(tree: Tree, path: str) -> None:
    """Remove what is at path, if anything is, with everything below it."""
    status = tree.stat(path)
    if status is None:
        return
    with tree.parent(path) as (above, name):
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(name, dir_fd=above)
            return
        fd = _entered(name, above)
        try:
            _empty(fd)
        finally:
            os.close(fd)
        os.rmdir(name, dir_fd=above)


def _entries(fd: int) -> list[tuple[str, bool]]:
    """Return some of a directory's names, none if it is empty, and whether they are directories."""
    with os.scandir(fd) as scanned:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in itertools.islice(scanned, _AT_ONCE)]


def _empty(root: int) -> None:
    """Remove everything in a directory. Deeper directories are first moved up into it: then no path is long."""
    prefix, n = os.urandom(8).hex(), 0
    for _ in range(_DEEPEST):
        entries = _entries(root)
        if not entries:
            break
        for name, is_directory in entries:
            if not is_directory:
                os.unlink(name, dir_fd=root)
                continue
            fd = _entered(name, root)
            try:
                for _ in range(_DEEPEST):
                    inside = _entries(fd)
                    for inner, is_inner_directory in inside:
                        if is_inner_directory:
                            n += 1
                            os.close(_entered(inner, fd))  # a directory has to be writable to be moved, rename(2)
                            rename(fd, inner, root, f"{prefix}-{n}")
                        else:
                            os.unlink(inner, dir_fd=fd)
                    if not inside:
                        break
            finally:
                os.close(fd)
            os.rmdir(name, dir_fd=root)


def _entered(name: str, above: int) -> int:
    """Return a descriptor of a directory, after giving its owner all rights to it."""
    mode = os.lstat(name, dir_fd=above).st_mode
    if mode & 0o700 == 0o700 or os.geteuid() == 0:
        return os.open(name, _OPEN | os.O_DIRECTORY, dir_fd=above)
    if not hasattr(os, "O_PATH"):  # macOS, where this works without following a link
        os.chmod(name, stat.S_IMODE(mode) | 0o700, dir_fd=above, follow_symlinks=False)
        return os.open(name, _OPEN | os.O_DIRECTORY, dir_fd=above)
    handle = os.open(name, _PATH | os.O_DIRECTORY, dir_fd=above)
    try:
        os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(os.fstat(handle).st_mode) | 0o700)
    finally:
        os.close(handle)
    return os.open(name, _OPEN | os.O_DIRECTORY, dir_fd=above)
