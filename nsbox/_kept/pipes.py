"""Pipes that nothing reads: commands that have ended left their other end to processes that go on.

Writing to a pipe without a reader is an error (pipe(7)), so the read ends are kept open. Their number is bounded, since
each uses a descriptor of the caller's.
"""

from __future__ import annotations

import os
import select

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.owners import opened

if TYPE_CHECKING:
    from nsbox._base.owners import Owner

MOST = 64


class Unread:
    """Read ends that are kept open for the processes that have the other end."""

    def __init__(self) -> None:
        self._pipes: list[Owner] = []

    def keep(self, pipes: list[int]) -> bool:
        """Keep these too, by descriptors of our own; False: there are too many, or no descriptor is free."""
        before = len(self._pipes)
        if before + len(pipes) > MOST:
            return False
        try:
            for pipe in pipes:
                self._pipes.append(opened(os.dup, pipe))
        except OSError:
            self._close(before)
            return False
        return True

    def drop_ended(self) -> None:
        """Close the pipes that no process can write to any more."""
        if not self._pipes:
            return
        poller = select.poll()
        for pipe in self._pipes:
            poller.register(pipe, 0)
        ended = {fd for fd, events in poller.poll(0) if events & select.POLLHUP}
        for pipe in [pipe for pipe in self._pipes if pipe.fileno() in ended]:
            self._pipes.remove(pipe)
            pipe.close()

    def _close(self, first: int) -> None:
        while len(self._pipes) > first:
            self._pipes.pop().close()

    def close(self) -> None:
        """Close all."""
        self._close(0)
