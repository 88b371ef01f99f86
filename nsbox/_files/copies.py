"""Copies of trees: contents, modes, times, attributes and links, by descriptors as in files.py."""

from __future__ import annotations

import errno
import os
import stat

from nsbox._files.attributes import attributes_of, give
from nsbox._files.files import Tree, join, opened_path, set_mode


def is_copied(mode: int) -> bool:
    """Return whether files of this mode are copied: sockets and device nodes stay where they are."""
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode) or stat.S_ISFIFO(mode)


def copy(
    source: Tree,
    path: str,
    target: Tree,
    new: str,
    links: dict[tuple[int, int], str],
    *,
    keep_set_ids: bool = True,
) -> None:
    """Copy what is at path in one tree, with everything below it, to a new path in the other: contents, modes, times.

    Only root can keep owners. links: the copies of files with several links, by device and inode; filled in here, so
    that later names become links too. keep_set_ids: files keep their set-user-ID and set-group-ID bits. Raises OSError,
    also for an attribute that can't be set.
    """
    with source.walking(), target.walking():
        _copy(source, path, target, new, links, keep_set_ids)


def _copy(
    source: Tree, path: str, target: Tree, new: str, links: dict[tuple[int, int], str], keep_set_ids: bool
) -> None:
    todo, made = [(path, new)], []
    while todo:
        old, at = todo.pop()
        found = source.stat(old)
        if found is None or not is_copied(found.st_mode):
            continue
        with target.parent(at) as (above, name):
            if stat.S_ISDIR(found.st_mode):
                os.mkdir(name, 0o700, dir_fd=above)
                made.append((old, at, found))
                todo += [(join(old, inner), join(at, inner)) for inner in source.names(old)]
            elif stat.S_ISREG(found.st_mode):
                _copy_file(source, old, found, target, at, links, keep_set_ids)
            elif stat.S_ISLNK(found.st_mode):
                os.symlink(source.link(old), name, dir_fd=above)
                _own(name, above, found)
            else:
                os.mkfifo(name, 0o600, dir_fd=above)
                _own(name, above, found)
                set_mode(above, name, stat.S_IFIFO, stat.S_IMODE(found.st_mode))
                with opened_path(name, above) as made_path:
                    give(made_path, source.attributes(old, found))
    for old, at, found in reversed(made):
        with source.dir(old) as inside, target.dir(at) as copied:
            _complete(inside, copied, found, old)


def _copy_file(
    source: Tree,
    old: str,
    found: os.stat_result,
    target: Tree,
    at: str,
    links: dict[tuple[int, int], str],
    keep_set_ids: bool,
) -> None:
    first = links.setdefault((found.st_dev, found.st_ino), at) if found.st_nlink > 1 else at
    with target.parent(at) as (above, name):
        if first != at:
            with target.parent(first) as (beside, other):
                os.link(other, name, src_dir_fd=beside, dst_dir_fd=above, follow_symlinks=False)
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        written = os.open(name, flags, 0o600, dir_fd=above)
    try:
        with source.file(old) as read:
            copy_data(read, written, found.st_size)
            _complete(read, written, found, old, 0 if keep_set_ids else stat.S_ISUID | stat.S_ISGID)
    finally:
        os.close(written)


def _own(name: str, above: int, found: os.stat_result) -> None:
    if os.geteuid() == 0:
        os.chown(name, found.st_uid, found.st_gid, dir_fd=above, follow_symlinks=False)
    os.utime(name, ns=(found.st_atime_ns, found.st_mtime_ns), dir_fd=above, follow_symlinks=False)


def _complete(read: int, written: int, found: os.stat_result, path: str, dropped: int = 0) -> None:
    """Give a copy its owner, attributes, mode and times."""
    if os.geteuid() == 0:
        os.fchown(written, found.st_uid, found.st_gid)
    give(written, attributes_of(read, path))
    os.fchmod(written, stat.S_IMODE(found.st_mode) & ~dropped)
    os.utime(written, ns=(found.st_atime_ns, found.st_mtime_ns))


def copy_data(read: int, written: int, size: int) -> None:
    """Copy a file's data, but not its holes."""
    at = 0
    while at < size:
        try:
            start = os.lseek(read, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # a hole to the end
                raise
            break
        at = os.lseek(read, start, os.SEEK_HOLE)
        os.lseek(read, start, os.SEEK_SET)
        os.lseek(written, start, os.SEEK_SET)
        _copy_range(read, written, at - start)
    os.ftruncate(written, size)


def _copy_range(read: int, written: int, count: int) -> None:
    while count > 0:
        try:
            done = os.copy_file_range(read, written, min(count, 1 << 30))
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            done = os.sendfile(written, read, None, min(count, 1 << 30))
        if done == 0:  # it has become shorter
            return
        count -= done
