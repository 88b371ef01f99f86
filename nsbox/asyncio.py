"""asyncio's subprocess functions, with policy=: the commands that they start are contained.

    process = await nsbox.asyncio.create_subprocess_exec("make", cwd="repo")

They work on asyncio's own event loops and on uvloop's. The loop's child watcher isn't used: the event loop watches the
command's pidfd, then the sandbox's end.
"""

from __future__ import annotations

import asyncio as _asyncio
import signal as _signal
import weakref
from asyncio import base_subprocess
from asyncio.subprocess import Process as _Process
from asyncio.subprocess import SubprocessStreamProtocol
from typing import TYPE_CHECKING, Any

from nsbox._base.errors import KillError
from nsbox._policy.policy import Policy
from nsbox._popen import popen
from nsbox._popen.containment import Containment
from nsbox._spawn.way import Keeper
from nsbox.subprocess import DEVNULL, PIPE, STDOUT

if TYPE_CHECKING:
    from typing import Unpack

    from nsbox._logs.observers import Told
    from nsbox._popen.keywords import File, HeardExec, HeardShell, Path
    from nsbox._popen.pty import Terminal

__all__ = ["DEVNULL", "PIPE", "STDOUT", "Process", "create_subprocess_exec", "create_subprocess_shell"]

# Options that asyncio refuses because streams carry bytes, each with the one value that doesn't contradict that.
_BYTES_ONLY = {"universal_newlines": False, "text": False, "encoding": None, "errors": None, "bufsize": 0}


class Process(_Process):
    """asyncio.subprocess.Process, with what contains the command."""

    @property
    def sandbox(self) -> Containment:
        """What contains the command, as Popen.sandbox."""
        sandbox: Containment = self._transport.get_extra_info("subprocess").sandbox  # type: ignore[attr-defined]
        return sandbox

    @property
    def terminal(self) -> Terminal | None:
        """With pty=, the caller's end of the command's terminal, as Popen.terminal; else None."""
        terminal: Terminal | None = self._transport.get_extra_info("subprocess").terminal  # type: ignore[attr-defined]
        return terminal


class _Transport(base_subprocess.BaseSubprocessTransport):
    """asyncio's transport of a subprocess, around nsbox's Popen. It reports the end once the sandbox is gone."""

    _loop: Any
    _proc: popen.Popen[bytes]  # None once the transport is closed
    _returncode: int | None
    _pipes: dict[int, Any]
    _exit_waiters: list[_asyncio.Future[int]]
    _watched: list[Any]
    _timer: _asyncio.TimerHandle | None = None
    _error: KillError | None = None
    _story: Told | None = None

    def _start(self, args: Any, shell: bool, *positional: Any, **options: Any) -> None:  # asyncio passes all by name
        self._watched = []
        self._proc = popen.Popen(args, shell=shell, **options)
        self._story = self._proc._story
        hurry = weakref.WeakMethod(self._hurry)  # the command may outlive this transport
        self._proc._on_kill = lambda: (call := hurry()) and call()
        self._watch()

    def _hurry(self) -> None:
        """Look again soon: a kill may need more steps. Any thread may call this."""
        loop = self._loop
        if loop.is_closed():
            return
        if loop.is_running() and _asyncio._get_running_loop() is not loop:  # another thread
            loop.call_soon_threadsafe(self._look_later)
        else:
            self._look_later()

    def _look_later(self) -> None:
        """Look again after a pause.

        The descriptors stay watched, and the loop's own pipe doesn't wake it, since SIGCHLD uses that pipe too: the
        loop has to see the command's end before a child watcher that reaps all children (FastChildWatcher).
        """
        if self._proc and self._returncode is None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(self._proc._slice(), self._look)

    def _watch(self) -> None:
        """Watch for the next step towards the end: first the command's end, then that of the rest of its sandbox."""
        self._watched, patience = self._proc.watch()
        for fd in self._watched:
            self._loop.add_reader(fd.fileno(), self._look)
        if patience is not None:
            self._timer = self._loop.call_later(patience, self._look)

    def _unwatch(self) -> None:
        while self._watched:
            fd = self._watched.pop()
            if not self._loop.is_closed():
                self._loop.remove_reader(fd.fileno())
            fd.close()
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._unwatch()
        if not self._proc:
            return
        status = self._proc.poll()
        if status is None:
            self._fail(self._proc.kill_error())
            self._watch()
        elif self._returncode is None:
            self._process_exited(status)

    def _fail(self, error: KillError | None) -> None:
        """If there is an error, raise it in all callers that wait, and end the streams."""
        if error is None or self._error is not None:
            return
        self._error = error
        for protocol in self._pipes.values():
            if protocol is not None:
                protocol.pipe.close()
        while self._exit_waiters:
            waiter = self._exit_waiters.pop()
            if not waiter.done():
                waiter.set_exception(error)

    async def _wait(self) -> int:
        """Wait for the end; raises KillError if the sandbox survives a kill, and AuditError as Popen.wait()."""
        if self._returncode is None and self._error is not None:
            raise self._error
        status: int = await super()._wait()
        if self._story is not None:
            self._story.check()
        return status

    def send_signal(self, signal: int) -> None:
        """Send a signal to the command, through Popen, which knows whether the pid is still its own."""
        if self._returncode is not None:
            raise ProcessLookupError
        self._check_proc()
        self._proc.send_signal(signal)

    def terminate(self) -> None:
        """Send SIGTERM to everything that runs in the sandbox, as Popen.terminate()."""
        if self._returncode is not None:
            raise ProcessLookupError
        self._check_proc()
        self._proc.terminate()

    def kill(self) -> None:
        """Kill the command, and the sandbox with it."""
        self.send_signal(_signal.SIGKILL)


def _check(options: dict[str, Any], shell: bool) -> None:
    for name, allowed in (*_BYTES_ONLY.items(), ("shell", shell)):
        if options.pop(name, allowed) not in (allowed, None):
            raise ValueError(f"{name} must be {allowed}")


async def _create(args: Any, *, as_shell: bool, limit: int, **options: Any) -> Process:
    _check(options, as_shell)
    loop = _asyncio.get_running_loop()
    protocol = SubprocessStreamProtocol(limit=limit, loop=loop)
    started = loop.create_future()
    transport = _Transport(loop, protocol, args, as_shell, bufsize=0, waiter=started, **options)
    try:
        await started
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException:
        transport.close()
        await transport._wait()
        raise
    return Process(transport, protocol, loop)


async def create_subprocess_exec(
    program: Path,
    *args: Path,
    stdin: File = None,
    stdout: File = None,
    stderr: File = None,
    limit: int = 2**16,
    policy: Policy | Keeper | None = None,
    **options: Unpack[HeardExec],
) -> Process:
    """Return a Process that runs a program in a sandbox, as asyncio.create_subprocess_exec does.

    program, args: the command, not interpreted by a shell.
    stdin, stdout, stderr: as for subprocess.Popen. Default: inherited.
    limit: bytes that each stream buffers. Default: 65536.
    policy: a Policy, Sandbox, Session or Transaction. Default: as for nsbox.Popen.
    options: any other option of nsbox.Popen that doesn't ask for text.

    Raises what nsbox.Popen raises, and ValueError for options of text: streams carry bytes.
    """
    return await _create(
        [program, *args],
        as_shell=False,
        limit=limit,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        policy=policy,
        **options,
    )


async def create_subprocess_shell(
    cmd: str | bytes,
    stdin: File = None,
    stdout: File = None,
    stderr: File = None,
    limit: int = 2**16,
    policy: Policy | Keeper | None = None,
    **options: Unpack[HeardShell],
) -> Process:
    """Return a Process that runs a shell's command line in a sandbox, as asyncio.create_subprocess_shell does.

    cmd: the command line.
    stdin, stdout, stderr: as for subprocess.Popen. Default: inherited.
    limit: bytes that each stream buffers. Default: 65536.
    policy: a Policy, Sandbox, Session or Transaction. Default: as for nsbox.Popen.
    options: any other option of nsbox.Popen that doesn't ask for text.

    Raises what nsbox.Popen raises, and ValueError for options of text: streams carry bytes.
    """
    if not isinstance(cmd, str | bytes):
        raise ValueError("cmd must be a string")
    return await _create(
        cmd, as_shell=True, limit=limit, stdin=stdin, stdout=stdout, stderr=stderr, policy=policy, **options
    )
