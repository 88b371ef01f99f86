"""Backends: each compiles a Policy for a Host into a Plan. They are siblings with the same names and know no other.

missing(host) -> why this backend can't be used here; empty when it can
compile(policy, host) -> Plan; raises UnavailableError for a wish that it can't grant here
"""

from __future__ import annotations

from nsbox._backends import namespaces
from nsbox._errors import UnavailableError
from nsbox._host import Host
from nsbox._plan import Plan
from nsbox._policy import Policy


def compile_policy(policy: Policy, host: Host) -> Plan:
    """Return the plan of the first backend that can be used on this host; raises UnavailableError with all reasons."""
    reasons = namespaces.missing(host)
    if reasons:
        raise UnavailableError(*reasons)
    return namespaces.compile(policy, host)
