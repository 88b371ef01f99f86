"""From a policy and a command to a process: compile, encode, spawn."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from nsbox import _backends, _core, _wire
from nsbox._bpf import NEWER, Program
from nsbox._cgroup import Leaf
from nsbox._core import constants as c
from nsbox._errors import IdsError, PolicyError, SetupError
from nsbox._failure import exception
from nsbox._host import Host
from nsbox._plan import BindData, File, Identity, Op, Overlay, Plan, primitives
from nsbox._policy import Policy
from nsbox._probe import probe
from nsbox._reap import orphans
from nsbox._seccomp import PROFILED
from nsbox._usage import Usage, processes

if TYPE_CHECKING:
    import psutil

# clone(2)'s flags, <linux/sched.h>
_NAMESPACES = {
    "mount": 0x00020000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "time": 0x00000080,
}


STANDARD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Containment:
    """What contains one command: `Popen.sandbox`.

    backend: its name. plan: what was carried out. enforced, not_enforced: what holds and what doesn't, a sentence each.
    pid, init_pid: the command and pid 1 of the sandbox, as this process numbers them. usage: what was used up; None
    until the end. reaped: whether the command itself has ended and been waited for.
    """

    backend: str
    plan: Plan = field(repr=False)  # it is long
    enforced: tuple[str, ...]
    not_enforced: tuple[str, ...]
    pid: int
    init_pid: int
    usage: Usage | None
    reaped: bool = False

    def processes(self) -> list[psutil.Process]:
        """Return what runs in the sandbox now, the command first; [] when it has ended. Needs psutil (ImportError)."""
        if self.usage is not None and self.plan.kill_on_exit:
            return []
        return processes(None if self.reaped or self.usage is not None else self.pid, self.init_pid)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A policy ready for this host: its plan, and all of a request that doesn't depend on the command."""

    plan: Plan
    ops: tuple[Op, ...]
    template: _core.Template | None  # None: contents come from descriptors, so it is made for each spawn
    says_empty: bool  # the init's word is enough for the end: nobody else's business depends on its unmounting
    path: str
    environments: dict[tuple[str | None, ...], _core.Strings]  # built ones, by the caller's values that went into them


def _flags(plan: Plan) -> int:
    flags = c.DENY_SETGROUPS if plan.identity.deny_setgroups else 0
    flags |= c.MAP_BY_HELPER if plan.identity.by_helper else 0
    flags |= c.DROP_GROUPS if plan.drop_groups else 0
    # A ready program may kill at the exec, and before Linux 5.16 a core dump ends all who share the memory.
    flags |= c.FORK_COMMAND if any(program.code for program in plan.programs) else 0
    flags |= 0 if plan.kill_on_exit else c.STAY
    return flags


def _check_resolved(policy: Policy) -> None:
    """Refuse paths that lead elsewhere by a link: what is bound or masked there would be something else."""
    for name in ("write", "read", "deny"):
        for path in getattr(policy, name):
            real = os.path.realpath(path)
            if real != path:
                raise PolicyError(
                    name, f"{path} is, by a symlink, {real}; Policy.workspace() and with_() resolve paths"
                )


def _check_calls(policy: Policy) -> None:
    """Refuse names of system calls that nobody knows: a misspelled one would stay as allowed as it was."""
    unknown = policy.filter.names() - NEWER.keys() - _core.syscalls()[1].keys() - PROFILED
    if unknown:
        raise PolicyError("seccomp", f"{', '.join(sorted(unknown))}: no system call that this machine's headers know")


@lru_cache(maxsize=64)
def prepare(policy: Policy, host: Host) -> Prepared:
    """Compile and encode, once for each policy and host."""
    plan = _backends.compile_policy(policy, host)
    _check_resolved(policy)
    _check_calls(policy)
    ops = tuple(primitives(plan.ops))
    from_fds = any(isinstance(op, File | BindData) and isinstance(op.data, int) for op in ops)
    return Prepared(
        plan=plan,
        ops=ops,
        template=None if from_fds else _template(plan, ops),
        says_empty=not plan.nested and not plan.cgroup and not any(isinstance(op, Overlay) for op in ops),
        path=":".join((*host.programs, STANDARD_PATH)),
        environments={},
    )


@lru_cache(maxsize=16)
def _assembled(programs: tuple[Program, ...]) -> list[bytes]:
    """Return the plan's filters for this machine; most policies have the same."""
    machine, numbers = _core.syscalls()
    return _wire.encode_programs(programs, machine, NEWER | numbers)


def _template(plan: Plan, ops: Sequence[Op]) -> _core.Template:
    import resource  # not on every system that this module is imported on

    identity = plan.identity
    maps = (identity.uid_map, identity.gid_map, identity.uid_map2, identity.gid_map2)
    uid_map, gid_map, uid_map2, gid_map2 = (None if text is None else text.encode() + b"\0" for text in maps)
    assert uid_map is not None and gid_map is not None
    return _core.Template(
        plan=_wire.encode(ops),
        nops=len(ops),
        namespaces=sum(_NAMESPACES[name] for name in plan.namespaces),
        flags=_flags(plan),
        uid_map=uid_map,
        gid_map=gid_map,
        uid_map2=uid_map2,
        gid_map2=gid_map2,
        map_programs=_map_programs(identity),
        rlimits=[(getattr(resource, f"RLIMIT_{limit.name}"), limit.soft, limit.hard) for limit in plan.rlimits],
        programs=_assembled(plan.programs),
        n_confined=sum(program.stage == "confined" for program in plan.programs),
        n_last=sum(program.stage == "last" for program in plan.programs),
        ruleset=_wire.encode_ruleset(plan.ruleset),
    )


def _read_all(fd: int) -> bytes:
    chunks = []
    while chunk := os.read(fd, 1 << 16):
        chunks.append(chunk)
    return b"".join(chunks)


def _loaded(op: Op) -> Op:
    """Return the op with its contents, when they come from a descriptor."""
    if not isinstance(op, File | BindData) or not isinstance(op.data, int):
        return op
    try:
        return replace(op, data=_read_all(op.data))
    except OSError as error:
        raise SetupError(error.errno or errno.EIO, "read contents", op.describe()) from error


def encode_environment(env: Mapping[Any, Any]) -> list[bytes]:
    """Return an environment as execve(2) takes it; raises ValueError as the standard library does."""
    pairs = []
    for key, value in env.items():
        name = os.fsencode(key)
        if b"=" in name:
            raise ValueError("illegal environment variable name")
        pairs.append(null_free(name + b"=" + os.fsencode(value)))
    return pairs


def null_free(text: bytes) -> bytes:
    """Return text; raises ValueError as the standard library does if it has a NUL byte."""
    if b"\0" in text:
        raise ValueError("embedded null byte")
    return text


def environment(policy: Policy, prepared: Prepared, caller: Mapping[str, str]) -> _core.Strings:
    """Return the environment of a command that was given none."""
    if policy.inherit_env and not policy.env:
        return _inherited()
    if policy.inherit_env:
        return _core.Strings(encode_environment(policy.environment(_copy(caller), prepared.path)))
    key = tuple(caller.get(name) for name in policy.taken_from_caller())
    known = prepared.environments.get(key)
    if known is None:
        known = _core.Strings(encode_environment(policy.environment(_copy(caller), prepared.path)))
        if len(prepared.environments) < 64:
            prepared.environments[key] = known
    return known


_last: tuple[dict[bytes, bytes], _core.Strings] | None = None  # inherited; it seldom changes between two spawns


def _inherited() -> _core.Strings:
    """Return this process's environment as Python knows it.

    The C library's is reallocated by setenv(3) in other threads, also while it is being read. What os.environ keeps is
    a dictionary of bytes, checked when they were set, which can be copied in one step that no thread interrupts.
    """
    global _last
    data = getattr(os.environb, "_data", None)
    if type(data) is not dict:  # no word of CPython's documentation promises it
        return _core.Strings(encode_environment(_copy(os.environb)))
    last = _last
    if last is None or last[0] != data:
        copy = data.copy()
        _last = last = (copy, _core.Strings([name + b"=" + value for name, value in copy.items()]))
    return last[1]


def set_by(policy: Policy) -> dict[bytes, bytes] | None:
    """Return what a policy that lets commands inherit the environment sets in it; None for one that doesn't."""
    if not policy.inherit_env:
        return None
    return {os.fsencode(name): os.fsencode(value) for name, value in dict(policy.env).items()}


def _copy(environ: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a copy of os.environ, which other threads may change meanwhile."""
    return {name: value for name in environ if (value := environ.get(name)) is not None}


def search_path(policy: Policy, prepared: Prepared) -> list[str]:
    """Return the directories that a program without a slash is looked for in, when the command was given no env."""
    if policy.inherit_env or "PATH" in policy.taken_from_caller() or "PATH" in dict(policy.env):
        return os.get_exec_path(policy.environment(_copy(os.environ), prepared.path))
    return prepared.path.split(":")


def _id_flags(plan: Plan, command: _core.Command) -> int:
    """Return the flags for the ids that the command is to have; raises SetupError for one that isn't mapped."""
    identity = plan.identity
    if (command.uid, command.gid, command.groups) == (None, None, None) and not identity.change_ids:
        return 0
    flags = 0
    for name, value, own in (("uid", command.uid, identity.uid), ("gid", command.gid, identity.gid)):
        if identity.by_helper:
            flags |= c.FORK_COMMAND if value is not None or identity.change_ids else 0
        elif value is not None and value != own:
            raise IdsError(
                errno.EPERM, f"set{name}({value})", None, f"only {name} {own} exists in this sandbox; see ids="
            )
    if command.groups == [] and plan.drop_groups and not identity.by_helper:
        return flags  # it has none as it is
    if command.groups is not None:
        if not identity.by_helper:
            raise IdsError(errno.EPERM, "setgroups", None, "groups can't be changed in a sandbox with one id; see ids=")
        flags |= c.SET_GROUPS | c.FORK_COMMAND
    elif identity.change_ids:
        flags |= c.SET_GROUPS  # to none: another user must not keep the caller's
    return flags


def _map_programs(identity: Identity) -> tuple[list[bytes], list[bytes]] | None:
    """Return the argument lists of newuidmap(1) and newgidmap(1); the C core puts the pid in the place of "0"."""
    if identity.map_programs is None:
        return None
    uid, gid = (
        [os.fsencode(program), b"0", *map(str.encode, text.split())]
        for program, text in zip(identity.map_programs, (identity.uid_map, identity.gid_map), strict=True)
    )
    return uid, gid


def command_flags(*, close_fds: bool, restore_signals: bool, new_session: bool, cwd_required: bool) -> int:
    """Return the flags of a command that don't depend on its plan."""
    flags = c.CLOSE_FDS if close_fds else 0
    flags |= c.RESTORE_SIGNALS if restore_signals else 0
    flags |= c.SETSID if new_session else 0
    return flags if cwd_required else flags | c.CWD_OPTIONAL


def _complete(command: _core.Command, plan: Plan) -> None:
    """Fill in what the plan says about the command."""
    identity = plan.identity
    flags = command.flags | _id_flags(plan, command)
    if command.preexec is not None:
        flags |= c.PREEXEC | c.FORK_COMMAND
        flags |= c.SETSID_LAST if plan.new_session else 0
    elif plan.new_session:
        flags |= c.SETSID
    flags |= c.ADOPT_INIT if orphans.piling_up else 0
    if plan.new_session and command.pgid >= 0:
        if command.pgid > 0:
            raise SetupError(errno.EPERM, "setpgid", None, "the command has a session of its own; see new_session=")
        command.pgid = -1  # the leader of a session leads its group already
    command.flags = flags
    command.uid = identity.uid if command.uid is None else command.uid
    command.gid = identity.gid if command.gid is None else command.gid


def spawn(policy: Policy, prepared: Prepared, command: _core.Command, program: Any, cwd: Any) -> _core.Result:
    """Start the command. program, cwd: what the caller named, for the exceptions' filename."""
    plan = prepared.plan
    template = prepared.template or _template(plan, [_loaded(op) for op in prepared.ops])
    _complete(command, plan)
    if not plan.cgroup:
        result = _core.spawn(template, command)
        if result.error:
            raise exception(result, policy, prepared.ops, probe(), program=program, cwd=cwd)
        return result
    command.leaf = leaf = Leaf(plan.cgroup, plan.cgroup_limits)
    command.cgroup_fd = leaf.fd
    try:
        result = _core.spawn(template, command)
        if result.error:
            raise exception(result, policy, prepared.ops, probe(), program=program, cwd=cwd)
    except BaseException:
        leaf.remove()
        raise
    return result
