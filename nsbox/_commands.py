"""The ways to start a command that a Sandbox and what comes from one have in common."""

from __future__ import annotations

from nsbox import subprocess as _subprocess
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._spawn.way import Keeper

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from typing import Any, Literal, TypedDict, Unpack, overload

    from _typeshed import ReadableBuffer

    from nsbox._tool import ToolResult
    from nsbox._typed import (
        CommandLine,
        OwnCalled,
        OwnPopened,
        OwnRun,
        OwnStreamedExec,
        OwnStreamedShell,
        OwnTimed,
        Path,
    )
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
    """Starts commands: each method takes and raises what the function of its name in nsbox or nsbox.asyncio does."""

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
        """Run a command line of the shell to its end, and say what it came to, as a tool of an agent does.

        The shell is bash where the sandbox has it, else /bin/sh; the record's `shell` says which. shell_path: another
        one, as a path in the sandbox, that takes a line after -c; None: the policy's.

        timeout: seconds, after which all of it is ended; None: no limit. grace: seconds from SIGTERM to SIGKILL then, 0
        to 600; 2 by default. cwd: a directory in the sandbox; relative
        ones count from the policy's workdir. env: variables on top of the built environment; those by which programs
        execute others' code (LD_PRELOAD, BASH_ENV, ...) raise PolicyError. input: what it reads from stdin, which is
        empty otherwise. secrets: a store, or names and values: more variables, whose values are masked in what it
        prints (nsbox.leaks.Scrubber says in which forms). max_output: bytes of stdout, and of stderr, that are kept,
        the first and the last half; what is more isn't held in memory. check: raise CalledProcessError for a status
        that isn't 0.

        A command that fails or takes too long is no exception otherwise, but a ToolResult. Raises ValueError,
        AccessError for a cwd outside of the sandbox, KillError if it doesn't end when it is killed, and what Popen
        raises about the sandbox.
        """
        if not isinstance(command, str):
            raise TypeError(f"command is a {type(command).__name__}, must be a str; for a list: exec(program, args)")
        return self._line(command, command, shell_path, check, options)

    def exec(
        self, program: str, args: Sequence[str] = (), *, check: bool = False, **options: Unpack[ToolOptions]
    ) -> ToolResult:
        """Run a program with arguments to its end, and say what it came to; as shell(), but no shell reads it."""
        if not isinstance(program, str):
            raise TypeError(f"program is a {type(program).__name__}, must be a str; its arguments go into args")
        if not isinstance(args, list | tuple) or not all(isinstance(arg, str) for arg in args):
            raise TypeError(f"args is {args!r:.100}, must be a list of str")
        return self._tool([program, *args], [program, *args], check, options)

    def _line(
        self, line: str, shown: str, path: str | os.PathLike[str] | None, check: bool, options: Any
    ) -> ToolResult:
        """Have the shell read a line. shown: the one that was given."""
        from nsbox import _shell

        more = {"shells": _shell.shells(self.way().policy, path)}
        return self._tool(["-c", line], shown, check, options | more)

    def _tool(self, argv: list[str], shown: Any, check: bool, options: Any) -> ToolResult:
        from nsbox import _tool

        result = _tool.run(self.Popen, self.way().policy, argv, shown, **options)
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
