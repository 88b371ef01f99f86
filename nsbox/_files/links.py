"""What the kernel looks up on the way to a path: a process that may write to any of it decides where the path leads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from nsbox._base.paths import is_below
from nsbox._paths.resolution import Walk


def ways(path: str) -> Iterator[str]:
    """Yield everything that is looked up on the way to a path, including links and their targets. Raises OSError."""
    for at, _ in Walk(path):
        yield at


def detours(path: str, real: str) -> tuple[str, ...]:
    """Return the part of ways(path) that isn't on the way to its real path: links, and the directories they are in."""
    aside: dict[str, None] = {}
    with contextlib.suppress(OSError):  # a circle of links: ways() has yielded all of it by then
        for at in ways(path):
            if not is_below(real, at):
                aside[at] = None
    return tuple(aside)
