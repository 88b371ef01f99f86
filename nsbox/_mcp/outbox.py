"""Messages to the client: written in their order, and held, up to a bound, while the client doesn't read.

A client that writes requests and never reads the answers would fill the server's memory. From MOST_WAITING on, the
server reads no more of it and begins none of the calls that wait. Log messages, which are sent unasked, are dropped
much earlier.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import select
import threading
from collections.abc import Callable

import anyio

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._interpreter.wire import plain

if TYPE_CHECKING:
    from typing import Any, Self

    from mcp.shared.message import SessionMessage

MOST_WAITING = 64 << 20  # bytes of messages
_MOST_UNASKED = 1 << 20  # bytes; with more, nothing that was not asked for is added
_EACH = 4096  # bytes: what a waiting message and its task take besides the text, roughly
_SURE = 4096  # bytes that a pipe takes at once if it takes any: PIPE_BUF, pipe(7)


def line_of(message: SessionMessage) -> bytes:
    """Return a message as JSON. What isn't UTF-8, such as a file's name that a command has chosen, has U+FFFD there."""
    text: str
    try:
        text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
        return text.encode()
    except ValueError:  # half of a surrogate pair, such as os.fsdecode() makes
        rows = message.message.model_dump(mode="json", by_alias=True, exclude_unset=True)
        text = plain(json.dumps(rows, ensure_ascii=False))
        return text.encode()


class Outbox:
    """The SDK's stream of messages to the client. A client that doesn't read blocks a thread, and not the loop."""

    def __init__(self, fd: int, on_gone: Callable[[], object]) -> None:
        """Write to a descriptor, in the event loop that runs now.

        on_gone: called, maybe several times, if the client has closed its end.
        """
        self._fd, self._on_gone = fd, on_gone
        self._loop = asyncio.get_running_loop()
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._jobs: queue.SimpleQueue[tuple[bytes, Callable[[OSError | None], object]]] = queue.SimpleQueue()
        self._has_thread = self._is_closed = False
        self._waiting = 0  # bytes
        self._change = anyio.Event()

    @property
    def is_full(self) -> bool:
        """Whether so much waits that nothing new must be begun. Any thread may ask."""
        return self._waiting >= MOST_WAITING

    @property
    def has_room_for_news(self) -> bool:
        """Whether a message that nobody asked for may be sent."""
        return self._waiting < _MOST_UNASKED

    async def room(self) -> None:
        """Wait until it isn't full."""
        while self.is_full:
            await self._change.wait()

    async def empty(self) -> None:
        """Wait until all is written."""
        while self._waiting:
            await self._change.wait()

    # ---- as the SDK wants it

    async def send(self, message: SessionMessage) -> None:
        """Return once it is written. If cancelled, it is still written, after what waits before it."""
        if self._is_closed:
            raise anyio.ClosedResourceError
        data = line_of(message) + b"\n"
        try:
            if not self._waiting and len(data) <= _SURE and self._poll.poll(0):
                os.write(self._fd, data)
                return
            await self._enqueue(data)
        except OSError as error:  # nobody reads any more
            self._on_gone()
            raise anyio.BrokenResourceError from error

    def post(self, message: SessionMessage) -> None:
        """Send it, and don't wait. In the event loop."""
        if not self._is_closed:
            # Whoever waits for nothing hears no error; the next send() does.
            self._enqueue(line_of(message) + b"\n").add_done_callback(lambda done: done.cancelled() or done.exception())

    async def aclose(self) -> None:
        """Take no more messages."""
        self._is_closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.aclose()

    # ---- the thread

    def _enqueue(self, data: bytes) -> asyncio.Future[None]:
        """Have the thread write it; return a future that is done then. Its OSError says that the client is gone."""
        if not self._has_thread:
            threading.Thread(target=self._work, name="nsbox-mcp-write", daemon=True).start()
            self._has_thread = True
        done: asyncio.Future[None] = self._loop.create_future()
        size = len(data) + _EACH
        self._waiting += size

        def settle(error: OSError | None) -> None:
            self._waiting -= size
            self._change.set()
            self._change = anyio.Event()
            if not done.done():
                done.set_exception(error) if error is not None else done.set_result(None)

        def tell(error: OSError | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(settle, error)

        self._jobs.put((data, tell))
        return done

    def _work(self) -> None:
        while True:
            data, tell = self._jobs.get()
            rest = memoryview(data)
            try:
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
            except OSError as error:
                tell(error)
            else:
                tell(None)
