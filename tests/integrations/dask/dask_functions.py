"""What the tests run on workers uncontained, in a module that these can import."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from distributed import Worker, get_worker

import nsbox


def scratch_policy(directory: Path) -> nsbox.Policy:
    return nsbox.Policy.workspace(directory)


def unavailable_if_marked(directory: Path) -> nsbox.Policy:
    policy = nsbox.Policy.workspace(directory)
    return policy.with_(backend="seatbelt") if Path(os.environ["NSBOX_TEST_MARK"]).exists() else policy


def reach(port: int) -> str:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError as error:
        return type(error).__name__
    return "reached"


def memory_limit() -> int:
    return int(get_worker().memory_manager.memory_limit)


def running(dask_worker: Worker) -> int:
    """Return how many tasks run in a worker's sandbox."""
    plugin = dask_worker.plugins.get("nsbox")
    return 0 if plugin is None else len(plugin._tokens)
