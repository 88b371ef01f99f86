"""Limits: what a command may use up, as a wish; and the checks of each."""

from __future__ import annotations

from nsbox._base.checks import check_count, check_size
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, fields, frozen_by_name, replace

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    from nsbox._policy.keywords import Amounts


def _check_cpus(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.01 <= value <= 1e6:
        raise PolicyError(name, f"{value!r} isn't a number of processors between 0.01 and 1000000")
    return float(value)


def _check_seconds(name: str, value: object) -> int:
    if isinstance(value, float):
        raise PolicyError(name, f"is {value!r}, must be a whole number of seconds")
    return check_count(name, value)


def _check_size_or_none(name: str, value: object) -> int:
    return 0 if type(value) is int and value == 0 else check_size(name, value)


_LIMIT_CHECKS: dict[str, Callable[[str, object], int | float]] = {
    **dict.fromkeys(("memory", "file_size", "total_memory"), check_size),
    **dict.fromkeys(("core_size", "locked_memory", "message_queues"), _check_size_or_none),
    "cpu_seconds": _check_seconds,
    "cpus": _check_cpus,
}


@frozen_by_name
class Limits(Frozen):
    """What a command may use up. None means that nsbox sets no limit.

    Sizes are bytes, or strings such as "512M". Unless something else is said, a limit is one of setrlimit(2), for each
    process. Raises PolicyError.

    memory: size of the address space (RLIMIT_AS).
    processes: number of processes and threads in the whole sandbox (RLIMIT_NPROC, which the kernel counts per user
        namespace since 5.14, and never for its uid 0).
    cpu_seconds: processor time (RLIMIT_CPU): SIGXCPU at the limit, SIGKILL five seconds later.
    file_size: size of any file that is written (RLIMIT_FSIZE).
    open_files: number of descriptors (RLIMIT_NOFILE).
    core_size: size of a core dump (RLIMIT_CORE). With 0 there are none, and a handler gets none either. In a
        workspace, None is the same.
    locked_memory: size of what a process may lock (RLIMIT_MEMLOCK).
    message_queues: size of POSIX message queues (RLIMIT_MSGQUEUE).
    pending_signals: number of queued signals and timers (RLIMIT_SIGPENDING). The kernel counts these last three by
        user, so in a workspace None is a small amount: SMALL_LIMITS.
    total_memory: size of all processes together, including their files in /tmp, and without swap; beyond it, all are
        killed. Needs a cgroup.
    cpus: how many processors' time all processes may have together, such as 1.5. Needs a cgroup.

    The cgroup must be one of version 2 that was delegated to the caller. Where RLIMIT_NPROC doesn't work, processes
    needs one too.
    """

    memory: int | str | None = None
    processes: int | None = None
    cpu_seconds: int | None = None
    file_size: int | str | None = None
    open_files: int | None = None
    core_size: int | str | None = None
    locked_memory: int | str | None = None
    message_queues: int | str | None = None
    pending_signals: int | None = None
    total_memory: int | str | None = None
    cpus: float | None = None

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if value is not None:
                check = _LIMIT_CHECKS.get(f.name, check_count)
                object.__setattr__(self, f.name, check(f"limits.{f.name}", value))

    @classmethod
    def sensible(cls, **overrides: Unpack[Amounts]) -> Limits:
        """Return limits that no ordinary build, test or tool reaches, but a runaway command soon does.

        4096 processes and threads, files of 16 GiB, 65536 open files per process, no core dumps. The address space has
        no limit, since node, java, Go and sanitizers reserve more than they use; nor has processor time, which long
        work needs. To bound memory, use total_memory, which needs a cgroup.

        overrides: fields with other amounts, or None, as in sensible(total_memory="1G"). Raises PolicyError, and
        TypeError for an unknown one.
        """
        return replace(cls(processes=4096, file_size="16G", open_files=65536, core_size=0), **overrides)

    def rlimits(self) -> tuple[tuple[str, int], ...]:
        """Return the limits that are set: pairs of a RLIMIT_ name without that prefix, and an amount."""
        names = {
            "AS": self.memory,
            "NPROC": self.processes,
            "CPU": self.cpu_seconds,
            "FSIZE": self.file_size,
            "NOFILE": self.open_files,
            "CORE": self.core_size,
            "MEMLOCK": self.locked_memory,
            "MSGQUEUE": self.message_queues,
            "SIGPENDING": self.pending_signals,
        }
        return tuple((name, int(value)) for name, value in names.items() if value is not None)


# The kernel counts these by user, across namespaces. With the caller's own limits, one command could use up what all of
# the user's programs share. A message queue with the defaults of mq_open(3) has some 84 KB; gpg locks 64 KB.
SMALL_LIMITS = {"locked_memory": 1 << 20, "message_queues": 256 << 10, "pending_signals": 256}


def with_small(limits: Limits) -> Limits:
    """Return the limits of a workspace: those of SMALL_LIMITS are small unless `limits` sets them."""
    return replace(limits, **{name: value for name, value in SMALL_LIMITS.items() if getattr(limits, name) is None})
