"""Where a sandbox's files are opened: on this machine, by the paths that a policy names, or beneath a sandbox's root.

A ground opens the top of a mount. Everything else happens beneath that descriptor (files.py), in the same way on any
ground.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from nsbox._base.errors import AccessError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._base.paths import is_below
from nsbox._core.abi import constants as c
from nsbox._files.files import NO_FLAGS, NOREPLACE, open_beneath, rename

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    from nsbox._tools.view import Mount, Place, View

    class Root(Protocol):
        """A running sandbox: its "/", and a process in it that makes names under the commands' ids."""

        def open_root(self) -> int:
            """Return a new descriptor (O_PATH) of its "/"."""

        def make_name(self, kind: int, mode: int, names: Sequence[str], dirs: Sequence[int]) -> int:
            """Make a name; return the descriptor of a new file, open for writing, or -1."""

    class Ground(Protocol):
        """Opens the tops of mounts, and makes names in directories beneath them."""

        def problem(self, view: View, at: Place, *, is_denied: bool, write: bool) -> str:
            """Return why tools may not use a file here; "": they may. is_denied: whether the policy hides its path."""

        def top(self, mount: Mount, shown: str) -> Top:
            """Open the top of a mount. Raises AccessError and OSError."""

        def may_write(self, mount: Mount) -> bool:
            """Return whether tools may change what is on a mount."""

        def leads(self, mount: Mount, inside: str, here: str) -> bool:
            """Return whether a link may lead to a file on another mount. here: the path of the file's descriptor."""

        def make_file(self, directory: int, name: str, mode: int) -> int:
            """Make a new file; return a descriptor, open for writing. Raises OSError."""

        def make_directory(self, directory: int, name: str) -> None:
            """Make a directory. Raises OSError."""

        def move(self, from_dir: int, name: str, to_dir: int, new: str, *, replace: bool) -> None:
            """Rename a file. Raises OSError; FileExistsError if the new name exists, unless replace."""

        def remove(self, directory: int, name: str, *, is_directory: bool) -> None:
            """Remove a name, or an empty directory. Raises OSError."""


# openat2(2)
NO_XDEV, NO_MAGICLINKS, NO_SYMLINKS, BENEATH = 1, 2, 4, 8
_REMOVEDIR = 0x200  # unlinkat(2)
_KERNELS = ("/proc", "/sys", "/dev")  # the kernel's own file systems


def named(error: OSError, shown: str) -> OSError:
    """Return the same error, with the path as the caller gave it. One without errno is a signal handler's own."""
    return error if error.errno is None else OSError(error.errno, error.strerror, shown)


@frozen
class Top(Frozen):
    """The top of a mount, opened.

    fd: its descriptor (O_PATH).
    path: its path as /proc/self/fd shows it, with which the paths of files below it begin.
    resolve: flags of openat2(2) for files below it.
    """

    fd: int
    path: str
    resolve: int


class HostGround:
    """This machine: what a policy itself names."""

    def problem(self, view: View, at: Place, *, is_denied: bool, write: bool) -> str:
        """Return why tools may not use a file; "": they may."""
        if not any(is_below(at.inside, root) for root in view.readable()):
            return f"is in no directory that the policy names; {view.named(write=write)}"
        if is_denied or at.mount.is_hidden:
            return f"is hidden in the sandbox; {view.allowed(write=write)}"
        if at.mount.source is None:
            return f"is the sandbox's own, and not on this machine; {view.allowed(write=write)}"
        return ""

    def top(self, mount: Mount, shown: str) -> Top:
        """Open the source of a mount, without following a link."""
        assert mount.source is not None
        try:
            fd = open_beneath(-1, mount.source, os.O_PATH, NO_SYMLINKS)  # absolute
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise AccessError(shown, f"lies in {mount.source}, which has become a symlink") from None
            raise named(error, shown) from None
        return Top(fd, mount.source, 0)

    def may_write(self, mount: Mount) -> bool:
        """Return whether commands may write there too."""
        return mount.is_writable

    def leads(self, mount: Mount, inside: str, here: str) -> bool:
        """Return whether commands find the same file there, and not one that is mounted over it."""
        return mount.source is not None and os.path.normpath(f"{mount.source}/{inside[len(mount.dest) :]}") == here

    def make_file(self, directory: int, name: str, mode: int) -> int:
        """Make a new file."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, mode, dir_fd=directory)

    def make_directory(self, directory: int, name: str) -> None:
        """Make a directory."""
        os.mkdir(name, dir_fd=directory)

    def move(self, from_dir: int, name: str, to_dir: int, new: str, *, replace: bool) -> None:
        """Rename a file."""
        try:
            rename(from_dir, name, to_dir, new, 0 if replace else NOREPLACE)
        except OSError as error:
            if replace or error.errno not in NO_FLAGS:
                raise
            _move_plainly(from_dir, name, to_dir, new)

    def remove(self, directory: int, name: str, *, is_directory: bool) -> None:
        """Remove a name, or an empty directory."""
        (os.rmdir if is_directory else os.unlink)(name, dir_fd=directory)


def _move_plainly(from_dir: int, name: str, to_dir: int, new: str) -> None:
    """Move to a free name on a file system without RENAME_NOREPLACE: each of these calls fails if the name is taken."""
    if stat.S_ISDIR(os.lstat(name, dir_fd=from_dir).st_mode):
        os.mkdir(new, dir_fd=to_dir)
        os.rename(name, new, src_dir_fd=from_dir, dst_dir_fd=to_dir)  # it replaces an empty directory
    else:
        os.link(name, new, src_dir_fd=from_dir, dst_dir_fd=to_dir, follow_symlinks=False)
        os.unlink(name, dir_fd=from_dir)


class RootGround:
    """The root of a running sandbox: everything in it, except the kernel's file systems.

    is_overlaid: whether everything is writable, even what the policy shows read-only.
    """

    crosses = False  # whether a path below a mount may lead through another mount

    def __init__(self, root: Root, *, is_overlaid: bool = False) -> None:
        self._root, self._is_overlaid = root, is_overlaid

    def problem(self, view: View, at: Place, *, is_denied: bool, write: bool) -> str:
        """Return why tools may not use a file; "": they may."""
        if is_denied or at.mount.is_hidden:
            return f"is hidden in the sandbox; {view.allowed(write=write)}"
        if any(is_below(at.mount.dest, path) for path in _KERNELS):
            return "is in a file system of the kernel, which file tools don't use"
        return ""

    def top(self, mount: Mount, shown: str) -> Top:
        """Open the top of a mount beneath the root, without following a link; raises SetupError if it has ended."""
        root = self._root.open_root()
        try:
            fd = open_beneath(root, mount.dest.strip("/") or ".", os.O_PATH, BENEATH | NO_SYMLINKS | NO_MAGICLINKS)
        except OSError as error:
            raise named(error, shown) from None
        finally:
            os.close(root)
        try:
            if mount.is_own and not _is_top(fd):  # the directory that it was mounted on has been moved
                raise AccessError(shown, f"lies in {mount.dest}, which was moved away")
            return Top(fd, os.readlink(f"/proc/self/fd/{fd}"), NO_MAGICLINKS | (0 if self.crosses else NO_XDEV))
        except BaseException:
            os.close(fd)
            raise

    def may_write(self, mount: Mount) -> bool:
        """Return whether commands may write there too."""
        return self._is_overlaid or mount.is_writable

    def leads(self, mount: Mount, inside: str, here: str) -> bool:
        """Return False: nothing leads from one mount to another here (NO_XDEV)."""
        return False

    def make_file(self, directory: int, name: str, mode: int) -> int:
        """Make a new file that belongs to the commands' ids."""
        try:
            return self._root.make_name(c.MAKE_FILE, mode, [name], [directory])
        except OSError as error:
            if error.errno == errno.EMFILE:  # it was made, but this process had no room for the descriptor
                with contextlib.suppress(OSError):
                    self.remove(directory, name, is_directory=False)
            raise

    def make_directory(self, directory: int, name: str) -> None:
        """Make a directory that belongs to the commands' ids."""
        self._root.make_name(c.MAKE_DIRECTORY, 0o777, [name], [directory])

    def move(self, from_dir: int, name: str, to_dir: int, new: str, *, replace: bool) -> None:
        """Rename a file, as a command would."""
        self._root.make_name(c.MAKE_MOVED, 0 if replace else NOREPLACE, [name, new], [from_dir, to_dir])

    def remove(self, directory: int, name: str, *, is_directory: bool) -> None:
        """Remove a name, or an empty directory, as a command would."""
        self._root.make_name(c.MAKE_REMOVED, _REMOVEDIR if is_directory else 0, [name], [directory])


class ViewGround(RootGround):
    """What a policy names, as a command sees it. All or part of it may be an overlay."""

    crosses = True
    problem = HostGround.problem


def mount_id(fd: int) -> bytes:
    """Return the id of the mount that a file is on; see proc_pid_fdinfo(5)."""
    with open(f"/proc/self/fdinfo/{fd}", "rb") as file:
        return next(line for line in file if line.startswith(b"mnt_id:"))


def _is_top(fd: int) -> bool:
    """Return whether a directory is the top of a mount."""
    above = os.open("..", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
    try:
        return mount_id(fd) != mount_id(above)
    finally:
        os.close(above)
