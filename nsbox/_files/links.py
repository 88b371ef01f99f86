"""What the kernel looks up on the way to a path: a process that may write to any of it decides where the path leads."""

from __future__ import annotations

import contextlib
import errno
import os
from _collections_abc import Iterator

from nsbox._base.paths import is_below

_MOST_LINKS = 40  # path_resolution(7)


def ways(path: str) -> Iterator[str]:
    """Yield everything that is looked up on the way to a path, links and what is on their ways too. Raises OSError."""
    at, rest, links = "/", path.split("/")[::-1], 0
    while rest:
        name = rest.pop()
        if name in ("", ".", ".."):
            at = os.path.dirname(at) if name == ".." else at
            continue
        at = os.path.join(at, name)
        yield at
        try:
            target = os.readlink(at)
        except OSError:  # no link, or not there yet
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        at = "/" if target.startswith("/") else os.path.dirname(at)
        rest += target.split("/")[::-1]


def detours(path: str, real: str) -> tuple[str, ...]:
    """Return the part of ways(path) that isn't on the way to its real path: links, and the directories they are in."""
    aside: dict[str, None] = {}
    with contextlib.suppress(OSError):  # a circle of links: ways() has yielded all of it by then
        for at in ways(path):
            if not is_below(real, at):
                aside[at] = None
    return tuple(aside)
