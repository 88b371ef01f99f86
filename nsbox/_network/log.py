"""What happened in one sandbox under a network list: its last events, and counts of all. Users see a copy."""

from __future__ import annotations

from _thread import allocate_lock  # this package must not import threading: pyproject.toml
from collections import deque

from nsbox._base.frozen import TYPE_CHECKING, Frozen, field, frozen, replace

if TYPE_CHECKING:
    from nsbox._network.events import NetworkEvent

MOST_EVENTS = 1000
_MOST_KEPT = 100  # destinations, of the first ones and of the last ones


@frozen
class NetworkRecord(Frozen):
    """What a command under a network list has done so far: `Popen.sandbox.network`. Empty without a list.

    events: the last 1000 events, oldest first.
    tally: (verdict, reason, count) of all events, except for connections that ended normally.
    sent, received: bytes of connections and flows that have ended.
    lost: how many events are missing because there were more than could be read in time.
    refusals: the last event of each destination that was refused. However many there are, the first 100 and the last
        100 destinations are there.
    granted: the same of destinations that on_connect has allowed, whether or not the connection came about.
    is_complete: whether these two have each destination.
    """

    events: tuple[NetworkEvent, ...] = field(default=(), repr=False)  # too many to print
    tally: tuple[tuple[str, str, int], ...] = ()
    sent: int = 0
    received: int = 0
    lost: int = 0
    refusals: tuple[NetworkEvent, ...] = field(default=(), repr=False)
    granted: tuple[NetworkEvent, ...] = field(default=(), repr=False)
    is_complete: bool = True

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """The number of events by verdict and reason, such as {("refused", "not-listed"): 2}."""
        return {(verdict, reason): count for verdict, reason, count in self.tally}

    @property
    def allowed(self) -> int:
        """The number of lookups, connections and flows that were allowed.

        A lookup that is answered before on_connect is asked (`unasked`) isn't one: it decides nothing, and nothing has
        left the machine.
        """
        return self._count("allowed") - self.counts.get(("allowed", "unasked"), 0)

    @property
    def refused(self) -> int:
        """The number that were refused."""
        return self._count("refused")

    @property
    def failed(self) -> int:
        """The number that the policy allowed and that failed for another reason."""
        return self._count("failed")

    def _count(self, which: str) -> int:
        return sum(count for verdict, _, count in self.tally if verdict == which)


@frozen
class Mark(Frozen):
    """The state of a log at some moment: totals since its beginning."""

    total: int
    steps: int
    counts: tuple[tuple[str, str, int], ...]
    sent: int
    received: int
    lost: int


class _Destinations:
    """The last event of each destination: of the first destinations, and of the last ones."""

    def __init__(self) -> None:
        self._first: dict[object, tuple[int, NetworkEvent]] = {}
        self._last: dict[object, tuple[int, NetworkEvent]] = {}
        self._left_out = 0  # the step of the last event that was dropped

    def add(self, step: int, event: NetworkEvent) -> None:
        """Keep an event. step: counts up."""
        key = (event.kind, event.name or event.address, event.port, event.protocol, event.reason, event.sni)
        if key in self._first or len(self._first) < _MOST_KEPT:
            self._first[key] = step, event
            return
        self._last.pop(key, None)
        self._last[key] = step, event
        if len(self._last) > _MOST_KEPT:
            self._left_out, _ = self._last.pop(next(iter(self._last)))

    def since(self, step: int) -> tuple[NetworkEvent, ...]:
        """Return those that were added after a step."""
        return tuple([event for at, event in (*self._first.values(), *self._last.values()) if at > step])

    def is_complete(self, step: int) -> bool:
        """Return whether none was left out after a step."""
        return self._left_out <= step


class NetworkLog:
    """Keeps the events of a sandbox. One thread adds them; any thread may read."""

    def __init__(self) -> None:
        self._refusals, self._granted, self._steps = _Destinations(), _Destinations(), 0
        self._events: deque[NetworkEvent] = deque(maxlen=MOST_EVENTS)
        self._counts: dict[tuple[str, str], int] = {}
        self._total = self._sent = self._received = self._lost = 0
        self._lock = allocate_lock()

    def add(self, event: NetworkEvent) -> None:
        """Add an event."""
        with self._lock:
            self._events.append(event)
            self._total += 1
            self._steps += 1
            if event.verdict == "refused":
                self._refusals.add(self._steps, event)
            elif event.kind == "connect" and event.verdict == "allowed" and event.reason == "asked":
                self._granted.add(self._steps, event)
            if event.kind == "close":
                self._sent += event.sent
                self._received += event.received
            is_reset = event.kind == "close" and event.reason == "upstream"
            if event.kind != "close" or is_reset or event.verdict != "allowed":
                verdict = "failed" if is_reset else event.verdict
                key = (verdict, event.reason)
                self._counts[key] = self._counts.get(key, 0) + 1

    def grant(self, event: NetworkEvent) -> None:
        """Note that on_connect has allowed what an event asks about: the connection may still fail."""
        with self._lock:
            self._steps += 1
            self._granted.add(self._steps, replace(event, verdict="allowed", reason="asked"))

    def lose(self, count: int) -> None:
        """Note that this many events could not be delivered."""
        with self._lock:
            self._lost += count

    def mark(self) -> Mark:
        """Return the present state, so that record() can start from it: for one command in a session."""
        with self._lock:
            counts = tuple([(*key, count) for key, count in self._counts.items()])
            return Mark(self._total, self._steps, counts, self._sent, self._received, self._lost)

    def record(self, since: Mark | None = None) -> NetworkRecord:
        """Return what has happened so far, or only since a mark."""
        with self._lock:
            before = {(verdict, reason): count for verdict, reason, count in since.counts} if since else {}
            tally = [(*key, left) for key, count in self._counts.items() if (left := count - before.get(key, 0))]
            events, new = tuple(self._events), self._total - (since.total if since else 0)
            steps = since.steps if since else 0
            sent, received, lost = (since.sent, since.received, since.lost) if since else (0, 0, 0)
            return NetworkRecord(
                events[len(events) - new :] if new < len(events) else events,
                tuple(sorted(tally)),
                self._sent - sent,
                self._received - received,
                self._lost - lost,
                self._refusals.since(steps),
                self._granted.since(steps),
                self._lost == lost and self._refusals.is_complete(steps) and self._granted.is_complete(steps),
            )

    def after_fork(self) -> None:
        """Use a fresh lock in a forked child: another thread of the parent may have held the old one."""
        self._lock = allocate_lock()
