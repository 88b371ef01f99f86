"""A command of a plan, started: as a running process, or an exception that says what failed.

Lean: functions import what few commands need: `_relay.relay` (14 ms),
`_spawn.seatbelt` (12 ms), `_spawn.bwrap` (9 ms), `_lookup.host` (6 ms), `_machine.cgroup` (2.3 ms), `_spawn.failure`
(1.5 ms).
"""

from __future__ import annotations

import errno
import os
from _thread import get_native_id  # threading's may be gevent's

from nsbox._base.errors import SetupError
from nsbox._base.frozen import TYPE_CHECKING, replace
from nsbox._core import call
from nsbox._core.abi import constants as c
from nsbox._core.command import Command, Result
from nsbox._core.request import Request, assembled, request_for
from nsbox._plan.ops import BindData, File, Op
from nsbox._plan.plan import Plan
from nsbox._spawn.prepare import Prepared, check_resolved

if TYPE_CHECKING:
    from os import PathLike
    from typing import TypeAlias

    from nsbox._policy.policy import Policy

    Named: TypeAlias = str | bytes | PathLike[str] | PathLike[bytes]


class Start:
    """One command to start, and what to start it in.

    prepared: what was made of the policy; another one for the same policy if something is kept for it.
    program, cwd: as the caller named them, for the filename of exceptions. cwd: None means that it named none.
    """

    __slots__ = ("command", "cwd", "policy", "prepared", "program")

    def __init__(self, policy: Policy, prepared: Prepared, command: Command, program: Named, cwd: Named | None) -> None:
        self.policy, self.prepared, self.command, self.program, self.cwd = policy, prepared, command, program, cwd

    def by(self, prepared: Prepared) -> Start:
        """Return the same start from something else that was prepared for the policy."""
        return Start(self.policy, prepared, self.command, self.program, self.cwd)


def _loaded(op: Op) -> Op:
    """Return the op with its contents, if they come from a descriptor."""
    if not isinstance(op, File | BindData) or not isinstance(op.data, int):
        return op
    try:
        with open(op.data, "rb", buffering=0, closefd=False) as file:
            return replace(op, data=file.read())
    except OSError as error:
        raise SetupError(error.errno or errno.EIO, "read contents", op.describe()) from error


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


def spawn(start: Start) -> Result:
    """Start the command."""
    prepared, command = start.prepared, start.command
    plan = prepared.plan
    if plan.network is not None and command.parked is None:
        _ask_for_line(plan, command)
    request = request_of(prepared, command)
    # From here on, only Python code is called: after a call of C, a signal handler could raise while nothing owns the
    # command.
    carry_out = _wrapped if plan.wrapper else _profiled if prepared.places is not None else _started
    if not plan.cgroup:
        return carry_out(start, request)
    from nsbox._machine.cgroup import Leaf

    command.leaf = leaf = Leaf(plan.cgroup, plan.cgroup_limits)
    command.cgroup_fd = leaf.fd
    try:
        return carry_out(start, request)
    except BaseException:
        leaf.remove()
        raise


def _ask_for_line(plan: Plan, command: Command) -> None:
    from nsbox._relay import relay  # for network lists alone

    assert plan.network is not None
    if command.relay is None:
        command.relay = relay.shared(plan.network)
    command.line = line = command.relay.line()
    line.is_kept = not plan.kill_on_exit


def _started(start: Start, request: Request) -> Result:
    result = call.spawn(request, start.command)
    if result.error:
        from nsbox._lookup.host import host_for
        from nsbox._spawn.failure import exception

        if result.step == c.STEP_NET:
            from nsbox._relay.relay import spawn_error

            raise spawn_error(result, start.command.line)
        raise exception(result, start, host_for(start.policy))
    return result


def _profiled(start: Start, request: Request) -> Result:
    from nsbox._backends.seatbelt import canonical
    from nsbox._lookup.host import host_for
    from nsbox._machine import darwin
    from nsbox._spawn import seatbelt

    policy, command = start.policy, start.command
    places, plan = start.prepared.places, start.prepared.plan
    assert places is not None
    if command.cwd is not None and policy.base == "workspace" and not command.flags & c.CWD_OPTIONAL:
        path = os.fsdecode(command.cwd)
        own = canonical(darwin.spelled(path), host_for(policy))
        seatbelt.check_directory(policy, places.op, path, own)
    line = command.line
    place = places.take(0 if line is None or line.is_later else line.port())
    try:
        seatbelt.confine(plan, place, command, start.program)
        result = _started(start, request)
    except BaseException:
        places.give_back(place)
        raise
    if plan.kill_on_exit:
        result.on_end = lambda: places.give_back(place)
    return result


def _wrapped(start: Start, request: Request) -> Result:
    from nsbox._layout.layout import with_matches
    from nsbox._lookup.host import host_for
    from nsbox._spawn.bwrap import Wrapped  # seldom needed

    policy, plan = start.policy, start.prepared.plan
    host = host_for(policy)
    check_resolved(with_matches(policy, host))  # again: bwrap follows links that have been planted since
    wrapped = Wrapped(policy, plan, assembled(plan.programs), host)
    result = None
    try:
        wrapped.prepare(start.command, start.program)
        result = _started(start, request)
        wrapped.started(result)
    except BaseException:
        if result is not None:
            wrapped.abandon(result)
        raise
    finally:
        wrapped.close()
    return result
