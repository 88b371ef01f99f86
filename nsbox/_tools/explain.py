"""plan() and explain(): what a policy amounts to on a machine, as a value and as text."""

from __future__ import annotations

import os

from nsbox import _backends
from nsbox._base.display import printable
from nsbox._layout.user import home_words, user_of
from nsbox._lookup.host import host_for
from nsbox._lookup.matches import notes
from nsbox._paths.git import notes as notes_of_git
from nsbox._plan.host import Host
from nsbox._plan.plan import Plan
from nsbox._plan.sbpl import Seatbelt
from nsbox._policy.policy import Policy
from nsbox._policy.variables import CERTIFICATES, PROXIES
from nsbox._spawn.environment import Environment


def plan(policy: Policy, host: Host | None = None) -> Plan:
    """Return the Plan for this policy, without starting anything: what is enforced, what is `lost`, and how.

    policy: the Policy.
    host: the facts of another machine. Default: None, for this one's.

    Raises UnavailableError if no backend can carry the policy out there.
    """
    return _backends.compile_policy(policy, host_for(policy) if host is None else host)


def explain(policy: Policy, host: Host | None = None) -> str:
    """Return the plan for this policy as an aligned table, one line per op, and what is and isn't enforced.

    policy: the Policy.
    host: the facts of another machine. Default: None, for this one's.

    Raises UnavailableError if no backend can carry the policy out there.
    """
    is_here = host is None
    host = host_for(policy) if host is None else host
    plan = _backends.compile_policy(policy, host)
    identity = plan.identity
    lines = [
        f"backend     {plan.backend}",
        *(f"not         {reason}" for reason in _backends.choose(policy, host)[1]),
        f"namespaces  {' '.join(sorted(plan.namespaces)) or 'none'}",
        f"identity    uid {identity.uid}, gid {identity.gid}",
        *_lost(policy, plan),
        *_network(plan),
        *(_names(policy) if is_here and policy.base == "workspace" else ()),
        *_user(policy, host, plan, is_here=is_here),
        "",
        plan.table(),
        *_parameters(plan),
        "",
        *(f"enforced      {text}" for text in plan.enforced),
        *(f"not enforced  {text}" for text in plan.not_enforced),
    ]
    return "\n".join(lines)


def _lost(policy: Policy, plan: Plan) -> list[str]:
    """Return a line: what the plan loses of what `degrade` accepts; each name's sentence is under "not enforced"."""
    if not policy.degrade and not plan.lost:
        return []
    return [f"lost        {', '.join(sorted(plan.lost)) or 'nothing'}"]


def _network(plan: Plan) -> list[str]:
    """Return the entries of a network list, one a line, as nsbox has understood them."""
    if plan.network is None:
        return []
    allows_none = all(entry.is_denied for entry in plan.network.entries)
    lines = ["allows nothing; what commands try is recorded"] if allows_none else []
    lines += [f"{'denies' if entry.is_denied else 'allows'} {entry.spelled}" for entry in plan.network.entries]
    return [f"network     {line}" for line in lines]


def _names(policy: Policy) -> list[str]:
    """Return what the policy's patterns match, where its links lead, and what of git's is followed or not."""
    lines = [*notes(policy), *(f"link {link} -> {target}" for link, target in policy.links)]
    lines += notes_of_git(policy.write, policy.deny)
    return [f"names       {printable(line)}" for line in lines]


def _user(policy: Policy, host: Host, plan: Plan, *, is_here: bool) -> list[str]:
    """Return a workspace's home, its entry in passwd, and where programs and certificates come from."""
    if policy.base != "workspace" or plan.backend == "passthrough":
        return []
    has_own = any(getattr(op, "dest", "") == "/etc/passwd" and type(op).__name__ == "BindData" for op in plan.ops)
    whose = f"the sandbox's own: {user_of(policy, host)}, {plan.home}" if has_own else "the host's"
    lines = [
        f"home        {plan.home} ({home_words(policy, host, has_mounts=plan.backend in ('namespaces', 'bwrap'))})"
    ]
    lines += [f"passwd      {whose}"] if host.passwd is not None and plan.ops else []
    lines += [f"PATH        {':'.join(Environment(policy, host, plan).directories())}"] if is_here else []
    lines += [f"variable    {name}={value}" for name, value in host.certificates]
    if is_here and policy.network != "none" and not policy.inherit_env:
        shown = {*dict(host.certificates), *policy.pass_env}
        lost = [name for name in CERTIFICATES if name not in shown and os.environ.get(name)]
        lines += [f"variable    {name}: left out: what it names isn't shown in the sandbox" for name in lost]
    callers: set[str] = {*policy.taken_from_caller()} & os.environ.keys() if is_here else set()
    lines += [
        f"variable    {name}: the caller's, which can have a password in it" for name in PROXIES if name in callers
    ]
    return [printable(line) for line in lines]


def _parameters(plan: Plan) -> list[str]:
    """Return the paths in a profile, which are its parameters. The op has the text."""
    pairs = [pair for op in plan.ops if isinstance(op, Seatbelt) for pair in op.params]
    width = max((len(name) for name, _ in pairs), default=0)
    return [f"   {name:<{width}}  {value or 'a fresh directory for temporary files'}" for name, value in pairs]
