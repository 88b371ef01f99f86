"""How a command becomes code in a branch: what Popen starts, and the Popen that knows how a branch ends."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

from nsbox._base.errors import SetupError
from nsbox._base.frozen import TYPE_CHECKING, replace
from nsbox._base.owners import opened
from nsbox._core import call
from nsbox._core.abi import constants as c
from nsbox._core.command import Result
from nsbox._interpreter.branch import BranchCommand, EndedError, Failed, Lost, SilentError
from nsbox._interpreter.plan import check
from nsbox._kept.session import open_pipes
from nsbox._lifetime.shutdown import is_finalizing
from nsbox._lookup.host import host_for
from nsbox._popen.popen import Popen
from nsbox._python.line import BranchLine
from nsbox._spawn.way import Keeper, Way

if TYPE_CHECKING:
    from typing import Any

    from nsbox._base.owners import Owner
    from nsbox._core.command import Command
    from nsbox._interpreter.interpreter import Interpreter
    from nsbox._interpreter.supply import Supply
    from nsbox._policy.policy import Policy
    from nsbox._spawn.prepare import Prepared
    from nsbox._spawn.start import Start

_LOOK = 1.0  # seconds until the next look at an interpreter that doesn't report an end
_INTERPRETERS = 3  # that may end, one after the other, while a branch is taken
_BRANCHES = 10  # that may end before their interpreter does: a sandbox's processes are killed in any order


class BranchPopen(Popen["Any"]):
    """The process of a branch. It isn't a child of this process; its interpreter reaps it, and reports its end."""

    _session_command: BranchCommand

    @property
    def is_in_session(self) -> bool:
        """Whether other commands share its sandbox: a branch has its own."""
        return False

    def _pass_through(self, policy: Policy, prepared: Prepared, positional: tuple[Any, ...]) -> None:
        """Raise UnavailableError: code never runs uncontained."""
        check(prepared.plan)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._creator != os.getpid():  # in a forked copy this isn't our child; do what subprocess does
            return self.pid, 0
        if self._raw_status is None:
            command = self._session_command
            if not wait_flags & os.WNOHANG:
                self._await_command()
            if not command.try_wait(wait_flags):
                return 0, 0
            self._raw_status, self._is_lost = command.status, command.is_lost
            if command.used is not None:
                used = command.used
                self._rusage = SimpleNamespace(  # type: ignore[assignment]
                    ru_utime=used.user_us / 1e6, ru_stime=used.system_us / 1e6, ru_maxrss=used.max_rss // 1024
                )
        if not wait_flags & os.WNOHANG:
            self._await_empty()
        elif not self._is_empty(0):
            return 0, 0
        assert self._raw_status is not None
        return self.pid, self._raw_status

    def _is_empty(self, timeout_ms: int) -> bool:
        """Return whether all processes of the branch have gone, except for a pid 1 that is about to end."""
        if self._init_pidfd < 0 or self._creator != os.getpid():
            return True
        return call.wait(self._init_pidfd, self._init_says if self._says_empty else -1, timeout_ms)

    def _slice(self) -> float:
        usual = super()._slice()
        return min(usual, _LOOK) if self._raw_status is None and self._session_command.has_exited() else usual

    def _await_command(self) -> None:
        while not self._session_command.ends_within(self._slice()):
            self._session_command.on_look(self._session_command)
            self._go_on()

    def _give_up(self, pidfd: Owner, is_ours: bool) -> None:
        pidfd.close()  # the interpreter reaps what it was of

    def watch(self) -> tuple[list[Owner], float | None]:
        """Return what to wait for before calling poll() again: as for any command."""
        if self._raw_status is not None:
            return super().watch()
        try:
            branch, pause = self._session_command, None if self._killed is None else self._killed.pause()
            ended = [opened(os.dup, branch.fileno())]
            if branch.has_exited():
                return ended, _LOOK if pause is None else min(pause, _LOOK)
            return [*ended, branch.pidfd()], pause
        except (OSError, IndexError):  # no descriptor is free, or another thread is just collecting the end
            return [], 0.001

    def send_signal(self, sig: int, *, _is_late: Any = is_finalizing) -> None:
        """Send a signal to the code. SIGKILL ends all of the branch."""
        if _is_late():
            self._last_kill(sig)
            return
        if self.poll() is not None:
            return
        if self._timed_out:
            self._last_signal = sig
        if self._raw_status is None:
            self._session_command.signal(sig)
        if sig == signal.SIGKILL:
            self._begin_kill()


class BranchKeeper(Keeper):
    """Stands for a policy when Popen starts code: it has the way, and the class that Popen is to be."""

    def __init__(self, way: BranchWay) -> None:
        self._way = way

    def _open_way(self) -> BranchWay:
        """Return how code is started."""
        return self._way

    def _popen_class(self, kind: type[Any]) -> type[Any]:
        """Return the class of a branch's process."""
        return BranchPopen


class BranchWay(Way):
    """Starts code in one branch.

    code: the frames for the branch to begin with. is_kernel: whether it stays for more.
    branch, line: the branch and its line, once it has been started. interpreter: which it is a branch of.
    """

    def __init__(
        self, policy: Policy, supply: Supply, code: bytes, argv: list[str], *, is_kernel: bool = False
    ) -> None:
        super().__init__(policy)
        self.kind = "kernel" if is_kernel else "python"
        self._supply, self._code, self._argv, self._is_kernel = supply, code, argv, is_kernel
        self.line: BranchLine | None = None
        self.branch: BranchCommand | None = None
        self.interpreter: Interpreter | None = None

    def spawn(self, start: Start) -> Result:
        """Let a parked branch begin."""
        _check_command(start.command)
        problem: Exception | None = None
        for _ in range(_INTERPRETERS):
            interpreter = self._supply.interpreter(self.policy, start.prepared)
            for _ in range(_BRANCHES):
                try:
                    return self._taken(interpreter, start)
                except (Lost, Failed) as error:
                    problem = error
                _settle(interpreter, problem)
                if not interpreter.fits(start.prepared):
                    break
        raise SetupError(3, "make a branch", None, f"{problem}, time and again")  # ESRCH

    def _taken(self, interpreter: Interpreter, start: Start) -> Result:
        branch = interpreter.take(is_kernel=self._is_kernel)
        try:
            return self._begun(branch, interpreter, start)
        except Failed as error:
            if error.step == c.STEP_STALE:
                interpreter.doubt()
            if interpreter.fits(start.prepared):
                raise _failure(error, start, branch, interpreter) from None
            raise

    def _begun(self, branch: BranchCommand, interpreter: Interpreter, start: Start) -> Result:
        command, is_given = start.command, False
        try:
            branch.start(interpreter.fileno())
            rest = branch.go(self._message(start), _streams(command, start))  # it prepares itself meanwhile
            branch.await_entered(interpreter.fileno())
            interpreter.check(branch)
            self._limit(branch, start)
            rest = branch.run(self._code, rest)
            init_pidfd, says = (owner.fileno() for owner in branch.owners[1:])
            if command.owners is not None:  # from here on, they are the command's
                command.owners.extend(branch.owners[1:])
                del branch.owners[1:]
            self.branch, self.line, self.interpreter = branch, BranchLine(branch.line, rest), interpreter
            result = Result(0, 0, -1, branch.pid, branch.init_pid, init_pidfd, says)
            result.session_command, result.warm = branch, True
            command.line = branch.net

            def on_end() -> None:  # a kernel's line is read to its end before
                if self._is_kernel:
                    branch.close()
                else:
                    branch.end()
                interpreter.give_back()

            result.on_end, branch.on_look = on_end, interpreter.look
            is_given = True
            return result
        finally:
            if not is_given:
                branch.signal(signal.SIGKILL)
                branch.close()
                interpreter.give_back()
                if command.leaf is not None:
                    leaf, command.leaf = command.leaf, None
                    leaf.end(kill=True)

    def _message(self, start: Start) -> dict[str, object]:
        command = start.command
        items = command.envp.items
        env = dict(os.fsdecode(item).split("=", 1) for item in items)
        return {
            "op": "go",
            "env": env,
            "cwd": None if command.cwd is None else os.fsdecode(command.cwd),
            "argv": self._argv,
            "umask": None if command.umask < 0 else command.umask,
            "kernel": self._is_kernel,
            "seed": os.urandom(32).hex(),
            "fds": list(command.pass_fds),
        }

    def _limit(self, branch: BranchCommand, start: Start) -> None:
        plan = start.prepared.plan
        if not plan.cgroup:
            return
        from nsbox._machine.cgroup import Leaf

        leaf = Leaf(plan.cgroup, plan.cgroup_limits)
        start.command.leaf = leaf
        try:
            leaf.enter(plan.cgroup_limits, (branch.init_pid, branch.pid))
        except ProcessLookupError:
            raise Lost("it has ended") from None
        except OSError as error:
            raise SetupError(error.errno or 5, "limit", f"cgroup {plan.cgroup}", "") from error


def _settle(interpreter: Interpreter, problem: Exception) -> None:
    """Make sure that an interpreter which makes no more branches isn't asked again."""
    if isinstance(problem, EndedError):
        interpreter.await_end()
    elif isinstance(problem, SilentError):
        interpreter.give_up(str(problem))


def _check_command(command: Command) -> None:
    """Refuse options that only a child of this process can have."""
    for name, is_used in (
        ("preexec_fn", command.preexec is not None),
        ("user, group and extra_groups", (command.uid, command.gid, command.groups) != (None, None, None)),
        ("close_fds=False", not command.flags & c.CLOSE_FDS),
        ("DEVNULL", c.DEVNULL in command.stdio),
    ):
        if is_used:
            raise ValueError(f"{name} can't be used for code: a branch isn't a child of this process")


def _streams(command: Command, start: Start) -> list[int]:
    fds = [fd if fd >= 0 else target for target, fd in enumerate(command.stdio)]
    if start.prepared.plan.kernel_id:
        open_pipes(fds)
    return [*fds, *command.pass_fds]


def _failure(error: Failed, start: Start, branch: BranchCommand, interpreter: Interpreter) -> BaseException:
    from nsbox._spawn.failure import exception

    result = Result(error.number, error.step, error.op, 0, 0, -1, -1, detail=error.detail.encode())
    if error.step == c.STEP_NET:
        from nsbox._relay.relay import spawn_error  # for network lists alone

        return spawn_error(result, branch.net)
    own = replace(start.prepared, ops=interpreter.renewed)  # those that the result counts
    return exception(result, start.by(own), host_for(start.policy))
