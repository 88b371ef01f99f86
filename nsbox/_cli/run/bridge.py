"""`nsbox run` on a terminal: the command has its own pseudo-terminal, and what is typed and printed is copied.

While this process is in the foreground, the user's terminal is raw: keys that interrupt or stop have the meaning that
they have on the command's terminal. In the background, the command is in the background of its own terminal. If it
reads there, it is stopped (SIGTTIN), and so are we. In a pipeline, whose other programs may read the terminal, the
command begins in the background and comes to the foreground when it first needs the terminal. sudo(8) does the same
with `use_pty`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import stat
import termios
from collections.abc import Sequence
from typing import Any, Protocol

from nsbox._base.descriptors import high
from nsbox._cli.messages import flush_streams
from nsbox._cli.run import link as l
from nsbox._cli.run.direct import controlling_terminal, end_as_typed
from nsbox._cli.run.job import Job
from nsbox._cli.run.link import Link
from nsbox._cli.run.monitor import Monitor, raw
from nsbox._cli.run.signals import FORWARDED, Signals, stop_self
from nsbox._popen import pty

_MOST = 65536  # once so many bytes wait to be written, no more is read; a terminal holds less
_LAST = 16384  # bytes of output that tell why a command has failed
_STOPS_READER = (signal.SIGTTIN, signal.SIGTTOU)


class Work(Protocol):
    """The work of the process that starts the command. All three methods are called there."""

    def start(self, **options: Any) -> Job:
        """Return the command, started with these options of Job."""

    def finish(self, job: Job, shown: str) -> int:
        """Return the exit status, after what is to be done at the command's end. shown: the end of its output."""

    def fail(self, error: BaseException) -> int:
        """Return the exit status, after reporting an error of start() or finish()."""


def run(work: Work, streams: Sequence[int]) -> int:
    """Run a command on its own terminal; return the exit status. streams: the descriptors of the user's terminal."""
    tty = _opened(streams[0])
    pair = pty.Pair(pty.window_size(tty))
    settings = termios.tcgetattr(tty)
    termios.tcsetattr(pair.fd, termios.TCSANOW, settings)
    forward = not is_pipeline() and _is_foreground(tty)
    ours, theirs = l.pair()
    flush_streams()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = os.fork()
    if pid == 0:
        status = 125
        try:
            ours.close()
            pair.terminal.close()
            options: dict[str, Any] = {("stdin", "stdout", "stderr")[i]: pair.fd for i in streams}
            options |= {"own_group": True, "terminal_of": 1 + streams[0] if forward else 0}
            status = Monitor(theirs, pair.fd, tty).run(lambda: work.start(**options), work.finish, blocked=blocked)
        except BaseException as error:
            status = work.fail(error)
        finally:
            flush_streams()
            os._exit(status)
    theirs.close()
    pair.close()
    bridge = Bridge(tty, pair.terminal, ours, forward=forward)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    try:
        bridge.copy()
    finally:
        bridge.close()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if -(bridge.returncode or 0) in bridge.keys:
        end_as_typed(bridge.returncode or 0, group=True)
    return 125 if status < 0 else status


def _opened(fd: int) -> int:
    """Return a new descriptor of a terminal that doesn't block: if possible, an open file of our own."""
    flags = os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
    controlling = controlling_terminal()
    try:
        is_it = controlling >= 0 and _has_session(fd)
        name = "/dev/tty" if is_it else os.ttyname(fd)
        return high(os.open(name, flags))
    except OSError:  # the terminal is another user's, as after su(1); it may block us for a while
        return high(os.dup(fd))
    finally:
        if controlling >= 0:
            os.close(controlling)


def _has_session(fd: int) -> bool:
    try:
        return os.tcgetpgrp(fd) >= 0
    except OSError:  # ENOTTY: it isn't our controlling terminal
        return False


def _is_foreground(tty: int) -> bool:
    """Say if typed keys are for us. A terminal of another session has no background."""
    try:
        return os.tcgetpgrp(tty) == os.getpgrp()
    except OSError:
        return True


def is_pipeline() -> bool:
    """Say if stdin or stdout leads to another program, which may share our terminal."""
    for fd in (0, 1):
        with contextlib.suppress(OSError):
            mode = os.fstat(fd).st_mode
            if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
                return True
    return False


class Bridge:
    """Copies between the user's terminal and the command's."""

    def __init__(self, tty: int, terminal: pty.Terminal, link: Link, *, forward: bool) -> None:
        self._tty, self._terminal, self._master, self._link = tty, terminal, terminal.fileno(), link
        self._forward = forward
        self._saved: Any = None  # the terminal's settings while it is raw, which is while we are in the foreground
        self._typed, self._printed = bytearray(), bytearray()
        self._last, self._has_typed = bytearray(), False  # the end of the output; whether keys were typed
        self._is_up = self._link_is_up = True  # whether the user's terminal is there, and the monitor
        self._has_started = False  # what the command prints waits for this: the user's terminal becomes raw first
        self.returncode: int | None = None
        self.keys: set[int] = set()  # signals that were typed; any other signal was meant for the command alone
        os.set_blocking(self._master, False)
        self._signals = Signals((*FORWARDED, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH))

    # ---- the loop

    def copy(self) -> None:
        """Copy until the command has ended and all of its output is shown."""
        while self._link_is_up:
            ready = dict(self._poller().poll())
            if self._signals.fd in ready:
                for number in self._signals.take():
                    self._on_signal(number)
            if ready.get(self._tty, 0) & (select.POLLHUP | select.POLLERR | select.POLLNVAL):
                self._hang_up()
            if ready.get(self._tty, 0) & select.POLLIN and self._saved is not None:
                self._read_keys()
            if self._typed:
                self._type()
            if self._master in ready:
                self._read_output()
            self._show()
            if self._link.fd in ready:
                self._on_message(*self._link.receive())
        self._drain()

    def _poller(self) -> select.poll:
        poller = select.poll()
        poller.register(self._link.fd, select.POLLIN)
        poller.register(self._signals.fd, select.POLLIN)
        if not self._is_up:
            return poller
        wants = select.POLLIN if self._saved is not None and len(self._typed) < _MOST else 0
        poller.register(self._tty, wants | (select.POLLOUT if self._printed else 0))
        if not self._has_started:
            return poller
        wants = select.POLLIN if len(self._printed) < _MOST else 0
        poller.register(self._master, wants | (select.POLLOUT if self._typed else 0))
        return poller

    def _read_keys(self) -> None:
        try:
            data = os.read(self._tty, 4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._note_signals(data)
            self._has_typed = True
            self._typed += data
        else:
            self._hang_up()

    def _note_signals(self, data: bytes) -> None:
        try:
            settings = termios.tcgetattr(self._master)  # the command's (pty(7))
        except termios.error:
            return
        keys = [(signal.SIGTSTP, termios.VSUSP)]  # an editor reads it as a character, and stops itself
        if settings[3] & termios.ISIG:
            keys += [(signal.SIGINT, termios.VINTR), (signal.SIGQUIT, termios.VQUIT)]
        self.keys |= {number for number, at in keys if settings[6][at] in data}

    def _type(self) -> None:
        try:
            del self._typed[: os.write(self._master, self._typed)]
        except BlockingIOError:
            pass
        except OSError:
            self._typed.clear()

    def _read_output(self) -> int:
        """Read some of the command's output; return how many bytes, 0 if there is none now."""
        try:
            data = os.read(self._master, 16384)
        except OSError:  # EIO: no process has the command's terminal open any more
            return 0
        size = len(data)
        if self._saved is None and self._doubles_returns():
            data = data.replace(b"\r\n", b"\n")
        self._printed += data
        self._last += data
        if len(self._last) > 2 * _LAST:
            del self._last[:-_LAST]
        return size

    def _doubles_returns(self) -> bool:
        """Say if both terminals turn a newline into two characters. They do so only while the user's isn't raw."""
        both = termios.OPOST | termios.ONLCR
        try:
            return all(termios.tcgetattr(fd)[1] & both == both for fd in (self._tty, self._master))
        except termios.error:
            return False

    def _show(self) -> None:
        try:
            del self._printed[: os.write(self._tty, self._printed[:4096]) if self._printed else 0]
        except BlockingIOError:
            pass
        except OSError:
            self._hang_up()

    def _drain(self) -> None:
        """Show everything that the command has printed so far. This ends unless the user's terminal is stuck.

        Processes that the command left behind may go on printing, faster than it is shown. But what was printed before
        is no more than the command's terminal holds.
        """
        left = _MOST
        while self._is_up:
            while left > 0 and len(self._printed) < _MOST and (size := self._read_output()):
                left -= size
            if not self._printed:
                return
            self._show()
            poller = select.poll()
            poller.register(self._signals.fd, select.POLLIN)
            poller.register(self._tty, select.POLLOUT)
            if self._printed and self._signals.fd in dict(poller.poll()):
                for number in self._signals.take():
                    if number in FORWARDED and not self._link_is_up:
                        return
                    self._on_signal(number)

    # ---- the user's terminal

    def _raise_up(self) -> bool:
        """Make the user's terminal raw if we are in its foreground; say if we are."""
        if not self._is_up or not _is_foreground(self._tty):
            return False
        try:
            settings = termios.tcgetattr(self._tty)
            if self._saved is None or settings[:4] != raw(self._saved)[:4]:
                self._link.send(l.SETTINGS, settings)
                self._saved = settings
                self._set(raw(settings))
            self._resize()
        except termios.error:
            self._hang_up()
            return False
        return True

    def _put_back(self) -> None:
        """Restore the terminal's settings, unless other processes have it by now."""
        saved, self._saved = self._saved, None
        if saved is not None:
            if self._is_up and _is_foreground(self._tty):
                with contextlib.suppress(termios.error):
                    self._set(saved)
            self._link.send(l.SETTINGS, None)

    def _set(self, settings: Any) -> None:
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
        try:
            termios.tcsetattr(self._tty, termios.TCSANOW, settings)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _resize(self) -> None:
        with contextlib.suppress(OSError):
            pty.set_window_size(self._master, pty.window_size(self._tty))

    def _hang_up(self) -> None:
        """Close the command's terminal, as the user's is gone; its session gets SIGHUP."""
        if self._is_up:
            self._is_up, self._saved = False, None
            self._typed.clear()
            self._printed.clear()
            self._terminal.close()

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._put_back()
        self._link.close()
        if self._is_up:
            self._terminal.close()
        os.close(self._tty)

    # ---- events

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGWINCH:
            self._resize()
        elif number == signal.SIGTERM:
            self._link.send(l.END)
        elif number == signal.SIGHUP and not self._has_hung_up():
            self._link.send(l.SIGNAL, number)
        elif number == signal.SIGCONT and self._saved is not None and not self._raise_up():
            self._saved = None  # another process stopped us, and another has the terminal now
            self._link.send(l.BACKGROUND)
        elif number in (*FORWARDED, signal.SIGTSTP) and number != signal.SIGHUP:
            self._link.send(l.SIGNAL, number)

    def _has_hung_up(self) -> bool:
        """Say if the user's terminal is gone. If so, the command's is gone too, and the command knows."""
        if self._is_up:
            poller = select.poll()
            poller.register(self._tty, 0)
            if poller.poll(0):
                self._hang_up()
        return not self._is_up

    def _on_message(self, letter: bytes, content: Any) -> None:
        self._has_started = True
        if letter == l.STARTED and self._forward and not self._raise_up():
            self._link.send(l.BACKGROUND)
        elif letter == l.STOPPED:
            self._stop(content)
        elif letter == l.ENDED:
            self.returncode = content
            self._drain()
            self._put_back()
            self._link.send(l.SHOWN, b"" if self._has_typed else bytes(self._last[-_LAST:]))
        elif not letter:
            self._link_is_up = False

    def _stop(self, number: int) -> None:
        """Stop as the command did, unless it only needs the terminal and we have that."""
        if number in _STOPS_READER and self._raise_up():
            self._link.send(l.FORWARD)
            return
        self._drain()
        had_terminal = self._saved is not None or number in _STOPS_READER
        typed = self._saved is not None and number == signal.SIGTSTP and number in self.keys
        self.keys.discard(signal.SIGTSTP)
        self._put_back()
        was_stopped = stop_self(number, group=typed)
        if had_terminal and self._raise_up():
            self._link.send(l.FORWARD)
            return
        if number in _STOPS_READER and not was_stopped:  # no shell will ever bring it to the foreground
            self._link.send(l.SIGNAL, int(signal.SIGHUP))
        self._link.send(l.BACKWARD)
