"""The leader of the session in which a command of `nsbox run` has a terminal, as a shell is for its jobs.

Without it nothing could stop the command: the kernel doesn't stop a process group whose members all have their parents
in another session (setpgid(2), "orphaned process group").
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import termios
from collections.abc import Callable
from typing import Any

from nsbox._cli.run import link as l
from nsbox._cli.run.direct import bring_forward
from nsbox._cli.run.job import Job
from nsbox._cli.run.link import Link
from nsbox._cli.run.signals import FORWARDED, Signals


class Monitor:
    """Starts the command on a terminal, and does what the bridge says."""

    def __init__(self, link: Link, terminal: int, users: int) -> None:
        """Become the session leader of the command's terminal.

        terminal, users: descriptors of the command's terminal and of the user's.
        """
        self._link, self._terminal, self._users = link, terminal, users
        self._settings: Any = None  # the user's terminal's own, while the bridge has changed them
        self._group = 0  # the group in the foreground of the command's terminal when it stopped
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    def run(self, start: Callable[[], Job], finish: Callable[[Job, str], int], *, blocked: set[int]) -> int:
        """Start the command, wait for its end, and return the exit status that finish() returns.

        blocked: the signal mask from now on.
        """
        self._signals = Signals((*FORWARDED, signal.SIGTSTP, signal.SIGWINCH))
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        job = start()
        with job:
            try:
                self._link.send(l.STARTED)
                while job.poll() is None:
                    self._step(job)
            except BaseException:
                job.kill()
                raise
        self._link.send(l.ENDED, job.returncode)
        shown = ""
        while (message := self._link.receive())[0] not in (l.SHOWN, b""):
            pass
        if message[0]:
            shown = message[1].decode(errors="replace")
        else:
            self._restore()
        return finish(job, shown)

    def _step(self, job: Job) -> None:
        ready = job.await_event([self._link.fd, self._signals.fd])
        if self._link.fd in ready:
            self._obey(job, *self._link.receive())
        for number in self._signals.take():
            self._pass_on(job, number)
        number = job.stopped_by()
        if number:
            with contextlib.suppress(OSError):
                self._group = os.tcgetpgrp(self._terminal)
            self._link.send(l.STOPPED, number)
        job.tick()

    def _pass_on(self, job: Job, number: int) -> None:
        """Pass on a signal from the command's terminal, or from a process that signals this one."""
        if number == signal.SIGTERM:
            job.end()
        elif number == signal.SIGTSTP:
            job.suspend()
        elif number in (*FORWARDED, signal.SIGWINCH):
            job.signal(number)
            if number == signal.SIGHUP:  # the terminal was closed: continue stopped processes, so that they notice
                job.signal(signal.SIGCONT)

    def _obey(self, job: Job, letter: bytes, content: Any) -> None:
        if letter == l.FORWARD:
            own = os.getpgrp()
            bring_forward(self._terminal, self._group if self._group not in (0, own) else job.group())
            job.signal(signal.SIGCONT)
        elif letter == l.BACKWARD:
            bring_forward(self._terminal, os.getpgrp())
            job.signal(signal.SIGCONT)
        elif letter == l.BACKGROUND:
            with contextlib.suppress(OSError):
                self._group = os.tcgetpgrp(self._terminal)
            bring_forward(self._terminal, os.getpgrp())
        elif letter == l.SIGNAL:
            job.signal(content)
        elif letter == l.END:
            job.end()
        elif letter == l.SETTINGS:
            self._settings = content
        elif not letter:
            self._restore()
            job.kill()

    def _restore(self) -> None:
        """Give the user's terminal its settings back if the bridge was killed before it could.

        It isn't the terminal of this session, so nothing prevents that.
        """
        settings, self._settings = self._settings, None
        if settings is not None:
            with contextlib.suppress(termios.error):
                if termios.tcgetattr(self._users)[:4] == raw(settings)[:4]:  # no other process has changed them since
                    termios.tcsetattr(self._users, termios.TCSANOW, settings)


def raw(settings: list[Any]) -> list[Any]:
    """Return settings for a terminal that passes on everything typed and printed as it is (termios(3), cfmakeraw)."""
    iflag, oflag, cflag, lflag, ispeed, ospeed, cc = settings
    iflag &= ~(termios.IGNBRK | termios.BRKINT | termios.PARMRK | termios.ISTRIP | termios.INLCR)
    iflag &= ~(termios.IGNCR | termios.ICRNL | termios.IXON)
    lflag &= ~(termios.ECHO | termios.ECHONL | termios.ICANON | termios.ISIG | termios.IEXTEN)
    cc = list(cc)
    cc[termios.VMIN], cc[termios.VTIME] = 1, 0
    cflag = cflag & ~(termios.CSIZE | termios.PARENB) | termios.CS8
    return [iflag, oflag & ~termios.OPOST, cflag, lflag, ispeed, ospeed, cc]
