"""A sandbox without a network list keeps what a relay needs to serve it: it may publish a port later."""

from __future__ import annotations

from nsbox._base.descriptors import pair
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.owners import own_received

if TYPE_CHECKING:
    from typing import Any

    from nsbox._relay.relay import Line, Relay


class LateLine:
    """What a spawn shows the sandbox to instead of a relay: _relay.relay's Line comes later, if at all."""

    is_later, id = True, 0

    def __init__(self) -> None:
        self._ours, self._theirs = pair()

    def fileno(self) -> int:
        """Return the socket by which the sandbox is shown to us."""
        return self._theirs.fileno()

    def joined(self, relay: Relay) -> Line:
        """Show the sandbox to a relay, once; return what connects them. Raises SetupError."""
        owners: list[Any] = []
        own_received(self._ours, 2, owners)
        made = relay.line()
        try:
            relay.open(made, [owner.fileno() for owner in owners])
        finally:
            for owner in owners:
                owner.close()
        return made

    def close(self) -> None:
        """Let go of it."""
        self._ours.close()
        self._theirs.close()


def joined(line: Line | LateLine | None, relay: Relay | None) -> Line:
    """Have a relay serve a sandbox, unless one does; None: one of its own. line: the sandbox's so far.

    Raises PolicyError for one on the host's network, and SetupError.
    """
    if line is None:
        raise PolicyError("network", "is 'host': what listens there is reachable as it is")
    if not isinstance(line, LateLine):
        return line
    from nsbox._network.network import nothing
    from nsbox._relay.relay import Relay as OwnRelay  # seldom needed

    try:
        return line.joined(relay or OwnRelay(nothing()))
    finally:
        line.close()
