"""How the changes of a transaction get into the workspace: all of them or none.

A commit has these stages:

1. Copy what is new into a directory in the workspace, its spare (Staging). Compare the copies with what was reviewed,
   and wait until the device has them.
2. Look one last time whether another process has changed the workspace. If so, nothing is done.
3. Write the journal, which has the steps. From here on, the changes are certain.
4. Do the steps (steps.py). Each is one system call: it is atomic, its result shows that it has been done, and it can be
   undone. It notices if another process has changed its file meanwhile.
5. Rename the journal, and remove the spare, with the files that the steps have replaced.

If stage 4 fails, _take_back() undoes the steps in reverse order, and then drops the journal. If the process ends before
stage 3, the workspace is untouched. If it ends later, recover() finds the journal and repeats stage 4: a step that has
been done is left alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable

from nsbox._base.display import shown
from nsbox._base.errors import CommitError, ConflictError
from nsbox._files import copies, files
from nsbox._files.files import EXCHANGE, NO_FLAGS, Tree
from nsbox._logs import logger
from nsbox._transaction.change import Change
from nsbox._transaction.steps import OPEN, ChangedError, Step, Steps, identity
from nsbox._transaction.store import VERSION, Store, left_behind, locked_workspace

# ---- from changes to steps


class Staging:
    """Copies what is new into the spare directory, and says which steps bring it in."""

    def __init__(self, upper: Tree, real: Tree, spare: str, *, keep_set_ids: bool = False) -> None:
        self._upper, self._real, self._spare = upper, real, spare
        self._keep_set_ids = keep_set_ids
        self._links: dict[tuple[int, int], str] = {}
        self._n = 0
        self.copies: dict[str, str] = {}  # names in the spare, by path
        self._closed: dict[str, int] = {}  # modes of directories that nothing can be moved into or out of, by path
        self._modes: dict[str, tuple[int, int]] = {}  # of directories, before and after, by path
        os.mkdir(spare, 0o700, dir_fd=real.fd)
        self._can_exchange = self._try_exchange()

    def _try_exchange(self) -> bool:
        """Return whether two files can change places in one step: not on NFS, or vfat."""
        with self._real.dir(self._spare) as fd:
            for name in ("a", "b"):
                os.mkdir(name, dir_fd=fd)
            try:
                files.rename(fd, "a", fd, "b", EXCHANGE)
            except OSError as error:
                if error.errno not in NO_FLAGS:
                    raise
                return False
            finally:
                for name in ("a", "b"):
                    os.rmdir(name, dir_fd=fd)
        return True

    def steps(self, changes: list[Change], tell: Callable[[int, int, str], None] | None = None) -> list[Step]:
        """Return the steps for all changes (without renames), after copying what is new: of a commit, what takes long.

        First come those that make closed directories writable, then the changes, parents first. The final modes of
        directories come last, children first. A directory that is copied, dropped or replaced takes everything below it
        along, in one step.

        tell: called before each change, with how many are done, how many there are, and its path.
        """
        moves: list[Step] = []
        whole = ""  # the directory whose step covers everything below it
        for i, change in enumerate(changes):
            if whole and change.path.startswith(whole):
                continue
            if tell is not None:
                tell(i, len(changes), change.path)
            if change.kind == "modified" and change.type == change.old_type == "directory":
                self._modes[change.path] = (change.old_mode or 0, change.mode)
                continue
            whole = change.path + "/"
            steps = self._of(change)
            moves += steps
            if steps:
                self._look_at_parent(change.path)
        opened = [Step("mode", path, mode=mode | OPEN, old_mode=mode) for path, mode in self._closed.items()]
        for path, mode in self._closed.items():
            self._modes[path] = (mode | OPEN, self._modes.get(path, (0, mode))[1])
        last = [Step("mode", path, mode=new, old_mode=old) for path, (old, new) in self._modes.items()]
        return [*opened, *moves, *sorted(last, key=lambda step: step.path, reverse=True)]

    def _look_at_parent(self, path: str) -> None:
        """Remember a directory of this user's that is read-only, as caches of packages are."""
        above = path.rpartition("/")[0] or "."
        status = self._real.stat(above)
        if status is not None and status.st_mode & OPEN != OPEN and status.st_uid == os.geteuid() != 0:
            self._closed[above] = stat.S_IMODE(status.st_mode)

    def _of(self, change: Change) -> list[Step]:
        old = self._real.stat(change.path)
        if change.kind == "deleted":
            return self._drop(change.path, old)
        if not copies.is_copied(self._mode(change.path)):
            return self._drop(change.path, old)
        self.copies[change.path] = name = self._name()
        copies.copy(
            self._upper, change.path, self._real, f"{self._spare}/{name}", self._links, keep_set_ids=self._keep_set_ids
        )
        with self._real.dir(self._spare) as fd:
            copy = os.lstat(name, dir_fd=fd)
            if change.type == "directory" and change.mode & OPEN != OPEN:
                copy = files.set_mode(fd, name, stat.S_IFDIR, change.mode | OPEN)
                self._modes[change.path] = (change.mode | OPEN, change.mode)
        if old is None:
            return [Step("put", change.path, name, identity(copy))]
        if self._can_exchange and not _is_closed(old):
            return [Step("swap", change.path, name, identity(copy), identity(old))]
        return [*self._drop(change.path, old), Step("put", change.path, name, identity(copy))]

    def _drop(self, path: str, old: os.stat_result | None) -> list[Step]:
        if old is None:
            return []
        mode = stat.S_IMODE(old.st_mode)
        modes = (mode | OPEN, mode) if _is_closed(old) else (0, 0)
        return [Step("drop", path, self._name(), (), identity(old), *modes)]

    def _mode(self, path: str) -> int:
        status = self._upper.stat(path)
        return status.st_mode if status is not None else 0

    def _name(self) -> str:
        self._n += 1
        return str(self._n)


def _is_closed(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode) and status.st_mode & OPEN != OPEN


# ---- a commit


def commit(
    store: Store,
    upper: Tree,
    real: Tree,
    changes: list[Change],
    began: int,
    check: Callable[[], None],
    other_copies: Callable[[str, dict[str, str]], list[str]],
    keep_set_ids: bool = False,
    tell: Callable[[int, int, str], None] | None = None,
) -> None:
    """Bring all changes into the workspace; raises CommitError and ConflictError.

    changes: without renames.
    began: when the transaction began, in nanoseconds, as the workspace's file system stamps inodes.
    check: raises if something in the workspace has changed meanwhile. It is called just before the journal is written.
    other_copies: returns the paths whose copies aren't what was reviewed; see Comparison.other_copies().
    keep_set_ids: whether files keep their set-user-ID and set-group-ID bits.
    tell: see Staging.steps(). What it raises ends the commit, before anything has changed.
    """
    if store.has_journal:
        raise CommitError(OSError(errno.EBUSY, "one is under way"), "commit", is_undone=False)
    steps: list[Step] = []
    worker = Steps(real, store.spare, began, 0)
    at = ["copy what is new into the workspace"]
    try:
        try:
            staging = Staging(upper, real, store.spare, keep_set_ids=keep_set_ids)
            steps = staging.steps(changes, tell)
            others = [(path, "isn't what was reviewed") for path in other_copies(store.spare, staging.copies)]
            if others:
                raise ConflictError(others, "another process has changed what was being copied into the workspace")
            files.sync(real.fd)
            worker = Steps(real, store.spare, began, files.start_of_time(real))
            check()
            store.write("journal", {"began": began, "certain": worker.certain, "steps": _rows(steps)})
            _carry_out(worker, steps, at)
        except BaseException as error:
            _take_back(store, worker, steps, at[-1], error)
            reported = _commit_error(error, at[-1], worker)
            if reported is error:
                raise
            raise reported from error
        _finish(store)
    finally:
        if not store.has_journal:
            store.clean(real)


def _rows(steps: list[Step]) -> list[list[object]]:
    """Return the steps as the journal has them; raises OSError if they couldn't be read back after a crash."""
    rows = [step.row() for step in steps]
    try:
        for row in rows:
            Step.of_row(row)
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error)) from None
    return rows


def _carry_out(worker: Steps, steps: list[Step], at: list[str]) -> None:
    for step in steps:
        at.append(f"{step.what} {step.path}")
        worker.do(step)
    at.append("sync")
    worker.sync()


def _take_back(store: Store, worker: Steps, steps: list[Step], at: str, cause: BaseException) -> None:
    """Undo all steps and drop the journal; raises CommitError if that can't be done."""
    try:
        if store.has_journal:
            for step in reversed(steps):
                worker.undo(step)
            worker.sync()
            store.withdraw()
    except OSError as error:
        raise CommitError(error, f"{at} failed ({cause}), and so did undoing it", is_undone=False) from cause


def _commit_error(error: BaseException, at: str, worker: Steps) -> BaseException:
    """Return the error that commit() raises for this one, and log what undoing has left beside others' files."""
    if worker.kept:
        logger.warning(
            "another process has changed what a commit had brought in; what was there before is kept as: %s",
            ", ".join(map(shown, worker.kept)),
        )
    if isinstance(error, ChangedError):
        return ConflictError([(at.partition(" ")[2], "changed")])
    return CommitError(error, at) if isinstance(error, OSError) else error


def _finish(store: Store) -> None:
    try:
        store.finish()
    except OSError as error:
        raise CommitError(error, "finish the journal", is_undone=False) from error


# ---- after a crash


def recover(base: str) -> list[tuple[str, CommitError]]:
    """Finish or undo the commits below base whose processes have ended, and return what failed, by workspace.

    A commit is completed if its journal had been written. If it can't be completed any more, it is undone. Raises
    PolicyError if another user may write to base.
    """
    failed: list[tuple[str, CommitError]] = []
    for store in left_behind(base):
        workspace = ""
        try:
            about = store.read("about")
            if about is not None:
                if not isinstance(about, dict) or about.get("version") != VERSION:
                    raise ValueError("it is of another version of nsbox")
                workspace = str(about["workspace"])
                _recover(store, workspace, int(about["ino"]))
            store.end()
        except CommitError as error:
            failed.append((workspace, error))
        except (OSError, ValueError, KeyError, ConflictError) as error:
            workspace = workspace or store.claim()
            cause = error if isinstance(error, OSError) else OSError(errno.EIO, str(error))
            failed.append((workspace, CommitError(cause, f"recover the transaction in {store.path}", is_undone=False)))
    return failed


def _recover(store: Store, workspace: str, ino: int) -> None:
    journal = store.read("journal")
    try:
        real = files.opened_plainly(workspace)
    except (FileNotFoundError, NotADirectoryError):
        real = None
    with real or contextlib.nullcontext():
        if real is None or os.fstat(real.fd).st_ino != ino:
            if journal is not None:
                gone = OSError(errno.ENOENT, "the workspace has gone", workspace)
                raise CommitError(gone, f"finish the commit in {store.path}", is_undone=False)
            return
        if isinstance(journal, dict):
            _redo(store, real, journal)
        elif journal is not None:
            raise ValueError("its journal isn't one")
        store.clean(real)


def _redo(store: Store, real: Tree, journal: dict[str, object]) -> None:
    rows = journal.get("steps")
    if not isinstance(rows, list):
        raise ValueError("its journal isn't one")
    steps = [Step.of_row(row) for row in rows]
    worker = Steps(real, store.spare, int(str(journal["began"])), int(str(journal["certain"])))
    if steps and real.stat(store.spare) is None:
        store.withdraw()  # nothing is left to be done, or undone
        gone = OSError(errno.ENOENT, "what was copied into the workspace has been removed", store.spare)
        raise CommitError(gone, "finish an interrupted commit", is_undone=False)
    logger.warning("a commit into the workspace of %s was interrupted; it is completed now", store.path)
    at = [""]
    with locked_workspace(os.path.dirname(store.path), os.fstat(real.fd)):
        try:
            _carry_out(worker, steps, at)
        except BaseException as error:
            _take_back(store, worker, steps, at[-1], error)
            if not isinstance(error, OSError):
                raise
            logger.warning(
                "it can't be completed any more, and has been undone: %s", _commit_error(error, at[-1], worker)
            )
            return
        _finish(store)
