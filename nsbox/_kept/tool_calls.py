"""The tool calls that a Sandbox, a session and a transaction have in common."""

from __future__ import annotations

from functools import partial

from nsbox._base.display import type_phrase
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._spawn.way import Keeper
from nsbox._tools.arguments import check_flags, check_word

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, TypedDict, Unpack

    from nsbox._calls.call import Call
    from nsbox._calls.record import ToolResult
    from nsbox._calls.token import CancelToken
    from nsbox._handles.job import Job
    from nsbox._handles.stream import Stream, StreamEvent
    from nsbox._handles.worker import Workers
    from nsbox._popen.popen import Popen as AnyPopen
    from nsbox.secrets import Secret, Store

    class CallOptions(TypedDict, total=False):
        """What every tool call takes besides the command."""

        timeout: float | None
        grace: float
        cwd: str | None
        env: Mapping[str, str] | None
        input: str | bytes | None
        secrets: Store | Mapping[str, Secret | str] | None
        max_output: int | str
        cancel: CancelToken | None

    class ToolOptions(CallOptions, total=False):
        """What shell() and exec() take besides the command."""

        on_output: Callable[[StreamEvent], object] | None

    class StreamOptions(CallOptions, total=False):
        """What stream() and background() take besides the command."""

        shell_path: str | os.PathLike[str] | None
        open_stdin: bool
        pty: bool | tuple[int, int]


class ToolCalls(Keeper):
    """Starts commands for the tools of an agent."""

    if TYPE_CHECKING:

        def Popen(self, *args: Any, **options: Any) -> AnyPopen[Any]:
            """Start a command; a subclass does it."""

    def shell(
        self,
        command: str,
        *,
        shell_path: str | os.PathLike[str] | None = None,
        check: bool = False,
        **options: Unpack[ToolOptions],
    ) -> ToolResult:
        """Run a command line of the shell to its end, and return what it did in one record, for the tool of an agent.

        The shell is bash if the sandbox has it, else /bin/sh. The record's `shell` says which.

        command: the line.
        shell_path: another shell, as a path in the sandbox, which reads a line after -c. Default: None, for the
            policy's.
        timeout: seconds from the command's start, after which everything is ended. Default: None, for no limit.
        grace: seconds from SIGTERM to SIGKILL then, from 0 to 600. Default: 2.
        cwd: a directory in the sandbox; a relative path counts from the policy's workdir. Default: None, for the
            workdir.
        env: a mapping of variables, in addition to the built environment. Those by which programs execute others' code
            (LD_PRELOAD, BASH_ENV, ...) raise PolicyError.
        input: str or bytes, which the command reads from stdin. Default: None, for an empty stdin.
        secrets: a store, or a mapping of names and values: more variables. Their values are masked in the output
            (nsbox.leaks.Scrubber says in which forms).
        max_output: how much of stdout, and of stderr, is kept, in bytes or as a str with a unit: the first and the last
            half of that. The rest isn't held in memory.
        cancel: a CancelToken, which ends the command as `timeout` does; then the record has cause "cancelled". Default:
            None.
        on_output: a function that is called with each StreamEvent while the command runs, in this thread. If it raises
            an error, the command is killed, and the error is raised here. Default: None.
        check: whether to raise CalledProcessError for a status that isn't 0. Default: False.

        Unless check is true, a command that fails or takes too long is no exception, but a ToolResult. Raises
        ValueError, AccessError for a cwd outside of the sandbox, KillError if the command doesn't end when it is
        killed, and what Popen raises about the sandbox.
        """
        if not isinstance(command, str):
            raise TypeError(f"command is {type_phrase(command)}, must be a str; for a list: exec(program, args)")
        check_word("command", command)
        from nsbox._tools import shell as tools_shell

        more: Any = {"shells": tools_shell.shells(self._open_way().policy, shell_path)}
        return self._tool(["-c", command], command, check, options | more)

    def exec(
        self, program: str, args: Sequence[str] = (), *, check: bool = False, **options: Unpack[ToolOptions]
    ) -> ToolResult:
        """Run a program with arguments to its end, and return what it did; as shell(), but without a shell."""
        if not isinstance(program, str):
            raise TypeError(f"program is {type_phrase(program)}, must be a str; its arguments go into args")
        if not isinstance(args, list | tuple) or not all(isinstance(arg, str) for arg in args):
            raise TypeError(f"args is {args!r:.100}, must be a list of str")
        for name, word in (("program", program), *(("args", arg) for arg in args)):
            check_word(name, word)
        return self._tool([program, *args], [program, *args], check, options)

    def _tool(self, argv: list[str], shown: Any, check: bool, options: Any) -> ToolResult:
        check_flags(check=check)
        result = self._call(argv, shown, options)().run()
        if check:
            result.check_returncode()
        return result

    def _call(self, argv: list[str], shown: Any, options: Any) -> Callable[..., Call]:
        """Return what makes a tool call; its caller may add options."""
        from nsbox._calls.call import Call as OwnCall

        on_output = options.get("on_output")
        options = {name: value for name, value in options.items() if name != "on_output"}
        if on_output is not None:
            from nsbox._handles.stream import sink

            options["sink"] = sink(on_output)
        way = self._open_way()
        return partial(OwnCall, self.Popen, way.policy, argv, shown, exists=way.exists, **options)

    def _call_of(self, command: str | Sequence[str], options: Any) -> Callable[..., Call]:
        """Return what makes a tool call of a command line, or of a program and its arguments."""
        if "on_output" in options:
            raise TypeError("on_output is for shell() and exec(): a stream yields the events, a job has output()")
        path = options.pop("shell_path", None)
        if isinstance(command, str):
            from nsbox._tools import shell as tools_shell

            check_word("command", command)
            shells = tools_shell.shells(self._open_way().policy, path)
            return self._call(["-c", command], command, options | {"shells": shells})
        if not isinstance(command, list | tuple) or not command or not all(isinstance(word, str) for word in command):
            raise TypeError(f"command is {command!r:.100}, must be a line for the shell, or a list of str")
        for word in command:
            check_word("command", word)
        if path is not None:
            raise ValueError("shell_path: a program and its arguments are read by no shell")
        return self._call([*command], [*command], options)

    _workers: Workers | None = None
    _jobs: tuple[Job, ...] = ()

    def _threads(self) -> Workers:
        if self._workers is None:
            from nsbox._handles.worker import Workers as OwnWorkers

            vars(self).setdefault("_workers", OwnWorkers())  # in one step, since threads share this object
        assert self._workers is not None
        return self._workers

    def _end_calls(self) -> None:
        """End what runs in threads of its own: streams and jobs."""
        if self._workers is not None:
            self._workers.close()

    def _forget_calls(self) -> None:
        """In a forked child, leave them to the parent."""
        vars(self).pop("_workers", None)
        vars(self).pop("_jobs", None)

    def stream(self, command: str | Sequence[str], **options: Unpack[StreamOptions]) -> Stream:
        """Return a Stream of what a command prints: an iterator of StreamEvent, the last of which has the ToolResult.

        The command has started then. A thread of nsbox's attends to it, so that its time limit holds whatever you do.

        command: a line for the shell or, as a list, a program and its arguments.
        open_stdin: whether Stream.send() may send more after `input`. Default: False.
        pty: True, or (rows, columns), for a terminal. Then all events have kind "stdout". Default: False.
        options: shell_path and others as for shell(). `max_output` bounds the record, and not the stream.

        Raises what shell() raises at the start, and ValueError once this object is closed.
        """
        from nsbox._handles.stream import Stream as OwnStream

        return OwnStream(self._call_of(command, {**options}), self._threads().start)

    def background(self, command: str | Sequence[str], **options: Unpack[StreamOptions]) -> Job:
        """Return a Job: a handle of a command that runs in the background, until this object is closed.

        command, options: as for stream(). `max_output` is how much of the output is kept for Job.output(): its end.
        open_stdin: whether Job.send() may send more after `input`. Default: True, unless there is `input`.

        Raises what shell() raises at the start, and ValueError once this object is closed.
        """
        from nsbox._handles.job import Job as OwnJob
        from nsbox._handles.job import kept

        chosen: dict[str, Any] = {"open_stdin": options.get("input") is None, **options}
        make = self._call_of(command, chosen)
        workers = self._threads()
        job = OwnJob(workers.number(), command, make, workers.start, kept(options.get("max_output")))
        try:
            job._await_start()
        except BaseException:  # also a signal handler's
            job._worker.call.cancel(at_once=True)
            raise
        with workers.lock:
            self._jobs = (*OwnJob._worth_keeping(self._jobs), job)
        return job

    def jobs(self) -> list[Job]:
        """Return the jobs that run, and the last 100 that have ended, oldest first."""
        return list(self._jobs)

    def job(self, number: int) -> Job:
        """Return the job with a number: one of jobs().

        number: its `id`, which is also what call_tool() answers to a model.

        Raises LookupError if there is none, and TypeError.
        """
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"number is {number!r:.60}, must be the id of a job")
        jobs = self._jobs
        for job in jobs:
            if job.id == number:
                return job
        there = ", ".join(str(job.id) for job in jobs)
        raise LookupError(
            f"there is no job {number}; "
            + (f"the jobs are {there}" if len(jobs) > 1 else f"the only one is {there}" if jobs else "none was started")
        )
