"""explain(): what a policy comes to on a machine, as text."""

from __future__ import annotations

from nsbox import _backends
from nsbox._host import Host
from nsbox._plan import Plan
from nsbox._policy import Policy
from nsbox._probe import host_for


def explain(policy: Policy, host: Host | None = None) -> str:
    """Return the plan for this policy as an aligned table, one line per op, and what is and isn't enforced.

    host: facts of another machine; None: of this one. Raises UnavailableError when no backend can carry it out there.
    """
    host = host_for(policy) if host is None else host
    plan = _backends.compile_policy(policy, host)
    identity = plan.identity
    lines = [
        f"backend     {plan.backend}",
        *(f"not         {reason}" for reason in _backends.choose(policy, host)[1]),
        f"namespaces  {' '.join(sorted(plan.namespaces)) or 'none'}",
        f"identity    uid {identity.uid}, gid {identity.gid}",
        "",
        plan.table(),
        *_parameters(plan),
        "",
        *(f"enforced      {text}" for text in plan.enforced),
        *(f"not enforced  {text}" for text in plan.not_enforced),
    ]
    return "\n".join(lines)


def _parameters(plan: Plan) -> list[str]:
    """Return the paths that a profile is about. Its text is the op's."""
    from nsbox._sbpl import Seatbelt

    pairs = [pair for op in plan.ops if isinstance(op, Seatbelt) for pair in op.params]
    width = max((len(name) for name, _ in pairs), default=0)
    return [f"   {name:<{width}}  {value or 'a fresh directory for temporary files'}" for name, value in pairs]
