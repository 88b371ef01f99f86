"""Servers as a client starts them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import StdioServerParameters

sys.path.insert(0, str(Path(__file__).parent / "lib"))

from nsbox_mcp_clients import NSBOX, Raw, Serve, legacy, modern


@pytest.fixture
def serve(workspace: Path) -> Serve:
    """What starts a server with these options, in the fixture `workspace` unless they say otherwise."""

    def parameters(*options: str, own_policy: bool = False) -> StdioServerParameters:
        words = ["mcp", *([] if own_policy else ["-w", str(workspace)]), *options]
        return StdioServerParameters(command=NSBOX, args=words, env={**os.environ}, cwd=str(workspace))

    return parameters


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test may take long: a server loads the SDK, which takes seconds on a busy machine."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with the parameter `connect` is done by clients of both kinds."""
    marks = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "connect" in metafunc.fixturenames and "connect" not in marks:
        metafunc.parametrize("connect", [legacy, modern], ids=["legacy", "modern"])


@pytest.fixture
def raw(serve: Serve) -> Iterator[Callable[..., Raw]]:
    """What starts a server with a client that writes what it likes; both end with the test."""
    started: list[Raw] = []

    def start(*options: str, greets: bool = True, **capabilities: Any) -> Raw:
        client = Raw(serve(*options))
        started.append(client)
        if greets:
            client.greet(**capabilities)
        return client

    yield start
    for client in started:
        if client.process.poll() is None:
            client.process.kill()
        with client.process:
            pass
