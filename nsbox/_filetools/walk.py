"""Walking through directories to list files, safely even if a command changes names meanwhile."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import heapq
import os
from collections.abc import Iterator

from nsbox._base.checks import check_answer
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._filetools.files import DIRECTORY, check_number
from nsbox._filetools.ground import named
from nsbox._filetools.records import Paths

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from typing import TypeVar

    from nsbox._filetools.files import Files, Path
    from nsbox._filetools.ground import Ground

    _T = TypeVar("_T")

_MOST_ENTRIES = 1_000_000  # names that list_files() and glob() look at
_DEEPEST = 256  # levels of directories that they enter, with two descriptors each
_LONGEST = 4096  # characters of a path
_MOST_CHARS = 64 << 20  # of all paths


def list_files(files: Files, path: Path, pattern: str, max_files: int) -> list[str]:
    """Return the regular files below a directory whose relative paths match a pattern."""
    parts = parts_of(pattern)
    check_number("max_files", max_files)
    shown = os.fspath(path)
    found: list[str] = []
    chars = 0
    with contextlib.closing(_walked(files, path, parts)) as entries:
        for _, name in counted(entries, _MOST_ENTRIES, shown, "name a directory in it"):
            if name and fits(name.split("/"), parts):
                found.append(name)
                chars += len(name)
            if chars > _MOST_CHARS:
                raise ValueError(f"{shown} has files whose paths are too long, all together; narrow the pattern")
            if len(found) > max_files:
                raise ValueError(
                    f"{shown} has more than {max_files} such files; narrow the pattern, or raise max_files"
                )
    return sorted(found)


def glob(files: Files, pattern: str, path: Path, max_files: int) -> Paths:
    """Return the newest of the regular files below a directory whose relative paths match a pattern."""
    parts = parts_of(pattern)
    if pattern.startswith(("/", "~/")) or ".." in parts:
        raise ValueError(f"pattern is {pattern!r}, must be of paths below `path`: name the directory by path=")
    check_number("max_files", max_files)
    newest: list[tuple[int, str]] = []  # a heap, the oldest on top
    is_truncated, chars = False, 0
    with contextlib.closing(_walked(files, path, parts)) as entries:
        for count, (directory, name) in enumerate(entries):
            if count >= _MOST_ENTRIES:
                is_truncated = True
                break
            if not name or not fits(name.split("/"), parts):
                continue
            try:
                status = os.lstat(name.rpartition("/")[2], dir_fd=directory)
            except OSError as error:  # it has just gone
                check_answer(error)
                continue
            heapq.heappush(newest, (status.st_mtime_ns, name))
            chars += len(name)
            while len(newest) > max_files or chars > _MOST_CHARS:
                chars -= len(heapq.heappop(newest)[1])
                is_truncated = True
    above = os.fspath(path)
    in_order = sorted(newest, key=lambda one: (-one[0], one[1]))
    return Paths(tuple(joined(above, name) for _, name in in_order), is_truncated)


def joined(above: str, name: str) -> str:
    """Return the path of a name below a directory, as the tools accept it."""
    return name if above in ("", ".") else os.path.join(above, name)


def parts_of(pattern: str) -> list[str]:
    """Return the parts of a pattern; raises ValueError if it isn't a pattern."""
    if not isinstance(pattern, str) or not pattern.strip("/"):
        raise ValueError(f"pattern is {pattern!r}, must be a pattern such as '**/*.py'")
    parts = pattern.strip("/").split("/")
    if len(pattern) > 4096 or len(parts) > _DEEPEST:
        raise ValueError(
            f"pattern has {len(pattern)} characters and {len(parts)} parts, must have at most 4096 and {_DEEPEST}"
        )
    return parts


def _walked(files: Files, path: Path, parts: list[str]) -> Generator[tuple[int, str]]:
    """Yield each entry below a directory: the descriptor of its directory, and its path if it is a file, else ""."""
    deepest = _DEEPEST if "**" in parts else len(parts) - 1
    with files.directory(path) as (fd, found):
        mount = files.view.mount_of(found.inside)
        yield from _Walk(files, files.grounds_of(mount), os.fspath(path), deepest).entries(fd, found.inside, "")


class _Walk:
    def __init__(self, files: Files, ground: Ground, shown: str, deepest: int) -> None:
        self._files, self._ground, self._shown, self._deepest = files, ground, shown, deepest
        self._has_denied = bool(files.policy.deny)

    def entries(self, fd: int, inside: str, above: str) -> Generator[tuple[int, str]]:
        """Yield the entries one by one, without a list of all names."""
        view = self._files.view
        is_plain = not self._has_denied and not view.below(inside)
        try:
            with os.scandir(fd) as scanned:
                for entry in scanned:
                    name, relative = entry.name, f"{above}{entry.name}"
                    at = f"{inside.rstrip('/')}/{name}"
                    if not is_plain and self._is_left_out(inside, at):
                        yield fd, ""
                        continue
                    yield fd, relative if entry.is_file(follow_symlinks=False) else ""
                    if not entry.is_dir(follow_symlinks=False) or relative.count("/") >= self._deepest:
                        continue
                    if len(relative) > _LONGEST:  # no tool accepts a path that is longer
                        continue
                    inner = _inner(fd, name)
                    if inner < 0:
                        continue
                    try:
                        yield from self.entries(inner, at, f"{relative}/")
                    finally:
                        os.close(inner)
        except OSError as error:
            raise named(error, self._shown) from None

    def _is_left_out(self, inside: str, at: str) -> bool:
        """Return whether commands find nothing at a path, or not what is in this directory."""
        view = self._files.view
        if self._files.is_denied(at):
            return True
        mount = view.mount_of(at)
        if mount.dest != at:
            return False
        above = view.mount_of(inside)
        here = os.path.normpath(f"{above.source}/{at[len(above.dest) :]}")
        return above.source is None or self._files.grounds_of(mount) is not self._ground or mount.source != here


def _inner(fd: int, name: str) -> int:
    """Open a directory; -1 if it has become something else, or may not be read. Raises OSError."""
    try:
        return os.open(name, DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES):
            return -1
        raise


def counted(entries: Iterable[_T], most: int, shown: str, remedy: str) -> Iterator[_T]:
    """Yield the entries; raises ValueError as soon as there are more than `most`."""
    for count, one in enumerate(entries):
        if count >= most:
            raise ValueError(f"{shown} has more than {most} entries; {remedy}")
        yield one


def fits(names: list[str], parts: list[str]) -> bool:
    """Return whether a path matches a pattern, part by part: ** is any number of directories."""
    at = {0}  # the numbers of names that the parts so far can match
    for part in parts:
        if part == "**":
            at = set(range(min(at, default=len(names) + 1), len(names) + 1))
        else:
            at = {i + 1 for i in at if i < len(names) and fnmatch.fnmatchcase(names[i], part)}
    return len(names) in at
