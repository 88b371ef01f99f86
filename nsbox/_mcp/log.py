"""What happens in the server, as log notifications of the protocol, and on standard error."""

from __future__ import annotations

import logging
import os
import select
import sys
import threading

from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from nsbox._base.display import printable
from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from nsbox._mcp.outbox import Outbox

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_NAME = "nsbox"  # the logger, as clients show it
_MOST_PENDING = 64  # messages that wait at once
_SURE = 4096  # bytes that a pipe takes at once if it takes any: PIPE_BUF, pipe(7)


class Log:
    """Tells the client what happens, if the client wants to know.

    Before 2026-07-28 a connection has one level, which logging/setLevel changes. Since then each request says which
    levels it wants, and only a request that runs can carry messages.

    While a client doesn't read, messages are dropped. The next one that is sent says how many.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._dropped = self._pending = 0
        self._level = LEVELS.index("info")
        self._sessions: dict[int, Any] = {}  # of the requests that run
        self._last: Any = None

    def set_level(self, level: str) -> None:
        """Tell only what is at least that severe."""
        self._level = LEVELS.index(level)

    def begin(self, number: int, session: Any) -> None:
        """Send messages with a request that runs. number: the request's."""
        self._sessions[number] = self._last = session

    def end(self, number: int) -> None:
        """Forget a request that has ended."""
        self._sessions.pop(number, None)

    async def tell(self, level: str, text: str, **values: Any) -> None:
        """Send a message, if the client wants it.

        level: one of LEVELS.
        text: a sentence.
        values: details, for programs.
        """
        session = self._wanting(level)
        if session is None:
            return
        if self._pending >= _MOST_PENDING or not self._outbox.has_room_for_news:
            self._dropped += 1
            return
        data = {"message": text, **values}
        if self._dropped:
            data["dropped"], self._dropped = self._dropped, 0
        self._pending += 1
        try:
            await session.send_log_message(level, data, _NAME)
        finally:
            self._pending -= 1

    def _wanting(self, level: str) -> Any:
        """Return the session that a message of this level is sent with; None if the client doesn't want it."""
        last = self._last
        if last is not None and last.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return next(iter(self._sessions.values()), None)
        return last if LEVELS.index(level) >= self._level else None


_lock = threading.Lock()


def say(text: str) -> None:
    """Print a line on standard error, or nothing if it would have to wait for somebody who reads it."""
    if sys.stderr is None:
        return
    line = f"nsbox mcp: {printable(text)}".encode(errors="replace")[: _SURE - 1] + b"\n"
    with _lock:
        try:
            poll = select.poll()
            poll.register(sys.stderr.fileno(), select.POLLOUT)
            if poll.poll(0):
                os.write(sys.stderr.fileno(), line)
        except OSError:  # nobody reads it
            pass


class _Said(logging.Handler):
    """Has loggers say what they have to."""

    def emit(self, record: logging.LogRecord) -> None:
        for line in self.format(record).splitlines():
            say(line)


def to_stderr() -> None:
    """Send what Python's warnings and loggers say to standard error, line by line."""
    logging.captureWarnings(True)
    logging.basicConfig(handlers=[_Said()], level=logging.WARNING, format="%(name)s: %(message)s")
