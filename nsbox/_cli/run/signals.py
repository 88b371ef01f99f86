"""Signals as events of a loop: bytes in a pipe, so that none is lost between two reads."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from nsbox._base.descriptors import high

# Signals to `nsbox run` that are meant for its command.
FORWARDED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Signals:
    """Collects signals from now on. Signals that this process ignores, as under nohup(1), stay ignored.

    SIGCHLD is the exception: a process that ignores it gets no exit statuses (wait(2)).
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        """Begin to collect these signals, and SIGCHLD."""
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
        """Return the signals that have arrived since the last call."""
        try:
            return list(os.read(self.fd, 4096))
        except BlockingIOError:
            return []


def _noted(number: int, frame: object) -> None:
    """Do nothing: the number is in the pipe."""


def stop_self(number: int, *, group: bool) -> bool:
    """Stop as if by this signal; return after being continued, and say if we were stopped at all.

    group: stop all of our process group, else only us. In a group that no process could continue, the kernel drops all
    stops except SIGSTOP (setpgid(2), "orphaned").
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
