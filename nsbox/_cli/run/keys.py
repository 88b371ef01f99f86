"""The signals that the user types for a command of `nsbox run` that has our terminal instead of its own.

A key signals every process of the foreground group. So a process of ours joins the command's group, with all signals
blocked. It sees where each signal comes from: from the kernel for a key (SI_KERNEL, sigaction(2)), else from a process,
such as the command itself. If the command kills this process, as kill(0, SIGKILL) would, or stops it, nothing counts as
typed.
"""

from __future__ import annotations

import _socket  # as in _base.descriptors
import contextlib
import fcntl
import os
import signal

from nsbox._base.descriptors import pair

_SI_KERNEL = 0x80
_KEYS = (signal.SIGINT, signal.SIGQUIT)


class Keys:
    """Collects typed signals. One that is typed before join(), at the command's very start, ends only the command."""

    def __init__(self, *, wanted: bool) -> None:
        """Get ready before the command starts, if wanted. Without sigwaitinfo(2), as on macOS, nothing is collected."""
        self._pid = 0
        self._link: _socket.socket | None = None
        if wanted and hasattr(signal, "sigwaitinfo"):
            with contextlib.suppress(OSError):  # no process or descriptor is left
                self._start()

    def join(self, group: int) -> None:
        """Collect what is typed for a process group of our session; 0 if it is gone."""
        if self._link is not None and group > 0:
            with contextlib.suppress(OSError):  # the group is gone
                os.setpgid(self._pid, group)

    def _start(self) -> None:
        ours, theirs = pair()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._pid = os.fork()
            if self._pid == 0:
                try:
                    ours.close()
                    _listen(theirs)
                finally:
                    os._exit(0)
            self._link = ours
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            theirs.close()

    def take(self) -> set[int]:
        """Return the signals typed so far, and stop collecting."""
        link, self._link = self._link, None
        if link is None:
            return set()
        link.shutdown(_socket.SHUT_WR)
        os.kill(self._pid, signal.SIGCONT)  # a stop of the command's group has stopped it too
        if os.WIFSTOPPED(os.waitpid(self._pid, os.WUNTRACED)[1]):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        keys = set(link.recv(len(_KEYS)))
        link.close()
        return keys


def _listen(link: _socket.socket) -> None:
    """Collect until the other end is shut, or its process has ended; then send what was typed."""
    fd = link.fileno()
    os.closerange(0, fd)
    os.closerange(fd + 1, os.sysconf("SC_OPEN_MAX"))
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)  # SIGIO
    keys: set[int] = set()
    while not _is_shut(link):
        _note(signal.sigwaitinfo((*_KEYS, signal.SIGIO)), keys)
    while (info := signal.sigtimedwait(_KEYS, 0)) is not None:
        _note(info, keys)
    link.send(bytes(keys))


def _note(info: signal.struct_siginfo, keys: set[int]) -> None:
    if info.si_signo in _KEYS and info.si_code == _SI_KERNEL:
        keys.add(info.si_signo)


def _is_shut(link: _socket.socket) -> bool:
    try:
        return not link.recv(1, _socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
