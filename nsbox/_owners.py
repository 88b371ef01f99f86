"""Owners of descriptors: what closes one even where a signal's handler raises in the midst of it all."""

from __future__ import annotations

import select

from nsbox._frozen import TYPE_CHECKING
from nsbox._originals import original

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

# An object that closes its descriptor when nobody has it any more, in C and without a word. This class of select's is
# meant for others, but asks nothing of a descriptor that it is given.
_Owner: Any = original(select, "kqueue" if hasattr(select, "kqueue") else "epoll")


def own(fds: Iterable[int], owners: list[Any]) -> None:
    """Append an object for each descriptor, with fileno() and close(), which closes it when nobody has the object.

    In one step. Python runs a signal's handler after each call; if that raises, a result that isn't kept yet is lost.
    """
    owners.extend(map(_Owner.fromfd, fds))


def opened(call: Callable[[Any], int], argument: Any) -> Any:
    """Return the owner of what a call opens, as own() makes it, and in one step as well."""
    return next(map(_Owner.fromfd, map(call, (argument,))))
