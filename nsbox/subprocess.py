"""Drop-in for the standard library's subprocess, with the same public names; whatever starts a command takes policy=.

import nsbox.subprocess as subprocess
"""

from __future__ import annotations

import subprocess as _stdlib
from contextlib import suppress
from subprocess import (
    DEVNULL,
    PIPE,
    STDOUT,
    CalledProcessError,
    CompletedProcess,
    SubprocessError,
    TimeoutExpired,
)

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._lifetime.kills import check_grace
from nsbox._policy.policy import Policy
from nsbox._popen.popen import Popen
from nsbox._spawn.way import Keeper

if TYPE_CHECKING:
    from typing import Any, Literal, Unpack, overload

    from _typeshed import ReadableBuffer

    from nsbox._popen.keywords import Called, CommandLine, Run, Timed

__all__ = [
    "DEVNULL",
    "PIPE",
    "STDOUT",
    "CalledProcessError",
    "CompletedProcess",
    "Popen",
    "SubprocessError",
    "TimeoutExpired",
    "call",
    "check_call",
    "check_output",
    "getoutput",
    "getstatusoutput",
    "list2cmdline",
    "run",
]

list2cmdline = _stdlib.list2cmdline


def _captured(options: dict[str, Any]) -> dict[str, Any]:
    if options.get("stdout") is not None or options.get("stderr") is not None:
        raise ValueError("stdout and stderr arguments may not be used with capture_output.")
    return options | {"stdout": PIPE, "stderr": PIPE}


if TYPE_CHECKING:  # for callers' type checkers; overload() is slow to import

    @overload
    def run(
        args: CommandLine,
        *,
        text: Literal[True],
        encoding: str | None = None,
        errors: str | None = None,
        universal_newlines: bool | None = None,
        input: str | None = None,
        **options: Unpack[Run],
    ) -> CompletedProcess[str]: ...
    @overload
    def run(
        args: CommandLine,
        *,
        encoding: str,
        errors: str | None = None,
        text: bool | None = None,
        universal_newlines: bool | None = None,
        input: str | None = None,
        **options: Unpack[Run],
    ) -> CompletedProcess[str]: ...
    @overload
    def run(
        args: CommandLine,
        *,
        errors: str,
        encoding: str | None = None,
        text: bool | None = None,
        universal_newlines: bool | None = None,
        input: str | None = None,
        **options: Unpack[Run],
    ) -> CompletedProcess[str]: ...
    @overload
    def run(
        args: CommandLine,
        *,
        universal_newlines: Literal[True],
        encoding: str | None = None,
        errors: str | None = None,
        text: bool | None = None,
        input: str | None = None,
        **options: Unpack[Run],
    ) -> CompletedProcess[str]: ...
    @overload
    def run(
        args: CommandLine,
        *,
        universal_newlines: Literal[False] | None = None,
        text: Literal[False] | None = None,
        encoding: None = None,
        errors: None = None,
        input: ReadableBuffer | None = None,
        **options: Unpack[Run],
    ) -> CompletedProcess[bytes]: ...
    @overload
    def run(
        args: CommandLine,
        *,
        universal_newlines: bool | None = None,
        text: bool | None = None,
        encoding: str | None = None,
        errors: str | None = None,
        input: ReadableBuffer | str | None = None,
        **options: Unpack[Run],
    ) -> CompletedProcess[Any]: ...


def run(
    *popenargs: Any,
    input: Any = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    policy: Policy | Keeper | None = None,
    grace: float = 0,
    **options: Any,
) -> CompletedProcess[Any]:
    """Return the CompletedProcess of a command in a sandbox, as subprocess.run does.

    By then the whole sandbox is gone.

    input, capture_output, check: as for subprocess.run.
    timeout: seconds; then the sandbox is ended. Default: no limit.
    policy: a Policy, Sandbox, Session or Transaction. Default: as for Popen.
    grace: seconds from SIGTERM to SIGKILL at the time limit, 0 to 600. Default: 0, which is SIGKILL at once.
    popenargs, options: the command, and any other option of Popen.

    Raises TimeoutExpired at the time limit, KillError if the sandbox survives that, CalledProcessError for a non-zero
    status with check=True, and what Popen raises.
    """
    if input is not None:
        if options.get("stdin") is not None:
            raise ValueError("stdin and input arguments may not both be used.")
        options["stdin"] = PIPE
    if capture_output:
        options = _captured(options)
    check_grace(grace)
    with Popen(*popenargs, policy=policy, **options) as process:
        try:
            stdout, stderr = process.communicate(input, timeout=timeout)
        except TimeoutExpired:
            process.mark_early()
            if grace:
                process.ask_to_end(patiently=True)
                with suppress(TimeoutExpired):  # communicate() goes on reading its pipes
                    process.communicate(timeout=grace)
            process.kill()
            process.wait()  # the exception has what was read until then
            raise
        except BaseException:  # also KeyboardInterrupt; __exit__ waits
            process.kill()
            raise
        status = process.poll()
    assert status is not None
    if check and status:
        raise CalledProcessError(status, process.args, output=stdout, stderr=stderr)
    return CompletedProcess(process.args, status, stdout, stderr)


def call(
    *popenargs: Any,
    timeout: float | None = None,
    policy: Policy | Keeper | None = None,
    grace: float = 0,
    **options: Unpack[Called],
) -> int:
    """Return the exit status of a command in a sandbox, as subprocess.call does.

    Parameters and errors are those of run(), except that it has no input, capture_output or check.
    """
    check_grace(grace)
    with Popen(*popenargs, policy=policy, **options) as process:
        try:
            return process.wait(timeout=timeout)
        except TimeoutExpired:
            process.mark_early()
            process.kill(grace=grace)
            raise
        except BaseException:  # also TimeoutExpired and KeyboardInterrupt; __exit__ waits
            process.kill()
            raise


def check_call(
    *popenargs: Any,
    timeout: float | None = None,
    policy: Policy | Keeper | None = None,
    grace: float = 0,
    **options: Unpack[Called],
) -> int:
    """Return 0 after a command in a sandbox has succeeded, as subprocess.check_call does.

    Parameters are those of call(). Raises CalledProcessError for a non-zero status, and what call() raises.
    """
    status = call(*popenargs, timeout=timeout, policy=policy, grace=grace, **options)
    if status:
        command: Any = options.get("args", popenargs[0] if popenargs else None)
        raise CalledProcessError(status, command)
    return 0


if TYPE_CHECKING:

    @overload
    def check_output(
        args: CommandLine,
        *,
        text: Literal[True],
        encoding: str | None = None,
        errors: str | None = None,
        universal_newlines: bool | None = None,
        input: str | None = None,
        **options: Unpack[Timed],
    ) -> str: ...
    @overload
    def check_output(
        args: CommandLine,
        *,
        encoding: str,
        errors: str | None = None,
        text: bool | None = None,
        universal_newlines: bool | None = None,
        input: str | None = None,
        **options: Unpack[Timed],
    ) -> str: ...
    @overload
    def check_output(
        args: CommandLine,
        *,
        errors: str,
        encoding: str | None = None,
        text: bool | None = None,
        universal_newlines: bool | None = None,
        input: str | None = None,
        **options: Unpack[Timed],
    ) -> str: ...
    @overload
    def check_output(
        args: CommandLine,
        *,
        universal_newlines: Literal[True],
        encoding: str | None = None,
        errors: str | None = None,
        text: bool | None = None,
        input: str | None = None,
        **options: Unpack[Timed],
    ) -> str: ...
    @overload
    def check_output(
        args: CommandLine,
        *,
        universal_newlines: Literal[False] | None = None,
        text: Literal[False] | None = None,
        encoding: None = None,
        errors: None = None,
        input: ReadableBuffer | None = None,
        **options: Unpack[Timed],
    ) -> bytes: ...
    @overload
    def check_output(
        args: CommandLine,
        *,
        universal_newlines: bool | None = None,
        text: bool | None = None,
        encoding: str | None = None,
        errors: str | None = None,
        input: ReadableBuffer | str | None = None,
        **options: Unpack[Timed],
    ) -> Any: ...


def check_output(*popenargs: Any, timeout: float | None = None, **options: Any) -> Any:
    """Return what a command in a sandbox writes to stdout, as subprocess.check_output does.

    Parameters are those of run(), without stdout and check (ValueError). Raises CalledProcessError for a non-zero
    status, and what run() raises.
    """
    for name in ("stdout", "check"):
        if name in options:
            raise ValueError(f"{name} argument not allowed, it will be overridden.")
    if "input" in options and options["input"] is None:
        # input=None means empty input, as text or bytes by the other options, and not an inherited stdin.
        text = any(options.get(name) for name in ("text", "universal_newlines", "encoding", "errors"))
        options["input"] = "" if text else b""
    return run(*popenargs, stdout=PIPE, timeout=timeout, check=True, **options).stdout


def getstatusoutput(
    cmd: Any, *, encoding: str | None = None, errors: str | None = None, policy: Policy | Keeper | None = None
) -> tuple[int, str]:
    """Return the exit status of a shell command in a sandbox, and its output without the last newline.

    Output is stdout and stderr together. Parameters are as for subprocess.getstatusoutput, and policy= as for run().
    """
    try:
        output = check_output(
            cmd, shell=True, text=True, stderr=STDOUT, encoding=encoding, errors=errors, policy=policy
        )
        status = 0
    except CalledProcessError as error:
        output, status = error.output, error.returncode
    return status, output.removesuffix("\n")


def getoutput(
    cmd: Any, *, encoding: str | None = None, errors: str | None = None, policy: Policy | Keeper | None = None
) -> str:
    """Return the output of a shell command in a sandbox, whatever its status; see getstatusoutput()."""
    return getstatusoutput(cmd, encoding=encoding, errors=errors, policy=policy)[1]
