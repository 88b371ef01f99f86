"""Calls of tools: how many run at once, what their callers see meanwhile, and how they are cancelled.

A call that the client cancels is ended as at its time limit: SIGTERM, the grace time, SIGKILL. Only then is it over.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import sys
import time

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
    ListRootsRequest,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel

from nsbox._base.errors import NsboxError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._handles.schemas import BY_NAME
from nsbox._mcp.log import say
from nsbox._mcp.outcome import failure, result
from nsbox._mcp.workspace import ROOTS_KEY

if TYPE_CHECKING:
    from typing import Any

    from nsbox._handles.stream import StreamEvent
    from nsbox._mcp.log import Log
    from nsbox._mcp.outbox import Outbox
    from nsbox._mcp.questions import Questions
    from nsbox._mcp.wishes import Wishes
    from nsbox._mcp.workspace import Workspace
    from nsbox.async_sandbox import AsyncSandbox

_RUNNING = ("shell", "exec", "python")  # the tools whose output can be watched
_STARTING = (*_RUNNING, "grep", "background")  # those that start a command
_MOST_COMMANDS = 16  # commands at once; more wait
_MOST_OTHERS = 64
_MOST_WAITING = 4096  # calls
_MOST_HELD = 64 << 20  # bytes of memory for the parameters of all calls that run or wait
_TICK = 1.0  # seconds between two notifications of progress
_LONGEST = 200  # characters of output in one
_KEPT = 300.0  # seconds that an ended call waits for a client that was asked something
_BUSY = -32000  # the first of JSON-RPC's numbers for servers


def _memory(params: CallToolRequestParams) -> int:
    """Return how many bytes of memory the parameters of a call take: in lists and metadata, too."""
    total, rest = 0, [params.arguments, params.meta, params.input_responses, params.model_extra]
    while rest:
        value: Any = rest.pop()
        total += sys.getsizeof(value)
        if isinstance(value, BaseModel):
            rest += (vars(value), value.model_extra)
        elif isinstance(value, dict):
            rest += (*value, *value.values())
        elif isinstance(value, list | tuple):
            rest += value
    return total


class Watch:
    """What a running call reports to its caller: the seconds so far, and the last line of output."""

    def __init__(self, session: Any, is_wanted: bool) -> None:
        self.session, self.is_wanted = session, is_wanted  # the session is another after a question
        self._began, self._last = time.monotonic(), ""

    def see(self, event: StreamEvent) -> None:
        """Take an event of the output, in the thread of the call."""
        lines = [line for line in event.text[-4 * _LONGEST :].splitlines() if line.strip()]
        if lines:
            self._last = lines[-1][-_LONGEST:]

    async def report(self) -> None:
        """Send progress every second, until cancelled."""
        while True:
            await anyio.sleep(_TICK)
            seconds = round(time.monotonic() - self._began, 1)
            await self.session.report_progress(seconds, None, self._last or f"running for {seconds:.0f} s")


class Calls:
    """The calls of one connection."""

    def __init__(self, wishes: Wishes, workspace: Workspace, questions: Questions, log: Log, outbox: Outbox) -> None:
        self._wishes, self._workspace, self._questions, self._log = wishes, workspace, questions, log
        self._outbox = outbox
        self._commands, self._others = anyio.CapacityLimiter(_MOST_COMMANDS), anyio.CapacityLimiter(_MOST_OTHERS)
        self._n_waiting = self._held = 0
        self._numbers = itertools.count()
        self._paused: dict[str, tuple[asyncio.Task[CallToolResult], Watch]] = {}

    async def call(self, session: Any, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        """Carry out a call, and return its result; or what the client must answer first (since 2026-07-28)."""
        if params.name not in BY_NAME:
            text = f"there is no tool {params.name!r:.100}; there are {', '.join(BY_NAME)}"
            raise MCPError(code=INVALID_PARAMS, message=text)
        number = next(self._numbers)
        self._log.begin(number, session)
        self._questions.attach(session)
        try:
            if params.request_state is not None:
                return await self._resume(session, params)
            if self._workspace.needs_roots(session, params.input_responses):
                return InputRequiredResult(input_requests={ROOTS_KEY: ListRootsRequest()})
            watch = Watch(session, is_wanted="progress_token" in (params.meta or {}))
            if session.protocol_version not in MODERN_PROTOCOL_VERSIONS or not self._wishes.asks_network:
                return await self._run(watch, params)
            return await self._attend(asyncio.create_task(self._run(watch, params)), watch)
        finally:
            self._log.end(number)

    # ---- one call

    async def _run(self, watch: Watch, params: CallToolRequestParams) -> CallToolResult:
        arguments = params.arguments or {}
        size = _memory(params)
        if self._n_waiting >= _MOST_WAITING or self._held + size > _MOST_HELD:
            raise MCPError(code=_BUSY, message="the server is busy: too many calls at once, or too much in them")
        self._n_waiting += 1
        self._held += size
        try:
            async with self._commands if params.name in _STARTING else self._others:
                await self._outbox.room()  # for a client that doesn't read
                box = await self._workspace.box(watch.session, params.input_responses)
                return await self._carried_out(box, watch, params.name, arguments)
        except (NsboxError, OSError, ValueError) as error:
            text = "; ".join([str(error), *getattr(error, "__notes__", [])])
            say(f"{params.name}: {text}")
            await self._log.tell("error", text, tool=params.name)
            return failure(text)
        finally:
            self._n_waiting -= 1
            self._held -= size

    async def _carried_out(
        self, box: AsyncSandbox, watch: Watch, name: str, arguments: dict[str, Any]
    ) -> CallToolResult:
        options: dict[str, Any] = {"grace": self._wishes.grace}
        if self._wishes.timeout is not None:
            options["timeout"] = self._wishes.timeout
        if not watch.is_wanted or name not in _RUNNING:
            return result(name, await box.call_tool(name, arguments, **options))
        reports = asyncio.create_task(watch.report())
        try:
            return result(name, await box.call_tool(name, arguments, on_output=watch.see, **options))
        finally:
            reports.cancel()

    # ---- calls that a question interrupts

    async def _attend(self, task: asyncio.Task[CallToolResult], watch: Watch) -> CallToolResult | InputRequiredResult:
        """Wait for a call that runs in a task of its own, or for a question that the client must answer."""
        questions: dict[str, Any] = {}
        while not task.done() and not questions:
            news = asyncio.create_task(self._questions.wait())
            try:
                await asyncio.wait({task, news}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                await self._end(task)
                raise
            finally:
                news.cancel()
            questions = {} if task.done() else {**self._questions.take()}
        if not questions:
            return task.result()
        state = secrets.token_urlsafe()
        self._paused[state] = (task, watch)
        task.add_done_callback(lambda _: asyncio.get_running_loop().call_later(_KEPT, self._forget, state))
        return InputRequiredResult(input_requests=questions, request_state=state)

    async def _resume(self, session: Any, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        found = self._paused.pop(params.request_state or "", None)
        if found is None:
            raise MCPError(code=INVALID_PARAMS, message="no waiting call has this requestState")
        task, watch = found
        watch.session = session
        for key, answer in (params.input_responses or {}).items():
            self._questions.answer(key, answer)
        return await self._attend(task, watch)

    def _forget(self, state: str) -> None:
        task, _ = self._paused.pop(state, (None, None))
        if task is not None and not task.cancelled():
            task.exception()  # seen

    async def _end(self, task: asyncio.Task[CallToolResult]) -> None:
        """End a call, and return when nothing of it is left."""
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait({task})

    async def close(self) -> None:
        """End the calls whose clients were asked something."""
        for task, _ in tuple(self._paused.values()):
            await self._end(task)
        self._paused.clear()
