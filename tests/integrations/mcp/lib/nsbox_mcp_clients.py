"""Clients of a server: those of the SDK, and one that speaks the protocol byte by byte."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import psutil
from mcp import ClientSession, StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client

NSBOX = str(Path(sys.executable).with_name("nsbox"))
LONG = 120  # seconds: a limit that only a broken server reaches
Serve = Callable[..., StdioServerParameters]


@asynccontextmanager
async def legacy(server: StdioServerParameters, **options: Any) -> AsyncIterator[ClientSession]:
    """Yield a client of a protocol version before 2026-07-28, which most programs speak."""
    async with stdio_client(server) as streams, ClientSession(*streams, **options) as session:
        await session.initialize()
        await session.list_tools()  # so that the client checks answers by the schemas
        yield session


@asynccontextmanager
async def modern(server: StdioServerParameters, **options: Any) -> AsyncIterator[Client]:
    """Yield a client of the newest version, 2026-07-28."""
    async with Client(stdio_client(server), **options) as client:
        assert client.protocol_version == "2026-07-28"
        await client.list_tools()
        yield client


class Raw:
    """A client that writes what it likes."""

    def __init__(self, server: StdioServerParameters) -> None:
        pipe = subprocess.PIPE
        command = [server.command, *server.args]
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=server.cwd, env=server.env)
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def write(self, *messages: dict[str, Any] | bytes) -> None:
        for message in messages:
            data = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
            self.stdin.write(data)
        self.stdin.flush()

    def read(self) -> dict[str, Any]:
        """Return the next message; everything on stdout must be one."""
        line = self.stdout.readline()
        assert line, self.process.stderr.read().decode()  # type: ignore[union-attr]
        message: dict[str, Any] = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        return message

    def answer(self, id: Any) -> dict[str, Any]:
        """Return the answer to a request, and forget what comes before it."""
        while (message := self.read()).get("id", "none") != id or "method" in message:
            pass
        return message

    def greet(self, **capabilities: Any) -> None:
        about = {"name": "raw", "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": about}
        self.write({"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": params})
        self.answer("hello")
        self.write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def call(self, id: Any, tool: str, **arguments: Any) -> None:
        params = {"name": tool, "arguments": arguments}
        self.write({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})

    def end(self) -> tuple[int, str]:
        """Close stdin, and return the exit status and what stands on stderr."""
        out, errors = self.process.communicate(timeout=LONG)
        for line in out.splitlines():
            assert json.loads(line)["jsonrpc"] == "2.0"
        return self.process.returncode, errors.decode()


def descendants(process: psutil.Process) -> list[str]:
    """Return the command lines of all processes below one."""
    found = []
    for one in process.children(recursive=True):
        with suppress(psutil.Error):
            found.append(" ".join(one.cmdline()))
    return found


async def until(is_so: Callable[[], object]) -> None:
    """Wait until something is so."""
    with anyio.fail_after(LONG):
        while not is_so():
            await anyio.sleep(0.02)
