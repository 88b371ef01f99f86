"""SandboxExecutor as concurrent.futures knows executors: waiting, cancelling, map, shutdown, forks, asyncio."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, as_completed, wait
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing.verdicts import LONG

from nsbox import InterpreterError, Policy, RemoteError, SandboxExecutor


def square(number: int) -> int:
    return number * number


def forever(path: str) -> None:
    import time

    with open(path, "w") as file:
        file.write("began")
    while True:
        time.sleep(1)


def _await(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def _await_file(path: Path) -> None:
    _await(lambda: path.exists() and path.read_text() == "began")


def test_wait_and_as_completed(executor: SandboxExecutor) -> None:
    """The functions of concurrent.futures know its futures."""
    futures = [executor.submit(square, n) for n in range(6)]
    assert sorted(future.result() for future in as_completed(futures, timeout=LONG)) == [0, 1, 4, 9, 16, 25]
    done, rest = wait(futures, timeout=LONG)
    assert (len(done), len(rest)) == (6, 0)


def test_map(executor: SandboxExecutor) -> None:
    """Several iterables, chunks of any size, and the order of the arguments."""
    for size in (1, 3, 100):
        assert list(executor.map("builtins:pow", [2, 3, 4], [3, 2, 1, 0], chunksize=size)) == [8, 9, 4]
    assert list(executor.map(square, [], chunksize=2)) == []
    for wrong, kind in ((0, ValueError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(kind, match="chunksize"):
            executor.map(square, [1], chunksize=wrong)  # type: ignore[arg-type]


def test_map_with_an_error(executor: SandboxExecutor) -> None:
    """It is raised in the place of its result; what came before is there."""
    results = executor.map("math:sqrt", [4, -1, 9])
    assert next(results) == 2
    with pytest.raises(ValueError, match="math domain error"):
        next(results)


def test_map_with_a_time_limit(executor: SandboxExecutor, workspace: Path) -> None:
    """The caller gets a TimeoutError, and the calls are cancelled: also those that run."""
    results = executor.map(forever, [str(workspace / "one")], timeout=1.0)
    with pytest.raises(TimeoutError) as caught:
        next(results)
    assert not isinstance(caught.value, RemoteError)
    assert executor.submit(square, 2).result(LONG) == 4
    _await(lambda: not executor._futures)


def test_cancel(policy: Policy, workspace: Path) -> None:
    """A call that waits never runs; one that runs is ended, and those who wait for it are woken."""
    with SandboxExecutor(policy, max_workers=1, grace=0.1) as executor:
        running, waiting = executor.submit(forever, str(workspace / "one")), executor.submit(forever, "two")
        _await_file(workspace / "one")
        assert running.running() and not running.cancelled()
        assert waiting.cancel() and waiting.cancelled()
        calls: list[Future[Any]] = []
        running.add_done_callback(calls.append)
        assert running.cancel() and running.cancelled() and running.done()
        assert calls == [running]
        for future in (running, waiting):
            with pytest.raises(CancelledError):
                future.result(LONG)
            with pytest.raises(CancelledError):
                future.exception(LONG)
        assert not (workspace / "two").exists()
        assert executor.submit(square, 3).result(LONG) == 9
        done, _ = wait([running, waiting], timeout=LONG)
        assert len(done) == 2


def test_shutdown(policy: Policy) -> None:
    """It waits for what was submitted; then nothing can be submitted, and nothing is left."""
    executor = SandboxExecutor(policy, max_workers=2)
    futures = [executor.submit(square, n) for n in range(5)]
    executor.shutdown()
    assert [future.result(0) for future in futures] == [0, 1, 4, 9, 16]
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(square, 1)
    executor.shutdown()
    assert executor._python.is_closed
    assert "shut down" in repr(executor)


def test_shutdown_without_waiting(policy: Policy) -> None:
    """It returns at once; the last call ends the interpreter."""
    executor = SandboxExecutor(policy, max_workers=2)
    futures = [executor.submit(square, n) for n in range(5)]
    executor.shutdown(wait=False)
    assert [future.result(LONG) for future in futures] == [0, 1, 4, 9, 16]
    _await(lambda: not any(thread.is_alive() for thread in executor._pool._threads))
    assert executor._python.is_closed


def test_shutdown_that_cancels(policy: Policy, workspace: Path) -> None:
    """cancel_futures ends what runs too, so shutdown() returns."""
    executor = SandboxExecutor(policy, max_workers=1, grace=0.1)
    running, waiting = executor.submit(forever, str(workspace / "one")), executor.submit(square, 1)
    _await_file(workspace / "one")
    executor.shutdown(cancel_futures=True)
    assert running.cancelled() and waiting.cancelled()
    assert executor._python.is_closed


def test_an_unused_executor(policy: Policy) -> None:
    """It has started nothing, and is shut down all the same."""
    with SandboxExecutor(policy) as executor:
        assert "0 calls" in repr(executor)
    assert not executor._python.is_warm


def test_callbacks(executor: SandboxExecutor, caplog: pytest.LogCaptureFixture) -> None:
    """A callback that raises is logged, as by any future, and disturbs nothing."""

    def fails(_: Future[Any]) -> None:
        raise LookupError("the callback's")

    with caplog.at_level(logging.ERROR, "concurrent.futures"):
        future = executor.submit(square, 2)
        future.add_done_callback(fails)
        assert future.result(LONG) == 4
        _await(lambda: "the callback's" in caplog.text)
    assert executor.submit(square, 3).result(LONG) == 9


def test_a_killed_interpreter(executor: SandboxExecutor, workspace: Path) -> None:
    """Its call is lost, and says so; it isn't run again. The next call has another interpreter."""
    lost = executor.submit(forever, str(workspace / "one"))
    _await_file(workspace / "one")
    current = executor._python._supply.current
    assert current is not None and current._process is not None
    os.kill(current._process.pid, signal.SIGKILL)
    with pytest.raises(RemoteError, match=r"forever was (lost|ended by SIGKILL) before it returned") as caught:
        lost.result(LONG)
    assert caught.value.record.why
    assert executor.submit(square, 3).result(LONG) == 9


def test_a_setup_that_fails(policy: Policy) -> None:
    """Each call's exception is the InterpreterError."""
    with SandboxExecutor(policy, setup="1 / 0") as executor:
        error = executor.submit(square, 1).exception(LONG)
        assert isinstance(error, InterpreterError) and error.stage == "setup"


@pytest.mark.timeout(300)
def test_ten_thousand(policy: Policy) -> None:
    """So many can be submitted at once; most are cancelled before they run, and none is lost."""
    with SandboxExecutor(policy, max_workers=2) as executor:
        futures = [executor.submit(square, n) for n in range(10_000)]
        wait(futures[:40], timeout=LONG)
        for future in futures[40:]:
            future.cancel()
        results = [None if future.cancelled() else future.result(LONG) for future in futures]
    assert results[:40] == [n * n for n in range(40)]
    assert all(one in (None, n * n) for n, one in enumerate(results))
    assert results.count(None) > 5000


def test_asyncio(executor: SandboxExecutor, workspace: Path) -> None:
    """run_in_executor works; a task that is cancelled ends its call."""

    async def main() -> list[Any]:
        loop = asyncio.get_running_loop()
        found = await asyncio.gather(*[loop.run_in_executor(executor, square, n) for n in range(4)])
        task = asyncio.ensure_future(loop.run_in_executor(executor, forever, str(workspace / "one")))
        await loop.run_in_executor(None, _await_file, workspace / "one")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ValueError, match="math domain error"):
            await loop.run_in_executor(executor, "math:sqrt", -1)  # type: ignore[arg-type]
        return found

    assert asyncio.run(main()) == [0, 1, 4, 9]
    _await(lambda: not executor._futures)


def test_code_cannot_stop_an_event_loop(executor: SandboxExecutor) -> None:
    """A StopIteration from inside would never reach the task that waits for it; here it comes as a RemoteError."""

    async def main() -> None:
        with pytest.raises(RemoteError, match="StopIteration"):
            await asyncio.get_running_loop().run_in_executor(executor, stops)

    asyncio.run(asyncio.wait_for(main(), LONG))


def stops() -> None:
    raise StopIteration


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_fork(executor: SandboxExecutor, workspace: Path) -> None:
    """A forked child has an executor of its own; the parent's goes on."""
    running = executor.submit(forever, str(workspace / "one"))
    _await_file(workspace / "one")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if executor.submit(square, 5).result(LONG) == 25 else 2
            executor.shutdown()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert running.running() and running.cancel()
    assert executor.submit(square, 6).result(LONG) == 36


def test_a_program_that_ends(workspace: Path) -> None:
    """At its exit, a program waits for what it has submitted, as with other executors."""
    program = workspace / "program.py"
    program.write_text(
        "import nsbox\n\ndef save(path):\n    open(path, 'w').write('saved')\n\n"
        f"executor = nsbox.SandboxExecutor(nsbox.Policy.workspace({str(workspace)!r}))\n"
        f"executor.submit(save, {str(workspace / 'saved')!r})\n"
    )
    done = subprocess.run([sys.executable, "-P", program], capture_output=True, text=True, cwd="/", timeout=LONG)
    assert (done.returncode, done.stderr) == (0, "")
    assert (workspace / "saved").read_text() == "saved"


def test_first_completed(executor: SandboxExecutor, workspace: Path) -> None:
    """A slow call doesn't hold up the others."""
    slow = executor.submit(forever, str(workspace / "one"))
    done, rest = wait([slow, executor.submit(square, 2)], timeout=LONG, return_when=FIRST_COMPLETED)
    assert [one.result() for one in done] == [4] and rest == {slow}
    assert slow.cancel()
