"""A host and an internet, in namespaces of their own, for programs that use nsbox there: see host.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "lib"))

from nsbox_client import Client, client_in
from nsbox_clients import World


def start(directory: Path, code: str, timeout: int = 100) -> list[str]:
    """Run Python on a host that has an internet of its own, with files in a directory; return the lines of its output."""
    return client_in(directory)(code, timeout=timeout)


@pytest.fixture
def client(tmp_path: Path) -> Client:
    """Run Python on a host that has an internet of its own; return the lines of its output."""
    return client_in(tmp_path)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Give a host to run commands on, with an internet that has servers for real clients."""
    return World(tmp_path_factory.mktemp("world"), start)
