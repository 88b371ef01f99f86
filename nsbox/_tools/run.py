"""One call of a tool: a command with bounded output, a time limit, and an answer that says why it failed."""

from __future__ import annotations

import codecs
import errno
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping

from nsbox._base.checks import check_size
from nsbox._base.errors import NsboxError, PolicyError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._layout.owner import remedy
from nsbox._lifetime import kills
from nsbox._lookup.host import host_for
from nsbox._paths.resolution import absolute
from nsbox._spawn.prepare import prepare
from nsbox._tools import dangerous, hints
from nsbox._tools import shell as tools_shell
from nsbox._tools.verdicts import Background, Ending, Hint
from nsbox._tools.view import view

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO, Any

    from nsbox._leaks.scrub import Scrubber
    from nsbox._lifetime.usage import Usage
    from nsbox._policy.policy import Policy
    from nsbox.secrets import Secret, Store

SCHEMA = "nsbox.result/1"
MOST_OUTPUT = 100_000  # bytes of each stream that are kept by default
_CEILING = 64 << 20  # bytes of each stream that a caller can ask for at most
_CHUNK = 1 << 16
_GLANCE = 0.05  # seconds between two looks whether a command has ended while other processes hold its pipes open
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # the statuses of a shell for such programs


@frozen
class ToolResult(Frozen):
    """What a command did and, if it failed, why.

    args: as the caller gave them.
    returncode: the exit status; -N after signal N; 127 for a program that doesn't exist, 126 for one that can't be
        executed. A command that took too long and then exited with 0 has -15, since it hasn't done its work.
    stdout, stderr: as text (UTF-8; bytes that aren't become U+FFFD), with a note in the middle if some was left out.
    stdout_bytes, stderr_bytes: how many bytes there were.
    is_truncated: whether some of either was left out.
    timed_out: whether it was ended for taking too long.
    duration: seconds until nothing of it was left.
    why: what in the policy may have made it fail, a sentence each; () if it hasn't failed.
    usage: what it used up, and why it ended; None if it wasn't started.
    shell: the shell that read the command line, as a path in the sandbox; None if none did.
    ended_by: if it took too long, the signal after which nothing was left: "SIGTERM", in the grace time, or "SIGKILL";
        None otherwise.
    background_output: in a session, the file there that gets what processes which the command has left running print
        from then on; None if none has its streams.
    """

    args: Any
    returncode: int
    stdout: str
    stderr: str
    stdout_bytes: int
    stderr_bytes: int
    is_truncated: bool
    timed_out: bool
    duration: float
    why: tuple[Hint, ...] = ()
    usage: Usage | None = None
    shell: str | None = None
    ended_by: str | None = None
    background_output: str | None = None

    @property
    def signal(self) -> str | None:
        """The name of the signal that ended it, such as "SIGKILL"."""
        if self.returncode >= 0:
            return None
        try:
            return signal.Signals(-self.returncode).name
        except ValueError:
            return f"SIGRTMIN+{-self.returncode - signal.SIGRTMIN}"

    def check_returncode(self) -> None:
        """Raise CalledProcessError unless the exit status is 0."""
        if self.returncode:
            raise subprocess.CalledProcessError(self.returncode, self.args, self.stdout, self.stderr)

    def as_dict(self) -> dict[str, object]:
        """Return it as values for JSON, for a model; `schema` changes when a key's meaning does."""
        return {
            "schema": SCHEMA,
            "status": self.returncode if self.returncode >= 0 else None,
            "signal": self.signal,
            "timed_out": self.timed_out,
            "ended_by": self.ended_by,
            "background_output": self.background_output,
            "duration": round(self.duration, 3),
            "stdout": self.stdout,
            "stderr": self.stderr,
            "stdout_bytes": self.stdout_bytes,
            "stderr_bytes": self.stderr_bytes,
            "truncated": self.is_truncated,
            "shell": self.shell,
            "why": [{"kind": hint.kind, "message": hint.message} for hint in self.why],
            "usage": None if self.usage is None else self.usage.as_dict(),
        }

    def as_json(self) -> str:
        """Return as_dict() as JSON."""
        return json.dumps(self.as_dict())


class Output:
    """Keeps the beginning and the end of a stream, each up to half of `most` bytes, and counts them all."""

    def __init__(self, most: int, scrubber: Scrubber | None = None) -> None:
        self._half = max(1, most // 2)
        self._head, self._tail = bytearray(), bytearray()
        self._scrubber = scrubber
        self.count = 0

    def feed(self, data: bytes) -> None:
        """Add data to it."""
        if self._scrubber is not None:
            data = self._scrubber.feed(data)
        self.count += len(data)
        room = self._half - len(self._head)
        self._head += data[: max(0, room)]
        self._tail += data[max(0, room) :]
        if len(self._tail) > 4 * self._half + _CHUNK:
            del self._tail[: -self._half]

    def end(self) -> None:
        """Add what the scrubber has held back."""
        scrubber, self._scrubber = self._scrubber, None
        if scrubber is not None:
            self.feed(scrubber.flush())

    @property
    def left_out(self) -> int:
        """The number of bytes that text() lacks."""
        return max(0, self.count - 2 * self._half)

    def text(self) -> str:
        """Return what was kept, with a note in the middle if some was left out."""
        tail = self._tail[-self._half :]
        if not self.left_out:
            return (self._head + tail).decode("utf-8", "replace")
        skipped = next((i for i, byte in enumerate(tail[:3]) if byte & 0xC0 != 0x80), len(tail[:3]))
        head = codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(self._head))
        return f"{head}\n[... {self.left_out} bytes left out ...]\n{tail[skipped:].decode('utf-8', 'replace')}"


def check_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for one command; raises PolicyError for one by which programs run others' code."""
    if not isinstance(env, Mapping):
        raise TypeError(f"env is a {type(env).__name__}, must be a mapping of names to values")
    for name, value in env.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise TypeError(f"env has {name!r}: {type(value).__name__}, must be names and values that are str")
        if name in dangerous.HARMLESS_ENV:
            continue
        reason = dangerous.DANGEROUS_ENV.get(name) or next(
            (why for prefix, why in dangerous.DANGEROUS_PREFIXES.items() if name.startswith(prefix)), None
        )
        if reason is not None:
            raise PolicyError("env", f"{name} is refused in a tool call: {reason}; Policy.env can set it")
    return dict(env)


def _deadline(timeout: float | None) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < 1e9:
        raise ValueError(f"timeout is {timeout!r}, must be a number of seconds above 0")
    return time.monotonic() + timeout


class _Exchange:
    """Moves data between this process and a command until its streams end, it ends, or its time is up."""

    def __init__(self, process: Any, data: bytes, outputs: tuple[Output, Output]) -> None:
        self._process, self._data, self._at = process, memoryview(data), 0
        self._selector = selectors.DefaultSelector()
        for stream, output in zip((process.stdout, process.stderr), outputs, strict=True):
            self._add(stream, selectors.EVENT_READ, output)
        if data:
            self._add(process.stdin, selectors.EVENT_WRITE, None)
        else:
            process.stdin.close()

    def _add(self, stream: IO[bytes], events: int, output: Output | None) -> None:
        os.set_blocking(stream.fileno(), False)
        self._selector.register(stream, events, output)

    def _drop(self, stream: Any) -> None:
        self._selector.unregister(stream)
        stream.close()

    def _step(self, key: selectors.SelectorKey) -> None:
        stream: Any = key.fileobj
        try:
            if key.data is None:
                self._at += os.write(stream.fileno(), self._data[self._at : self._at + _CHUNK])
                is_over = self._at == len(self._data)
            else:
                data = os.read(stream.fileno(), _CHUNK)
                key.data.feed(data)
                is_over = not data
        except BlockingIOError:
            return
        except BrokenPipeError:  # the command doesn't want the rest
            is_over = True
        if is_over:
            self._drop(stream)

    def run(self, deadline: float | None) -> bool:
        """Return whether the command ended in time. Its end counts even if other processes have its streams."""
        glance = time.monotonic() + _GLANCE
        while self._selector.get_map():
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                return False
            if now >= glance:  # even while other processes go on writing
                if self._process.poll() is not None:
                    break
                glance = now + _GLANCE
            for key, _ in self._selector.select(glance - now if deadline is None else min(glance, deadline) - now):
                self._step(key)
        try:
            self._process.wait(None if deadline is None else max(0.001, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True

    def drain(self) -> None:
        """Read what a command that has ended left in its pipes: as much as a pipe holds, and no more."""
        for _ in range(64):
            ready = [key for key, _ in self._selector.select(0) if key.data is not None]
            if not ready:
                break
            for key in ready:
                self._step(key)

    def left_open(self) -> list[int]:
        """Return the pipes whose other end is open although the command has ended."""
        return [key.fd for key in self._selector.get_map().values() if key.data is not None]

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            self._drop(key.fileobj)
        self._selector.close()


def _environment(policy: Policy, basis: Mapping[str, str] | None, extra: dict[str, str]) -> dict[str, str] | None:
    """Return the environment of a command; None: the one that the policy builds."""
    if basis is not None:
        return {**basis, **extra}
    if not extra:
        return None
    prepared = prepare(policy, host_for(policy))
    return prepared.environment.variables(dict(os.environ)) | extra


def _with_secrets(
    env: dict[str, str], secrets: Store | Mapping[str, Secret | str] | None
) -> tuple[dict[str, str], tuple[Scrubber, Scrubber] | tuple[None, None]]:
    """Return the environment with secrets in it, and a scrubber for each output; None: there are no secrets."""
    if secrets is None:
        return env, (None, None)
    from nsbox.secrets import inject

    if isinstance(secrets, str) or not (isinstance(secrets, Mapping) or hasattr(secrets, "names")):
        raise TypeError(f"secrets is a {type(secrets).__name__}, must be a store, or names and values")
    more, scrubber = inject(env, secrets)
    check_environment(more)
    return more, (scrubber, scrubber.another())


def run(
    start: Callable[..., Any],
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
    **options: Any,
) -> ToolResult:
    """Run a command, and return what it did.

    start: starts it; it has the parameters of Popen.
    argv: the command or, with shells, what follows the shell.
    args: the command as the result shows it.
    basis: the environment to which env adds; None: the one that the policy builds.
    shells: those to try in order: the first that can be started reads the line.

    Commands.shell() describes the other parameters.
    """
    more, scrubbers = _with_secrets(check_environment(env or {}), secrets)
    options["env"] = _environment(policy, basis, more)
    if cwd is not None:
        cwd = absolute(os.path.join(policy.workdir or "", os.fspath(cwd)))
    began, deadline, grace = time.monotonic(), _deadline(timeout), kills.check_grace(grace)
    data = input.encode("utf-8", "surrogateescape") if isinstance(input, str) else bytes(memoryview(input or b""))
    most = check_size("max_output", max_output)
    if most > _CEILING:
        raise ValueError(f"max_output is {max_output!r}, must be at most {_CEILING} bytes")
    outputs = (Output(most, scrubbers[0]), Output(most, scrubbers[1]))
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    try:
        process, shell = _started(start, policy, argv, shells, cwd=cwd, bufsize=0, **pipes, **options)
    except OSError as error:
        if isinstance(error, NsboxError) or error.filename is None:
            raise
        return _not_started(error, policy, [*shells[-1:], *argv], args, cwd, began, shells)
    ended_by, background = _attended(process, data, outputs, deadline, grace, in_file=secrets is None)
    ending = None
    if ended_by is not None and timeout is not None:
        ending = Ending(timeout, ended_by, grace, process.is_in_session)
    duration = time.monotonic() - began
    return _record(process, outputs, duration, ending, background, policy, args, cwd, shell)


def _record(
    process: Any,
    outputs: tuple[Output, Output],
    duration: float,
    ending: Ending | None,
    background: Background | None,
    policy: Policy,
    args: Any,
    cwd: str | None,
    shell: str | None,
) -> ToolResult:
    stdout, stderr = (output.text() for output in outputs)
    status, sandbox = process.returncode, process.sandbox
    if ending is not None:
        status = status or -signal.SIGTERM  # 0 comes from a signal handler, and the command hasn't done its work
    why = hints.reasons(
        policy,
        status,
        stdout,
        stderr,
        cwd=cwd,
        usage=sandbox.usage,
        ending=ending,
        args=args,
        shell=shell,
        network=sandbox.network,
    )
    return ToolResult(
        args=args,
        returncode=status,
        stdout=stdout,
        stderr=stderr,
        stdout_bytes=outputs[0].count,
        stderr_bytes=outputs[1].count,
        is_truncated=any(output.left_out for output in outputs),
        timed_out=ending is not None,
        duration=duration,
        why=why if background is None else (*why, background.hint()),
        usage=sandbox.usage,
        shell=shell,
        ended_by=ending.by if ending is not None else None,
        background_output=background.file if background is not None else None,
    )


def _started(
    start: Callable[..., Any], policy: Policy, argv: list[str], shells: tuple[str, ...], **options: Any
) -> tuple[Any, str | None]:
    """Start a command, and return it with the shell that reads it: the first one that exists."""
    if not shells:
        return start(argv, **options), None
    candidates = list(shells)
    while len(candidates) > 1:
        shell = candidates.pop(0)
        try:
            return start([shell, *argv], **options), shell
        except OSError as error:
            if isinstance(error, NsboxError) or error.filename is None or os.fsdecode(error.filename) != shell:
                raise
            if len(candidates) == len(shells) - 1:
                candidates = [*tools_shell.likely(policy, candidates[:-1]), candidates[-1]]
    return start([candidates[0], *argv], **options), candidates[0]


def _attended(
    process: Any,
    data: bytes,
    outputs: tuple[Output, Output],
    deadline: float | None,
    grace: float,
    *,
    in_file: bool,
) -> tuple[str | None, Background | None]:
    """Give a command its input, read its output, and end it if its time is up.

    Returns two values: the signal that ended it, or None if it ended by itself; and what becomes of the output of
    processes that it has left running, or None if there are none.

    in_file: whether that output may be kept in a file.
    """
    with process:
        exchange, ended_by, background = None, None, None
        try:
            exchange = _Exchange(process, data, outputs)
            if not exchange.run(deadline):
                ended_by = _end(process, exchange, grace)
            exchange.drain()
            if ended_by is None and process.is_in_session and (left := exchange.left_open()):
                file, fate = process.keep_output(left, in_file=in_file)
                background = Background(file, fate, has_secrets=not in_file)
            for output in outputs:
                output.end()
        except BaseException:  # also KeyboardInterrupt
            process.kill()
            raise
        finally:
            if exchange is not None:
                exchange.close()
    return ended_by, background


def _end(process: Any, exchange: _Exchange, grace: float) -> str:
    """End a command that takes too long, and everything that it has started; return the last signal that it took."""
    process.mark_late()
    if grace:
        process.ask_to_end(patiently=True)
        if exchange.run(time.monotonic() + grace):
            return "SIGTERM"
    process.kill()
    process.wait()
    return "SIGKILL"


def _not_started(
    error: OSError,
    policy: Policy,
    argv: list[str],
    args: Any,
    cwd: str | None,
    began: float,
    shells: tuple[str, ...],
) -> ToolResult:
    """Return the result that a shell would give for a program that can't be started.

    Raises AccessError if the working directory is the problem.
    """
    shown = os.fsdecode(error.filename)
    cwd = policy.workdir if cwd is None else cwd
    if cwd is not None and shown in (cwd, os.path.realpath(cwd)) and shown != argv[0]:
        instead = remedy(policy, host_for(policy), os.path.realpath(cwd)) if error.errno == errno.EACCES else ""
        problem = f"is no directory in the sandbox ({error.strerror}){instead and f': {instead}'}"
        raise view(policy).refusal(cwd, problem, write=False) from None
    text = f"{shown}: {error.strerror}\n"
    status = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    why = hints.reasons(policy, status, "", text, cwd=cwd, usage=None, ending=None)
    if shells:
        why = (hints.no_shell(shells), *(hint for hint in why if hint.kind != "missing-program"))
    return ToolResult(
        args=args,
        returncode=status,
        stdout="",
        stderr=text,
        stdout_bytes=0,
        stderr_bytes=len(text.encode()),
        is_truncated=False,
        timed_out=False,
        duration=time.monotonic() - began,
        why=why,
    )
