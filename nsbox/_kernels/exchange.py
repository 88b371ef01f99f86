"""KernelExchange: moves data between this process and a kernel. Its line is a socket; its output comes by two pipes.

The reply to a call ends the call. The code's program flushes what was printed before it replies, so all of it is in the
pipes by then: exactly as many bytes are read as each pipe has at that moment. What comes later is the next call's.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import termios
import time

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._calls.exchange import GLANCE
from nsbox._calls.output import CHUNK
from nsbox._kernels.functions import refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Literal, Protocol

    from nsbox._python.line import BranchLine

    State = Literal["reply", "lost", "late"]
    Answer = Callable[[Mapping[str, Any]], bytes]

    class Sink(Protocol):
        """Gets what a kernel prints."""

        def feed(self, data: bytes) -> None:
            """Add data."""


_PIECES = 64  # reads of what an ended kernel has left in a pipe: no more than a pipe holds


class KernelExchange:
    """Moves data during the calls of one kernel. One thread uses it at a time.

    line: the caller's end of the kernel's line.
    end: a descriptor that becomes readable when the kernel ends.
    pipes: the reading ends of its stdout and stderr.
    """

    def __init__(self, line: BranchLine, end: int, pipes: tuple[int, int]) -> None:
        self._line, self._end, self._pipes = line, end, pipes
        self._open = set(pipes)
        self._poller = select.poll()
        for fd in (line.fileno(), end, *pipes):
            self._poller.register(fd, select.POLLIN)
        for fd in pipes:
            os.set_blocking(fd, False)
        self._sinks: dict[int, Sink] = {}
        self._answer: Answer = refused
        self._has_line = True  # the poller watches it
        self.has_ended = False

    def begin(self, outputs: tuple[Sink, Sink], answer: Answer = refused) -> None:
        """Begin a call. outputs: get what is printed from now on. answer: answers the code's calls of functions."""
        self._sinks = dict(zip(self._pipes, outputs, strict=True))
        self._answer = answer
        self._watch_line()

    def begin_other(self) -> None:
        """Begin an exchange that isn't a call: what is printed goes where it went before."""
        self._watch_line()

    def refuse(self) -> None:
        """From now on, call no function."""
        self._answer = refused

    def _watch_line(self) -> None:
        if not self._has_line:
            return
        if self._line.has_ended:
            self._has_line = False
            self._poller.unregister(self._line)
        else:
            self._poller.modify(self._line, select.POLLIN | (select.POLLOUT if self._line.wants_room else 0))

    def run(
        self, deadline: float | None, is_stopped: Callable[[], bool] | None = None, *, to_end: bool = False
    ) -> State:
        """Move data until the reply has come ("reply"), nothing more can come ("lost"), or it is time to stop ("late").

        deadline: as time.monotonic() says it. is_stopped: is asked every 0.05 seconds.
        to_end: whether to wait for the end of the kernel itself instead.
        """
        line = self._line
        while True:
            if self.has_ended or (not to_end and (line.reply is not None or line.has_ended)):
                self.drain()
                return "lost" if line.reply is None else "reply"
            now = time.monotonic()
            if (deadline is not None and now >= deadline) or (is_stopped is not None and is_stopped()):
                return "late"
            if line.calls and not line.wants_room:  # code that reads no answers gets no more of them
                line.answer(self._answer(line.calls.pop(0)))
                self._watch_line()
                continue
            left = None if deadline is None else deadline - now
            if is_stopped is not None:
                left = GLANCE if left is None else min(left, GLANCE)
            for fd, events in self._poller.poll(None if left is None else max(1, 1000 * left)):
                self._step(fd, events)

    def _step(self, fd: int, events: int) -> None:
        if fd in self._open:
            self._read(fd, CHUNK)
        elif fd == self._end:
            self._line.drain()  # the reply may have come before the end
            self.has_ended = True
        elif fd == self._line.fileno() and self._has_line:
            if events & select.POLLOUT:
                self._line.write()
            if events & ~select.POLLOUT:
                self._line.read()
            self._watch_line()

    def _read(self, fd: int, most: int) -> bool:
        """Read some of a pipe; return whether there was something."""
        try:
            data = os.read(fd, most)
        except BlockingIOError:
            return False
        if data:
            self._sinks[fd].feed(data)
        else:
            self._open.discard(fd)
            self._poller.unregister(fd)
        return bool(data)

    def drain(self) -> None:
        """Read what the pipes have now, and no more: others may keep writing."""
        for fd in tuple(self._open):
            left = waiting(fd)
            while left > 0 and self._read(fd, min(left, CHUNK)):
                left -= CHUNK

    def drain_rest(self) -> None:
        """Read what an ended kernel has left."""
        for fd in tuple(self._open):
            for _ in range(_PIECES):
                if not self._read(fd, CHUNK):
                    break


def waiting(fd: int) -> int:
    """Return how many bytes a pipe has."""
    count = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, count)
    return count[0]
