"""Blocks: the policy that nsbox.confined() has put in force, for the current context and for threads without one.

A block's policy is a context variable. Threads begin without one. So do the workers that a pool's own thread forks
later. What these get depends on the blocks that are open in this process.
"""

from __future__ import annotations

from contextvars import ContextVar

from nsbox._base.errors import NsboxError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._policy.policy import Policy
from nsbox._spawn.way import Keeper

if TYPE_CHECKING:
    from typing import Any, NoReturn

in_force: ContextVar[Policy | Keeper | None] = ContextVar("nsbox.confined", default=None)
"""The policy of the nsbox.confined() block in which the current code runs."""

announcing: ContextVar[bool] = ContextVar("nsbox.announcing", default=False)
"""Whether the current audit event announces a command that goes into a sandbox."""

opened: dict[object, tuple[Policy | Keeper, bool]] = {}
"""The blocks that are open in this process: each with its policy, and whether threads without one have it as well."""


class _Undecided(Keeper):
    """Stands for several policies, none of which is the right one: nothing is started."""

    def __init__(self, whose: str) -> None:
        self._problem = (
            f"{whose} has no policy of its own, and nsbox.confined() blocks with different policies are open: nsbox "
            "can't tell which of them it belongs to; have it run contextvars.copy_context().run(function)"
        )

    def _open_way(self) -> NoReturn:
        raise NsboxError(self._problem)

    def _popen_class(self, kind: type[Any]) -> NoReturn:
        raise NsboxError(self._problem)


def current() -> Policy | Keeper | None:
    """Return the policy for what the current code starts; None: it isn't contained."""
    policy = in_force.get()
    return policy if policy is not None or not opened else _only("a thread", for_threads=True)


def _only(whose: str, *, for_threads: bool) -> Policy | Keeper | None:
    """Return the policy of the open blocks; if they have several, one that refuses everything."""
    policies: list[Policy | Keeper] = []
    for policy, is_for_threads in tuple(opened.values()):
        if (is_for_threads or not for_threads) and policy not in policies:
            policies.append(policy)
    return policies[0] if len(policies) == 1 else _Undecided(whose) if policies else None


def after_fork() -> None:
    """In a child that a thread without a policy has forked, such as a pool's worker, put the open block's in force."""
    if in_force.get() is None and opened:
        in_force.set(_only("what a thread has forked", for_threads=False))
