"""Changing names: making directories, moving, copying and removing files, never through a link."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from nsbox._base.descriptors import write_all
from nsbox._base.errors import AccessError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._files.attributes import attributes_of, give
from nsbox._files.files import open_beneath
from nsbox._filetools.files import DIRECTORY, READ, check_regular, is_same, reopened, set_mode
from nsbox._filetools.ground import BENEATH, NO_SYMLINKS, NO_XDEV, mount_id, named
from nsbox._filetools.records import FileChange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nsbox._filetools.files import Files, Path, Target

_MOST_ENTRIES = 100_000  # in a directory that delete() or move() works on
_DEEPEST = 256
_MOST_COPIED = 1 << 30  # bytes
_CHUNK = 1 << 20


def mkdir(files: Files, path: Path, *, parents: bool) -> FileChange:
    """Make a directory; one that is there already is no error."""
    target = files.target(path, write=True)
    files.check_name(target.inside, target.shown)
    with files.parent(target, parents=parents) as (directory, inside):
        files.check_name(f"{inside}/{target.name}", target.shown)
        try:
            target.ground.make_directory(directory, target.name)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(target.name, dir_fd=directory).st_mode):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target.shown) from None
            return FileChange(target.shown, "unchanged")
        except OSError as error:
            raise named(error, target.shown) from None
    return FileChange(target.shown, "created")


# ---- what is below a directory


class _Branch:
    """A directory that is to be moved or removed, with all that is below it.

    look() counts what there is, and refuses all of it if tools may not change a part. remove() checks each name again
    right before it removes it.

    forceful: for what is to be removed: a directory of this user's is opened whatever its mode, which it has again
        afterwards.
    """

    def __init__(self, files: Files, target: Target, *, forceful: bool = False) -> None:
        self._files, self._target, self._left = files, target, _MOST_ENTRIES
        self._forceful = forceful
        self.count = 0

    def _entries(self, fd: int) -> list[tuple[str, bool]]:
        with os.scandir(fd) as scanned:
            found = []
            for entry in scanned:
                self._left -= 1
                if self._left < 0:
                    what = f"has more than {_MOST_ENTRIES} entries; use a command for so many"
                    raise AccessError(self._target.shown, what)
                found.append((entry.name, entry.is_dir(follow_symlinks=False)))
        return found

    def _check(self, inside: str) -> None:
        files = self._files
        mount = files.view.mount_of(inside)
        names = inside[len(mount.dest) :].casefold().split("/")
        for protected in files.policy.protected:
            if protected.casefold() in names:
                raise AccessError(self._target.shown, f"has {inside} in it, and {protected} is protected")
        if files.is_denied(inside) or files.view.below(inside) or mount.dest == inside:
            raise AccessError(
                self._target.shown, f"has {inside} in it, which is hidden or a mount point in the sandbox"
            )

    def _opened(self, name: str, above: int) -> int:
        try:
            fd = open_beneath(above, name, DIRECTORY, BENEATH | NO_SYMLINKS | NO_XDEV)
        except OSError as error:
            if error.errno == errno.EXDEV:
                raise self._mounted(name) from None
            raise named(error, self._target.shown) from None
        if mount_id(fd) != mount_id(above):  # without openat2(2), see open_beneath()
            os.close(fd)
            raise self._mounted(name)
        return fd

    @contextlib.contextmanager
    def entered(self, name: str, above: int) -> Iterator[int]:
        """Open a directory, and close it afterwards."""
        fd, mode = self._forced(name, above) if self._forceful else (self._opened(name, above), -1)
        try:
            yield fd
        finally:
            if mode >= 0:
                with contextlib.suppress(OSError):
                    os.fchmod(fd, mode)
            os.close(fd)

    def _forced(self, name: str, above: int) -> tuple[int, int]:
        """Open a directory; return its descriptor, and the mode that it had if it has another one now, otherwise -1."""
        try:
            handle = os.open(name, DIRECTORY | os.O_PATH | os.O_NOFOLLOW, dir_fd=above)
        except OSError as error:
            raise named(error, self._target.shown) from None
        path = f"/proc/self/fd/{handle}"
        try:
            status = os.fstat(handle)
            mode = stat.S_IMODE(status.st_mode)
            is_ours = os.geteuid() in (0, status.st_uid)  # root too: in a session, names are removed under other ids
            if mode & 0o700 == 0o700 or not is_ours or mount_id(handle) != mount_id(above):
                return self._opened(name, above), -1
            os.chmod(path, mode | 0o700)
            try:
                return os.open(".", DIRECTORY, dir_fd=handle), mode  # the name may be another directory's by now
            except BaseException:
                os.chmod(path, mode)
                raise
        finally:
            os.close(handle)

    def _mounted(self, name: str) -> AccessError:
        return AccessError(self._target.shown, f"has a mount point in it: {name}")

    def look(self, fd: int, inside: str, more: Callable[[int, str, str], None], depth: int = 0) -> None:
        """Check all that is below an open directory. more: is called with each name that is no directory."""
        if depth > _DEEPEST:
            raise AccessError(self._target.shown, f"is deeper than {_DEEPEST} directories; use a command")
        for name, is_directory in self._entries(fd):
            at = f"{inside}/{name}"
            self._check(at)
            self.count += 1
            if not is_directory:
                more(fd, name, at)
                continue
            with self.entered(name, fd) as inner:
                self.look(inner, at, more, depth + 1)

    def remove(self, fd: int, inside: str, depth: int = 0) -> None:
        """Remove all that is below an open directory."""
        if not depth:
            self._left = 2 * _MOST_ENTRIES
        for name, is_directory in self._entries(fd):
            at = f"{inside}/{name}"
            self._check(at)
            if is_directory and depth < 2 * _DEEPEST:
                with self.entered(name, fd) as inner:
                    self.remove(inner, at, depth + 1)
            self._target.ground.remove(fd, name, is_directory=is_directory)


def delete(files: Files, path: Path, *, recursive: bool) -> FileChange:
    """Remove a name, or a directory."""
    target = files.target(path, write=True)
    files.check_name(target.inside, target.shown)
    with files.parent(target) as (directory, inside):
        at = f"{inside}/{target.name}"
        files.check_name(at, target.shown)
        count = 1
        try:
            is_directory = stat.S_ISDIR(os.lstat(target.name, dir_fd=directory).st_mode)
            if target.shown.endswith("/") and not is_directory:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if is_directory:
                count += _emptied(files, target, directory, at, recursive=recursive)
            else:
                files.view.check_suffix(at, target.shown)
            target.ground.remove(directory, target.name, is_directory=is_directory)
        except AccessError:
            raise
        except OSError as error:
            if error.errno == errno.ENOTEMPTY and not recursive:
                error = OSError(errno.ENOTEMPTY, "the directory isn't empty; recursive=True deletes everything in it")
            raise named(error, target.shown) from None
    return FileChange(target.shown, "deleted", count=count)


def _emptied(files: Files, target: Target, directory: int, at: str, *, recursive: bool) -> int:
    if files.view.below(at):
        raise files.view.refusal(target.shown, "has mount points of the sandbox in it", write=True)
    if not recursive:
        return 0
    branch = _Branch(files, target, forceful=True)
    with branch.entered(target.name, directory) as fd:
        branch.look(fd, at, lambda *_: None)
        branch.remove(fd, at)
    return branch.count


# ---- moving and copying


def move(files: Files, source: Path, destination: Path, *, overwrite: bool) -> FileChange:
    """Rename a file or a directory, or copy a file to another file system and remove it here."""
    from_, to = files.target(source, write=True), files.target(destination, write=True)
    files.check_name(from_.inside, from_.shown)
    _check_file_name(to)
    with files.parent(from_) as (from_dir, from_inside), files.parent(to, parents=True) as (to_dir, to_inside):
        at, new = f"{from_inside}/{from_.name}", f"{to_inside}/{to.name}"
        files.check_name(at, from_.shown)
        try:
            status = os.lstat(from_.name, dir_fd=from_dir)
        except OSError as error:
            raise named(error, from_.shown) from None
        count = _check_moved(files, from_, to, status, (from_dir, at), new)
        _check_free(to, to_dir, status, overwrite=overwrite)
        try:
            if from_.ground is not to.ground:
                raise OSError(errno.EXDEV, "")
            from_.ground.move(from_dir, from_.name, to_dir, to.name, replace=overwrite)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise named(error, to.shown) from None
            if not stat.S_ISREG(status.st_mode):
                raise AccessError(
                    from_.shown, "is a directory, and can't be moved to another file system; use a command"
                ) from None
            copied = _copied(files, from_, from_dir, to, to_dir, (to.inside, new), overwrite=overwrite)
            if not is_same(copied, os.lstat(from_.name, dir_fd=from_dir)):
                raise AccessError(from_.shown, f"has changed while it was copied to {to.shown}, and stays") from None
            from_.ground.remove(from_dir, from_.name, is_directory=False)
    return FileChange(to.shown, "moved", count=count)


def _check_moved(
    files: Files, from_: Target, to: Target, status: os.stat_result, where: tuple[int, str], new: str
) -> int:
    """Check what is to be moved against the rules of both places; return how many files it is."""
    directory, at = where
    if not stat.S_ISDIR(status.st_mode):
        check_regular(status, from_.shown)
        files.view.check_suffix(at, from_.shown)
        for name in dict.fromkeys((to.inside, new)):
            files.check_written(name, status.st_size, to.shown)
        return 1
    if f"{new}/".startswith(f"{at}/"):
        raise AccessError(to.shown, f"lies in {from_.shown}, or is the same")
    if files.view.below(at):
        raise files.view.refusal(from_.shown, "has mount points of the sandbox in it", write=True)
    for name in dict.fromkeys((to.inside, new)):
        files.check_name(name, to.shown)

    def check(above: int, name: str, inside: str) -> None:
        files.check_written(f"{new}{inside[len(at) :]}", os.lstat(name, dir_fd=above).st_size, to.shown)

    branch = _Branch(files, from_)
    with branch.entered(from_.name, directory) as fd:
        branch.look(fd, at, check)
    return 1 + branch.count


def _check_file_name(target: Target) -> None:
    if not target.name or target.shown.endswith("/"):
        raise IsADirectoryError(errno.EISDIR, "the destination is a directory; name the new path in it", target.shown)


def _check_free(to: Target, directory: int, status: os.stat_result, *, overwrite: bool) -> None:
    """Raise OSError if something at the destination may not be replaced. The kernel refuses what appears later."""
    try:
        there = os.lstat(to.name, dir_fd=directory)
    except FileNotFoundError:
        return
    what = "the destination exists"
    if stat.S_ISDIR(there.st_mode):  # overwrite=True replaces an empty one with a directory
        if stat.S_ISREG(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, "the destination is a directory; name the new path in it", to.shown)
        if not overwrite:
            how = "overwrite=True replaces an empty directory; to move into it, name the new path in it"
            raise FileExistsError(errno.EEXIST, f"{what}; {how}", to.shown)
        return
    if not stat.S_ISREG(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, f"{what} and is no directory; delete() it first", to.shown)
    if not overwrite:
        raise FileExistsError(errno.EEXIST, f"{what}; overwrite=True replaces a file", to.shown)
    check_regular(there, to.shown)


def copy(files: Files, source: Path, destination: Path, *, overwrite: bool) -> FileChange:
    """Copy a regular file."""
    to = files.target(destination, write=True)
    _check_file_name(to)
    fd = files.opened_file(source)
    try:
        with files.parent(to, parents=True) as (to_dir, to_inside):
            names = (to.inside, f"{to_inside}/{to.name}")
            _check_free(to, to_dir, os.fstat(fd), overwrite=overwrite)
            _copied_from(files, fd, os.fspath(source), to, to_dir, names, overwrite=overwrite)
    finally:
        os.close(fd)
    return FileChange(to.shown, "copied")


def _copied(
    files: Files, from_: Target, from_dir: int, to: Target, to_dir: int, names: tuple[str, str], *, overwrite: bool
) -> os.stat_result:
    """Copy a file; return the status that it had before."""
    handle = os.open(from_.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=from_dir)
    try:
        check_regular(os.fstat(handle), from_.shown)
        fd = reopened(handle, READ, from_.shown)
    finally:
        os.close(handle)
    try:
        status = os.fstat(fd)
        _copied_from(files, fd, from_.shown, to, to_dir, names, overwrite=overwrite)
    finally:
        os.close(fd)
    return status


def _copied_from(
    files: Files, source: int, shown: str, to: Target, to_dir: int, names: tuple[str, str], *, overwrite: bool
) -> None:
    """Make a file with the contents, the mode and the attributes of an open one."""
    status = os.fstat(source)
    if status.st_size > _MOST_COPIED:
        raise AccessError(shown, f"is too large to be copied: {_MOST_COPIED} bytes at most; use a command")
    for name in dict.fromkeys(names):
        files.check_written(name, status.st_size, to.shown)
    new, ground = f".nsbox-{os.urandom(8).hex()}", to.ground
    mode = stat.S_IMODE(status.st_mode) & 0o777
    try:
        fd = ground.make_file(to_dir, new, mode)
    except OSError as error:
        raise named(error, to.shown) from None
    try:
        try:
            left = status.st_size
            while left > 0 and (chunk := os.read(source, min(_CHUNK, left))):
                write_all(fd, chunk)
                left -= len(chunk)
            set_mode(fd, mode)
            give(fd, attributes_of(source, shown))
        finally:
            os.close(fd)
        ground.move(to_dir, new, to_dir, to.name, replace=overwrite)
    except BaseException as error:
        with contextlib.suppress(OSError):
            ground.remove(to_dir, new, is_directory=False)
        if isinstance(error, OSError) and not isinstance(error, AccessError):
            raise named(error, to.shown) from None
        raise
