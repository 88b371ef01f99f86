"""After SIGKILL, while something is left (traced, or stuck): how long to wait, what to do next, what to report.

SIGKILL isn't always the end. The tracer of a process reaps it, each thread for itself, before its parent can
(ptrace(2), "Death under ptrace"). A system call that can't be interrupted has to return first. So pid 1 is killed too,
and so are tracers; and no wait is for ever.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

from nsbox._base.errors import KillError, Survivor
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.poll import is_readable
from nsbox._core import orphans

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SLICE = 5.0  # the longest sleep, in seconds, before looking whether another thread has asked for a kill
_PATIENCE = 30.0  # seconds from a kill to the error
_UNMOUNTING = 600.0  # the same if nothing but pid 1 is left: file systems may have much to write first
GRACE = 2.0  # seconds from SIGTERM to SIGKILL, by default
MOST_GRACE = 600.0
_ALONE = 1.5  # seconds that pid 1 has to end everything by itself
_TRACED = 5.0  # seconds to free a session's command of its tracers, before the session is ended


def check_grace(grace: float) -> float:
    """Return the seconds from SIGTERM to SIGKILL; raises ValueError unless they are a number from 0 to 600."""
    is_number = type(grace) is int or (isinstance(grace, int | float) and not isinstance(grace, bool))
    if not is_number or not 0 <= grace <= MOST_GRACE:
        raise ValueError(f"grace is {grace!r}, must be a number of seconds from 0 to {MOST_GRACE:g}")
    return grace


class Kill:
    """A kill, from the moment when it was requested."""

    __slots__ = ("_look", "_next", "_since")

    def __init__(self) -> None:
        self._since = self._next = self._look = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long ago it began."""
        return time.monotonic() - self._since

    @property
    def is_late(self) -> bool:
        """Whether pid 1 should have ended all by now."""
        return self.seconds >= _ALONE

    @property
    def is_traced(self) -> bool:
        """Whether a session's command should have been freed of its tracers by now."""
        return self.seconds >= _TRACED

    def pause(self) -> float:
        """Return the seconds after which there may be something to do."""
        return 0.02 if self.seconds < 0.2 else 0.1 if self.seconds < 2 else 0.5

    def is_due(self) -> bool:
        """Return whether it is time for the next step. If so, the caller takes it now."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self.pause()
        return True

    def error(self, command: int, init: int) -> KillError | None:
        """Return the error to raise, or None while there is hope. command, init: the sandbox's pids; 0: it has none."""
        if self.seconds < _PATIENCE or time.monotonic() < self._look:
            return None
        self._look = time.monotonic() + SLICE  # all of /proc is read
        processes = survivors(command, init)
        if self.seconds < _UNMOUNTING and all(one.pid == init for one in processes):
            return None
        return KillError(self.seconds, processes)


def outlast(pidfd: int, pid: int) -> None:
    """Wait for the end of a pid 1 that was killed; raises KillError if it doesn't end."""
    kill, poller = Kill(), select.poll()
    poller.register(pidfd, select.POLLIN)
    while not poller.poll(1000 * kill.pause()):
        error = kill.error(0, pid)
        if error is not None:
            raise error


def _threads(pid: int) -> Iterator[dict[str, str]]:
    """Yield the status of each thread of a process, even of one that has ended and that a tracer hasn't reaped."""
    try:
        names = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for name in names:
        yield orphans.status_of(f"{pid}/task/{name}")


def _filters(status: dict[str, str]) -> int:
    return int(status.get("Seccomp_filters", 0))


def _tracers(pid: int) -> set[int]:
    """Return the processes that trace a thread of this one and are in a sandbox of ours.

    They have more seccomp filters than this process (Linux 5.9 tells how many). The user's debugger doesn't: it isn't
    ours to kill, and it lets its tracees go.
    """
    tracers = set()
    own = _filters(orphans.status_of("self"))
    for thread in {int(status.get("TracerPid", 0)) for status in _threads(pid)} - {0}:
        status = orphans.status_of(thread)
        if status.get("NoNewPrivs") == "1" and _filters(status) > own:
            tracers.add(int(status.get("Tgid", 0)))
    return tracers - {0}


def free(pid: int) -> bool:
    """Kill the tracers of a process, and their own tracers in turn; return whether there were any."""
    known, new = {pid}, [pid]
    if orphans.status_of("self").get("Pid") != str(os.getpid()):
        return False  # a /proc of another pid namespace: its numbers are other processes' here
    while new:
        traced = new.pop()
        for tracer in _tracers(traced) - known:
            known.add(tracer)
            with contextlib.suppress(OSError):  # it has gone, or isn't ours to kill, which error() will report
                pidfd = os.pidfd_open(tracer)
                try:
                    if tracer in _tracers(traced):  # no other process has its number by now
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                finally:
                    os.close(pidfd)
            new.append(tracer)
    return len(known) > 1


def below(roots: Iterable[int]) -> Iterator[int]:
    """Yield the pids of these processes and of all their descendants."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            children.setdefault(int(orphans.status_of(name).get("PPid", 0)), []).append(int(name))
    new, known = list(roots), set()
    while new:
        pid = new.pop()
        if pid not in known:
            known.add(pid)
            yield pid
            new += children.get(pid, ())


def signal_below(pid: int, number: int) -> int:
    """Send a signal (0: none) to a process and all its descendants; return how many of them are alive."""
    if orphans.status_of("self").get("Pid") != str(os.getpid()):
        return 0  # a /proc of another pid namespace: its numbers are other processes' here
    alive, known = 0, {pid}
    for one in below([pid]):
        try:
            pidfd = os.pidfd_open(one)
        except OSError:
            continue
        try:
            parent = int(orphans.status_of(one).get("PPid", 0))
            if is_readable(pidfd) or (one != pid and parent not in known):
                continue  # it has ended, and another process may have its number by now
            known.add(one)
            alive += 1
            for sig in (number, signal.SIGCONT if number == signal.SIGTERM else 0):  # a stopped process can't act on it
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(pidfd, sig)
        finally:
            os.close(pidfd)
    return alive


def await_handled(pid: int, number: int) -> None:
    """Wait until a process that blocks a signal has read it and acted on it, at most a second.

    So the signal has reached the command when this returns, as if the caller had sent it directly.
    """
    until = time.monotonic() + 1
    while time.monotonic() < until:
        status = orphans.status_of(pid)
        if not status or (
            not int(status.get("ShdPnd", "0"), 16) >> number - 1 & 1 and status.get("State", "S")[0] != "R"
        ):
            return
        time.sleep(0.0002)


def has_group(leader: int) -> bool:
    """Return whether a process group has a process besides its leader that hasn't ended."""
    if not os.path.isdir("/proc"):
        return False
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != leader:
            try:
                with open(f"/proc/{name}/stat", errors="replace") as file:
                    state, _, group = file.read().rpartition(")")[2].split()[:3]
            except (OSError, ValueError):
                continue
            if int(group) == leader and state not in "ZX":
                return True
    return False


def survivors(command: int, init: int) -> tuple[Survivor, ...]:
    """Return what is left of a sandbox. Without a pid 1, that is the command alone: other processes may go on."""
    left: list[Survivor] = []
    for pid in below({command, init} - {0}) if init else [command]:
        rows = list(_threads(pid))
        traced = [row for row in rows if row.get("TracerPid", "0") != "0"]
        for row in (traced or rows)[:1]:
            left.append(Survivor(pid, row.get("Name", ""), row.get("State", ""), int(row.get("TracerPid", 0))))
    return tuple(sorted(left, key=lambda one: one.pid))
