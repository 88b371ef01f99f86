"""Orderly ends: every process of a sandbox gets SIGTERM, and some time before SIGKILL."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._core import abi
from nsbox._lifetime import kills
from nsbox._lifetime.shutdown import is_finalizing

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from nsbox._core.command import SessionCommand
    from nsbox._lifetime.ends import Early
    from nsbox._plan.plan import Plan


class Grace:
    """The part of Popen that ends a sandbox in order. Its subclass defines the names that are only declared here."""

    pid: int
    poll: Callable[[], int | None]
    wait: Callable[..., int]
    send_signal: Callable[..., None]
    _signal_init: Callable[[int], None]
    _plan: Plan
    _session_command: SessionCommand | None
    _is_plain: bool
    _init_pid: int
    _init_pidfd: int
    _raw_status: int | None
    _timed_out: bool
    _last_signal: int

    _early: Early | None = None  # why it was ended, by a signal that it may have survived or handled
    _is_asked = False  # it was asked to end: whatever outlives the command has time to end in order
    _is_patient = False  # that time has no limit, unless a kill ends it
    _command_ended: float | None = None  # when that was seen, of a command whose process group was asked to end
    _has_other_ids = False  # its ids aren't those of the rest of the sandbox

    def mark_early(self, why: Early = "timeout") -> None:
        """Note that its time is over, or that it is cancelled: the next signal is meant to end it."""
        self._early = self._early or why

    @property
    def is_in_session(self) -> bool:
        """Whether other commands share its sandbox."""
        return self._session_command is not None

    def terminate(self, *, _number: int = signal.SIGTERM, _is_late: Any = is_finalizing) -> None:
        """Send SIGTERM to every process in the sandbox; send_signal(SIGTERM) sends it to the command alone.

        What is left two seconds after the command's end is killed. Without terminate(), it is killed at once.
        """
        if _is_late():
            self.send_signal(_number)
        else:
            self.ask_to_end()

    def kill(self, *, grace: float = 0, _number: int = signal.SIGKILL, _is_late: Any = is_finalizing) -> None:
        """Kill the command and its sandbox.

        grace: seconds between a SIGTERM to every process and the SIGKILL, from 0 to 600. Default: 0, for no SIGTERM.
            The call waits for the end meanwhile, and reads no pipe.

        Raises ValueError for any other grace.
        """
        if not _is_late() and kills.check_grace(grace):
            self.ask_to_end(patiently=True)
            self.ends_within(grace)
        self.send_signal(_number)

    def ends_within(self, seconds: float) -> bool:
        """Wait for the end, at most some seconds; return whether it has come. No time limit counts as over by that."""
        was_late = self._timed_out if not self._is_plain else False
        try:
            self.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        finally:
            self._timed_out = was_late
        return True

    def ask_to_end(self, *, patiently: bool = False) -> None:
        """Send SIGTERM to every process in the sandbox. patiently: they have time until something kills them."""
        if self._is_plain:
            self.send_signal(signal.SIGTERM)
            return
        if self.poll() is not None:
            return
        if self._timed_out:
            self._last_signal = signal.SIGTERM
        plan = self._plan
        if self._init_pidfd < 0 or plan.wrapper or not plan.kill_on_exit:
            if self._raw_status is None:
                self._ask_without_init(patiently)
            return
        self._is_asked = True
        number = abi.constants.ASK_PATIENTLY if patiently else abi.constants.ASK
        self._signal_init(number)
        kills.await_handled(self._init_pid, number)
        if self._raw_status is None and self._has_other_ids:  # then pid 1 may not signal it
            self.send_signal(signal.SIGTERM)

    def _ask_without_init(self, patiently: bool) -> None:
        plan = self._plan
        if plan.wrapper:
            from nsbox._spawn import bwrap

            kills.signal_below(bwrap.command_of(self._init_pid) or self.pid, signal.SIGTERM)
        elif plan.plain and plan.new_session and plan.kill_on_exit:
            self._is_asked, self._is_patient = True, patiently
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGTERM)
                os.killpg(self.pid, signal.SIGCONT)
        else:
            self.send_signal(signal.SIGTERM)

    def _group_has_time(self) -> bool:
        """Return whether the rest of the process group, which was asked to end, still has time to."""
        if self._command_ended is None:
            self._command_ended = time.monotonic()
        is_late = time.monotonic() > self._command_ended + (kills.MOST_GRACE if self._is_patient else kills.GRACE)
        return not is_late and kills.has_group(self.pid)
