"""Published ports: a server in a sandbox is reachable on the host, at a socket that this process opens."""

from __future__ import annotations

import errno
import itertools
import os
import re
import socket
from contextlib import suppress

from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.owners import high, opened

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from nsbox._base.owners import Owner
    from nsbox._relay.relay import Line, Relay

_BACKLOG = 4096
_LOOPBACK = "127.0.0.1"
_ADDRESS = re.compile(r"(?:(\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-fA-F:.]+\]):)?(\d{1,5})")
_numbers = itertools.count(1)


class Published:
    """A port of a sandbox that the host can reach. Sandbox.publish() and Session.publish() make it; close() ends it.

    port: inside.
    address: on the host, as the socket module has it: ("127.0.0.1", 3000), or the path of a unix socket.
    """

    def __init__(self, relay: Relay, port: int, listener: socket.socket, line: Line | None) -> None:
        self.port = port
        name = listener.getsockname()
        self.address: tuple[str, int] | str = name if isinstance(name, str) else name[:2]
        self._relay: Relay | None = relay
        self._place = _place(name) if isinstance(name, str) else None
        self._number = next(_numbers)
        self._creator = os.getpid()
        relay.publish(port, listener.fileno(), self._number, line)

    def close(self) -> None:
        """Accept no more clients; those that are connected stay. Calling it twice isn't an error."""
        relay, self._relay = self._relay, None
        if relay is None or self._creator != os.getpid():
            return
        if relay.is_running():
            relay.unpublish(self._number)
            relay.settle()  # returns when it is in force
        place, self._place = self._place, None
        if place is not None:
            _remove(*place)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __str__(self) -> str:
        if isinstance(self.address, str):
            return self.address
        host, port = self.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def __repr__(self) -> str:
        return f"<nsbox.Published {self.port} at {self}>"


def _place(path: str) -> tuple[Owner, str, os.stat_result] | None:
    """Return where a socket is: the owner of its directory's descriptor, its name, its stat; None if it is gone."""
    directory, name = os.path.split(path)
    try:
        owner = high(opened(os.open, directory or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        return owner, name, os.stat(name, dir_fd=owner.fileno(), follow_symlinks=False)
    except OSError:
        return None


def _remove(directory: Owner, name: str, was: os.stat_result) -> None:
    """Remove a socket, if that is still what it was: commands may write there, and put links in its path."""
    with suppress(OSError):
        if os.path.samestat(os.stat(name, dir_fd=directory.fileno(), follow_symlinks=False), was):
            os.unlink(name, dir_fd=directory.fileno())
    directory.close()


def check_port(port: object) -> int:
    """Return a port of a sandbox to publish, 1 to 65535; raises PolicyError."""
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise PolicyError("publish", f"{port!r} isn't a port from 1 to 65535")
    return port


def listening(port: int, to: int | str | None) -> socket.socket:
    """Return a socket that listens on the host for a port of a sandbox. Raises PolicyError and OSError.

    port: inside.
    to: a port of 127.0.0.1, "ADDRESS:PORT", or the path (with a "/") of a unix socket, to which only this user can
        connect. Port 0 is any free one. None: the same port, or any if that is taken.
    """
    if to is None:
        try:
            return at(_LOOPBACK, port)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            return at(_LOOPBACK, 0)
    if isinstance(to, str) and "/" in to:
        return at(to, 0)
    match = _ADDRESS.fullmatch(str(to)) if isinstance(to, str | int) and not isinstance(to, bool) else None
    if match is None or int(match[2]) > 65535:
        raise PolicyError("publish", f"{to!r} isn't a port, ADDRESS:PORT, or path of a socket with a / in it")
    return at((match[1] or _LOOPBACK).strip("[]"), int(match[2]))


def at(address: str, port: int) -> socket.socket:
    """Return a socket that listens at this address and port, or at the path of a unix socket. Raises OSError."""
    return _unix(address) if "/" in address else _tcp(address, port)


def _tcp(address: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"{os.strerror(error.errno or 0)}: publish at {address}:{port}") from None
    return listener


def _unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listener.fileno(), 0o600)  # bind(2) gives the file no more than that (unix(7))
        listener.bind(path)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, os.strerror(error.errno or 0), path) from None
    return listener
