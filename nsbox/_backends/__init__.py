"""Backends: each compiles a Policy for a Host into a Plan. They are siblings with the same names and know no other.

NAME
missing(host) -> why this backend can't be used here; empty when it can
compile(policy, host) -> Plan; raises UnavailableError for a wish that it can't grant here
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
    """Return a backend's module. The others stay on the disk."""
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
    """Return the backend for this policy on this host, and why not one that contains more.

    It is the first that can be used at all; a wish that it can't grant is no reason to take one that grants even less.
    Raises UnavailableError with all reasons when there is none that the policy accepts.
    """
    passed_over: list[Reason] = []
    foreign: list[Reason] = []
    for name in BACKENDS:
        if name not in policy.acceptable or policy.backend not in ("auto", name):
            continue
        reasons = _backend(name).missing(host)
        if not reasons:
            return name, tuple(passed_over)
        # What only another system has is no news, unless there is nothing else.
        told = foreign if policy.backend == "auto" and host.system != _SYSTEMS[name] else passed_over
        told += (Reason(f"{name}: {reason.what}", reason.remedy) for reason in reasons)
    raise UnavailableError(*(passed_over or foreign))


def compile_policy(policy: Policy, host: Host) -> Plan:
    """Return the plan of the backend for this policy on this host; raises UnavailableError with all reasons."""
    name, passed_over = choose(policy, host)
    if policy.details != NO_DETAILS and name != "namespaces":
        raise UnavailableError(*passed_over, Reason(f"{name}: details: only namespaces grants them"))
    try:
        return _backend(name).compile(policy, host)
    except UnavailableError as error:
        raise UnavailableError(*passed_over, *error.reasons) from None
