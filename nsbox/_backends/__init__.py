"""Backends: each compiles a Policy for a Host into a Plan. No backend knows another; all have the same three names.

NAME
missing(host) -> why this backend can't be used here; empty if it can
compile(policy, host) -> Plan; raises UnavailableError for a wish that it can't grant here

Lean: only the backend in use is imported: `seatbelt` and `landlock` take 0.9 ms each, `bwrap` 0.1 ms.
"""

from __future__ import annotations

from nsbox._base.errors import Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._policy.details import NO_DETAILS
from nsbox._policy.policy import BACKENDS, Policy

if TYPE_CHECKING:
    from typing import Protocol

    from nsbox._plan.host import Host
    from nsbox._plan.plan import Plan

    class _Backend(Protocol):
        def missing(self, host: Host) -> tuple[Reason, ...]: ...
        def compile(self, policy: Policy, host: Host) -> Plan: ...


_SYSTEMS = {"namespaces": "Linux", "bwrap": "Linux", "seatbelt": "Darwin", "landlock": "Linux", "passthrough": ""}


def _backend(name: str) -> _Backend:
    """Return a backend's module. The others aren't imported."""
    if name == "namespaces":
        from nsbox._backends import namespaces

        return namespaces
    if name == "bwrap":
        from nsbox._backends import bwrap

        return bwrap
    if name == "seatbelt":
        from nsbox._backends import seatbelt

        return seatbelt
    if name == "landlock":
        from nsbox._backends import landlock

        return landlock
    from nsbox._backends import passthrough

    return passthrough


def choose(policy: Policy, host: Host) -> tuple[str, tuple[Reason, ...]]:
    """Return the backend for this policy on this host, and why it isn't a stronger one.

    The first one that works here at all is chosen, even if it can't grant a wish: those after it grant even less.
    Raises UnavailableError with all reasons if the policy accepts none that works.
    """
    passed_over: list[Reason] = []
    foreign: list[Reason] = []
    for name in BACKENDS:
        if name not in policy.acceptable or policy.backend not in ("auto", name):
            continue
        reasons = _backend(name).missing(host)
        if not reasons:
            return name, tuple(passed_over)
        # A backend of another system isn't worth mentioning, unless there is nothing else to report.
        refusals = foreign if policy.backend == "auto" and host.system != _SYSTEMS[name] else passed_over
        refusals += (Reason(f"{name}: {reason.what}", reason.remedy) for reason in reasons)
    refusals = passed_over or foreign
    if (
        host.core_problem
        and host.system != "Darwin"
        and any(reason.what.endswith(host.core_problem) for reason in refusals)
    ):
        from nsbox._backends.refusals import no_core  # a broken installation

        raise UnavailableError(no_core(host))  # the first thing to repair, whatever else is missing
    raise UnavailableError(*refusals)


def compile_policy(policy: Policy, host: Host) -> Plan:
    """Return the plan for this policy on this host, by the backend that choose() names; raises UnavailableError."""
    name, passed_over = choose(policy, host)
    if policy.details != NO_DETAILS and name != "namespaces":
        raise UnavailableError(*passed_over, Reason(f"{name}: details: only namespaces grants them"))
    try:
        return _backend(name).compile(policy, host)
    except UnavailableError as error:
        raise UnavailableError(*passed_over, *error.reasons) from None
