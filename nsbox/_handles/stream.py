"""Stream: the output of a command as it comes, and its record at the end."""

from __future__ import annotations

import sys
import threading
from collections import deque

from nsbox._base.display import type_phrase
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, Literal

    from nsbox._calls.call import Call
    from nsbox._calls.record import ToolResult
    from nsbox._handles.worker import Worker

    Name = Literal["stdout", "stderr"]

_EACH = 100  # bytes of memory that an event needs besides its data
MOST_WAITING = 1 << 20  # bytes that wait for the caller; with more than that, nsbox stops reading the command's output


@frozen
class StreamEvent(Frozen):
    """One piece of a command's output, or its end.

    kind: "stdout", "stderr" or, for the last event, "end".
    data: the bytes, as the command wrote them. No piece ends within a character of UTF-8.
    result: the command's record in the last event; None in the others.
    """

    kind: Literal["stdout", "stderr", "end"]
    data: bytes = b""
    result: ToolResult | None = None

    @property
    def text(self) -> str:
        """The data as text: bytes that aren't UTF-8 become U+FFFD."""
        return self.data.decode("utf-8", "replace")


def sink(on_output: object) -> Callable[[Any, bytes], object]:
    """Return what a call's output goes to: a function that calls the caller's with each event. Raises TypeError."""
    if not callable(on_output):
        raise TypeError(f"on_output is {type_phrase(on_output)}, must be a function")
    return lambda kind, data: on_output(StreamEvent(kind, data))


class Queue:
    """Events between the thread of a call and the caller: at most 1 MiB waits, and as much is being read."""

    def __init__(self) -> None:
        self._events: deque[tuple[Name, bytes]] = deque()
        self._batch: deque[tuple[Name, bytes]] = deque()  # what the caller is reading
        self._taking = threading.RLock()  # a signal handler may read too
        self._size = 0
        self.is_dropped = False  # nobody reads any more, and whatever comes is dropped
        self._room = threading.Condition()
        self.tell: Callable[[], object] = bool

    def put(self, kind: Name, data: bytes) -> None:
        """Add a piece."""
        with self._room:
            if self.is_dropped:
                return
            was_empty = not self._events
            self._events.append((kind, data))
            self._size += len(data) + _EACH
        if was_empty:
            self.tell()

    def take(self) -> tuple[Name, bytes] | None:
        """Return the next piece; None if none waits."""
        with self._taking:
            if not self._batch:
                if not self._events:
                    return None
                # All at once: a lock and a switch of threads for each piece would cost more than the data.
                with self._room:
                    self._batch, self._events, self._size = self._events, deque(), 0
                    self._room.notify_all()
            try:
                return self._batch.popleft()
            except IndexError:  # another thread has dropped everything
                return None

    @property
    def is_empty(self) -> bool:
        """Whether no piece waits."""
        return not self._events and not self._batch

    def has_room(self) -> bool:
        """Return whether the command may go on printing."""
        return self._size < MOST_WAITING

    def await_room(self, seconds: float) -> bool:
        """Wait for room; return whether there is."""
        with self._room:
            return self._room.wait_for(self.has_room, seconds)

    def drain(self) -> None:
        """Drop everything, now and from now on."""
        with self._room:
            self.is_dropped = True
            self._events.clear()
            self._batch.clear()
            self._size = 0
            self._room.notify_all()


class Streamed:
    """What Stream and AsyncStream have in common. Both end their command when they are closed or forgotten."""

    def __init__(self, call: Callable[..., Call], start: Callable[[Call], Worker]) -> None:
        self._queue = Queue()
        self._is_over = False
        self._worker: Worker | None = None
        made = call(sink=self._queue.put, gate=self._queue)
        try:
            self._worker = start(made)
            self._queue.tell = self._worker.notify  # not a method of this object, which the thread would keep alive
        except BaseException:  # a signal handler may raise
            made.cancel(at_once=True)
            raise

    @property
    def result(self) -> ToolResult | None:
        """The record, once the command has ended; None before."""
        return None if self._worker is None else self._worker.result

    def _send(self, data: str | bytes, timeout: float | None) -> None:
        assert self._worker is not None
        self._worker.check_creator()
        self._worker.call.inlet.send(data, timeout)

    def cancel(self) -> None:
        """Ask for the command to be ended, and don't wait; any thread may. The events go on up to the record."""
        if self._worker is not None:
            self._worker.call.cancel()

    def _abandon(self) -> None:
        """End the command without a reader."""
        if self._worker is not None:
            self._worker.check_creator()
            if not self._worker.has_ended:
                self._worker.call.cancel()
        self._queue.drain()

    def _next(self) -> StreamEvent | None:
        """Return the next event; None if none waits. Raises StopIteration after the last one, and the call's error."""
        piece = self._queue.take()
        if piece is not None:
            return StreamEvent(*piece)
        worker = self._worker
        if self._is_over or worker is None:
            raise StopIteration
        if not worker.has_ended or not self._queue.is_empty:
            return None
        with worker.changed:  # if several threads read, one of them gets the record
            if self._is_over:
                raise StopIteration
            self._is_over = True
        return StreamEvent("end", b"", worker.outcome())

    def __del__(self, *, _is_late: Callable[[], bool] = sys.is_finalizing) -> None:
        worker = getattr(self, "_worker", None)
        if worker is not None and not _is_late() and worker.is_ours and not worker.has_ended:
            self._abandon()


class Stream(Streamed):
    """The output of a command as it comes: an iterator of StreamEvent. `Sandbox.stream()` makes it.

        for event in box.stream("npm test"):
            print(event.text, end="")

    The last event has the kind "end" and the command's record. At most 1 MiB waits for you. After that, the command
    waits, but its time limit still counts. Closing the stream, as the end of a `with` block does, ends the command.
    Any thread may read it.
    """

    def __init__(self, call: Callable[..., Call], start: Callable[[Call], Worker]) -> None:
        super().__init__(call, start)
        assert self._worker is not None
        self._worker.await_start()

    def __repr__(self) -> str:
        return f"<nsbox.Stream {'runs' if self.result is None else 'has ended'}>"

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> StreamEvent:
        worker = self._worker
        assert worker is not None
        worker.check_creator()
        while (event := self._next()) is None:
            with worker.changed:
                worker.changed.wait_for(lambda: worker.has_ended or not self._queue.is_empty)
        return event

    def send(self, data: str | bytes, *, timeout: float | None = None) -> None:
        """Send data to the command's stdin, or type it at its terminal.

        data: bytes, or a str, which is sent as UTF-8.
        timeout: seconds to wait while more than 1 MiB is unread. Default: None, for no limit.

        Raises ValueError unless the stream was made with open_stdin=True, BrokenPipeError once the command has ended or
        closed its stdin, and TimeoutError.
        """
        self._send(data, timeout)

    def send_eof(self) -> None:
        """End the command's stdin after what was sent."""
        if self._worker is not None:
            self._worker.call.end_input()

    def close(self) -> None:
        """End the command, and return when nothing of it is left. Closing twice isn't an error. Raises KillError."""
        self._abandon()
        if self._worker is not None:
            self._worker.await_end()
            self._worker.check_killed()
        self._is_over = True

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
