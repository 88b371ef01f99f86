"""A fork of a kernel: a process that the kernel's own program has forked, in the kernel's namespaces.

A fork isn't pid 2 of a sandbox, whose end would end everything. So what it has started must be found: it adopts its
orphans (PR_SET_CHILD_SUBREAPER), so all of them descend from it. The fork is stopped first, and can't start more
meanwhile. A process that escapes this search ends with the kernel, at the latest.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
import weakref

from nsbox._base.display import type_phrase
from nsbox._base.errors import ForkError, KillError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.owners import high, opened, own
from nsbox._base.poll import is_readable
from nsbox._base.stdlib import RLock
from nsbox._core import orphans
from nsbox._interpreter.branch import BranchCommand, Lost, received
from nsbox._interpreter.descent import GoneError, pid_of
from nsbox._interpreter.wire import WireError, frame
from nsbox._lifetime import kills
from nsbox._lifetime.usage import Usage, cause
from nsbox._python.line import BranchLine

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from nsbox._base.owners import Owner
    from nsbox._kernels.exchange import KernelExchange
    from nsbox._kernels.process import KernelProcess
    from nsbox._lifetime.ends import Early

_PATIENCE = 60.0  # seconds until a fork exists: the machine may be very busy
_REAPED = 5.0  # seconds, after a fork's end, until it must be known how it has ended
_SOON = 0.2  # the same if it was killed here: then only what it has used would be missing
_ROUNDS = 100  # of looking for what a fork has started
_LOST = 255  # stands for a status that isn't known
_MOST = 1000  # forks of one call


class ForkCommand(BranchCommand):
    """A fork, as this process knows it: a socket for its start and end, its line, its pidfd."""

    def begin(self, kernel: int, above: int) -> None:
        """Wait until it exists. Raises Lost.

        kernel: a descriptor that becomes readable when its kernel ends.
        above: a pidfd of the kernel, from which it must descend.
        """
        poller = select.poll()
        poller.register(self._told, select.POLLIN)
        poller.register(kernel, select.POLLIN)
        if self._told.fileno() not in dict(poller.poll(1000 * _PATIENCE)):
            raise Lost("the kernel has ended, or its fork didn't begin")
        try:
            message = received(self._told, 1, self.owners)
        except WireError as error:
            raise Lost(str(error)) from None
        if message is None or "started" not in message or len(self.owners) != 1:
            raise Lost("the fork has ended")
        try:
            self.pid = pid_of(self.owners[0].fileno(), above)
        except GoneError as error:
            raise Lost(str(error)) from None


class ForkProcess:
    """The process of a kernel that is a fork of another one.

    story_id: as of that one.
    """

    story_id = ""

    def __init__(self, command: ForkCommand, limits: dict[str, tuple[int, int]]) -> None:
        """Give it its streams, so that it can begin. limits: its kernel's. Raises OSError and Lost."""
        self._command, self.limits, self._began = command, limits, time.monotonic()
        self._early: Early | None = None
        self._is_closed = self._has_killed = False
        self.forks: weakref.WeakSet[ForkProcess] = weakref.WeakSet()
        self._lock = RLock()  # its kernel's thread may end it too
        self._pidfd = command.owners[0].fileno()
        self._owners: list[Owner] = []
        theirs: list[Owner] = [opened(os.open, os.devnull, os.O_RDONLY | os.O_CLOEXEC)]
        try:
            for _ in range(2):
                ends: list[Owner] = []
                own(os.pipe(), ends)
                self._owners.append(high(ends[0]))
                theirs.append(high(ends[1]))
            message = {
                **dict.fromkeys(("env", "cwd", "argv", "umask")),
                **{"op": "go", "kernel": True, "seed": os.urandom(32).hex(), "fds": []},
            }
            rest = command.go(message, [owner.fileno() for owner in theirs])
        except BaseException:
            for owner in self._owners:
                owner.close()
            raise
        finally:
            for owner in theirs:
                owner.close()
        self.line = BranchLine(command.line, rest)
        self.pipes = (self._owners[0].fileno(), self._owners[1].fileno())

    @property
    def pid(self) -> int:
        """Its number, as this process sees it."""
        return self._command.pid

    @property
    def pidfd(self) -> int:
        """A descriptor of it, by which its forks are known: they descend from it."""
        return self._pidfd

    def fileno(self) -> int:
        """Return a descriptor that becomes readable at its end."""
        return self._pidfd

    def signal(self, number: int) -> None:
        """Send it a signal, if it still exists; SIGKILL ends what it has started too. Any thread may."""
        with self._lock:
            if not self._is_closed:
                if number == signal.SIGKILL:
                    _end_descendants(self._pidfd, self.pid)
                self._command.signal(number)

    def has_ended(self) -> bool:
        """Return whether it has ended."""
        return is_readable(self._pidfd)

    def kill(self, *, early: Early | None = None) -> None:
        """End it and what it has started, and return when it has gone. early: why. Any thread may. Raises KillError."""
        with self._lock:
            if not self._is_closed:
                self._early = self._early or early
                self._kill()

    def _kill(self) -> None:
        for fork in tuple(self.forks):
            fork.kill()
        self._has_killed = self._has_killed or not self.has_ended()
        kill = kills.Kill()
        below = _end_descendants(self._pidfd, self.pid)
        self._command.signal(signal.SIGKILL)
        for pidfd in (self._pidfd, *(owner.fileno() for owner in below)):
            while not is_readable(pidfd, kill.pause()):
                kills.free(self.pid)
                error: KillError | None = kill.error(self.pid, 0)
                if error is not None:
                    raise error

    def outcome(self) -> tuple[int, Usage | None]:
        """Return how it has ended, and what it has used itself."""
        command, until = self._command, time.monotonic() + (_SOON if self._has_killed else _REAPED)
        while (status := self._status()) is None and time.monotonic() < until:
            time.sleep(0.001)
        if status is None and self._has_killed:  # a fork above has adopted it, and doesn't reap
            status = int(signal.SIGKILL)
        code = _LOST if status is None else os.waitstatus_to_exitcode(status)
        used = command.used
        seconds = 0.0 if used is None else (used.user_us + used.system_us) / 1e6
        usage = Usage(
            wall=time.monotonic() - self._began,
            user=0.0 if used is None else used.user_us / 1e6,
            system=0.0 if used is None else used.system_us / 1e6,
            max_rss=0 if used is None else used.max_rss,
            cause=self._early or ("unknown" if status is None else cause(code, False, self.limits, seconds)),
            is_complete=False,
        )
        return code, usage

    def _status(self) -> int | None:
        """Return the wait status of a fork that has ended; None if it isn't known yet.

        Its kernel reaps it and says so, unless that runs code: then it is a zombie. If the kernel has ended, pid 1
        reaps it, and there is a moment in which nothing knows the status.
        """
        command = self._command
        if command.try_wait(os.WNOHANG) and not command.is_lost:
            return command.status
        status = _status_of_zombie(self.pid)
        return orphans.status_by_pidfd(self._pidfd) if status is None and command.is_lost else status

    def close(self) -> None:
        """Close its descriptors."""
        with self._lock:
            self._is_closed = True
            self._command.close()
            for owner in self._owners:
                owner.close()


def _status_of_zombie(pid: int) -> int | None:
    """Return the wait status of a zombie; None if the process isn't one, or the status isn't known.

    The kernel shows 0 to a reader that may not see the status (proc_pid_stat(5)), and also if it exited with 0.
    """
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
        if fields[0] == b"Z":
            return int(fields[49]) or None  # exit_code
    return None


def _children(pid: int) -> list[int]:
    """Return the children of a process; raises OSError if this kernel doesn't list them."""
    found: list[int] = []
    for name in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError), open(f"/proc/{pid}/task/{name}/children", "rb") as file:
            found += map(int, file.read().split())
    return found


def _descendants(pid: int) -> list[int]:
    """Return what descends from a process, each process after its parent."""
    found = [pid]
    try:
        for one in found:
            found += _children(one) if one == pid or os.path.isdir(f"/proc/{one}") else []
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN, or the process has just gone
        return [one for one in kills.below([pid]) if one != pid]
    return found[1:]


def _end_descendants(pidfd: int, pid: int) -> list[Owner]:
    """Stop a process, then all that descends from it, until nothing new is found; then kill all but the process.

    Returns the pidfds of what was killed.
    """
    if orphans.status_of("self").get("Pid") != str(os.getpid()) or is_readable(pidfd):
        return []  # a /proc of another pid namespace: its numbers are other processes' here
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
    known: dict[int, Owner] = {}
    for _ in range(_ROUNDS):
        new = [one for one in _descendants(pid) if one not in known]
        if not new:
            break
        for one in new:
            with contextlib.suppress(OSError):
                owner = opened(os.pidfd_open, one)
                # By now the number may be another process's.
                if one in _descendants(pid):
                    known[one] = owner
                    signal.pidfd_send_signal(owner.fileno(), signal.SIGSTOP)
    for owner in known.values():
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(owner.fileno(), signal.SIGKILL)
    return list(known.values())


def check_count(n: object) -> None:
    """Raise TypeError and ValueError unless it is a number of forks."""
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"n is {type_phrase(n)}, must be an int")
    if not 1 <= n <= _MOST:
        raise ValueError(f"n is {n}, must be from 1 to {_MOST}")


def forked(kernel: KernelProcess, exchange: KernelExchange, number: int) -> ForkProcess:
    """Have a kernel fork, and return the fork. number: of this request. Raises ForkError and OSError."""
    command = ForkCommand()
    try:
        kernel.line.begin(number, frame({"op": "fork", "id": number}), [end.fileno() for end in command.ends.theirs])
        kernel.line.write()
        state = exchange.run(time.monotonic() + _PATIENCE)
        command.ends.give()
        reply = kernel.line.reply
        if reply is None:
            how = "it has ended" if state == "lost" else f"it didn't answer for {_PATIENCE:g} seconds, and was killed"
            kernel.signal(signal.SIGKILL)
            exchange.run(time.monotonic() + _PATIENCE, to_end=True)
            raise ForkError(how)
        if "forked" not in reply:
            raise _failure(reply)
        command.begin(kernel.fileno(), kernel.pidfd)
        return ForkProcess(command, kernel.limits)
    except Lost as error:
        command.close()
        raise ForkError(str(error)) from None
    except BaseException:
        command.close()
        raise


def _failure(reply: Mapping[str, Any]) -> ForkError:
    """Return the error for what a kernel says about a fork that it couldn't make."""
    failed = reply.get("failed")
    row = failed if isinstance(failed, dict) else {}
    names = row.get("names")
    if row.get("what") == "threads" and isinstance(names, list):
        return ForkError("threads", tuple(str(name)[:100] for name in names[:100]))
    number = row.get("errno")
    if isinstance(number, int) and 0 < number < 4096:
        return ForkError(os.strerror(number))
    return ForkError(str(row.get("message", "its answer makes no sense"))[:500])
