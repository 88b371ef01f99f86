"""The messages between the two processes of `nsbox run` on a terminal: each is a letter and its content.

The bridge has the user's terminal. The monitor leads the session in which the command has its own terminal.
"""

from __future__ import annotations

import contextlib
import marshal
import socket
from typing import Any

# From the monitor.
STARTED = b"r"
STOPPED = b"s"  # content: the signal that stopped the command
ENDED = b"e"  # content: the command's returncode
# From the bridge.
FORWARD = b"f"  # go on in the foreground of the command's terminal
BACKWARD = b"c"  # go on in its background
BACKGROUND = b"b"  # be in its background
SIGNAL = b"n"  # content: a signal for the command
END = b"t"  # end the command
SETTINGS = b"w"  # content: settings to give the user's terminal if the bridge dies, or None
SHOWN = b"d"  # the user's terminal is as it was; content: the end of the output, b"" if keys were typed


class Link:
    """One end of the connection."""

    def __init__(self, end: socket.socket) -> None:
        """Hold one end of a SOCK_SEQPACKET pair."""
        self._socket = end
        self.fd = end.fileno()

    def send(self, letter: bytes, content: Any = None) -> None:
        """Send a message, even if no process is left to receive it."""
        with contextlib.suppress(OSError):
            self._socket.send(letter + marshal.dumps(content))

    def receive(self) -> tuple[bytes, Any]:
        """Return the next message; its letter is b"" once the other process is gone."""
        try:
            message = self._socket.recv(65536)
        except ConnectionResetError:
            message = b""
        return message[:1], marshal.loads(message[1:]) if message else None

    def close(self) -> None:
        """Close this end, which tells the other process that we are gone."""
        self._socket.close()


def pair() -> tuple[Link, Link]:
    """Return two connected ends that no command inherits."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Link(ours), Link(theirs)
