"""Event loops: a coroutine function is run under asyncio, uvloop, trio, and anyio on either of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
import trio

with contextlib.suppress(ImportError):
    import uvloop as _uvloop

    _uvloop.new_event_loop().close()  # the first one opens a pipe that stays: libuv's, for signals

Main = Callable[[], Awaitable[Any]]


def _by_uvloop(main: Main) -> Any:
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())  # type: ignore[arg-type]


LOOPS: dict[str, Callable[[Main], Any]] = {
    "asyncio": lambda main: asyncio.run(main()),  # type: ignore[arg-type]
    "uvloop": _by_uvloop,
    "trio": trio.run,
    "anyio": anyio.run,
    "anyio-trio": lambda main: anyio.run(main, backend="trio"),
}
