"""Session: one sandbox for many commands, and for everything that they leave behind.

    with box.session() as s:
        s.run("cd src && make")
        server = s.Popen(["python3", "-m", "http.server", "8000"])
        s.run("curl -s localhost:8000")

The next command finds the processes of the last one, and the same /tmp, host name and network: it can reach a server
that an earlier one started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from types import SimpleNamespace

from nsbox._base.errors import AccessError
from nsbox._base.forks import Alive
from nsbox._base.frozen import TYPE_CHECKING, replace
from nsbox._base.owners import opened
from nsbox._calls import shell_state
from nsbox._calls.environment import built
from nsbox._calls.shell_state import ShellState
from nsbox._filetools.methods import FileTools
from nsbox._kept.commands import Commands
from nsbox._kept.session import SessionWay
from nsbox._lifetime import kills
from nsbox._lifetime.shutdown import is_finalizing
from nsbox._lifetime.usage import processes
from nsbox._popen.popen import Popen
from nsbox._tools import shell as tools_shell

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, Unpack

    import psutil

    from nsbox._base.owners import Owner
    from nsbox._calls.record import ToolResult
    from nsbox._filetools.files import Files
    from nsbox._kept.session_command import SessionCommand
    from nsbox._kept.tool_calls import ToolOptions
    from nsbox._policy.policy import Policy
    from nsbox._relay.ports import Published
    from nsbox._relay.relay import Line, Relay
    from nsbox._tools.verdicts import Fate

__all__ = ["Session"]

_FREEZE = 0.5  # seconds after a kill; from then on, all processes are stopped to find those that are left
_PAUSE = 0.005  # seconds between two checks whether everything that a command started is gone


class EnteredPopen(Popen["Any"]):
    """A command of a session. It isn't a child of this process; the session's pid 1 reports its end.

    A command that ends by itself has ended when its own process has. A command that is killed has ended when
    everything that it started has; pid 1 finds that.
    """

    _session: SessionWay | None = None
    _session_command: SessionCommand
    _is_over = False  # nothing is left of what it started

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        command = self._session_command
        if self._creator != os.getpid():  # in a forked copy this isn't our child; do what subprocess does
            return self.pid, 0
        if self._raw_status is None:
            if not wait_flags & os.WNOHANG:
                self._await_command()
            if not command.try_wait(wait_flags):
                return 0, 0
            self._raw_status = command.status
            if command.used is not None:
                used = command.used
                self._rusage = SimpleNamespace(  # type: ignore[assignment]
                    ru_utime=used.user_us / 1e6, ru_stime=used.system_us / 1e6, ru_maxrss=used.max_rss // 1024
                )
        if not self._has_left_nothing(block=not wait_flags & os.WNOHANG):
            return 0, 0
        status = self._raw_status
        assert status is not None
        return self.pid, status

    def _has_left_nothing(self, *, block: bool) -> bool:
        """Say if the command counts as ended: if it was killed, or asked to end patiently, nothing of it may run."""
        if self._is_over or (self._killed is None and not self._is_patient):
            return True
        while self._signal_started(signal.SIGKILL if self._killed else 0):
            if not block:
                return False
            time.sleep(_PAUSE)
            self._go_on()
        self._is_over = True
        return True

    def _signal_started(self, number: int) -> int:
        """Signal the command and everything that it started; return how many processes are left."""
        way = self._session
        frozen = self._killed is not None and self._killed.seconds > _FREEZE
        return way.signal_started(self._session_command, number, frozen=frozen) if way is not None else 0

    def _take_over(self, *positional: Any) -> None:
        if isinstance(self._way, SessionWay):
            self._session = self._way  # still needed once the command has ended
        super()._take_over(*positional)

    def _await_command(self) -> None:
        while not self._session_command.ends_within(self._slice()):
            self._go_on()

    def _press(self) -> None:
        """Take the next step of a kill: against a tracer of the command, and in the end against the session."""
        if self._killed is None or self._is_over or not self._killed.is_due():
            return
        has_ended = self._session_command.ends_within(0)
        is_stuck = self._signal_started(signal.SIGKILL) > 0 if has_ended else kills.free(self.pid)
        if is_stuck and self._killed.is_traced and self._session is not None:
            self._session.kill()

    def watch(self) -> tuple[list[Owner], float | None]:
        """Return an owned descriptor that becomes readable when the command ends."""
        if self._raw_status is not None:
            return [], _PAUSE
        try:
            ended = opened(os.dup, self._session_command.fileno())
            return [ended], None if self._killed is None else self._killed.pause()
        except OSError:  # no descriptor is free, or another thread is just collecting the end
            return [], 0.001

    def send_signal(self, sig: int, *, _is_late: Any = is_finalizing) -> None:
        """Send a signal to the command; SIGKILL goes to everything that it started too."""
        if _is_late():
            self._last_kill(sig)
            return
        if self.poll() is not None:
            return
        if self._timed_out:
            self._last_signal = sig
        self._session_command.signal(sig)
        if sig == signal.SIGKILL:
            self._signal_started(sig)
            self._begin_kill()

    def keep_output(self, pipes: list[int], *, in_file: bool) -> tuple[str | None, Fate]:
        """Let the session read on from pipes that other processes hold open; return the output file, and its fate."""
        way = self._session
        return way.keep_output(pipes, in_file=in_file) if way is not None else (None, "closed")

    def ask_to_end(self, *, patiently: bool = False) -> None:
        """Send SIGTERM to the command and everything that it started. patiently: give all of it time until a kill."""
        if self.poll() is not None:
            return
        self._is_patient = self._is_patient or patiently
        if self._timed_out:
            self._last_signal = signal.SIGTERM
        self._signal_started(signal.SIGTERM)


class Session(Commands, FileTools):
    """One sandbox under one policy, in which commands run until it is closed. Sandbox.session() makes it.

    It starts commands by the same methods as Sandbox, and every function with a policy= parameter accepts it too.
    Unlike there, a string is a command line for /bin/sh. A command ends when its own process does; what it leaves
    behind goes on.

    It has the file tools of Sandbox. They also reach what is the session's own: /tmp, a private home, and other places
    in memory. What they make there belongs to the commands, as if one of them had made it.

    Commands aren't children of this process: os.waitpid() can't wait for them, and preexec_fn and close_fds=False raise
    ValueError. An id in user=, group= or extra_groups= that the policy's ids= doesn't give is a PolicyError. When this
    process ends, so does the session. Threads may share it; in a forked child it is closed.
    """

    _kind = "session"

    _keeps: object = None  # the Sandbox that it belongs to, while the session is open
    _relay_of: Callable[[], Relay] | None = None  # returns that Sandbox's relay

    def __init__(self, policy: Policy, relay: Relay | None = None) -> None:
        self._way: SessionWay | None = None
        self._published: list[Published] = []
        self._shell = ShellState()  # with what the last shell with keep=True ended
        self._way = self._begin(policy, relay)
        _all.add(self)

    def _begin(self, policy: Policy, relay: Relay | None) -> SessionWay:
        """Make the sandbox."""
        return SessionWay(policy, relay)

    def _open_way(self) -> SessionWay:
        """Return the way in which commands start; raises ValueError if the session is closed."""
        if self._way is None:
            raise ValueError("the session is closed")
        return self._way

    @property
    def policy(self) -> Policy:  # type: ignore[override]
        """What commands may do. Raises ValueError if the session is closed."""
        return self._open_way().policy

    def _files(self) -> contextlib.AbstractContextManager[Files]:
        from nsbox._filetools.files import Files as GuardedFiles
        from nsbox._filetools.ground import HostGround, RootGround

        way = self._open_way()
        host, own = HostGround(), RootGround(way)
        return contextlib.nullcontext(GuardedFiles(way.policy, lambda mount: own if mount.is_own else host))

    def _popen_class(self, kind: type[Any]) -> type[Any]:
        """Return the subclass of Popen that its commands need instead of `kind`; raises TypeError if there is none."""
        if not issubclass(EnteredPopen, kind):
            raise TypeError(f"a session's commands are started by nsbox.Popen, not by {kind.__name__}")
        return EnteredPopen

    def _own(self, args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
        command = args[0] if args else options.get("args")
        if isinstance(command, str | bytes) and "shell" not in options:
            options = options | {"shell": True}
        return super()._own(args, options)

    def shell(
        self,
        command: str,
        *,
        keep: bool = False,
        shell_path: str | os.PathLike[str] | None = None,
        check: bool = False,
        **options: Unpack[ToolOptions],
    ) -> ToolResult:
        """Return the ToolResult of a shell's command line, as Sandbox.shell() does.

        keep: True begins in the directory in which the last command with keep=True ended, with what these commands
            have changed about exported variables, as one continuing shell would. What env= and secrets= give is for
            this call alone, unless the command changes it. A shell that is killed, that replaces itself by exec, or
            that exits (exit, set -e) with a trap of its own on EXIT leaves both as they were; then `why` has a hint of
            kind "not-kept". Other commands and the file tools go by the policy's workdir. The shell needs POSIX's trap,
            which fish, for one, lacks. Default: False.
        command, shell_path, check, options: as for Sandbox.shell().

        Raises what Sandbox.shell() raises, and AccessError if that directory is gone; cwd= begins in another one.
        """
        if not keep:
            return super().shell(command, shell_path=shell_path, check=check, **options)
        directory = self._shell.directory
        if directory is None or options.get("cwd") is not None:
            return self._kept_shell(command, shell_path, check, {**options})
        try:
            return self._kept_shell(command, shell_path, check, {**options, "cwd": directory})
        except AccessError as error:
            if error.filename != directory:
                raise
            problem = 'is where the last command with keep=True ended, and is gone; cwd="." begins in the workspace'
            raise AccessError(directory, problem) from error

    def _kept_shell(self, command: str, path: Any, check: bool, options: dict[str, Any]) -> ToolResult:
        way, before = self._open_way(), self._shell
        policy, env = way.policy, built(way.policy, way.exists)
        basis = before.applied(env)
        state = os.memfd_create("nsbox-shell", os.MFD_CLOEXEC)
        try:
            own = {"pass_fds": (state,), "basis": basis, "shells": tools_shell.shells(policy, path)}
            call = self._call(shell_state.argv(command, state), command, options | own)()
            result = call.run()
            if not (result.timed_out or result.cancelled):  # bash reports its directory even when it was asked to end
                report = shell_state.report(os.pread(state, shell_state.MOST + 1, 0))
                if report is not None:
                    began = call.environment or {}
                    others = {**basis, **(options.get("env") or {})}
                    secrets = [value for name, value in began.items() if value and others.get(name) != value]
                    self._shell = before.after(report, began, secrets, env)
                elif result.shell is not None:
                    result = replace(result, why=(*result.why, shell_state.NOT_KEPT))
            if check:
                result.check_returncode()
            return result
        finally:
            os.close(state)

    def publish(self, port: int, to: int | str | None = None) -> Published:
        """Return a Published port for a server in the session, as Sandbox.publish(); it closes with the session."""
        from nsbox._relay import ports  # seldom needed

        with ports.listening(ports.check_port(port), to) as listener:
            line = self._join(None if self._relay_of is None else self._relay_of())
            published = ports.Published(line.relay, port, listener, line)
        self._published.append(published)
        return published

    def _join(self, relay: Relay | None) -> Line:
        """Let a relay serve this session unless one does already; None: a relay of its own. Return the line to it."""
        return self._open_way().join(relay)

    @property
    def has_ended(self) -> bool:
        """Whether nothing can run in it any more, because it was closed, or killed from outside."""
        return self._way is None or self._way.has_ended

    def processes(self) -> list[psutil.Process]:
        """Return the processes that run in it now; [] when it has ended. Raises ImportError without psutil."""
        return [] if self.has_ended or self._way is None else processes(None, self._way.pid)

    def kill_processes(self) -> None:
        """Kill everything that runs in it, what earlier commands left too, and return when it is gone.

        The session goes on: its /tmp, its home, and what shell(keep=True) keeps are as before. Published ports stay
        open. Needs neither psutil nor room for another process, so it helps after a fork bomb.

        Raises KillError if a process doesn't end, and ValueError if the session is closed.
        """
        self._open_way().end_processes()

    def close(self, *, _is_late: Any = is_finalizing) -> None:
        """End everything that runs in it, and return when all of it is gone. Closing twice isn't an error.

        Raises KillError if a process in it doesn't end.
        """
        way, self._way = self._way, None
        if way is not None and not _is_late():
            self._end_calls()
            for each in self._published:
                each.close()
            way.close()
        self._keeps = None

    def __enter__(self) -> Session:
        self._open_way()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self, *, _is_late: Any = is_finalizing) -> None:
        if getattr(self, "_way", None) is None or _is_late():
            return  # at the interpreter's end the kernel ends it
        import warnings

        warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)
        self.close()

    def __repr__(self) -> str:
        return f"<nsbox.Session {'closed' if self._way is None else self._way.pid}>"

    def _after_fork(self) -> None:
        """Close it in a forked child: the session belongs to the parent."""
        self._forget_calls()
        way, self._way = self._way, None
        if way is not None:
            way.forget()


_all = Alive()
