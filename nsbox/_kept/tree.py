"""One sandbox that is kept and entered by many commands, instead of building one for each.

Two descriptors keep it: one of its user namespace, and one of its mount namespace. That is a finished tree, of which
each command gets a copy. No process holds it, so there is none to be killed, and the kernel drops it with this process.

Some copies are parked, which means made ahead. They are complete sandboxes whose pid 1 waits for the command, with a
net namespace of their own if the policy says so. A thread makes them (Refiller), and ends soon after there are enough.

KeptTree holds three requests, which it encodes once. They differ in how much a command still has to make:

- _entering starts a command in a parked copy: the copy lacks nothing but the command.
- _copying starts a command when no copy is ready. It enters the kept tree, copies it, and makes what each command has
  for itself (_kept.split says what that is).
- _parking does the same without a command, which makes a parked copy.

A copy must be what a new sandbox would be, so the kept tree can become stale in two ways. The caller's mounts may have
changed since it was made: MountWatch notices. Or a path may now lead to another file than the one that was bound, or a
mount point may have been replaced: at each spawn, C compares the stamps that the ops have left (stamps.c). Both raise
StaleError, and KeptWay makes a new sandbox.
"""

from __future__ import annotations

import errno
import os
import sys
import weakref
from threading import Lock

from nsbox._base.errors import NsboxError, SetupError, StaleError
from nsbox._base.frozen import TYPE_CHECKING, replace
from nsbox._core import buffers, call
from nsbox._core.abi import constants as c
from nsbox._core.command import Command, Result
from nsbox._core.request import KeptRoot, Request, request_for
from nsbox._kept import split
from nsbox._kept.mounts import MountWatch
from nsbox._kept.refill import Refiller
from nsbox._plan.ops import Console
from nsbox._spawn.start import spawn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from nsbox._base.owners import Owner
    from nsbox._plan.ops import Op
    from nsbox._relay.relay import Line, Relay
    from nsbox._spawn.prepare import Prepared
    from nsbox._spawn.start import Start

_FRESH = frozenset({"uts", "cgroup", "time"})  # the namespaces that each command has for itself


class Parked:
    """A sandbox that lacks only its command.

    result: the result of making it.
    user2_fd: the command's user namespace.
    held: what owns its descriptors: first init_pidfd and init_says, which the command gets at its start, then the
        others. They don't depend on __del__(), in which a signal handler may raise.
    """

    def __init__(self, result: Result, stamps: buffers.Stamps, held: list[Owner], line: Line | None) -> None:
        self.result, self.stamps, self.user2_fd = result, stamps, result.kept[0]
        self.line = line  # with a network list
        self.is_taken = False  # its command has been started
        self.held = held
        self._creator = os.getpid()

    def forget(self) -> None:
        """In a forked child that executes the command, close what is the parent's: nothing calls __del__() there."""
        own = self.result
        for fd in self.held:
            fd.close()
        own.init_pidfd = own.init_says = own.go_fd = self.user2_fd = -1

    def __del__(self, *, _is_late: Any = sys.is_finalizing) -> None:
        if _is_late():  # the kernel closes all, and ends it
            return
        own = self.result
        if not self.is_taken and self._creator == os.getpid():  # else the parent's, in a forked child
            call.end(0, own.init_pidfd, own.init_says, -1, self.held)


class KeptTree:
    """A sandbox that is kept for commands of one policy, and some copies of it that are ready. Threads may share it.

    Its descriptors are closed when nothing uses it any more.
    """

    def __init__(self, prepared: Prepared, stock: int, relay: Relay | None = None) -> None:
        """Make it. Raises UnavailableError if the plan doesn't allow that, and OSError when something fails.

        stock: how many copies to keep ready.
        relay: which serves the copies too; None: there is no network list.
        """
        self._relay = relay
        self._fds: list[int] = []
        self._owners: list[Owner] = []  # of these; they are closed even if a signal handler raises in __del__()
        self._ready: list[Parked] = []
        self._mounts: MountWatch | None = None
        self.stale = False
        self.reference = weakref.ref(self)
        self.filling = Lock()  # while a copy is being made ready
        _all.add(self)
        self.prepared = prepared
        self._plan = plan = prepared.plan
        split.check(plan)
        parts = split.parts(prepared.ops)
        self._has_console = any(isinstance(op, Console) for op in prepared.ops)
        self._stock = 0 if "time" in plan.namespaces else stock  # setns(2) of one: EUSERS, in memory that is shared
        self._mounts = MountWatch()  # before anything is bound
        looks = (c.WATCHED_RENEWED if is_fresh else c.WATCHED for is_fresh in parts.fresh)
        watched = [look if is_watched else c.UNWATCHED for look, is_watched in zip(looks, parts.watched, strict=True)]
        self._stamps = buffers.Stamps(watched)
        request = request_for(plan, parts.kept, flags=c.TEMPLATE, without=_FRESH | {"net"}, stamps=self._stamps)
        self._blob = request.plan
        self._make(request, parts.kept)
        stamped = zip(parts.kept, self._stamps.array, strict=True)
        missing = {op for op, stamp in stamped if not stamp.made and getattr(op, "optional", False)}
        renewed = split.parts(tuple(op for op in prepared.ops if op not in missing)).renewed
        self._renewed = renewed
        self._copying = replace(prepared, ops=renewed, request=self._request(renewed, {"user"}))
        self._entering = replace(prepared, ops=(), request=self._request((), {"user"}, is_parked=True))
        # Once, not for each copy: encoding the ops takes longer than everything else that Python does for one.
        self._parking = self._request(renewed, {"user", "cgroup"}, flags=c.PARK)

    def _request(
        self,
        ops: tuple[Op, ...],
        without: set[str],
        *,
        flags: int = 0,
        is_parked: bool = False,
    ) -> Request:
        user, mnt, null, image = self._fds
        fds = (user, -1 if is_parked else mnt, null, image)  # the image, which the command closes
        return request_for(
            self._plan,
            ops,
            flags=flags,
            without=frozenset(without),
            kept=KeptRoot(fds, self._blob, self._stamps, self._root_id),
            last_maps=split.last_maps(self._plan.identity),
        )

    def _make(self, request: Request, ops: Sequence[Op]) -> None:
        result, self._owners = made(request, "keep a sandbox", ops)
        self._fds = [*result.kept]
        self._root_id = result.root_id

    # ---- copies that are ready

    def refill(self) -> None:
        """Let another thread make copies until there are enough.

        Call this when a command has ended, or has found no copy. At the start of one, it would only hold that up.
        """
        if len(self._ready) < self._stock and not self.stale:
            _refiller.ask(self)

    def make_ready(self) -> bool:
        """Make one copy if one is missing; return whether another is. If it fails, the next command reports why."""
        try:
            if len(self._ready) < self._stock and not self.stale:
                self._ready.append(self._park())
        except (NsboxError, OSError):
            return False
        return len(self._ready) < self._stock and not self.stale

    def _park(self) -> Parked:
        stamps = self._stamps.copy()
        line = None if self._relay is None else self._relay.line()
        result, held = made(self._parking, "make a sandbox ready", self._renewed, stamps, line)
        return Parked(result, stamps, held, line)

    # ---- commands

    def spawn(self, start: Start) -> Result:
        """Start a command in a copy. Raises StaleError before doing anything if none fits."""
        command = start.command
        if self.stale or self._mounts is None or self._mounts.changed():
            raise StaleError(errno.ESTALE, "enter a sandbox that is kept")
        try:
            command.parked = self._ready.pop(0)
        except IndexError:
            command.parked = None
        if command.parked is not None and command.parked.line is not None and not command.parked.line.is_served():
            command.parked = None  # the relay was killed, so no copy that it served has a network
            self._ready.clear()
        if command.parked is None:
            self.refill()
            result = spawn(start.by(self._copying))
            result.warm = True
            return result
        try:
            result = spawn(start.by(self._entering))
        except BaseException:
            call.abandon(command)  # first: pid 1 can't end while its zombie is there
            command.parked = None  # now, not when the exception is forgotten
            raise
        # These lines make no call: after one, a signal handler could raise while nothing owns the command.
        parked = command.parked
        copy = parked.result
        result.init_pid = copy.init_pid
        result.init_pidfd = copy.init_pidfd
        result.init_says = copy.init_says
        if command.owners is not None:
            command.owners[:0] = parked.held[:2]
        command.line = parked.line
        result.warm = parked.is_taken = True
        return result

    def retire(self) -> None:
        """Serve no further commands. Returns when no thread is making a copy any more."""
        self.stale = True
        _refiller.leave(self)

    def wants_console(self, command: Command) -> bool:
        """Return whether the command's standard output is a terminal, which the plan shows as /dev/console."""
        out = command.stdio[1]
        return self._has_console and out != c.DEVNULL and os.isatty(1 if out == -1 else out)

    # ---- the end

    def forget(self) -> None:
        """Let go of everything, also in a forked child, in which the copies are the parent's."""
        self.stale = True
        self._ready.clear()
        if self._mounts is not None:
            self._mounts.close()
        self._fds.clear()
        for owner in self._owners:
            owner.close()

    def __del__(self, *, _is_late: Any = sys.is_finalizing) -> None:
        # Nowhere else: while a thread is about to start a command by a descriptor, its number mustn't be reused.
        if not _is_late():  # the kernel closes all
            self.forget()


def made(
    request: Request,
    what: str,
    ops: Sequence[Op],
    park_stamps: buffers.Stamps | None = None,
    line: Line | None = None,
) -> tuple[Result, list[Owner]]:
    """Make something that has no command yet: a kept sandbox, or a copy that is parked. Raises SetupError.

    Returns the result, and the owners of the descriptors: a kept sandbox's as in result.kept. A copy's are init_pidfd,
    init_says, go_fd and then that of result.kept.

    what: what is being done, for errors.
    ops: those of the request, for errors.
    park_stamps: the stamps of a copy; None: it is no copy.
    line: with a network list.
    """
    owners: list[Owner] = []
    command = Command(programs=[], argv=[], envp=_nothing, cwd=None, owners=owners)
    command.park_stamps, command.line = park_stamps, line
    try:
        command.flags = c.CLOSE_FDS | (c.ADOPT_INIT if call.adopt_inits else 0)
        command.uid = command.gid = 0
        result = call.spawn(request, command)
        if result.error:
            from nsbox._spawn.failure import step_name  # seldom needed

            op = ops[result.op].describe() if 0 <= result.op < len(ops) else None
            raise SetupError(result.error, f"{what}: {step_name(result.step)}", op)
        own = sum(fd >= 0 for fd in result.kept)
        kept, held = owners[:own], owners[own:]
        if result.go_fd < 0:  # no copy: its pid 1 has nothing to wait for
            command.owners = held
            call.abandon(command)
        command.result = None
        return result, [*held, *kept]
    except BaseException:
        call.abandon(command)
        raise


_nothing = buffers.Strings([])


_refiller = Refiller()
_all: weakref.WeakSet[KeptTree] = weakref.WeakSet()


def _after_fork() -> None:
    global _refiller
    _refiller = Refiller()
    for kept in list(_all):
        kept.forget()


os.register_at_fork(after_in_child=_after_fork)
