"""A command's object at the interpreter's end, when objects are finalized after the modules that their methods use.

Modules are emptied by then: their names are None, and nothing can be imported. So default arguments bind whatever is
used here. KillError, Usage and other threads are gone. The command ends with this process in any case, but an object
can still kill its command, or wait for it, before that.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.stdlib import original
from nsbox._core import abi

if TYPE_CHECKING:
    from typing import Any

    from nsbox._core.command import SessionCommand
    from nsbox._plan.plan import Plan

is_finalizing = sys.is_finalizing

_poll = original(select, "poll")
_waitpid = original(os, "waitpid")  # wait4() imports a module each time
_pidfd_open, _by_pidfd = getattr(os, "pidfd_open", None), getattr(signal, "pidfd_send_signal", None)  # Linux's
_LAST_WAIT = 30_000  # milliseconds for what pid 1 has to end


def readable(fd: int, milliseconds: float | None, *, poll: Any = _poll, ready: int = select.POLLIN) -> bool:
    """Return whether a descriptor is readable, or becomes so in time; None: wait as long as it takes."""
    poller = poll()
    poller.register(fd, ready)
    return bool(poller.poll(milliseconds))


class Shutdown:
    """What is left of waiting and killing at that point. Each method is for a command in a sandbox."""

    pid: int
    _plan: Plan
    _session_command: SessionCommand | None
    _creator: int
    _init_pidfd: int
    _raw_status: int | None
    _returncode: int | None

    def _last_status(
        self,
        is_patient: bool,
        *,
        waitpid: Any = _waitpid,
        getpid: Any = os.getpid,
        nohang: int = os.WNOHANG,
        wall: int = abi.WALL,
        exit_status: Any = os.waitstatus_to_exitcode,
        unknown: int = sys.maxsize,
        rest: int = _LAST_WAIT,
        readable: Any = readable,
    ) -> int | None:
        """Return how the command has ended; None: it hasn't. is_patient: wait for its end."""
        if self._returncode is not None or self._creator != getpid():
            return self._returncode
        if self._session_command is not None:
            self._returncode = self._session_command.last_status(is_patient)
            return self._returncode
        if self._raw_status is None:
            try:
                pid, status = waitpid(self.pid, wall if is_patient else nohang | wall)
            except ChildProcessError:  # the status is lost: do as the base does
                self._returncode = unknown
                return unknown
            if pid != self.pid:
                return None
            self._raw_status = status
        has_rest = self._init_pidfd >= 0 and self._plan.kill_on_exit
        if has_rest and not readable(self._init_pidfd, rest if is_patient else 0):
            return None
        self._returncode = exit_status(self._raw_status)
        return self._returncode

    def _last_wait(
        self,
        timeout: float | None,
        *,
        clock: Any = time.monotonic,
        pidfd_open: Any = _pidfd_open,
        close: Any = os.close,
        readable: Any = readable,
        Expired: Any = subprocess.TimeoutExpired,
    ) -> int | None:
        """Wait for the command's end."""
        process: Any = self
        if timeout is None:
            return self._last_status(True)
        end = clock() + timeout
        while self._last_status(False) is None:
            if clock() >= end:
                raise Expired(process.args, timeout)
            if self._raw_status is not None or self._session_command is not None or pidfd_open is None:
                readable(self._init_pidfd, 1) if self._init_pidfd >= 0 else None
                continue
            fd = pidfd_open(self.pid)
            try:
                readable(fd, 1000 * max(0, end - clock()))
            finally:
                close(fd)
        return self._returncode

    def _last_kill(
        self,
        number: int,
        *,
        kill: Any = os.kill,
        getpid: Any = os.getpid,
        by_pidfd: Any = _by_pidfd,
        fatal: int = signal.SIGKILL,
    ) -> None:
        """Send the command a signal; SIGKILL also ends what is left of its sandbox."""
        if self._last_status(False) is not None or self._creator != getpid():
            return
        try:
            if self._session_command is not None:
                self._session_command.last_signal(number)
                return
            if self._raw_status is None:
                kill(self.pid, number)
            if number == fatal and self._init_pidfd >= 0 and self._plan.kill_on_exit:
                by_pidfd(self._init_pidfd, number)
        except ProcessLookupError:
            pass

    def _last_words(self) -> tuple[Any, Any]:
        """Read what the command writes until it ends, one stream after the other."""
        outputs = []
        process: Any = self
        if process.stdin is not None:  # it is garbage, as this object is, so it may have been closed before
            try:
                process.stdin.close()
            except BrokenPipeError:
                pass
        for stream in (process.stdout, process.stderr):
            outputs.append(None if stream is None or stream.closed else stream.read())
        return outputs[0], outputs[1]
