"""Session.kill_processes(): what commands left is gone, and the session goes on. And what the end of a Sandbox ends."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path

import pytest
from nsbox_testing.running import fill

import nsbox
from nsbox import Limits, Policy, Sandbox

FULL = Limits(processes=12)
NAMES = "for p in /proc/[0-9]*; do read -r name < $p/comm && echo $name; done"


@pytest.mark.parametrize("kind", ["session", "task"])
def test_the_session_goes_on(policy: Policy, kind: str) -> None:
    """Processes in sessions of their own end too; files and the kept shell stay."""
    with Sandbox(policy, stock=0) as box, getattr(box, kind)() as s:
        s.shell("cd /tmp; export A=1; echo x > y", keep=True)
        s.shell("setsid sleep 1000 >/dev/null 2>&1 & trap '' TERM; (sleep 1000) >/dev/null 2>&1 &")
        job = s.background("sleep 1000")
        running = s.Popen(["sleep", "1000"])
        while s.shell(NAMES).stdout.split().count("sleep") < 4:  # the control; a fork may not be in its execve(2) yet
            pass
        s.kill_processes()
        assert running.wait() == job.wait().returncode == -signal.SIGKILL
        assert s.shell(NAMES).stdout.split() == ["nsbox-init", "bash"]
        assert s.shell("echo $PWD $A; cat y", keep=True).stdout == "/tmp 1\nx\n"
        s.kill_processes()  # there is nothing


def test_after_a_fork_bomb(policy: Policy) -> None:
    """It needs no room for a process. Where there is none, the error names the limit, and what helps."""
    with Sandbox(policy.with_(limits=FULL), stock=0) as box, box.session() as s:
        fill(s)
        last = s.Popen(["sleep", "1000"])
        with pytest.raises(nsbox.ProcessesError, match=r"limits\.processes=12.*kill_processes\(\)"):
            s.exec("true")
        s.kill_processes()
        assert last.wait() == -signal.SIGKILL
        assert s.shell("(echo one; echo two) | cat").stdout == "one\ntwo\n"


def test_processes_that_fork_meanwhile(policy: Policy) -> None:
    """None is missed, however fast they fork."""
    with Sandbox(policy.with_(limits=Limits(processes=200)), stock=0) as box, box.session() as s:
        for _ in range(3):
            s.shell("f() { while :; do (f) & done; }; (f) >/dev/null 2>&1 & (f) >/dev/null 2>&1 &", timeout=60)
            s.kill_processes()
            assert s.shell(NAMES).stdout.split() == ["nsbox-init", "bash"]


def test_when_it_has_ended(policy: Policy) -> None:
    with Sandbox(policy, stock=0) as box:
        s = box.session()
        os.kill(s._open_way().pid, signal.SIGKILL)
        s.kill_processes()
        s.close()
        with pytest.raises(ValueError, match="the session is closed"):
            s.kill_processes()


def test_in_coroutines(policy: Policy) -> None:
    """The same, and the other methods of a session that wait."""

    async def main() -> None:
        async with nsbox.AsyncSandbox(policy) as box, box.session() as s:
            await s.shell("sleep 1000 >/dev/null 2>&1 &")
            while "sleep" not in [process.name() for process in await s.processes()]:  # until it has executed it
                await asyncio.sleep(0.01)
            await s.kill_processes()
            assert await s.processes() == []
            port = await s.publish(3000, 0)
            port.close()
            assert not s.has_ended

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["session", "task"])
def test_the_end_of_the_sandbox(policy: Policy, kind: str) -> None:
    """It ends its sessions: their home goes with it."""
    box = Sandbox(policy, stock=0)
    s = getattr(box, kind)()
    running = s.Popen(["sleep", "1000"])
    box.close()
    assert running.wait() == -signal.SIGKILL
    assert s.has_ended
    with pytest.raises(ValueError, match=r"is closed|is over"):
        s.shell("true")
    s.close()


def test_a_busy_task(policy: Policy) -> None:
    """An error of nsbox's own, which is a ValueError, says what runs and what to do."""
    with Sandbox(policy, stock=0) as box:
        with box.task() as task:
            task.shell("sleep 1000 >/dev/null 2>&1 &")
            for use in (task.commit, task.snapshot):
                with pytest.raises(nsbox.BusyError, match=r"still run: sleep; .*kill_processes\(\)") as caught:
                    use()
                assert isinstance(caught.value, ValueError) and isinstance(caught.value, nsbox.NsboxError)
            task.kill_processes()
            assert task.commit() == []
        with box.transaction() as tx:
            tx.background("sleep 1000")
            with pytest.raises(nsbox.BusyError, match="still run"):
                tx.commit()


@pytest.mark.parametrize("fails", [False, True])
def test_a_cancelled_commit(policy: Policy, workspace: Path, fails: bool) -> None:
    """It goes on to its end. The cancellation's cause says whether it failed."""

    async def main() -> BaseException | None:
        loop, is_cancelled = asyncio.get_running_loop(), threading.Event()

        def on_progress(*_: object) -> None:
            loop.call_soon_threadsafe(cancel)
            assert is_cancelled.wait(60)
            if fails:
                raise ZeroDivisionError

        def cancel() -> None:
            work.cancel()
            loop.call_soon(is_cancelled.set)

        async with nsbox.AsyncSandbox(policy) as box, box.task() as task:
            await task.shell("echo x > new", check=True)
            work = asyncio.ensure_future(task.commit(on_progress=on_progress))
            with pytest.raises(asyncio.CancelledError) as caught:
                await work
            assert task.has_ended is not fails
            return caught.value.__cause__

    cause = asyncio.run(main())
    assert isinstance(cause, ZeroDivisionError) if fails else cause is None
    assert (workspace / "new").exists() is not fails


def test_keep_is_for_sessions(policy: Policy) -> None:
    with (
        Sandbox(policy, stock=0) as box,
        pytest.raises(TypeError, match=r"keep=: shell\(\) of a session or a task does"),
    ):
        box.shell("true", keep=True)  # type: ignore[call-arg]


def test_the_workspace_is_what_it_was(policy: Policy, workspace: Path) -> None:
    """A task's changes survive it."""
    with Sandbox(policy, stock=0) as box, box.task() as task:
        task.shell("echo x > kept; sleep 1000 >/dev/null 2>&1 &")
        task.kill_processes()
        task.commit()
    assert (workspace / "kept").read_text() == "x\n"
