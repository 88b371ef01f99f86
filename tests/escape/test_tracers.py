"""What a tracer inside can hold up: the end of a command, of a session, of a sandbox.

A process that is traced needs its tracer to end (ptrace(2)): its exit may be traced, and what has ended is the tracer's
to reap before the parent learns of it, each thread for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pickle
import resource
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from nsbox_testing.running import python

import nsbox
import nsbox.asyncio
from nsbox import Filter, KillError, Policy, Sandbox, Survivor
from nsbox._core import abi, orphans
from nsbox._lifetime import kills

LACKED = {"attributes", "namespaces", "secrets"}


# ---- what a tracer can do without exit stops

# Each process reports when it holds the one before; then "ready" is printed. A process that gives up leaves a file.
HOLD = """
import ctypes, os, signal, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
def anybody(): libc.prctl(0x59616D61, ctypes.c_ulong(2**64 - 1), 0, 0, 0)  # PR_SET_PTRACER, for Yama
def seize(pid, options):
    if libc.ptrace(0x4206, pid, 0, options) < 0:
        print("ptrace:", os.strerror(ctypes.get_errno()), flush=True)
        os._exit(1)
    os.write(w, b"x")
def give_up():
    time.sleep(100)
    open("gave up", "w").close()
    os._exit(0)
how, length, exits = sys.argv[1], int(sys.argv[2]), 0x40 * int(sys.argv[3])
r, w = os.pipe()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
anybody()
target = os.getpid()
if how == "thread":
    started = threading.Event()
    def sleeper():
        global target
        target = threading.get_native_id()
        started.set()
        time.sleep(1000)
    threading.Thread(target=sleeper, daemon=True).start()
    started.wait()
for _ in range(length):  # a tracer of a tracer ...
    tracer = os.fork()
    if tracer == 0:
        anybody()
        os.setsid()
        seize(target, exits)
        if how == "stopped":
            libc.ptrace(0x4207, target, 0, 0)  # PTRACE_INTERRUPT
            os.waitpid(target, 0x40000000)
            print("ready", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
        give_up()
    os.read(r, 1)
    target = tracer
if how != "stopped":
    print("ready", flush=True)
while True:
    signal.pause()
"""
KINDS = {
    "the command": ("seize", "1"),
    "the command, and both are stopped": ("stopped", "1"),
    "a thread": ("thread", "1"),
    "a tracer of a tracer of a tracer": ("seize", "3"),
}


@pytest.fixture(params=KINDS)
def hold(request: pytest.FixtureRequest) -> list[str]:
    """A command that can't end before others in its sandbox do."""
    return python(HOLD, *KINDS[request.param], "0")


def held(process: Any) -> None:
    """Return when all are traced that are to be."""
    assert process.stdout.readline().strip() in ("ready", b"ready")


def alone(workspace: Path, **options: Any) -> Policy:
    if nsbox.probe().landlock_abi < 2:
        pytest.skip("needs Landlock of version 2 or later")
    return Policy.workspace(workspace, backend="landlock", degrade=LACKED, **options)


def has_given_up(workspace: Path) -> bool:
    return (workspace / "gave up").exists()


POLICIES: dict[str, Callable[[Path], Policy]] = {
    "default": Policy.workspace,
    "off": lambda path: Policy.workspace(path, seccomp="off"),
    "exits": lambda path: Policy.workspace(path, seccomp=Filter(allow=["ptrace"])),
    "outlives": lambda path: Policy.workspace(path, kill_on_exit=False),
    "landlock": alone,
}


@pytest.mark.parametrize("chosen", POLICIES)
def test_killed_while_it_is_traced(chosen: str, hold: list[str], workspace: Path) -> None:
    """kill() ends the command with those without whom it couldn't end."""
    policy = POLICIES[chosen](workspace)
    command = [*hold[:-1], "1"] if chosen == "exits" else hold
    with nsbox.Popen(command, policy=policy, stdout=subprocess.PIPE, cwd=workspace) as process:
        held(process)
        process.kill()
        assert process.wait() == -9
    while orphans.leftovers.pidfds:  # pid 1, where nobody waits for it
        orphans.leftovers.sweep()
    assert not has_given_up(workspace)


def test_control_a_plain_child_stays(hold: list[str], workspace: Path) -> None:
    """Control: a plain child has ended when it was killed, and can't be reaped until its tracer has gone."""
    with subprocess.Popen(hold, stdout=subprocess.PIPE, cwd=workspace) as process:
        held(process)
        tracers = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
            pass
        assert os.waitpid(process.pid, os.WNOHANG) == (0, 0)
        for tracer in tracers:
            tracer.kill()
        assert process.wait() == -9


@pytest.mark.parametrize("method", ["run", "call", "exec", "session", "transaction"])
def test_time_limits(method: str, hold: list[str], workspace: Path, tmp_path: Path) -> None:
    """A command that can't end is over at the end of its time."""
    limit = 40 if "RUN_IN_VM" in os.environ else 2
    policy = Policy.workspace(workspace)
    with contextlib.ExitStack() as stack:
        box = stack.enter_context(Sandbox(policy, stock=0))
        if method in ("run", "call"):
            options: dict[str, Any] = {"stdout": subprocess.PIPE} if method == "run" else {}
            with pytest.raises(subprocess.TimeoutExpired) as caught:
                getattr(box, method)(hold, timeout=limit, **options)
            assert method == "call" or caught.value.stdout == b"ready\n"
        else:
            keeper = box
            if method == "session":
                keeper = stack.enter_context(box.session())
            elif method == "transaction":
                keeper = stack.enter_context(box.transaction(dir=tmp_path / "store"))
            done = keeper.exec(hold[0], hold[1:], timeout=limit, grace=0)
            assert (done.timed_out, done.stdout, done.returncode) == (True, "ready\n", -9)
            if method == "session":
                assert keeper.shell("echo here").stdout == "here\n"
    assert not has_given_up(workspace)


def test_in_a_loop(hold: list[str], workspace: Path) -> None:
    """asyncio's face learns of the end as well."""

    async def main() -> int:
        process = await nsbox.asyncio.create_subprocess_exec(
            *hold, policy=alone(workspace), stdout=subprocess.PIPE, cwd=workspace
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        process.kill()
        return await process.wait()

    assert asyncio.run(main()) == -9
    assert not has_given_up(workspace)


def test_another_thread_waits(hold: list[str], workspace: Path) -> None:
    """wait() in one thread returns when another one kills, also where nothing but the tracer's end helps."""
    for policy in (Policy.workspace(workspace), alone(workspace)):
        with nsbox.Popen(hold, policy=policy, stdout=subprocess.PIPE, cwd=workspace) as process:
            held(process)
            with ThreadPoolExecutor() as pool:
                waiting = pool.submit(process.wait)
                process.kill()
                assert waiting.result() == -9
    assert not has_given_up(workspace)


# ---- what can't be ended


def tracer_outside(pid: int) -> subprocess.Popen[bytes]:
    """Start a process that traces another one, as a debugger of the user's would, until its stdin ends."""
    code = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.ptrace.argtypes = [ctypes.c_long] * 4
assert libc.ptrace(0x4206, int(sys.argv[1]), 0, 0) == 0
print("traced", flush=True)
sys.stdin.read()
"""
    tracer = subprocess.Popen(python(code, str(pid)), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert tracer.stdout is not None
    assert tracer.stdout.readline() == b"traced\n"
    return tracer


def test_a_tracer_outside_stays(workspace: Path) -> None:
    """A tracer outside isn't killed; the command is freed when the tracer lets go."""
    with nsbox.Popen(["sleep", "1000"], policy=alone(workspace)) as process, tracer_outside(process.pid) as tracer:
        process.kill()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        assert process.poll() is tracer.poll() is None
        tracer.communicate()
        assert process.wait() == -9


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting is given up soon."""
    monkeypatch.setattr(kills, "_PATIENCE", 0.2)


@pytest.mark.parametrize("chosen", ["default", "landlock"])
def test_what_is_left_is_told(chosen: str, workspace: Path, impatient: None) -> None:
    """Where nothing helps, each way of waiting raises an error that names processes, what they do and their tracers."""
    command = ["sleep", "1000"]
    with nsbox.Popen(command, policy=POLICIES[chosen](workspace), stdout=subprocess.PIPE) as process:
        with tracer_outside(process.pid) as tracer:
            process.kill()
            for wait in (process.wait, process.communicate, lambda: process.__exit__(None, None, None)):
                with pytest.raises(
                    KillError, match=f"pid {process.pid} .'sleep', state Z .*traced by {tracer.pid}"
                ) as caught:
                    wait()
                assert Survivor(process.pid, "sleep", "Z (zombie)", tracer.pid) in caught.value.survivors
            assert process.returncode is None
            again = pickle.loads(pickle.dumps(caught.value))
            assert (str(again), again.survivors) == (str(caught.value), caught.value.survivors)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.01)
            tracer.communicate()
        assert process.wait() == -9
        process.stdout = None


@pytest.mark.parametrize("method", ["run", "exec", "session", "asyncio"])
def test_calls_return(method: str, workspace: Path, impatient: None) -> None:
    """A call with a time limit raises that error instead of waiting for ever."""
    limit = 20 if "RUN_IN_VM" in os.environ else 1.5
    tracers = []

    def started(pid: int) -> None:
        tracers.append(tracer_outside(pid))

    def traced() -> None:
        """Trace the command of this test as soon as it is there."""
        own, found = psutil.Process(), []
        while not found:
            with contextlib.suppress(psutil.NoSuchProcess):  # of the set-up
                found = [process.pid for process in own.children(recursive=True) if process.name() == "sleep"]
        started(found[0])

    def call() -> None:
        policy, command = Policy.workspace(workspace), ["sleep", "1000"]
        with Sandbox(policy, stock=0) as box:
            if method == "run":
                box.run(command, timeout=limit)
            elif method == "exec":
                box.exec("sleep", ["1000"], timeout=limit)
            elif method == "session":
                with box.session() as session:
                    session.exec("sleep", ["1000"], timeout=limit)
            else:
                asyncio.run(in_loop(policy))

    async def in_loop(policy: Policy) -> None:
        process = await nsbox.asyncio.create_subprocess_exec("sleep", "1000", policy=policy, stdout=subprocess.PIPE)
        await asyncio.to_thread(traced)
        process.kill()
        with pytest.raises(KillError):
            await process.wait()
        try:
            await process.communicate()  # the same
        finally:
            process._transport.close()  # type: ignore[attr-defined]

    with ThreadPoolExecutor() as pool:
        watcher = pool.submit(traced) if method != "asyncio" else None
        try:
            with pytest.raises(KillError) as caught:
                call()
        finally:
            if watcher is not None:
                watcher.result()
            for tracer in tracers:
                tracer.communicate()
    assert any(one.tracer == tracers[0].pid for one in caught.value.survivors)
    for process in [found for found in gc.get_objects() if isinstance(found, nsbox.Popen)]:
        if process.pid is not None:  # one of another test's that was never started, in a traceback
            process.wait()
    for child in psutil.Process().children():  # pid 1 of a session that couldn't end
        os.waitpid(child.pid, abi.WALL)


RING = """
import ctypes, os, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
def seize(pid):
    assert libc.ptrace(0x4206, pid, 0, 1) == 0, os.strerror(ctypes.get_errno())
libc.prctl(0x59616D61, ctypes.c_ulong(2**64 - 1), 0, 0, 0)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
r, w = os.pipe()
last, end = os.pipe()
before, first = os.getpid(), True
for _ in range(int(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        libc.prctl(0x59616D61, ctypes.c_ulong(2**64 - 1), 0, 0, 0)
        seize(before)
        os.write(w, b"x")
        if first:
            seize(int(os.read(last, 20)))
            os.write(w, b"x")
        while True:
            signal.pause()
    os.read(r, 1)
    before, first = pid, False
os.write(end, str(before).encode())
os.read(r, 1)
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.mark.parametrize("chosen", ["default", "off"])
def test_a_thousand_that_trace_each_other(chosen: str, workspace: Path) -> None:
    """Each traces the one before it, the first the last: all end."""
    many = 50 if "RUN_IN_VM" in os.environ else 1000
    with nsbox.Popen(python(RING, str(many)), policy=POLICIES[chosen](workspace), stdout=subprocess.PIPE) as process:
        held(process)
        process.kill()
        assert process.wait() == -9


WEDGE = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
def anybody(): libc.prctl(0x59616D61, ctypes.c_ulong(2**64 - 1), 0, 0, 0)
def seize(pid): return ctypes.get_errno() if libc.ptrace(0x4206, pid, 0, 0x40) < 0 else 0
r, w = os.pipe()
seized, told = os.pipe()
one = os.fork()
if one == 0:
    anybody()
    me = os.getpid()
    other = os.fork()
    if other == 0:
        anybody()
        os.write(told, b"%d" % seize(me))
        time.sleep(1000)
    os.write(w, os.read(seized, 9) + b" %d." % seize(other))
    time.sleep(1000)
text = b""
while b"." not in text:
    text += os.read(r, 20)
print(text.decode(), flush=True)
"""

WEDGED = """
import subprocess, sys
import nsbox
from nsbox import Filter, KillError, Policy; from nsbox._lifetime import kills as _kills
workspace, allowed, *command = sys.argv[1:]
_kills._PATIENCE = 10.0
policy = Policy.workspace(workspace, seccomp=Filter(allow=["ptrace"]) if allowed == "allowed" else "default")
process = nsbox.Popen(command, policy=policy, stdout=subprocess.PIPE, text=True)
print(process.stdout.readline(), end="")
try:
    print("ended", process.wait())
except KillError as error:
    traced = [one for one in error.survivors if one.state.startswith("t")]
    print("left", len(traced), {one.tracer for one in traced} == {one.pid for one in traced})
    process.returncode = -9
"""


@pytest.mark.vm
@pytest.mark.skipif("RUN_IN_VM" not in os.environ, reason="makes processes that nobody can kill: in a virtual machine")
def test_two_that_trace_each_others_exit(workspace: Path) -> None:
    """They can't be made; and the control: where that is allowed they stay, and waiting ends with an error all the same.

    The fixture that looks for what is left knows processes by this limit.
    """
    found = []

    def stranger() -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
        resource.setrlimit(resource.RLIMIT_RTTIME, (soft - 1, hard))

    for allowed in ("refused", "allowed"):
        command = [sys.executable, "-c", WEDGED, str(workspace), allowed, *python(WEDGE)]
        done = subprocess.run(command, preexec_fn=stranger, stdout=subprocess.PIPE, text=True, cwd="/", check=True)
        found.append(done.stdout)
    assert found == ["1 1.\nended 0\n", "0 0.\nleft 2 True\n"]
