"""Sandbox: its beginning, its end, and all that happens to it between them."""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing.running import Orphans, in_fork
from nsbox_testing.warm import await_ready, is_refilled, output

import nsbox
from nsbox import Policy, Sandbox
from nsbox._kept import refill, tree
from nsbox._spawn import prepare


@pytest.fixture(params=[0, 2], ids=["anew", "ready"])
def box(request: pytest.FixtureRequest, policy: Policy) -> Iterator[Sandbox]:
    """A Sandbox whose commands have their copies made, or find one that is ready."""
    with Sandbox(policy, stock=request.param) as made:
        await_ready(made)
        yield made


def test_closed(policy: Policy) -> None:
    """It takes no commands any more; those that run go on. Closing twice is no error."""
    box = Sandbox(policy)
    with box, box.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        box.close()
        for call in (lambda: box.run(["true"]), box.start, box.update):
            with pytest.raises(ValueError, match="closed"):
                call()
        assert process.communicate(b"on")[0] == b"on"
    box.close()
    assert repr(box) == "<nsbox.Sandbox closed workspace>"


def test_wrong_arguments(policy: Policy) -> None:
    """They are refused with an error that says what is right."""
    for wrong in ({"policy": None}, {"policy": "workspace"}):
        with pytest.raises(TypeError, match=r"must be nsbox\.Policy"):
            Sandbox(**wrong)
    for stock in (-1, 65, True, "2", None):
        with pytest.raises(ValueError, match="0 to 64"):
            Sandbox(policy, stock=stock)
    with pytest.raises(nsbox.PolicyError, match="mode: 'off' is unknown"):
        Sandbox(policy, mode="off")


def test_closed_while_something_is_made(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one thread has just made, to be kept, is let go of by another one's close(): nobody makes copies of it."""
    box = Sandbox(policy)
    way, make, made = box._way, box._way._make, []
    closer = threading.Thread(target=box.close)

    def make_slowly(prepared: Any) -> Any:
        made.append(make(prepared))
        closer.start()
        while not way._is_closed:
            os.sched_yield()
        return made[0]

    monkeypatch.setattr(way, "_make", make_slowly)
    box.start()
    closer.join()
    assert way._kept is None
    assert made[0].stale
    assert not is_refilled(made[0])


def test_nothing_is_made_when_it_is_closed(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that gets the lock only after close() makes nothing."""

    class Lock:
        def __enter__(self) -> None:
            way._is_closed = True  # as close() does before it waits for the lock

        def __exit__(self, *_: object) -> None:
            pass

    box = Sandbox(policy)
    way = box._way
    monkeypatch.setattr(way, "_make", lambda prepared: pytest.fail("it was made"))
    monkeypatch.setattr(way, "_lock", Lock())
    box.start()
    box.close()
    assert way._kept is None


def test_unclosed(policy: Policy) -> None:
    """One that is forgotten says so, and leaves nothing behind. One that has never been used is no matter."""
    box = Sandbox(policy).start()
    await_ready(box)
    with pytest.warns(ResourceWarning, match=r"unclosed <nsbox\.Sandbox enabled workspace>"):
        del box
        gc.collect()
    Sandbox(policy)
    gc.collect()


@pytest.mark.vm
@pytest.mark.parametrize("stock", [0, 2])
def test_fork(policy: Policy, stock: int) -> None:
    """A forked child uses it too, by something of its own, and its end is not the parent's business."""
    with Sandbox(policy, stock=stock) as box:
        await_ready(box)
        kept = box._way._kept
        ready = [made.result.init_pid for made in kept._ready] if kept is not None else []

        def use() -> None:
            assert box._way._kept is None
            assert output(box, "echo", "child") == "child\n"
            box.close()

        in_fork(use)
        assert all(os.path.exists(f"/proc/{pid}") for pid in ready)
        assert box._way._kept is kept
        assert output(box, "echo", "parent") == "parent\n"


def test_forks_meanwhile(box: Sandbox) -> None:
    """Whenever this process forks, what its commands run in isn't ended by the child."""
    for _ in range(15):
        with box.Popen(["sh", "-c", "sleep 0.01; exit 3"]) as process:
            for _ in range(3):
                pid = os.fork()
                if pid == 0:
                    os._exit(0)
                os.waitpid(pid, 0)
        assert process.returncode == 3


def test_no_thread(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no thread can be started, commands have their copies made."""

    def start_new_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(tree, "_refiller", tree.Refiller())  # without a thread of an earlier test
    monkeypatch.setattr(refill, "start_new_thread", start_new_thread)
    with Sandbox(policy) as box:
        for _ in range(3):
            assert output(box, "echo", "on") == "on\n"
        assert box._way._kept is not None
        assert box._way._kept._ready == []


def tasks() -> int:
    return len(os.listdir("/proc/self/task"))


def test_the_thread_ends(policy: Policy) -> None:
    """The thread that makes copies ends soon if there is nothing to do; all boxes share one."""

    def await_end() -> None:
        end = time.monotonic() + 10
        while tasks() > 1 and time.monotonic() < end:
            time.sleep(0.01)
        assert tasks() == 1

    await_end()  # of an earlier test's
    with Sandbox(policy) as one, Sandbox(policy.with_(network="host")) as two:
        for box in (one, two, one):
            assert output(box, "echo", "on") == "on\n"
            assert await_ready(box) and tasks() <= 2
        await_end()
        assert output(one, "echo", "on") == "on\n"
        assert await_ready(one)


def test_copies_whose_descriptors_do_not_come(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of which something is missing is ended, and commands have theirs made."""
    made, come = tree.made, [0]

    def interrupted(*arguments: Any) -> Any:
        come[0] += 1
        if come[0] > 1:
            raise OSError("nothing came")
        return made(*arguments)

    monkeypatch.setattr(tree, "made", interrupted)
    with Sandbox(policy) as box:
        while come[0] < 2:  # they are made in a thread
            assert output(box, "echo", "on") == "on\n"
        assert output(box, "echo", "on") == "on\n"


def test_another_plan_for_the_policy(box: Sandbox) -> None:
    """What is kept is for what the policy came to; if that is something else now (ids, a machine's facts), it goes."""
    assert output(box, "echo", "on") == "on\n"
    before = box._way._kept
    prepare.forget()
    assert output(box, "echo", "on") == "on\n"
    assert box._way._kept is not before


def test_ready_ones_that_are_killed(policy: Policy) -> None:
    """Whatever happens to a sandbox that waits, the next command runs."""
    with Sandbox(policy) as box:
        for _ in range(5):
            await_ready(box)
            kept = box._way._kept
            assert kept is not None
            for made in kept._ready:
                os.kill(made.result.init_pid, signal.SIGKILL)
                select.select([made.result.init_pidfd], [], [])
            assert box.check_output(["echo", "on"]) == b"on\n"


@pytest.mark.parametrize(
    "end", ["sys.exit()", "os._exit(0)", "os.kill(os.getpid(), 9)", "os.execv('/bin/true', ['true'])"]
)
def test_end_of_the_caller(workspace: Path, orphans: Orphans, end: str) -> None:
    """With it ends all that is kept, is ready, or runs."""
    code = f"""
import nsbox, os, sys, time
box = nsbox.Sandbox(nsbox.Policy.workspace(sys.argv[1]), stock=3).start()
running = [box.Popen(["sleep", "1000"]) for _ in range(3)]
time.sleep(0.05)
{end}
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, workspace], cwd=workspace, check=False)
    orphans.reap()


@pytest.mark.parametrize("after", [0.0, 0.001, 0.003, 0.01, 0.03, 0.1])
def test_caller_killed_with_fifty_commands(workspace: Path, orphans: Orphans, after: float) -> None:
    """At whatever moment that is."""
    code = """
import nsbox, sys
box = nsbox.Sandbox(nsbox.Policy.workspace(sys.argv[1]), stock=4).start()
running = [box.Popen(["sleep", "1000"]) for _ in range(20)]
print("up", flush=True)
running += [box.Popen(["sleep", "1000"]) for _ in range(30)]
sys.stdin.read()
"""
    command = [sys.executable, "-c", code, workspace]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=workspace) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        time.sleep(after)
        process.kill()
    orphans.reap()


def test_threads(policy: Policy) -> None:
    """Eight threads share one, and each command is a child of this process."""
    with Sandbox(policy, stock=3) as box:
        results: list[bytes] = []

        def work(i: int) -> None:
            results.extend(box.check_output(["echo", f"{i} {j}"]) for j in range(10))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(results) == sorted(f"{i} {j}\n".encode() for i in range(8) for j in range(10))


def test_a_thousand_at_once(policy: Policy) -> None:
    """All run, each in a copy, and all end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip(f"this process may have {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with Sandbox(policy.with_(network="host")) as box:
            processes = [box.Popen(["sleep", "1000"]) for _ in range(1000)]
            assert sum(process.sandbox.is_warm for process in processes) > 900
            for process in processes:
                process.kill()
            assert {process.wait() for process in processes} == {-signal.SIGKILL}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_nothing_grows(policy: Policy) -> None:
    """After many commands this process has the memory and the descriptors that it had after some."""

    def used() -> tuple[int, int]:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]), len(os.listdir("/proc/self/fd"))

    with Sandbox(policy) as box:
        for _ in range(150):
            box.call(["true"])
        await_ready(box)
        pages, descriptors = used()
        for _ in range(150):
            box.call(["true"])
        await_ready(box)
        more, now = used()
    assert more - pages < 256
    assert now <= descriptors + 8  # what is ready just then


LIMITED = """
import nsbox, os, sys, time
with open(f"/proc/sys/user/max_{sys.argv[1]}_namespaces", "w") as file:
    file.write(sys.argv[2])
seen = set()
box = nsbox.Sandbox(nsbox.Policy.workspace(os.getcwd()))
for i in range(4):
    try:
        seen.add(box.run(["true"]).returncode)
    except OSError as error:
        seen.add(type(error).__name__)
    time.sleep(0.003)
box.close()
print(*sorted(map(str, seen)))
"""


@pytest.mark.parametrize("name", ["user", "mnt", "pid", "net"])
def test_namespaces_used_up(policy: Policy, name: str) -> None:
    """With a few of a kind allowed: commands run, or the error is one that there is without a Sandbox."""
    for limit in (1, 3, 5, 8, 60):
        # In a user namespace of its own, whose limits are those of this test alone (namespaces(7)).
        command = ["unshare", "-U", "-r", "--", sys.executable, "-c", LIMITED, name, str(limit)]
        done = subprocess.run(command, cwd=policy.workdir, capture_output=True, text=True)
        if "unshare failed" in done.stderr:
            pytest.skip(done.stderr)
        assert done.stderr == ""
        assert set(done.stdout.split()) <= {"0", "SetupError", "UnavailableError"}
    assert done.stdout == "0\n"


@pytest.mark.parametrize("left", [3, 6, 9, 12, 16, 20, 30])
def test_few_descriptors(policy: Policy, left: int) -> None:
    """With however few descriptors: an error that says so, or a command that runs; nothing is left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
    box = Sandbox(policy)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + left, hard))
    try:
        for _ in range(4):
            try:
                assert box.run(["true"], stdin=subprocess.DEVNULL).returncode == 0
            except OSError as error:
                assert "Too many open files" in str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        box.close()


def test_copies_are_encoded_once(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent to the C core for a copy is the same each time, and so are the files that it is compared with."""
    with Sandbox(policy, stock=0) as box:
        box.run(["true"], check=True)
        kept = box._open_way()._kept
        assert kept is not None
        monkeypatch.setattr(tree, "request_for", None)
        first, second = kept._park(), kept._park()
        assert first.stamps is not second.stamps
        rows = [[(s.source_dev, s.source_ino, s.dev, s.ino) for s in one.stamps.array] for one in (first, second)]
        assert rows[0] == rows[1] and any(map(any, rows[0]))  # all that is watched is the kept sandbox's


def test_what_python_does_for_a_command(policy: Policy) -> None:
    """How many functions of nsbox's a command calls: 104, and 110 for root. They are most of what Python's time is."""
    calls: list[str] = []

    def count(frame: Any, event: str, _: object) -> None:
        if event == "call" and os.path.dirname(frame.f_code.co_filename) == os.path.dirname(nsbox.__file__):
            calls.append(frame.f_code.co_qualname)

    with Sandbox(policy) as box:
        found = []
        for _ in range(5):
            await_ready(box)
            calls.clear()
            sys.setprofile(count)
            try:
                box.run(["/bin/true"])
            finally:
                sys.setprofile(None)
            found.append(len(calls))
        assert min(found) <= 120, calls
