"""Data for a command's stdin: what the caller gave at the start, and what other threads send later."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections import deque

from nsbox._base.descriptors import high
from nsbox._base.display import seconds_phrase
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._calls.output import CHUNK
from nsbox._tools.arguments import as_bytes, check_wait

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST = 1 << 20  # bytes that the command hasn't read yet; with more than that, send() waits


class Inlet:
    """A queue of bytes for a command.

    data: what the command reads first.
    stays_open: whether any thread may send() more. If so, `fd` becomes readable when there is something new, from
        open() on.
    """

    def __init__(self, data: bytes, *, stays_open: bool) -> None:
        self._pieces = deque([memoryview(data)] if data else ())
        self._size = len(data)
        self._last = data[-1:]
        self._changed = threading.Condition()
        self._is_closed, self._is_open = False, stays_open
        self.has_ended = not stays_open
        self.fd = self._bell = -1

    def open(self) -> None:
        """Make `fd`, if any thread may send. This comes with the start: until then there is nothing to close."""
        if not self._is_open:
            return
        with self._changed:
            self.fd, self._bell = (high(fd) for fd in os.pipe())
            for fd in (self.fd, self._bell):
                os.set_blocking(fd, False)

    def send(self, data: str | bytes, timeout: float | None = None, stopped: Sequence[object] = ()) -> None:
        """Add data; wait while more than 1 MiB is unread. Give up as soon as `stopped` has something in it.

        Raises BrokenPipeError, TimeoutError, TypeError and ValueError.
        """
        view, timeout = memoryview(as_bytes("data", data)), check_wait("timeout", timeout)
        if not self._is_open:
            raise ValueError("stdin isn't open; start the command with open_stdin=True")
        deadline = None if timeout is None else time.monotonic() + timeout
        total = len(view)
        while len(view):
            with self._changed:
                while self._size >= _MOST and not self._is_closed and not stopped:
                    left = None if deadline is None else deadline - time.monotonic()
                    if timeout is not None and left is not None and left <= 0:
                        sent = f"{total - len(view)} of {total} bytes were sent"
                        what = f"the command hasn't read its stdin for {seconds_phrase(timeout)}; {sent}"
                        raise _error(TimeoutError(what), errno.ETIMEDOUT)
                    self._changed.wait(left)
                if stopped:
                    return
                if self._is_closed:
                    raise _error(BrokenPipeError("the command has ended, or has closed its stdin"), errno.EPIPE)
                if self.has_ended:
                    raise ValueError("stdin has ended: send_eof() was called before")
                room = max(1, _MOST - self._size)
                self._pieces.append(view[:room])
                self._size += len(view[:room])
                self._last = bytes(self._pieces[-1][-1:])
                view = view[room:]
            self.ring()

    def wake(self) -> None:
        """Make send() check whether it was stopped."""
        with self._changed:
            self._changed.notify_all()

    def end(self, *, last: bytes = b"") -> None:
        """End stdin after what was sent. last: the character that does so at a terminal."""
        with self._changed:
            if self._is_closed or self.has_ended:
                return
            if last:
                if self._last not in (b"", b"\n"):
                    last += last  # the first one only hands over the unfinished line
                self._pieces.append(memoryview(last))
                self._size += len(last)
            self.has_ended = True
        self.ring()

    def ring(self) -> None:
        """Wake the thread that moves the data."""
        with self._changed, contextlib.suppress(BlockingIOError):  # the pipe is full, so the thread is awake
            if self._bell >= 0:
                os.write(self._bell, b"\0")

    def hush(self) -> None:
        """Read away what ring() has written."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4096)

    def next(self) -> memoryview:
        """Return the next bytes, or no bytes if nothing waits."""
        pieces = self._pieces
        return pieces[0][:CHUNK] if pieces else memoryview(b"")

    def drop(self, count: int) -> None:
        """Forget the first bytes, which the command has got."""
        with self._changed:
            piece = self._pieces.popleft()
            if count < len(piece):
                self._pieces.appendleft(piece[count:])
            self._size -= count
            self._changed.notify_all()

    def close(self) -> None:
        """Refuse whatever is sent from now on."""
        with self._changed:
            self._is_closed = True
            self._pieces.clear()
            fds, self.fd, self._bell = (self.fd, self._bell), -1, -1
            self._changed.notify_all()
        for fd in fds:
            if fd >= 0:
                os.close(fd)


def _error(error: OSError, number: int) -> OSError:
    """Return an error with its number, which tells it from a signal handler's own. Its text stays as it is."""
    error.errno = number
    return error
