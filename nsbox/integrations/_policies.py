"""What an adapter for a cluster accepts as a policy: a Policy, or a function that makes one in an empty directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from nsbox import Policy
from nsbox._base.display import type_phrase

if TYPE_CHECKING:
    Policies = Policy | Callable[[Path], Policy]


def check(policy: object) -> None:
    """Raise TypeError for what is neither a policy nor a function."""
    if not isinstance(policy, Policy) and not callable(policy):
        raise TypeError(f"policy is {type_phrase(policy)}, must be a Policy, or a function that returns one")


def made(function: Callable[[Path], Policy], directory: Path) -> Policy:
    """Return the policy that a function makes in a directory; raises TypeError if it returns something else."""
    policy = function(directory)
    if not isinstance(policy, Policy):
        raise TypeError(f"the function that makes the policy returned {type_phrase(policy)}, must return a Policy")
    return policy
