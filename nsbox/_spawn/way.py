"""How the commands of one policy are started, and what can be given instead of a policy because it has such a way."""

from __future__ import annotations

import os

from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from nsbox._core.command import Result
    from nsbox._policy.policy import Policy
    from nsbox._relay.relay import Relay
    from nsbox._spawn.prepare import Prepared
    from nsbox._spawn.start import Start


class Way:
    """How the commands of one policy are started. Threads may use it at the same time.

    relay: for a network list; None: there is no list, or its relay is the shared one.
    kind: a word for what the commands are started by, in records.
    exists: says if commands see a file, by its path; None: they see those that this machine has.
    """

    kind = "command"
    exists: Callable[[str], bool] | None = None

    def __init__(self, policy: Policy, relay: Relay | None = None) -> None:
        self.policy, self.relay = policy, relay

    def spawn(self, start: Start) -> Result:
        """Start a command, and return the result."""
        raise NotImplementedError

    def kernel_id_of(self, prepared: Prepared) -> int:
        """Return the kernel id that commands have, if it isn't the caller's, or 0. prepared: of the policy."""
        return prepared.plan.kernel_id

    def open_terminal(self) -> tuple[int, int]:
        """Return the two ends of a new terminal for a command. Raises OSError."""
        return os.openpty()

    def check_open(self) -> None:
        """Raise ValueError once it is closed."""


class Keeper:
    """An object that is accepted wherever a policy is: it has a policy, and what is kept for that policy's commands."""

    def _open_way(self) -> Way:
        """Return how commands are started now; raises ValueError after close()."""
        raise NotImplementedError

    def _popen_class(self, kind: type[Any]) -> type[Any]:
        """Return the class of Popen that its commands need instead of this one."""
        return kind
