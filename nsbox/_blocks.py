"""Blocks: which policy nsbox.confined() has put in force, for the context at hand and for what has none.

A block's policy is a context variable. Threads begin without one. So do the workers that a pool's own thread forks
later. Which blocks are open in this process decides about these.
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
"""The policy of the nsbox.confined() block that the code at hand runs in."""

announcing: ContextVar[bool] = ContextVar("nsbox.announcing", default=False)
"""Whether the audit event at hand is of a command that goes into a sandbox."""

opened: dict[object, tuple[Policy | Keeper, bool]] = {}
"""The blocks that are open in this process: the policy, and whether it is for threads without one as well."""


class _Undecided(Keeper):
    """Stands for a policy that can't be told: nothing is started."""

    def __init__(self, whose: str) -> None:
        self._problem = (
            f"{whose} has no policy of its own, and nsbox.confined() blocks with different policies are open: it can't "
            "be told which of them it belongs to; have it run contextvars.copy_context().run(function)"
        )

    def way(self) -> NoReturn:
        raise NsboxError(self._problem)

    def popen(self, kind: type[Any]) -> NoReturn:
        raise NsboxError(self._problem)


def current() -> Policy | Keeper | None:
    """Return the policy for what the code at hand starts; None: it isn't contained."""
    policy = in_force.get()
    return policy if policy is not None or not opened else _only("a thread", for_threads=True)


def _only(whose: str, *, for_threads: bool) -> Policy | Keeper | None:
    """Return the policy of the open blocks; what refuses everything if they have several."""
    found: list[Policy | Keeper] = []
    for policy, is_for_threads in tuple(opened.values()):
        if (is_for_threads or not for_threads) and policy not in found:
            found.append(policy)
    return found[0] if len(found) == 1 else _Undecided(whose) if found else None


def after_fork() -> None:
    """In the child of a fork by a thread without a policy, such as a pool's worker: put the open block's in force."""
    if in_force.get() is None and opened:
        in_force.set(_only("what a thread has forked", for_threads=False))
