"""From a policy to its seccomp filters, and to words for what they refuse. Pure.

Lean: `_seccomp.profiles` (0.6 ms) is imported for a policy with a profile.
"""

from __future__ import annotations

from nsbox._backends.limits import core_stays
from nsbox._base.errors import PolicyError
from nsbox._layout.layout import needs_no_userns
from nsbox._plan.host import Host
from nsbox._policy.policy import Policy
from nsbox._seccomp.bpf import Program, Rule
from nsbox._seccomp.filter import no_more_filters, no_user_namespaces, profile


def programs(policy: Policy, host: Host, *, by_second_userns: bool, last: tuple[Rule, ...] = ()) -> tuple[Program, ...]:
    """Return the seccomp filters, in the order of their installation.

    The first is installed while another process mounts, which hides its cost.

    by_second_userns: whether the set-up enters a second user namespace after that.
    last: rules of the backend that may refuse calls of the set-up, and so come at its end.
    """
    wish = policy.filter
    rules = profile(
        wish.base,
        nested=policy.may_give_children,
        may_nest=policy.may_nest,
        for_net=policy.network != "host",
        set_ids=policy.base != "host",
        allow=wish.allow,
        core_stays=core_stays(policy, host),
    )
    way_out = not policy.nested and needs_no_userns(policy, host)
    if way_out and not {"clone", "unshare"}.isdisjoint(wish.allow):
        raise PolicyError(
            "seccomp.allow",
            "in a user namespace of its own a command could leave behind what protects files here; "
            "nested=True allows them, and gives that up",
        )
    no_userns: tuple[Rule, ...] = ()
    if way_out or (wish.base != "off" and not policy.may_nest):
        no_userns = no_user_namespaces(wish.allow)
    with_compatible = wish.base == "off" and not wish.rules
    if not by_second_userns:
        filters = [Program((*rules, *no_userns), with_compatible=with_compatible)]
    elif policy.details.capabilities:  # then other namespaces are made after the user namespace as well
        filters = [Program((*rules, *no_userns), with_compatible=with_compatible, stage="confined")]
    else:
        filters = [Program(rules, with_compatible=with_compatible)]
        if no_userns:
            filters.append(Program(no_userns, with_compatible=with_compatible, stage="confined"))
    if last:  # before the policy's own, which may be about seccomp(2) itself
        filters.append(Program(last, with_compatible=with_compatible, stage="last"))
    filters += [Program(code=code, stage="last") for code in wish.programs]
    own = (*no_more_filters(wish.base, wish.allow), *wish.rules)
    if own:  # after the ready ones
        filters.append(Program(own, stage="last"))
    return tuple(filters)


def _refuses_set_ids(policy: Policy) -> bool:
    """Say if no way is left to make a set-user-ID file. io_uring opens files too; nested sandboxes need openat2."""
    if policy.filter.base == "off" or policy.base == "host" or policy.nested:
        return False
    from nsbox._seccomp.profiles import SET_IDS

    ways = {"openat2", "io_uring_setup", *(call for rule in SET_IDS for call in rule.calls)}
    return ways.isdisjoint(policy.filter.allow)


def refused(policy: Policy, *, has_init: bool = True) -> str:
    """Return a sentence: what the seccomp filters refuse. has_init: if the command is in a pid namespace of its own."""
    wish = policy.filter
    words = ["keyrings"] if has_init and policy.may_give_children else ["keyrings", "children of the caller"]
    words += ["exit tracing"] if "ptrace" not in wish.allow else []
    if wish.base != "off":
        words += ["administration", "bpf", "io_uring", "file handles", "raw and unusual sockets"]
        words += ["set-user-ID and set-group-ID bits"] if _refuses_set_ids(policy) else []
        words += [] if policy.may_nest else ["namespaces", "mounts"]
    if wish.base == "hardened":
        words += ["tracing", "file locks", "inotify"]
    text = f"system calls: no {', '.join(words)}"
    text += f", but {', '.join(wish.allow)} allowed" if wish.allow else ""
    own = len(wish.rules), len(wish.programs)
    return text + (f"; {own[0]} rules and {own[1]} programs of the policy's own" if any(own) else "")


def left_behind(policy: Policy) -> str:
    """Say what a command may leave in writable places that can do harm outside."""
    what = "programs and scripts" if _refuses_set_ids(policy) else "set-user-ID programs and scripts"
    return f"afterwards: {what} that the command leaves in writable places"


def unkillable(policy: Policy) -> tuple[str, ...]:
    """Return sentences: what isn't enforced at the end of a sandbox in which processes can trace each other's exit."""
    if "ptrace" not in policy.filter.allow:
        return ()
    return (
        "the end: processes that trace each other's exit can't be killed, not even by root (seccomp.allow: ptrace)",
    )
