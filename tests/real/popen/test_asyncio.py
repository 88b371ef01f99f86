"""nsbox.asyncio: the face of asyncio's subprocess functions, contained; and asyncio's own functions in a confined block."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import psutil
import pytest
from nsbox_testing.running import in_fork, python

import nsbox
from nsbox import Policy
from nsbox._core import orphans
from nsbox.asyncio import PIPE, STDOUT, Process, create_subprocess_exec, create_subprocess_shell

Loop = Callable[[], asyncio.AbstractEventLoop]
LOOPS: dict[str, Loop] = {"default": asyncio.new_event_loop}
try:
    import uvloop

    LOOPS["uvloop"] = uvloop.new_event_loop
    uvloop.new_event_loop().close()  # the first one opens a pipe that stays: libuv's, for signals
except ImportError:
    pass


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Awaitable[Any]], Any]:
    """Run a coroutine on a fresh event loop, for at most a minute; nothing may be left on the loop."""

    def run(main: Awaitable[Any]) -> Any:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            return runner.run(asyncio.wait_for(main, 60))  # type: ignore[arg-type]

    return run


async def output(process: Process, text: bytes | None = None) -> tuple[bytes, bytes, int | None]:
    out, err = await process.communicate(text)
    return out, err, process.returncode


def test_exec(run: Any, chosen: Policy) -> None:
    """stdin, stdout, stderr, the exit status; it is contained, and says by what."""

    async def main() -> None:
        code = "import os, sys; print(os.getpid(), sys.stdin.read()); print('err', file=sys.stderr); sys.exit(7)"
        process = await create_subprocess_exec(*python(code), stdin=PIPE, stdout=PIPE, stderr=PIPE, policy=chosen)
        assert isinstance(process, asyncio.subprocess.Process)
        assert process.sandbox.backend == "namespaces"
        assert process.sandbox.usage is None
        assert await output(process, b"in") == (b"2 in\n", b"err\n", 7)
        usage = process.sandbox.usage
        assert usage is not None and usage.is_complete and usage.cause == "exit"

    run(main())


def test_shell(run: Any, chosen: Policy) -> None:
    """A command line of the shell, with stderr in stdout."""

    async def main() -> None:
        process = await create_subprocess_shell("echo $$ $A; echo err >&2", stdout=PIPE, stderr=STDOUT, policy=chosen)
        assert (await process.communicate())[0].startswith(b"2")
        assert process.returncode == 0

    run(main())


def test_default_policy(run: Any, workspace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a policy it is the workspace of the current directory, or that of the confined() block."""
    monkeypatch.chdir(workspace)

    async def main() -> None:
        process = await create_subprocess_exec("pwd", stdout=PIPE)
        assert (await output(process))[0] == os.fsencode(workspace) + b"\n"
        assert process.sandbox.plan.namespaces >= {"net"}

    run(main())


def test_streams(run: Any, chosen: Policy) -> None:
    """Reading and writing line by line; more than any buffer holds in both directions."""

    async def main() -> None:
        process = await create_subprocess_exec("cat", stdin=PIPE, stdout=PIPE, policy=chosen)
        assert process.stdin is not None and process.stdout is not None
        for line in (b"one\n", b"two\n"):
            process.stdin.write(line)
            await process.stdin.drain()
            assert await process.stdout.readline() == line
        big = os.urandom(1 << 20)
        assert await output(process, big) == (big, None, 0)

    run(main())


def test_wait_means_the_sandbox(run: Any, chosen: Policy) -> None:
    """wait() returns when all that the command has left behind is gone too, and it doesn't last until it ends by itself."""
    code = "import os, time\nif os.fork() == 0:\n os.setsid(); time.sleep(10000)"

    async def main() -> None:
        process = await create_subprocess_exec(*python(code), policy=chosen)
        assert await process.wait() == 0
        assert process.sandbox.processes() == []

    run(main())


def test_goes_on_with_kill_on_exit_false(run: Any, chosen: Policy) -> None:
    """kill_on_exit=False is passed on, as all options of Popen."""
    code = "import os, sys\nif os.fork() == 0:\n os.setsid(); sys.stdin.read(); print('late')"

    async def main() -> None:
        process = await create_subprocess_exec(
            *python(code), stdin=PIPE, stdout=PIPE, policy=chosen, kill_on_exit=False
        )
        popen, init = process._transport.get_extra_info("subprocess"), process.sandbox.init_pid  # type: ignore[attr-defined]
        while popen.poll() is None:
            await asyncio.sleep(0)
        assert await output(process, b"") == (b"late\n", None, 0)
        with contextlib.suppress(psutil.NoSuchProcess):  # other code has reaped it
            while psutil.Process(init).status() != psutil.STATUS_ZOMBIE:
                await asyncio.sleep(0)
        orphans.leftovers.sweep()  # or the end of the next sandbox

    run(main())


@pytest.mark.parametrize("how", ["kill", "terminate", "send_signal"])
def test_signals(run: Any, chosen: Policy, how: str) -> None:
    """Signals reach the command, and its end by one is seen as such."""

    async def main() -> None:
        process = await create_subprocess_exec("cat", stdin=PIPE, policy=chosen)
        number = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM, "send_signal": signal.SIGUSR1}[how]
        getattr(process, how)(*([number] if how == "send_signal" else []))
        assert await process.wait() == -number
        with pytest.raises(ProcessLookupError):
            process.kill()

    run(main())


def test_timeout(run: Any, chosen: Policy) -> None:
    """asyncio.wait_for() around wait(), then kill()."""

    async def main() -> None:
        process = await create_subprocess_exec("cat", stdin=PIPE, policy=chosen)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(process.wait(), 0.01)
        process.kill()
        assert await process.wait() == -9

    run(main())


def test_many(run: Any, chosen: Policy) -> None:
    """Fifty at a time, each with its own output and status."""

    async def one(number: int) -> tuple[bytes, bytes, int | None]:
        return await output(
            await create_subprocess_exec("sh", "-c", f"echo {number}; exit {number}", stdout=PIPE, policy=chosen)
        )

    async def main() -> None:
        found = await asyncio.gather(*(one(number) for number in range(50)))
        assert found == [(b"%d\n" % number, None, number) for number in range(50)]

    run(main())


def test_cancelled(run: Any, chosen: Policy) -> None:
    """A task that is cancelled at any step leaves no process: the transport kills it when it is closed."""

    async def start() -> None:
        process = await create_subprocess_exec("cat", stdin=PIPE, stdout=PIPE, policy=chosen)
        await process.communicate()

    async def main() -> None:
        for steps in range(6):
            task = asyncio.create_task(start())
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        gc.collect()

    run(main())


def test_loop_closed_before_the_end(run: Any, chosen: Policy) -> None:
    """A loop that ends before its commands leaves no descriptor; the commands' own end is then Popen's business."""
    found: list[Any] = []

    async def main() -> None:
        process = await create_subprocess_exec("cat", policy=chosen, stdin=subprocess.DEVNULL if found else fd)
        found.append(process._transport.get_extra_info("subprocess"))  # type: ignore[attr-defined]

    fd, write = os.pipe()
    with pytest.warns(ResourceWarning, match="unclosed transport"):
        run(main())
        gc.collect()
    os.close(fd)
    os.close(write)
    assert found.pop().wait() == -9


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"text": True}, ValueError),
        ({"universal_newlines": True}, ValueError),
        ({"encoding": "utf-8"}, ValueError),
        ({"errors": "strict"}, ValueError),
        ({"bufsize": 1}, ValueError),
        ({"shell": True}, ValueError),
        ({"policy": "workspace"}, TypeError),
        ({"cwd": "/nonexistent"}, FileNotFoundError),
        ({"nonsense": 1}, TypeError),
    ],
)
def test_wrong_options(run: Any, policy: Policy, options: dict[str, Any], error: type[Exception]) -> None:
    """As asyncio's: no text; and what Popen raises."""

    async def main() -> None:
        with pytest.raises(error):
            await create_subprocess_exec("true", **{"policy": policy, **options})

    run(main())


def test_missing_program(run: Any, chosen: Policy) -> None:
    """FileNotFoundError, and nothing is left."""

    async def main() -> None:
        with pytest.raises(FileNotFoundError):
            await create_subprocess_exec("/nonexistent", stdin=PIPE, stdout=PIPE, policy=chosen)
        with pytest.raises(ValueError, match="string"):
            await create_subprocess_shell(["true"])  # type: ignore[arg-type]

    run(main())


def test_in_a_thread(chosen: Policy) -> None:
    """An event loop of another thread than the main one; asyncio's own old watchers couldn't."""
    found: list[int] = []

    async def main() -> None:
        found.append(await (await create_subprocess_exec("true", policy=chosen)).wait())

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    thread.join()
    assert found == [0]


def test_nested(chosen: Policy) -> None:
    """With nested=True, where the end of the sandbox is awaited in another way."""

    async def main() -> int | None:
        return await (await create_subprocess_exec("true", policy=chosen.with_(nested=True))).wait()

    assert asyncio.run(main()) == 0


def test_asyncio_itself_waits_for_the_sandbox(chosen: Policy) -> None:
    """When asyncio's own child watcher has reaped the command, what that has left behind is ended before wait() returns."""

    def confined() -> int:
        async def main() -> int:
            alive = 0
            for _ in range(20):
                with nsbox.confined(chosen):
                    process = await asyncio.create_subprocess_exec("sh", "-c", "sleep 1000 & sleep 1000 &")
                popen = process._transport.get_extra_info("subprocess")  # type: ignore[attr-defined]
                init = popen.sandbox.init_pid
                await process.wait()
                with contextlib.suppress(psutil.NoSuchProcess):
                    alive += len(psutil.Process(init).children())
            return alive

        return asyncio.run(main())

    assert in_fork(confined) == 0


def test_asyncio_itself_in_a_confined_block(chosen: Policy) -> None:
    """asyncio's own functions, unmodified: contained in the block, in the tasks that it starts too, and not outside."""

    def confined() -> list[str]:
        async def pid() -> str:
            process = await asyncio.create_subprocess_exec("sh", "-c", "echo $$", stdout=PIPE)
            return (await process.communicate())[0].decode().strip()

        async def main() -> list[str]:
            before = await pid()
            with nsbox.confined(chosen):
                inside = [await pid(), *await asyncio.gather(pid(), pid())]
                task = asyncio.create_task(pid())
            return [*inside, await task, "contained" if before == "2" or await pid() == "2" else "plain"]

        return asyncio.run(main())

    assert in_fork(confined) == ["2", "2", "2", "2", "plain"]
