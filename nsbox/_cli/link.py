"""What the two processes of `nsbox run` on a terminal tell each other: one message each, a letter and its content.

The bridge has the user's terminal, the monitor is the leader of the session in which the command has its own.
"""

from __future__ import annotations

import contextlib
import marshal
import socket
from typing import Any

# From the monitor. Content: nothing; the signal that has stopped the command; its returncode.
STARTED, STOPPED, ENDED = b"r", b"s", b"e"
# From the bridge. Go on in the foreground of the command's terminal, or in the background; be in the background; a
# signal for the command; end it; the settings of the user's terminal as they are to be when we are gone, or None; all
# of the output is shown, and the user's terminal is as it was.
FORWARD, BACKWARD, BACKGROUND, SIGNAL, END, SETTINGS, SHOWN = b"f", b"c", b"b", b"n", b"t", b"w", b"d"


class Link:
    """One end."""

    def __init__(self, end: socket.socket) -> None:
        """Take one of a pair of SOCK_SEQPACKET."""
        self._socket = end
        self.fd = end.fileno()

    def tell(self, letter: bytes, content: Any = None) -> None:
        """Say something; nobody may be left to hear it."""
        with contextlib.suppress(OSError):
            self._socket.send(letter + marshal.dumps(content))

    def hear(self) -> tuple[bytes, Any]:
        """Return the next message; b"" when the other has gone."""
        try:
            message = self._socket.recv(65536)
        except ConnectionResetError:
            message = b""
        return message[:1], marshal.loads(message[1:]) if message else None

    def close(self) -> None:
        """Let the other know that we have gone."""
        self._socket.close()


def pair() -> tuple[Link, Link]:
    """Return two connected ends, which no command inherits."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Link(ours), Link(theirs)
