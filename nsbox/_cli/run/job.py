"""The command of `nsbox run`, handled as a shell's job: signalled as a group, watched for stops, ended in order."""

from __future__ import annotations

import contextlib
import math
import os
import select
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from nsbox._base.errors import NsboxError
from nsbox._popen.popen import Popen

TIMED_OUT = 124  # the exit status of timeout(1)


class Job(Popen["bytes"]):
    """A command that can be stopped and continued.

    It is ended in order: SIGTERM to the whole sandbox, a grace period in which it can finish its work, then SIGKILL.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        own_group: bool,
        terminal_of: int = 0,
        timeout: float | None = None,
        grace: float = 2.0,
        **options: Any,
    ) -> None:
        """Start it.

        own_group: for a command without its own session, its own process group.
        terminal_of: 0, or 1 + the standard descriptor of a terminal in whose foreground that group begins.
        timeout, grace: seconds.
        """
        self._terminal_of, self._leads_group = terminal_of, own_group
        self.directory: str | None = None if options.get("cwd") is None else os.path.abspath(options["cwd"])
        self.timed_out = self.was_killed = False
        self._grace = grace
        self._end_at = math.inf if timeout is None else time.monotonic() + timeout
        self._kill_at = math.inf
        super().__init__(command, process_group=0 if own_group else None, **options)

    @property
    def status(self) -> int:
        """The exit status for nsbox: the command's, 128+N after signal N, or TIMED_OUT."""
        returncode = self.returncode or 0
        return TIMED_OUT if self.timed_out else 128 - returncode if returncode < 0 else returncode

    # ---- what it does

    def group(self) -> int:
        """Return its process group; 0 if it has ended."""
        if self._returncode is not None or self._raw_status is not None:
            return 0
        pid = self.pid
        if self._plan.wrapper:
            from nsbox._spawn import bwrap

            pid = bwrap.command_of(self._init_pid) or pid
        try:
            return os.getpgid(pid)  # our child keeps its number until it is reaped
        except ProcessLookupError:
            return 0

    def signal(self, number: int) -> None:
        """Send a signal to its process group; to the command alone if it shares our own group."""
        group = self.group()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if group == os.getpgrp():
                os.kill(self.pid, number)
            elif group:
                os.killpg(group, number)

    def stopped_by(self) -> int:
        """Return the signal that stopped it since the last call, or 0."""
        if self._returncode is not None or self._raw_status is not None:
            return 0
        if not hasattr(os, "waitid"):  # macOS: every other call that reports a stop would reap it
            return 0
        try:
            stop = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG)
        except ChildProcessError:
            return 0
        return stop.si_status if stop else 0

    def suspend(self) -> None:
        """Stop it, if its terminal can't: most commands have been stopped by that."""

    # ---- its end

    def kill(self, **options: Any) -> None:
        """End it by SIGKILL, as Popen does, and remember that."""
        self.was_killed = True
        super().kill(**options)

    def end(self) -> None:
        """End it: by SIGTERM now, by SIGKILL after the grace period."""
        self._end_at = math.inf
        if self._grace <= 0:
            self.kill()
            return
        if self._kill_at == math.inf:
            self._kill_at = time.monotonic() + self._grace
        self.ask_to_end(patiently=True)

    def tick(self) -> None:
        """Do what is due by now; raises KillError if a process survives a kill."""
        now = time.monotonic()
        if now >= self._end_at:
            self.timed_out = True
            self.mark_early()
            self.end()
        if now >= self._kill_at:
            self._kill_at = math.inf
            self.kill()
        error = self.kill_error()
        if error is not None:
            raise error

    def await_event(self, fds: Iterable[int], room: Iterable[int] = ()) -> set[int]:
        """Return which of the descriptors are readable, or are in room and can be written.

        Sleep until one is, until the command's end gets a step nearer, or until tick() has something to do.
        """
        own, patience = self.watch() if self.poll() is None else ([], 0.0)
        until = min(self._end_at, self._kill_at)
        seconds = min(math.inf if patience is None else patience, max(0.0, until - time.monotonic()))
        poller = select.poll()
        for fd in (*fds, *(owner.fileno() for owner in own)):
            poller.register(fd, select.POLLIN)
        for fd in room:
            poller.register(fd, select.POLLIN | select.POLLOUT)
        try:
            ready = poller.poll(None if seconds == math.inf else math.ceil(1000 * seconds))
        finally:
            for owner in own:
                owner.close()
        return {fd for fd, _ in ready}


class NotStarted(Exception):
    """The command didn't start. The second argument is the exit status."""

    def __init__(self, error: OSError, status: int) -> None:
        """Hold the error that Popen raised, and the exit status of nsbox run."""
        super().__init__(error, status)
        self.error, self.status = error, status


def started(command: Sequence[str], start: Callable[[], Job]) -> Job:
    """Return the started command; raises NotStarted, with status 125 for the sandbox, 126 or 127 for the program."""
    try:
        return start()
    except OSError as error:
        if isinstance(error, NsboxError) or error.filename != command[0]:
            raise NotStarted(error, 125) from None
        raise NotStarted(error, 127 if isinstance(error, FileNotFoundError) else 126) from None
