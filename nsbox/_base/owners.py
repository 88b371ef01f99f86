"""Owners of descriptors: what closes one even where a signal's handler raises in the midst of it all."""

from __future__ import annotations

import _socket
import select
from itertools import chain, compress, repeat
from operator import itemgetter, methodcaller

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.stdlib import original

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

# An object that closes its descriptor when nobody has it any more, in C and without a word. This class of select's is
# meant for others, but asks nothing of a descriptor that it is given.
_Owner: Any = original(select, "kqueue" if hasattr(select, "kqueue") else "epoll")
_each = chain.from_iterable
_memory: Any = memoryview


def own(fds: Iterable[int], owners: list[Any]) -> None:
    """Append an object for each descriptor, with fileno() and close(), which closes it when nobody has the object.

    In one step. Python runs a signal's handler after each call; if that raises, a result that isn't kept yet is lost.
    """
    owners.extend(map(_Owner.fromfd, fds))


def opened(call: Callable[..., int], *arguments: Any) -> Any:
    """Return the owner of what a call opens, as own() makes it, and in one step as well."""
    return next(map(_Owner.fromfd, map(call, *zip(arguments))))


def own_left(call: Callable[[Any], object], argument: Any, place: Any, names: Sequence[str], owners: list[Any]) -> None:
    """Call what leaves descriptors, or -1, in attributes of a place, and own them. In one step as well."""
    called = compress(map(call, (argument,)), (False,))  # its answer is no descriptor
    left = chain(called, map(getattr, repeat(place), names))
    owners.extend(map(_Owner.fromfd, filter((-1).__lt__, left)))


def own_received(sock: Any, most: int, owners: list[Any]) -> None:
    """Receive a message of a byte from a socket, and own the descriptors that come with it. In one step as well."""
    space, flags = _socket.CMSG_LEN(4 * most), _socket.MSG_CMSG_CLOEXEC
    rights = map(itemgetter(2), _each(map(itemgetter(1), map(sock.recvmsg, (1,), (space,), (flags,)))))
    owners.extend(map(_Owner.fromfd, _each(map(methodcaller("cast", "i"), map(_memory, rights)))))


def high(owner: Any) -> Any:
    """Return the owner, or that of a copy from 3 up: the caller may have closed standard descriptors."""
    if owner.fileno() > 2:
        return owner
    import fcntl  # not on every system that this module is imported on

    moved = opened(fcntl.fcntl, owner.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
    owner.close()
    return moved
