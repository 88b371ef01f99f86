"""What code has printed isn't lost when it is killed: each complete line is in the result, however hard the end was."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest
from nsbox_testing.verdicts import LONG

from nsbox import CancelToken, Policy, Python, RemoteError, Sandbox, SandboxExecutor

KILL = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
BUFFERED = "import sys; sys.stdout.reconfigure(line_buffering=False)\n"  # as Python does it for a pipe
DEAF = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))\n"  # no handler runs, as in a long call


def prints_and_is_killed() -> None:
    """Print, and end by a signal that nothing can handle."""
    import os
    import signal

    print("printed")
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def running(py: Python, kind: str) -> Iterator[object]:
    """Give what runs code: the Python, or a kernel."""
    if kind == "run":
        yield py
        return
    with py.kernel() as kernel:
        yield kernel


@pytest.mark.parametrize("kind", ["run", "kernel"])
def test_a_kill(py: Python, kind: str) -> None:
    """Code that is killed by SIGKILL has no time to flush; its lines are there, of both streams."""
    with running(py, kind) as runner:
        code = f"import sys\nfor i in range(3): print('line', i)\nprint('error', file=sys.stderr)\n{KILL}"
        result = runner.run(code, timeout=LONG)  # type: ignore[attr-defined]
    assert (result.returncode, result.stdout, result.stderr) == (-9, "line 0\nline 1\nline 2\n", "error\n")


@pytest.mark.parametrize("kind", ["run", "kernel"])
def test_without_line_buffers(py: Python, kind: str) -> None:
    """The control: with the buffer that Python has for a pipe, the same lines are lost."""
    with running(py, kind) as runner:
        result = runner.run(f"{BUFFERED}print('lost')\n{KILL}", timeout=LONG)  # type: ignore[attr-defined]
    assert (result.returncode, result.stdout) == (-9, "")


@pytest.mark.parametrize("kind", ["run", "kernel"])
def test_a_call_that_hears_no_signal(py: Python, kind: str) -> None:
    """Code that no signal reaches is cancelled once its line has come, and killed: the line is in the result."""
    token, seen = CancelToken(), threading.Event()

    def cancel() -> None:
        seen.wait(LONG)
        token.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        with running(py, kind) as runner:
            code = f"{DEAF}print('printed')\nwhile True: pass"
            result = runner.run(  # type: ignore[attr-defined]
                code, timeout=LONG, grace=0.1, cancel=token, on_output=lambda _: seen.set()
            )
    finally:
        seen.set()
        thread.join()
    assert (result.cause, result.ended_by, result.stdout) == ("cancelled", "SIGKILL", "printed\n")


def test_an_environment_without_buffers(py: Python) -> None:
    """A line without its end is lost with its buffer; PYTHONUNBUFFERED writes that at once, too."""
    code = f"print('no end', end='')\n{KILL}"
    assert py.run(code, timeout=LONG).stdout == ""
    assert py.run(code, timeout=LONG, env={"PYTHONUNBUFFERED": "1"}).stdout == "no end"


def test_the_error_of_an_executor(policy: Policy) -> None:
    """The error of a call that was killed has the record, with what the function had printed."""
    with Sandbox(policy) as box, SandboxExecutor(box, max_workers=1) as pool, pytest.raises(RemoteError) as caught:
        pool.submit(prints_and_is_killed).result(LONG)
    assert caught.value.record.stdout == "printed\n"
