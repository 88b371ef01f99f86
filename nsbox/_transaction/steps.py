"""The steps of a commit: each is one atomic system call, whose result shows, and which can be undone.

A step moves something between the spare directory and the workspace. So the spare shows whether it has been done, and
repeating it after a crash does no harm.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat

from nsbox._base.frozen import Frozen, frozen
from nsbox._files import files
from nsbox._files.files import EXCHANGE, NO_FLAGS, NOREPLACE, Tree

OPEN = 0o300  # the mode that a directory's owner needs to change what is in it, and to move it (rename(2))


@frozen
class Step(Frozen):
    """One step of a commit.

    what: "put" (spare -> path, where nothing is), "swap" (spare <-> path), "drop" (path -> spare) or "mode" (of a
        directory).
    path: in the workspace.
    spare: the name in the spare directory that something comes from or goes to.
    new, was: the identity of what is put there, and of what was there: inode, mtime, size, ctime; times in nanoseconds.
    mode, old_mode: for "mode", and for "drop" of a directory that has to be made writable first.
    """

    what: str
    path: str
    spare: str = ""
    new: tuple[int, ...] = ()
    was: tuple[int, ...] = ()
    mode: int = 0
    old_mode: int = 0

    def row(self) -> list[object]:
        """Return it in the journal's form."""
        return [self.what, self.path, self.spare, list(self.new), list(self.was), self.mode, self.old_mode]

    @classmethod
    def of_row(cls, row: object) -> Step:
        """Return the step that row() was made of; raises ValueError for anything else, as for a path that leads out."""
        match row:
            case [str(what), str(path), str(spare), [*new], [*was], int(mode), int(old)] if what in _STEPS:
                has_new, has_was, has_spare = _STEPS[what]
                counts = (len(new), len(was)) == (4 * has_new, 4 * has_was)
                is_top = what == "mode" and path == "."
                modes = all(type(one) is int and 0 <= one <= 0o7777 for one in (mode, old))
                names = _SPARE.fullmatch(spare) if has_spare else not spare
                if counts and modes and names and (is_top or _is_inside(path)):
                    return cls(what, path, spare, _numbers(new), _numbers(was), mode, old)
        raise ValueError(f"{repr(row)[:200]} is no step of a commit")


_STEPS = {"put": (1, 0, 1), "swap": (1, 1, 1), "drop": (0, 1, 1), "mode": (0, 0, 0)}  # has it new, was, spare?
_SPARE = re.compile("[1-9][0-9]{0,9}")
_LONGEST, _LONGEST_NAME = 4096, 255  # bytes: PATH_MAX, NAME_MAX


def _is_inside(path: str) -> bool:
    """Return whether a path leads to something in the workspace, in the form that a Change has."""
    names = os.fsencode(path).split(b"/")
    has_names = all(0 < len(name) <= _LONGEST_NAME and name not in (b".", b"..") for name in names)
    return has_names and len(path) <= _LONGEST and b"\0" not in os.fsencode(path)


def _numbers(row: list[object]) -> tuple[int, ...]:
    numbers = tuple(number for number in row if type(number) is int and abs(number) < 1 << 94)  # 64 bits of seconds
    if len(numbers) < len(row):
        raise ValueError(f"{repr(row)[:200]} isn't the identity of a file")
    return numbers


class ChangedError(OSError):
    """Another process has changed the file of a step."""


def identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_mtime_ns, status.st_size, status.st_ctime_ns


def _is(status: os.stat_result | None, known: tuple[int, ...]) -> bool:
    """Return whether this is the known file, unchanged. It may have been moved, which changes its ctime.

    Moving a directory may change its mtime too.
    """
    if status is None:
        return False
    return status.st_ino == known[0] and (stat.S_ISDIR(status.st_mode) or identity(status)[:3] == known[:3])


class Steps:
    """Does steps, or undoes them. What is in the spare shows whether a step has been done.

    Two times, in nanoseconds, tell another process's changes, which are never dropped:

    began: when the transaction began. What was changed in the workspace since then is another's.
    certain: when everything had been copied. What was changed since then, in files that steps have brought in, is too.
    """

    def __init__(self, real: Tree, spare: str, began: int, certain: int) -> None:
        self._real, self._spare, self._began, self.certain = real, spare, began, certain
        self.kept: list[str] = []  # what was there before, and undoing has put beside another process's file

    def sync(self) -> None:
        """Wait until the device has everything."""
        files.sync(self._real.fd)

    def do(self, step: Step) -> None:
        """Do a step, unless it is done already; raises OSError."""
        if step.what == "mode":
            self._mode(step.path, step.mode)
            return
        with self._real.parent(step.path) as (above, name), self._real.dir(self._spare) as spare:
            found = _lstat(spare, step.spare)
            if step.what == "drop":
                if found is None:
                    self._drop(step, above, name, spare)
            elif found is not None and found.st_ino == step.new[0]:
                if step.what == "swap":
                    self._check(step, above, name)
                    self._exchange(step, above, name, spare)
                else:
                    _put(spare, step.spare, above, name)
            elif found is None and step.what == "swap":
                raise ChangedError(errno.ESTALE, "what was copied has gone", step.path)

    def _check(self, step: Step, above: int, name: str) -> None:
        """Raise ChangedError if the file isn't the one that was looked at, or anything below it has been changed."""
        status = _lstat(above, name)
        count = 3 if status is not None and _has_names(status) else 4  # an earlier step may have moved another name
        is_same = status is not None and identity(status)[:count] == step.was[:count]
        is_directory = status is not None and stat.S_ISDIR(status.st_mode)
        if not is_same or (is_directory and _is_newer(self._real, step.path, self._began)):
            raise ChangedError(errno.ESTALE, "changed in the workspace meanwhile", step.path)

    def _drop(self, step: Step, above: int, name: str, spare: int) -> None:
        self._check(step, above, name)
        if step.mode:
            self._mode(step.path, step.mode)
        _put(above, name, spare, step.spare)
        if not _is(_lstat(spare, step.spare), step.was):
            _put(spare, step.spare, above, name)
            raise ChangedError(errno.ESTALE, "changed in the workspace meanwhile", step.path)

    def _exchange(self, step: Step, above: int, name: str, spare: int) -> None:
        files.rename(spare, step.spare, above, name, EXCHANGE)
        if not _is(_lstat(spare, step.spare), step.was):
            files.rename(spare, step.spare, above, name, EXCHANGE)
            raise ChangedError(errno.ESTALE, "changed in the workspace meanwhile", step.path)

    def undo(self, step: Step) -> None:
        """Undo a step, if it has been done; raises OSError.

        If another process has put something there meanwhile, or changed it, that stays. What was there before is put
        beside it.
        """
        if step.what == "mode":
            self._mode_back(step)
            return
        with self._real.parent(step.path) as (above, name), self._real.dir(self._spare) as spare:
            found, there = _lstat(spare, step.spare), _lstat(above, name)
            if step.what != "drop" and (found is None) == (step.what == "swap"):
                return  # it hasn't been done, or nothing shows any more that it has
            if step.what == "swap" and found is not None and found.st_ino == step.new[0]:
                return
            if step.what == "drop" and found is None:
                return
            if step.what != "drop" and self._is_ours(there, step):
                files.rename(above, name, spare, step.spare, EXCHANGE if step.what == "swap" else 0)
            elif step.what != "put":
                self._restore(step, above, name, spare)
                if step.mode and there is None:
                    self._mode(step.path, step.old_mode)

    def _is_ours(self, there: os.stat_result | None, step: Step) -> bool:
        """Return whether what a step has put there is unchanged."""
        if there is None or not _is(there, step.new):
            return False
        return not stat.S_ISDIR(there.st_mode) or not _is_newer(self._real, step.path, self.certain)

    def _restore(self, step: Step, above: int, name: str, spare: int) -> None:
        try:
            _put(spare, step.spare, above, name)
        except ChangedError:
            _put(spare, step.spare, above, name + self._spare)
            self.kept.append(step.path + self._spare)

    def _mode(self, path: str, mode: int) -> None:
        with self._real.parent(path) as (above, name):
            files.set_mode(above, name, stat.S_IFDIR, mode)

    def _mode_back(self, step: Step) -> None:
        status = self._real.stat(step.path)
        if status is not None and stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) == step.mode:
            self._mode(step.path, step.old_mode)


def _has_names(status: os.stat_result) -> bool:
    """Return whether it has more than one name: then a move of another one changes its ctime too."""
    return status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode)


def _is_newer(tree: Tree, path: str, since: int) -> bool:
    """Return whether anything below a directory has been changed since then, in nanoseconds."""
    todo = [path]
    with tree.walking():
        while todo:
            here = todo.pop()
            for name, status in tree.entries(here):
                if (status.st_mtime_ns if _has_names(status) else status.st_ctime_ns) >= since:
                    return True
                if stat.S_ISDIR(status.st_mode):
                    todo.append(files.join(here, name))
    return False


def _lstat(above: int, name: str) -> os.stat_result | None:
    with contextlib.suppress(FileNotFoundError):
        return os.lstat(name, dir_fd=above)
    return None


def _put(spare: int, name: str, above: int, new: str) -> None:
    try:
        files.rename(spare, name, above, new, NOREPLACE)
    except OSError as error:
        if error.errno == errno.EEXIST:
            raise ChangedError(errno.EEXIST, "was made in the workspace meanwhile", new) from error
        if error.errno not in NO_FLAGS:
            raise
        if _lstat(above, new) is not None:
            raise ChangedError(errno.EEXIST, "was made in the workspace meanwhile", new) from error
        files.rename(spare, name, above, new)
