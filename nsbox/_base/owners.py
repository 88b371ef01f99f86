"""Owners of descriptors: objects that close them, even if a signal's handler raises at the worst moment."""

from __future__ import annotations

import _socket  # as in _base.descriptors
import select
from itertools import chain, compress, repeat
from operator import itemgetter, methodcaller

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.stdlib import original

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, Protocol, TypeVar

    T = TypeVar("T")

    class Owner(Protocol):
        """What owns a descriptor, and closes it when it is freed."""

        def fileno(self) -> int: ...
        def close(self) -> None: ...


# A class whose objects close their descriptors when they are freed, in C and without a warning. It is meant for another
# kind of descriptor, but accepts any.
_Owner: Any = original(select, "kqueue" if hasattr(select, "kqueue") else "epoll")
_each = chain.from_iterable
_memory: Any = memoryview


def own(fds: Iterable[int], owners: list[Owner]) -> None:
    """Append an owner for each descriptor: an object with fileno() and close(), which closes it when freed.

    This is a single step. Python runs a signal's handler between calls; if that raises, a result that nothing holds yet
    is lost.
    """
    owners.extend(map(_Owner.fromfd, fds))


def opened(call: Callable[..., int], *arguments: Any) -> Owner:
    """Return the owner, as own() makes it, of the descriptor that a call opens. A single step as well."""
    return next(map(_Owner.fromfd, map(call, *zip(arguments))))  # type: ignore[no-any-return]


def own_after(call: Callable[..., object], arguments: Iterable[Any], fds: Iterable[int], owners: list[Owner]) -> None:
    """Call a function that returns no descriptor, and then own some. A single step as well."""
    called = compress(map(call, *zip(arguments)), (False,))
    owners.extend(map(_Owner.fromfd, chain(called, fds)))


def own_left(
    call: Callable[[T], object], argument: T, place: object, names: Sequence[str], owners: list[Owner]
) -> None:
    """Call a function that leaves descriptors, or -1, in attributes of an object, and own them. A single step as well.

    place, names: that object, and the names of the attributes.
    """
    own_after(call, (argument,), filter((-1).__lt__, map(getattr, repeat(place), names)), owners)


def own_received(sock: Any, most: int, owners: list[Owner]) -> None:
    """Receive a byte from a socket, and own the descriptors that come with it, at most `most`. A single step too."""
    space, flags = _socket.CMSG_LEN(4 * most), _socket.MSG_CMSG_CLOEXEC
    rights = map(itemgetter(2), _each(map(itemgetter(1), map(sock.recvmsg, (1,), (space,), (flags,)))))
    owners.extend(map(_Owner.fromfd, _each(map(methodcaller("cast", "i"), map(_memory, rights)))))


def high(owner: Owner) -> Owner:
    """Return the owner, or that of a copy if its descriptor is below 3: the caller may have closed standard ones."""
    if owner.fileno() > 2:
        return owner
    import fcntl  # some systems on which this module is imported lack it

    moved = opened(fcntl.fcntl, owner.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
    owner.close()
    return moved
