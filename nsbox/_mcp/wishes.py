"""What the operator of a server allows: the policy, what the client's roots mean, and limits of calls."""

from __future__ import annotations

from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsbox._policy.policy import Policy

    Roots = str  # one of ROOTS

ROOTS = ("narrow", "allow", "ignore")


@frozen
class Wishes(Frozen):
    """What the operator allows.

    policy: what commands may do; the most, unless roots is "allow".
    policy_for: returns the policy for roots that the client lists, as absolute paths; only for "allow".
    roots: what the client's roots mean. "narrow": commands can write to what is in both the policy and the roots.
        "allow": the roots are the workspace. "ignore": nothing.
    asks_network: whether the client's user is asked about connections that the network list doesn't mention.
    timeout: the longest that a call may take, in seconds; None: an hour, and 120 seconds if the call names no limit.
    grace: seconds from SIGTERM to SIGKILL for a command that is ended.
    """

    policy: Policy
    policy_for: Callable[[Sequence[str]], Policy]
    roots: Roots = "narrow"
    asks_network: bool = False
    timeout: float | None = None
    grace: float = 1.0
