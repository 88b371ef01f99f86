"""What happened under a network list, of one sandbox: its last events, and counts of all. What users see is a copy."""

from __future__ import annotations

from _thread import allocate_lock
from collections import deque

from nsbox._base.frozen import TYPE_CHECKING, Frozen, field, frozen

if TYPE_CHECKING:
    from nsbox._network.events import NetworkEvent

MOST_EVENTS = 1000


@frozen
class NetworkRecord(Frozen):
    """What a command under a network list has done so far: `Popen.sandbox.network`. Empty without a list.

    events: the last 1000, the oldest first. tally: how many there were of each verdict and reason in all, ends of
    connections left out that were in order. sent, received: bytes of connections and flows that have ended. lost: how
    many events are missing, since there were more than could be read in time.
    """

    events: tuple[NetworkEvent, ...] = field(default=(), repr=False)  # they are many
    tally: tuple[tuple[str, str, int], ...] = ()
    sent: int = 0
    received: int = 0
    lost: int = 0

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """How many events there were, by verdict and reason: {("refused", "not-listed"): 2, ...}."""
        return {(verdict, reason): count for verdict, reason, count in self.tally}

    @property
    def allowed(self) -> int:
        """How many lookups, connections and flows were allowed."""
        return self._count("allowed")

    @property
    def refused(self) -> int:
        """How many were refused."""
        return self._count("refused")

    @property
    def failed(self) -> int:
        """How many were allowed, and failed for a reason that isn't the policy's."""
        return self._count("failed")

    def _count(self, which: str) -> int:
        return sum(count for verdict, _, count in self.tally if verdict == which)


@frozen
class Mark(Frozen):
    """How far a log was at some time."""

    total: int
    counts: tuple[tuple[str, str, int], ...]
    sent: int
    received: int
    lost: int


class NetworkLog:
    """Keeps the events of a sandbox. One thread adds them, any may look."""

    def __init__(self) -> None:
        self._events: deque[NetworkEvent] = deque(maxlen=MOST_EVENTS)
        self._counts: dict[tuple[str, str], int] = {}
        self._total = self._sent = self._received = self._lost = 0
        self._lock = allocate_lock()

    def add(self, event: NetworkEvent) -> None:
        """Take one more."""
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
        """Note that so many events could not be delivered."""
        with self._lock:
            self._lost += count

    def mark(self) -> Mark:
        """Return how far it is, for a record of what comes later: of one command in a session."""
        with self._lock:
            counts = tuple([(*key, count) for key, count in self._counts.items()])
            return Mark(self._total, counts, self._sent, self._received, self._lost)

    def record(self, since: Mark | None = None) -> NetworkRecord:
        """Return what there was, or what there was since then."""
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
        """Have a lock that no other thread of the parent has held."""
        self._lock = allocate_lock()
