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
import os
import stat
import sys
from collections.abc import Iterator

from nsbox._base.checks import check_path
from nsbox._base.errors import PolicyError, Reason, UnavailableError
from nsbox._base.forks import Alive
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._base.paths import is_below
from nsbox._base.stdlib import RLock
from nsbox._core import abi
from nsbox._files.files import opened_plainly, start_of_time
from nsbox._filetools.methods import FileTools
from nsbox._kept.commands import Commands
from nsbox._logs import logger
from nsbox._machine.caller import transactions_dir
from nsbox._paths.resolution import Resolution, absolute
from nsbox._transaction import commit as transaction_commit
from nsbox._transaction.change import Change
from nsbox._transaction.overlay import OVER, OverlayWay, check_marks, check_place
from nsbox._transaction.review import Review
from nsbox._transaction.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

    from nsbox._calls.call import Call
    from nsbox._filetools.files import Files
    from nsbox._policy.policy import Policy
    from nsbox._relay.relay import Relay
    from nsbox._tools.verdicts import Hint

__all__ = ["Change", "Transaction", "recover"]


def named_base(dir: str | os.PathLike[str] | None) -> str:
    """Return the directory for changes as it was named, with links unresolved."""
    return transactions_dir() if dir is None else check_path("dir", os.path.normpath(absolute(os.fspath(dir))))


def recover(dir: str | os.PathLike[str] | None = None) -> None:
    """Finish interrupted commits, and remove what transactions left behind that were never ended.

    A commit whose journal was written is completed or, if that is no longer possible, undone. Every transaction does
    the same for its directory before it begins. The homes of Sandboxes whose processes were killed are removed, as the
    next Sandbox would do.

    dir: as for Sandbox.transaction(). Default: the same as there.

    Raises CommitError for the first commit that can be neither completed nor undone. Nothing of it is lost, and the
    next call tries again.
    """
    from nsbox._homes.homes import sweep  # seldom needed

    sweep()
    for _, error in transaction_commit.recover(os.path.realpath(named_base(dir))):
        raise error


def recover_for(workspace: str, base: str) -> None:
    """Recover below base; raise only an error about this workspace, and log the others as warnings."""
    mine = []
    for other, error in transaction_commit.recover(base):
        if other == workspace:
            mine.append(error)
        else:
            logger.warning("%s: %s", other, error)
    if mine:
        raise mine[0]


@frozen
class Places(Frozen):
    """Where changes are made, and where they are kept until then.

    workspace: the directory that they are about.
    named, base: the directory that keeps them, as it was named, and without links.
    """

    workspace: str
    named: str
    base: str


def chosen_places(policy: Policy, workspace: str | None, dir: str | os.PathLike[str] | None) -> Places:
    """Return the places for a transaction or a task, where commits that were interrupted are finished by now.

    Raises PolicyError for places that make no sense, or that commands could change; CommitError.
    """
    if workspace is None and policy.workdir is None:
        raise PolicyError("workspace", "is needed: the policy has no working directory")
    names = Resolution()
    path = check_path("workspace", os.path.normpath(absolute(workspace or policy.workdir or "")))
    path = names.entry("workspace", path, must_exist=False)
    names.check(policy.write)
    named = named_base(dir)
    base = os.path.realpath(named)
    if is_below(base, path):
        raise PolicyError("dir", f"{base} lies in the workspace; give another directory")
    check_place(policy, base, named)
    recover_for(path, base)
    return Places(path, named, base)


class Transaction(Review, Commands, FileTools):
    """Commands whose changes to one directory are held back. Sandbox.transaction() makes it; threads may share it.

    It starts commands by the same methods as Sandbox, and every function with a policy= parameter accepts it too. Each
    command has its own sandbox; they share the overlay. Anything else that the policy lets them write to changes at
    once. The file tools of Sandbox read and change files as commands see them, so what they write waits for a commit
    too; each call starts a sandbox of its own for that.

    workspace: the directory, as an absolute path.
    """

    _kind = "transaction"

    _keeps: object = None  # the Sandbox that it belongs to

    def __init__(
        self,
        policy: Policy,
        workspace: str | None,
        dir: str | os.PathLike[str] | None,
        relay: Relay | None = None,
    ) -> None:
        self._way: OverlayWay | None = None
        self._creator = os.getpid()
        self._lock = RLock()
        if not abi.on_linux:
            raise UnavailableError(Reason("a transaction needs overlayfs, which only Linux has"))
        places = chosen_places(policy, workspace, dir)
        self.workspace, self._named, self._base = places.workspace, places.named, places.base
        self._real = opened_plainly(self.workspace)  # the name may lead elsewhere later
        self._store: Store | None = None
        try:
            check_marks(self._real, self.workspace)
            status = os.fstat(self._real.fd)
            self._mode = stat.S_IMODE(status.st_mode)
            self._store = store = Store.make(self._base, self.workspace, status)
            self._way = OverlayWay(policy, self.workspace, self._base, store.upper, store.work, relay)
            if not os.path.samestat(status, os.lstat(self.workspace)):
                raise FileNotFoundError(errno.ESTALE, "has become another directory", self.workspace)
            self._began = start_of_time(self._real)
        except BaseException:
            self.discard()
            raise
        _all.add(self)

    def _open_way(self) -> OverlayWay:
        """Return the way in which commands start; raises ValueError if the transaction is over."""
        if self._way is None:
            raise ValueError(OVER)
        return self._way

    @property
    def policy(self) -> Policy:  # type: ignore[override]
        """What commands may do. Raises ValueError if the transaction is over."""
        return self._open_way().policy

    @contextlib.contextmanager
    def _files(self) -> Iterator[Files]:
        from nsbox._filetools.files import Files as GuardedFiles
        from nsbox._filetools.ground import ViewGround
        from nsbox._kept.session import SessionWay

        way = self._open_way()
        root = SessionWay(way.policy, start=way.spawn)
        try:
            ground = ViewGround(root)
            yield GuardedFiles(way.policy, lambda _: ground)
        finally:
            root.close()

    def _call(self, argv: list[str], shown: Any, options: Any) -> Callable[..., Call]:
        return super()._call(argv, shown, options | {"explain": self._explained})

    def _explained(self, why: tuple[Hint, ...], status: int, output: tuple[str, str]) -> tuple[Hint, ...]:
        from nsbox._tools.overlays import hints_of

        store, way = self._store, self._way
        if store is None or way is None:
            return why
        return hints_of(way.policy, way.host, why, status, output, workspace=self.workspace, store=store.path)

    def _overlaid(self) -> OverlayWay:
        return self._open_way()

    def _end(self) -> None:
        self.discard()

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
        with self._lock, contextlib.closing(self._real):  # all of it, if a signal handler raises meanwhile
            store, self._store = self._store, None
            try:
                if way is not None:
                    way.close()
            finally:
                if store is not None and self._creator == os.getpid():
                    store.end()

    def __enter__(self) -> Transaction:
        self._open_way()
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

    def _after_fork(self) -> None:
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


_all = Alive()
