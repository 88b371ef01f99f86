"""One tool call: a command with bounded output and a time limit, and its record, which says why it failed.

run() does everything in the calling thread. Meanwhile, other threads may cancel the call and send data to its stdin.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from functools import partial

from nsbox._base.checks import check_size
from nsbox._base.display import type_phrase
from nsbox._base.errors import NsboxError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._calls import environment, failure
from nsbox._calls.exchange import Exchange
from nsbox._calls.inlet import Inlet
from nsbox._calls.output import MOST_OUTPUT, Output
from nsbox._calls.record import ToolResult
from nsbox._calls.token import CancelToken
from nsbox._lifetime import ends, kills
from nsbox._logs import observers
from nsbox._network.network import Network
from nsbox._paths.resolution import absolute
from nsbox._tools import arguments, hints
from nsbox._tools.verdicts import Background, Ending
from nsbox._tools.view import view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any, Protocol

    from nsbox._calls.exchange import Gate, Side
    from nsbox._policy.policy import Policy
    from nsbox._popen.popen import Popen
    from nsbox._tools.verdicts import Fate, Hint
    from nsbox.secrets import Secret, Store

    class Shared(Protocol):
        """A command of a session, as nsbox.session has it."""

        def keep_output(self, pipes: list[int], *, in_file: bool) -> tuple[str | None, Fate]:
            """Let the session read on from pipes."""

    Explain = Callable[[tuple[Hint, ...], int, tuple[str, str]], tuple[Hint, ...]]

# Popen's options that a tool call passes on, for those who start it: a session's shell, a task.
_KNOWN = frozenset({"pass_fds", "user", "group", "extra_groups"})
_CEILING = 64 << 20  # bytes of each stream that a caller can ask for at most


def check_max_output(max_output: int | str) -> int:
    """Return how many bytes of each stream are kept; raises ValueError for a size that makes no sense."""
    most = check_size("max_output", max_output)
    if most > _CEILING:
        raise ValueError(f"max_output is {max_output!r}, must be at most {_CEILING} bytes")
    return most


def end_at_terminal(data: bytes) -> bytes:
    """Return what ends input at a terminal: Ctrl-D, and another if the first only hands over an unfinished line."""
    return b"\x04" if not data or data.endswith(b"\n") else b"\x04\x04"


class Call:
    """A tool call.

    start: starts a command; it has the parameters of Popen.
    argv: the command or, with shells, what follows the shell.
    args: the command as the result shows it.
    basis: the environment to which env adds; None: the one that the policy builds.
    shells: shells to try, in order: the first that can be started reads the line.
    sink: called with the name of a stream and what was printed there, in the thread that runs the call.
    gate: holds up the output while the caller has no room for it.
    open_stdin: whether other threads can send more after `input`.
    pty: as for Popen; with a terminal there is one stream, "stdout".
    explain: returns the hints for a failed command, from those for its policy, its status and its output.
    exists: a way's.

    Commands.shell() describes the other parameters.
    """

    def __init__(
        self,
        start: Callable[..., Popen[bytes]],
        policy: Policy,
        argv: list[str],
        args: Any,
        *,
        timeout: float | None = None,
        grace: float = kills.GRACE,
        input: str | bytes | None = None,
        max_output: int | str = MOST_OUTPUT,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Store | Mapping[str, Secret | str] | None = None,
        basis: Mapping[str, str] | None = None,
        shells: tuple[str, ...] = (),
        cancel: CancelToken | None = None,
        sink: Callable[[str, bytes], object] | None = None,
        gate: Gate | None = None,
        open_stdin: bool = False,
        pty: bool | tuple[int, int] = False,
        explain: Explain | None = None,
        exists: Callable[[str], bool] | None = None,
        **options: Any,
    ) -> None:
        unknown = options.keys() - _KNOWN
        if unknown:
            only = ": shell() of a session or a task does" if unknown == {"keep"} else ""
            raise TypeError(f"a tool call takes no {', '.join(sorted(unknown))}={only}")
        if cancel is not None and not isinstance(cancel, CancelToken):
            raise TypeError(f"cancel is {type_phrase(cancel)}, must be a CancelToken")
        self._start, self._policy, self._argv, self._args, self._shells = start, policy, argv, args, shells
        more, scrubbers = environment.with_secrets(environment.check_environment(env or {}), secrets)
        self.environment = environment.environment(policy, basis, more, exists)  # None: the one that the policy builds
        self._options = options | {"env": self.environment}
        arguments.check_flags(open_stdin=open_stdin)
        if cwd is not None:
            cwd = arguments.check_path("cwd", cwd)
            is_home = cwd == "~" or cwd.startswith("~/")  # as in a shell's line, and as the file tools have it
            cwd = view(policy).absolute(cwd) if is_home else absolute(os.path.join(policy.workdir or "", cwd))
        self._cwd = cwd
        self._timeout, self._grace = arguments.check_timeout(timeout), kills.check_grace(grace)
        data = b"" if input is None else arguments.as_bytes("input", input)
        self._pty = pty
        if pty and not open_stdin:
            data += end_at_terminal(data)
        most = check_max_output(max_output)
        sinks = (None, None) if sink is None else (partial(sink, "stdout"), partial(sink, "stderr"))
        self._outputs = (Output(most, scrubbers[0], sinks[0]), Output(most, scrubbers[1], sinks[1]))
        self._gate, self._has_secrets, self._explain = gate, secrets is not None, explain
        self._scrubber = scrubbers[0]
        self._token, self._can_cancel = cancel, cancel is not None or sink is not None or open_stdin
        self._is_cancelled = self._is_hurried = False
        self._process: Popen[bytes]
        self._exchange: Exchange
        self._shell: str | None = None
        self._began = self._timed_from = time.monotonic()
        self.inlet = Inlet(data, stays_open=open_stdin)
        self._told: observers.Call | None = None  # if somebody listens

    @property
    def process(self) -> Popen[bytes] | None:
        """The Popen of the command; None unless it was started."""
        return getattr(self, "_process", None)

    @property
    def _audit_id(self) -> str | None:
        return None if self._told is None else self._told.id or None

    def cancel(self, *, at_once: bool = False) -> None:
        """Ask for the command to be ended, as after a time limit; any thread may. at_once: without grace time."""
        self._is_cancelled = True
        self._is_hurried = self._is_hurried or at_once
        self.inlet.ring()

    def end_input(self) -> None:
        """Let the command's stdin end after what was sent."""
        self.inlet.end(last=b"\x04" if self._pty else b"")

    def _shall_stop(self) -> bool:
        return self._is_cancelled or (self._token is not None and self._token.is_cancelled)

    def run(self) -> ToolResult:
        """Run the command to its end, and return what it did."""
        early = self.start()
        return self.attend() if early is None else early

    def start(self) -> ToolResult | None:
        """Start the command; return its record if it can't be started, or was cancelled before."""
        if self._shall_stop():
            self.inlet.close()
            return failure.cancelled(self._args)
        pipes = {} if self._pty else dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        more = {"pty": self._pty} if self._pty else {"bufsize": 0}
        try:
            self.inlet.open()
            with self._telling():
                self._process, self._shell = failure.started(
                    self._start, self._policy, self._argv, self._shells, cwd=self._cwd, **pipes, **more, **self._options
                )
        except OSError as error:
            self.inlet.close()
            if isinstance(error, NsboxError) or error.filename is None or error.errno in failure.OWN:
                raise
            argv = [*self._shells[-1:], *self._argv]
            return failure.not_started(
                error, self._policy, argv, self._args, self._cwd, self._began, self._shells, self._audit_id
            )
        except BaseException:
            self.inlet.close()
            raise
        self._take_streams()
        self._timed_from = time.monotonic()  # what is made before, such as a warm interpreter, isn't the command's time
        return None

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Let those who listen know of the call when its command starts."""
        if not observers.listen():
            yield
            return
        self._told = observers.Call(self._args, self._scrubber)
        token = observers.call.set(self._told)
        try:
            yield
        finally:
            observers.call.reset(token)

    def _take_streams(self) -> None:
        """Get what attend() needs now, so that a lack of descriptors is an error of the start."""
        try:
            self._exchange = Exchange(self._process, self.inlet, self._outputs, self._gate, self._side())
        except BaseException:
            with self._process:
                self._process.kill()
            self.inlet.close()
            raise

    def _side(self) -> Side | None:
        """Return what the exchange reads and writes besides the streams."""
        return None

    def attend(self) -> ToolResult:
        """Give the started command its input, read its output, and end it if its time is up; return what it did."""
        process, exchange, ending, background = self._process, self._exchange, None, None
        deadline = None if self._timeout is None else self._timed_from + self._timeout
        with process:
            try:
                if not exchange.run(deadline, self._shall_stop if self._can_cancel else None):
                    ending = self._end(exchange)
                exchange.drain()
                if ending is None and process.is_in_session and (left := exchange.left_open()):
                    shared: Shared = process  # type: ignore[assignment]  # the session's subclass
                    file, fate = shared.keep_output(left, in_file=not self._has_secrets)
                    background = Background(file, fate, has_secrets=self._has_secrets)
                for output in self._outputs:
                    output.end()
            except BaseException:  # also KeyboardInterrupt
                process.kill()
                raise
            finally:
                exchange.close()
                self.inlet.close()
        result = self._record(ending, background)
        for output in self._outputs:  # the call may live longer than anybody needs them
            output.forget()
        return result

    def _end(self, exchange: Exchange) -> Ending:
        """End the command and everything that it has started; return how."""
        process, is_cancelled = self._process, self._shall_stop()
        process.mark_early("cancelled" if is_cancelled else "timeout")
        by, grace = "SIGKILL", 0.0 if self._is_hurried else self._grace
        if grace:
            process.ask_to_end(patiently=True)
            if exchange.run(time.monotonic() + grace, lambda: self._is_hurried):
                by = "SIGTERM"
        if by == "SIGKILL":
            process.kill()
            process.wait()
        return Ending(self._timeout or 0, by, grace, process.is_in_session, "cancelled" if is_cancelled else "timeout")

    def _policy_now(self) -> Policy:
        """Return the policy with the network list that is in force now: Sandbox.update() replaces it."""
        line, policy = self._process._line, self._policy
        network = None if line is None or line.is_later else line.relay.network
        if not isinstance(network, Network) or not isinstance(policy.network, Network) or network == policy.network:
            return policy
        return policy.with_(network=network)

    def _record(self, ending: Ending | None, background: Background | None) -> ToolResult:
        duration = time.monotonic() - self._began
        stdout, stderr = (output.text() for output in self._outputs)
        status, sandbox = self._process.wait(), self._process.sandbox
        if ending is not None:
            status = ends.returncode(status, ending.cause)
        why = hints.reasons(
            self._policy_now(),
            status,
            stdout,
            stderr,
            cwd=self._cwd,
            usage=sandbox.usage,
            ending=ending,
            args=self._args,
            shell=self._shell,
            network=sandbox.network,
        )
        if self._explain is not None:
            why = self._explain(why, status, (stdout, stderr))
        if self._told is not None and (why or ending is not None):
            hints_of = [(hint.kind, self._told.scrubbed(hint.message)) for hint in why]
            observers.note("explained", self._told.id, hints=hints_of, ended=None if ending is None else ending.cause)
        return ToolResult(
            args=self._args,
            returncode=status,
            stdout=stdout,
            stderr=stderr,
            stdout_bytes=self._outputs[0].count,
            stderr_bytes=self._outputs[1].count,
            is_truncated=any(output.left_out for output in self._outputs),
            timed_out=ending is not None and ending.cause == "timeout",
            duration=duration,
            why=why if background is None else (*why, background.hint()),
            usage=sandbox.usage,
            shell=self._shell,
            ended_by=None if ending is None else ending.by,
            background_output=None if background is None else background.file,
            cancelled=ending is not None and ending.cause == "cancelled",
            network=sandbox.network,
            audit_id=self._audit_id,
        )
