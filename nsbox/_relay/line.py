"""A line for a sandbox without a network list, which a relay can serve later: to publish a port."""

from __future__ import annotations

from nsbox._base.descriptors import pair
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.owners import own_received

if TYPE_CHECKING:
    from typing import Literal

    from nsbox._base.owners import Owner
    from nsbox._core import command
    from nsbox._relay.relay import Line, Relay


class LateLine:
    """Takes the place of _relay.relay's Line in a spawn. It keeps what a relay would need to join the sandbox later."""

    is_later: Literal[True] = True
    id = 0

    def __init__(self) -> None:
        self._ours, self._theirs = pair()

    def fileno(self) -> int:
        """Return the socket by which the sandbox is shown to us."""
        return self._theirs.fileno()

    def joined(self, relay: Relay) -> Line:
        """Show the sandbox to a relay, once; return their Line. Raises SetupError."""
        owners: list[Owner] = []
        own_received(self._ours, 2, owners)
        line = relay.line()
        try:
            relay.open(line, [owner.fileno() for owner in owners])
        finally:
            for owner in owners:
                owner.close()
        return line

    def close(self) -> None:
        """Let go of it."""
        self._ours.close()
        self._theirs.close()


def joined(line: command.Line | command.LateLine | None, relay: Relay | None) -> Line:
    """Return the Line of a sandbox with a relay, which joins it first if necessary.

    line: the sandbox's so far; None: it is on the host's network.
    relay: the one that joins it; None: a new one.

    Raises SetupError, and PolicyError for a sandbox on the host's network.
    """
    if line is None:
        raise PolicyError("network", "is 'host': what listens there is reachable as it is")
    from nsbox._network.network import Network
    from nsbox._relay import relay as relays  # seldom needed

    if isinstance(line, relays.Line):
        return line
    assert isinstance(line, LateLine)

    try:
        return line.joined(relay or relays.Relay(Network()))
    finally:
        line.close()
