"""What a call through an adapter takes beyond the same call of nsbox, and what the framework's own local way takes.

    .ci/frameworks install DIR WHEEL langchain
    DIR/langchain/bin/python benchmarks/adapters.py langchain [--calls 200]

The calls alternate in one process: through the adapter, bare, and the framework's own. Printed are the p50s in
milliseconds, and what the adapter adds: per call, the difference to the bare call after it. "own adds" is the same for
the framework's way, against subprocess or Python's eval().
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import nsbox

Call = Callable[[], Awaitable[object]]
LINE = "true"
CODE = "1 + 1"


def called(function: Callable[[], object]) -> Call:
    """Return a function as a coroutine function; it blocks."""

    async def call() -> object:
        return function()

    return call


def by_subprocess() -> object:
    """Run the line as a framework's local way does."""
    return subprocess.run(LINE, shell=True, capture_output=True, check=True)


async def _by_asyncio() -> object:
    process = await asyncio.create_subprocess_shell(LINE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return await process.communicate()


# ---- a framework each: yields the adapter's call, the bare one, the framework's own, and what that is compared with


@asynccontextmanager
async def langchain(policy: nsbox.Policy) -> AsyncIterator[tuple[Call, Call, Call, Call]]:
    from langchain_core.tools import StructuredTool

    from nsbox.integrations.langchain import tools

    def shell(command: str) -> str:
        """Run a command."""
        return by_subprocess().stdout.decode()  # type: ignore[attr-defined,no-any-return]

    own = StructuredTool.from_function(shell)
    with nsbox.Sandbox(policy) as box, nsbox.Sandbox(policy) as other:
        (tool,) = tools(box, ["shell"])
        yield (
            called(lambda: tool.invoke({"command": LINE})),
            called(lambda: other.shell(LINE)),
            called(lambda: own.invoke({"command": LINE})),
            called(by_subprocess),
        )


@asynccontextmanager
async def deepagents(policy: nsbox.Policy) -> AsyncIterator[tuple[Call, Call, Call, Call]]:
    from deepagents.backends import LocalShellBackend

    from nsbox.integrations.deepagents import SandboxBackend

    own = LocalShellBackend(root_dir=policy.workdir, virtual_mode=False)
    with SandboxBackend(policy) as backend, nsbox.Sandbox(policy) as other:
        yield (
            called(lambda: backend.execute(LINE)),
            called(lambda: other.shell(LINE)),
            called(lambda: own.execute(LINE)),
            called(by_subprocess),
        )


@asynccontextmanager
async def smolagents(policy: nsbox.Policy) -> AsyncIterator[tuple[Call, Call, Call, Call]]:
    from smolagents.local_python_executor import LocalPythonExecutor

    from nsbox.integrations.smolagents import NsboxExecutor

    own = LocalPythonExecutor([])
    own.send_tools({})
    with NsboxExecutor() as executor, nsbox.Sandbox(policy) as box, box.python() as py, py.kernel() as kernel:
        yield (
            called(lambda: executor(CODE)),
            called(lambda: kernel.run(CODE)),
            called(lambda: own(CODE)),
            called(lambda: eval(CODE)),
        )


@asynccontextmanager
async def openai_agents(policy: nsbox.Policy) -> AsyncIterator[tuple[Call, Call, Call, Call]]:
    from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient

    from nsbox.integrations.openai_agents import NsboxSandboxClient

    client, local = NsboxSandboxClient(), UnixLocalSandboxClient()
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(await client.create())
        own = await stack.enter_async_context(await local.create())
        box = await stack.enter_async_context(nsbox.AsyncSandbox(policy))
        other = await stack.enter_async_context(box.session())
        yield lambda: session.exec(LINE), lambda: other.shell(LINE), lambda: own.exec(LINE), _by_asyncio
    await client.delete(session)
    await local.delete(own)


@asynccontextmanager
async def inspect_ai(policy: nsbox.Policy) -> AsyncIterator[tuple[Call, Call, Call, Call]]:
    from inspect_ai.util._sandbox.local import LocalSandboxEnvironment

    from nsbox.integrations.inspect_ai import NsboxSandboxEnvironment

    words = ["sh", "-c", LINE]
    made = await NsboxSandboxEnvironment.sample_init("bench", None, {})
    locals_ = await LocalSandboxEnvironment.sample_init("bench", None, {})
    async with nsbox.AsyncSandbox(policy) as box, box.task() as other:
        yield (
            lambda: made["default"].exec(words),
            lambda: other.exec("sh", words[1:]),
            lambda: locals_["default"].exec(words),
            _by_asyncio,
        )
    await NsboxSandboxEnvironment.sample_cleanup("bench", None, made, False)
    await LocalSandboxEnvironment.sample_cleanup("bench", None, locals_, False)


@asynccontextmanager
async def mcp(policy: nsbox.Policy) -> AsyncIterator[tuple[Call, Call, Call, Call]]:
    from mcp import StdioServerParameters, stdio_client
    from mcp.client import Client

    words = ["-m", "nsbox", "mcp", "-w", str(policy.workdir)]
    program = "import asyncio, subprocess\nfrom mcp.server import MCPServer\nserver = MCPServer('own')\n"
    program += f"@server.tool()\nasync def shell() -> str:\n    p = await asyncio.create_subprocess_shell({LINE!r}, "
    program += "stdout=-1, stderr=-1)\n    return str(await p.communicate())\nserver.run()\n"
    async with AsyncExitStack() as stack:
        box = await stack.enter_async_context(nsbox.AsyncSandbox(policy))
        servers = [
            StdioServerParameters(command=sys.executable, args=["-P", *words]),
            StdioServerParameters(command=sys.executable, args=["-P", "-c", program]),
        ]
        client, own = [await stack.enter_async_context(Client(stdio_client(server))) for server in servers]
        yield (
            lambda: client.call_tool("shell", {"command": LINE}),
            lambda: box.shell(LINE),
            lambda: own.call_tool("shell", {}),
            _by_asyncio,
        )


FRAMEWORKS = {one.__name__: one for one in (langchain, deepagents, smolagents, openai_agents, inspect_ai, mcp)}

# ---- measuring


async def measured(name: str, count: int) -> list[list[float]]:
    """Return the milliseconds of each of the four calls, one after the other, in `count` turns."""
    times: list[list[float]] = [[], [], [], []]
    with tempfile.TemporaryDirectory() as place:
        async with FRAMEWORKS[name](nsbox.Policy.workspace(place)) as calls:
            for turn in range(count + 20):
                for call, found in zip(calls, times, strict=True):
                    begin = time.perf_counter()
                    await call()
                    seconds = time.perf_counter() - begin
                    await asyncio.sleep(0.006)  # for what the call has left to be done
                    if turn >= 20:  # the first ones load modules, and fill the stock of copies
                        found.append(1000 * seconds)
    return times


def main() -> None:
    """Measure one framework, and print a line."""
    parser = argparse.ArgumentParser(description="what adapters add to a call")
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("--calls", type=int, default=200, help="how many of each (default: 200)")
    options = parser.parse_args()
    times = asyncio.run(measured(options.framework, options.calls))
    adapter, bare, own, plain = (statistics.median(one) for one in times)
    adds, own_adds = (statistics.median(a - b for a, b in zip(*pair, strict=True)) for pair in (times[:2], times[2:]))
    print(
        f"{options.framework}: adapter {adapter:.2f}, bare {bare:.2f}, adds {adds:.2f}; "
        f"own {own:.2f}, plain {plain:.2f}, own adds {own_adds:.2f} (ms, p50 of {options.calls})"
    )


if __name__ == "__main__":
    main()
