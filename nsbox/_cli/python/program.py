"""One program, run as `python -c` would: with the caller's streams, signals and exit status, in a branch."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading

from nsbox._base.errors import InterpreterError, NsboxError, PolicyError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._cli.messages import complain, of_chdir, say
from nsbox._cli.policy import in_options
from nsbox._cli.run import bridge, direct
from nsbox._cli.run.command import give_terminal
from nsbox._cli.run.job import TIMED_OUT, Job, NotStarted, started
from nsbox._logs import observers
from nsbox._python.call import PythonCall, refusal, run_frame
from nsbox._python.way import BranchKeeper, BranchPopen, BranchWay
from nsbox.sandbox import Sandbox

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator
    from typing import Any

    from nsbox._policy.policy import Policy
    from nsbox._python.line import BranchLine
    from nsbox.python import Python

_PROCESS_GROUP = 4  # PIDFD_SIGNAL_PROCESS_GROUP, Linux 6.9
_CHUNK = 65536


@frozen
class Program(Frozen):
    """A program to run.

    code: its text. name: as tracebacks have it. argv: its sys.argv.
    is_input: whether it came from stdin, of which nothing is left for the program.
    """

    code: str
    name: str
    argv: tuple[str, ...]
    is_input: bool = False

    @property
    def variables(self) -> dict[str, str] | None:
        """What the code of a file finds: its path, absolute as since Python 3.9; None for code that isn't in a file."""
        return {"__file__": os.path.abspath(self.name)} if self.name == self.argv[0] else None


def python_of(box: Sandbox, options: argparse.Namespace) -> Python:
    """Return the warm interpreter that the options ask for. Raises ValueError, which names an option."""
    more: dict[str, Any] = {"overlay": True} if options.overlay else {}
    try:
        return box.python(python=options.python, imports=options.imports, **more)
    except ValueError as error:
        if isinstance(error, NsboxError):
            raise
        name, _, problem = str(error).partition(" ")
        raise PolicyError({"imports": "--import"}.get(name, f"--{name}"), problem) from None


def no_interpreter(error: InterpreterError) -> int:
    """Report that there is no interpreter; return the exit status: 1 if a module can't be imported, else 125."""
    if error.stage == "import":
        say(f"--import: {error.what}: {error.problem}")
        return 1
    what = f"{error.what}: " if error.what else ""
    say(what + in_options(error.problem).replace("python=", "--python").replace("read=", "--read"))
    return 125


class BranchJob(BranchPopen, Job):
    """A branch, handled as a job. It isn't our child: it is signalled by its pidfd, and nothing reports its stops."""

    def __init__(self, *arguments: Any, branch: BranchWay, **options: Any) -> None:
        """Start it. branch: the way of `policy`."""
        self._branch, self._stopped = branch, 0
        super().__init__(*arguments, **options)

    @property
    def line(self) -> BranchLine:
        """Its line, on which it says why it couldn't begin."""
        assert self._branch.line is not None
        return self._branch.line

    def group(self) -> int:
        """Return 0: it is in a session of its own, so no terminal of ours has a foreground for it."""
        return 0

    def signal(self, number: int) -> None:
        """Send a signal to its process group; before Linux 6.9, to the code alone.

        SIGSTOP stands for SIGTSTP, which has no effect in a session that no process can continue (setpgid(2)).
        """
        owners = self._session_command.owners
        if self._raw_status is not None or not owners:
            return
        self._stopped = int(number) if number in (signal.SIGSTOP, signal.SIGTSTP) else 0
        number = signal.SIGSTOP if self._stopped else number
        with contextlib.suppress(ProcessLookupError):
            try:
                signal.pidfd_send_signal(owners[0].fileno(), number, None, _PROCESS_GROUP)
            except OSError:
                self._session_command.signal(number)

    def suspend(self) -> None:
        """Stop it."""
        self.signal(signal.SIGTSTP)

    def stopped_by(self) -> int:
        """Return the signal by which it was stopped here, since the last call, or 0."""
        number, self._stopped = self._stopped, 0
        return number

    def await_event(self, fds: Iterable[int], room: Iterable[int] = ()) -> set[int]:
        """Return which of the descriptors are ready; meanwhile, serve its line."""
        line = self.line
        if line.has_ended or self._raw_status is not None:
            return super().await_event(fds, room)
        ours = line.fileno()
        ready = super().await_event([*fds, ours], [*room, ours] if line.wants_room else room)
        if ours in ready:
            line.write()
            line.read()
        return ready

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._raw_status is None and self._session_command.ends_within(0):
            self.line.drain()  # before it is closed
        return super()._try_wait(wait_flags)


class _JobKeeper(BranchKeeper):
    def _popen_class(self, kind: type[Any]) -> type[Any]:
        return BranchJob


class Work:
    """The work of the process that starts the program; see nsbox._cli.run.bridge."""

    def __init__(self, program: Program, policy: Policy, options: argparse.Namespace) -> None:
        """Hold what the options say; nothing is done yet."""
        self._program, self._policy, self._options = program, policy, options
        self._stack = contextlib.ExitStack()

    def start(self, **options: Any) -> Job:
        """Return the started program. Raises what Python.run() raises about the sandbox and the interpreter."""
        words, program = self._options, self._program
        streams = {name: options[name] for name in ("stdin", "stdout", "stderr") if name in options}
        give_terminal(self._policy, [*streams.values()])
        py = python_of(self._stack.enter_context(Sandbox(self._policy)), words)
        py.start()
        frame = run_frame(1, program.code, program.variables, name=program.name)
        way = BranchWay(py._policy(), py._supply, frame, [*program.argv])  # what the Sandbox makes of the policy
        keeper: Any = _JobKeeper(way)
        more = {"branch": way, "cwd": words.chdir, "timeout": words.timeout, "own_group": False}
        token = observers.call.set(observers.Call(program.code, None))  # for its record
        try:
            return started(["python"], lambda: BranchJob(["python"], policy=keeper, **streams, **more))
        finally:
            observers.call.reset(token)

    def finish(self, job: Job, output: str) -> int:
        """Return the exit status, once nothing is left of the program. output: as for hints()."""
        if job.status:
            from nsbox._cli.run.hints import hints

            is_from_file = self._options.policy is not None
            for text in hints(self._policy, job, output, command=["python"], line=None, is_from_file=is_from_file):
                say(text)
        self._stack.close()
        assert isinstance(job, BranchJob)
        if job.line.failure is not None:
            raise refusal(job.line.failure, self._policy, self._options.chdir)
        if job.timed_out:
            return late(self._options, job.status)
        return job.status

    def fail(self, error: BaseException) -> int:
        """Report an error; return the exit status for it."""
        with contextlib.suppress(NsboxError):
            self._stack.close()
        return failed(error, self._options)


def late(options: argparse.Namespace, status: int) -> int:
    """Report that the time is up; return the exit status."""
    return complain(PolicyError("--timeout", f"the code was ended after {options.timeout:g} s"), status)


def failed(error: BaseException, options: argparse.Namespace) -> int:
    """Report an error of the start; return the exit status for it."""
    if isinstance(error, NotStarted):
        error = error.error
    if isinstance(error, InterpreterError):
        return no_interpreter(error)
    if isinstance(error, NsboxError | OSError):
        status, is_from_file = 2 if isinstance(error, PolicyError) else 125, options.policy is not None
        return complain(of_chdir(error, options.chdir), status, is_from_file=is_from_file)
    import traceback  # for a bug of ours

    traceback.print_exception(error)
    return 125


def run(program: Program, policy: Policy, options: argparse.Namespace) -> int:
    """Run a program to its end; return its exit status, 128+N after signal N."""
    with _streams(program):
        work = Work(program, policy, options)
        terminals = [fd for fd in range(3) if os.isatty(fd)]
        if terminals:
            return bridge.run(work, terminals)
        try:
            job, _ = direct.run(work.start, has_session=True, is_session_ours=False)
            return work.finish(job, "")
        except (NotStarted, NsboxError, OSError) as error:
            return work.fail(error)


@contextlib.contextmanager
def _streams(program: Program) -> Iterator[None]:
    """Open what is closed, and replace a stdin that the program can't have.

    In a pipeline, other programs may need the user's terminal as it is, so a program that reads from it gets a pipe.
    """
    for fd in range(3):
        with contextlib.suppress(OSError):
            os.fstat(fd)
            continue
        os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    copier = 0
    if program.is_input:
        _become(os.open(os.devnull, os.O_RDONLY), 0)
    elif os.isatty(0) and bridge.is_pipeline():
        reader, writer = os.pipe()
        copier = os.fork()
        if copier == 0:
            _copy(writer)
        os.close(writer)
        _become(reader, 0)
    try:
        yield
    finally:
        if copier:
            os.kill(copier, signal.SIGKILL)
            os.waitpid(copier, 0)


def _become(fd: int, target: int) -> None:
    os.dup2(fd, target)
    os.close(fd)


def _copy(writer: int) -> None:
    """Copy stdin to a pipe, in a process that ends with either."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program's own business
        while data := os.read(0, _CHUNK):
            while data:
                data = data[os.write(writer, data) :]
    finally:
        os._exit(0)


# ---- as a record


def record(program: Program, policy: Policy, options: argparse.Namespace) -> int:
    """Run a program, print its record as JSON, and return its exit status."""
    with contextlib.ExitStack() as stack:
        box = stack.enter_context(Sandbox(policy))
        py = python_of(box, options)
        call = PythonCall(
            py._supply,
            py._policy(),
            program.code,
            name=program.name,
            inputs=program.variables,
            program=program.argv[0],
            args=program.argv[1:],
            cwd=None if options.chdir is None else os.path.abspath(options.chdir),
            timeout=options.timeout,
            open_stdin=not program.is_input,
        )
        if not program.is_input:
            threading.Thread(target=_feed, args=(call,), daemon=True).start()
        result = call.run()
    print(result.as_json())
    sys.stdout.flush()
    if result.timed_out:
        return late(options, TIMED_OUT)
    return 128 - result.returncode if result.returncode < 0 else result.returncode


def _feed(call: PythonCall) -> None:
    """Let the program read our stdin."""
    with contextlib.suppress(OSError, ValueError):
        while data := os.read(0, _CHUNK):
            call.inlet.send(data)
    with contextlib.suppress(OSError, ValueError):
        call.end_input()
