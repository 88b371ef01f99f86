"""What a warm interpreter's sandbox is made of, and the request by which it makes branches."""

from __future__ import annotations

from nsbox import _backends
from nsbox._base.errors import Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen, replace
from nsbox._core.request import Blob, request_for
from nsbox._lookup.host import host_for
from nsbox._python.plan import check, nested, plans

if TYPE_CHECKING:
    from nsbox._plan.ops import Op
    from nsbox._policy.policy import Policy
    from nsbox._python.mounts.overlay import Overlaid
    from nsbox._spawn.prepare import Prepared


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


def warm(policy: Policy, prepared: Prepared, overlaid: Overlaid | None = None) -> Warm:
    """Return that, from what is prepared for its commands. Raises UnavailableError if there can be no branches.

    overlaid: what becomes of the plan if branches get overlays; None: they get none.
    """
    plan = prepared.plan
    check(plan)
    if not plan.kill_on_exit:
        raise UnavailableError(Reason("nothing of a branch can go on after it", "leave kill_on_exit=False out"))
    other = nested(policy)
    made = plans(prepared.plan, prepared.ops, _backends.compile_policy(other, host_for(other)).programs, overlaid)
    request = request_for(made.interpreter, made.steps)
    identity = made.branch.identity
    blob = Blob(request_for(made.branch, made.renewed), identity.uid, identity.gid)
    own = replace(prepared, plan=made.interpreter, ops=made.steps, request=request)
    return Warm(own, made.renewed, bytes(blob.data), tuple(blob.pointers))
