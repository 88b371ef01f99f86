"""AsyncSandbox under asyncio, uvloop, trio and anyio: calls, streams, jobs, and cancellations that leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest
import trio
from nsbox_testing.loops import LOOPS, Main
from nsbox_testing.verdicts import LONG

import nsbox
from nsbox import AsyncSandbox, CancelToken, Policy


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Main], Any]:
    return LOOPS[request.param]


@pytest.fixture(params=["asyncio", "uvloop"])
def run_asyncio(request: pytest.FixtureRequest) -> Callable[[Main], Any]:
    return LOOPS[request.param]


def test_calls(run: Callable[[Main], Any], policy: Policy) -> None:
    """Records, as of a Sandbox; errors too."""

    async def main() -> None:
        async with AsyncSandbox(policy) as box:
            result = await box.shell("echo a; cat", input=b"b")
            assert (result.stdout, result.cause) == ("a\nb", "exit")
            assert (await box.exec("printf", ["%s", "x y"])).stdout == "x y"
            seen: list[str] = []
            await box.shell("echo a; echo b >&2", on_output=lambda event: seen.append(event.kind))
            assert sorted(seen) == ["stderr", "stdout"]
            with pytest.raises(nsbox.CalledProcessError):
                await box.shell("exit 3", check=True)
            with pytest.raises(nsbox.AccessError):
                await box.shell("true", cwd="/nothing/there")
            with pytest.raises(TypeError, match="cancel is an int"):
                await box.shell("true", cancel=3)  # type: ignore[arg-type]
            token = CancelToken()
            result = await box.shell("echo; sleep 1000", cancel=token, on_output=lambda _: token.cancel())
            assert result.cause == "cancelled"
            assert "AsyncSandbox" in repr(box)
        with pytest.raises(ValueError, match="closed"):
            await box.shell("true")

    run(main)


def test_a_session(run: Callable[[Main], Any], policy: Policy) -> None:
    """What one command leaves, the next one finds."""

    async def main() -> None:
        async with AsyncSandbox(policy) as box, await box.session() as session:
            await session.shell("echo x > /tmp/a")
            assert (await session.shell("cat /tmp/a")).stdout == "x\n"
            assert (await session.shell("cd /tmp", keep=True)).returncode == 0
            assert (await session.shell("pwd", keep=True)).stdout == "/tmp\n"
            events = [event.kind async for event in session.stream("echo a")]
            assert events == ["stdout", "end"]

    run(main)


def test_a_stream(run: Callable[[Main], Any], policy: Policy) -> None:
    """Events as they come; the reader answers."""

    async def main() -> None:
        async with AsyncSandbox(policy) as box:
            async with box.stream("echo one; read x; echo $x", open_stdin=True) as stream:
                assert (await anext(stream)).text == "one\n"
                await stream.send("two\n")
                assert (await anext(stream)).text == "two\n"
                last = await anext(stream)
                assert last.kind == "end"
                assert last.result is stream.result
                assert [event async for event in stream] == []
            total = 0
            async for event in box.stream("head -c 20000000 /dev/zero"):
                total += len(event.data)
            assert total == 20_000_000
            with pytest.raises(nsbox.AccessError):
                async for _ in box.stream("true", cwd="/nothing/there"):
                    pass

    run(main)


def test_jobs(run: Callable[[Main], Any], policy: Policy) -> None:
    """Their output, their end, their list."""

    async def main() -> None:
        async with AsyncSandbox(policy) as box:
            job = await box.background("echo a; read x; echo $x; exit 3")
            first = await job.output(wait=LONG)
            assert first.text == "a\n"
            await job.send("b\n")
            result = await job.wait()
            assert (result.returncode, result.stdout) == (3, "a\nb\n")
            assert (await job.output(first.next)).text == "b\n"
            other = await box.background(["sleep", "1000"])
            assert [each.is_running for each in box.jobs()] == [False, True]
            assert box.job(2).is_running
            with pytest.raises(LookupError, match="there is no job 3"):
                box.job(3)
            assert (await other.kill()).cause == "cancelled"
            assert (job.id, other.id, other.args) == (1, 2, ["sleep", "1000"])
            third = await box.background("cat")
            await third.send_eof()
            await third.wait()
            left = await box.background("sleep 1000")
        assert left.result is not None
        assert left.result.cause == "cancelled"

    run(main)


def test_many_at_once(run: Callable[[Main], Any], policy: Policy) -> None:
    """More than a pool of threads would have."""

    async def main() -> None:
        seen: list[str] = []
        async with AsyncSandbox(policy) as box:

            async def one(i: int) -> None:
                seen.append((await box.shell(f"echo {i}")).stdout)

            async with anyio.create_task_group() as group:
                for i in range(50):
                    group.start_soon(one, i)
        assert sorted(seen, key=int) == [f"{i}\n" for i in range(50)]

    run(main)


# ---- cancellation


async def _after_output(path: Any) -> None:
    while not path.exists():
        await anyio.sleep(0.01)


@pytest.mark.parametrize("what", ["shell", "stream", "exec"])
def test_a_cancelled_task(run: Callable[[Main], Any], policy: Policy, what: str) -> None:
    """When the cancellation goes on, nothing of the command is left: it had its grace time, and used it."""
    assert policy.workdir is not None

    async def main() -> None:
        from pathlib import Path

        here = Path(str(policy.workdir))
        line = "trap 'sleep 0.2; echo > ended; exit' TERM; echo > begun; while :; do sleep 0.02; done"

        async def call(box: AsyncSandbox) -> None:
            if what == "stream":
                async for _ in box.stream(line, grace=40):
                    pass
            elif what == "exec":
                await box.exec("sh", ["-c", line], grace=40)
            else:
                await box.shell(line, grace=40)

        async with AsyncSandbox(policy) as box:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:

                    async def stop() -> None:
                        await _after_output(here / "begun")
                        scope.cancel()

                    group.start_soon(stop)
                    await call(box)
            assert scope.cancelled_caught
            assert (here / "ended").exists()

    run(main)


def test_trio_alone(policy: Policy) -> None:
    """A time limit of trio's, without anyio."""

    async def main() -> None:
        async with AsyncSandbox(policy) as box:
            with trio.move_on_after(0.3) as scope:
                await box.shell("sleep 1000")
            assert scope.cancelled_caught
            with trio.move_on_after(0.3) as scope:
                async for _ in box.stream("yes"):
                    pass
            assert scope.cancelled_caught
            job = await box.background("sleep 1000")
            with trio.move_on_after(0.3) as scope:
                await job.wait()
            assert scope.cancelled_caught
            assert job.is_running
            with trio.move_on_after(0.3) as scope:
                await box.shell("echo x")
            assert not scope.cancelled_caught

    trio.run(main)


def test_wait_for(run_asyncio: Callable[[Main], Any], policy: Policy) -> None:
    """As the README says; the command has gone when TimeoutError is raised."""

    async def main() -> None:
        async with AsyncSandbox(policy) as box:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(box.shell("trap '' TERM; sleep 1000; sleep 1000", grace=0.2), 0.3)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    async for _ in box.stream("yes"):
                        pass
            job = await box.background("sleep 1000")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(job.wait(), 0.1)
            with pytest.raises(subprocess.TimeoutExpired):
                await job.wait(timeout=0.1)
            assert job.is_running
            await job.kill()
            assert (await job.wait(timeout=0)).returncode != 0

    run_asyncio(main)


def test_cancelled_again_and_again(run_asyncio: Callable[[Main], Any], policy: Policy) -> None:
    """An impatient canceller doesn't shorten the grace time, nor leave anything behind."""

    async def main() -> None:
        from pathlib import Path

        here = Path(str(policy.workdir))
        async with AsyncSandbox(policy) as box:
            line = "trap 'sleep 0.3; echo > ended; exit' TERM; echo > begun; while :; do sleep 0.02; done"
            task = asyncio.ensure_future(box.shell(line, grace=40))
            while not (here / "begun").exists():
                await asyncio.sleep(0.01)
            while not task.done():
                task.cancel()
                await asyncio.sleep(0.01)
            assert task.cancelled()
            assert (here / "ended").exists()

    run_asyncio(main)


def test_cancelled_while_there_is_always_more(run_asyncio: Callable[[Main], Any], policy: Policy) -> None:
    """A reader who never has to wait is cancelled where other tasks have their turn."""

    async def main() -> None:
        async with AsyncSandbox(policy) as box:
            for _ in range(5):
                stream = box.stream("yes")

                async def read(stream: nsbox.AsyncStream = stream) -> None:
                    async for _ in stream:
                        pass

                task = asyncio.ensure_future(read())
                await asyncio.sleep(0.1)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert stream._worker is not None
                assert stream._worker.has_ended

    run_asyncio(main)


def test_cancelled_talk_with_a_job(run_asyncio: Callable[[Main], Any], policy: Policy) -> None:
    """Waiting for room, or for output, ends at once; the job goes on."""

    async def main() -> None:
        async with AsyncSandbox(policy) as box:
            job = await box.background("sleep 1000")
            for call in (job.send("x" * 3_000_000), job.output(wait=1000)):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(call, 0.2)
            assert job.is_running

    run_asyncio(main)


def test_cancelled_while_it_starts(run_asyncio: Callable[[Main], Any], policy: Policy) -> None:
    """A job, or a session, that nobody gets is ended."""

    async def main() -> None:
        async with AsyncSandbox(policy) as box:
            for delay in (0.0, 0.001, 0.003, 0.01):
                task = asyncio.ensure_future(box.background("sleep 1000"))
                await asyncio.sleep(delay)
                if not task.cancel():
                    await (await task).kill()
                else:
                    with pytest.raises(asyncio.CancelledError):
                        await task
                    assert not any([await job.wait() is None for job in box.jobs()])
                other = asyncio.ensure_future(box.session())
                await asyncio.sleep(delay)
                other.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await (await other).close()
        gc.collect()

    run_asyncio(main)


def test_calls_that_begin_while_it_closes(policy: Policy) -> None:
    """They are cancelled, or refused; close() doesn't wait for them."""

    async def main() -> None:
        box = await AsyncSandbox(policy).start()
        first = asyncio.ensure_future(box.shell("trap '' TERM; sleep 1000; sleep 1000", grace=0.5))
        await asyncio.sleep(0.2)
        closing = asyncio.ensure_future(box.close())
        await asyncio.sleep(0.1)
        second = asyncio.ensure_future(box.shell("sleep 1000"))
        await closing
        assert (await first).cause == "cancelled"
        assert (await second).cause == "cancelled"

    asyncio.run(main())


def test_a_stream_that_is_left(run_asyncio: Callable[[Main], Any], policy: Policy) -> None:
    """Its command ends, and the loop goes on."""

    async def main() -> None:
        async with AsyncSandbox(policy) as box:
            stream = box.stream("yes")
            worker = stream._worker
            assert worker is not None
            async for _ in stream:
                break
            del stream
            gc.collect()
            while not worker.has_ended:
                await asyncio.sleep(0.01)
            async with box.stream("yes") as second:
                await anext(second)
            assert second.result is not None
            assert second.result.cause == "cancelled"

    run_asyncio(main)


def test_a_loop_that_is_closed(policy: Policy) -> None:
    """A call that its loop has left behind ends with the Sandbox, and harms nothing."""
    box = AsyncSandbox(policy)
    loop = asyncio.new_event_loop()
    task = loop.create_task(box.shell("echo; sleep 1000"))
    loop.run_until_complete(asyncio.sleep(0.2))
    stream = box.stream("echo a; sleep 0.3; echo b; sleep 1000")
    loop.run_until_complete(stream.__anext__())
    loop.stop()
    loop.close()
    del task
    gc.collect()

    async def later() -> None:
        assert (await anext(stream)).text == "b\n"
        await box.close()

    asyncio.run(later())


def test_other_tasks_have_their_turn(run_asyncio: Callable[[Main], Any], policy: Policy) -> None:
    """A stream that always has more doesn't starve them."""

    async def main() -> int:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with AsyncSandbox(policy) as box:
            task = asyncio.ensure_future(other())
            async for _ in box.stream("head -c 50000000 /dev/zero"):
                pass
            task.cancel()
        return turns

    assert run_asyncio(main) > 5


def test_in_thread(run: Callable[[Main], Any], policy: Policy) -> None:
    """A function's value and its error reach the coroutine. A cancelled task waits until its function has ended."""
    seen: list[nsbox.ToolResult] = []

    async def main() -> None:
        assert await nsbox.in_thread(lambda: 42) == 42
        with pytest.raises(ZeroDivisionError):
            await nsbox.in_thread(lambda: 1 / 0)
        with nsbox.Sandbox(policy) as box:
            token = CancelToken()

            def call() -> None:
                seen.append(box.shell("echo; sleep 1000", cancel=token, on_output=lambda _: begun.set()))

            begun = threading.Event()
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: nsbox.in_thread(call, token.cancel))
                while not begun.is_set():
                    await anyio.sleep(0.01)
                group.cancel_scope.cancel()
            assert [result.cause for result in seen] == ["cancelled"]

    run(main)
