"""Kernels: interrupts at any point, forks of a live state, and their ends."""

from __future__ import annotations

import inspect
import os
import random
import signal
import time

import pytest
from nsbox_testing.guests import Branch, Interpreter, message


def _announcing(warm: Interpreter) -> tuple[Branch, int]:
    """Return a kernel whose descriptor 7 is a pipe, and the pipe's other end."""
    ours, theirs = os.pipe()
    kernel = warm.kernel(extra=[theirs], fds=[7])
    os.close(theirs)
    return kernel, ours


# It says itself that it has begun: an interrupt before that could leave the process behind.
PROCESS = """
import subprocess
with subprocess.Popen(["sleep", "1000"]) as sleeper:
    try:
        os.write(7, b".")
        sleeper.wait()
    finally:
        sleeper.kill()
"""
_LONG = {
    "loop": "while True: pass",
    "sleep": "import time\ntime.sleep(1000)",
    "thread": "import threading\nthreading.Event().wait()",
    "process": PROCESS,
    "caught": "while True:\n    try:\n        while True: pass\n    except ValueError: pass",
    "finally": "try:\n    while True: pass\nfinally:\n    print('finally')",
    "awaited": "import asyncio\nawait asyncio.sleep(1000)",
    "input": "import os\nos.read(R, 1)",
}


@pytest.mark.parametrize("name", _LONG)
def test_interrupts(warm: Interpreter, name: str) -> None:
    """SIGINT is a KeyboardInterrupt in the code; the kernel goes on with its state."""
    kernel, ours = _announcing(warm)
    kernel.run("import os\nR, W = os.pipe()\nx = 41")
    kernel.begin(("" if name == "process" else "os.write(7, b'.')\n") + _LONG[name])
    assert os.read(ours, 1) == b"."
    os.close(ours)
    kernel.interrupt()
    error = kernel.end()["exception"]
    assert error["type"] == "KeyboardInterrupt"
    assert "nsbox" not in error["traceback"]
    assert kernel.run("x + 1")["value"] == 42


@pytest.mark.parametrize(
    "code",
    [
        "class R:\n  def __repr__(self):\n    os.write(7, b'.')\n    while True: pass\nR()",
        "class R:\n  def __repr__(self):\n    os.write(7, b'.')\n    while True: pass\n[R() for _ in range(1000)]",
        "class R:\n  def _repr_html_(self):\n    os.write(7, b'.')\n    while True: pass\nR()",
        "class E(Exception):\n  def __str__(self):\n    os.write(7, b'.')\n    while True: pass\nraise E",
    ],
)
def test_interrupts_while_a_reply_is_made(warm: Interpreter, code: str) -> None:
    """Methods of a value or an exception may never return: an interrupt ends them, and there is a reply."""
    kernel, ours = _announcing(warm)
    kernel.run("import os")
    kernel.begin(code)
    assert os.read(ours, 1) == b"."
    os.close(ours)
    kernel.interrupt()
    reply = kernel.end()
    assert reply["has_value"] or reply["exception"]["type"] == "E"
    assert kernel.run("6 * 7")["value"] == 42


def test_interrupts_at_any_point(warm: Interpreter) -> None:
    """Whenever the signal comes, there is one reply, and the next call isn't hit by it."""
    kernel = warm.kernel()
    chance = random.Random(1)
    for turn in range(150):
        kernel.begin(f"{turn}")
        end = time.perf_counter() + chance.random() * 0.001
        while time.perf_counter() < end:
            pass
        kernel.interrupt()
        reply = kernel.end()
        assert reply.get("value") == turn or reply["has_value"] or reply["exception"]["type"] == "KeyboardInterrupt"
        kernel.sync()
        assert kernel.run("6 * 7")["value"] == 42


def test_no_interrupt_is_lost(warm: Interpreter) -> None:
    """A signal right after the frame interrupts code that would never end."""
    kernel = warm.kernel()
    for _ in range(100):
        kernel.begin("while True: pass")
        kernel.interrupt()
        assert kernel.end()["exception"]["type"] == "KeyboardInterrupt"


def test_an_idle_kernel_isnt_interrupted(kernel: Branch) -> None:
    """A signal while nothing runs has no effect, then or later."""
    kernel.run("1")
    for _ in range(50):
        kernel.interrupt()
        kernel.sync()
        assert kernel.run("6 * 7")["value"] == 42


def test_code_may_handle_the_signal(warm: Interpreter) -> None:
    """A handler that code has put there holds for its call; the next call can be interrupted again."""
    kernel, ours = _announcing(warm)
    kernel.run("import os, signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)")
    kernel.begin("os.write(7, b'.')\nwhile True: pass")
    assert os.read(ours, 1) == b"."
    os.close(ours)
    kernel.interrupt()
    assert kernel.end()["exception"]["type"] == "KeyboardInterrupt"


def test_a_single_run_dies_of_an_interrupt(warm: Interpreter) -> None:
    """As `python -c` does: with its traceback, by the signal."""
    ours, theirs = os.pipe()
    branch = warm.branch(extra=[theirs], fds=[7])
    os.close(theirs)
    branch.begin("import os\nos.write(7, b'.')\nwhile True: pass")
    assert os.read(ours, 1) == b"."
    os.close(ours)
    branch.interrupt()
    assert branch.end()["exception"]["type"] == "KeyboardInterrupt"
    assert branch.status() == -signal.SIGINT
    assert branch.text().endswith("\nKeyboardInterrupt\n")


def test_forks_go_on_by_themselves(kernel: Branch) -> None:
    """A fork has the kernel's state at that moment, and neither sees what the other does then."""
    kernel.run("x = 41\ndef f(): return x")
    a, b = kernel.fork(), kernel.fork()
    a.run("x += 1")
    assert (a.run("f()")["value"], b.run("f()")["value"], kernel.run("f()")["value"]) == (42, 41, 41)
    again = a.fork()
    again.run("print('of a fork', x)")
    assert again.text() == "of a fork 42\n" and a.text() == ""


def test_ends_of_forks_are_told(kernel: Branch) -> None:
    """Also while the kernel is busy, and when a fork is killed."""
    a, b, c = (kernel.fork() for _ in range(3))
    a.send({"op": "end"})
    assert a.status() == 0
    kernel.begin("while not stop: pass", inputs={"stop": []})
    signal.pidfd_send_signal(b.pidfd, signal.SIGKILL)
    assert b.status() == -signal.SIGKILL
    assert c.run("import sys\nsys.exit(5)")["exit"] == 5
    assert c.status() == 5
    kernel.interrupt()
    kernel.end()


def test_code_may_reap_forks(warm: Interpreter) -> None:
    """Code that waits for any child may get the status of a fork: then the end is told without one."""
    kernel, ours = _announcing(warm)
    fork = kernel.fork()
    kernel.run("import os, signal\nsignal.signal(signal.SIGCHLD, signal.SIG_DFL)")
    kernel.begin("os.write(7, b'.')\nos.wait()[1]")
    assert os.read(ours, 1) == b"."
    os.close(ours)
    fork.send({"op": "end"})
    assert kernel.end()["value"] == 0
    ended, _ = message(fork.told)
    assert ended == {"ended": None}


def test_forks_can_be_interrupted(kernel: Branch) -> None:
    """Each by itself."""
    fork = kernel.fork()
    fork.begin("while True: pass")
    fork.interrupt()
    assert fork.end()["exception"]["type"] == "KeyboardInterrupt"
    assert kernel.run("6 * 7")["value"] == fork.run("6 * 7")["value"] == 42


def test_many_forks(kernel: Branch) -> None:
    """A kernel may have many forks at once."""
    forks = [kernel.fork() for _ in range(32)]
    for number, fork in enumerate(forks):
        fork.begin(f"{number}")
    assert [fork.end()["value"] for fork in forks] == list(range(32))


def test_many_branches_at_once(warm: Interpreter) -> None:
    """Two hundred branches of one interpreter."""
    branches = [warm.branch() for _ in range(200)]
    for number, branch in enumerate(branches):
        branch.begin(f"import os\nprint({number})\n{number}")
    assert [branch.end()["value"] for branch in branches] == list(range(200))
    assert [branch.status() for branch in branches] == [0] * 200


def test_memory_stays_flat(kernel: Branch) -> None:
    """Exceptions of a kernel are gone after their replies, and so are values."""
    code = inspect.cleandoc("""
        import gc, weakref
        class Big: pass
        seen = weakref.WeakSet()
        gc.disable()
        def f():
            big = Big(); seen.add(big)
            raise ValueError
    """)
    kernel.run(code)
    for _ in range(5):
        kernel.run("f()")
        kernel.run("big = Big(); seen.add(big); big")
        kernel.run("del big")
    assert kernel.run("len(seen)")["value"] == 0
