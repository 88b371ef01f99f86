"""The way in which a task's commands start: a session whose root is built in namespaces where overlays lie.

When it ends, so do its processes; what they have written is in the uppers, and another one can go on with these.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from nsbox._base.errors import BusyError, Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING, replace
from nsbox._core import orphans
from nsbox._kept.session import SessionWay
from nsbox._plan import ops
from nsbox._transaction.holder import Holder, Mapped
from nsbox._transaction.overlay import is_seen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsbox._core.command import Result
    from nsbox._plan.host import Host
    from nsbox._policy.policy import Policy
    from nsbox._relay.relay import Relay
    from nsbox._spawn.start import Start
    from nsbox._task.layers import Layers

_PATIENCE = 0.2  # seconds in which pid 1 reaps what has just ended


def check_nesting(policy: Policy) -> None:
    """Raise UnavailableError if the policy lets commands make user namespaces.

    What hides or protects files is mounted in directories that a task's commands can write to. A mount point can't be
    renamed or removed, but only in a mount namespace in which something is mounted there (mount_namespaces(7)).
    """
    if policy.may_nest or not {"clone", "unshare"}.isdisjoint(policy.filter.allow):
        what = "in a user namespace of its own a command could leave behind what protects files in a task"
        raise UnavailableError(Reason(what, "leave out nested=True, and clone and unshare in seccomp.allow"))


class TaskWay(SessionWay):
    """Starts commands as children of one sandbox's pid 1, in the overlays of a task."""

    kind = "task"

    def __init__(
        self,
        policy: Policy,
        host: Host,
        layers: Layers,
        stores: Sequence[tuple[str, str]],
        base: str,
        relay: Relay | None = None,
        mapping: tuple[Mapped | None, dict[str, str]] = (None, {}),
    ) -> None:
        """Mount the overlays, and make the sandbox; raises what starting a command raises.

        host: as from holder.host_of(). layers: what is overlaid. stores: the upper and the work directory of each.
        base: the directory of all stores, which commands don't see.
        mapping: as from owners.mapped().
        """
        self.places = layers.places
        self._uppers = tuple(zip(layers.places, (upper for upper, _ in stores), strict=True))
        if os.geteuid() != 0:  # holder.check() refuses ids='full'
            self.remedy = "a task has several ids only if root begins it, with ids='full' in the policy"
        self.started = 0  # commands so far
        self._is_resting = False
        self._holder = holder = Holder(
            policy, host, layers.mounts(stores, base, mapping[1]), "begin a task", mapping[0]
        )
        try:
            own = holder.prepared
            own = replace(own, plan=replace(own.plan, ops=layers.steps), ops=layers.steps)
            super().__init__(policy, relay, prepared=holder.within(policy, own, is_task=True))
        except BaseException:
            holder.close()
            raise

    @property
    def fresh(self) -> tuple[str, ...]:
        """Where the session has file systems of its own that commands can write to, except devices: /tmp, a home."""
        steps = self._prepared.ops
        closed = {op.dest for op in steps if isinstance(op, ops.RemountRo)}
        fresh = [op.dest for op in steps if isinstance(op, ops.Tmpfs) and op.dest not in closed]
        return tuple(dest for dest in fresh if not (dest + "/").startswith("/dev/"))

    def spawn(self, start: Start) -> Result:
        """Start a command; pid 1 makes it."""
        with self._lock:
            if self._is_resting:
                raise BusyError("the task's changes are being committed or copied: wait until that is done")
            self.started += 1
            return super().spawn(start)

    def exists(self, path: str) -> bool:
        """Return whether commands see a file or directory at a path."""
        return is_seen(path, self._uppers)

    @contextlib.contextmanager
    def at_rest(self, where: str | None = None) -> Iterator[None]:
        """Keep every process from writing to overlays in a block, even by a descriptor from before.

        Raises BusyError if a process runs in the task: one that a command left behind counts. Raises OSError, EBUSY,
        if a process has a file open for writing, or mapped: a command may have passed it on.

        where: the place of the overlay, by its current path. Default: None, for all overlays.
        """
        places = self.places if where is None else (where,)
        with self._lock:
            self._check_empty()
            self._is_resting = True  # a signal handler can acquire the lock too
            try:
                try:
                    self._holder.freeze(places)
                    yield
                finally:
                    if self._holder.is_open:  # otherwise the task is over
                        self._holder.freeze(places, thaw=True)
            finally:
                self._is_resting = False

    def _check_empty(self) -> None:
        """Raise BusyError if there is a process besides pid 1. All others descend from it."""
        until = time.monotonic() + _PATIENCE
        while children := _children(self.pid):
            if time.monotonic() > until:
                names = [orphans.status_of(pid).get("Name", "?") for pid in children[:5]]
                raise BusyError(
                    f"processes of the task still run: {', '.join(names)}; wait for them, or kill_processes() ends all"
                )
            time.sleep(0.002)

    def close(self) -> None:
        """End everything in it, and return when it has gone; raises KillError if something doesn't end."""
        self._holder.close()
        super().close()

    def forget(self) -> None:
        """In a forked child, close what is the parent's."""
        self._holder.close()
        super().forget()


def _children(pid: int) -> list[int]:
    """Return the children of a process."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:  # if the kernel has CONFIG_PROC_CHILDREN
            return [int(word) for word in file.read().split()]
    except FileNotFoundError:
        if not os.path.isdir(f"/proc/{pid}"):
            return []
    return [
        int(name) for name in os.listdir("/proc") if name.isdigit() and orphans.status_of(name).get("PPid") == str(pid)
    ]
