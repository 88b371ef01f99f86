"""Objects that a fork copies. The child's copies must let go of what still belongs to the parent."""

from __future__ import annotations

import os
import weakref

from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Protocol

    class Forked(Protocol):
        def _after_fork(self) -> None: ...


class Alive:
    """The objects of a class that are alive. In a forked child, _after_fork() of each is called."""

    def __init__(self) -> None:
        self._objects: weakref.WeakSet[Forked] = weakref.WeakSet()
        os.register_at_fork(after_in_child=self._after_fork)

    def add(self, one: Forked) -> None:
        """Add an object, without keeping it alive."""
        self._objects.add(one)

    def _after_fork(self) -> None:
        for one in list(self._objects):
            one._after_fork()
