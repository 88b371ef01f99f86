"""The ways to start a command that a Sandbox and what comes from one have in common."""

from __future__ import annotations

from nsbox import subprocess as _subprocess
from nsbox._frozen import TYPE_CHECKING
from nsbox._keeper import Keeper

if TYPE_CHECKING:
    from typing import Any

    from nsbox.asyncio import Process


class Commands(Keeper):
    """Starts commands: each method takes and raises what the function of its name in nsbox or nsbox.asyncio does."""

    def Popen(self, *args: Any, **options: Any) -> _subprocess.Popen:
        """Start a command; as nsbox.Popen."""
        return _subprocess.Popen(*args, **self._own(args, options))

    def run(self, *args: Any, **options: Any) -> _subprocess.CompletedProcess[Any]:
        """Run a command to its end; as nsbox.run."""
        return _subprocess.run(*args, **self._own(args, options))

    def shell(self, command: str | bytes, **options: Any) -> _subprocess.CompletedProcess[Any]:
        """Run a command line of /bin/sh to its end; as nsbox.run with shell=True."""
        return _subprocess.run(command, shell=True, **self._own((), options))

    def call(self, *args: Any, **options: Any) -> int:
        """Run a command and return its exit status; as nsbox.call."""
        return _subprocess.call(*args, **self._own(args, options))

    def check_call(self, *args: Any, **options: Any) -> int:
        """Run a command that has to succeed; as nsbox.check_call."""
        return _subprocess.check_call(*args, **self._own(args, options))

    def check_output(self, *args: Any, **options: Any) -> Any:
        """Return what a command writes to stdout; as nsbox.check_output."""
        return _subprocess.check_output(*args, **self._own(args, options))

    async def create_subprocess_exec(self, program: Any, *args: Any, **options: Any) -> Process:
        """Start a program; as nsbox.asyncio.create_subprocess_exec."""
        from nsbox import asyncio

        return await asyncio.create_subprocess_exec(program, *args, **self._own((), options))

    async def create_subprocess_shell(self, cmd: str | bytes, **options: Any) -> Process:
        """Start a command line of the shell; as nsbox.asyncio.create_subprocess_shell."""
        from nsbox import asyncio

        return await asyncio.create_subprocess_shell(cmd, **self._own((), options))

    def _own(self, args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
        if "policy" in options:
            raise TypeError(f"a {type(self).__name__} has its own policy")
        return options | {"policy": self}
