"""The process of a kernel, as this process knows it: its line, its pipes, its end."""

from __future__ import annotations

import contextlib
import time
import weakref

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._lifetime.usage import Usage

if TYPE_CHECKING:
    from typing import Protocol

    from nsbox._base.owners import Owner
    from nsbox._interpreter.branch import BranchCommand
    from nsbox._kernels.forks import ForkProcess
    from nsbox._lifetime.ends import Early
    from nsbox._popen.popen import Popen
    from nsbox._python.line import BranchLine

    class KernelProcess(Protocol):
        """What a kernel needs of its process."""

        line: BranchLine
        pipes: tuple[int, int]
        forks: weakref.WeakSet[ForkProcess]

        @property
        def story_id(self) -> str:
            """The id by which observers know the kernel that it is, or was forked from; "" if none listened."""

        @property
        def limits(self) -> dict[str, tuple[int, int]]:
            """The limits of one process, soft and hard, by the names of the RLIMITs."""

        @property
        def pid(self) -> int:
            """Its number, as this process sees it."""

        @property
        def pidfd(self) -> int:
            """A descriptor of it, by which its forks are known: they descend from it."""

        def fileno(self) -> int:
            """Return a descriptor that becomes readable at its end."""

        def signal(self, number: int) -> None:
            """Send it a signal, if it still exists. Any thread may."""

        def has_ended(self) -> bool:
            """Return whether it has ended."""

        def kill(self, *, early: Early | None = None) -> None:
            """End all of it, and return when nothing is left. early: why, before its own end. Raises KillError."""

        def outcome(self) -> tuple[int, Usage | None]:
            """Return how it has ended, as Popen.returncode, and what it has used. Only after kill()."""

        def close(self) -> None:
            """Close its descriptors."""


class BranchProcess:
    """A branch of the interpreter, in namespaces of its own."""

    def __init__(
        self, process: Popen[bytes], branch: BranchCommand, line: BranchLine, outputs: tuple[Owner, Owner]
    ) -> None:
        """Hold them. outputs: the reading ends of stdout and stderr."""
        self._process, self._branch, self.line = process, branch, line
        self._outputs = outputs
        self.forks: weakref.WeakSet[ForkProcess] = weakref.WeakSet()
        self.pipes = (outputs[0].fileno(), outputs[1].fileno())

    @property
    def story_id(self) -> str:
        """The id by which observers know it; "" if none listened at its start."""
        story = self._process._story
        return "" if story is None else story.id

    @property
    def limits(self) -> dict[str, tuple[int, int]]:
        """The limits of one process, soft and hard, by the names of the RLIMITs."""
        return {limit.name: (limit.soft, limit.hard) for limit in self._process.sandbox.plan.rlimits}

    @property
    def pid(self) -> int:
        """Its number, as this process sees it."""
        return self._process.pid

    @property
    def pidfd(self) -> int:
        """A descriptor of it, by which its forks are known: they descend from it."""
        return self._branch.owners[0].fileno()

    def fileno(self) -> int:
        """Return a descriptor that becomes readable at its end."""
        return self._branch.fileno()

    def signal(self, number: int) -> None:
        """Send it a signal, if it still exists. Any thread may."""
        self._branch.signal(number)

    def has_ended(self) -> bool:
        """Return whether it has ended."""
        return self._branch.ends_within(0)

    def kill(self, *, early: Early | None = None) -> None:
        """End all of it, and return when nothing is left. early: why. Raises KillError."""
        if early is not None:
            self._process.mark_early(early)
        if not self.has_ended():
            self._process.kill()
        self._process.wait()

    def outcome(self) -> tuple[int, Usage | None]:
        """Return how it has ended, and what it has used."""
        return self._process.wait(), self._process.sandbox.usage

    def close(self) -> None:
        """Close its descriptors."""
        for output in self._outputs:
            output.close()


class Clock:
    """What a process has used since this was made.

    The kernel says exactly how much processor time a process has used, by a clock of its own (clock_getcpuclockid(3)).
    How much of that was in user mode, two other clocks say (PROF and VIRT of <linux/posix-timers.h>), in ticks.
    """

    def __init__(self, pid: int) -> None:
        self._pid, self._began = pid, time.monotonic()
        self._before = self._read()

    def _read(self) -> tuple[float, float, float]:
        """Return seconds: all, by ticks, and by ticks in user mode."""
        try:
            scheduled, prof, virtual = (time.clock_gettime(~self._pid << 3 | kind) for kind in (2, 0, 1))
        except OSError:  # it has ended
            return 0.0, 0.0, 0.0
        return scheduled, prof, virtual

    def usage(self) -> Usage:
        """Return what it has used since then; max_rss is of its whole life. Other processes don't count."""
        total, ticks, user = (max(0.0, now - then) for now, then in zip(self._read(), self._before, strict=True))
        share = min(1.0, user / ticks) if ticks else 1.0
        wall = time.monotonic() - self._began
        return Usage(
            wall=wall,
            user=total * share,
            system=total * (1 - share),
            max_rss=_peak(self._pid),
            cause="exit",
            is_complete=False,
        )


def _peak(pid: int) -> int:
    """Return the most memory that a process has used so far, in bytes; 0 if it has ended."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/status", "rb") as file:
        _, found, rest = file.read().partition(b"VmHWM:")
        if found:
            return int(rest.split(None, 1)[0]) << 10
    return 0
