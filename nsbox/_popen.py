"""Popen: subprocess.Popen whose child is made by nsbox. All else, pipes, text modes, communicate(), is the base's own.

The command is this process's own child, so pid, returncode, signals and rusage are what they are for a plain Popen. One
thing is added to waiting: the status of a command that has been reaped is kept back until all processes of its
sandbox are gone, but for an init that is about to end.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import sys
import time
from contextvars import ContextVar
from operator import itemgetter

from nsbox import _arguments, _containment, _core, _reap, _spawn, _usage
from nsbox import _failure as _failure  # now: when a spawn fails for want of descriptors, nothing can be imported
from nsbox._cgroup import Leaf, Spent
from nsbox._checks import check_bool
from nsbox._frozen import TYPE_CHECKING
from nsbox._keeper import Keeper, Way
from nsbox._plan import Plan
from nsbox._policy import Policy
from nsbox._probe import host_for
from nsbox._spawn import null_free

if TYPE_CHECKING:
    import resource
    from collections.abc import Callable, Sequence
    from typing import Any, Self

in_force: ContextVar[Policy | Keeper | None] = ContextVar("nsbox.confined", default=None)
"""The policy of the nsbox.confined() block that the code at hand runs in."""

announcing: ContextVar[bool] = ContextVar("nsbox.announcing", default=False)
"""Whether the audit event at hand is of a command that goes into a sandbox."""


def check_policy(policy: object) -> Policy | Keeper:
    """Return what can be given for a policy; raises TypeError for anything else."""
    if not isinstance(policy, Policy | Keeper):
        raise TypeError(f"policy is a {type(policy).__name__}, must be nsbox.Policy or nsbox.Sandbox")
    return policy


class Confinable(subprocess.Popen["Any"]):
    """subprocess.Popen, but that its command goes into a sandbox where a policy is given or in force.

    What nsbox.install() puts in the place of subprocess.Popen. Without a policy every method is the base's own.
    """

    _is_plain = False
    _plan: Plan  # not there without a policy
    _says_empty: bool
    _init_pid = 0
    _is_warm = False
    _entered: Any = None  # _session's, of a command that pid 1 of a session has started
    _pid_namespace: int

    def __new__(cls, *args: Any, policy: Any = None, **options: Any) -> Self:
        """Make one that knows how to wait for the command, if that isn't to be a child of this process."""
        keeper = in_force.get() if policy is None else policy
        return super().__new__(keeper.popen(cls) if isinstance(keeper, Keeper) else cls)

    def __init__(
        self,
        args: Any,
        *more: Any,
        policy: Policy | Keeper | None = None,
        kill_on_exit: bool | None = None,
        **options: Any,
    ) -> None:
        policy = in_force.get() if policy is None else check_policy(policy)
        if kill_on_exit is not None:
            check_bool("kill_on_exit", kill_on_exit)
        self._way: Way | None = None
        self._on_end: Callable[[], object] = bool
        if isinstance(policy, Keeper):
            self._way = way = policy.way()
            policy = way.policy
        self._policy = policy
        self._kill_on_exit = kill_on_exit
        self._init_pidfd = self._init_says = -1
        self._raw_status: int | None = None  # of the command, once it has been reaped
        self._returncode: int | None = None
        self._timed_out = False
        self._last_signal = 0  # that was sent after a TimeoutExpired
        self._creator = os.getpid()
        self._began = time.monotonic()
        self._ended = 0.0
        self._rusage: resource.struct_rusage | None = None  # of the command
        self._last_word = b""  # of the init, about the others
        self._leaf: Leaf | None = None  # the sandbox's cgroup
        self._spent: Spent | None = None  # what that said at the end
        super().__init__(args, *more, **options)

    # ---- starting

    def _unasked(self, cwd: Any) -> Policy | None:
        """Return the policy for a command that was given none, outside of confined(); None: not contained."""
        return None

    def _execute_child(self, *positional: Any) -> None:
        args, executable, preexec_fn, shell, cwd, env, *rest = _chosen(positional)
        policy = self._wished(cwd)
        if policy is None:
            self._is_plain = True
            super()._execute_child(*positional)  # type: ignore[misc]
            return
        p2cread, c2pwrite, errwrite, pass_fds, close_fds, signals, session, group, umask, uid, gid, gids = rest
        if preexec_fn is not None and sys.is_finalizing():
            raise RuntimeError("preexec_fn not supported at interpreter shutdown")
        argv, program = _arguments.arguments(args, executable, shell)
        _announce(program, argv, cwd, env)
        _arguments.check_ids(uid, gid, gids)
        prepared = _spawn.prepare(policy, host_for(policy))
        if prepared.plan.backend == "passthrough":
            self._pass_through(policy, prepared, positional)
            return
        if env is None:
            envp, directories = _spawn.environment(policy, prepared), _spawn.search_path
        else:
            envp = _core.Strings(_spawn.encode_environment(env))
            directories = lambda *_: os.get_exec_path(env)  # noqa: E731
        directory, required = _arguments.directory(policy, prepared, cwd)
        command = _core.Command(
            programs=_arguments.programs(program, lambda: directories(policy, prepared)),
            argv=[null_free(os.fsencode(arg)) for arg in argv],
            envp=envp,
            cwd=directory,
            flags=_spawn.command_flags(
                close_fds=close_fds, restore_signals=signals, new_session=session, cwd_required=required
            ),
            stdio=(self._stdio(p2cread), self._stdio(c2pwrite), self._stdio(errwrite)),
            pass_fds=_arguments.descriptors(pass_fds) if pass_fds else (),
            umask=umask,
            pgid=group,
            uid=uid,
            gid=gid,
            groups=gids,
            preexec=preexec_fn,
            inherits_env=_spawn.set_by(policy) if preexec_fn is not None and env is None else None,
        )
        start = _spawn.spawn if self._way is None else self._way.spawn
        result = start(policy, prepared, command, program, directory if cwd is None else cwd)
        # No call in these lines, after which a signal's handler could raise while nobody owns the command.
        self.pid = result.pid
        self._plan = prepared.plan
        self._says_empty = prepared.says_empty
        self._init_pid, self._init_pidfd, self._init_says = result.init_pid, result.init_pidfd, result.init_says
        self._is_warm, self._on_end, self._entered = result.warm, result.on_end, result.entered
        self._leaf = command.leaf
        self._child_created = True
        try:
            self._take_over(prepared, positional)
        except BaseException:
            self.kill()
            self.wait()
            raise

    def _pass_through(self, policy: Policy, prepared: _spawn.Prepared, positional: tuple[Any, ...]) -> None:
        """Start the command as the base does, but in the environment and the directory that the policy says."""
        chosen = dict(zip(_names, positional, strict=False))
        if chosen["env"] is None:
            chosen["env"] = policy.environment(os.environ, prepared.path, prepared.tmpdir, is_contained=False)
        if chosen["cwd"] is None and policy.base != "host":
            chosen["cwd"] = policy.workdir
        chosen["start_new_session"] = chosen["start_new_session"] or policy.new_session
        self._is_plain, self._plan = True, prepared.plan
        token = announcing.set(True)
        try:
            super()._execute_child(*chosen.values())  # type: ignore[misc]
        finally:
            announcing.reset(token)

    def _wished(self, cwd: Any) -> Policy | None:
        policy = self._policy if self._policy is not None else self._unasked(cwd)
        if policy is None and self._kill_on_exit:
            raise ValueError("kill_on_exit=True needs a policy")
        if policy is None or self._kill_on_exit is None or self._kill_on_exit == policy.kill_on_exit:
            return policy
        return policy.with_(kill_on_exit=self._kill_on_exit)

    def _take_over(self, prepared: _spawn.Prepared, positional: tuple[Any, ...]) -> None:
        _reap.commands.add(self.pid)
        if self._leaf is not None:
            self._leaf.started(prepared.plan.cgroup_limits, self.pid)
        self._pid_namespace = _reap.pid_namespace(self.pid) if prepared.plan.nested else 0
        pipes = _pipes(positional)
        if pipes != (-1,) * 6:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _stdio(self, fd: int) -> int:
        """Return what the C core takes for a descriptor: DEVNULL is opened there, without a way to the host's node."""
        return _core.constants.DEVNULL if fd >= 0 and fd == getattr(self, "_devnull", -1) else fd

    @property
    def sandbox(self) -> _containment.Containment | None:
        """What contains the command; None if nothing does."""
        plan: Plan | None = getattr(self, "_plan", None)
        if plan is None:
            return None
        return _containment.Containment(
            plan.backend,
            plan,
            plan.enforced,
            plan.not_enforced,
            self.pid,
            self._init_pid,
            self._used(),
            self._raw_status is not None,
            self._is_warm,
        )

    def _used(self) -> _usage.Usage | None:
        if self._returncode is None:
            return None
        return _usage.usage(
            self._rusage,
            _core.used_by_others(self._last_word),
            wall=self._ended - self._began,
            status=self._returncode,
            timed_out=self._last_signal == -self._returncode,
            limits={limit.name: (limit.soft, limit.hard) for limit in self._plan.rlimits},
            spent=self._spent,
        )

    # ---- ending

    @property
    def returncode(self) -> int | None:
        """The exit status, -N after signal N; None while anything of the sandbox is left."""
        return self._returncode

    @returncode.setter
    def returncode(self, value: int | None) -> None:
        # Also called from outside: asyncio and psutil reap by themselves and store what they found.
        if value is not None:
            if self._raw_status is None:
                self._await_rest()
            if self._returncode is None:
                self._ended = time.monotonic()
            _reap.commands.discard(self.pid)
            self._release()
        self._returncode = value

    def _await_rest(self) -> None:
        """Wait for the sandbox of a command that somebody else has reaped; not long, since its init kills all."""
        if self._init_pidfd < 0 or self._creator != os.getpid():
            return
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT | _core.WALL)
        except ChildProcessError:
            self._is_empty(-1)
        # Else it isn't so: the command is alive, or a zombie that pid 1 of the sandbox can't end before.

    def _release(self) -> None:
        pidfd, self._init_pidfd = self._init_pidfd, -1
        init_says, self._init_says = self._init_says, -1
        is_ours = self._creator == os.getpid()  # what the parent of a forked copy will read isn't taken from it
        try:
            if init_says >= 0 and is_ours:
                self._last_word = _core.last_word(init_says)
        finally:
            if init_says >= 0:
                os.close(init_says)
            on_end, self._on_end, self._way = self._on_end, bool, None
            if is_ours:
                on_end()
            if pidfd >= 0:
                self._give_up(pidfd, is_ours)
            leaf, self._leaf = self._leaf, None
            if leaf is not None and is_ours:
                self._spent = leaf.end(kill=self._plan.kill_on_exit)

    def _give_up(self, pidfd: int, is_ours: bool) -> None:
        if not is_ours:
            os.close(pidfd)
        elif self._plan.kill_on_exit:
            _reap.orphans.release(pidfd)
            if _reap.leftovers.pidfds:
                _reap.leftovers.sweep()
        else:
            _reap.leftovers.add(pidfd)

    def _is_empty(self, timeout_ms: int) -> bool:
        """Say if all processes of the sandbox are gone, but for an init that is about to end.

        Only asked when the command is reaped: pid 1 can't end before that.
        """
        if self._init_pidfd < 0 or not self._plan.kill_on_exit:
            return True
        if not self._plan.nested:
            return _core.wait(self._init_pidfd, self._init_says if self._says_empty else -1, timeout_ms)
        # Children that a nested command has given us (CLONE_PARENT) are zombies by now, and pid 1 waits for them too.
        waited = 0
        while not _core.wait(self._init_pidfd, -1, 20 if timeout_ms < 0 else min(20, timeout_ms - waited)):
            _reap.reap_strays(self._pid_namespace)
            waited += 20
            if 0 <= timeout_ms <= waited:
                return _core.wait(self._init_pidfd, -1, 0)
        return True

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """Reap the command, then see the sandbox end; (0, 0) while that hasn't happened. As waitpid(2) for the base."""
        if self._is_plain:
            return super()._try_wait(wait_flags)  # type: ignore[misc, no-any-return]
        if self._raw_status is None:
            self._end_group(wait_flags)
            try:
                pid, status, rusage = _reap.wait(self.pid, wait_flags)
            except ChildProcessError:  # SIGCHLD is ignored, or another has reaped it: as the base does
                (pid, status), rusage = super()._try_wait(wait_flags), None  # type: ignore[misc]
            if pid != self.pid:
                return pid, status
            self._rusage = rusage
            _reap.commands.discard(self.pid)
            self._raw_status = self._status_inside(status) if self._plan.wrapper else status
        if not self._is_empty(0 if wait_flags & os.WNOHANG else -1):
            return 0, 0
        return self.pid, self._raw_status

    def _status_inside(self, status: int) -> int:
        """Return the command's wait status, by bwrap's and what that has said since it was started."""
        from nsbox import _wrap

        self._kill_init()  # bwrap may have been killed before that was tied to it
        said = b""
        with contextlib.suppress(BlockingIOError):
            said = os.read(self._init_says, 4096)
        return _wrap.status(status, said)

    def _end_group(self, wait_flags: int) -> None:
        """Without an init, end what the command leaves in its process group, whose number is kept by its zombie."""
        plan = self._plan
        if not (plan.plain and plan.new_session and plan.kill_on_exit) or plan.wrapper or self._creator != os.getpid():
            return
        with contextlib.suppress(ChildProcessError, ProcessLookupError, PermissionError):
            if _reap.has_ended(self.pid, block=not wait_flags & os.WNOHANG):
                os.killpg(self.pid, signal.SIGKILL)

    def _internal_poll(self, _deadstate: int | None = None, *more: Any, **helpers: Any) -> int | None:
        """poll(), and what __del__ and subprocess's clean-up call. Never blocks."""
        if self._is_plain:
            return super()._internal_poll(_deadstate, *more, **helpers)  # type: ignore[misc, no-any-return]
        if self.returncode is not None or not self._waitpid_lock.acquire(False):  # type: ignore[attr-defined]
            return self.returncode
        try:
            if self.returncode is None:
                pid, status = self._try_wait(os.WNOHANG)
                if pid == self.pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
        except OSError:
            if _deadstate is not None:
                self.returncode = _deadstate
        finally:
            self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode

    def _wait(self, timeout: float | None) -> int | None:
        """Wait as the base does; with a timeout by sleeping on pidfds, where the base polls."""
        if timeout is None or self._is_plain:
            return super()._wait(timeout=timeout)  # type: ignore[misc, no-any-return]
        end = time.monotonic() + timeout
        while self._internal_poll() is None:
            rest = end - time.monotonic()
            if rest <= 0:
                self._timed_out = True
                raise subprocess.TimeoutExpired(self.args, timeout)
            self._sleep(min(rest, 3600.0))
        return self.returncode

    def _check_timeout(self, *args: Any, **options: Any) -> None:
        """Raise TimeoutExpired for communicate()."""
        try:
            super()._check_timeout(*args, **options)  # type: ignore[misc]
        except subprocess.TimeoutExpired:
            self._timed_out = True
            raise

    def watch(self) -> tuple[list[int], float | None]:
        """Return descriptors, to be closed, of which one becomes readable at the next step towards the end.

        And how many seconds to wait at most before poll() is asked again; None: for ever. Before the command has been
        reaped the next step is its end, then that of its sandbox.
        """
        fds: list[int] = []
        try:
            if not _core.on_linux:
                return fds, 0.005
            if self._raw_status is None:
                fds.append(os.pidfd_open(self.pid))
                return fds, None
            # Copies: another thread may see the end, and close the descriptors, meanwhile.
            for fd in (self._init_pidfd, self._init_says if self._says_empty else -1):
                if fd >= 0:
                    fds.append(os.dup(fd))
            if len(fds) == 2 and _reap.has_hung_up(fds[1]):  # the init is being killed: it won't say more
                os.close(fds.pop())
        except OSError:  # no descriptor is free, or another thread is just reaping it
            return fds, 0.001
        except BaseException:  # of a signal's handler
            for fd in fds:
                os.close(fd)
            raise
        return fds, 0.02 if self._plan.nested or not fds else None

    def _sleep(self, seconds: float) -> None:
        fds, patience = self.watch()
        try:
            poller = select.poll()
            for fd in fds:
                poller.register(fd, select.POLLIN)
            poller.poll(math.ceil(1000 * (seconds if patience is None else min(seconds, patience))))
        finally:
            for fd in fds:
                os.close(fd)

    def send_signal(self, sig: int) -> None:
        """Send a signal to the command; when that has ended, SIGKILL still ends what is left of its sandbox."""
        if self._is_plain:
            super().send_signal(sig)
            return
        if self.poll() is not None:
            return
        if self._timed_out:
            self._last_signal = sig
        if self._raw_status is None and self._plan.wrapper and sig != signal.SIGKILL:
            from nsbox import _wrap

            os.kill(_wrap.command_of(self._init_pid) or self.pid, sig)  # of bwrap itself it would always be the end
        elif self._raw_status is None:
            super().send_signal(sig)
            if self._plan.wrapper:  # it hasn't tied its init to itself yet, at first
                self._kill_init()
        elif sig == signal.SIGKILL:
            self._kill_init()
        else:  # pid 1 is killing the rest. As with the base, what has ended has a returncode after this
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._wait(1.0)

    def _kill_init(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._init_pidfd >= 0:
                signal.pidfd_send_signal(self._init_pidfd, signal.SIGKILL)


class Popen(Confinable):
    """Start a command in a sandbox. Takes all that subprocess.Popen takes, and `policy` and `kill_on_exit`.

    policy: what the command may do; None means that of the nsbox.confined() block around, or else Policy.workspace() of
    `cwd`, or of the current directory. kill_on_exit: instead of the policy's. env=None gives the environment that the
    policy builds; a mapping is used as it is. wait(), communicate() and poll() say that the command has ended when no
    process of its sandbox is left that could run; with kill_on_exit=False, when the command has. `sandbox` says
    what contains it.

    Raises what subprocess.Popen raises, and PolicyError, UnavailableError, SetupError or AccessError.
    """

    def _unasked(self, cwd: Any) -> Policy:
        return _arguments.default_policy(cwd)

    @property
    def sandbox(self) -> _containment.Containment:
        """What contains the command: backend, plan, what is enforced and what isn't, its processes, what it used up."""
        found = super().sandbox
        assert found is not None
        return found


# The base's private method has had the same arguments, in this order or another, since 3.11: they are picked by name.
_code = subprocess.Popen._execute_child.__code__  # type: ignore[attr-defined]
_names = _code.co_varnames[1 : _code.co_argcount]
_chosen = itemgetter(
    *map(
        _names.index,
        (
            *("args", "executable", "preexec_fn", "shell", "cwd", "env", "p2cread", "c2pwrite", "errwrite", "pass_fds"),
            *("close_fds", "restore_signals", "start_new_session", "process_group", "umask", "uid", "gid", "gids"),
        ),
    )
)
_pipes = itemgetter(*map(_names.index, ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")))


def _announce(program: Any, argv: Sequence[Any], cwd: Any, env: Any) -> None:
    """Raise the audit event of subprocess.Popen, as one of ours."""
    if in_force.get() is None:  # nobody asks
        sys.audit("subprocess.Popen", program, argv, cwd, env)
        return
    token = announcing.set(True)
    try:
        sys.audit("subprocess.Popen", program, argv, cwd, env)
    finally:
        announcing.reset(token)
