"""The plans of an interpreter and of its branches, from the plan of a policy. Pure.

The interpreter runs in a sandbox of the policy, with capabilities in a user namespace below the one that owns the
mounts. There it can make namespaces and mount, but it can't lift what the policy has mounted (mount_namespaces(7)). A
branch is a fork of it. It gets fresh whatever it can write to, as a copy of a kept tree does, and gives up all
privileges before it runs any code.
"""

from __future__ import annotations

from nsbox._base.errors import Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen, replace
from nsbox._base.paths import is_below
from nsbox._kept import split
from nsbox._plan import ops
from nsbox._plan.capabilities import CAPABILITIES, Capabilities

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsbox._interpreter.mounts.overlay import Overlaid
    from nsbox._plan.plan import Identity, Plan
    from nsbox._policy.policy import Policy
    from nsbox._seccomp.bpf import Program

_PROC = "/proc"
# SYS_ADMIN: namespaces and mounts. SYS_CHROOT: setns(2) into a mount namespace. NET_ADMIN: lo. SETPCAP: the bounding
# set. SETFCAP: uid 0 can be mapped again (Linux 5.12). The other two: ids.
_KEPT = ("SYS_ADMIN", "SYS_CHROOT", "NET_ADMIN", "SETPCAP", "SETFCAP", "SETUID", "SETGID")
# Limits that each branch has for itself. The interpreter runs for as long as it makes branches, and has descriptors of
# all of them. What the kernel counts by user, it also counts in the interpreter's user namespace, for all branches,
# against the interpreter's own limit.
_EACH = ("CPU", "NOFILE", "NPROC", "MEMLOCK", "MSGQUEUE", "SIGPENDING")
_MASK = sum(1 << CAPABILITIES.index(f"CAP_{name}") for name in _KEPT)


@frozen
class BranchPlans(Frozen):
    """What an interpreter and its branches are made of.

    interpreter: the plan of the command that is the interpreter.
    steps: its ops, as primitives.
    branch: the plan of each branch. Of its ids only uid, gid and the second maps count: those of a user namespace that
        each branch has for itself.
    renewed: what each branch gets fresh, in a copy of the interpreter's mounts.
    """

    interpreter: Plan
    steps: tuple[ops.Op, ...]
    branch: Plan
    renewed: tuple[ops.Op, ...]


def _no(what: str, remedy: str = "") -> UnavailableError:
    return UnavailableError(Reason(f"Python in branches: {what}", remedy))


def nested(policy: Policy) -> Policy:
    """Return the policy whose filters the interpreter gets: it makes namespaces, and mounts in them."""
    return policy.with_(nested=True, landlock=False)


def check(plan: Plan) -> None:
    """Raise UnavailableError, with the reason, if no branches can be made under this plan."""
    if plan.backend != "namespaces" or plan.plain:
        raise _no(f"the {plan.backend} backend can't make them", 'backend="namespaces", on Linux')
    lacking = {"user", "mount", "pid"} - plan.namespaces
    if lacking:
        name = min(lacking)
        raise _no(
            f"the policy shares the {name} namespace, and each branch has its own", f"leave share={{{name!r}}} out"
        )
    identity = plan.identity
    details = (identity.userns, identity.userns2, plan.pidns, plan.capabilities)
    if any(value is not None for value in details):
        raise _no("namespaces to join, or capabilities, belong to one command", "leave these details out")
    if plan.limit_userns or plan.no_userns:
        raise _no("the policy forbids user namespaces, and each branch has one", "leave disable_userns out")
    if plan.host_writes or not plan.die_with_parent:
        raise _no("host_writes and die_with_parent=False are for single commands", "leave these details out")


def _identity(identity: Identity) -> Identity:
    """Return the interpreter's ids. devpts needs a uid 0 where it is mounted, so that is what a single id is called."""
    if identity.by_helper:
        uids, gids = split.last_maps(identity)
        return replace(identity, uid_map2=uids, gid_map2=gids, map2_by_helper=True)
    outer = [text.split()[1] for text in (identity.uid_map, identity.gid_map)]
    return replace(
        identity,
        uid=0,
        gid=0,
        uid_map=f"0 {outer[0]} 1",
        gid_map=f"0 {outer[1]} 1",
        uid_map2="0 0 1",
        gid_map2="0 0 1",
        map2_by_helper=False,
    )


def _branch_identity(identity: Identity) -> Identity:
    """Return a branch's ids. With more than one it stays in the interpreter's user namespace, which has them all."""
    if identity.by_helper:
        return replace(identity, uid_map2=None, gid_map2=None, map2_by_helper=False)
    return replace(identity, uid_map2=f"{identity.uid} 0 1", gid_map2=f"{identity.gid} 0 1")


def _is_in_proc(op: ops.Op) -> bool:
    dest = getattr(op, "dest", "")
    return dest != _PROC and is_below(dest, _PROC)


def _interpreters(op: ops.Op) -> ops.Op:
    """Return an op as the interpreter needs it: the kernel lets it mount a procfs only where none is covered."""
    return replace(op, nests=True) if isinstance(op, ops.Proc) and op.cover else op


def _renewed(steps: Sequence[ops.Op]) -> tuple[ops.Op, ...]:
    """Return what each branch gets fresh. What lies in /proc is done again, on its own procfs."""
    inside = [op for op in steps if _is_in_proc(op)]
    for op in inside:
        if not isinstance(op, ops.Mask):
            raise _no(f"{op.describe()} lies in /proc, where each branch has its own", "leave it out")
    if not any(isinstance(op, ops.Proc) and op.dest == _PROC for op in steps):
        raise _no("the policy mounts no /proc", "add Proc('/proc') to its ops")
    for op in steps:
        if isinstance(op, ops.Proc) and op.dest != _PROC:
            raise _no(f"{op.describe()}: only /proc can be a procfs", "leave it out")
    renewed: list[ops.Op] = []
    for op in split.parts(tuple(op for op in steps if not _is_in_proc(op))).renewed:
        renewed.append(op)
        if isinstance(op, ops.Over) and isinstance(op.op, ops.Proc):
            renewed += inside
    return tuple(renewed)


def plans(
    plan: Plan, steps: Sequence[ops.Op], programs: Sequence[Program], overlaid: Overlaid | None = None
) -> BranchPlans:
    """Return the plans of an interpreter and of its branches; raises UnavailableError with the reason.

    plan, steps: the policy's, the ops as primitives.
    programs: the filters of nested(policy).
    overlaid: what becomes of the steps if branches get overlays; None: they get none.
    """
    check(plan)
    steps = steps if overlaid is None else overlaid.steps
    renewed = _renewed(steps) if overlaid is None else overlaid.renewed(_renewed(steps))
    own = tuple(_interpreters(op) for op in steps if not _is_in_proc(op))
    files = plan.ruleset is not None and plan.ruleset.files
    interpreter = replace(
        plan,
        ops=own,
        identity=_identity(plan.identity),
        rlimits=tuple(limit for limit in plan.rlimits if limit.name not in _EACH),
        cgroup_limits=(),  # each branch has these for itself too
        # The last filters may refuse more filters, and the branches install their own.
        programs=tuple(program for program in programs if program.stage != "last"),
        ruleset=None if files else plan.ruleset,  # behind rules about files nothing can be mounted
        capabilities=Capabilities(_MASK, _MASK, _MASK),
        kill_on_exit=True,
        map_root=False,
        network=None,  # a list is each branch's own
    )
    branch = replace(plan, ops=renewed, identity=_branch_identity(plan.identity))
    return BranchPlans(interpreter, own, branch, renewed)
