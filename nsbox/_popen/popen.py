"""Popen: a subprocess.Popen whose child nsbox makes. Pipes, text modes and communicate() are the base class's own.

The command is this process's own child, so pid, returncode, signals and rusage are what they are for a plain Popen.
How it ends is _lifetime.lifetime's business.
"""

from __future__ import annotations

import os
import sys
from operator import itemgetter

from nsbox._base.checks import check_bool
from nsbox._base.display import type_phrase
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.owners import own_after
from nsbox._core import abi, call, linux, orphans
from nsbox._core.command import Command
from nsbox._lifetime import usage
from nsbox._lifetime.lifetime import Lifetime, Plain
from nsbox._logs.observers import listen
from nsbox._lookup.host import host_for
from nsbox._policy.policy import Policy
from nsbox._popen import arguments, blocks
from nsbox._popen import terminal as popen_terminal
from nsbox._popen.containment import Containment
from nsbox._spawn import environment
from nsbox._spawn.environment import null_free
from nsbox._spawn.prepare import Prepared, prepare
from nsbox._spawn.start import Start, command_flags, spawn
from nsbox._spawn.way import Keeper

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, AnyStr, Literal, Self, Unpack, overload

    from nsbox._base.owners import Owner
    from nsbox._core.command import LateLine, Line
    from nsbox._network.log import Mark
    from nsbox._plan.plan import Plan
    from nsbox._popen.keywords import CommandLine, Popened
    from nsbox._popen.pty import Pair, Terminal
    from nsbox._relay.relay import Relay

_NAMED = frozenset(("user", "group", "extra_groups"))  # may be names


def check_policy(policy: object) -> Policy | Keeper:
    """Return the policy, which may be a Policy or a Sandbox; raises TypeError for anything else."""
    if not isinstance(policy, Policy | Keeper):
        raise TypeError(f"policy is {type_phrase(policy)}, must be nsbox.Policy or nsbox.Sandbox")
    return policy


class Confinable(Lifetime["AnyStr"]):
    """subprocess.Popen, except that its command goes into a sandbox if a policy is given or in force.

    nsbox.install() replaces subprocess.Popen by this class. Without a policy, every method is the base's own.
    """

    _is_warm = False
    _hearers: tuple[Any, ...] | None = None  # on_connect and on_network
    _relay: Relay | None = None  # for these
    _line: Line | LateLine | None = None  # of this sandbox, with a network list
    _line_mark: Mark | None = None  # the line's mark at the start, in a session
    _terminal_of = 0  # 1 + the standard descriptor that is the command's own terminal, if there is one
    _pair: Pair | None = None  # that terminal, during the start

    terminal: Terminal | None = None
    """With pty=, the caller's end of the command's terminal; else None."""

    def __new__(cls, *args: Any, policy: Any = None, **options: Any) -> Self:
        """Make an instance of the class that can wait for the command, which need not be a child of this process."""
        keeper = blocks.current() if policy is None else policy
        return super().__new__(keeper._popen_class(cls) if isinstance(keeper, Keeper) else cls)

    def __init__(
        self,
        args: Any,
        *more: Any,
        policy: Policy | Keeper | None = None,
        kill_on_exit: bool | None = None,
        pty: bool | tuple[int, int] = False,
        on_connect: Any = None,
        on_network: Any = None,
        **options: Any,
    ) -> None:
        policy = blocks.current() if policy is None else check_policy(policy)
        if kill_on_exit is not None:
            check_bool("kill_on_exit", kill_on_exit)
        self.begin()
        if isinstance(policy, Keeper):
            self._way = way = policy._open_way()
            policy = way.policy
        if on_connect is not None or on_network is not None:
            self._hearers = self._checked_hearers(on_connect, on_network)
        self._policy = policy
        self._kill_on_exit = kill_on_exit
        if not _NAMED.isdisjoint(options):
            options = arguments.with_ids(options)
        if pty is False:
            super().__init__(args, *more, **options)
        else:
            self._init_with_terminal(args, more, pty, options)

    def _checked_hearers(self, *functions: Any) -> tuple[Any, ...]:
        for name, one in zip(("on_connect", "on_network"), functions, strict=True):
            if one is not None and not callable(one):
                raise TypeError(f"{name} is {type_phrase(one)}, must be a function")
            if one is not None and self._way is not None:
                raise ValueError(f"{name}= is the Sandbox's, for all of its commands: give it there")
        return functions

    def _init_with_terminal(
        self, args: Any, more: tuple[Any, ...], pty: bool | tuple[int, int], options: dict[str, Any]
    ) -> None:
        from nsbox._popen import pty as popen_pty  # seldom needed

        self._pair = made = popen_pty.pair(pty, self._way)
        try:
            options, first = popen_pty.options_for(made.fd, more, options)
            self._terminal_of = 1 + first
            super().__init__(args, **options)
        except BaseException:
            made.abandon()
            raise
        finally:
            made.close()
            self._pair = None
        self.terminal = made.terminal

    def __exit__(self, *error: Any) -> None:
        """Close the pipes and the terminal, and wait for the end."""
        if self.terminal is not None:
            self.terminal.close()
        super().__exit__(*error)

    def communicate(
        self, input: AnyStr | None = None, timeout: float | None = None, **late: Any
    ) -> tuple[AnyStr, AnyStr]:
        """Do as the base does. Raises ValueError while the terminal is open, since nothing would read it meanwhile."""
        if self.terminal is not None and not self.terminal.closed:
            raise ValueError("communicate() reads no terminal: read from `terminal`, then close it")
        return super().communicate(input, timeout, **late)  # type: ignore[return-value, arg-type]

    # ---- starting

    def _default_policy(self, cwd: Any) -> Policy | None:
        """Return the policy for a command without one, outside of confined(); None: it isn't contained."""
        return None

    def _execute_child(self, *positional: Any) -> None:
        if not listen():
            self._carry_out(positional)
            return
        from nsbox._popen.story import told  # for a program that listens

        told(self, positional[0], self._way, self._carry_out, positional)

    def _carry_out(self, positional: tuple[Any, ...]) -> None:
        args, executable, preexec_fn, shell, cwd, env, *rest = _chosen(positional)
        policy = self._wished(cwd)
        if policy is None:
            self._is_plain = True
            super()._execute_child(*positional)  # type: ignore[misc]
            self.adopt()
            return
        p2cread, c2pwrite, errwrite, pass_fds, close_fds, signals, session, group, umask, uid, gid, gids = rest
        if preexec_fn is not None and sys.is_finalizing():
            raise RuntimeError("preexec_fn not supported at interpreter shutdown")
        argv, program = arguments.arguments(args, executable, shell)
        _announce(program, argv, cwd, env)
        arguments.check_ids(uid, gid, gids)
        policy, prepared = self._prepare(policy)
        if self._story is not None:
            self._story.begin(policy, prepared, argv, program, arguments.shown_directory(policy, cwd))
        if prepared.plan.backend == "passthrough":
            self._pass_through(policy, prepared, positional)
            return
        exists = None if self._way is None else self._way.exists
        envp, directories = prepared.environment.of(env, exists)
        if self._story is not None:
            envp = self._story.added(envp, is_built=env is None)
        directory, required = arguments.directory(policy, prepared, cwd)
        passed: Sequence[int] = arguments.descriptors(pass_fds) if pass_fds else ()
        words = [null_free(os.fsencode(arg)) for arg in argv]
        name = words[0] if program is argv[0] else null_free(os.fsencode(program))
        stdio: tuple[int, int, int] = (p2cread, c2pwrite, errwrite)
        command = Command(
            programs=arguments.programs(name, directories),
            argv=words,
            envp=envp,
            cwd=directory,
            flags=command_flags(
                close_fds=close_fds, restore_signals=signals, new_session=session, cwd_required=required
            ),
            stdio=stdio if stdio == (-1, -1, -1) else self._stdio(*stdio),
            pass_fds=passed,
            umask=umask,
            pgid=group,
            uid=uid,
            gid=gid,
            groups=gids,
            preexec=preexec_fn,
            inherits_env=environment.set_by(policy) if preexec_fn is not None and env is None else None,
            filters=popen_terminal.filters(policy, prepared.plan, (*stdio, *passed)),
            owners=self._held,
        )
        self._connect(command)
        try:
            self._start(Start(policy, prepared, command, program, directory if cwd is None else cwd))
            self._take_over(prepared, positional)
        except BaseException:
            if self._child_created:
                self.kill()
                self.wait()
            raise

    def _start(self, start: Start) -> None:
        """Start the command and own it. If a signal handler raises before that, end the command."""
        command, prepared = start.command, start.prepared
        try:
            result = spawn(start) if self._way is None else self._way.spawn(start)
            # These lines make no call: after one, a signal handler could raise with half of them done.
            self.pid = result.pid
            self._plan = result.plan or prepared.plan
            self._says_empty = prepared.says_empty
            self._init_pid, self._init_pidfd, self._init_says = result.init_pid, result.init_pidfd, result.init_says
            self._is_warm, self._on_end, self._session_command = result.warm, result.on_end, result.session_command
            self._leaf, self._pidfd, self._line = command.leaf, result.pidfd, command.line
            self._line_mark = command.line_mark
            self._child_created = True
        except BaseException:
            call.abandon(command)
            raise

    def _connect(self, command: Command) -> None:
        """Give it the relay of its network list, and its terminal, if it has one."""
        if self._way is not None:
            command.relay = self._way.relay
        elif self._hearers is not None:
            command.relay = self._relay
        if self._terminal_of:
            command.terminal = self._terminal_of
            if self._pair is not None:  # its session's, else its group's
                command.flags |= abi.constants.SETSID

    def _prepare(self, policy: Policy) -> tuple[Policy, Prepared]:
        """Return the policy, which a relay or a terminal may have changed, and what is prepared of it for this host."""
        if self._hearers is not None:
            from nsbox._relay.relay import relayed  # for network lists alone

            policy, self._relay = relayed(policy, None, *self._hearers)
        try:
            prepared = prepare(policy, host_for(policy))
        except OSError:
            if self._way is not None:
                self._way.check_open()
            raise
        if self._pair is None:
            return policy, prepared
        from nsbox._popen import pty as popen_pty

        kernel_id = prepared.plan.kernel_id if self._way is None else self._way.kernel_id_of(prepared)
        popen_pty.give(self._pair.fd, kernel_id)
        if prepared.plan.wrapper and policy.new_session:  # in a session of its own, the command would lose the terminal
            policy = policy.with_(new_session=False)
            prepared = prepare(policy, host_for(policy))
        return policy, prepared

    def _pass_through(self, policy: Policy, prepared: Prepared, positional: tuple[Any, ...]) -> None:
        """Start the command as the base does, but with the environment and the directory of the policy."""
        chosen = dict(zip(_names, positional, strict=False))
        if chosen["env"] is None:
            more = {} if self._story is None else self._story.environment
            chosen["env"] = prepared.environment.variables(os.environ) | more
        if chosen["cwd"] is None and policy.base != "host":
            chosen["cwd"] = policy.workdir
        chosen["start_new_session"] = chosen["start_new_session"] or policy.new_session
        if self._pair is not None:
            from nsbox._popen import pty as popen_pty

            chosen["start_new_session"] = True
            chosen["preexec_fn"] = popen_pty.controlled(self._terminal_of - 1, chosen["preexec_fn"])
        self._is_plain, self._plan = True, prepared.plan
        token = blocks.announcing.set(True)
        try:
            super()._execute_child(*chosen.values())  # type: ignore[misc]
            self.adopt()
        finally:
            blocks.announcing.reset(token)

    def _wished(self, cwd: Any) -> Policy | None:
        policy = self._policy if self._policy is not None else self._default_policy(cwd)
        if policy is None and (self._kill_on_exit or self._pair is not None):
            raise ValueError(f"{'kill_on_exit=True' if self._kill_on_exit else 'pty'} needs a policy")
        if policy is None or self._kill_on_exit is None or self._kill_on_exit == policy.kill_on_exit:
            return policy
        return policy.with_(kill_on_exit=self._kill_on_exit)

    def _take_over(self, prepared: Prepared, positional: tuple[Any, ...]) -> None:
        self.hold()
        orphans.commands.add(self.pid)
        self._has_other_ids = arguments.has_other_ids(_uid(positional), prepared.plan)
        if self._leaf is not None:
            self._leaf.started(prepared.plan.cgroup_limits, self.pid)
        self._pid_namespace = orphans.pid_namespace(self.pid) if prepared.plan.nested else 0
        pipes = _pipes(positional)
        if pipes != (-1,) * 6:
            self._close_child_ends(*pipes)
        self.adopt()

    def _close_child_ends(self, *pipes: int) -> None:
        """Close what is the command's, and have __init__ know, in one step: a signal handler may raise.

        The base has two steps. Between them, __init__ would close the numbers again, which can be others by then.
        """
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = pipes
        devnull = getattr(self, "_devnull", -1)
        ends = ((p2cread, p2cwrite), (c2pwrite, c2pread), (errwrite, errread))
        fds = {end for end, ours in ends if end != -1 and ours != -1} | ({devnull} - {-1})
        owners: list[Owner] = []
        own_after(setattr, (self, "_closed_child_pipe_fds", True), fds, owners)
        for owner in owners:
            owner.close()

    def _stdio(self, *fds: int) -> tuple[int, int, int]:
        """Return the descriptors for the C core. It opens DEVNULL itself, so that none leads to the host's node."""
        devnull = getattr(self, "_devnull", -1)
        first, second, third = [abi.constants.DEVNULL if fd >= 0 and fd == devnull else fd for fd in fds]
        return first, second, third

    @property
    def sandbox(self) -> Containment | None:
        """What contains the command; None if nothing does."""
        plan: Plan | None = getattr(self, "_plan", None)
        if plan is None:
            return None
        line = self._line
        network = {} if line is None or line.is_later else {"network": line.record(self._line_mark)}
        return Containment(
            plan.backend,
            plan,
            plan.enforced,
            plan.not_enforced,
            self.pid,
            self._init_pid,
            self._used(),
            self._raw_status is not None,
            self._is_warm,
            **network,
        )

    def _used(self) -> usage.Usage | None:
        if self._returncode is None:
            return None
        return usage.usage(
            self._rusage,
            linux.used_by_others(self._last_word),
            wall=self._ended - self._began,
            status=self._returncode,
            known=self._early or ("unknown" if self._is_lost else None),
            timed_out=self._last_signal == -self._returncode,
            limits={limit.name: (limit.soft, limit.hard) for limit in self._plan.rlimits},
            spent=self._spent,
            callers_rss=self._callers_rss,
        )


class Popen(Confinable["AnyStr"]):
    """A command in a sandbox: subprocess.Popen, with its arguments and these.

    policy: a Policy or Sandbox, which says what the command may do. Default: None, for the policy of the
        nsbox.confined() block around the call, or else Policy.workspace() of `cwd`, or of the current directory.
    kill_on_exit: True or False, instead of the policy's. Default: None, for the policy's.
    pty: True, or (rows, columns), gives the command a terminal of its own, as each of stdin, stdout and stderr that
        isn't given. `terminal` is the caller's end of it. Default: False.
    on_connect, on_network: functions, as for Sandbox, for this command alone. Default: None.
    env: a mapping, which is used as it is. Default: None, for the environment that the policy builds.

    wait(), communicate() and poll() report the end when no process of the sandbox is left that could run. With
    kill_on_exit=False, they do when the command has ended. `sandbox` says what contains it.

    Raises what subprocess.Popen raises, and PolicyError, UnavailableError, SetupError or AccessError. If it was killed
    and doesn't end, wait() and communicate() without a timeout raise KillError.
    """

    if TYPE_CHECKING:

        @overload
        def __init__(
            self: Popen[str],
            args: CommandLine,
            *,
            text: Literal[True],
            encoding: str | None = None,
            errors: str | None = None,
            universal_newlines: bool | None = None,
            **options: Unpack[Popened],
        ) -> None: ...
        @overload
        def __init__(
            self: Popen[str],
            args: CommandLine,
            *,
            encoding: str,
            errors: str | None = None,
            text: bool | None = None,
            universal_newlines: bool | None = None,
            **options: Unpack[Popened],
        ) -> None: ...
        @overload
        def __init__(
            self: Popen[str],
            args: CommandLine,
            *,
            errors: str,
            encoding: str | None = None,
            text: bool | None = None,
            universal_newlines: bool | None = None,
            **options: Unpack[Popened],
        ) -> None: ...
        @overload
        def __init__(
            self: Popen[str],
            args: CommandLine,
            *,
            universal_newlines: Literal[True],
            encoding: str | None = None,
            errors: str | None = None,
            text: bool | None = None,
            **options: Unpack[Popened],
        ) -> None: ...
        @overload
        def __init__(
            self: Popen[bytes],
            args: CommandLine,
            *,
            universal_newlines: Literal[False] | None = None,
            text: Literal[False] | None = None,
            encoding: None = None,
            errors: None = None,
            **options: Unpack[Popened],
        ) -> None: ...
        @overload
        def __init__(
            self: Popen[Any],
            args: CommandLine,
            *,
            universal_newlines: bool | None = None,
            text: bool | None = None,
            encoding: str | None = None,
            errors: str | None = None,
            **options: Unpack[Popened],
        ) -> None: ...
        def __init__(self, args: Any, *more: Any, **options: Any) -> None:
            """Start the command."""

    def _default_policy(self, cwd: Any) -> Policy:
        return arguments.default_policy(cwd)

    @property
    def sandbox(self) -> Containment:
        """What contains the command: backend, plan, what is enforced and what isn't, its processes, what it used up."""
        containment = super().sandbox
        assert containment is not None
        return containment


# The base's private method has had these arguments since Python 3.11, in one order or another: pick them by name.
_code = Plain._execute_child.__code__  # type: ignore[attr-defined]
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
_uid = itemgetter(_names.index("uid"))
_pipes = itemgetter(*map(_names.index, ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")))


def _announce(program: Any, argv: Sequence[Any], cwd: Any, env: Any) -> None:
    """Raise the audit event of subprocess.Popen, marked as nsbox's own."""
    if blocks.current() is None:  # no hook of nsbox's looks at it
        sys.audit("subprocess.Popen", program, argv, cwd, env)
        return
    token = blocks.announcing.set(True)
    try:
        sys.audit("subprocess.Popen", program, argv, cwd, env)
    finally:
        blocks.announcing.reset(token)
