"""From a policy and a command to a process: compile, encode, spawn."""

from __future__ import annotations

import errno
import sys
from _thread import get_native_id

from nsbox import _backends
from nsbox._base.errors import PolicyError, SetupError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen, remembered, replace
from nsbox._base.lean_os import os
from nsbox._core import call, linux
from nsbox._core.abi import constants as c
from nsbox._core.command import Command, Result
from nsbox._core.request import Request, assembled, request_for
from nsbox._environment import Environment
from nsbox._homes.reach import note
from nsbox._homes.state import check_detours, make_state, with_sources
from nsbox._plan.ops import BindData, BindFd, File, Op, Overlay, primitives
from nsbox._plan.plan import Plan
from nsbox._seccomp.bpf import NEWER
from nsbox._seccomp.filter import profiled

if TYPE_CHECKING:
    from typing import Any

    from nsbox._plan.host import Host
    from nsbox._policy.policy import Policy
    from nsbox._seatbelt import Places


@frozen
class Prepared(Frozen):
    """A policy ready for this host: its plan, and everything in a request that doesn't depend on the command."""

    plan: Plan
    ops: tuple[Op, ...]
    request: Request | None  # None: contents come from descriptors, so it is made for each spawn
    says_empty: bool  # the init's word is enough for the end: nothing else depends on its unmounting
    environment: Environment
    starts: dict[str, bytes]  # where commands without a cwd start, by the caller's current directory
    places: Places | None = None  # with the backend of macOS


def _check_resolved(policy: Policy) -> None:
    """Refuse paths that a link leads elsewhere: something else would be bound or masked there."""
    for name in ("write", "read", "deny"):
        for path in getattr(policy, name):
            real = os.path.realpath(path)
            if real != path:
                raise PolicyError(
                    name, f"{path} is, by a symlink, {real}; Policy.workspace() and with_() resolve paths"
                )


def _check_calls(policy: Policy) -> None:
    """Refuse unknown names of system calls: with a misspelled one, the call meant would stay allowed."""
    names = policy.filter.names()
    if not names:
        return
    here = NEWER.keys() | linux.syscalls()[1].keys()
    unknown = names - here - profiled()
    for rule in policy.filter.rules:
        if here.isdisjoint(rule.calls):  # all of them are another machine's
            unknown |= frozenset(rule.calls)
    if unknown:
        raise PolicyError("seccomp", f"{', '.join(sorted(unknown))}: no system call that this machine's headers know")


@remembered
def _warn_once(text: str) -> None:
    import logging

    logging.getLogger("nsbox").warning(text)


def _warn_of_imports(policy: Policy, host: Host) -> None:
    """Warn if the caller imports from a path that commands can write to: it can't be made read-only.

    It warns only in a log that the program keeps. A program in its own workspace is usual, and its standard error is
    its own.
    """
    path = next((path for path in host.imports if path in policy.write), None)
    logging = sys.modules.get("logging")
    if path is not None and logging is not None and logging.getLogger("nsbox").hasHandlers():
        _warn_once(
            f"commands can write to {path}, from which this program imports modules: what they leave there can run "
            "outside. Start it with python -P, or keep it elsewhere"
        )


def _warn_of_passthrough(policy: Policy, host: Host) -> None:
    reasons = "; ".join(str(reason) for reason in _backends.choose(policy, host)[1]) or "so asked for by backend="
    _warn_once(f"commands run without any containment: {reasons}")


_latest: tuple[Policy, Host, Prepared] | None = None


def prepare(policy: Policy, host: Host) -> Prepared:
    """Compile and encode, once for each policy and host."""
    global _latest
    latest = _latest
    if latest is not None and latest[0] is policy and latest[1] is host:  # a comparison would read all of their fields
        return latest[2]
    if any(isinstance(op, BindFd) for op in policy.ops):  # the same number may be another directory's each time
        prepared = _prepared(policy, with_sources(policy, host))
        note(policy, prepared.plan)
        return prepared
    prepared = _prepared(policy, host)
    _latest = (policy, host, prepared)
    return prepared


def forget() -> None:
    """Forget everything that was prepared."""
    global _latest
    _latest = None
    _prepared.cache_clear()  # type: ignore[attr-defined]


@remembered
def _prepared(policy: Policy, host: Host) -> Prepared:
    host = host if host.sources else with_sources(policy, host)
    plan = _backends.compile_policy(policy, host)
    if plan.backend == "passthrough":
        _warn_of_passthrough(policy, host)
    else:
        _check_resolved(policy)
        check_detours(policy, host)
        make_state(policy, host)
        note(policy, plan)
        _warn_of_imports(policy, host)
        if plan.programs:
            _check_calls(policy)
    ops = () if plan.wrapper or plan.backend == "seatbelt" else tuple(primitives(plan.ops))
    from_fds = any(isinstance(op, File | BindData) and isinstance(op.data, int) for op in ops)
    outlasts = policy.nested or plan.plain or plan.cgroup or any(isinstance(op, Overlay) for op in ops)
    return Prepared(
        plan=plan,
        ops=ops,
        request=None if from_fds or plan.backend == "passthrough" else request_for(plan, ops),
        says_empty=not outlasts,
        environment=Environment(policy, host, plan),
        starts={},
        places=_places(plan),
    )


def _places(plan: Plan) -> Places | None:
    if plan.backend != "seatbelt":
        return None
    from nsbox._seatbelt import Places

    return Places(plan)


def with_plan(prepared: Prepared, plan: Plan) -> Prepared:
    """Return the same for another plan with the same ops."""
    template = None if prepared.request is None else request_for(plan, prepared.ops)
    return replace(prepared, plan=plan, request=template)


def _loaded(op: Op) -> Op:
    """Return the op with its contents, if they come from a descriptor."""
    if not isinstance(op, File | BindData) or not isinstance(op.data, int):
        return op
    try:
        with open(op.data, "rb", buffering=0, closefd=False) as file:
            return replace(op, data=file.read())
    except OSError as error:
        raise SetupError(error.errno or errno.EIO, "read contents", op.describe()) from error


def start_directory(policy: Policy, prepared: Prepared) -> bytes:
    """Return where a command without a cwd starts, under a policy that has a workdir."""
    assert policy.workdir is not None
    try:
        here = os.getcwd()
    except OSError:  # it has been removed, or a directory above it can't be read
        return os.fsencode(policy.workdir)
    start = prepared.starts.get(here)
    if start is None:
        start = os.fsencode(here if here == policy.workdir or policy.sees(here) else policy.workdir)
        if len(prepared.starts) < 64:
            prepared.starts[here] = start
    return start


def _ids_error(step: str, hint: str) -> SetupError:
    from nsbox._base.errors import IdsError

    return IdsError(errno.EPERM, step, None, hint)


def _id_flags(plan: Plan, command: Command) -> int:
    """Return the flags for the ids that the command is to have; raises SetupError for one that isn't mapped."""
    identity = plan.identity
    if command.uid is None and command.gid is None and command.groups is None and not identity.change_ids:
        return 0
    flags = 0
    for name, value, own in (("uid", command.uid, identity.uid), ("gid", command.gid, identity.gid)):
        if identity.by_helper:
            flags |= c.FORK_COMMAND if value is not None or identity.change_ids else 0
        elif value is not None and value != own:
            raise _ids_error(f"set{name}({value})", f"only {name} {own} exists in this sandbox; see ids=")
    if command.groups == [] and plan.drop_groups and not identity.by_helper:
        return flags  # it has none anyway
    if command.groups is not None:
        if not identity.by_helper:
            raise _ids_error("setgroups", "groups can't be changed in a sandbox with one id; see ids=")
        flags |= c.SET_GROUPS | c.FORK_COMMAND
    elif identity.change_ids:
        flags |= c.SET_GROUPS  # to none: another user must not keep the caller's
    return flags


def command_flags(*, close_fds: bool, restore_signals: bool, new_session: bool, cwd_required: bool) -> int:
    """Return the flags of a command that don't depend on its plan."""
    flags = c.CLOSE_FDS if close_fds else 0
    flags |= c.RESTORE_SIGNALS if restore_signals else 0
    flags |= c.SETSID if new_session else 0
    return flags if cwd_required else flags | c.CWD_OPTIONAL


def _complete(command: Command, plan: Plan) -> None:
    """Fill in what the plan says about the command."""
    identity = plan.identity
    flags = command.flags | _id_flags(plan, command)
    if command.preexec is not None:
        flags |= c.PREEXEC | c.FORK_COMMAND
        flags |= c.SETSID_LAST if plan.new_session else 0
    elif plan.new_session:
        flags |= c.SETSID
    if call.adopt_inits and not plan.plain:
        flags |= c.ADOPT_INIT
    if plan.plain or "pid" not in plan.namespaces:  # no init can end it
        wants_end = plan.kill_on_exit if plan.plain else plan.die_with_parent
        if wants_end and get_native_id() == os.getpid():
            flags |= c.DIE_WITH_THREAD  # the main one, which lasts as long as the process
    if plan.new_session and command.pgid >= 0:
        if command.pgid > 0:
            raise SetupError(errno.EPERM, "setpgid", None, "the command has a session of its own; see new_session=")
        command.pgid = -1  # the leader of a session leads its group already
    command.flags = flags
    command.uid = identity.uid if command.uid is None else command.uid
    command.gid = identity.gid if command.gid is None else command.gid


def request_of(prepared: Prepared, command: Command) -> Request:
    """Return the request for a command, with the contents that come from descriptors; completes the command."""
    request = prepared.request or request_for(prepared.plan, [_loaded(op) for op in prepared.ops])
    _complete(command, prepared.plan)
    return request


def spawn(policy: Policy, prepared: Prepared, command: Command, program: Any, cwd: Any) -> Result:
    """Start the command. program, cwd: as the caller named them, for the filename of exceptions."""
    plan = prepared.plan
    if plan.network is not None and command.parked is None:
        _ask_for_line(plan, command)
    request = request_of(prepared, command)
    # Only calls of Python code from here on: after one of C, a signal handler could raise, and nothing own the command.
    start = _wrapped if plan.wrapper else _profiled if prepared.places is not None else _started
    if not plan.cgroup:
        return start(policy, prepared, request, command, program, cwd)
    from nsbox._machine.cgroup import Leaf

    command.leaf = leaf = Leaf(plan.cgroup, plan.cgroup_limits)
    command.cgroup_fd = leaf.fd
    try:
        return start(policy, prepared, request, command, program, cwd)
    except BaseException:
        leaf.remove()
        raise


def _ask_for_line(plan: Plan, command: Command) -> None:
    from nsbox import _relay  # for network lists alone

    assert plan.network is not None
    if command.relay is None:
        command.relay = _relay.shared(plan.network)
    command.line = command.relay.line()
    command.line.is_kept = not plan.kill_on_exit


def _started(
    policy: Policy,
    prepared: Prepared,
    request: Request,
    command: Command,
    program: Any,
    cwd: Any,
) -> Result:
    result = call.spawn(request, command)
    if result.error:
        from nsbox._failure import exception
        from nsbox._lookup.host import host_for

        if result.step == c.STEP_NET:
            from nsbox._relay import spawn_error

            raise spawn_error(result, command.line)
        raise exception(result, policy, prepared.plan, prepared.ops, host_for(policy), program=program, cwd=cwd)
    return result


def _profiled(
    policy: Policy,
    prepared: Prepared,
    request: Request,
    command: Command,
    program: Any,
    cwd: Any,
) -> Result:
    from nsbox import _seatbelt
    from nsbox._backends.seatbelt import canonical
    from nsbox._lookup.host import host_for
    from nsbox._machine import darwin

    places, plan = prepared.places, prepared.plan
    assert places is not None
    if command.cwd is not None and policy.base == "workspace" and not command.flags & c.CWD_OPTIONAL:
        path = os.fsdecode(command.cwd)
        own = canonical(darwin.spelled(path), host_for(policy))
        _seatbelt.check_directory(policy, places.op, path, own)
    place = places.take(0 if command.line is None else command.line.port())
    try:
        _seatbelt.confine(plan, place, command, program)
        result = _started(policy, prepared, request, command, program, cwd)
    except BaseException:
        places.give_back(place)
        raise
    if plan.kill_on_exit:
        result.on_end = lambda: places.give_back(place)
    return result


def _wrapped(
    policy: Policy,
    prepared: Prepared,
    request: Request,
    command: Command,
    program: Any,
    cwd: Any,
) -> Result:
    from nsbox._layout.layout import with_matches
    from nsbox._lookup.host import host_for
    from nsbox._wrap import Wrapped  # seldom needed

    host = host_for(policy)
    _check_resolved(with_matches(policy, host))  # again: bwrap follows links that have been planted since
    plan = prepared.plan
    wrapped = Wrapped(policy, plan, assembled(plan.programs), host)
    result = None
    try:
        wrapped.prepare(command, program)
        result = _started(policy, prepared, request, command, program, None)
        wrapped.started(result)
    except BaseException:
        if result is not None:
            wrapped.abandon(result)
        raise
    finally:
        wrapped.close()
    return result
