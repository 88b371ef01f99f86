"""nsbox.asyncio on uvloop's event loop; asyncio's own loop is the control."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable

import pytest

import nsbox
import nsbox.asyncio
from nsbox import Policy
from nsbox.asyncio import PIPE

uvloop = pytest.importorskip("uvloop")

Run = Callable[[Awaitable[None]], None]


@pytest.fixture(scope="module", autouse=True)
def signal_pipe() -> None:
    """Have libuv make the pipe that it keeps for the whole process, which is no leak of a test's."""
    uvloop.new_event_loop().close()


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine to its end, on the event loop at hand."""
    return asyncio.run if request.param == "asyncio" else uvloop.run


def test_communicate(run: Run, policy: Policy) -> None:
    """More than a pipe holds goes in and comes out; stderr is apart, or with stdout."""

    async def main() -> None:
        p = await nsbox.asyncio.create_subprocess_exec("cat", stdin=PIPE, stdout=PIPE, stderr=PIPE, policy=policy)
        assert await p.communicate(b"x" * 300_000) == (b"x" * 300_000, b"")
        assert p.returncode == 0
        both = "echo one >&2; echo two"
        p = await nsbox.asyncio.create_subprocess_shell(both, stdout=PIPE, stderr=nsbox.asyncio.STDOUT, policy=policy)
        assert await p.communicate() == (b"one\ntwo\n", None)

    run(main())


def test_it_is_contained(run: Run, policy: Policy) -> None:
    """By policy=, and by the block around: the command is the second process of its namespace."""

    async def main() -> None:
        p = await nsbox.asyncio.create_subprocess_shell("echo $$; exit 3", stdout=PIPE, policy=policy)
        assert await p.communicate() == (b"2\n", None)
        assert (p.returncode, p.sandbox.pid) == (3, p.pid)
        with nsbox.confined(policy):
            p = await nsbox.asyncio.create_subprocess_shell("echo $$", stdout=PIPE)
        assert await p.communicate() == (b"2\n", None)

    run(main())


def test_dialogue(run: Run, policy: Policy) -> None:
    """Line by line, with the streams."""

    async def main() -> None:
        p = await nsbox.asyncio.create_subprocess_exec("cat", stdin=PIPE, stdout=PIPE, policy=policy)
        assert p.stdin is not None and p.stdout is not None
        for line in (b"first\n", b"second\n"):
            p.stdin.write(line)
            await p.stdin.drain()
            assert await p.stdout.readline() == line
        p.stdin.close()
        assert await p.wait() == 0

    run(main())


def test_wait_and_signals(run: Run, policy: Policy) -> None:
    """wait() as often as one likes; terminate() and kill() while it runs, without effect afterwards."""

    async def main() -> None:
        p = await nsbox.asyncio.create_subprocess_shell("exit 5", policy=policy)
        assert [await p.wait(), await p.wait()] == [5, 5]
        with contextlib.suppress(ProcessLookupError):  # as soon as the loop has forgotten the process
            p.kill()
        assert p.returncode == 5
        for end, number in (("terminate", signal.SIGTERM), ("kill", signal.SIGKILL)):
            p = await nsbox.asyncio.create_subprocess_exec("cat", stdin=PIPE, policy=policy)
            getattr(p, end)()
            assert await p.wait() == -number

    run(main())


@pytest.mark.parametrize("what", ["wait", "communicate"])
def test_timeout(run: Run, policy: Policy, what: str) -> None:
    """A wait that is given up leaves a process that can be killed, and with it what it has started."""

    async def main() -> None:
        p = await nsbox.asyncio.create_subprocess_shell("sleep 1000 & cat", stdin=PIPE, stdout=PIPE, policy=policy)
        waiting = p.wait() if what == "wait" else p.stdout.read()  # communicate() would close stdin, and so end it
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(waiting, 0.01)
        p.kill()
        assert await p.wait() == -signal.SIGKILL

    run(main())


def test_what_stays_behind_ends_with_the_command(run: Run, policy: Policy) -> None:
    """The end of the sandbox is the end of the command's output, also where a process in the background holds it."""

    async def main() -> None:
        p = await nsbox.asyncio.create_subprocess_shell("sleep 1000 & echo on", stdout=PIPE, policy=policy)
        assert await p.communicate() == (b"on\n", None)
        assert p.returncode == 0

    run(main())


def test_fifty_at_once(run: Run, policy: Policy) -> None:
    """Fifty commands of one event loop, each with its own output; no descriptor is left."""

    async def one(number: int) -> bytes:
        command = f"echo {number}; cat"
        p = await nsbox.asyncio.create_subprocess_shell(command, stdin=PIPE, stdout=PIPE, policy=policy)
        return (await p.communicate(b"end"))[0]

    async def main() -> None:
        await one(-1)
        before = len(os.listdir("/proc/self/fd"))
        assert await asyncio.gather(*map(one, range(50))) == [f"{n}\nend".encode() for n in range(50)]
        assert len(os.listdir("/proc/self/fd")) <= before

    run(main())


def test_failed_start(run: Run, policy: Policy) -> None:
    """A program that isn't there is FileNotFoundError; the loop goes on."""

    async def main() -> None:
        with pytest.raises(FileNotFoundError):
            await nsbox.asyncio.create_subprocess_exec("/nowhere/nothing", stdout=PIPE, policy=policy)
        p = await nsbox.asyncio.create_subprocess_exec("true", policy=policy)
        assert await p.wait() == 0

    run(main())


def test_cancelled_start(run: Run, policy: Policy) -> None:
    """A start that is cancelled leaves no process."""

    async def main() -> None:
        start = asyncio.ensure_future(nsbox.asyncio.create_subprocess_exec("sleep", "1000", policy=policy))
        await asyncio.sleep(0)  # its first step, in which the command starts
        assert start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start

    run(main())
