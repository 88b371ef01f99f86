"""A command of a session, as this process knows it: its start, its end, and signals to it."""

from __future__ import annotations

import _socket  # as in _base.descriptors
import array
import contextlib
import errno
import os
import select
import signal

from nsbox._base.descriptors import high
from nsbox._base.errors import SetupError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.poll import is_readable
from nsbox._base.stdlib import RLock
from nsbox._core.abi import constants as c
from nsbox._core.command import Result, Used
from nsbox._core.entry import TOLD
from nsbox._core.orphans import pid_behind

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LONGEST = 60_000  # milliseconds that a command may take to its exec: others in the session can stop it
_by_pidfd: Any = getattr(signal, "pidfd_send_signal", None)  # on Linux


class SessionCommand:
    """A command of a session.

    It has a pidfd, a socket by which pid 1 reports its end, and until its exec a pipe, which says why there is none.
    pid: as this process numbers it. status: its wait status, once it has ended.
    """

    def __init__(self, told: _socket.socket, failed: int, send: Callable[[int, int], None]) -> None:
        """Own a socket and a pipe. send: has pid 1 send a signal, by a pidfd, where this process may not."""
        self._told, self._failed, self._send = told, failed, send
        self._lock = RLock()
        self._pidfd = self.pid = -1
        self.mark = 0  # of everything that it starts, as pid 1 knows it; 0: it has none
        self.status: int | None = None
        self.used: Used | None = None

    def start(self, session: int) -> Result:
        """Let it go on once it exists, and wait until it has executed its program; return what a spawn would.

        session: pid 1's pidfd. Raises SetupError if the session ends, or nothing happens for a minute.
        """
        result = Result(0, 0, -1, 0, 0, -1, -1)
        self._await(self._told.fileno(), session)
        message, fds = self._receive(0)
        if message is not None and message[0] == c.ENTRY_FAILED:
            result.error, result.step = message[1], message[2]
            return result
        if message is None or message[0] != c.ENTRY_STARTED or len(fds) != 1:
            raise SetupError(errno.ESRCH, "enter the session", None, "it can't start a command, or has ended")
        self._pidfd, self.mark = fds[0], message[-1]
        self.pid = pid_behind(self._pidfd)
        if not self.pid:
            hint = "another process has killed the command before its exec"
            raise SetupError(errno.ESRCH, "enter the session", None, hint)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # then the command has ended as well
            self._told.send(b"\0")
        self._await(self._failed, session)
        failure = os.read(self._failed, 64)
        self._let_go()
        if failure:
            _, result.error, result.step, *_ = TOLD.unpack(failure)
        result.pid = self.pid
        return result

    def _await(self, fd: int, session: int) -> None:
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        poller.register(session, select.POLLIN)
        ready = poller.poll(LONGEST)
        if not ready:
            raise SetupError(errno.ETIMEDOUT, "enter the session", None, "another process may have stopped it there")
        if fd not in dict(ready):  # a forked process may still have the other end
            raise SetupError(errno.ESRCH, "enter the session", None, "it has ended")

    def _receive(self, flags: int) -> tuple[tuple[int, ...] | None, list[int]]:
        """Return the next message (None at the end of the session), and the descriptors that come with it."""
        try:
            message = received(self._told, flags)
        except ConnectionResetError:
            message = None
        return (None, []) if message is None else (message[0], [message[1]] if message[1] >= 0 else [])

    def try_wait(self, flags: int) -> bool:
        """Return whether it has ended; without WNOHANG in flags, wait for that."""
        if self.status is not None:
            return True
        try:
            message, _ = self._receive(_socket.MSG_DONTWAIT if flags & os.WNOHANG else 0)
        except BlockingIOError:
            return False
        if message is None:
            self.status = int(signal.SIGKILL)
        else:
            _, self.status, _, _, user, system, rss, _ = message
            self.used = Used(user, system, rss)
        return True

    def ends_within(self, seconds: float) -> bool:
        """Return whether it ends within some seconds. If so, try_wait() doesn't wait."""
        return self.status is not None or is_readable(self._told.fileno(), seconds)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when it has ended."""
        return self._told.fileno()

    def signal(self, number: int) -> None:
        """Send it a signal, if it still exists."""
        with self._lock:
            if self._pidfd >= 0:
                try:
                    signal.pidfd_send_signal(self._pidfd, number)
                except ProcessLookupError:
                    pass
                except PermissionError:  # it has other ids
                    self._send(self._pidfd, number)

    # At the interpreter's end: see _shutdown.

    def last_status(
        self, is_patient: bool, *, unpack: Any = TOLD.unpack, decode: Any = os.waitstatus_to_exitcode
    ) -> int | None:
        """Return how it has ended; None: it hasn't. is_patient: wait for its end."""
        if self.status is None:
            self._told.setblocking(is_patient)
            try:
                message = self._told.recv(64)
            except BlockingIOError:
                return None
            except ConnectionResetError:
                message = b""
            self.status = unpack(message)[1] if message else 9
        return decode(self.status)  # type: ignore[no-any-return]

    def last_signal(self, number: int, *, send: Any = _by_pidfd) -> None:
        """Send it a signal, if it still exists."""
        if self._pidfd >= 0:
            try:
                send(self._pidfd, number)
            except PermissionError:  # it has other ids, and ends with its session
                pass

    def _let_go(self) -> None:
        failed, self._failed = self._failed, -1
        if failed >= 0:
            os.close(failed)

    def close(self) -> None:
        """Close its descriptors. A command that start() hasn't let go on ends then."""
        with self._lock:
            self._told.close()
            self._let_go()
            pidfd, self._pidfd = self._pidfd, -1
            if pidfd >= 0:
                os.close(pidfd)


def received(told: _socket.socket, flags: int) -> tuple[tuple[int, ...], int] | None:
    """Return a message of pid 1's, and the descriptor that comes with it, or -1; None at the end. Raises OSError."""
    fds = array.array("i")
    space = _socket.CMSG_LEN(fds.itemsize)
    data, ancillary, _, _ = told.recvmsg(TOLD.size, space, flags | _socket.MSG_CMSG_CLOEXEC)
    for _, _, content in ancillary:
        fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    owned = [high(fd) for fd in fds]
    if len(data) != TOLD.size:
        for fd in owned:
            os.close(fd)
        return None
    return TOLD.unpack(data), (owned or [-1])[0]
