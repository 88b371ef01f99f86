"""What happened in one sandbox under a network list: its last events, and counts of all. Users see a copy."""

from __future__ import annotations

from _thread import allocate_lock  # this package must not import threading: pyproject.toml
from collections import deque

from nsbox._base.frozen import TYPE_CHECKING, Frozen, field, frozen

if TYPE_CHECKING:
    from nsbox._network.events import NetworkEvent

MOST_EVENTS = 1000


@frozen
class NetworkRecord(Frozen):
    """What a command under a network list has done so far: `Popen.sandbox.network`. Empty without a list.

    events: the last 1000 events, oldest first.
    tally: (verdict, reason, count) of all events, except for connections that ended normally.
    sent, received: bytes of connections and flows that have ended.
    lost: how many events are missing because there were more than could be read in time.
    """

    events: tuple[NetworkEvent, ...] = field(default=(), repr=False)  # too many to print
    tally: tuple[tuple[str, str, int], ...] = ()
    sent: int = 0
    received: int = 0
    lost: int = 0

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """The number of events by verdict and reason, such as {("refused", "not-listed"): 2}."""
        return {(verdict, reason): count for verdict, reason, count in self.tally}

    @property
    def allowed(self) -> int:
        """The number of lookups, connections and flows that were allowed."""
        return self._count("allowed")

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
    counts: tuple[tuple[str, str, int], ...]
    sent: int
    received: int
    lost: int


class NetworkLog:
    """Keeps the events of a sandbox. One thread adds them; any thread may read."""

    def __init__(self) -> None:
        self._events: deque[NetworkEvent] = deque(maxlen=MOST_EVENTS)
        self._counts: dict[tuple[str, str], int] = {}
        self._total = self._sent = self._received = self._lost = 0
        self._lock = allocate_lock()

    def add(self, event: NetworkEvent) -> None:
        """Add an event."""
        with self._lock:
            self._events.append(event)
            self._total += 1
            if event.kind == "close":
                self._sent += event.sent
                self._received += event.received
            is_reset = event.kind == "close" and event.reason == "upstream"
            if event.kind != "close" or is_reset or event.verdict != "allowed":
                verdict = "failed" if is_reset else event.verdict
                key = (verdict, event.reason)
                self._counts[key] = self._counts.get(key, 0) + 1

    def lose(self, count: int) -> None:
        """Note that this many events could not be delivered."""
        with self._lock:
            self._lost += count

    def mark(self) -> Mark:
        """Return the present state, so that record() can start from it: for one command in a session."""
        with self._lock:
            counts = tuple([(*key, count) for key, count in self._counts.items()])
            return Mark(self._total, counts, self._sent, self._received, self._lost)

    def record(self, since: Mark | None = None) -> NetworkRecord:
        """Return what has happened so far, or only since a mark."""
        with self._lock:
            before = {(verdict, reason): count for verdict, reason, count in since.counts} if since else {}
            tally = [(*key, left) for key, count in self._counts.items() if (left := count - before.get(key, 0))]
            events, new = tuple(self._events), self._total - (since.total if since else 0)
            sent, received, lost = (since.sent, since.received, since.lost) if since else (0, 0, 0)
            return NetworkRecord(
                events[len(events) - new :] if new < len(events) else events,
                tuple(sorted(tally)),
                self._sent - sent,
                self._received - received,
                self._lost - lost,
            )

    def after_fork(self) -> None:
        """Use a fresh lock in a forked child: another thread of the parent may have held the old one."""
        self._lock = allocate_lock()
