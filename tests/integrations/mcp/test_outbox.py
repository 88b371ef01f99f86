"""What the server has to say while its client doesn't read: in order, bounded, and none of it in the way."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.shared.message import SessionMessage

from nsbox._mcp.log import Log, say
from nsbox._mcp.outbox import MOST_WAITING, Outbox


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reads, writes = os.pipe()
    yield reads, writes
    for fd in (reads, writes):
        try:
            os.close(fd)
        except OSError:
            pass


def answer(number: int, size: int = 0) -> SessionMessage:
    return SessionMessage(types.JSONRPCResponse(jsonrpc="2.0", id=number, result={"text": "x" * size}))


async def lines(reads: int, count: int) -> list[int]:
    """Return the ids of so many lines."""
    pieces: list[bytes] = []
    while count > 0:
        pieces.append(await asyncio.to_thread(os.read, reads, 1 << 20))
        count -= pieces[-1].count(b"\n")
    return [json.loads(line)["id"] for line in b"".join(pieces).splitlines()]


def test_order(pipe: tuple[int, int]) -> None:
    """Small ones and large ones, also after one whose sender was cancelled while it was written: none is cut."""

    async def main() -> None:
        reads, writes = pipe
        outbox = Outbox(writes, on_gone=lambda: None)
        await outbox.send(answer(0))
        large = asyncio.create_task(outbox.send(answer(1, 1 << 20)))
        await anyio.sleep(0.1)  # the thread may have begun meanwhile, or not
        large.cancel()
        rest = [asyncio.create_task(outbox.send(answer(number))) for number in range(2, 20)]
        await anyio.sleep(0)
        outbox.post(answer(20))
        assert await lines(reads, 21) == list(range(21))
        await asyncio.gather(*rest)
        await outbox.empty()
        await outbox.aclose()
        with pytest.raises(anyio.ClosedResourceError):
            await outbox.send(answer(21))

    asyncio.run(main())


def test_full(pipe: tuple[int, int]) -> None:
    """room() waits until enough was read."""

    async def main() -> None:
        reads, writes = pipe
        outbox = Outbox(writes, on_gone=lambda: None)
        await outbox.room()
        size = MOST_WAITING // 4
        sent = [asyncio.create_task(outbox.send(answer(number, size))) for number in range(4)]
        await anyio.sleep(0)
        assert outbox.is_full and not outbox.has_room_for_news
        room = asyncio.create_task(outbox.room())
        await anyio.sleep(0.1)
        assert not room.done()
        assert await lines(reads, 4) == list(range(4))
        await asyncio.gather(room, *sent)
        assert not outbox.is_full

    asyncio.run(main())


def test_a_client_that_is_gone(pipe: tuple[int, int]) -> None:
    """Who waits hears it, whether its message was being written or only waited; nothing stays."""

    async def main() -> None:
        reads, writes = pipe
        gone: list[bool] = []
        outbox = Outbox(writes, on_gone=lambda: gone.append(True))
        sent = [asyncio.create_task(outbox.send(answer(number, 1 << 20))) for number in range(3)]
        outbox.post(answer(3))
        await anyio.sleep(0)
        os.close(reads)
        results = await asyncio.gather(*sent, return_exceptions=True)
        assert [type(result) for result in results] == [anyio.BrokenResourceError] * 3
        await outbox.empty()
        with pytest.raises(anyio.BrokenResourceError):
            await outbox.send(answer(4))
        assert gone

    asyncio.run(main())


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
def test_log_messages_that_nobody_reads(version: str) -> None:
    """Only some wait. The next one that is sent says how many were dropped."""

    async def main() -> None:
        sent: list[dict[str, Any]] = []
        reads = asyncio.Event()

        async def send(level: str, data: dict[str, Any], logger: str) -> None:
            await reads.wait()
            sent.append(data)

        outbox: Any = SimpleNamespace(has_room_for_news=True)
        log = Log(outbox)
        log.begin(1, SimpleNamespace(protocol_version=version, send_log_message=send))
        tasks = [asyncio.create_task(log.tell("warning", str(number))) for number in range(1000)]
        await anyio.sleep(0.1)
        assert sum(not task.done() for task in tasks) == 64
        reads.set()
        await asyncio.gather(*tasks)
        outbox.has_room_for_news = False
        await log.tell("warning", "not sent")
        outbox.has_room_for_news = True
        await log.tell("warning", "last")
        assert [data["message"] for data in sent] == [*map(str, range(64)), "last"]
        assert sent[-1]["dropped"] == 1000 - 64 + 1
        await log.tell("warning", "after it")
        assert "dropped" not in sent[-1]

    asyncio.run(main())


def test_lines_that_nobody_reads_on_stderr(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A full pipe stops nothing: the server says no more there. Each line that is there is whole."""
    reads, writes = pipe
    with os.fdopen(os.dup(writes), "w") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        for number in range(10_000):
            say(f"{number} " + "x" * 200)
        say("y" * 10_000)
        monkeypatch.undo()
    os.close(writes)
    with os.fdopen(os.dup(reads)) as file:
        lines = file.read().splitlines()
    assert 1 < len(lines) < 10_000
    assert lines == [f"nsbox mcp: {number} " + "x" * 200 for number in range(len(lines))]
