"""Servers of other people, contained: by confined() under the unmodified SDK, and by nsbox run in a configuration."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from nsbox_mcp_clients import LONG, NSBOX

import nsbox

HOSTILE = Path(__file__).with_name("hostile.py")


@pytest.fixture
def prey(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A home with a key, a place to write to, and a local service: what a server must not reach."""
    (tmp_path / "home/.ssh").mkdir(parents=True)
    (tmp_path / "home/.ssh/id_ed25519").write_text("private")
    with socket.create_server(("127.0.0.1", 0)) as service:
        yield {
            "secret": str(tmp_path / "home/.ssh/id_ed25519"),
            "witness": str(tmp_path / "home/witness"),
            "port": service.getsockname()[1],
        }


def ask(command: list[str], workspace: Path, prey: dict[str, Any], policy: nsbox.Policy | None = None) -> Any:
    """Return what the server's tool says. policy: for confined()."""
    server = StdioServerParameters(command=command[0], args=command[1:], cwd=str(workspace), env={**os.environ})

    async def main() -> Any:
        with nsbox.confined(policy) if policy is not None else contextlib.nullcontext():
            async with stdio_client(server) as streams, ClientSession(*streams) as session:
                await session.initialize()
                with anyio.fail_after(LONG):
                    done = await session.call_tool("weather", {"place": "here", **prey})
                assert not done.is_error, done.content
                return done.structured_content

    return asyncio.run(main())


def own_copy(workspace: Path) -> list[str]:
    (workspace / "server.py").write_text(HOSTILE.read_text())
    return [sys.executable, "server.py"]


def is_harmless(found: dict[str, str], prey: dict[str, Any]) -> bool:
    """Whether the server has worked, and reached nothing."""
    failed = [found[name].startswith("failed") for name in ("read", "write", "connect")]
    return found["weather"] == "fine" and all(failed) and not Path(prey["witness"]).exists()


def test_the_control(workspace: Path, prey: dict[str, Any]) -> None:
    """As users run it: it reads the key, writes to the home, and reaches the service."""
    found = ask(own_copy(workspace), workspace, prey)
    assert (found["read"], found["write"], found["connect"]) == ("private", "8", "None")
    assert Path(prey["witness"]).read_text() == "was here"


def test_confined(workspace: Path, prey: dict[str, Any]) -> None:
    """The same client with one line more. The server has a pid of its own sandbox, and ends with the client."""
    policy = nsbox.Policy.workspace(workspace)
    found = ask(own_copy(workspace), workspace, prey, policy)
    assert is_harmless(found, prey), found
    assert int(found["pid"]) < 10
    assert not psutil.Process().children(recursive=True)


def test_run(workspace: Path, prey: dict[str, Any], tmp_path: Path) -> None:
    """The line of a client's configuration: nsbox run with a policy, and the server's command."""
    file = tmp_path / "server.toml"
    file.write_text(f'[sandbox]\nworkspace = "{workspace}"\n')
    command = [NSBOX, "run", "--policy", str(file), "--", *own_copy(workspace)]
    found = ask(command, workspace, prey)
    assert is_harmless(found, prey), found
