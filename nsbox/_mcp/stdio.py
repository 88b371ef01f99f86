"""The protocol's messages over stdin and stdout: one a line, of a bounded size. Nothing else ever reaches stdout.

The SDK's own transport reads lines of any length, and drops what isn't a message without an answer. Here the sender
gets an error that says what was wrong. A thread reads, and waits while the server has no room, so little is held in
memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import select
import sys
import threading
from collections.abc import AsyncIterator, Callable

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._interpreter.wire import plain

if TYPE_CHECKING:
    from typing import Any

MOST = 8 << 20  # bytes of a message; the SDK's transport for HTTP has a bound of this kind too
_MOST_KEPT = 64 << 20  # bytes of a longer one that are read to find out which request it is
_PIECE = 1 << 16
_SURE = 4096  # bytes that a pipe takes at once if it takes any: PIPE_BUF, pipe(7)
_LAST = 1.0  # seconds for what is still to be written when the server ends
PARSE_ERROR, INVALID_REQUEST = -32700, -32600  # JSON-RPC 2.0, section 5.1


class Lines:
    """Joins pieces to lines. A line that is too long is discarded as it arrives; only its bytes are counted."""

    def __init__(self, most: int = _MOST_KEPT) -> None:
        self._most, self._kept, self._size = most, bytearray(), 0

    def put(self, piece: bytes) -> list[tuple[bytes, int]]:
        """Return the lines that are complete with this piece, and how long each is; b"" for one that is too long."""
        *ends, rest = piece.split(b"\n")
        lines = []
        for end in ends:
            self._add(end)
            lines.append((bytes(self._kept), self._size))
            self._kept, self._size = bytearray(), 0
        self._add(rest)
        return lines

    def _add(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._most:
            self._kept = bytearray()
        else:
            self._kept += data

    @property
    def has_rest(self) -> bool:
        """Whether a line was begun."""
        return self._size > 0


def _problem(code: int, text: str, id: Any = None) -> SessionMessage:
    error = types.ErrorData(code=code, message=text)
    return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=id, error=error))


def read_message(line: bytes, size: int) -> tuple[SessionMessage | None, SessionMessage | None]:
    """Return a message for the server, or the answer to what is none; neither for an empty line.

    line: b"" if it was too long to be kept.
    size: how many bytes it had.
    """
    if size > MOST:
        text = f"the message has {size:,} bytes, and at most {MOST:,} are read; write a large file in pieces, by append"
        return None, _problem(INVALID_REQUEST, text, _id_of(line))
    if not line.strip():
        return None, None
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False)), None
    except ValidationError:
        pass
    try:
        json.loads(line)
    except (ValueError, RecursionError) as error:
        return None, _problem(PARSE_ERROR, f"the line isn't JSON: {error}")
    return None, _problem(INVALID_REQUEST, "the line is JSON, but not a message of JSON-RPC 2.0", _id_of(line))


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


def _id_of(line: bytes) -> str | int | None:
    try:
        found = json.loads(line).get("id")
    except (ValueError, AttributeError, RecursionError):
        return None
    if isinstance(found, str):
        return found if plain(found) == found else None  # the protocol's messages are UTF-8
    return found if isinstance(found, int) and not isinstance(found, bool) else None


class Writer:
    """Writes messages to a descriptor in their order. A client that doesn't read blocks a thread, and not the loop."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._jobs: queue.SimpleQueue[tuple[bytes, Callable[[BaseException | None], object]]] = queue.SimpleQueue()
        self._has_thread = False

    async def write(self, data: bytes) -> None:
        """Write it whole. Raises OSError if the client is gone."""
        if len(data) <= _SURE and self._poll.poll(0):
            os.write(self._fd, data)
            return
        if not self._has_thread:
            threading.Thread(target=self._work, name="nsbox-mcp-write", daemon=True).start()
            self._has_thread = True
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def settle(error: BaseException | None) -> None:
            if not done.done():
                done.set_exception(error) if error is not None else done.set_result(None)

        def tell(error: BaseException | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, error)

        self._jobs.put((data, tell))
        await done

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


def _claim() -> tuple[int, int]:
    """Return descriptors of the messages. From now on fd 0 is empty, and what is printed to fd 1 goes to stderr."""
    reads, writes = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # stderr is closed
        os.dup2(null, 1)
    os.close(null)
    return reads, writes


@contextlib.asynccontextmanager
async def stdio() -> AsyncIterator[tuple[Any, Any]]:
    """Yield the streams of messages from and to the client. The first ends when the client closes stdin, or is gone."""
    reads, writes = _claim()
    writer = Writer(writes)
    incoming, for_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    from_server, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    problems = from_server.clone()
    loop = asyncio.get_running_loop()

    def deliver(send: Callable[[Any], Any], message: SessionMessage) -> bool:
        """Hand over a message, and wait until it is taken; return whether somebody is there to take it."""
        try:
            asyncio.run_coroutine_threadsafe(send(message), loop).result()
        except Exception:  # the server has ended
            return False
        return True

    def read() -> None:
        lines = Lines()
        with contextlib.suppress(OSError):  # a terminal that hung up
            while piece := os.read(reads, _PIECE):
                for line, size in lines.put(piece):
                    message, problem = read_message(line, size)
                    if message is not None and not deliver(incoming.send, message):
                        return
                    if problem is not None and not deliver(problems.send, problem):
                        return
        if lines.has_rest:
            print("nsbox mcp: the client ended in the middle of a message", file=sys.stderr)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(close)

    def close() -> None:
        incoming.close()
        problems.close()

    has_written = anyio.Event()

    async def write() -> None:
        try:
            async with outgoing:
                async for message in outgoing:
                    await writer.write(line_of(message) + b"\n")
        except OSError:  # nobody reads any more
            close()
        finally:
            has_written.set()

    threading.Thread(target=read, name="nsbox-mcp-read", daemon=True).start()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        try:
            yield for_server, from_server
        finally:
            close()
            from_server.close()
            with anyio.move_on_after(_LAST, shield=True):
                await has_written.wait()
            tasks.cancel_scope.cancel()
