"""`nsbox run` without a pseudo-terminal: the command has our own stdin, stdout and stderr.

Without a terminal, we pass signals on to the command. If the command keeps our session and our terminal, it gets the
terminal as a shell's job does, and gives it back.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import termios
from collections.abc import Callable

from nsbox._base.descriptors import high
from nsbox._cli.messages import flush_streams
from nsbox._cli.run.job import Job
from nsbox._cli.run.keys import Keys
from nsbox._cli.run.signals import FORWARDED, Signals, stop_self


def controlling_terminal() -> int:
    """Return a new descriptor of this process's controlling terminal, or -1 if there is none."""
    try:
        return high(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return -1


def bring_forward(tty: int, group: int) -> bool:
    """Bring a process group to the foreground of a terminal; return False if that fails, or the group is gone."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
    try:
        os.tcsetpgrp(tty, group)
    except OSError:
        return False
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return True


def end_as_typed(returncode: int, *, group: bool) -> None:
    """End by the signal that ended the command, if it may have been typed: Ctrl-C at a terminal of ours.

    A shell leaves its loop or script only if the process that it waits for dies of SIGINT.

    group: True ends all of our process group by the signal, such as that shell. The terminal would have signalled the
        group if the command hadn't had the foreground. Pass True only for a signal that was typed: a command can also
        send one to itself.
    """
    number = -returncode
    tty = controlling_terminal() if number in (signal.SIGINT, signal.SIGQUIT) else -1
    if tty < 0:
        return
    is_ours = os.tcgetpgrp(tty) == os.getpgrp()
    os.close(tty)
    if is_ours:
        flush_streams()
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        signal.signal(number, signal.SIG_DFL)
        (os.killpg if group else os.kill)(0 if group else os.getpid(), number)


class _Terminal:
    """Our terminal. A command of our session gets it while we are in the foreground."""

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
        """Restore the settings, which a killed command may have changed."""
        if self.is_ours():
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self.fd, termios.TCSADRAIN, self._settings)


def run(start: Callable[..., Job], *, has_session: bool, is_session_ours: bool) -> tuple[Job, set[int]]:
    """Run the command; when it has ended, return it and the signals that were typed for it alone.

    has_session: it gets its own session. is_session_ours: otherwise, our terminal is the command's too.
    """
    tty = -1 if has_session or not is_session_ours else controlling_terminal()
    shares = tty >= 0 and not (os.isatty(0) and os.isatty(1))  # other programs of the pipeline may need the terminal
    terminal = None if tty < 0 or shares else _Terminal(tty)
    if shares:  # typed signals reach both the command and us
        signals = Signals({*FORWARDED} - {signal.SIGINT, signal.SIGQUIT})
        for number in (signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, lambda *_: None)  # a command would inherit SIG_IGN
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
    """Pass on signals, and stop when the command stops, until it ends. kills: a second SIGINT kills it."""
    interrupts = 0
    while job.poll() is None:
        job.await_event([signals.fd])
        for number in signals.take():
            if number == signal.SIGTERM:
                job.end()
            elif number == signal.SIGTSTP:  # SIGTSTP itself wouldn't stop a session that no process can continue
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
    """Stop as the command did, until another process continues us."""
    if terminal is None:
        stop_self(signal.SIGSTOP, group=False)
    elif number not in (signal.SIGTTIN, signal.SIGTTOU) or not terminal.is_ours():
        terminal.take_back()
        if not stop_self(number, group=False) and number in (signal.SIGTTIN, signal.SIGTTOU) and not terminal.is_ours():
            job.signal(signal.SIGHUP)  # no shell will ever bring it to the foreground
    if terminal is not None:
        terminal.give(job.group())
    job.signal(signal.SIGCONT)
