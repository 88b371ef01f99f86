"""Kills that don't end a sandbox at once: what is done next, and in the end what is said to be left.

SIGKILL isn't always the end. What has ended is its tracer's to reap before its parent hears of it, each thread for
itself (ptrace(2), "Death under ptrace"), and a system call that can't be interrupted has to return first. So pid 1 is
killed too, and tracers are; and nobody waits for ever.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

from nsbox._base.errors import KillError, Survivor
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._core import orphans

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SLICE = 5.0  # seconds that anybody sleeps before looking whether another thread has asked for a kill
_PATIENCE = 30.0  # seconds from a kill to the error
_UNMOUNTING = 600.0  # the same if nothing but pid 1 is left: file systems may have much to write first
GRACE = 2.0  # seconds from SIGTERM to SIGKILL, where a grace is the default
MOST_GRACE = 600.0
_ALONE = 1.5  # seconds in which pid 1 ends all by itself
_TRACED = 5.0  # seconds in which a session's command is freed of its tracers, before the session ends


def check_grace(grace: float) -> float:
    """Return seconds from SIGTERM to SIGKILL; raises ValueError for what is none, or too many."""
    is_number = type(grace) is int or (isinstance(grace, int | float) and not isinstance(grace, bool))
    if not is_number or not 0 <= grace <= MOST_GRACE:
        raise ValueError(f"grace is {grace!r}, must be a number of seconds from 0 to {MOST_GRACE:g}")
    return grace


class Kill:
    """One that was asked for, from then on."""

    __slots__ = ("_look", "_next", "_since")

    def __init__(self) -> None:
        self._since = self._next = self._look = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long ago it was."""
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
        """Return after how many seconds there may be something to do."""
        return 0.02 if self.seconds < 0.2 else 0.1 if self.seconds < 2 else 0.5

    def is_due(self) -> bool:
        """Say if it is time for the next step, which is taken now."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self.pause()
        return True

    def error(self, command: int, init: int) -> KillError | None:
        """Return what to raise, or None while there is hope. command, init: pids of the sandbox's; 0: there is none."""
        if self.seconds < _PATIENCE or time.monotonic() < self._look:
            return None
        self._look = time.monotonic() + SLICE  # all of /proc is read
        left = survivors(command, init)
        if self.seconds < _UNMOUNTING and all(one.pid == init for one in left):
            return None
        return KillError(self.seconds, left)


def outlast(pidfd: int, pid: int) -> None:
    """Return when a pid 1 that was killed has ended; raises KillError if that doesn't come."""
    kill, poller = Kill(), select.poll()
    poller.register(pidfd, select.POLLIN)
    while not poller.poll(1000 * kill.pause()):
        error = kill.error(0, pid)
        if error is not None:
            raise error


def _threads(pid: int) -> Iterator[dict[str, str]]:
    """Tell the status of each thread of a process, of those too that have ended and that a tracer hasn't reaped."""
    try:
        names = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for name in names:
        yield orphans.status_of(f"{pid}/task/{name}")


def _filters(status: dict[str, str]) -> int:
    return int(status.get("Seccomp_filters", 0))


def _tracers(pid: int) -> set[int]:
    """Return the processes that trace threads of this one and are in a sandbox of ours.

    They have more seccomp filters than this process (Linux 5.9 tells how many). A debugger of the user's hasn't: it
    isn't ours to kill, and lets its tracees go.
    """
    found = set()
    own = _filters(orphans.status_of("self"))
    for thread in {int(status.get("TracerPid", 0)) for status in _threads(pid)} - {0}:
        status = orphans.status_of(thread)
        if status.get("NoNewPrivs") == "1" and _filters(status) > own:
            found.add(int(status.get("Tgid", 0)))
    return found - {0}


def free(pid: int) -> bool:
    """Kill those who trace a process, and those who trace them; say if there were any."""
    known, new = {pid}, [pid]
    if orphans.status_of("self").get("Pid") != str(os.getpid()):
        return False  # a /proc of another pid namespace: its numbers are other processes' here
    while new:
        traced = new.pop()
        for tracer in _tracers(traced) - known:
            known.add(tracer)
            with contextlib.suppress(OSError):  # it has gone, or isn't ours to kill, which error() will tell
                pidfd = os.pidfd_open(tracer)
                try:
                    if tracer in _tracers(traced):  # its number isn't another's by now
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                finally:
                    os.close(pidfd)
            new.append(tracer)
    return len(known) > 1


def _below(roots: Iterable[int]) -> Iterator[int]:
    """Tell the pids of processes, and of all that descend from them."""
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
    """Send a signal to a process and all that descend from it, 0 for none; return how many of them are alive."""
    if orphans.status_of("self").get("Pid") != str(os.getpid()):
        return 0  # a /proc of another pid namespace: its numbers are other processes' here
    alive, known = 0, {pid}
    for one in _below([pid]):
        try:
            pidfd = os.pidfd_open(one)
        except OSError:
            continue
        try:
            parent = int(orphans.status_of(one).get("PPid", 0))
            if orphans.is_readable(pidfd) or (one != pid and parent not in known):
                continue  # it has ended, and its number may be another's by now
            known.add(one)
            alive += 1
            for sig in (number, signal.SIGCONT if number == signal.SIGTERM else 0):  # what is stopped can't act on it
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(pidfd, sig)
        finally:
            os.close(pidfd)
    return alive


def await_handled(pid: int, number: int) -> None:
    """Return when a process that blocks a signal has read and acted on it, at most a second later.

    So what is to happen to the command has happened when this returns, as with a signal of one's own.
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
    """Say if a process group has another process than its leader that hasn't ended."""
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
    """Return what is left of a sandbox. Without a pid 1, what isn't traced goes on as it may: the command alone."""
    found: list[Survivor] = []
    for pid in _below({command, init} - {0}) if init else [command]:
        rows = list(_threads(pid))
        traced = [row for row in rows if row.get("TracerPid", "0") != "0"]
        for row in (traced or rows)[:1]:
            found.append(Survivor(pid, row.get("Name", ""), row.get("State", ""), int(row.get("TracerPid", 0))))
    return tuple(sorted(found, key=lambda one: one.pid))
