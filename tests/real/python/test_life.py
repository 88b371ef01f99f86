"""The life of a Python: it ends with its Sandbox, in forks and threads, and leaves nothing."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from nsbox_testing.running import in_fork

import nsbox
from nsbox import Policy, Python, PythonResult, Sandbox


def connections(*kinds: str) -> int:
    """Return how many sockets and pipes this process has. (User namespaces for idmapped mounts are kept for a while.)"""
    links = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return sum(link.startswith(kinds or ("socket:", "pipe:")) for link in links)


def pipe_ends() -> set[int]:
    """Return the descriptors of this process that are pipes."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found |= {int(name)} if os.readlink(f"/proc/self/fd/{name}").startswith("pipe:") else set()
    return found


def descendants() -> set[int]:
    return {one.pid for one in psutil.Process().children(recursive=True)}


def test_it_ends_with_its_sandbox(policy: Policy) -> None:
    """close() of the Sandbox ends the interpreter, with every branch."""
    with Sandbox(policy, stock=0) as box:  # what a first one makes for all that follow
        box.python().start()
    before = connections()
    with Sandbox(policy, stock=0) as box:
        py = box.python(stock=3)
        assert py.run("1").value == 1
        assert descendants()
    assert not py.is_warm
    assert not descendants()
    with pytest.raises(ValueError, match="closed"):
        py.run("1")
    with pytest.raises(ValueError, match="closed"):
        box.python()
    gc.collect()
    assert connections() == before


def test_a_context_of_its_own(box: Sandbox) -> None:
    """With `with`, it is warm inside, and ended after; closing twice is no error."""
    with box.python() as py:
        assert py.is_warm
        assert py.run("1").value == 1
    assert not py.is_warm
    py.close()
    with pytest.raises(ValueError, match="closed"):
        py.start()
    assert box.python().run("2").value == 2


def test_close_ends_what_runs(box: Sandbox) -> None:
    """Code that runs meanwhile ends, and its record says why."""
    py = box.python()
    results: list[PythonResult] = []
    started = threading.Event()
    code = "print('on', flush=True)\nimport time\ntime.sleep(1000)"
    thread = threading.Thread(target=lambda: results.append(py.run(code, on_output=lambda _: started.set())))
    thread.start()
    assert started.wait(30)
    py.close()
    thread.join(30)
    assert results[0].cause == "unknown"
    assert any("closed" in hint.message for hint in results[0].why)


def test_threads_share_it(box: Sandbox) -> None:
    """Many at once, more than are parked; each gets its own result."""
    py = box.python(stock=2)
    results: dict[int, object] = {}

    def work(number: int) -> None:
        results[number] = py.run("n * 2", inputs={"n": number}).value

    threads = [threading.Thread(target=work, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert results == {number: number * 2 for number in range(40)}


@contextlib.contextmanager
def descriptors(most: int) -> Iterator[None]:
    """Let this process have so many descriptors meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_free_descriptors(box: Sandbox) -> None:
    """The error is the system's, wherever the lack is noticed; what was there goes on."""
    py = box.python()
    assert py.run("1").value == 1
    current = py._supply.current
    last = max(map(int, os.listdir("/proc/self/fd")))
    before, failed = connections("socket:"), 0
    pipes = pipe_ends()
    with contextlib.ExitStack() as held:
        while (fd := os.open("/dev/null", os.O_RDONLY)) < last:  # all lower numbers are in use
            held.callback(os.close, fd)
        held.callback(os.close, fd)
        for room in range(1, 24):
            with descriptors(max(fd, last) + room):
                try:
                    assert py.run("1").value == 1
                except OSError as error:
                    failed += 1
                    assert error.errno == errno.EMFILE, error
    assert failed > 6
    for fd in pipe_ends() - pipes:  # subprocess itself leaves some, when it finds no number for the next one
        os.close(fd)
    assert py.run("1").value == 1
    assert py._supply.current is current
    gc.collect()
    assert connections("socket:") <= before + 4  # more of them are parked


def test_high_numbers(box: Sandbox) -> None:
    """An interpreter starts in a process whose free descriptors are beyond what select(2) knows."""
    with descriptors(8192):
        held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
        try:
            assert box.python().run("1 + 1").value == 2
        finally:
            for fd in held:
                os.close(fd)


def test_two_hundred_at_once(box: Sandbox) -> None:
    """Branches that all run at the same time are all there, and all end."""
    with descriptors(8192):
        at_once(box, 200)


def at_once(box: Sandbox, count: int) -> None:
    py = box.python()
    waiting = "import time\nwhile not __import__('os').path.exists('go'): time.sleep(0.05)\n1"
    results: list[PythonResult] = []
    threads = [threading.Thread(target=lambda: results.append(py.run(waiting))) for _ in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    py.run("open('go', 'w').close()")
    for thread in threads:
        thread.join(55)
    assert [result for result in results if result.value != 1] == []
    assert len(results) == count


def test_a_forked_child_begins_afresh(py: Python) -> None:
    """The child has an interpreter of its own; the parent's goes on."""
    assert py.run("1").value == 1

    def child() -> None:
        assert not py.is_warm
        assert py.run("2").value == 2
        py._box.close()

    in_fork(child)
    current = py._supply.current
    assert py.run("3").value == 3
    assert py._supply.current is current


def test_what_is_left_at_the_interpreters_end(workspace: Path) -> None:
    """A program that closes nothing, or is killed, leaves no process."""
    code = (
        "import os, sys, threading, nsbox\nbox = nsbox.Sandbox(nsbox.Policy.workspace(sys.argv[1]))\npy = box.python(stock=2)\n"
        "assert py.run('1').value == 1\n"
        "print(py._supply.current._process.pid, flush=True)\nexec(sys.argv[2])"
    )
    ends = (
        "",
        "os._exit(0)",
        "os.kill(os.getpid(), 9)",
        "threading.Thread(target=py.run, args=('import time; time.sleep(1000)',), daemon=True).start()\nimport time; time.sleep(0.3)",
    )
    for end in ends:
        with subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code, str(workspace), end],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
        ) as process:
            words, errors = process.communicate(timeout=50)
        assert process.returncode in (0, -9), errors
        assert errors == ""
        until = time.monotonic() + 20
        while psutil.pid_exists(int(words)) and time.monotonic() < until:
            time.sleep(0.02)
        assert not psutil.pid_exists(int(words))


HANDLERS = """
import gc, os, signal, sys, time, nsbox

def connections():
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith(("socket:", "pipe:"))
        except OSError:
            pass
    return found

def interrupt(*_):
    raise TimeoutError("now")

with nsbox.Sandbox(nsbox.Policy.workspace(sys.argv[1]), stock=0) as box:
    py = box.python()
    assert py.run("1").value == 1
    signal.signal(signal.SIGALRM, interrupt)
    before = connections()
    for i in range(60):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0005 * (i % 30) + 0.0001)
            py.run("import time; time.sleep(0.2)")
        except TimeoutError:
            pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    until = time.monotonic() + 20  # code that nothing waits for any more ends by itself
    while connections() > before + 2 and time.monotonic() < until:
        assert py.run("1").value == 1
        gc.collect()
    print(connections() - before)
"""


def test_signal_handlers_that_raise(workspace: Path) -> None:
    """An error in the middle of a run ends the code, and the next one runs; no descriptor is left."""
    command = [sys.executable, "-P", "-W", "ignore", "-c", HANDLERS, str(workspace)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 2


def test_closed_standard_streams(workspace: Path) -> None:
    """A caller without standard streams can run code: no descriptor of ours takes their place."""
    code = (
        "import os, sys, nsbox\nfor fd in (0, 1, 2): os.close(fd)\n"
        "with nsbox.Sandbox(nsbox.Policy.workspace(sys.argv[1])) as box:\n"
        "    r = box.python().run('print(6*7)\\n1+1')\n"
        "os._exit(0 if (r.stdout, r.value) == ('42\\n', 2) else 3)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code, str(workspace)], check=False, timeout=50)
    assert done.returncode == 0


def test_it_leaves_no_zombies(box: Sandbox) -> None:
    """Whatever an interpreter had as children is gone: it reaps its branches as they end."""
    py = box.python()
    for _ in range(10):
        py.run("import os\nif os.fork() == 0: os._exit(0)")
    zombies = 0
    for one in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # the interpreter has just reaped it
            zombies += one.status() == psutil.STATUS_ZOMBIE
    assert zombies <= 2
    assert nsbox.Python is Python


def test_the_interpreter_keeps_nothing_of_branches(box: Sandbox) -> None:
    """It is known by its own pidfd, and branches are its children. Afterwards it has as many descriptors as before."""
    py = box.python(stock=1)
    assert py.run("1").value == 1
    interpreter = py._supply.current
    assert interpreter is not None
    with open(f"/proc/self/fdinfo/{interpreter.fileno()}") as file:
        (number,) = (int(line.split()[1]) for line in file if line.startswith("Pid:"))

    def count() -> int:
        return len(os.listdir(f"/proc/{number}/fd"))

    def settled(before: int | None = None) -> int:
        """Return the count with one parked branch and no other; until then it changes."""
        deadline = time.monotonic() + 60
        while len(psutil.Process(number).children()) != 2 or (before is not None and count() != before):
            assert time.monotonic() < deadline, (before, count(), psutil.Process(number).children())
            time.sleep(0.01)
        return count()

    with py.kernel() as kernel:  # these hold their mounts in it, at most eight of them
        kernels = [py.kernel() for _ in range(10)]
        children = {child.pid for child in psutil.Process(number).children()}
        assert {one.pid for one in (kernel, *kernels)} <= children
        for one in kernels:
            one.close()
    assert py.run("2").value == 2  # the next one is parked when there is room for what it holds
    before = settled()  # what a branch that is being parked holds for a moment may be counted once
    for _ in range(20):
        time.sleep(0.02)
        before = min(before, settled())
    for i in range(20):
        assert py.run(f"{i}").value == i
    assert settled(before) == before


@pytest.mark.as_user("root's layers leave the interpreter the kernel's uid 0")
def test_one_interpreter_though_each_branch_has_a_fresh_dev(workspace: Path) -> None:
    """A /dev of the branch's own, on a directory of the host's, is no sign that something was replaced."""
    own = nsbox.Bind(str(workspace), str(workspace))
    layers = nsbox.RoBind("/", "/"), nsbox.Dev("/dev"), nsbox.Proc("/proc"), own
    with Sandbox(Policy.layers(*layers, network="none", unshare={"net", "ipc"})) as box, box.python() as py:
        assert py.run("1").value == 1
        interpreter = py._supply.current
        assert interpreter is not None
        for _ in range(3):
            while not all(branch.is_ready for branch in interpreter._parked):
                time.sleep(0.01)
            assert py.run("open('/dev/shm/x', 'x').write('y')").value == 1
        assert py._supply.current is interpreter
