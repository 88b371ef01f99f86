"""What on_connect has decided, as it comes, and what it is asked."""

from __future__ import annotations

import queue

from nsbox import NetworkRequest

LONG = 30.0  # seconds, which no test waits for


class Verdicts:
    """Takes what is decided."""

    def __init__(self) -> None:
        self.all: queue.Queue[tuple[int, bool]] = queue.Queue()

    def __call__(self, number: int, allow: bool) -> None:
        self.all.put((number, allow))

    def next(self) -> tuple[int, bool]:
        return self.all.get(timeout=LONG)

    def several(self, count: int) -> dict[int, bool]:
        return dict(self.next() for _ in range(count))


def wish(name: str = "a.example", port: int = 443) -> NetworkRequest:
    return NetworkRequest(name, "", port, "tcp", "why")
