"""The backend that contains nothing: the child that subprocess makes, with the environment that the policy builds."""

from __future__ import annotations

from nsbox._backends import sentences
from nsbox._base.errors import Reason, UnavailableError
from nsbox._plan.host import Host
from nsbox._plan.plan import Identity, Plan
from nsbox._policy.losses import LOSSES
from nsbox._policy.policy import Policy

NAME = "passthrough"


def missing(host: Host) -> tuple[Reason, ...]:
    """Return no reasons: it can be used everywhere."""
    return ()


def compile(policy: Policy, host: Host) -> Plan:
    """Return a plan that contains nothing, and says so."""
    if policy.network not in ("none", "host"):
        what = "passthrough: network: it contains nothing, so no list would hold"
        raise UnavailableError(Reason(what, "set network='host' if you mean that"))
    builds = not policy.inherit_env
    return Plan(
        ops=(),
        namespaces=frozenset(),
        identity=Identity(host.euid, host.egid, "", "", deny_setgroups=False),
        new_session=policy.new_session,
        kill_on_exit=False,
        plain=True,
        backend=NAME,
        enforced=(sentences.BUILT_ENVIRONMENT,) if builds else (),
        not_enforced=("everything else: the command can do whatever the caller can",),
        lost=frozenset(LOSSES),
    )
