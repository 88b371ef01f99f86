"""Changes to a workspace that lie in an overlay's upper directory: how transactions and tasks show and commit them."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from nsbox._base.checks import check_size
from nsbox._base.display import printable, shown, type_phrase, visible
from nsbox._base.errors import CommitError, ConflictError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._files.files import Tree
from nsbox._homes.reach import check_place
from nsbox._logs import logger, observers
from nsbox._transaction import commit as transaction_commit
from nsbox._transaction import patch as transaction_patch
from nsbox._transaction.change import Change
from nsbox._transaction.changes import Comparison
from nsbox._transaction.store import Store, locked_workspace

if TYPE_CHECKING:
    from typing import Protocol

    from nsbox._policy.policy import Policy

    class Overlaid(Protocol):
        """A way in which commands start, with an overlay on the workspace."""

        policy: Policy
        started: int  # commands so far

        def at_rest(self, where: str | None = None) -> contextlib.AbstractContextManager[None]: ...


class Review:
    """The methods that show the changes and bring them in.

    workspace: the directory that they are about.
    _store: where they are. _real: the workspace. _mode: its permission bits at the beginning. _began: that moment, in
    nanoseconds, as the workspace's file system stamps inodes.
    _base, _named: the directory of the stores, without links and as it was named.
    _reviewed: what diff() or patch() returned last. _shown: of these, the paths whose contents it showed. _read_at: how
    many commands had been started then, if all contents were read.
    """

    workspace: str
    _store: Store | None
    _real: Tree
    _mode: int
    _began: int
    _base: str
    _named: str
    _lock: contextlib.AbstractContextManager[object]
    _reviewed: list[Change] | None = None
    _shown: frozenset[str] = frozenset()
    _read_at: int | None = None

    def _overlaid(self) -> Overlaid:
        """Return the way in which commands start; raises ValueError if it is over."""
        raise NotImplementedError

    def _end(self) -> None:
        """End it, and drop the changes, unless recover() needs them."""
        raise NotImplementedError

    @contextlib.contextmanager
    def _trees(self) -> Iterator[tuple[Tree, Tree]]:
        with self._lock:
            self._overlaid()
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
            comparison = Comparison(*trees, moment=self._overlaid().started)
            changes = comparison.with_details(comparison.with_renames(comparison.changes()))
            self._reviewed = changes = self._sure(comparison, changes)
            self._shown = frozenset()
            self._read_at = self._time_of(comparison, changes)
            return changes.copy()

    def _time_of(self, comparison: Comparison, changes: list[Change]) -> int | None:
        return None if comparison.has_unread(changes) else self._overlaid().started

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
            comparison = Comparison(*trees, moment=self._overlaid().started)
            changes = comparison.with_details(comparison.with_renames(comparison.changes()))
            patch = transaction_patch.Patch(*trees, most, changes)
            with trees[0].walking(), trees[1].walking():
                text = "".join(patch.of(change) for change in changes)
                changes = self._sure(comparison, changes)
                self._reviewed = [comparison.as_shown(change, patch.shown.get(change.path)) for change in changes]
                self._shown = frozenset(patch.shown)
                self._read_at = self._time_of(comparison, changes)
            return visible(text) if escaped else text

    def commit(
        self,
        *,
        expected: Iterable[Change] | None = None,
        keep_set_ids: bool = False,
        on_progress: Callable[[int, int, str], None] | None = None,
    ) -> list[Change]:
        """Return the changes after bringing all of them into the workspace, or none. A success ends the transaction.

        Changed files are replaced (rename(2)): a process that has one open keeps the old contents. Sockets and device
        nodes stay behind.

        expected: what diff() returned; if contents or attributes differ from it, that is a ConflictError. Default: what
            diff() or patch() showed last, even if commands have run since; if neither was called, all changes.
        keep_set_ids: True keeps the set-user-ID and set-group-ID bits of files; otherwise they are dropped. Default:
            False.
        on_progress: called before each change is copied, with how many are done and are to do, and the path. What it
            raises ends the commit before the workspace has changed. Default: None.

        Raises:
        ConflictError, if something that was changed here has also changed in the workspace since the transaction began.
        CommitError, if a step fails, after undoing the others; or if a process has one of its files open for writing.
        PolicyError, if by now commands of another policy can write to where the changes are kept.
        BusyError, a ValueError, while commands run.

        After these errors nothing is lost and the transaction goes on, unless a CommitError says that not all could be
        undone. Paths of undone steps may be in conflict the next time.
        """
        wanted = None if expected is None else _checked(expected)
        with self._trees() as (upper, real), self._at_rest(), self._locked():
            assert self._store is not None
            check_place(self._overlaid().policy, self._base, self._named)  # it may have become writable in the meantime
            wanted, shown = (self._reviewed, self._shown) if wanted is None else (wanted, frozenset())
            comparison = Comparison(upper, real, moment=self._overlaid().started, shown=shown)
            raw = comparison.changes()
            joined = comparison.with_renames(raw)
            changes = comparison.with_details(joined, self._seals(wanted))
            if wanted is not None:
                _check_reviewed(wanted, changes)
            _check_attributes(changes)
            renamed = {change.path for change in changes if change.kind == "renamed"}

            def check(*, is_top_ours: bool = True) -> None:
                conflicts = comparison.conflicts(raw, renamed, self._began, self._mode, is_top_ours=is_top_ours)
                if conflicts:
                    raise ConflictError(conflicts)

            check(is_top_ours=False)
            ways = (check, partial(_other_copies, comparison, joined, changes, wanted), keep_set_ids, on_progress)
            try:
                if raw:
                    self._store.settle()
                    transaction_commit.commit(self._store, upper, real, raw, self._began, *ways)
            except BaseException:
                if self._store.has_journal:
                    self._end()
                raise
            self._end()
        self._note_commit(changes)
        return changes

    def _seals(self, wanted: list[Change] | None) -> dict[str, str | None] | None:
        """Return the digests with which the copies are compared, if nothing has to be read for them.

        That is so if nobody has reviewed anything, or if no command has been started since the last review. Then the
        copies alone are read; what they are made of has changed only if it was reviewed while a process could write.
        """
        if wanted is None:
            return {}
        seals = {change.path: change.digest for change in wanted}
        reviewed = {change.path: change.digest for change in self._reviewed or ()}
        return seals if seals == reviewed and self._read_at == self._overlaid().started else None

    def _note_commit(self, changes: list[Change]) -> None:
        logger.info("a commit has brought %d changes into %s", len(changes), printable(self.workspace))
        if observers.active:
            rows = [(change.kind, change.path, change.old_path) for change in changes]
            observers.note("commit", "", workspace=self.workspace, changes=rows)

    @contextlib.contextmanager
    def _at_rest(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            try:
                where = os.readlink(f"/proc/self/fd/{self._real.fd}")  # if it was moved, the mount on it moved too
                stack.enter_context(self._overlaid().at_rest(where))
            except OSError as error:
                raise CommitError(error, "make the changes read-only") from error
            yield


def _checked(expected: Iterable[Change]) -> list[Change]:
    changes = list(expected)
    for change in changes:
        if not isinstance(change, Change):
            raise TypeError(f"expected has {type_phrase(change)}, must have what diff() returns")
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


def _other_copies(
    comparison: Comparison,
    joined: list[Change],
    changes: list[Change],
    wanted: list[Change] | None,
    spare: str,
    copies: dict[str, str],
) -> list[str]:
    """Return what Comparison.other_copies() does, or raise ConflictError if what they are copies of isn't as reviewed.

    joined, changes: the changes with renames, without and with their details. A process may have been at work when they
    were reviewed.
    """
    others = comparison.other_copies(changes, spare, copies)
    if others and wanted is not None:
        _check_reviewed(wanted, comparison.with_details(joined))
    return others


def _check_attributes(changes: list[Change]) -> None:
    """Raise CommitError for what can't be brought in: attributes of a directory that stays."""
    for change in changes:
        if change.attributes and change.type == change.old_type == "directory":
            names = ", ".join(change.attributes)
            error = OSError(errno.ENOTSUP, f"a directory that was there before can't get other attributes: {names}")
            error.filename = change.path
            raise CommitError(error, "look at the changes")
