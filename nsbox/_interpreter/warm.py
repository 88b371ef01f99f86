"""What a warm interpreter's sandbox is made of, and the request by which it makes branches."""

from __future__ import annotations

from nsbox import _backends
from nsbox._base.errors import Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen, replace
from nsbox._base.paths import is_inside
from nsbox._core.request import Blob, request_for
from nsbox._interpreter.plan import check, nested, plans
from nsbox._layout.layout import may_be_kernel_root
from nsbox._lookup.host import host_for
from nsbox._paths.destinations import Destinations, is_missing
from nsbox._plan.ops import Over
from nsbox._seccomp.bpf import Program, Rule
from nsbox._spawn.start import spawn
from nsbox._spawn.way import Keeper, Way

if TYPE_CHECKING:
    from nsbox._core.command import Result
    from nsbox._interpreter.mounts.overlay import Overlaid
    from nsbox._plan.ops import Op
    from nsbox._plan.plan import Plan
    from nsbox._policy.policy import Policy
    from nsbox._spawn.prepare import Prepared
    from nsbox._spawn.start import Start

# A mount gives root's workspace to the ids that stand in for root. There the interpreter could give files capabilities,
# which would count outside too. io_uring can make these calls as well.
_ATTRIBUTES = Rule(("setxattr", "lsetxattr", "fsetxattr", "setxattrat"), 95)  # EOPNOTSUPP
_RINGS = Rule(("io_uring_setup",), 38)  # ENOSYS
# A mount point can't be renamed where something is mounted on it (mount_namespaces(7)). All that the policy mounts is
# locked there, and stays as long as nothing is unmounted as a whole: otherwise a directory that is hidden could get
# another name, under which a later command would see it.
_UNMOUNTS = Rule(("pivot_root", "umount2", "umount"), 1)  # EPERM

_REMEDY = (
    "be another user, or use Policy.workspace() with ids='single', and files on ext4, xfs, btrfs or tmpfs instead of "
    "overlayfs: then root's commands have another id"
)


class _MadeWay(Way):
    kind = "interpreter"

    def __init__(self, policy: Policy, prepared: Prepared) -> None:
        super().__init__(policy)
        self._prepared = prepared

    def spawn(self, start: Start) -> Result:
        result = spawn(start.by(self._prepared))
        result.plan = self._prepared.plan
        return result


class Made(Keeper):
    """Starts commands by a plan that was made from a policy's own."""

    def __init__(self, policy: Policy, prepared: Prepared) -> None:
        """Hold both. prepared: the other plan."""
        self._way = _MadeWay(policy, prepared)

    def _open_way(self) -> Way:
        """Return how they are started."""
        return self._way


@frozen
class Warm(Frozen):
    """What one policy's interpreter is made of.

    prepared: for the command that it is. renewed: its branches' ops. blob: the request for these. pointers: their
    positions in it.
    """

    prepared: Prepared
    renewed: tuple[Op, ...]
    blob: bytes
    pointers: tuple[int, ...]


def _check_root(policy: Policy, plan: Plan) -> None:
    """Raise UnavailableError if the interpreter would be the kernel's uid 0, unless its policy's commands are as free.

    It makes user namespaces and mounts. As that uid it could mount a procfs and cgroups, whose files uid 0 may
    write to, and so change the settings of the host's kernel.
    """
    if may_be_kernel_root(policy, host_for(policy)) and not plan.map_root:
        what = "Python's interpreter would be the kernel's uid 0, and could write to the host's settings"
        raise UnavailableError(Reason(what, _REMEDY))


def possible(policy: Policy, plan: Plan) -> None:
    """Raise UnavailableError, with the reason, if there can be no interpreter for a policy."""
    check(plan)
    _check_root(policy, plan)
    if not plan.kill_on_exit:
        raise UnavailableError(Reason("nothing of a branch can go on after it", "leave kill_on_exit=False out"))


def _check_links(steps: tuple[Op, ...], renewed: tuple[Op, ...]) -> None:
    """Raise UnavailableError if a link leads to a place in what each branch gets fresh, where it finds nothing.

    steps: the interpreter's. renewed: a branch's.
    """
    fresh = [op.op.dest for op in renewed if isinstance(op, Over)]
    steps = tuple(op for op in steps if not is_missing(op))
    for op, at in zip(steps, Destinations(steps).steps, strict=True):
        dest, leads = str(getattr(op, "dest", "")), str(getattr(at, "dest", ""))
        if dest != leads and any(is_inside(leads, place) and not is_inside(dest, place) for place in fresh):
            what = f"Python in branches: {op.describe()} leads by a link to {leads}"
            raise UnavailableError(Reason(what, "name that path instead"))


def _programs(policy: Policy, plan: Plan) -> tuple[Program, ...]:
    other = nested(policy)
    programs = _backends.compile_policy(other, host_for(other)).programs
    if policy.nested or plan.map_root:
        return programs
    rules = (_UNMOUNTS, _ATTRIBUTES, _RINGS) if plan.kernel_id else (_UNMOUNTS,)
    is_compatible = policy.filter.base == "off" and not policy.filter.rules
    return (*programs, Program(rules, with_compatible=is_compatible))


def warm(policy: Policy, prepared: Prepared, overlaid: Overlaid | None = None) -> Warm:
    """Return what an interpreter is made of, from what is prepared for its policy's commands.

    Raises UnavailableError if there can be no branches.

    overlaid: what becomes of the plan if branches get overlays; None: they get none.
    """
    plan = prepared.plan
    possible(policy, plan)
    made = plans(prepared.plan, prepared.ops, _programs(policy, plan), overlaid)
    request = request_for(made.interpreter, made.steps)
    _check_links(made.steps, made.renewed)
    identity = made.branch.identity
    blob = Blob(request_for(made.branch, made.renewed), identity.uid, identity.gid)
    own = replace(prepared, plan=made.interpreter, ops=made.steps, request=request)
    return Warm(own, made.renewed, bytes(blob.data), tuple(blob.pointers))
