"""Why a command of a transaction may have failed: what the hints for its policy don't know.

As those, these are guesses from what programs print.
"""

from __future__ import annotations

import re

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._layout import owner
from nsbox._tools import space
from nsbox._tools.verdicts import Hint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsbox._plan.host import Host
    from nsbox._policy.policy import Policy

_REFUSED = re.compile(r"dubious ownership|[Pp]ermission denied|EACCES")
_CHARS = 1 << 16  # at the end of each stream


def hints_of(
    policy: Policy,
    host: Host,
    why: tuple[Hint, ...],
    status: int,
    output: tuple[str, str],
    *,
    workspace: str,
    store: str,
) -> tuple[Hint, ...]:
    """Return the hints for a command of a transaction.

    policy, host: the transaction's. why: the hints for the policy. status: the exit status.
    output: what the command has printed. store: the transaction's directory.
    """
    why = space.replaced(why, policy, status, output, store)
    text = "\n".join(stream[-_CHARS:] for stream in output)
    owners = tuple(_of_owner(policy, host, text, workspace))
    return tuple(dict.fromkeys((*(hint for hint in why if not owners or hint.kind != "owner"), *owners)))


def _of_owner(policy: Policy, host: Host, text: str, workspace: str) -> Iterator[Hint]:
    """Yield what to do about another user's files: a Sandbox and a task give root's commands the owner's rights."""
    if _REFUSED.search(text) and (instead := owner.remedy(policy, host, workspace)):
        yield Hint("owner", f"{instead}, or use a task: in a transaction, commands don't get the owner's rights")
