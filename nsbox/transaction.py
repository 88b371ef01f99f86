"""Transaction: commands that change the workspace for themselves, until somebody says that it is to be so.

    with box.transaction() as tx:
        tx.run(["npm", "install", "left-pad"])
        for change in tx.diff():
            print(change)
        if approved(tx.patch()):
            tx.commit()  # what patch() has shown, or nothing

Inside, the workspace is an overlay (overlayfs of the kernel): all that a command writes goes elsewhere, at the speed of
the file system. Leaving the block drops it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import sys
import weakref
from _collections_abc import Iterable, Iterator
from _thread import RLock
from functools import partial

from nsbox import _commit, _patch
from nsbox._base.checks import check_path, check_size
from nsbox._base.display import shown, visible
from nsbox._base.errors import CommitError, ConflictError, PolicyError, Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.paths import is_below
from nsbox._change import Change
from nsbox._changes import Comparison
from nsbox._commands import Commands
from nsbox._core import abi
from nsbox._files.files import Tree, opened_plainly, start_of_time
from nsbox._machine.caller import transactions_dir
from nsbox._overlay import OverlayWay, check_marks, check_place
from nsbox._paths.resolution import Resolution, absolute
from nsbox._store import Store, locked_workspace

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from nsbox._policy.policy import Policy
    from nsbox._relay.relay import Relay

__all__ = ["Change", "Transaction", "recover"]


def _named(given: str | os.PathLike[str] | None) -> str:
    """Return where changes are to be kept, as it was named."""
    return transactions_dir() if given is None else check_path("dir", os.path.normpath(absolute(os.fspath(given))))


def recover(dir: str | os.PathLike[str] | None = None) -> None:
    """Finish commits that were interrupted, and remove what transactions have left behind that ended without a word.

    dir: as Sandbox.transaction() takes it. Each transaction that begins there does the same before. A commit whose
    journal was written is completed or, where that isn't possible any more, undone. Raises CommitError for the first
    that can be neither; nothing of it is lost, and the next call tries again.
    """
    for _, error in _commit.recover(os.path.realpath(_named(dir))):
        raise error


def recover_for(workspace: str, base: str) -> None:
    """Do so below base; raise only what is about this workspace, and warn of the rest."""
    mine = []
    for other, error in _commit.recover(base):
        if other == workspace:
            mine.append(error)
        else:
            logging.getLogger("nsbox").warning("%s: %s", other, error)
    if mine:
        raise mine[0]


class Transaction(Commands):
    """Commands whose changes to one directory are kept aside. Sandbox.transaction() makes it; threads may share it.

    Its methods that start commands are those of Sandbox, and every function that takes policy= takes it too. Each
    command has a sandbox of its own; what they share is the overlay. What else the policy lets them write to is changed
    at once.
    """

    keeps: object = None  # the Sandbox of which it is a transaction

    def __init__(
        self,
        policy: Policy,
        workspace: str | None,
        dir: str | os.PathLike[str] | None,
        relay: Relay | None = None,
    ) -> None:
        self._way: OverlayWay | None = None
        self._creator = os.getpid()
        self._reviewed: list[Change] | None = None  # what diff() or patch() has told last
        self._shown: frozenset[str] = frozenset()  # of that, the paths whose contents it has told
        self._lock = RLock()
        if not abi.on_linux:
            raise UnavailableError(Reason("a transaction needs overlayfs, which only Linux has"))
        if workspace is None and policy.workdir is None:
            raise PolicyError("workspace", "is needed: the policy has no working directory")
        names = Resolution()
        given = check_path("workspace", os.path.normpath(absolute(workspace or policy.workdir or "")))
        self.workspace = names.entry("workspace", given, must_exist=False)
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
            found = os.fstat(self._real.fd)
            self._mode = stat.S_IMODE(found.st_mode)
            self._store = store = Store.make(base, self.workspace, found)
            self._way = OverlayWay(policy, self.workspace, base, store.upper, store.work, relay)
            if not os.path.samestat(found, os.lstat(self.workspace)):
                raise FileNotFoundError(errno.ESTALE, "has become another directory", self.workspace)
            self._started = start_of_time(self._real)
        except BaseException:
            self.discard()
            raise
        _all.add(self)

    def way(self) -> OverlayWay:
        """Return how commands are started; raises ValueError when the transaction is over."""
        if self._way is None:
            raise ValueError("the transaction is over")
        return self._way

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
        """Return what has changed, by path; raises OSError. A file that only has another time hasn't changed.

        While commands run it may be about what they have only half done. The contents of what is new or changed are
        read, for their digests. What it returns is what a commit() without `expected` brings in, or else nothing.
        """
        with self._trees() as trees:
            compared = Comparison(*trees, moment=self.way().started)
            told = compared.with_details(compared.with_renames(compared.changes()))
            self._reviewed = told = self._sure(compared, told)
            self._shown = frozenset()
            return told.copy()

    def _sure(self, compared: Comparison, told: list[Change]) -> list[Change]:
        """Return what was told. If somebody may be at work, what is certain only at rest counts as changed."""
        if not compared.has_unread(told):
            return told
        try:
            with self._at_rest():
                return told
        except (ValueError, CommitError):
            return compared.unsure(told)

    def patch(self, *, max_size: int | str = "1M", escaped: bool = False) -> str:
        """Return the changes as a unified diff that git apply takes; raises OSError.

        What git's form can't show has a line that begins with "# ": directories of unusual modes or without files,
        FIFOs, extended attributes, access lists, hard links. max_size: a file with more bytes than that, or with NUL
        bytes, is only said to differ; so are files after the first 256 MiB. Bytes that are no UTF-8 are there as
        surrogates: os.fsencode() gives them back. escaped: for a terminal, or for somebody who reads it. All that isn't
        seen, such as escape sequences, or turns text around, is written as in C; then no program can apply it.

        What it shows is what a commit() without `expected` brings in, or else nothing.
        """
        most = check_size("max_size", max_size)
        with self._trees() as trees:
            compared = Comparison(*trees, moment=self.way().started)
            told = compared.with_details(compared.with_renames(compared.changes()))
            one = _patch.Patch(*trees, most, told)
            with trees[0].walking(), trees[1].walking():
                text = "".join(one.of(change) for change in told)
                told = self._sure(compared, told)
                self._reviewed = [compared.as_shown(change, one.shown.get(change.path)) for change in told]
                self._shown = frozenset(one.shown)
            return visible(text) if escaped else text

    def commit(self, *, expected: Iterable[Change] | None = None, keep_set_ids: bool = False) -> list[Change]:
        """Bring all changes into the workspace, or none, and return them; the transaction is over then.

        expected: what diff() has returned; anything else, by contents and attributes, is a ConflictError. By default it
        is what diff() or patch() has told last, also if commands have run since; without a look it is all that there
        is. keep_set_ids: files keep their set-user-ID and set-group-ID bits, which they lose otherwise.

        Files that are changed are replaced (rename(2)): who has one open keeps what was in it. Sockets and device nodes
        stay behind. Raises ConflictError if anything that was changed here has been changed there since the
        transaction began; CommitError if a step fails, after having undone the others, or if a process has a file of
        the transaction open for writing; PolicyError if commands of another policy can write to where the changes are
        kept, by now; ValueError as long as commands run. After these nothing is lost: the
        transaction goes on, unless a CommitError says that not all could be undone. What steps that were undone had
        touched may be a conflict the next time.
        """
        wanted = None if expected is None else _checked(expected)
        with self._trees() as (upper, real), self._at_rest(), self._locked():
            assert self._store is not None
            check_place(self.way().policy, self._base, self._named)  # others may have opened it meanwhile
            wanted, shown = (self._reviewed, self._shown) if wanted is None else (wanted, frozenset())
            compared = Comparison(upper, real, moment=self.way().started, shown=shown)
            raw = compared.changes()
            told = compared.with_details(compared.with_renames(raw))
            if wanted is not None:
                _check_reviewed(wanted, told)
            _check_attributes(told)
            renamed = {change.path for change in told if change.kind == "renamed"}

            def check(*, is_top_ours: bool = True) -> None:
                conflicts = compared.conflicts(raw, renamed, self._started, self._mode, is_top_ours=is_top_ours)
                if conflicts:
                    raise ConflictError(conflicts)

            check(is_top_ours=False)
            copies = partial(compared.other_copies, told)
            try:
                if raw:
                    _commit.commit(self._store, upper, real, raw, self._started, check, copies, keep_set_ids)
            except BaseException:
                if self._store.has_journal:
                    self.discard()
                raise
            self.discard()
        return told

    @contextlib.contextmanager
    def _at_rest(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            try:
                where = os.readlink(f"/proc/self/fd/{self._real.fd}")  # the mount on it has moved along
                stack.enter_context(self.way().at_rest(where))
            except OSError as error:
                raise CommitError(error, "make the changes read-only") from error
            yield

    def discard(self, *, _is_late: Callable[[], bool] = sys.is_finalizing) -> None:
        """End the transaction: commands that still run are killed, and what they have changed is dropped.

        But for changes that a commit could neither bring in as a whole nor undo: these wait for recover().
        """
        if _is_late():  # the kernel ends the commands, and the next recover() drops what they have changed
            self._way = None
            return
        with self._lock:
            way, self._way = self._way, None
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
            return  # at the interpreter's end the next recover() does it
        import warnings

        warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)
        self.discard()

    def __repr__(self) -> str:
        return f"<nsbox.Transaction {'over' if self._way is None else 'of'} {self.workspace}>"

    def after_fork(self) -> None:
        """Be over, in a forked child: it is the parent's."""
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


def _check_reviewed(wanted: list[Change], told: list[Change]) -> None:
    """Raise ConflictError if what is there isn't what was looked at, down to the contents."""
    old, new = ({change.path: change for change in changes} for changes in (wanted, told))
    other = {
        path
        for path in old.keys() | new.keys()
        if old.get(path) != new.get(path) or old[path].digest != new[path].digest
    }
    if other:
        in_order = sorted(other, key=lambda path: path.replace("/", "\0"))  # as diff() has them
        rows = [(path, "isn't what was reviewed") for path in in_order]
        what = "what diff() and patch() have shown has been changed since"
        raise ConflictError(rows, what, "look again by diff() or patch(), then commit, or pass expected=")


def _check_attributes(told: list[Change]) -> None:
    """Raise CommitError for what can't be brought in: attributes of a directory that stays."""
    for change in told:
        if change.attributes and change.type == change.old_type == "directory":
            names = ", ".join(change.attributes)
            error = OSError(errno.ENOTSUP, f"a directory that was there before can't get other attributes: {names}")
            error.filename = change.path
            raise CommitError(error, "look at the changes")


_all: weakref.WeakSet[Transaction] = weakref.WeakSet()


def _after_fork() -> None:
    for transaction in list(_all):
        transaction.after_fork()


os.register_at_fork(after_in_child=_after_fork)
