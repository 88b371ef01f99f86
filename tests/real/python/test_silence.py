"""A warm interpreter that does nothing any more: what waits for it learns so, and another one takes its place."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from nsbox import AsyncSandbox, InterpreterError, Limits, Policy, Python, PythonResult, Sandbox
from nsbox._interpreter.descent import parent_of
from nsbox._interpreter.interpreter import Interpreter

BOUND = 60  # seconds, within which each of these ends: a stopped interpreter is noticed within 10


def current(py: Python) -> Interpreter:
    found = py._supply.current
    assert found is not None
    return found


def stop(py: Python) -> Interpreter:
    """Stop the interpreter itself, as a signal from outside, or its own setup, may do."""
    interpreter = current(py)
    os.kill(interpreter._pid, signal.SIGSTOP)
    while not interpreter.is_stopped():
        time.sleep(0.01)
    return interpreter


def test_a_run(py: Python) -> None:
    """The code of a branch that was ready runs, but how it ended can't be reported: the record says why."""
    assert py.run("1").value == 1
    interpreter = stop(py)
    began = time.monotonic()
    result = py.run("6 * 7")
    assert time.monotonic() - began < BOUND
    if result.cause == "unknown":
        assert result.returncode == 255
        assert "is stopped" in result.why[0].message and result.why[0].kind == "interpreter"
    assert py.run("7").value == 7
    assert current(py) is not interpreter


def test_with_a_timeout(py: Python) -> None:
    """A timeout that is longer doesn't count as over."""
    py.run("1")
    stop(py)
    results = [py.run("6 * 7", timeout=120) for _ in range(3)]
    assert not any(result.timed_out for result in results)
    assert results[-1].value == 42


def test_no_branch_is_ready(box: Sandbox) -> None:
    """It can't make one: another interpreter does."""
    py = box.python(stock=0)
    assert py.run("1").value == 1
    interpreter = stop(py)
    began = time.monotonic()
    assert py.run("6 * 7").value == 42
    assert time.monotonic() - began < BOUND
    assert current(py) is not interpreter


def test_many_requests(box: Sandbox) -> None:
    """Its socket is full: sending to it ends, too."""
    py = box.python(stock=0)
    assert py.run("1").value == 1
    interpreter = stop(py)
    results: list[PythonResult] = []
    threads = [threading.Thread(target=lambda: results.append(py.run("2"))) for _ in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * BOUND)
    assert len(results) == 60
    assert all(result.value == 2 or result.cause == "unknown" for result in results)
    assert current(py) is not interpreter


def test_a_kernel(py: Python) -> None:
    """A kernel talks to its caller itself; its end is noticed."""
    with py.kernel() as kernel:
        assert kernel.run("x = 1").exception is None
        stop(py)
        assert kernel.run("x").value == 1
        result = kernel.run("import os; os._exit(3)")
        assert result.ended
    assert py.run("7").value == 7


def test_coroutines(policy: Policy) -> None:
    """The same for tasks."""

    async def main() -> list[object]:
        async with AsyncSandbox(policy) as sandbox:
            py = sandbox.python()
            await py.run("1")
            stop(py.python)
            return [(await py.run("6 * 7")).value for _ in range(3)]

    assert asyncio.run(asyncio.wait_for(main(), 2 * BOUND))[-1] == 42


def test_closing(box: Sandbox) -> None:
    """It is closed without a wait for what it would say."""
    py = box.python()
    py.run("1")
    interpreter = stop(py)
    began = time.monotonic()
    py.close()
    assert time.monotonic() - began < 10
    assert interpreter.has_ended


def test_code_that_stops_itself(py: Python) -> None:
    """Control: code that is stopped is no interpreter that is stopped. It has its time, and the interpreter stays."""
    py.run("1")
    interpreter = current(py)
    result = py.run("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", timeout=8, grace=0)
    assert result.timed_out
    assert py.run("2").value == 2
    assert current(py) is interpreter


def test_which_process(py: Python) -> None:
    """What is looked at is the parent of the branches."""
    py.run("1")
    kernel = py.kernel()
    assert parent_of(kernel.pid if hasattr(kernel, "pid") else current(py)._parked[0].pid) in (0, current(py)._pid)
    kernel.close()


@pytest.mark.parametrize(
    ("memory", "setup"),
    [("400M", "x = bytearray(1 << 30)"), ("64M", ""), ("20M", "")],
)
def test_too_little_memory(workspace: Path, memory: str, setup: str) -> None:
    """An interpreter that runs out of memory while it gets ready is an error that says so."""
    policy = Policy.workspace(workspace, limits=Limits(memory=memory))
    with Sandbox(policy) as box, pytest.raises(InterpreterError, match=r"(?i)memory") as found:
        box.python(setup=setup or "x = [bytearray(1 << 20) for _ in range(100)]").start()
    assert "memory" in str(found.value).lower()
