"""Exact copies of directories of a task: overlayfs's whiteouts and attributes, sockets, links and holes included.

What commands have written is never followed: everything is opened by descriptors, as _files does. Where the file system
can, a file's copy shares its blocks (copy_file_range(2)).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from nsbox._files import files
from nsbox._files.attributes import give, names_of
from nsbox._files.copies import copy_data
from nsbox._files.files import Tree, join, opened_path

_MOST_ENTRIES = 500_000  # files, directories and the like of all directories together
_LONGEST = 4096  # characters of a path: what is deeper could only be reached step by step
_MOST_PATHS = 64 << 20  # characters of all paths


class Budget:
    """How much may be copied in all: `left` bytes, as files take up space, and a number of files."""

    def __init__(self, size: int) -> None:
        self.size = self.left = size
        self._left_of_entries, self._left_of_paths = _MOST_ENTRIES, _MOST_PATHS

    def take(self, path: str, size: int) -> None:
        """Count a file of this many bytes on the disk; raises OSError, EFBIG or E2BIG, if that is too much."""
        self._left_of_entries -= 1
        self._left_of_paths -= len(path)
        if len(path) > _LONGEST:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), f"{path[:100]}...")
        self.take_bytes(path, size)
        if self._left_of_entries < 0 or self._left_of_paths < 0:
            what = f"the task has changed more than {_MOST_ENTRIES} files, or their paths are too long in all"
            raise OSError(errno.E2BIG, what, path)

    def take_bytes(self, path: str, size: int) -> None:
        """Count bytes of a file; raises OSError, EFBIG, if that is too much."""
        self.left -= size
        if self.left < 0:
            raise OSError(errno.EFBIG, f"the task has written more than max_size, {self.size} bytes", path)


class Clone:
    """Copies what is in one directory into another one, as far as it is on the same mount."""

    def __init__(self, source: Tree, target: Tree, budget: Budget) -> None:
        self._source, self._target, self._budget = source, target, budget
        self._devices = os.fstat(source.fd).st_dev, os.fstat(target.fd).st_dev
        self._links: dict[int, str] = {}  # the copies of files with several names, by inode
        self._made: list[tuple[str, os.stat_result]] = []

    def make(self) -> None:
        """Copy all; raises OSError. What is mounted in either directory is left alone."""
        with self._source.walking(), self._target.walking():
            self._made.append(("", self._source.status))
            todo = [""]
            while todo:
                path = todo.pop()
                for name, found in self._source.entries(path):
                    at = join(path, name)
                    if found.st_dev == self._devices[0] and self._has_room(at, found) and self._one(at, found):
                        todo.append(at)
            for path, found in reversed(self._made):
                with self._source.dir(path) as old, self._target.dir(path) as new:
                    self._complete(path, old, new, found)

    def _has_room(self, path: str, found: os.stat_result) -> bool:
        """Make room in the target for a file; False: something is mounted there."""
        there = self._target.stat(path)
        if there is None:
            return True
        if there.st_dev != self._devices[1]:
            return False
        if not stat.S_ISDIR(found.st_mode) or not stat.S_ISDIR(there.st_mode):
            files.remove(self._target, path)
        return True

    def _one(self, path: str, found: os.stat_result) -> bool:
        """Copy one file, or make a directory; return whether it is one."""
        is_known = found.st_nlink > 1 and found.st_ino in self._links
        self._budget.take(path, 0 if is_known else found.st_blocks * 512)
        with self._target.parent(path) as (above, name):
            if stat.S_ISDIR(found.st_mode):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=above)
                self._made.append((path, found))
                return True
            if found.st_nlink > 1 and (first := self._links.setdefault(found.st_ino, path)) != path:
                with self._target.parent(first) as (beside, other):
                    os.link(other, name, src_dir_fd=beside, dst_dir_fd=above, follow_symlinks=False)
                return False
            if stat.S_ISREG(found.st_mode):
                self._contents(path, found, above, name)
                return False
            if stat.S_ISLNK(found.st_mode):
                os.symlink(self._source.link(path), name, dir_fd=above)
            elif stat.S_ISCHR(found.st_mode) and found.st_rdev != 0:
                return False  # no command can make one
            else:
                os.mknod(
                    name, found.st_mode, 0, dir_fd=above
                )  # a whiteout, which every user may make; a FIFO; a socket
            self._own(name, above, found)
        return False

    def _own(self, name: str, above: int, found: os.stat_result) -> None:
        if os.geteuid() == 0:
            os.chown(name, found.st_uid, found.st_gid, dir_fd=above, follow_symlinks=False)
        if not stat.S_ISLNK(found.st_mode) and not stat.S_ISCHR(found.st_mode):
            with opened_path(name, above) as at:
                os.chmod(at, stat.S_IMODE(found.st_mode))
        os.utime(name, ns=(found.st_atime_ns, found.st_mtime_ns), dir_fd=above, follow_symlinks=False)

    def _contents(self, path: str, found: os.stat_result, above: int, name: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        written = os.open(name, flags, 0o600, dir_fd=above)
        try:
            with self._source.file(path) as read:
                copy_data(read, written, found.st_size)
                self._complete(path, read, written, found)
        finally:
            os.close(written)

    def _complete(self, path: str, read: int, written: int, found: os.stat_result) -> None:
        """Give a copy its owner, attributes, mode and times. Attributes count: a file may have many large ones."""
        if os.geteuid() == 0:
            os.fchown(written, found.st_uid, found.st_gid)
        for name in names_of(read, path):
            value = os.getxattr(read, name)
            self._budget.take_bytes(path, len(name) + len(value))
            give(written, {name: value})
        os.fchmod(written, stat.S_IMODE(found.st_mode))
        os.utime(written, ns=(found.st_atime_ns, found.st_mtime_ns))
