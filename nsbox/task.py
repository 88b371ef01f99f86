"""Task: a sandbox for the length of a task. What commands write, anywhere, stays until it ends; the host isn't changed.

    with box.task() as task:
        task.shell("pip install --target ~/x six && echo 1 > /tmp/a")
        task.shell("cat /tmp/a")
        before = task.snapshot()
        task.shell("rm -rf src")
        task.reset(before)
        print(task.patch())
        task.commit()  # of the workspace, what patch() showed

A task is a session, in which each directory that the policy shows is an overlay (the kernel's overlayfs).
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from typing import TYPE_CHECKING

from nsbox._base.checks import check_size
from nsbox._base.errors import Reason, UnavailableError
from nsbox._base.stdlib import RLock
from nsbox._calls.shell_state import ShellState
from nsbox._core import abi
from nsbox._files.files import Tree, opened_plainly, start_of_time
from nsbox._lifetime.shutdown import is_finalizing
from nsbox._spawn.prepare import prepare
from nsbox._task import snapshot as copied
from nsbox._task.layers import Layers, layers
from nsbox._task.owners import mapped, owners
from nsbox._task.snapshot import Snapshot
from nsbox._task.way import TaskWay, check_nesting
from nsbox._transaction.holder import check, host_of
from nsbox._transaction.overlay import check_attributes, check_marks
from nsbox._transaction.review import Review
from nsbox._transaction.store import Store, make_upper
from nsbox.session import Session
from nsbox.transaction import chosen_places

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from nsbox._calls.call import Call
    from nsbox._filetools.files import Files
    from nsbox._plan.host import Host
    from nsbox._policy.policy import Policy
    from nsbox._relay.relay import Relay
    from nsbox._spawn.prepare import Prepared
    from nsbox._tools.verdicts import Hint

__all__ = ["Snapshot", "Task"]


class Task(Review, Session):
    """A session in which commands may write everywhere that permissions allow. Sandbox.task() makes it.

    It starts commands by the same methods as Session. Nothing that they write reaches the host, until commit() brings
    in the changes to the workspace. What the policy hides, and what it protects inside of a writable directory, stays
    as it is. So do single files that it shows, which are read-only, and directories in which something is mounted. If
    the caller isn't root, neither are commands: in root's directories they can't write, except right in those that the
    policy shows. If the caller is root, the owner of a directory that the policy names and the commands' user swap
    places in it. With ids="full" and a uid= in the policy, so they do in the system's directories.

    Threads may share it; in a forked child it is closed.

    workspace: the directory whose changes diff(), patch() and commit() are about, as an absolute path.
    """

    _kind = "task"

    def __init__(
        self,
        policy: Policy,
        workspace: str | None,
        dir: str | os.PathLike[str] | None,
        relay: Relay | None = None,
    ) -> None:
        self._creator = os.getpid()
        self._store: Store | None = None
        self._real: Tree | None = None  # type: ignore[assignment]
        self._lock = RLock()
        self._copies = 0  # directories for copies so far
        if not abi.on_linux:
            raise UnavailableError(Reason("a task needs overlayfs, which only Linux has"))
        check_nesting(policy)
        places = chosen_places(policy, workspace, dir)
        self.workspace, self._named, self._base = places.workspace, places.named, places.base
        super().__init__(policy, relay)

    def _begin(self, policy: Policy, relay: Relay | None) -> TaskWay:
        self._host: Host = host_of(policy)
        prepared: Prepared = prepare(policy, self._host)
        check(prepared)
        self._layers: Layers = layers(prepared.ops, self.workspace, self._base)
        try:
            self._real = opened_plainly(self.workspace)  # the name may lead elsewhere later
            status, since = os.fstat(self._real.fd), time.time_ns()
            self._mode = stat.S_IMODE(status.st_mode)
            for place in self._layers.written:
                _check_marks(place)
            self._store = store = Store.make(self._base, self.workspace, status, settles=False)
            check_attributes(store.upper)
            for (upper, work), place in zip(self._pairs(), self._layers.places, strict=True):
                if upper != store.upper:
                    make_upper(upper, work, os.stat(place))
            self._swaps, self._layers = owners(policy, self._host, prepared.plan, self._layers, store.path)
            way = self._new_way(policy, relay)
            try:
                self._check_same(status)
                self._began = start_of_time(self._real, since)
            except BaseException:
                way.close()
                raise
            return way
        except BaseException:
            self._drop()
            raise

    def _check_same(self, status: os.stat_result) -> None:
        if not os.path.samestat(status, os.lstat(self.workspace)):
            raise FileNotFoundError(2, "has become another directory", self.workspace)

    def _new_way(self, policy: Policy, relay: Relay | None) -> TaskWay:
        assert self._store is not None
        mapping = mapped(self._swaps, self._store.path)
        return TaskWay(policy, self._host, self._layers, self._pairs(), self._base, relay, mapping)

    def _pairs(self) -> list[tuple[str, str]]:
        """Return the upper and the work directory of each overlay."""
        store = self._store
        assert store is not None
        return [
            (store.upper, store.work)
            if place == self.workspace
            else (f"{store.path}/upper-{number}", f"{store.path}/work-{number}")
            for number, place in enumerate(self._layers.places)
        ]

    def _open_way(self) -> TaskWay:
        """Return the way in which commands start; raises ValueError if the task is over."""
        if not isinstance(self._way, TaskWay):
            raise ValueError("the task is over: it was committed or closed; begin another by box.task()")
        return self._way

    def _overlaid(self) -> TaskWay:
        return self._open_way()

    def _end(self) -> None:
        self.close()

    def _files(self) -> contextlib.AbstractContextManager[Files]:
        from nsbox._filetools.files import Files as GuardedFiles
        from nsbox._task.ground import TaskGround

        ground = TaskGround(self._open_way(), is_overlaid=True)
        return contextlib.nullcontext(GuardedFiles(self._open_way().policy, lambda _: ground))

    def _call(self, argv: list[str], shown: Any, options: Any) -> Callable[..., Call]:
        return super()._call(argv, shown, options | {"explain": self._explained})

    def _explained(self, why: tuple[Hint, ...], status: int, output: tuple[str, str]) -> tuple[Hint, ...]:
        from nsbox._task.hints import hints_of

        store, way = self._store, self._way
        if store is None or way is None:
            return why
        return hints_of(way.policy, why, status, output, self._layers, store.path)

    @property
    def read_only(self) -> list[str]:
        """The directories that the policy shows, and that stay read-only, since something is mounted in them."""
        return list(self._layers.closed)

    # ---- snapshots

    def snapshot(self, *, max_size: int | str = "4G") -> Snapshot:
        """Return a Snapshot: a copy of all that commands have written, in every directory, /tmp and the home included.

        Processes aren't part of it, so none may run. The copy lies beside the task's files; where the file system can
        share blocks, as btrfs and xfs can, it takes up hardly any space.

        max_size: the most bytes that it may take up, or a str such as "1G". Default: 4 GiB.

        Raises BusyError, a ValueError, while a process runs in the task, even one that a command left behind:
        kill_processes() ends those. Raises OSError: EFBIG for more than max_size, E2BIG for more than 500,000 files,
        EBUSY if a process outside has a file of the task open for writing, ENOSPC. Raises PolicyError for a max_size
        that makes no sense.
        """
        most = check_size("max_size", max_size)
        with self._lock:
            way = self._open_way()
            path = self._new_path("snapshot")
            size = copied.take(way, [upper for upper, _ in self._pairs()], path, most)
            return Snapshot(path, size, self._shell)

    def reset(self, snapshot: Snapshot | None = None) -> None:
        """Go back to a snapshot: end what runs in the task, and restore everything to what it was then.

        The next command starts in a fresh session. Published ports are closed. The snapshot stays, for further resets.

        snapshot: one of this task's. Default: None, for the beginning, when nothing had been written.

        Raises ValueError for a snapshot that isn't this task's, or was dropped, and OSError if it can't be copied: then
        nothing has changed. If the fresh session can't be made, the task is over: that raises what starting a command
        raises.
        """
        with self._lock:
            way, store = self._open_way(), self._store
            assert store is not None
            if snapshot is not None and not isinstance(snapshot, Snapshot):
                raise TypeError(f"snapshot is a {type(snapshot).__name__}, must be a Snapshot or None")
            if snapshot is not None and (os.path.dirname(snapshot._path) != store.path or snapshot.is_dropped):
                raise ValueError("the snapshot was dropped, or is another task's")
            path = self._new_path("reset")
            copied.copy_uppers(snapshot, self._layers.places, path)
            try:
                self._close_session()
                for number, pair in enumerate(self._pairs()):
                    for name, at in zip(("upper", "work"), pair, strict=True):
                        copied.move(at, f"{path}/old-{name}-{number}")
                        copied.move(f"{path}/{name}-{number}", at)
                self._way = fresh = self._new_way(way.policy, way.relay)
                fresh.started = way.started + 1  # what was shown before isn't certain any more
                if snapshot is not None:
                    copied.fill(fresh, snapshot)
                self._shell = ShellState() if snapshot is None else snapshot._shell
                self._reviewed, self._shown = None, frozenset()
            except BaseException:
                self.close()
                raise
            copied.remove(path)

    def _new_path(self, name: str) -> str:
        assert self._store is not None
        self._copies += 1
        return f"{self._store.path}/{name}-{self._copies}"

    # ---- the end

    def close(self, *, _is_late: Any = is_finalizing) -> None:
        """End everything that runs in it, and drop what was written. Closing twice isn't an error.

        Changes that a commit could neither complete nor undo are kept: they wait for recover(). Raises KillError if a
        process in it doesn't end.
        """
        if _is_late():  # the kernel ends the commands, and the next recover() removes the files
            self._way = None
            return
        with self._lock:
            try:
                super().close()
            finally:
                self._drop()

    def _close_session(self) -> None:
        """End the session alone."""
        keeps = self._keeps
        super().close()
        self._forget_calls()
        self._published.clear()
        self._keeps = keeps

    def _drop(self) -> None:
        store, self._store = self._store, None
        if store is not None and self._creator == os.getpid():
            store.end()
        if self._real is not None:
            self._real.close()

    def __repr__(self) -> str:
        return f"<nsbox.Task {'over' if self._way is None else 'of'} {self.workspace}>"

    def _after_fork(self) -> None:
        """Close it in a forked child: the task belongs to the parent."""
        self._lock = RLock()
        super()._after_fork()
        store, self._store = self._store, None
        if store is not None:
            store.let_go()
        if self._real is not None:
            self._real.close()


def _check_marks(place: str) -> None:
    with opened_plainly(place) as tree:
        check_marks(tree, place)
