"""Limits: what a command may use up, as a wish; and what each must look like."""

from __future__ import annotations

from nsbox._base.checks import check_count, check_size
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, fields, frozen_by_name, replace

if TYPE_CHECKING:
    from collections.abc import Callable


def _check_cpus(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.01 <= value <= 1e6:
        raise PolicyError(name, f"{value!r} is no number of processors between 0.01 and 1000000")
    return float(value)


def _check_size_or_none(name: str, value: object) -> int:
    return 0 if type(value) is int and value == 0 else check_size(name, value)


_LIMIT_CHECKS: dict[str, Callable[[str, object], int | float]] = {
    **dict.fromkeys(("memory", "file_size", "total_memory"), check_size),
    **dict.fromkeys(("core_size", "locked_memory", "message_queues"), _check_size_or_none),
    "cpus": _check_cpus,
}


@frozen_by_name
class Limits(Frozen):
    """What a command may use up; None: no limit of ours. Where nothing else is said, each process by setrlimit(2).

    memory: address space in bytes (RLIMIT_AS). processes: processes and threads of the whole sandbox (RLIMIT_NPROC,
    which the kernel counts per user namespace from 5.14 on, and never for its uid 0). cpu_seconds: processor time
    (RLIMIT_CPU: SIGXCPU at the limit, SIGKILL five seconds later). file_size: bytes of any file written (RLIMIT_FSIZE).
    open_files: descriptors (RLIMIT_NOFILE). core_size: bytes of a core dump (RLIMIT_CORE); 0, and None
    in a workspace: none, to a handler neither.
    locked_memory: bytes that a process may lock (RLIMIT_MEMLOCK). message_queues: bytes of POSIX message queues
    (RLIMIT_MSGQUEUE). pending_signals: queued signals and timers (RLIMIT_SIGPENDING). None of these three: few in a
    workspace, since the kernel counts them by user.
    total_memory: bytes of all processes together, with their files in /tmp and without swap; beyond it all are killed.
    cpus: how many processors' time all may have together, such as 1.5. These two need a cgroup v2 that was delegated to
    the caller, and so does processes where RLIMIT_NPROC doesn't hold. Sizes may be strings such as "512M".
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
    def sensible(cls) -> Limits:
        """Return amounts that no ordinary build, test or tool reaches, and that a runaway command soon does.

        4096 processes and threads, files of 16 GiB, 65536 open files of a process, no core dumps. Not among them is
        the address space: node, java, Go and sanitizers reserve more of it than they use; nor processor time, which
        long work takes. total_memory bounds memory, and takes a cgroup.
        """
        return cls(processes=4096, file_size="16G", open_files=65536, core_size=0)

    def rlimits(self) -> tuple[tuple[str, int], ...]:
        """Return the limits that are set, by their RLIMIT names."""
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


# What the kernel counts by user, whatever the namespaces: with the caller's limits one command could use up what all of
# the user's programs may have. A message queue as mq_open(3) makes it by default takes some 84 KB; gpg locks 64 KB.
SMALL_LIMITS = {"locked_memory": 1 << 20, "message_queues": 256 << 10, "pending_signals": 256}


def with_small(limits: Limits) -> Limits:
    """Return the limits of a workspace, which has few of these unless it asks for more."""
    return replace(limits, **{name: value for name, value in SMALL_LIMITS.items() if getattr(limits, name) is None})
