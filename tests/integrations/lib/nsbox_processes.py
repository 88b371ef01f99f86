"""What runs below this process. A process may end while it is looked at; then it isn't there."""

from __future__ import annotations

from collections.abc import Callable

import psutil


def below(matches: Callable[[psutil.Process], bool], *, is_recursive: bool = True) -> list[psutil.Process]:
    """Return the descendants for which a function returns true.

    is_recursive: False: only children. Default: True.
    """

    def is_there(one: psutil.Process) -> bool:
        try:
            return matches(one)
        except psutil.NoSuchProcess:  # also ZombieProcess: nothing of it runs any more, and it has no command line
            return False

    return [*filter(is_there, psutil.Process().children(recursive=is_recursive))]


def sleepers() -> list[psutil.Process]:
    """Return the descendants that are called "sleep"."""
    return below(lambda one: one.name() == "sleep")
