"""Ends in order: all of a sandbox gets SIGTERM, and has some time before SIGKILL."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time

from nsbox import _kills
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._core import abi
from nsbox._shutdown import is_finalizing

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Grace:
    """What a Popen has for that; the rest of it is its subclass's."""

    pid: int
    poll: Callable[[], int | None]
    wait: Callable[..., int]
    send_signal: Callable[..., None]
    _signal_init: Callable[[int], None]
    _plan: Any
    _entered: Any
    _is_plain: bool
    _init_pid: int
    _init_pidfd: int
    _raw_status: int | None
    _timed_out: bool
    _last_signal: int

    _is_late = False  # it was ended after a time limit, by a signal that it may have survived or handled
    _is_asked = False  # to end: what is left when the command has ended may do so in order
    _is_patient = False  # it has as long as nobody kills it
    _command_ended: float | None = None  # when that was seen, of a group that was asked to end
    _has_other_ids = False  # than the rest of the sandbox

    def mark_late(self) -> None:
        """Say that it has had its time: what comes next ends it."""
        self._is_late = True

    @property
    def is_in_session(self) -> bool:
        """Whether other commands share its sandbox."""
        return self._entered is not None

    def terminate(self, *, _number: int = signal.SIGTERM, _is_late: Any = is_finalizing) -> None:
        """Send SIGTERM to all that runs in the sandbox; send_signal(SIGTERM) sends it to the command alone.

        What is left two seconds after the command has ended is killed, as all is at once when nobody has asked.
        """
        if _is_late():
            self.send_signal(_number)
        else:
            self.ask_to_end()

    def kill(self, *, grace: float = 0, _number: int = signal.SIGKILL, _is_late: Any = is_finalizing) -> None:
        """Kill the command and its sandbox. grace: so many seconds after a SIGTERM, for whose effect this waits.

        It reads no pipe meanwhile. Raises ValueError for a grace that is no number from 0 to 600.
        """
        if not _is_late() and _kills.check_grace(grace):
            self.ask_to_end(patiently=True)
            self._pass(grace)
        self.send_signal(_number)

    def _pass(self, seconds: float) -> None:
        """Wait for the end, but not longer than that."""
        was_late = self._timed_out if not self._is_plain else False
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(timeout=seconds)
        self._timed_out = was_late

    def ask_to_end(self, *, patiently: bool = False) -> None:
        """Send SIGTERM to all that runs in the sandbox. patiently: what is left has as long as nobody kills it."""
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
        _kills.await_handled(self._init_pid, number)
        if self._raw_status is None and self._has_other_ids:  # which pid 1 mayn't signal
            self.send_signal(signal.SIGTERM)

    def _ask_without_init(self, patiently: bool) -> None:
        plan = self._plan
        if plan.wrapper:
            from nsbox._spawn import bwrap

            _kills.signal_below(bwrap.command_of(self._init_pid) or self.pid, signal.SIGTERM)
        elif plan.plain and plan.new_session and plan.kill_on_exit:
            self._is_asked, self._is_patient = True, patiently
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGTERM)
                os.killpg(self.pid, signal.SIGCONT)
        else:
            self.send_signal(signal.SIGTERM)

    def _group_has_time(self) -> bool:
        """Say if others of the process group, who were asked to end, may still do so."""
        if self._command_ended is None:
            self._command_ended = time.monotonic()
        is_late = time.monotonic() > self._command_ended + (_kills.MOST_GRACE if self._is_patient else _kills.GRACE)
        return not is_late and _kills.has_group(self.pid)
