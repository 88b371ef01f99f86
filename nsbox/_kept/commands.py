"""The ways to start a command that a Sandbox, a session and a transaction have in common."""

from __future__ import annotations

from nsbox import subprocess as _subprocess
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._spawn.way import Keeper

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from typing import Any, Literal, TypedDict, Unpack, overload

    from _typeshed import ReadableBuffer

    from nsbox._popen.keywords import (
        CommandLine,
        OwnCalled,
        OwnPopened,
        OwnRun,
        OwnStreamedExec,
        OwnStreamedShell,
        OwnTimed,
        Path,
    )
    from nsbox._tools.run import ToolResult
    from nsbox.asyncio import Process
    from nsbox.secrets import Secret, Store

    class ToolOptions(TypedDict, total=False):
        """What the tools take besides the command."""

        timeout: float | None
        grace: float
        cwd: str | None
        env: Mapping[str, str] | None
        input: str | bytes | None
        secrets: Store | Mapping[str, Secret | str] | None
        max_output: int | str


class Commands(Keeper):
    """Starts commands. Each method takes and raises what the function of its name does, in nsbox or nsbox.asyncio."""

    if TYPE_CHECKING:

        @overload
        def Popen(
            self,
            args: CommandLine,
            *,
            text: Literal[True],
            encoding: str | None = None,
            errors: str | None = None,
            universal_newlines: bool | None = None,
            **options: Unpack[OwnPopened],
        ) -> _subprocess.Popen[str]: ...
        @overload
        def Popen(
            self,
            args: CommandLine,
            *,
            encoding: str,
            errors: str | None = None,
            text: bool | None = None,
            universal_newlines: bool | None = None,
            **options: Unpack[OwnPopened],
        ) -> _subprocess.Popen[str]: ...
        @overload
        def Popen(
            self,
            args: CommandLine,
            *,
            errors: str,
            encoding: str | None = None,
            text: bool | None = None,
            universal_newlines: bool | None = None,
            **options: Unpack[OwnPopened],
        ) -> _subprocess.Popen[str]: ...
        @overload
        def Popen(
            self,
            args: CommandLine,
            *,
            universal_newlines: Literal[True],
            encoding: str | None = None,
            errors: str | None = None,
            text: bool | None = None,
            **options: Unpack[OwnPopened],
        ) -> _subprocess.Popen[str]: ...
        @overload
        def Popen(
            self,
            args: CommandLine,
            *,
            universal_newlines: Literal[False] | None = None,
            text: Literal[False] | None = None,
            encoding: None = None,
            errors: None = None,
            **options: Unpack[OwnPopened],
        ) -> _subprocess.Popen[bytes]: ...
        @overload
        def Popen(
            self,
            args: CommandLine,
            *,
            universal_newlines: bool | None = None,
            text: bool | None = None,
            encoding: str | None = None,
            errors: str | None = None,
            **options: Unpack[OwnPopened],
        ) -> _subprocess.Popen[Any]: ...

    def Popen(self, *args: Any, **options: Any) -> _subprocess.Popen[Any]:
        """Start a command; as nsbox.Popen."""
        return _subprocess.Popen(*args, **self._own(args, options))

    if TYPE_CHECKING:

        @overload
        def run(
            self,
            args: CommandLine,
            *,
            text: Literal[True],
            encoding: str | None = None,
            errors: str | None = None,
            universal_newlines: bool | None = None,
            input: str | None = None,
            **options: Unpack[OwnRun],
        ) -> _subprocess.CompletedProcess[str]: ...
        @overload
        def run(
            self,
            args: CommandLine,
            *,
            encoding: str,
            errors: str | None = None,
            text: bool | None = None,
            universal_newlines: bool | None = None,
            input: str | None = None,
            **options: Unpack[OwnRun],
        ) -> _subprocess.CompletedProcess[str]: ...
        @overload
        def run(
            self,
            args: CommandLine,
            *,
            errors: str,
            encoding: str | None = None,
            text: bool | None = None,
            universal_newlines: bool | None = None,
            input: str | None = None,
            **options: Unpack[OwnRun],
        ) -> _subprocess.CompletedProcess[str]: ...
        @overload
        def run(
            self,
            args: CommandLine,
            *,
            universal_newlines: Literal[True],
            encoding: str | None = None,
            errors: str | None = None,
            text: bool | None = None,
            input: str | None = None,
            **options: Unpack[OwnRun],
        ) -> _subprocess.CompletedProcess[str]: ...
        @overload
        def run(
            self,
            args: CommandLine,
            *,
            universal_newlines: Literal[False] | None = None,
            text: Literal[False] | None = None,
            encoding: None = None,
            errors: None = None,
            input: ReadableBuffer | None = None,
            **options: Unpack[OwnRun],
        ) -> _subprocess.CompletedProcess[bytes]: ...
        @overload
        def run(
            self,
            args: CommandLine,
            *,
            universal_newlines: bool | None = None,
            text: bool | None = None,
            encoding: str | None = None,
            errors: str | None = None,
            input: ReadableBuffer | str | None = None,
            **options: Unpack[OwnRun],
        ) -> _subprocess.CompletedProcess[Any]: ...

    def run(self, *args: Any, **options: Any) -> _subprocess.CompletedProcess[Any]:
        """Run a command to its end; as nsbox.run."""
        return _subprocess.run(*args, **self._own(args, options))

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
        timeout: seconds, after which everything is ended. Default: None, for no limit.
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
        check: whether to raise CalledProcessError for a status that isn't 0. Default: False.

        Unless check is true, a command that fails or takes too long is no exception, but a ToolResult. Raises
        ValueError, AccessError for a cwd outside of the sandbox, KillError if the command doesn't end when it is
        killed, and what Popen raises about the sandbox.
        """
        if not isinstance(command, str):
            raise TypeError(f"command is a {type(command).__name__}, must be a str; for a list: exec(program, args)")
        return self._line(command, command, shell_path, check, options)

    def exec(
        self, program: str, args: Sequence[str] = (), *, check: bool = False, **options: Unpack[ToolOptions]
    ) -> ToolResult:
        """Run a program with arguments to its end, and return what it did; as shell(), but without a shell."""
        if not isinstance(program, str):
            raise TypeError(f"program is a {type(program).__name__}, must be a str; its arguments go into args")
        if not isinstance(args, list | tuple) or not all(isinstance(arg, str) for arg in args):
            raise TypeError(f"args is {args!r:.100}, must be a list of str")
        return self._tool([program, *args], [program, *args], check, options)

    def _line(
        self, line: str, shown: str, path: str | os.PathLike[str] | None, check: bool, options: Any
    ) -> ToolResult:
        """Let the shell read a line. shown: the line as the caller gave it."""
        from nsbox._tools import shell as tools_shell

        more = {"shells": tools_shell.shells(self.way().policy, path)}
        return self._tool(["-c", line], shown, check, options | more)

    def _tool(self, argv: list[str], shown: Any, check: bool, options: Any) -> ToolResult:
        from nsbox._tools import run as tools_run

        result = tools_run.run(self.Popen, self.way().policy, argv, shown, **options)
        if check:
            result.check_returncode()
        return result

    def call(
        self, args: CommandLine, *, timeout: float | None = None, grace: float = 0, **options: Unpack[OwnCalled]
    ) -> int:
        """Run a command and return its exit status; as nsbox.call."""
        return _subprocess.call(args, timeout=timeout, grace=grace, **self._own((args,), {**options}))

    def check_call(
        self, args: CommandLine, *, timeout: float | None = None, grace: float = 0, **options: Unpack[OwnCalled]
    ) -> int:
        """Run a command that has to succeed; as nsbox.check_call."""
        return _subprocess.check_call(args, timeout=timeout, grace=grace, **self._own((args,), {**options}))

    if TYPE_CHECKING:

        @overload
        def check_output(
            self,
            args: CommandLine,
            *,
            text: Literal[True],
            encoding: str | None = None,
            errors: str | None = None,
            universal_newlines: bool | None = None,
            input: str | None = None,
            **options: Unpack[OwnTimed],
        ) -> str: ...
        @overload
        def check_output(
            self,
            args: CommandLine,
            *,
            encoding: str,
            errors: str | None = None,
            text: bool | None = None,
            universal_newlines: bool | None = None,
            input: str | None = None,
            **options: Unpack[OwnTimed],
        ) -> str: ...
        @overload
        def check_output(
            self,
            args: CommandLine,
            *,
            errors: str,
            encoding: str | None = None,
            text: bool | None = None,
            universal_newlines: bool | None = None,
            input: str | None = None,
            **options: Unpack[OwnTimed],
        ) -> str: ...
        @overload
        def check_output(
            self,
            args: CommandLine,
            *,
            universal_newlines: Literal[True],
            encoding: str | None = None,
            errors: str | None = None,
            text: bool | None = None,
            input: str | None = None,
            **options: Unpack[OwnTimed],
        ) -> str: ...
        @overload
        def check_output(
            self,
            args: CommandLine,
            *,
            universal_newlines: Literal[False] | None = None,
            text: Literal[False] | None = None,
            encoding: None = None,
            errors: None = None,
            input: ReadableBuffer | None = None,
            **options: Unpack[OwnTimed],
        ) -> bytes: ...
        @overload
        def check_output(
            self,
            args: CommandLine,
            *,
            universal_newlines: bool | None = None,
            text: bool | None = None,
            encoding: str | None = None,
            errors: str | None = None,
            input: ReadableBuffer | str | None = None,
            **options: Unpack[OwnTimed],
        ) -> Any: ...

    def check_output(self, *args: Any, **options: Any) -> Any:
        """Return what a command writes to stdout; as nsbox.check_output."""
        return _subprocess.check_output(*args, **self._own(args, options))

    async def create_subprocess_exec(self, program: Path, *args: Path, **options: Unpack[OwnStreamedExec]) -> Process:
        """Start a program; as nsbox.asyncio.create_subprocess_exec."""
        from nsbox import asyncio

        return await asyncio.create_subprocess_exec(program, *args, **self._own((), {**options}))

    async def create_subprocess_shell(self, cmd: str | bytes, **options: Unpack[OwnStreamedShell]) -> Process:
        """Start a command line of the shell; as nsbox.asyncio.create_subprocess_shell."""
        from nsbox import asyncio

        return await asyncio.create_subprocess_shell(cmd, **self._own((), {**options}))

    def _own(self, args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
        if "policy" in options:
            raise TypeError(f"a {type(self).__name__} has its own policy")
        return options | {"policy": self}
