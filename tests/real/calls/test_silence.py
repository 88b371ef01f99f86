"""A command that is silent for hours: nothing but its time limit ends a wait for it.

The clock of this process runs 20,000 times as fast. So 0.5 seconds are 2.8 hours for everything that asks it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

import nsbox
from nsbox import Policy, Sandbox

FAST = 20_000
HOUR = 3600
LINE = "echo begin; sleep 0.5; echo end"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    real, began = time.monotonic, time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: began + FAST * (real() - began))
    yield
    monkeypatch.undo()


@pytest.mark.usefixtures("clock")
def test_calls(box: Sandbox) -> None:
    """The record has both ends of the silence. A limit of one hour, for comparison, ends the command."""
    whole = "begin\nend\n"
    result = box.shell(LINE)
    assert (result.stdout, result.cause, result.duration > 2 * HOUR) == (whole, "exit", True)
    assert box.shell(LINE, timeout=HOUR).cause == "timeout"
    assert box.shell(LINE, timeout=1000 * HOUR).stdout == whole
    assert box.shell(LINE, on_output=lambda _: None).stdout == whole  # it looks whether it was cancelled
    assert box.shell(LINE, input="x" * 100_000).stdout == whole
    assert box.shell(f"exec 2>&-; {LINE} >&-; sleep 0.5").returncode == 0  # its streams are closed
    assert box.exec("sh", ["-c", LINE]).stdout == whole


@pytest.mark.usefixtures("clock")
def test_handles(box: Sandbox) -> None:
    """A stream and a job; a terminal; what waits to be sent."""
    with box.stream(LINE) as stream:
        assert [event.data for event in stream] == [b"begin\n", b"end\n", b""]
    with box.stream(LINE, pty=True) as stream:
        assert b"".join(event.data for event in stream) == b"begin\r\nend\r\n"
    job = box.background(f"{LINE}; wc -c")
    job.send(b"x" * (3 << 20))
    job.send_eof()
    first = job.output(wait=None)
    assert job.wait().stdout == f"begin\nend\n{3 << 20}\n"
    assert job.output(first.next).is_over


@pytest.mark.usefixtures("clock")
def test_coroutines(policy: Policy) -> None:
    """The same in an event loop."""

    async def main() -> None:
        async with nsbox.AsyncSandbox(policy, stock=0) as box:
            assert (await box.shell(LINE)).stdout == "begin\nend\n"
            assert [event.data async for event in box.stream(LINE)] == [b"begin\n", b"end\n", b""]
            job = await box.background(LINE)
            assert (await job.wait()).stdout == "begin\nend\n"

    asyncio.run(main())
