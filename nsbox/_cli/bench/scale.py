"""How much is measured: by the whole suite, and by its quick form, which only shows that everything works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured: rounds of each part, and the size of its work."""

    warmup: int
    spawn_rounds: int
    memory_rounds: int
    memory_mib: int
    binds: Mapping[int, int]  # rounds for each number of binds
    thread_rounds: int
    thread_seconds: float
    file_rounds: int
    files: int
    import_rounds: int
    call_rounds: int
    calls: int
    traffic_rounds: int = 1
    turns: int = 20  # round trips of a message
    traffic_mib: int = 1
    connections: tuple[int, ...] = (20,)  # open at once
    snippets: int = 20  # of Python, for map()
    map_rounds: int = 2  # in which these are run
    kernel_mib: int = 8  # of touched memory


FULL = Scale(
    10,
    400,
    150,
    2048,
    {0: 100, 10: 100, 100: 50, 1000: 12},
    10,
    0.5,
    100,
    3000,
    50,
    60,
    200_000,
    30,
    2000,
    256,
    (1000, 9800),
    10_000,
    5,
    500,
)
QUICK = Scale(
    1, 5, 3, 2048, {0: 3, 10: 3, 100: 2, 1000: 1}, 1, 0.2, 2, 300, 3, 2, 2000, 2, 200, 16, (1000,), 200, 2, 64
)
