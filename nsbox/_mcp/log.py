"""What happens in the server, as log notifications of the protocol, and on standard error."""

from __future__ import annotations

import logging
import sys

from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from nsbox._base.display import printable
from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_NAME = "nsbox"  # the logger, as clients show it


class Log:
    """Tells the client what happens, if the client wants to know.

    Before 2026-07-28 a connection has one level, which logging/setLevel changes. Since then each request says which
    levels it wants, and only a request that runs can carry messages.
    """

    def __init__(self) -> None:
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
        data = {"message": text, **values}
        last = self._last
        if last is None:
            return
        if last.protocol_version in MODERN_PROTOCOL_VERSIONS:
            for session in tuple(self._sessions.values())[:1]:
                await session.send_log_message(level, data, _NAME)
        elif LEVELS.index(level) >= self._level:
            await last.send_log_message(level, data, _NAME)


def say(text: str) -> None:
    """Print a line on standard error."""
    if sys.stderr is not None:
        try:
            print("nsbox mcp:", printable(text), file=sys.stderr, flush=True)
        except OSError:  # nobody reads it
            pass


def to_stderr() -> None:
    """Send what Python's warnings and loggers say to standard error, a line each."""
    logging.captureWarnings(True)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="nsbox mcp: %(name)s: %(message)s")
