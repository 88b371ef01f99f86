"""AsyncPython under asyncio, uvloop, trio and anyio: runs, kernels, maps, and cancellations that leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest
from nsbox_testing.loops import LOOPS, Main
from nsbox_testing.verdicts import LONG

from nsbox import AsyncSandbox, CancelToken, ForkError, Policy, Sandbox

FOREVER = "import time\nprint('begun', flush=True)\ntime.sleep(1000)"


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Main], Any]:
    return LOOPS[request.param]


async def cancelled(function: Callable[[Callable[[], object]], Awaitable[Any]]) -> None:
    """Run a coroutine function in a task of anyio's, and cancel it as soon as it calls its argument."""
    async with anyio.create_task_group() as group:
        begun = anyio.Event()
        token = anyio.lowlevel.current_token()

        def tell() -> None:
            anyio.from_thread.run_sync(begun.set, token=token)

        async def task() -> None:
            await function(tell)

        group.start_soon(task)
        with anyio.fail_after(LONG):
            await begun.wait()
        group.cancel_scope.cancel()


@pytest.fixture(params=["asyncio", "trio"])
def run_anyio(request: pytest.FixtureRequest) -> Callable[[Main], Any]:
    return lambda main: anyio.run(main, backend=request.param)


def test_runs_and_kernels(run: Callable[[Main], Any], policy: Policy) -> None:
    """As of Python and PythonKernel; errors too."""

    async def main() -> None:
        async with AsyncSandbox(policy) as box:
            py = box.python()
            result = await py.run("print(n); n + 1", inputs={"n": 1})
            assert (result.stdout, result.value) == ("1\n", 2)
            async with py.kernel(env={"A": "b"}) as kernel:
                await kernel.run("import os; x = os.environ['A']")
                assert (await kernel.run("x + input()", input="c")).value == "bc"
                assert (await kernel.run("1 / 0")).returncode == 1
                one, two = await kernel.fork(2)
                await one.run("x = 1")
                assert ((await one.run("x")).value, (await two.run("x")).value) == (1, "b")
                assert (await two.run("import sys; sys.exit(3)")).ended
                assert two.ended == "it has exited with status 3"
                await two.reset()
                assert (await two.run("'x' in globals()")).value is False
                await kernel.run(
                    "import threading; e = threading.Event(); threading.Thread(target=e.wait, daemon=True).start()"
                )
                with pytest.raises(ForkError):
                    await kernel.fork()
                assert not kernel.interrupt()
                await two.close()
            assert kernel.ended
            with pytest.raises(ValueError, match="closed"):
                await kernel.run("1")
            kernel = await py.kernel()
            await kernel.run("1")
            with pytest.raises(TypeError, match="cancel is an int"):
                await kernel.run("1", cancel=3)  # type: ignore[arg-type]
            assert "AsyncKernel" in repr(kernel)
            assert "AsyncPython" in repr(py)
        with pytest.raises(ValueError, match="closed"):
            await py.run("1")

    run(main)


def test_maps(run: Callable[[Main], Any], policy: Policy) -> None:
    """Of an iterable, and of an async one; in order, and as completed."""

    async def codes() -> AsyncIterator[str]:
        for n in range(20):
            yield f"{n} * 2"

    async def failing() -> AsyncIterator[str]:
        yield "1"
        raise LookupError("no more")

    async def main() -> None:
        async with AsyncSandbox(policy) as box, box.python() as py:
            found = [(one.index, one.value) async for one in py.map(f"{n} * 2" for n in range(20))]
            assert found == [(n, 2 * n) for n in range(20)]
            found = [(one.index, one.value) async for one in py.map(codes(), workers=3)]
            assert found == [(n, 2 * n) for n in range(20)]
            found = [(one.index, one.value) async for one in py.map(codes(), ordered=False, timeout=LONG)]
            assert sorted(found) == [(n, 2 * n) for n in range(20)]
            assert [one async for one in py.map([])] == []
            seen = []
            with pytest.raises(LookupError, match="no more"):
                async for one in py.map(failing()):
                    seen.append(one.value)
            assert seen == [1]
            for wrong in ("x", 3):
                with pytest.raises(TypeError, match="codes is a"):
                    py.map(wrong)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="item 1"):
                async for _ in py.map(["1", 2]):  # type: ignore[list-item]
                    pass
            async with py.map(itertools.chain(["1"], itertools.repeat(FOREVER))) as results:
                assert (await anext(results)).value == 1
            assert [one async for one in results] == []
            done: list[int] = []
            assert len([one async for one in py.map(["1", "2"], progress=lambda p: done.append(p.done))]) == 2
            assert done == [1, 2]

    run(main)


def test_a_cancelled_run(run_anyio: Callable[[Main], Any], policy: Policy) -> None:
    """It is ended before the cancellation goes on."""

    async def main() -> None:
        async with AsyncSandbox(policy) as box:
            py = box.python()
            await cancelled(lambda tell: py.run(FOREVER, on_output=lambda _: tell(), grace=0.1))
            assert (await py.run("1")).value == 1

    run_anyio(main)


def test_a_cancelled_call(run_anyio: Callable[[Main], Any], policy: Policy) -> None:
    """The code is interrupted before the cancellation goes on, and the kernel goes on."""

    async def main() -> None:
        async with AsyncSandbox(policy) as box, box.python().kernel() as kernel:
            await kernel.run("x = 1")
            await cancelled(lambda tell: kernel.run(FOREVER, on_output=lambda _: tell()))
            assert (await kernel.run("x")).value == 1

    run_anyio(main)


def test_a_cancelled_map(run_anyio: Callable[[Main], Any], policy: Policy) -> None:
    """What runs is ended before the cancellation goes on."""

    async def main() -> None:
        async with AsyncSandbox(policy) as box:
            py = box.python()

            async def loop(tell: Callable[[], object]) -> None:
                results = py.map(["1", FOREVER, FOREVER, FOREVER], grace=0.1, ordered=False)
                async for _ in results:
                    await anyio.to_thread.run_sync(tell)

            await cancelled(loop)
            assert (await py.run("1")).value == 1

    run_anyio(main)


def test_a_map_that_is_dropped(run: Callable[[Main], Any], policy: Policy) -> None:
    """What runs ends when nothing refers to the iterator, and with the Sandbox."""

    async def main() -> None:
        async with AsyncSandbox(policy) as box:
            py = box.python()
            async for one in py.map(itertools.chain(["1"], itertools.repeat(FOREVER)), grace=0.1):
                assert one.value == 1
                break
            gc.collect()
            assert (await py.run("1")).value == 1

    run(main)


def test_closing_ends_calls(run_anyio: Callable[[Main], Any], policy: Policy) -> None:
    """A call that is running when its kernel or Python is closed returns its record."""

    async def main() -> None:
        async with AsyncSandbox(policy) as box:
            py = box.python()
            kernel = await py.kernel()
            found: list[Any] = []
            begun = anyio.Event()
            token = anyio.lowlevel.current_token()

            def tell(_: object) -> None:
                anyio.from_thread.run_sync(begun.set, token=token)

            async def call() -> None:
                found.append(await kernel.run(FOREVER, on_output=tell))

            async with anyio.create_task_group() as group:
                group.start_soon(call)
                await begun.wait()
                await kernel.close()
            assert found[0].cause == "cancelled"
            own = CancelToken()
            own.cancel()
            other = await py.kernel()
            assert (await other.run("1", cancel=own)).cause == "cancelled"

    run_anyio(main)


def test_overlays(policy: Policy) -> None:
    """python() has the options of Sandbox.python(): what a branch writes to the workspace is gone with it."""

    async def main() -> None:
        async with AsyncSandbox(policy) as box:
            py = box.python(overlay=True)
            assert (await py.run("print(open('new', 'w').write('text'))")).stdout == "4\n"
            assert (await py.run("import os; os.path.exists('new')")).value is False

    asyncio.run(main())


def test_the_same_options() -> None:
    """AsyncSandbox.python() has the parameters of Sandbox.python(), with the same defaults."""
    ours, theirs = (inspect.signature(kind.python).parameters for kind in (AsyncSandbox, Sandbox))
    assert {name: p.default for name, p in ours.items()} == {name: p.default for name, p in theirs.items()}
