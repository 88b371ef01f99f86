"""AsyncSandbox: a Sandbox for coroutines, under asyncio, trio, and anyio on either of them.

    async with nsbox.AsyncSandbox(policy) as box:
        async for event in box.stream("npm test"):
            print(event.text, end="")
        result = await asyncio.wait_for(box.shell("make"), 30)

If a task is cancelled, its command is ended first: SIGTERM, the grace time, SIGKILL. The cancellation goes on only when
nothing of the command is left.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from nsbox._calls.token import CancelToken
from nsbox._handles import waiting
from nsbox._handles.async_calls import AsyncCalls, Beginning
from nsbox._handles.async_files import AsyncFileTools
from nsbox._handles.async_stream import AsyncJob, AsyncStream
from nsbox._handles.dispatch import call_tool
from nsbox.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, Unpack

    import psutil

    from nsbox._calls.record import ToolResult
    from nsbox._kept.commands import Commands
    from nsbox._kept.tool_calls import StreamOptions, ToolOptions
    from nsbox._network.events import NetworkEvent
    from nsbox._policy.policy import Policy
    from nsbox._relay.asks import OnConnect
    from nsbox._relay.ports import Published
    from nsbox._transaction.change import Change
    from nsbox.async_python import AsyncPython
    from nsbox.session import Session
    from nsbox.task import Snapshot, Task

__all__ = ["AsyncSandbox", "AsyncSession", "AsyncTask"]


class AsyncCommands(AsyncCalls, AsyncFileTools):
    """The tool calls and file tools of a Sandbox or Session, for coroutines."""

    _commands: Commands

    async def shell(
        self,
        command: str,
        *,
        shell_path: str | os.PathLike[str] | None = None,
        check: bool = False,
        **options: Unpack[ToolOptions],
    ) -> ToolResult:
        """Run a command line and return its ToolResult, as Sandbox.shell(). on_output is called in a thread."""
        options_ = {**options, "shell_path": shell_path, "check": check}
        return await self._result(partial(self._commands.shell, command), options_)

    async def exec(
        self, program: str, args: Sequence[str] = (), *, check: bool = False, **options: Unpack[ToolOptions]
    ) -> ToolResult:
        """Run a program and return its ToolResult, as Sandbox.exec(). on_output is called in a thread."""
        return await self._result(partial(self._commands.exec, program, args), {**options, "check": check})

    def stream(self, command: str | Sequence[str], **options: Unpack[StreamOptions]) -> AsyncStream:
        """Return an AsyncStream of what a command prints, for `async for`; see Sandbox.stream().

        The command starts at once. If it can't be started, the first step of the loop raises the error.
        """
        commands = self._commands
        return AsyncStream(commands._call_of(command, {**options}), commands._threads().start)

    async def background(self, command: str | Sequence[str], **options: Unpack[StreamOptions]) -> AsyncJob:
        """Start a command in the background and return its AsyncJob; see Sandbox.background()."""
        return AsyncJob(
            await waiting.in_thread(partial(self._commands.background, command, **options), undo=lambda job: job.kill())
        )

    async def call_tool(self, name: str, arguments: Mapping[str, Any] | str, **options: Any) -> dict[str, Any]:
        """Carry out a model's call, as nsbox.call_tool(). If the task is cancelled, the command is ended first."""
        token = CancelToken()
        call = partial(call_tool, self._commands, name, arguments, **{"cancel": token, **options})
        return await waiting.in_thread(call, token.cancel)

    def jobs(self) -> list[AsyncJob]:
        """Return the jobs that run, and the last 100 that have ended, oldest first."""
        return [AsyncJob(job) for job in self._commands.jobs()]

    def job(self, number: int) -> AsyncJob:
        """Return the job with a number: one of jobs(). Raises LookupError if there is none, and TypeError."""
        return AsyncJob(self._commands.job(number))


class AsyncSession(AsyncCommands):
    """One sandbox for many commands, for coroutines. AsyncSandbox.session() makes it; see Session.

    session: the Session itself, for methods that don't wait.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.session = self._commands = session

    @property
    def has_ended(self) -> bool:
        """Whether nothing can run in it any more; as Session.has_ended."""
        return self.session.has_ended

    async def processes(self) -> list[psutil.Process]:
        """Return the processes that run in it now; as Session.processes(), which needs psutil."""
        return await waiting.in_thread(self.session.processes)

    async def kill_processes(self) -> None:
        """Kill everything that runs in it, and return when it is gone; as Session.kill_processes()."""
        await waiting.in_thread(self.session.kill_processes)

    async def publish(self, port: int, to: int | str | None = None) -> Published:
        """Return a Published port for a server in it; as Session.publish()."""
        return await waiting.in_thread(partial(self.session.publish, port, to), undo=lambda port: port.close())

    async def __aenter__(self) -> AsyncSession:
        self.session._open_way()
        return self


class AsyncTask(AsyncSession):
    """A sandbox for the length of a task, for coroutines. AsyncSandbox.task() makes it; see Task.

    task: the Task itself, for methods that don't wait.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.task = task

    async def diff(self) -> list[Change]:
        """Return the changes to the workspace; as Task.diff()."""
        return await waiting.in_thread(self.task.diff)

    async def patch(self, *, max_size: int | str = "1M", escaped: bool = False) -> str:
        """Return the changes to the workspace as a unified diff; as Task.patch()."""
        return await waiting.in_thread(partial(self.task.patch, max_size=max_size, escaped=escaped))

    async def commit(
        self,
        *,
        expected: Iterable[Change] | None = None,
        keep_set_ids: bool = False,
        on_progress: Callable[[int, int, str], None] | None = None,
    ) -> list[Change]:
        """Bring the changes into the workspace, all or none; as Task.commit(), with on_progress called in a thread."""
        commit = partial(self.task.commit, expected=expected, keep_set_ids=keep_set_ids, on_progress=on_progress)
        return await waiting.in_thread(commit)

    async def snapshot(self, *, max_size: int | str = "4G") -> Snapshot:
        """Return a Snapshot of all that commands have written; as Task.snapshot()."""
        take = partial(self.task.snapshot, max_size=max_size)
        return await waiting.in_thread(take, undo=lambda snapshot: snapshot.drop())

    async def reset(self, snapshot: Snapshot | None = None) -> None:
        """Go back to a snapshot, or to the beginning; as Task.reset()."""
        await waiting.in_thread(partial(self.task.reset, snapshot))


class AsyncSandbox(AsyncCommands):
    """A Sandbox for coroutines. Methods that wait are coroutines here, with the same parameters and errors.

    sandbox: the Sandbox itself, for methods that don't wait; its create_subprocess_exec() is for asyncio.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        mode: str = "enabled",
        stock: int = 2,
        on_connect: OnConnect | None = None,
        on_network: Callable[[NetworkEvent], object] | None = None,
    ) -> None:
        """Hold the policy; nothing happens before `async with`, start() or the first command.

        policy: what commands may do.
        mode, stock, on_connect, on_network: as for Sandbox, whose errors it raises.
        """
        self.sandbox = self._commands = Sandbox(
            policy, mode=mode, stock=stock, on_connect=on_connect, on_network=on_network
        )
        super().__init__(self.sandbox)

    async def start(self) -> AsyncSandbox:
        """Make what the first command would have to wait for, as Sandbox.start(); return this AsyncSandbox."""
        await waiting.in_thread(self.sandbox.start)
        return self

    def session(self) -> Beginning[AsyncSession]:
        """Begin a session: `async with box.session() as s`, or `s = await box.session()`. See Sandbox.session()."""
        return Beginning(self.sandbox.session, AsyncSession, lambda session: session.close())

    def task(
        self, workspace: str | os.PathLike[str] | None = None, *, dir: str | os.PathLike[str] | None = None
    ) -> Beginning[AsyncTask]:
        """Begin a task: `async with box.task() as task`, or `task = await box.task()`. See Sandbox.task()."""
        make = partial(self.sandbox.task, workspace, dir=dir)
        return Beginning(make, AsyncTask, lambda task: task.close())

    def python(
        self,
        *,
        python: str | os.PathLike[str] | None = None,
        imports: Sequence[str] = (),
        setup: str = "",
        stock: int = 2,
        start_timeout: float = 60.0,
        overlay: bool = False,
    ) -> AsyncPython:
        """Return an AsyncPython, which runs Python code under this policy. See Sandbox.python()."""
        from nsbox.async_python import AsyncPython as OwnPython

        made = self.sandbox.python(
            python=python, imports=imports, setup=setup, stock=stock, start_timeout=start_timeout, overlay=overlay
        )
        return OwnPython(made)

    async def __aenter__(self) -> AsyncSandbox:
        return await self.start()

    def __repr__(self) -> str:
        return f"<nsbox.AsyncSandbox of {self.sandbox!r}>"
