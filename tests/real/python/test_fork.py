"""Forks of a kernel: branches of its live state, apart from each other, which end with it."""

from __future__ import annotations

import gc
import os
import resource
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from nsbox_testing.verdicts import LONG

import nsbox
from nsbox import ForkError, Python, PythonKernel

WITH_ITS_KERNEL = "it was ended by SIGKILL, and the kernel that it was forked from has ended too"


@pytest.fixture
def kernel(py: Python) -> Iterator[PythonKernel]:
    with py.kernel() as kernel:
        kernel.run("x = [1]; import os, random, time")
        yield kernel


@pytest.mark.vm
def test_the_live_state(kernel: PythonKernel) -> None:
    """Forks begin with all that the kernel has, and go apart from there; so does the kernel."""
    one, two = kernel.fork(2)
    assert one.run("x.append(2); x").value == [1, 2]
    assert two.run("x.append(3); x").value == [1, 3]
    assert kernel.run("x").value == [1]
    kernel.run("x.append(4)")
    assert (one.run("x").value, two.run("x").value) == ([1, 2], [1, 3])
    assert [each.run("print(x)").stdout for each in (one, two, kernel)] == ["[1, 2]\n", "[1, 3]\n", "[1, 4]\n"]
    (third,) = kernel.fork()
    assert third.run("x").value == [1, 4]


def test_records(kernel: PythonKernel) -> None:
    """A fork's calls are as a kernel's: exceptions, stdin, time limits, output."""
    (fork,) = kernel.fork()
    result = fork.run("print(input())\n1 / 0", input="a\n")
    assert (result.stdout, result.returncode) == ("a\n", 1)
    assert result.exception is not None
    assert result.exception.type == "ZeroDivisionError"
    assert fork.run("input()").exception is not None
    result = fork.run("time.sleep(1000)", timeout=0.2)
    assert (result.ended_by, result.ended) == ("SIGINT", False)
    assert fork.run("x").value == [1]


def test_they_run_at_the_same_time(kernel: PythonKernel) -> None:
    """Also while the kernel runs code itself."""
    forks = kernel.fork(4)
    meet = "import os\nopen(f'/tmp/{n}', 'w').close()\nwhile len([f for f in os.listdir('/tmp') if f.isdigit()]) < 5: time.sleep(0.01)\nn"
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda k=k, n=n: found.append(k.run(meet, inputs={"n": n}, timeout=LONG).value))
        for n, k in enumerate([kernel, *forks])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [0, 1, 2, 3, 4]


def test_random_numbers(kernel: PythonKernel) -> None:
    """Each fork has its own."""
    kernel.run("import uuid; random.random()")
    code = "[random.random(), str(uuid.uuid4()), str(uuid.uuid1())]"
    found = [each.run(code).value for each in (*kernel.fork(3), kernel)]
    for column in zip(*found, strict=True):
        assert len(set(column)) == 4


def test_a_fork_of_a_fork(kernel: PythonKernel) -> None:
    """Five deep; each has what the one before it had."""
    chain = [kernel]
    for number in range(5):
        (fork,) = chain[-1].fork()
        fork.run(f"x.append({number})")
        chain.append(fork)
    assert chain[-1].run("x").value == [1, 0, 1, 2, 3, 4]
    assert kernel.run("x").value == [1]
    chain[2].close()
    assert [one.ended for one in chain[3:]] == [WITH_ITS_KERNEL] * 3
    assert chain[1].run("import sys; sys.exit()").ended
    assert kernel.run("x").value == [1]
    (other,) = kernel.fork()
    (last,) = other.fork()
    assert other.run("os._exit(3)").returncode == 3  # it ends by itself
    assert last.ended


def test_threads(kernel: PythonKernel) -> None:
    """A kernel with threads can't be forked: the error names them, and the kernel goes on."""
    kernel.run(
        "import threading\ngo = threading.Event()\nt = threading.Thread(target=go.wait, name='worker one'); t.start()"
    )
    with pytest.raises(ForkError, match=r"while threads run in it: worker one; end them first") as caught:
        kernel.fork(3)
    assert caught.value.threads == ("worker one",)
    assert kernel.run("x").value == [1]
    kernel.run("go.set(); t.join()")
    (fork,) = kernel.fork()
    assert fork.run("x").value == [1]


@pytest.mark.parametrize(
    ("n", "problem"),
    [(0, "n is 0"), (-1, "n is -1"), (1001, "n is 1001"), (True, "bool"), (1.0, "float"), ("2", "str")],
)
def test_bad_numbers(kernel: PythonKernel, n: Any, problem: str) -> None:
    """They are errors."""
    with pytest.raises((TypeError, ValueError), match=problem):
        kernel.fork(n)


def test_they_end_with_their_kernel(kernel: PythonKernel) -> None:
    """However it ends; a call of a fork's that is running has its record."""
    forks = kernel.fork(3)
    found: list[Any] = []
    begun = threading.Event()
    thread = threading.Thread(
        target=lambda: found.append(
            forks[0].run("print(1, flush=True)\nwhile True: pass", on_output=lambda _: begun.set())
        )
    )
    thread.start()
    assert begun.wait(LONG)
    kernel.run("os._exit(5)")
    thread.join(LONG)
    assert (found[0].ended, found[0].returncode) == (True, -9)
    assert forks[0].ended in ("it was ended by SIGKILL", WITH_ITS_KERNEL)  # its call may see its own end first
    assert [fork.ended for fork in forks[1:]] == [WITH_ITS_KERNEL] * 2
    with pytest.raises(ValueError, match="has ended"):
        forks[1].run("1")


def test_a_reset_fork(kernel: PythonKernel) -> None:
    """It is a kernel of its own then, which doesn't end with the other one."""
    (fork,) = kernel.fork()
    fork.reset()
    assert fork.run("'x' in globals()").value is False
    kernel.close()
    assert fork.run("1 + 1").value == 2
    fork.close()


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import sys; sys.exit(3)", 3),
        ("os._exit(4)", 4),
        ("import signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("import ctypes; ctypes.string_at(0)", -11),
    ],
)
@pytest.mark.parametrize("is_busy", [False, True])
def test_a_fork_that_exits(kernel: PythonKernel, code: str, status: int, is_busy: bool) -> None:
    """Its record says how, also if the kernel is just running code; the kernel and the others go on."""
    one, two = kernel.fork(2)
    begun = threading.Event()
    thread = threading.Thread(
        target=lambda: kernel.run("print(1, flush=True)\nwhile True: pass", on_output=lambda _: begun.set())
    )
    if is_busy:
        thread.start()
        assert begun.wait(LONG)
    result = one.run(f"print('said', flush=True)\n{code}", timeout=LONG)
    assert (result.returncode, result.ended, result.stdout) == (status, True, "said\n")
    assert one.ended
    assert two.run("x").value == [1]
    if is_busy:
        kernel.interrupt()
        thread.join()
    assert kernel.run("x").value == [1]


def test_a_fork_that_takes_too_long(kernel: PythonKernel) -> None:
    """It is killed, with what it has started; the kernel goes on."""
    (fork,) = kernel.fork()
    code = (
        "import signal, subprocess\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "for _ in range(3): subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork(): os._exit(0)\n    time.sleep(1000)\n"
        "print('begun', flush=True)\nwhile True: pass"
    )
    result = fork.run(code, timeout=1.0, grace=0.2)
    assert (result.ended_by, result.ended, result.returncode) == ("SIGKILL", True, -9)
    count = "len([n for n in os.listdir('/proc') if n.isdigit()])"
    assert kernel.run(f"for _ in range(1000):\n    if {count} <= 2: break\n    time.sleep(0.01)\n{count}").value == 2


def test_closing_one(kernel: PythonKernel) -> None:
    """It ends with its processes; dropping it does the same."""
    one, two = kernel.fork(2)
    for fork in (one, two):
        fork.run("import subprocess; subprocess.Popen(['sleep', '1000'])")
    pids = [one.pid, two.pid]
    one.close()
    del two, fork
    gc.collect()
    assert not any(os.path.exists(f"/proc/{pid}") and _is_alive(pid) for pid in pids)
    count = "len([n for n in os.listdir('/proc') if n.isdigit()])"
    assert kernel.run(f"for _ in range(1000):\n    if {count} <= 2: break\n    time.sleep(0.01)\n{count}").value == 2


def _is_alive(pid: int | None) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


def test_killed_from_outside(kernel: PythonKernel) -> None:
    """Its next call says so."""
    (fork,) = kernel.fork()
    assert fork.pid is not None
    os.kill(fork.pid, signal.SIGKILL)
    with pytest.raises(ValueError, match="it was ended by SIGKILL"):
        while True:
            fork.run("1")


@pytest.mark.skipif(nsbox.probe().landlock_abi < 6, reason="needs Landlock of version 6, which knows scopes")
def test_they_cant_reach_each_other(kernel: PythonKernel) -> None:
    """A fork can't signal the kernel or a sibling, trace it, or read its memory. The control: a kernel's own child."""
    one, two = kernel.fork(2)
    assert one.pid is not None
    pids = {name: each.run("os.getpid()").value for name, each in (("one", one), ("two", two), ("kernel", kernel))}
    code = """
def attempt(function, *arguments):
    try:
        function(*arguments)
    except OSError as error:
        return error.errno
    return 0
import signal
def attack(pid):
    return [attempt(os.kill, pid, signal.SIGKILL), attempt(open, f"/proc/{pid}/mem", "rb"),
        attempt(os.readlink, f"/proc/{pid}/fd/0"), attempt(open, f"/proc/{pid}/environ", "rb")]
"""
    two.run(code)
    assert two.run(f"attack({pids['one']})").value == [1, 13, 13, 13]
    assert two.run(f"attack({pids['kernel']})").value[0] == 1
    assert one.run("x").value == [1]
    assert kernel.run("x").value == [1]
    kernel.run(code)
    kernel.run("import subprocess; child = subprocess.Popen(['sleep', '1000'])")
    assert kernel.run("attack(child.pid)[0], child.wait()").value == [0, -9]


def test_two_hundred_at_once(kernel: PythonKernel) -> None:
    """They share memory; each has its own state, and costs this process five descriptors."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
    forks = kernel.fork(200)
    try:
        for number, fork in enumerate(forks):
            assert fork.run(f"x.append({number}); sum(x)").value == number + 1
    finally:
        kernel.close()
        for fork in forks:
            fork.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_lack_of_descriptors(kernel: PythonKernel) -> None:
    """It is an error; the forks that were made are closed, and the kernel goes on."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 30, limits[1]))
    try:
        with pytest.raises((OSError, ForkError)):
            kernel.fork(20)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert kernel.run("x").value == [1]
    assert kernel.fork()[0].run("x").value == [1]


def test_a_lack_of_processes(workspace: Any) -> None:
    """If the kernel can't fork, that is an error, the forks that were made are closed, and the kernel goes on."""
    policy = nsbox.Policy.workspace(workspace)
    with nsbox.Sandbox(policy, stock=0) as box, box.python().kernel() as kernel:
        kernel.run("x = 1\nimport resource, os\nfork, count = os.fork, [0]")
        kernel.run(
            "def f():\n    count[0] += 1\n    if count[0] > 3: raise BlockingIOError(11, 'no')\n    return fork()\nos.fork = f"
        )
        with pytest.raises(ForkError, match="temporarily unavailable"):
            kernel.fork(5)
        assert kernel.run("x, count[0]").value == [1, 4]
