"""What a transaction has changed: the upper directory of an overlay, compared with the workspace below it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat

from nsbox._files import Tree, join
from nsbox._frozen import Frozen, frozen

_PART = 1 << 18  # bytes that are read at once
_MOST_HASHED = 64 << 20  # bytes of a file that is looked for under another name
_LONGEST = 4096  # PATH_MAX: what is deeper could only be reached step by step
_TYPES = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}


@frozen
class Change(Frozen):
    """One change of a transaction.

    kind: "added", "modified", "deleted" or "renamed". path: relative to the workspace; "." is the workspace. type:
    "file", "directory", "symlink", "fifo", "socket" or "device"; mode: permission bits; both as they are now, or of
    what is deleted as they were. old_type, old_mode: how they were, where the kind is "modified" or "renamed".
    old_path: of what is renamed. A directory that is added or deleted is listed with all below it.
    """

    kind: str
    path: str
    type: str
    mode: int
    old_path: str | None = None
    old_type: str | None = None
    old_mode: int | None = None

    def __str__(self) -> str:
        letter = {"added": "A", "modified": "M", "deleted": "D", "renamed": "R"}[self.kind]
        name = f"{self.old_path} -> {self.path}" if self.old_path else self.path
        return f"{letter} {name}{'/' if self.type == 'directory' else ''}"


def type_of(mode: int) -> str:
    """Return what Change calls a type of file."""
    return _TYPES.get(stat.S_IFMT(mode), "device")


def _is_whiteout(found: os.stat_result) -> bool:
    """Say if something below is deleted: overlayfs's mark for it, which nobody inside can make."""
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def _has(fd: int | str, name: str) -> bytes | None:
    with contextlib.suppress(OSError):
        return os.getxattr(fd, f"user.overlay.{name}", follow_symlinks=True)
    return None


def _new(kind: str, path: str, now: os.stat_result, was: os.stat_result | None = None) -> Change:
    mode = stat.S_IMODE(now.st_mode)
    if was is None:
        return Change(kind, path, type_of(now.st_mode), mode)
    return Change(kind, path, type_of(now.st_mode), mode, None, type_of(was.st_mode), stat.S_IMODE(was.st_mode))


def same_contents(one: Tree, path: str, other: Tree, other_path: str) -> bool:
    """Say if two regular files of the same size hold the same bytes; what is a hole in both isn't read."""
    with one.file(path) as left, other.file(other_path) as right:
        at, size = 0, os.fstat(left).st_size
        while at < size:
            at = min(_next_data(left, at, size), _next_data(right, at, size))
            first, second = (_read(fd, at) for fd in (left, right))
            if first != second:
                return False
            at += max(len(first), 1)
        return True


def _next_data(fd: int, at: int, size: int) -> int:
    try:
        return os.lseek(fd, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:  # a hole to the end
            raise
        return size


def _read(fd: int, at: int) -> bytes:
    """Return what a file has at this place, as much as fits."""
    found = b""
    while len(found) < _PART:
        more = os.pread(fd, _PART - len(found), at + len(found))
        if not more:
            break
        found += more
    return found


class Comparison:
    """Compares an upper directory with the real one. Commands may be at work in neither."""

    def __init__(self, upper: Tree, real: Tree) -> None:
        self._upper, self._real = upper, real

    def changes(self) -> list[Change]:
        """Return all changes by path; what was renamed is "deleted" here and "added" there. Raises OSError."""
        with self._upper.walking(), self._real.walking():
            return self._changes()

    def _changes(self) -> list[Change]:
        found: list[Change] = []
        now, was = os.fstat(self._upper.fd), os.fstat(self._real.fd)
        if stat.S_IMODE(now.st_mode) != stat.S_IMODE(was.st_mode):
            found.append(_new("modified", ".", now, was))
        todo = [("", True, False)]
        while todo:
            found += self._directory(*todo.pop(), todo)
        return sorted(found, key=lambda change: change.path.split("/"))

    def _directory(
        self, path: str, has_real: bool, is_opaque: bool, todo: list[tuple[str, bool, bool]]
    ) -> list[Change]:
        """Compare one directory. is_opaque: nothing shines through from below, since one above it is new."""
        found: list[Change] = []
        if len(path) > _LONGEST:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), f"{path[:100]}...")
        entries = self._upper.entries(path)
        below = self._real.entries(path) if has_real else {}
        is_opaque = is_opaque or self._is_opaque(path)
        for name, now in entries.items():
            at, was = join(path, name), below.get(name)
            if _is_whiteout(now):
                found += self._deleted(at, was) if was is not None else []
                continue
            if stat.S_ISDIR(now.st_mode):
                todo.append((at, was is not None and stat.S_ISDIR(was.st_mode), is_opaque))
            if was is None:
                found.append(_new("added", at, now))
            elif self._differs(at, now, was):
                found.append(_new("modified", at, now, was))
                found += self._deleted(at, was)[1:] if not stat.S_ISDIR(now.st_mode) else []
        if is_opaque:
            for name in below.keys() - entries.keys():
                found += self._deleted(join(path, name), below[name])
        return found

    def _is_opaque(self, path: str) -> bool:
        """Say if nothing is left of the directory that was there before."""
        with self._upper.dir(path) as fd:
            return _has(fd, "opaque") == b"y"

    def _deleted(self, path: str, was: os.stat_result) -> list[Change]:
        found, todo = [], [(path, was)]
        while todo:
            at, one = todo.pop()
            found.append(_new("deleted", at, one))
            if stat.S_ISDIR(one.st_mode):
                todo += [(join(at, name), inner) for name, inner in self._real.entries(at).items()]
        return found

    def _differs(self, path: str, now: os.stat_result, was: os.stat_result) -> bool:
        if now.st_mode != was.st_mode:
            return True
        if stat.S_ISLNK(now.st_mode):
            return self._upper.link(path) != self._real.link(path)
        if not stat.S_ISREG(now.st_mode):
            return False
        return now.st_size != was.st_size or not same_contents(self._upper, path, self._real, path)

    # ---- renames

    def with_renames(self, changes: list[Change]) -> list[Change]:
        """Return the changes with a file gone and the same contents new elsewhere made one."""
        gone: dict[tuple[int, bytes], list[Change]] = {}
        added = [change for change in changes if change.kind == "added" and change.type == "file"]
        sizes = {size for change in added if 0 < (size := self._size(self._upper, change)) <= _MOST_HASHED}
        for change in changes:
            if change.kind == "deleted" and change.type == "file" and self._size(self._real, change) in sizes:
                gone.setdefault(self._digest(self._real, change), []).append(change)
        if not gone:
            return changes
        there = {size for size, _ in gone}
        replaced: dict[Change, Change | None] = {}
        for change in added:
            if self._size(self._upper, change) in there:
                old = _nearest(gone.get(self._digest(self._upper, change), []), change)
                if old is not None:
                    replaced[old] = None
                    replaced[change] = Change(
                        "renamed", change.path, change.type, change.mode, old.path, old.type, old.mode
                    )
        told = (replaced.get(change, change) for change in changes)
        return [change for change in told if change is not None]

    @staticmethod
    def _size(tree: Tree, change: Change) -> int:
        found = tree.stat(change.path)
        return found.st_size if found is not None else 0

    @staticmethod
    def _digest(tree: Tree, change: Change) -> tuple[int, bytes]:
        digest, size = hashlib.blake2b(), 0
        with tree.file(change.path) as fd:
            while part := os.read(fd, 1 << 18):
                digest.update(part)
                size += len(part)
        return size, digest.digest()

    # ---- conflicts

    def conflicts(
        self, changes: list[Change], renamed: set[str], started: int, top_mode: int, *, is_top_ours: bool = False
    ) -> list[tuple[str, str]]:
        """Return what of all changes (without renames) has been changed in the real directory since, and how.

        started: nanoseconds; inodes that were changed at that time or later count (ctime, which nobody can set). So do
        directories on the way that were moved there, or given other permissions: then what is in them is other files.
        renamed: paths of what only has another name now. top_mode: the mode of the directory itself then. is_top_ours:
        it has been changed by us since.
        """
        found = {}
        for change in changes:
            was = self._real.stat(change.path)
            if was is not None:
                is_same_top = change.path == "." and stat.S_IMODE(was.st_mode) == top_mode
                if was.st_ctime_ns >= started and not is_same_top:
                    found[change.path] = "changed"
            elif change.kind != "deleted" and change.path not in renamed and self._was_copied_up(change):
                above = change.path.rpartition("/")[0]
                if change.type == "directory" or (not (is_top_ours and not above) and self._has_lost(above, started)):
                    found[change.path] = "deleted"
        for path in {above for change in changes for above in _above(change.path)}:
            was = self._real.stat(path)
            if was is not None and started <= was.st_ctime_ns != was.st_mtime_ns:
                found[path] = "changed"
        return sorted(found.items())

    def _has_lost(self, path: str, started: int) -> bool:
        """Say if a real directory may have lost something since: else what is new there was renamed inside."""
        found = self._real.stat(path)
        return found is not None and found.st_mtime_ns >= started

    def _was_copied_up(self, change: Change) -> bool:
        """Say if it was in the real directory once: overlayfs marks what it copies."""
        if change.type not in ("file", "directory"):
            return False
        with contextlib.ExitStack() as stack:
            opened = self._upper.dir if change.type == "directory" else self._upper.file
            return _has(stack.enter_context(opened(change.path)), "origin") is not None


def _above(path: str) -> list[str]:
    """Return the directories that a path is in, but for the workspace itself."""
    names = path.split("/")
    return ["/".join(names[:n]) for n in range(1, len(names))]


def _nearest(candidates: list[Change], new: Change) -> Change | None:
    """Take the candidate that is most like the new one: of its name, else the first."""
    name = new.path.rpartition("/")[2]
    for candidate in candidates:
        if candidate.path.rpartition("/")[2] == name:
            candidates.remove(candidate)
            return candidate
    return candidates.pop(0) if candidates else None
