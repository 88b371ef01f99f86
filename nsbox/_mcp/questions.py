"""The client's user decides about connections that the network list doesn't mention, by elicitation.

Before protocol version 2026-07-28 the server sends a request of its own. Since then a server sends none: the call that
is running returns early with the question, the command waits, and the client calls again with the answer.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from nsbox._base.display import printable
from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Literal

    from nsbox._network.events import NetworkRequest

    Answer = bool | Literal["always", "never"]

_PATIENCE = 110.0  # seconds; on_connect's own end at 120
_SCHEMA = {
    "type": "object",
    "properties": {
        "answer": {
            "type": "string",
            "title": "Allow this connection?",
            "enum": ["no", "once", "always", "never"],
            "description": "once, no: only for this command. always, never: for all commands of this server.",
        }
    },
    "required": ["answer"],
}


def can_ask(capabilities: Any) -> bool:
    """Return whether a client can show a form. capabilities: the client's, or None."""
    found = None if capabilities is None else capabilities.elicitation
    return found is not None and (found.form is not None or found.url is None)  # {}: a form, as before 2025-11-25


def _form(request: NetworkRequest) -> types.ElicitRequest:
    asked = printable(str(request))[:300]
    text = f"A command in the sandbox wants to connect to {asked}, which the policy doesn't mention. Allow it?"
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=text, requested_schema=_SCHEMA))


def _verdict(result: Any) -> Answer:
    """Return what an ElicitResult says; whatever isn't a clear yes is a no."""
    if not isinstance(result, types.ElicitResult) or result.action != "accept" or not result.content:
        return False
    answer = result.content.get("answer")
    if answer == "always" or answer == "never":
        return "always" if answer == "always" else "never"
    return bool(answer == "once")


class Questions:
    """The questions of one connection."""

    def __init__(self) -> None:
        """Ask in the event loop that runs now."""
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._open: dict[str, tuple[types.ElicitRequest, asyncio.Future[Answer]]] = {}
        self._asked: set[str] = set()  # of the open ones, those that a call has taken to the client
        self._news = asyncio.Event()
        self._session: Any = None

    def attach(self, session: Any) -> None:
        """Ask by this session's connection from now on."""
        self._session = session

    def decide(self, request: NetworkRequest) -> Answer:
        """Return what the user says, for on_connect. Called in a thread of nsbox's."""
        asking = self._ask(request)
        try:
            future = asyncio.run_coroutine_threadsafe(asking, self._loop)
        except RuntimeError:  # the connection has ended
            asking.close()
            return False
        try:
            return future.result()
        except (
            concurrent.futures.CancelledError,
            TimeoutError,
            MCPError,
            ValueError,
        ):  # no answer, or a wrong one
            return False

    async def _ask(self, request: NetworkRequest) -> Answer:
        if self._session is None:
            return False
        form = _form(request)
        if self._session.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            asking = self._session.send_request(form, types.ElicitResult, _PATIENCE)
            return _verdict(await asyncio.wait_for(asking, _PATIENCE))  # its own limit begins once it is written
        key, future = f"connect-{next(self._numbers)}", self._loop.create_future()
        self._open[key] = (form, future)
        self._news.set()
        try:
            return await asyncio.wait_for(future, _PATIENCE)
        finally:
            del self._open[key]
            self._asked.discard(key)

    async def wait(self) -> None:
        """Wait until there is a question that no call has taken."""
        while not self._open.keys() - self._asked:
            self._news.clear()
            await self._news.wait()

    def take(self) -> dict[str, types.ElicitRequest]:
        """Return the questions that no call has taken, for the client to answer."""
        taken = {key: form for key, (form, _) in self._open.items() if key not in self._asked}
        self._asked |= taken.keys()
        return taken

    def answer(self, key: str, result: Any) -> None:
        """Take an answer; one to no question is ignored, such as one that comes too late."""
        _, future = self._open.get(key, (None, None))
        if future is not None and not future.done():
            future.set_result(_verdict(result))
