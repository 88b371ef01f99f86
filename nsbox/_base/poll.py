"""Whether a descriptor has something to read. Unlike descriptors.py, this imports on every system."""

from __future__ import annotations

import select


def is_readable(fd: int, seconds: float = 0) -> bool:
    """Return whether a descriptor of any number has something to read, or its end, now or within some seconds.

    select(2) knows no numbers from 1024 up.
    """
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(1000 * seconds))
