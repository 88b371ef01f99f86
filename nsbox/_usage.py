"""What a sandbox used up, why it ended, and which processes are in it."""

from __future__ import annotations

import signal

from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._core import abi

if TYPE_CHECKING:
    import resource
    from typing import Any, Literal

    import psutil

    from nsbox._machine.cgroup import Spent

    Cause = Literal["exit", "signal", "timeout", "limit", "unknown"]

_SLACK = 0.85  # of a limit: the kernel counts ticks for it, and getrusage(2) is scaled by what the scheduler says
_OF_LIMITS = {-signal.SIGXCPU: "CPU", -signal.SIGXFSZ: "FSIZE"}


@frozen
class Usage(Frozen):
    """What a command, and whatever else ran in its sandbox, used up: `Popen.sandbox.usage`.

    wall: seconds from before Popen() until its end was noticed. user, system: seconds of processor time. max_rss: bytes
    of memory of the largest process (getrusage(2), ru_maxrss); never less than this process had used itself at the
    spawn, since the kernel counts a command's memory from before its exec. memory_peak: bytes of memory of all together
    at most; None unless Policy.limits has something that takes a cgroup. cause: "exit", "signal", "timeout" (it was
    ended after a time limit), "limit" (killed by one of Policy.limits) or "unknown" (somebody else has reaped it, or
    SIGCHLD is ignored and the kernel older than Linux 6.15; the exit status is 255 then). oom_kills: how many processes
    the kernel has killed for Limits.total_memory.

    is_complete: whether user, system and max_rss count everything that wait4(2) does (not children of a process that
    ignores SIGCHLD). They don't if somebody else reaped the command (SIGCHLD ignored, asyncio's own child watchers), if
    the sandbox's init was killed or couldn't kill all (processes of other ids), or while something of a sandbox with
    kill_on_exit=False goes on.
    """

    wall: float
    user: float
    system: float
    max_rss: int
    cause: Cause
    is_complete: bool
    memory_peak: int | None = None
    oom_kills: int = 0

    def as_dict(self) -> dict[str, object]:
        """Return it as values that JSON has: seconds of processor time, bytes of memory, and why it ended."""
        return {
            "cpu": round(self.user + self.system, 3),
            "max_rss": self.max_rss,
            "memory_peak": self.memory_peak,
            "cause": self.cause,
            "complete": self.is_complete,
        }


def reaches(cpu_seconds: float, limit: int | None) -> bool:
    """Say if so much processor time may have been too much for the kernel."""
    return limit is not None and cpu_seconds >= _SLACK * limit


def cause(
    status: int, timed_out: bool, limits: dict[str, tuple[int, int]], cpu_seconds: float, oom_kills: int = 0
) -> Cause:
    """Return why a command ended. status: as Popen.returncode. limits: soft and hard ones by RLIMIT name."""
    if status >= 0:
        return "exit"
    if status == -signal.SIGKILL and oom_kills:
        return "limit"
    if _OF_LIMITS.get(status) in limits:
        return "limit"
    if timed_out:
        return "timeout"
    is_used_up = "CPU" in limits and reaches(cpu_seconds, limits["CPU"][1])
    return "limit" if status == -signal.SIGKILL and is_used_up else "signal"


def usage(
    command: resource.struct_rusage | None,
    others: tuple[int, int, int] | None,
    *,
    wall: float,
    status: int,
    timed_out: bool,
    limits: dict[str, tuple[int, int]],
    spent: Spent | None = None,
    known: Cause | None = None,
) -> Usage:
    """Add up what is known: the command's rusage, and the last word of the sandbox's init. known: the cause."""
    user = command.ru_utime if command else 0.0
    system = command.ru_stime if command else 0.0
    rss = command.ru_maxrss * abi.RSS_UNIT if command else 0
    oom_kills = spent.oom_kills if spent else 0
    why = known or cause(status, timed_out, limits, user + system, oom_kills)
    if others is not None:
        user, system, rss = user + others[0] / 1e6, system + others[1] / 1e6, max(rss, others[2])
    peak = spent.memory_peak if spent else None
    return Usage(wall, user, system, rss, why, command is not None and others is not None, peak, oom_kills)


def processes(command: int | None, init: int) -> list[psutil.Process]:
    """Return the processes of a sandbox, its init left out: all descend from the command or, orphaned, from the init.

    command: None when it has been reaped, so that its pid may be another's by now. Raises ImportError without psutil.
    """
    try:
        import psutil
    except ImportError as error:
        raise ImportError("processes() needs psutil: pip install psutil") from error
    found: dict[int, Any] = {}
    for pid in (command, init):
        if pid is None:
            continue
        try:
            parent = psutil.Process(pid)
            if command is None and parent.name() not in ("nsbox-init", "bwrap"):
                continue  # the sandbox has ended, and somebody else has the number
            inside = ([parent] if pid == command else []) + parent.children(recursive=True)
        except psutil.NoSuchProcess:
            continue
        found |= {process.pid: process for process in inside}
    return list(found.values())
