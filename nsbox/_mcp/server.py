"""The server of one client: its requests, its life on stdin and stdout, and its end, which leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import warnings

import anyio
import mcp_types as types
from mcp.server import Server
from mcp.shared.exceptions import MCPDeprecationWarning

from nsbox._base.errors import NsboxError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._mcp.calls import Calls
from nsbox._mcp.log import Log, say, to_stderr
from nsbox._mcp.questions import Questions
from nsbox._mcp.stdio import stdio
from nsbox._mcp.tools import descriptions
from nsbox._mcp.workspace import Workspace

if TYPE_CHECKING:
    from typing import Any

    from nsbox._mcp.outbox import Outbox
    from nsbox._mcp.wishes import Wishes
    from nsbox._network.events import NetworkEvent

_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def instructions(wishes: Wishes) -> str:
    """Return what a model should know about all tools."""
    policy = wishes.policy
    try:
        places = ", ".join(policy.list_writable())
    except (NsboxError, OSError):  # the calls say what is wrong
        places = ""
    parts = ["Commands and code run in a sandbox (nsbox), which has a /tmp of its own."]
    if wishes.roots == "ignore":
        parts.append(f"They can write to: {places or 'nothing'}.")
    elif places:
        parts.append(f"They can write to {places}, or to the part of it that your client names as its roots.")
    network = policy.network if isinstance(policy.network, str) else "only the hosts of a list"
    parts.append(f"Network: {network}.")
    parts.append("If a command fails, `why` in its record says how the sandbox may have caused it.")
    return " ".join(parts)


class McpServer:
    """A server for one client."""

    def __init__(self, wishes: Wishes, incoming: Any, outbox: Outbox) -> None:
        """Start nothing yet. In the event loop.

        incoming, outbox: the streams of messages from and to the client.
        """
        self._loop = asyncio.get_running_loop()
        self._incoming, self._outbox = incoming, outbox
        self._log = Log(outbox)
        questions = Questions()
        self._workspace = Workspace(wishes, self._log, questions, self._on_network)
        self._calls = Calls(wishes, self._workspace, questions, self._log, outbox)
        self._tools = descriptions(wishes.policy.network != "none" or wishes.asks_network)
        self._tasks: set[asyncio.Task[None]] = set()
        from nsbox import __version__

        self.server: Server[Any] = Server(
            "nsbox",
            version=__version__,
            title="nsbox",
            description="Commands, Python code and files in a sandbox.",
            instructions=instructions(wishes),
            on_list_tools=self._on_list_tools,
            on_call_tool=self._on_call_tool,
            on_set_logging_level=self._on_set_level,
            on_roots_list_changed=self._on_roots_changed,
        )

    async def _on_list_tools(self, ctx: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=self._tools)

    async def _on_call_tool(
        self, ctx: Any, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        return await self._calls.call(ctx.session, params)

    async def _on_set_level(self, ctx: Any, params: types.SetLevelRequestParams) -> types.EmptyResult:
        self._log.set_level(params.level)
        return types.EmptyResult()

    async def _on_roots_changed(self, ctx: Any, params: Any) -> None:
        self._workspace.forget_roots()

    def _on_network(self, event: NetworkEvent) -> None:
        """Tell the client about a refused connection, from a thread of nsbox's."""
        if event.verdict != "refused" or event.kind not in ("connect", "dns", "udp"):
            return
        text = f"refused: {event.kind} {event.name or event.address}:{event.port} ({event.reason})"

        def begin() -> None:
            task = self._loop.create_task(self._log.tell("warning", text, **event.as_dict()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        try:
            self._loop.call_soon_threadsafe(begin)
        except RuntimeError:  # the loop has ended
            pass

    async def serve(self) -> None:
        """Answer the client until it goes away; then end all that runs."""
        try:
            await self.server.run(self._incoming, self._outbox, self.server.create_initialization_options())
        finally:
            with anyio.CancelScope(shield=True):
                await self._calls.close()
                await self._workspace.close()


async def _main(wishes: Wishes) -> int:
    """Serve; return 0 once the client has gone, and 128+N after signal N."""
    loop, status = asyncio.get_running_loop(), 0

    def stop(number: int) -> None:
        nonlocal status
        status = 128 + number
        scope.cancel()

    with anyio.CancelScope() as scope:
        async with stdio() as streams:
            for number in _SIGNALS:
                loop.add_signal_handler(number, stop, number)
            await McpServer(wishes, *streams).serve()
    return status


def serve(wishes: Wishes) -> int:
    """Serve one client on stdin and stdout, until it closes stdin; return the exit status."""
    to_stderr()
    if os.isatty(0):
        say("speaks the Model Context Protocol on stdin and stdout, for a program that starts it; Ctrl-C ends it")
    warnings.filterwarnings("ignore", category=MCPDeprecationWarning)  # roots and logging, which clients still use
    return asyncio.run(_main(wishes))
