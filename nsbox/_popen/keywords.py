"""What a command takes, by name and type, for type checkers and editors. Nothing imports this when a program runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import IO, Any, Literal, TypeAlias, TypedDict

from nsbox._network.events import NetworkEvent
from nsbox._policy.policy import Policy
from nsbox._relay.asks import OnConnect
from nsbox._spawn.way import Keeper

Path: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
CommandLine: TypeAlias = Path | Sequence[Path]
File: TypeAlias = int | IO[Any] | None
Environment: TypeAlias = Mapping[bytes, Path] | Mapping[str, Path]


class Common(TypedDict, total=False):
    """What every command takes, except what is about its streams."""

    executable: Path | None
    preexec_fn: Callable[[], object] | None
    close_fds: bool
    cwd: Path | None
    env: Environment | None
    startupinfo: Any
    creationflags: int
    restore_signals: bool
    start_new_session: bool
    pass_fds: Collection[int]
    user: str | int | None
    group: str | int | None
    extra_groups: Iterable[str | int] | None
    umask: int
    pipesize: int
    process_group: int | None
    kill_on_exit: bool | None


class Start(Common, total=False):
    """What every command except asyncio's takes, without what decides whether its streams are text."""

    bufsize: int
    stdin: File
    stderr: File
    shell: bool


class OwnPopened(Start, total=False):
    """What a Sandbox's Popen takes."""

    stdout: File
    pty: bool | tuple[int, int]


class OwnTimed(Start, total=False):
    """What a Sandbox's check_output() takes."""

    timeout: float | None
    grace: float


class OwnRun(OwnTimed, total=False):
    """What a Sandbox's run() takes."""

    stdout: File
    capture_output: bool
    check: bool


class Hearers(TypedDict, total=False):
    """The functions that are called about the network, unless a Sandbox has them."""

    on_connect: OnConnect | None
    on_network: Callable[[NetworkEvent], object] | None


class Popened(OwnPopened, Hearers, total=False):
    """What Popen takes."""

    policy: Policy | Keeper | None


class Timed(OwnTimed, Hearers, total=False):
    """What check_output() takes."""

    policy: Policy | Keeper | None


class Run(OwnRun, Hearers, total=False):
    """What run() takes."""

    policy: Policy | Keeper | None


class OwnCalled(Start, total=False):
    """What a Sandbox's call() and check_call() take."""

    stdout: File
    text: bool | None
    universal_newlines: bool | None
    encoding: str | None
    errors: str | None


class Called(OwnCalled, Hearers, total=False):
    """What call() and check_call() take."""

    args: CommandLine


class Streamed(Common, total=False):
    """What asyncio's functions take besides streams and policy: these carry bytes, whatever else is named."""

    pty: bool | tuple[int, int]
    universal_newlines: Literal[False]
    bufsize: Literal[0]
    encoding: None
    errors: None
    text: Literal[False] | None


class StreamedExec(Streamed, total=False):
    """What create_subprocess_exec() takes."""

    shell: Literal[False]


class StreamedShell(Streamed, total=False):
    """What create_subprocess_shell() takes."""

    shell: Literal[True]


class HeardExec(StreamedExec, Hearers, total=False):
    """What create_subprocess_exec() takes without a Sandbox."""


class HeardShell(StreamedShell, Hearers, total=False):
    """What create_subprocess_shell() takes without a Sandbox."""


class OwnStreams(TypedDict, total=False):
    """The streams that asyncio's functions take by position or name."""

    stdin: File
    stdout: File
    stderr: File
    limit: int


class OwnStreamedExec(StreamedExec, OwnStreams, total=False):
    """What a Sandbox's create_subprocess_exec() takes."""


class OwnStreamedShell(StreamedShell, OwnStreams, total=False):
    """What a Sandbox's create_subprocess_shell() takes."""
