"""Processes of a set-up that another process kills while the caller forks and handles signals: no hang, nothing left."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from nsbox_testing.running import in_fork

import nsbox
from nsbox import Policy, SetupError


def _children() -> list[int]:
    found = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/children") as file:
            found += [int(pid) for pid in file.read().split()]
    return found


def _kill_some(stop: threading.Event, chance: random.Random) -> None:
    """Kill children that haven't executed yet, as a watchdog might that kills all it finds."""
    own = Path("/proc/self/cmdline").read_bytes()
    while not stop.is_set():
        for pid in _children():
            time.sleep(chance.random() * 0.0005)
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes() == own:
                    os.kill(pid, signal.SIGKILL)


def _fork_often(stop: threading.Event) -> None:
    """Make the caller's memory copy-on-write again and again."""
    while not stop.wait(0.001):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("ids", ["single", pytest.param("full", marks=pytest.mark.as_root("maps all ids"))])
def test_kills_while_the_caller_forks(workspace: Path, ids: str) -> None:
    """Each spawn ends, with an error or with a command, and no process of it is left (SIGKILL at any moment)."""
    policy = Policy.workspace(workspace, ids=ids, **({"uid": 1000, "gid": 1000} if ids == "full" else {}))

    def run() -> dict[str, int]:
        stop = threading.Event()
        chance = random.Random(1)
        threads = [
            threading.Thread(target=_kill_some, args=(stop, chance), daemon=True),
            threading.Thread(target=_fork_often, args=(stop,), daemon=True),
        ]
        for thread in threads:
            thread.start()
        found = {"ended": 0, "killed": 0}
        for _ in range(150):
            try:
                nsbox.run(["true"], policy=policy, cwd="/")
                found["ended"] += 1
            except (SetupError, OSError):
                found["killed"] += 1
        stop.set()
        for thread in threads:
            thread.join()
        found["left"] = len(_children())
        return found

    found = in_fork(run)
    assert found["left"] == 0
    assert found["killed"] > 0, "nothing was killed: the test tests nothing"


class _Alarm(Exception):
    pass


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_handler_that_raises(policy: Policy) -> None:
    """A signal handler that raises when the command has just started: the sandbox is ended, its descriptors are closed."""

    def ring(*_: object) -> None:
        raise _Alarm

    nsbox.run(["true"], policy=policy)  # what is imported at the first one isn't interrupted
    before = signal.signal(signal.SIGALRM, ring)
    chance = random.Random(2)
    rung = 0
    try:
        for _ in range(60):
            # Pipes of subprocess's own (PIPE) are lost when it rings while they are made, with the standard library too.
            end, keep = os.pipe()
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005 + chance.random() * 0.003)
                # Should it ring when the Popen is whole, and before it has a name here, the pipe's end ends the command.
                process = nsbox.Popen(["cat"], stdin=end, policy=policy)
                signal.setitimer(signal.ITIMER_REAL, 0)
                os.close(keep)
                keep = -1
                process.wait()
            except _Alarm:
                rung += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                process = None  # type: ignore[assignment]
                for fd in (end, keep):
                    if fd >= 0:
                        os.close(fd)
                # Not left to the next constructor, where it would ring: subprocess takes a lock for it that it then keeps.
                latest = time.monotonic() + 20
                while subprocess._active and time.monotonic() < latest:  # type: ignore[attr-defined]
                    subprocess._cleanup()  # type: ignore[attr-defined]
    finally:
        signal.signal(signal.SIGALRM, before)
    assert rung > 0


def test_no_core_of_the_caller(workspace: Path) -> None:
    """A signal that dumps core, pending when a command unblocks signals, doesn't write the caller's memory into the sandbox."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    if pattern.startswith(("|", "/")):
        pytest.skip(f"cores don't go to the working directory: {pattern}")

    def run() -> list[str]:
        os.setsid()
        signal.signal(signal.SIGQUIT, lambda *_: None)
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
        stop = threading.Event()

        def pester() -> None:
            while not stop.wait(0.0003):
                os.killpg(0, signal.SIGQUIT)

        thread = threading.Thread(target=pester)
        thread.start()
        policy = Policy.workspace(workspace)
        for _ in range(100):
            nsbox.run(["true"], policy=policy, cwd=workspace)
        stop.set()
        thread.join()
        return [name for name in os.listdir(workspace) if "core" in name]

    assert in_fork(run) == []
