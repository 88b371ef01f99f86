"""The warm interpreter: it imports, runs the set-up, and then makes a branch whenever its caller wants one.

What it imports, and the set-up, are trusted. It never reads what foreign code writes: the sockets of a branch are the
caller's, and go through here unread. In a sandbox a first process makes a pid namespace in which the interpreter itself
and all its branches live, and waits for it: see core.py.
"""

from __future__ import annotations

import builtins
import gc
import json
import os
import signal
import socket
import sys
import time
from types import ModuleType
from typing import Any, NoReturn

from . import interrupts
from .branch import Branch, rehearse
from .channel import Channel, high, received
from .children import Children, Forks, other_threads, seqpacket, tell
from .core import MOST_MOUNTS, Core, CoreError, fork_far
from .environment.guard import Guard
from .environment.prelude import Prelude
from .results.displays import Displays, Pyplot
from .results.exceptions import record
from .results.reply import Runs
from .start import builtin_input, remember_environment

_LONGEST = 1 << 16
_MOST_FDS = 3 + MOST_MOUNTS
_ESCAPED = "surrogateescape"


class StageError(Exception):
    """The interpreter can't be made: stage says where, failed is the caller's message."""

    def __init__(self, stage: str, what: str, kind: str, message: str, text: str = "") -> None:
        """Keep it, bounded."""
        super().__init__(message)
        self.failed = {
            "stage": stage,
            "what": what[:500],
            "type": kind[:500],
            "message": message[:2000],
            "traceback": text[-6000:],
        }


def serve(config: dict[str, Any], began: float) -> NoReturn:
    """Be the interpreter, until the caller closes the control socket.

    config: see boot.py.
    began: time.monotonic() at the start.
    """
    numbers = config["fds"]
    control = seqpacket(numbers["control"])
    os.close(numbers["zip"])
    try:
        core = None
        if not config.get("uncontained"):
            core = _apart(_load(config))
        server = Server(control, core)
        server.make(config)
    except StageError as error:
        tell(control, {"failed": error.failed}, [])
        raise SystemExit(1) from None
    seconds = round(time.monotonic() - began, 6)
    fds = [] if core is None else [core.lifeline_fd]
    executable = config.get("executable") or sys.executable
    tell(control, {"ready": True, **_description(), "executable": executable, "seconds": seconds}, fds)
    server.run()
    raise SystemExit(0)


def _description() -> dict[str, Any]:
    return {
        "version": list(sys.version_info[:3]),
        "implementation": sys.implementation.name,
        "prefix": sys.prefix,
    }


def _load(config: dict[str, Any]) -> Core:
    fds = config["fds"]
    try:
        blob = os.pread(fds["blob"], os.fstat(fds["blob"]).st_size, 0)
        core = Core(fds["core"], high(fds["init"]), blob, config["relocations"])
        os.close(fds["blob"])
        os.close(fds["core"])
    except (OSError, AttributeError) as error:
        raise StageError("core", "nsbox_branch", type(error).__name__, str(error)) from None
    return core


def _apart(core: Core) -> Core:
    """Go on in a pid namespace of our own, as a child; the first process waits for it, and ends as it does."""
    try:
        core.lifeline_fd = high(os.pidfd_open(os.getpid()))
        parameters = core.parameters()
        core.look(parameters)
        core.begin(parameters)
        pid = os.fork()
        if pid:
            core.end(parameters, True)
            _end_as(pid)
        for fd in (core.lifeline_fd, parameters.init_pidfd, parameters.says_fd, parameters.setup_fd):
            if fd >= 0:  # the first process's
                os.close(fd)
        pid = fork_far()
        if pid:
            _end_as(pid)
        core.lifeline_fd = high(os.pidfd_open(os.getpid()))
        core.pid_fd = high(os.open("/proc/self/ns/pid", os.O_RDONLY))
    except CoreError as error:
        raise StageError("core", f"step {error.step}", "CoreError", str(error)) from None
    except OSError as error:
        raise StageError("core", "fork", type(error).__name__, str(error)) from None
    return core


def _end_as(pid: int) -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1)


class Server:
    """The interpreter, once it runs."""

    def __init__(self, control: socket.socket, core: Core | None) -> None:
        """Nothing is imported yet.

        control: the caller's socket.
        core: None: branches are plain forks, for tests.
        """
        self._control = control
        self._core = core
        self._children = Children()
        self._displays = Displays()
        self._runs: Runs  # of the branches, like the next
        self._rehearsal: Runs
        self._prelude: Prelude | None = None  # that each branch makes itself
        self._guard = Guard(())
        self._main = ModuleType("__main__")
        vars(self._main)["__builtins__"] = builtins
        sys.modules["__main__"] = self._main

    # ---- the state that all branches begin with ---------------------------------------------------------------------

    def make(self, config: dict[str, Any]) -> None:
        """Import, and run the set-up; raises StageError."""
        if config.get("env") is not None:
            os.environ.clear()
            os.environ.update(config["env"])
        if config.get("cwd") is not None:
            try:
                os.chdir(config["cwd"])
            except OSError as error:
                raise StageError("setup", "cwd", type(error).__name__, str(error)) from None
        os.environ.setdefault("MPLBACKEND", "agg")
        sys.argv = [""]
        _adapt_streams()
        vars(builtins).update(display=self._displays.display, input=builtin_input)
        sys.meta_path.insert(0, Pyplot(self._displays.show))
        prelude = Prelude(config, vars(self._main))
        if config.get("cold"):
            self._prelude = prelude
        else:
            self._guard = Guard(config.get("regions") or ())
            _begin(prelude, self._guard)
        _check_threads()
        interrupts.hold(True)  # a branch lets it come
        for stream in (sys.stdout, sys.stderr):
            interrupts.call(lambda stream=stream: stream.flush())
        remember_environment()
        self._runs, self._rehearsal = Runs(vars(self._main), self._displays), Runs({}, self._displays)
        rehearse(self._rehearsal, 20)
        gc.collect()
        gc.freeze()

    # ---- branches ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Make branches, and tell of their ends, until the caller is gone."""
        while True:
            if self._children.wait(self._control.fileno()) and not self._receive():
                break
        self._children.kill()

    def _receive(self) -> bool:
        """Do what a message says; return whether there was one."""
        space = socket.CMSG_SPACE(4 * (_MOST_FDS + 1))
        data, control, _, _ = self._control.recvmsg(_LONGEST, space, socket.MSG_CMSG_CLOEXEC)
        fds = received(control)
        if not data:
            return False
        try:
            message = json.loads(data)
            mounts, relay = message.get("mounts", 0), message.get("relay")
        except (ValueError, AttributeError):  # no JSON, or no dict: as if it had come without descriptors
            mounts, relay = -1, None
        if (
            type(mounts) is int
            and mounts >= 0
            and len(fds) == 2 + mounts + (relay is not None)
            and mounts <= MOST_MOUNTS
        ):
            self._branch(fds, fds[2 : 2 + mounts], (-1, 0) if relay is None else (fds[-1], relay))
        else:
            for fd in fds:
                os.close(fd)
        return True

    def _branch(self, fds: list[int], mounts: list[int], relay: tuple[int, int]) -> None:
        """Make a branch.

        fds: what came for it: the socket that is told of it, its line, then mounts and the socket to the relay.
        """
        told, line = seqpacket(fds[0]), fds[1]
        hold, kept = None, None
        core, pid = self._core, -1
        parameters = core.parameters(mounts, relay) if core is not None else None
        try:
            if self._children.may_hold:
                hold = kept, _ = socket.socketpair()
            if core is not None and parameters is not None:
                core.begin(parameters)
            try:
                pid = os.fork()
                if pid == 0:
                    self._become(parameters, told, line, hold)
            finally:
                if core is not None and parameters is not None:
                    core.end(parameters, pid > 0)
        except CoreError as error:
            tell(told, error.told(), [])
        except OSError as error:
            tell(told, {"failed": error.errno, "step": 0, "op": -1}, [])
        finally:
            for fd in fds[1:]:
                os.close(fd)
            if hold is not None:
                hold[1].close()
        if pid > 0:
            self._watch(pid, told, parameters, kept)
            self._children.rehearse()
            return
        told.close()
        if kept is not None:
            kept.close()

    def _watch(self, pid: int, told: socket.socket, parameters: Any, hold: socket.socket | None) -> None:
        if parameters is None:
            self._children.add(pid, told, hold=hold)
            return
        self._children.add(pid, told, high(parameters.init_pidfd), parameters.says_fd, hold)
        os.close(parameters.says_fd)

    def _become(
        self, parameters: Any, told: socket.socket, line: int, hold: tuple[socket.socket, socket.socket] | None
    ) -> NoReturn:
        """In the child: be a branch."""
        try:
            self._children.forget()
            self._control.close()
            core = self._core
            if core is not None:
                try:
                    core.enter(parameters)
                except CoreError as error:
                    tell(told, error.told(), [])
                    os._exit(127)
                core.close(parameters)
                tell(told, {"entered": True}, [])
            else:
                os.setsid()
            self._guard.remove()  # here nothing has any rights
            told.close()
            if hold is not None:
                hold[0].close()
                _hand_over_mounts(hold[1])
            forks = Forks(core.fork if core is not None else os.setsid)
            Branch(Channel(line), self._runs, self._rehearsal, forks, self._prelude).serve()
        finally:
            os._exit(70)


def _hand_over_mounts(hold: socket.socket) -> None:
    """Put this branch's mount namespace where it outlives the branch for a moment.

    Otherwise the kernel takes the mounts apart before the interpreter learns that the branch has ended: that takes as
    long as a short run.
    """
    with hold:
        try:
            namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            try:
                tell(hold, {}, [namespace])
            finally:
                os.close(namespace)
        except OSError:  # the policy may hide it; then the run takes longer
            pass


def _begin(prelude: Prelude, guard: Guard) -> None:
    """Do what happens before code; raises StageError. From here on, nothing is loaded that commands can write to."""
    guard.install()
    failure = prelude.failure()
    if guard.found:
        raise StageError("open", guard.found, "", "")
    if failure is not None:
        told = record(failure.error, failure.sources)
        raise StageError(failure.stage, failure.what, told["type"], told["message"], told["traceback"])


def _check_threads() -> None:
    """Raise StageError if another thread runs: a fork would have its locks, but not the thread."""
    names = other_threads()
    if names:
        told = ", ".join(names)
        raise StageError("threads", told, "RuntimeError", f"threads run beside the interpreter's own: {told}")


def _adapt_streams() -> None:
    """Let the standard streams write any text, and each line at once.

    Code may be killed in a call that lets no signal handler run, such as a long search by `re`. What it has printed
    before must not be lost with its buffer.
    """
    for fd, (name, errors) in enumerate((("stdin", _ESCAPED), ("stdout", _ESCAPED), ("stderr", "backslashreplace"))):
        stream: Any = getattr(sys, name)
        if stream is None:
            stream = open(fd, "w" if fd else "r", closefd=False)  # noqa: SIM115 (it stays)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        stream.reconfigure(encoding="utf-8", errors=errors, line_buffering=fd > 0)
