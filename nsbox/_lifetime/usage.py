"""What a sandbox used up, why it ended, and which processes are in it."""

from __future__ import annotations

import signal

from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._core import abi
from nsbox._lifetime.ends import CAUSES

if TYPE_CHECKING:
    import resource
    from typing import Any

    import psutil

    from nsbox._core.command import Spent, Used
    from nsbox._lifetime.ends import Cause

# Of a limit. The kernel counts whole ticks for it, getrusage(2) what the scheduler has measured. On a busy virtual
# machine, commands that had used 0.64 to 0.9 of the limit by that measure were ended by it.
_SLACK = 0.5


@frozen
class Usage(Frozen):
    """What a command, and whatever else ran in its sandbox, used up: `Popen.sandbox.usage`.

    wall: seconds from before Popen() until its end was noticed.
    user, system: seconds of processor time.
    max_rss: bytes of memory of the largest process (getrusage(2), ru_maxrss), if is_rss_own. The kernel counts a
        command's memory from before its exec, so it is never less than the caller's own process had used at the spawn.
    cause: why it ended: "exit", "signal", "timeout" (it was ended after a time limit), "cancelled" (a tool call was),
        "limit" (one of Policy.limits killed it, and the figures agree; a command can send itself SIGXCPU or SIGXFSZ) or
        "unknown" (other code has reaped it, or SIGCHLD is ignored and the kernel is older than Linux 6.15; the exit
        status is 255 then).
    is_complete: whether user, system and max_rss count everything that wait4(2) counts (not children of a process that
        ignores SIGCHLD). They don't if other code reaped the command (SIGCHLD ignored, asyncio's own child watchers).
        They don't if the sandbox's init was killed, or couldn't kill everything (processes of other ids). Nor do they
        while something of a sandbox with kill_on_exit=False goes on, for a command of a session, or for a call of a
        kernel that goes on: what their children used isn't in there. After a kill it is True if the init has seen all
        of them end in a tenth of a second, which a machine under load may not allow.
    memory_peak: bytes of memory of all processes together, at most. None unless Policy.limits requires a cgroup.
    oom_kills: how many processes the kernel has killed because of Limits.total_memory.
    is_rss_own: whether max_rss is what a process of the command has used. If False, it is the caller's own, and the
        command has used at most that.
    """

    wall: float
    user: float
    system: float
    max_rss: int
    cause: Cause
    is_complete: bool
    memory_peak: int | None = None
    oom_kills: int = 0
    is_rss_own: bool = True

    def as_dict(self) -> dict[str, object]:
        """Return it as values for JSON, as all records have it: seconds, bytes of memory, and why the command ended.

        `cpu` is the sum of `user` and `system`.
        """
        return {
            "wall": round(self.wall, 6),
            "user": round(self.user, 6),
            "system": round(self.system, 6),
            "cpu": round(self.user + self.system, 6),
            "max_rss": self.max_rss,
            "rss_own": self.is_rss_own,
            "memory_peak": self.memory_peak,
            "oom_kills": self.oom_kills,
            "cause": self.cause,
            "complete": self.is_complete,
        }


def usage_schema() -> dict[str, Any]:
    """Return the JSON Schema of Usage.as_dict()."""
    count, flag = {"type": "integer", "minimum": 0}, {"type": "boolean"}
    properties: dict[str, Any] = {
        **{name: {"type": "number", "minimum": 0} for name in ("wall", "user", "system", "cpu")},
        "max_rss": count,
        "rss_own": flag,
        "memory_peak": {"type": ["integer", "null"]},
        "oom_kills": count,
        "cause": {"enum": [*CAUSES]},
        "complete": flag,
    }
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def reaches(cpu_seconds: float, limit: int | None) -> bool:
    """Return whether this much processor time may have reached the limit, as the kernel counts it."""
    return limit is not None and cpu_seconds >= _SLACK * limit


def cause(
    status: int, timed_out: bool, limits: dict[str, tuple[int, int]], cpu_seconds: float, oom_kills: int = 0
) -> Cause:
    """Return why a command ended. status: as Popen.returncode. limits: (soft, hard) by the name of the RLIMIT."""
    if status >= 0:
        return "exit"
    if status == -signal.SIGKILL and oom_kills:
        return "limit"
    soft, hard = limits.get("CPU", (None, None))
    if status == -signal.SIGXCPU and reaches(cpu_seconds, soft):
        return "limit"
    if timed_out:
        return "timeout"
    return "limit" if status == -signal.SIGKILL and reaches(cpu_seconds, hard) else "signal"


def usage(
    command: resource.struct_rusage | None,
    others: Used | None,
    *,
    wall: float,
    status: int,
    timed_out: bool,
    limits: dict[str, tuple[int, int]],
    spent: Spent | None = None,
    known: Cause | None = None,
    callers_rss: int = 0,
) -> Usage:
    """Return the sum of the command's rusage and of what the sandbox's init reported about the others.

    others: None if the init reported nothing.
    known: the cause, if it need not be found out.
    callers_rss: ru_maxrss of the process that the command was spawned from, which the command's begins with.
    """
    user = command.ru_utime if command else 0.0
    system = command.ru_stime if command else 0.0
    rss = command.ru_maxrss * abi.RSS_UNIT if command else 0
    is_rss_own = command is None or command.ru_maxrss > callers_rss
    oom_kills = spent.oom_kills if spent else 0
    why = known or cause(status, timed_out, limits, user + system, oom_kills)
    if others is not None:
        user, system = user + others.user_us / 1e6, system + others.system_us / 1e6
        is_rss_own = is_rss_own or others.max_rss >= rss
        rss = max(rss, others.max_rss)
    peak = spent.memory_peak if spent else None
    return Usage(
        wall=wall,
        user=user,
        system=system,
        max_rss=rss,
        cause=why,
        is_complete=command is not None and others is not None,
        memory_peak=peak,
        oom_kills=oom_kills,
        is_rss_own=is_rss_own,
    )


def processes(command: int | None, init: int) -> list[psutil.Process]:
    """Return the processes of a sandbox, except its init: they descend from the command or, orphaned, from the init.

    command: None if it has been reaped, since another process may have its pid by now. Raises ImportError without
    psutil.
    """
    try:
        import psutil
    except ImportError as error:
        raise ImportError("processes() needs psutil: pip install psutil") from error
    members: dict[int, Any] = {}
    for pid in (command, init):
        if pid is None:
            continue
        try:
            parent = psutil.Process(pid)
            if command is None and parent.name() not in ("nsbox-init", "bwrap"):
                continue  # the sandbox has ended, and another process has the number
            inside = ([parent] if pid == command else []) + parent.children(recursive=True)
        except psutil.NoSuchProcess:
            continue
        members |= {process.pid: process for process in inside}
    return list(members.values())
