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
import re
import select
import threading
from collections.abc import AsyncIterator, Coroutine

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._interpreter.wire import plain
from nsbox._mcp.log import say
from nsbox._mcp.outbox import Outbox

if TYPE_CHECKING:
    from typing import Any

MOST = 8 << 20  # bytes of a message; the SDK's transport for HTTP has a bound of this kind too
_MOST_KEPT = 64 << 20  # bytes of a longer one that are read to find out which request it is
_MOST_VALUES = 100_000  # in a message; each takes some hundred bytes of memory, if two of its own
_PIECE = 1 << 16
_PAUSE = 50  # milliseconds
_LAST = 1.0  # seconds for what is still to be written when the server ends
# A string of JSON, or the beginning of one. The latter is taken to the end, so that no byte is looked at twice.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
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


def has_too_many_values(line: bytes) -> bool:
    """Return whether a line of JSON would take far more memory than its size, such as one of empty lists."""
    if len(line) <= _MOST_VALUES:
        return False
    rest = _STRING.sub(b"", line)
    return sum(map(rest.count, (b",", b"[", b"{"))) > _MOST_VALUES


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
    if has_too_many_values(line):
        return None, _problem(INVALID_REQUEST, f"the message has more than {_MOST_VALUES:,} values, such as list items")
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False)), None
    except ValidationError:
        pass
    try:
        json.loads(line)
    except (ValueError, RecursionError) as error:
        return None, _problem(PARSE_ERROR, f"the line isn't JSON: {error}")
    return None, _problem(INVALID_REQUEST, "the line is JSON, but not a message of JSON-RPC 2.0", _id_of(line))


def _id_of(line: bytes) -> str | int | None:
    if has_too_many_values(line):
        return None
    try:
        found = json.loads(line).get("id")
    except (ValueError, AttributeError, RecursionError):
        return None
    if isinstance(found, str):
        return found if plain(found) == found else None  # the protocol's messages are UTF-8
    return found if isinstance(found, int) and not isinstance(found, bool) else None


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


class _Input:
    """What the client writes, read by a thread, which stops while too much waits for a client that doesn't read."""

    def __init__(self, fd: int, incoming: Any, outbox: Outbox) -> None:
        """In the event loop.

        fd: where messages come from.
        incoming: the stream to the server.
        outbox: takes the answers to what is no message.
        """
        self._fd, self._incoming, self._outbox = fd, incoming, outbox
        self._loop = asyncio.get_running_loop()
        self._end = select.poll()
        self._end.register(fd, getattr(select, "POLLRDHUP", 0))  # POLLHUP comes unasked

    def read(self) -> None:
        """Hand over all messages until the client's end, or the server's."""
        lines = Lines()
        with contextlib.suppress(OSError):  # a terminal that hung up
            while piece := os.read(self._fd, _PIECE):
                for line, size in lines.put(piece):
                    if not self._take(*read_message(line, size)):
                        return
        if lines.has_rest:
            say("the client ended in the middle of a message")
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._incoming.close)

    def _take(self, message: SessionMessage | None, problem: SessionMessage | None) -> bool:
        """Hand over a message, or answer what is none; return whether somebody is there to take it."""
        while self._outbox.is_full and not self._end.poll(_PAUSE):
            pass
        if message is not None:
            return self._in_loop(self._incoming.send(message))
        return problem is None or self._in_loop(self._post(problem))

    async def _post(self, problem: SessionMessage) -> None:
        self._outbox.post(problem)

    def _in_loop(self, work: Coroutine[Any, Any, None]) -> bool:
        try:
            asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except Exception:  # the server has ended
            work.close()
            return False
        return True


@contextlib.asynccontextmanager
async def stdio() -> AsyncIterator[tuple[Any, Outbox]]:
    """Yield the streams of messages from and to the client. The first ends when the client closes stdin, or is gone."""
    reads, writes = _claim()
    incoming, for_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outbox = Outbox(writes, on_gone=incoming.close)
    threading.Thread(target=_Input(reads, incoming, outbox).read, name="nsbox-mcp-read", daemon=True).start()
    try:
        yield for_server, outbox
    finally:
        incoming.close()
        await outbox.aclose()
        with anyio.move_on_after(_LAST, shield=True):
            await outbox.empty()
