"""Losses: what a policy may go without where the backend can't grant it, each by its own name. Pure.

A level is a short spelling of several losses. None of a level's opens the network or a file.
"""

from __future__ import annotations

from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

LOSSES = {
    "attributes": "the user's own files anywhere can get other modes, owners and times; names and sizes are seen",
    "deny": "what is denied inside of something open is open",
    "home": "HOME is no directory of the sandbox's own",
    "hostname": "no host name of the sandbox's own",
    "ids": "only the caller's uid and gid",
    "landlock": "no second layer about files",
    "limits.cpus": "no limit of processors",
    "limits.memory": "no limit of each process's memory",
    "limits.processes": "no limit of processes",
    "limits.total_memory": "no limit of the memory of all processes together",
    "network": "nothing, or not all, on a network list can be reached",
    "processes": "other processes of the user are seen; what the command leaves running may go on",
    "read": "what is read-only inside of something writable can be written",
    "seccomp": "no filter of system calls",
    "secrets": "secrets that the user may read, such as /etc/shadow for root, or what is in /dev and /run, can be read",
    "tmp": "no private /tmp, or no limit of its size; the host's can be read if all around it can",
}
LEVELS = {
    "namespaces": ("home", "hostname", "processes", "tmp"),
    "limits": ("limits.cpus", "limits.memory", "limits.processes", "limits.total_memory"),
}


class Losses(frozenset[str]):
    """A frozenset of names, and its repr that of one, sorted. As a text it is one line that says what may be lost."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"frozenset({{{', '.join(map(repr, sorted(self)))}}})" if self else "frozenset()"

    def __str__(self) -> str:
        return f"may be lost: {self.details()}" if self else "nothing may be lost"

    def details(self) -> str:
        """Return each name with what its loss means, on one line."""
        return "; ".join(f"{name} ({LOSSES[name]})" for name in sorted(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return Losses, (sorted(self),)


def losses(words: Iterable[str]) -> Losses:
    """Return the losses that these words name, a level's each by its own name.

    words: losses and levels. Raises PolicyError for any other.
    """
    named: set[str] = set()
    for word in sorted(words):
        if word not in LOSSES and word not in LEVELS:
            known = ", ".join((*LEVELS, *LOSSES))
            raise PolicyError("degrade", f"{word!r} is unknown, must be among {known}")
        named.update(LEVELS.get(word, (word,)))
    return Losses(named)


def words_for(names: Iterable[str]) -> list[str]:
    """Return few words that name these losses: a level if it has more than half of its own among them."""
    rest = set(names)
    words = [level for level, own in LEVELS.items() if 2 * len(rest & {*own}) > len(own)]
    return sorted((*words, *rest.difference(*(LEVELS[word] for word in words))))
