"""on_connect as a coroutine function: it is awaited in the caller's event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from nsbox_testing.verdicts import LONG, Verdicts, wish

from nsbox import NetworkRequest
from nsbox._relay.asks import Answers

pytestmark = pytest.mark.usefixtures("no_threads")


def test_coroutine_function_in_the_loop(verdicts: Verdicts) -> None:
    """A coroutine function runs in the event loop that ran when the Sandbox was made, several at a time."""
    seen = []

    async def main() -> None:
        together = asyncio.Barrier(3)

        async def decide(request: NetworkRequest) -> Any:
            seen.append(asyncio.get_running_loop())
            await together.wait()
            return "always" if request.name == "n0" else request.name == "n1"

        answers = Answers(decide)
        for number in range(3):
            answers.ask(wish(f"n{number}"), number, verdicts)
        found = await asyncio.to_thread(verdicts.several, 3)
        assert found == {0: True, 1: True, 2: False}
        assert set(seen) == {asyncio.get_running_loop()}

    asyncio.run(main())


def test_coroutine_function_without_a_loop(verdicts: Verdicts) -> None:
    """Without a loop it has one of its own, in its thread."""

    async def decide(request: NetworkRequest) -> bool:
        await asyncio.sleep(0)
        return request.name == "yes"

    answers = Answers(decide)
    answers.ask(wish("yes"), 1, verdicts)
    answers.ask(wish("no"), 2, verdicts)
    assert verdicts.several(2) == {1: True, 2: False}


def test_loop_that_was_closed(verdicts: Verdicts) -> None:
    """After the end of the loop it is as without one."""

    async def decide(_: NetworkRequest) -> bool:
        return True

    async def main() -> Answers:
        return Answers(decide)

    answers = asyncio.run(main())
    answers.ask(wish(), 1, verdicts)
    assert verdicts.next() == (1, True)


def test_function_that_returns_an_awaitable(verdicts: Verdicts, raised: queue.Queue[BaseException]) -> None:
    """An awaitable is awaited, also one of a function that is none; what comes of it has to be an answer too."""

    class Later:
        def __await__(self) -> Iterator[Any]:
            yield from asyncio.sleep(0).__await__()
            return "always"

    async def nothing() -> None:
        pass

    async def fail() -> bool:
        raise ValueError("boom")

    given: dict[str, Callable[[], Any]] = {"later": Later, "nothing": nothing, "fail": fail}
    answers = Answers(lambda request: given[request.name]())
    found = []
    for number, name in enumerate(given):
        answers.ask(wish(name), number, verdicts)
        found.append(verdicts.next())
    assert found == [(0, True), (1, False), (2, False)]
    assert {type(raised.get(timeout=LONG)) for _ in range(2)} == {TypeError, ValueError}


def test_loop_that_stands_still(verdicts: Verdicts, raised: queue.Queue[BaseException]) -> None:
    """A loop that the caller blocks can't answer: no, when the time is up. The coroutine doesn't run later."""
    ran = []

    async def decide(_: NetworkRequest) -> bool:
        ran.append(1)
        return True

    async def main() -> None:
        answers = Answers(decide, patience=0.05)
        answers.ask(wish(), 1, verdicts)
        assert verdicts.next() == (1, False)  # which blocks the loop
        for thread in threading.enumerate():
            if thread.name == "nsbox-ask":
                thread.join(LONG)

    asyncio.run(main())
    assert ran == []
    assert isinstance(raised.get(timeout=LONG), TimeoutError)


def test_coroutine_that_hangs(verdicts: Verdicts, raised: queue.Queue[BaseException]) -> None:
    """A coroutine that takes too long is cancelled, and its thread is free again."""
    cancelled = threading.Event()

    async def decide(_: NetworkRequest) -> bool:
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return True

    async def main() -> None:
        answers = Answers(decide, patience=0.05)
        answers.ask(wish(), 1, verdicts)
        assert await asyncio.to_thread(verdicts.next) == (1, False)
        assert await asyncio.to_thread(cancelled.wait, LONG)

    asyncio.run(main())
    assert isinstance(raised.get(timeout=LONG), TimeoutError)
