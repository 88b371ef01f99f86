"""Signals as events of a loop: the bytes of a pipe, so that nothing is lost between two looks."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from nsbox._base.descriptors import high

# What somebody sends to `nsbox run` and means for its command.
FORWARDED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Signals:
    """Collects signals from now on. What this process was told to ignore, as by nohup(1), it goes on ignoring.

    Except for SIGCHLD: a process that ignores that is told no statuses (wait(2)).
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        """Take the signals to collect, SIGCHLD besides."""
        ours, theirs = os.pipe()
        self.fd, self._writer = high(ours), high(theirs)
        os.set_blocking(self.fd, False)
        os.set_blocking(self._writer, False)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _noted)
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _noted)

    def take(self) -> list[int]:
        """Return those that have come since this was last asked."""
        try:
            return list(os.read(self.fd, 4096))
        except BlockingIOError:
            return []


def _noted(number: int, frame: object) -> None:
    """Do nothing: the number is in the pipe."""


def stop_self(number: int, *, group: bool) -> bool:
    """Stop as by this signal, all of our process group or us alone; return, when that is over, if we were stopped.

    The kernel drops a stop, except for SIGSTOP, in a group that nobody could continue (setpgid(2), "orphaned").
    """
    continued: list[int] = []
    before = signal.signal(signal.SIGCONT, lambda *_: continued.append(1))
    old = None if number == signal.SIGSTOP else signal.signal(number, signal.SIG_DFL)
    try:
        (os.killpg if group else os.kill)(0 if group else os.getpid(), number)
    finally:
        signal.signal(signal.SIGCONT, before)
        if number != signal.SIGSTOP:
            signal.signal(number, old)
    return bool(continued)
