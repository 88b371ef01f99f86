"""Transaction: commands whose changes to the workspace stay apart until you commit them.

    with box.transaction() as tx:
        tx.run(["npm", "install", "left-pad"])
        for change in tx.diff():
            print(change)
        if approved(tx.patch()):
            tx.commit()  # what patch() showed, or nothing

Inside, the workspace is an overlay (the kernel's overlayfs): everything that a command writes goes elsewhere, at the
speed of the file system. Leaving the block drops what wasn't committed.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from functools import partial

from nsbox._base.checks import check_path, check_size
from nsbox._base.display import shown, visible
from nsbox._base.errors import CommitError, ConflictError, PolicyError, Reason, UnavailableError
from nsbox._base.forks import Alive
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.paths import is_below
from nsbox._base.stdlib import RLock
from nsbox._core import abi
from nsbox._files.files import Tree, opened_plainly, start_of_time
from nsbox._filetools.methods import FileTools
from nsbox._kept.commands import Commands
from nsbox._machine.caller import transactions_dir
from nsbox._paths.resolution import Resolution, absolute
from nsbox._transaction import commit as transaction_commit
from nsbox._transaction import patch as transaction_patch
from nsbox._transaction.change import Change
from nsbox._transaction.changes import Comparison
from nsbox._transaction.overlay import OverlayWay, check_marks, check_place
from nsbox._transaction.store import Store, locked_workspace

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from nsbox._filetools.files import Files
    from nsbox._policy.policy import Policy
    from nsbox._relay.relay import Relay

__all__ = ["Change", "Transaction", "recover"]


def _named(dir: str | os.PathLike[str] | None) -> str:
    """Return the directory for changes as it was named, with links unresolved."""
    return transactions_dir() if dir is None else check_path("dir", os.path.normpath(absolute(os.fspath(dir))))


def recover(dir: str | os.PathLike[str] | None = None) -> None:
    """Finish interrupted commits, and remove what transactions left behind that were never ended.

    A commit whose journal was written is completed or, if that is no longer possible, undone. Every transaction does
    the same for its directory before it begins.

    dir: as for Sandbox.transaction(). Default: the same as there.

    Raises CommitError for the first commit that can be neither completed nor undone. Nothing of it is lost, and the
    next call tries again.
    """
    for _, error in transaction_commit.recover(os.path.realpath(_named(dir))):
        raise error


def recover_for(workspace: str, base: str) -> None:
    """Recover below base; raise only an error about this workspace, and log the others as warnings."""
    mine = []
    for other, error in transaction_commit.recover(base):
        if other == workspace:
            mine.append(error)
        else:
            logging.getLogger("nsbox").warning("%s: %s", other, error)
    if mine:
        raise mine[0]


class Transaction(Commands, FileTools):
    """Commands whose changes to one directory are kept aside. Sandbox.transaction() makes it; threads may share it.

    It starts commands by the same methods as Sandbox, and every function with a policy= parameter accepts it too. Each
    command has its own sandbox; they share the overlay. Anything else that the policy lets them write to changes at
    once. The file tools of Sandbox read and change files as commands see them, so what they write waits for a commit
    too; each call starts a sandbox of its own for that.

    workspace: the directory, as an absolute path.
    """

    keeps: object = None  # the Sandbox that it belongs to

    def __init__(
        self,
        policy: Policy,
        workspace: str | None,
        dir: str | os.PathLike[str] | None,
        relay: Relay | None = None,
    ) -> None:
        self._way: OverlayWay | None = None
        self._creator = os.getpid()
        self._reviewed: list[Change] | None = None  # what diff() or patch() returned last
        self._shown: frozenset[str] = frozenset()  # of those, the paths whose contents it showed
        self._lock = RLock()
        if not abi.on_linux:
            raise UnavailableError(Reason("a transaction needs overlayfs, which only Linux has"))
        if workspace is None and policy.workdir is None:
            raise PolicyError("workspace", "is needed: the policy has no working directory")
        names = Resolution()
        path = check_path("workspace", os.path.normpath(absolute(workspace or policy.workdir or "")))
        self.workspace = names.entry("workspace", path, must_exist=False)
        names.check(policy.write)
        self._named = named = _named(dir)
        self._base = base = os.path.realpath(named)
        if is_below(base, self.workspace):
            raise PolicyError("dir", f"{base} lies in the workspace; give another directory")
        check_place(policy, base, named)
        recover_for(self.workspace, base)
        self._real = opened_plainly(self.workspace)  # the name may lead elsewhere later
        self._store: Store | None = None
        try:
            check_marks(self._real, self.workspace)
            status = os.fstat(self._real.fd)
            self._mode = stat.S_IMODE(status.st_mode)
            self._store = store = Store.make(base, self.workspace, status)
            self._way = OverlayWay(policy, self.workspace, base, store.upper, store.work, relay)
            if not os.path.samestat(status, os.lstat(self.workspace)):
                raise FileNotFoundError(errno.ESTALE, "has become another directory", self.workspace)
            self._started = start_of_time(self._real)
        except BaseException:
            self.discard()
            raise
        _all.add(self)

    def way(self) -> OverlayWay:
        """Return the way in which commands start; raises ValueError if the transaction is over."""
        if self._way is None:
            raise ValueError("the transaction is over")
        return self._way

    @property
    def policy(self) -> Policy:  # type: ignore[override]
        """What commands may do. Raises ValueError if the transaction is over."""
        return self.way().policy

    @contextlib.contextmanager
    def _files(self) -> Iterator[Files]:
        from nsbox._filetools.files import Files as GuardedFiles
        from nsbox._filetools.ground import ViewGround
        from nsbox._kept.session import SessionWay

        way = self.way()
        root = SessionWay(way.policy, start=way.spawn)
        try:
            ground = ViewGround(root)
            yield GuardedFiles(way.policy, lambda _: ground)
        finally:
            root.close()

    @contextlib.contextmanager
    def _trees(self) -> Iterator[tuple[Tree, Tree]]:
        with self._lock:
            self.way()
            assert self._store is not None
            with Tree(self._store.upper, forceful=True) as upper, Tree(self._real.fd) as real:
                yield upper, real

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        return locked_workspace(self._base, os.fstat(self._real.fd))

    def diff(self) -> list[Change]:
        """Return the changes, sorted by path. A file in which only the time differs hasn't changed.

        The next commit() without `expected` brings in exactly these, or nothing. New and changed files are read, for
        their digests. While commands run, the list may show their work half done.

        Raises OSError, and ValueError if the transaction is over.
        """
        with self._trees() as trees:
            comparison = Comparison(*trees, moment=self.way().started)
            changes = comparison.with_details(comparison.with_renames(comparison.changes()))
            self._reviewed = changes = self._sure(comparison, changes)
            self._shown = frozenset()
            return changes.copy()

    def _sure(self, comparison: Comparison, changes: list[Change]) -> list[Change]:
        """Return the changes; while a process may write, those that are certain only at rest count as changed."""
        if not comparison.has_unread(changes):
            return changes
        try:
            with self._at_rest():
                return changes
        except (ValueError, CommitError):
            return comparison.unsure(changes)

    def patch(self, *, max_size: int | str = "1M", escaped: bool = False) -> str:
        """Return the changes as a unified diff for git apply.

        The next commit() without `expected` brings in exactly these changes, or nothing. What git's format can't
        express has a line that begins with "# ": directories of unusual modes or without files, FIFOs, extended
        attributes, access lists, hard links. Bytes that aren't UTF-8 become surrogates; os.fsencode() restores them.

        max_size: bytes, or a str such as "1M". Of larger files, files with NUL bytes, and all files after the first 256
            MiB, the diff only says that they differ. Default: 1 MiB.
        escaped: True writes invisible characters, such as escape sequences, and those that reverse text as C escapes.
            That is for a terminal or a human reader; no program can apply it. Default: False.

        Raises OSError, PolicyError for a max_size that makes no sense, and ValueError if the transaction is over.
        """
        most = check_size("max_size", max_size)
        with self._trees() as trees:
            comparison = Comparison(*trees, moment=self.way().started)
            changes = comparison.with_details(comparison.with_renames(comparison.changes()))
            patch = transaction_patch.Patch(*trees, most, changes)
            with trees[0].walking(), trees[1].walking():
                text = "".join(patch.of(change) for change in changes)
                changes = self._sure(comparison, changes)
                self._reviewed = [comparison.as_shown(change, patch.shown.get(change.path)) for change in changes]
                self._shown = frozenset(patch.shown)
            return visible(text) if escaped else text

    def commit(self, *, expected: Iterable[Change] | None = None, keep_set_ids: bool = False) -> list[Change]:
        """Return the changes after bringing all of them into the workspace, or none. A success ends the transaction.

        Changed files are replaced (rename(2)): a process that has one open keeps the old contents. Sockets and device
        nodes stay behind.

        expected: what diff() returned; if contents or attributes differ from it, that is a ConflictError. Default: what
            diff() or patch() showed last, even if commands have run since; if neither was called, all changes.
        keep_set_ids: True keeps the set-user-ID and set-group-ID bits of files; otherwise they are dropped. Default:
            False.

        Raises:
        ConflictError, if something that was changed here has also changed in the workspace since the transaction began.
        CommitError, if a step fails, after undoing the others; or if a process has one of its files open for writing.
        PolicyError, if by now commands of another policy can write to where the changes are kept.
        ValueError, while commands run.

        After these errors nothing is lost and the transaction goes on, unless a CommitError says that not everything
        could be undone. Paths of undone steps may be in conflict the next time.
        """
        wanted = None if expected is None else _checked(expected)
        with self._trees() as (upper, real), self._at_rest(), self._locked():
            assert self._store is not None
            check_place(self.way().policy, self._base, self._named)  # it may have become writable in the meantime
            wanted, shown = (self._reviewed, self._shown) if wanted is None else (wanted, frozenset())
            comparison = Comparison(upper, real, moment=self.way().started, shown=shown)
            raw = comparison.changes()
            changes = comparison.with_details(comparison.with_renames(raw))
            if wanted is not None:
                _check_reviewed(wanted, changes)
            _check_attributes(changes)
            renamed = {change.path for change in changes if change.kind == "renamed"}

            def check(*, is_top_ours: bool = True) -> None:
                conflicts = comparison.conflicts(raw, renamed, self._started, self._mode, is_top_ours=is_top_ours)
                if conflicts:
                    raise ConflictError(conflicts)

            check(is_top_ours=False)
            copies = partial(comparison.other_copies, changes)
            try:
                if raw:
                    transaction_commit.commit(self._store, upper, real, raw, self._started, check, copies, keep_set_ids)
            except BaseException:
                if self._store.has_journal:
                    self.discard()
                raise
            self.discard()
        return changes

    @contextlib.contextmanager
    def _at_rest(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            try:
                where = os.readlink(f"/proc/self/fd/{self._real.fd}")  # if it was moved, the mount on it moved too
                stack.enter_context(self.way().at_rest(where))
            except OSError as error:
                raise CommitError(error, "make the changes read-only") from error
            yield

    def discard(self, *, _is_late: Callable[[], bool] = sys.is_finalizing) -> None:
        """End the transaction: kill commands that still run, and drop their changes.

        Changes that a commit could neither complete nor undo are kept: they wait for recover().
        """
        if _is_late():  # the kernel ends the commands, and the next recover() drops their changes
            self._way = None
            return
        with self._lock:
            way, self._way = self._way, None
        if self._creator == os.getpid():
            self._end_calls()
        with self._lock:
            if way is not None:
                way.close()
            store, self._store = self._store, None
            if store is not None and self._creator == os.getpid():
                store.end()
            self._real.close()

    def __enter__(self) -> Transaction:
        self.way()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._way is not None:
            self.discard()

    def __del__(self, *, _is_late: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "_way", None) is None or _is_late():
            return  # at the interpreter's exit it is left to the next recover()
        import warnings

        warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)
        self.discard()

    def __repr__(self) -> str:
        return f"<nsbox.Transaction {'over' if self._way is None else 'of'} {self.workspace}>"

    def after_fork(self) -> None:
        """End it in a forked child: the transaction belongs to the parent."""
        self._forget_calls()
        self._lock = RLock()
        way, self._way = self._way, None
        if way is not None:
            way.forget()
        store, self._store = self._store, None
        if store is not None:
            store.let_go()
        self._real.close()


def _checked(expected: Iterable[Change]) -> list[Change]:
    changes = list(expected)
    for change in changes:
        if not isinstance(change, Change):
            raise TypeError(f"expected has a {type(change).__name__}, must have what diff() returns")
        if change.digest is None and change.kind != "deleted":
            raise ValueError(f"expected has a change of {shown(change.path)} without a digest: it isn't from diff()")
    return changes


def _check_reviewed(wanted: list[Change], present: list[Change]) -> None:
    """Raise ConflictError if the changes present aren't the reviewed ones, down to the contents."""
    old, new = ({change.path: change for change in changes} for changes in (wanted, present))
    other = {
        path
        for path in old.keys() | new.keys()
        if old.get(path) != new.get(path) or old[path].digest != new[path].digest
    }
    if other:
        in_order = sorted(other, key=lambda path: path.replace("/", "\0"))  # as diff() has them
        rows = [(path, "isn't what was reviewed") for path in in_order]
        what = "what diff() and patch() showed has changed since"
        raise ConflictError(rows, what, "look again by diff() or patch(), then commit, or pass expected=")


def _check_attributes(changes: list[Change]) -> None:
    """Raise CommitError for what can't be brought in: attributes of a directory that stays."""
    for change in changes:
        if change.attributes and change.type == change.old_type == "directory":
            names = ", ".join(change.attributes)
            error = OSError(errno.ENOTSUP, f"a directory that was there before can't get other attributes: {names}")
            error.filename = change.path
            raise CommitError(error, "look at the changes")


_all = Alive()
