"""Kernels for tests: started and ended, and code that runs in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager

LONG = 300  # seconds


@contextmanager
def started(name: str, directory: Path, **options: Any) -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    manager = KernelManager(kernel_name=name)
    manager.start_kernel(cwd=str(directory), **options)
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=LONG)
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def execute(client: BlockingKernelClient, code: str) -> str:
    """Run code; return what it has printed, or the name of its exception."""
    said: list[str] = []

    def note(message: dict[str, Any]) -> None:
        content = message["content"]
        if message["msg_type"] == "stream":
            said.append(content["text"])
        elif message["msg_type"] == "error":
            said.append(content["ename"])

    client.execute_interactive(code, timeout=LONG, output_hook=note)
    return "".join(said)
