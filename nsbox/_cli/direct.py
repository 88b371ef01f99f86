"""`nsbox run` without a terminal between: the command has our own stdin, stdout and stderr.

Where there is no terminal, signals are handed on to the command. Where it keeps our session and has our terminal, it
gets that as a shell's job does, and gives it back.
"""

from __future__ import annotations

import contextlib
import os
import signal
import termios
from collections.abc import Callable

from nsbox._base.descriptors import high
from nsbox._cli.job import Job
from nsbox._cli.keys import Keys
from nsbox._cli.said import flush_streams
from nsbox._cli.signals import FORWARDED, Signals, stop_self


def controlling_terminal() -> int:
    """Return a new descriptor of this process's controlling terminal, or -1 if there is none."""
    try:
        return high(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return -1


def bring_forward(tty: int, group: int) -> bool:
    """Make a process group the one in the foreground of a terminal; False if that can't be, or it isn't there."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
    try:
        os.tcsetpgrp(tty, group)
    except OSError:
        return False
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return True


def end_as_typed(returncode: int, *, group: bool) -> None:
    """End by the signal that ended the command, if that can have been typed: Ctrl-C at a terminal that is ours.

    A shell leaves its loop or script only if what it waits for has died of SIGINT. group: so do the others of our
    process group, such as that shell, who would have got it from the terminal if the command hadn't had that. It must
    have been typed then: a command can also send it to itself.
    """
    number = -returncode
    tty = controlling_terminal() if number in (signal.SIGINT, signal.SIGQUIT) else -1
    if tty < 0:
        return
    is_ours = os.tcgetpgrp(tty) == os.getpgrp()
    os.close(tty)
    if is_ours:
        import resource

        flush_streams()
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        signal.signal(number, signal.SIG_DFL)
        (os.killpg if group else os.kill)(0 if group else os.getpid(), number)


class _Terminal:
    """Our terminal, which the command of our session gets while we are in the foreground ourselves."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._settings = termios.tcgetattr(fd)
        self.is_given = self.is_ours()

    def is_ours(self) -> bool:
        try:
            return os.tcgetpgrp(self.fd) == os.getpgrp()
        except OSError:
            return False

    def give(self, group: int) -> None:
        self.is_given = self.is_ours() and bring_forward(self.fd, group)

    def take_back(self) -> None:
        if self.is_given:
            bring_forward(self.fd, os.getpgrp())
            self.is_given = False

    def restore(self) -> None:
        """Undo what a command that was killed has set."""
        if self.is_ours():
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self.fd, termios.TCSADRAIN, self._settings)


def run(start: Callable[..., Job], *, has_session: bool, is_session_ours: bool) -> tuple[Job, set[int]]:
    """Start the command; when it has ended return it, and the signals that were typed for it alone.

    has_session: it gets a session of its own. is_session_ours: if it doesn't, our terminal is to be its too.
    """
    tty = -1 if has_session or not is_session_ours else controlling_terminal()
    shares = tty >= 0 and not (os.isatty(0) and os.isatty(1))  # a pipeline's others may need the terminal
    terminal = None if tty < 0 or shares else _Terminal(tty)
    if shares:  # what is typed reaches the command and us alike
        signals = Signals({*FORWARDED} - {signal.SIGINT, signal.SIGQUIT})
        for number in (signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, lambda *_: None)  # not ignored, which the command would inherit
    else:
        signals = Signals((*FORWARDED, signal.SIGTSTP))
    keys = Keys(wanted=terminal is not None)
    try:
        is_given = terminal is not None and terminal.is_given
        job = start(own_group=not has_session and not shares, terminal_of=1 if is_given else 0)
        with job:
            try:
                keys.join(job.group())
                _attend(job, signals, terminal, kills=tty < 0)
            except BaseException:
                job.kill()
                raise
            finally:
                if terminal is not None:
                    terminal.take_back()
        if terminal is not None and (job.returncode or 0) < 0:
            terminal.restore()
    finally:
        typed = keys.take()
        if tty >= 0:
            os.close(tty)
    return job, typed


def _attend(job: Job, signals: Signals, terminal: _Terminal | None, *, kills: bool) -> None:
    """Hand on signals, and stop with the command, until it has ended. kills: a second SIGINT ends it for sure."""
    interrupts = 0
    while job.poll() is None:
        job.await_event([signals.fd])
        for number in signals.take():
            if number == signal.SIGTERM:
                job.end()
            elif number == signal.SIGTSTP:  # which wouldn't stop a session that nobody can continue
                job.signal(signal.SIGSTOP)
            elif number in FORWARDED:
                interrupts += number == signal.SIGINT
                if kills and interrupts > 1 and number == signal.SIGINT:
                    job.kill()
                else:
                    job.signal(number)
        number = job.stopped_by()
        if number:
            _stop_with(job, number, terminal)
        job.tick()


def _stop_with(job: Job, number: int, terminal: _Terminal | None) -> None:
    """Stop as the command has, until somebody continues us."""
    if terminal is None:
        stop_self(signal.SIGSTOP, group=False)
    elif number not in (signal.SIGTTIN, signal.SIGTTOU) or not terminal.is_ours():
        terminal.take_back()
        if not stop_self(number, group=False) and number in (signal.SIGTTIN, signal.SIGTTOU) and not terminal.is_ours():
            job.signal(signal.SIGHUP)  # nobody will ever bring it to the foreground
    if terminal is not None:
        terminal.give(job.group())
    job.signal(signal.SIGCONT)
