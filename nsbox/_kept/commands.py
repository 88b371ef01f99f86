"""The ways to start a command that a Sandbox, a session and a transaction have in common."""

from __future__ import annotations

from nsbox import subprocess as _subprocess
from nsbox._base.display import type_phrase
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._kept.tool_calls import ToolCalls

if TYPE_CHECKING:
    from typing import Any, Literal, Unpack, overload

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
    from nsbox.asyncio import Process


class Commands(ToolCalls):
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
            raise TypeError(f"{type_phrase(self)} has its own policy")
        return options | {"policy": self}
