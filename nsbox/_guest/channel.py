"""The line between a branch and its caller: a stream of frames, some with descriptors.

A frame is its length in four bytes, little-endian, and JSON in ASCII: a lone surrogate is an escape like any other.

The code that runs here shares this process, and may close the line or put another file in its place. So the line is a
high descriptor, and before each frame it must still be the socket that it was.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import select
import socket
import struct
from json import JSONDecoder, JSONEncoder, encoder, scanner
from typing import Any

LONGEST = 64 << 20  # bytes of a frame to a branch
LARGEST = 24 << 20  # bytes of a frame from a branch: the caller ends one that sends more than 32 MiB
_HIGH = 500  # from here on lie the guest's own descriptors: few programs close that many
_ROOM = 1 << 16
_MOST_FDS = 253  # SCM_MAX_FD
_CONTROL = socket.CMSG_SPACE(_MOST_FDS * 4)
_LENGTH = struct.Struct("<I")

# Bound: code that runs here may replace what is in os and socket.
_fstat = os.fstat
_close = os.close
_duplicate = fcntl.fcntl
_F_DUPFD_CLOEXEC = fcntl.F_DUPFD_CLOEXEC
_poll = select.poll
_POLLIN = select.POLLIN
_NOSIGNAL = socket.MSG_NOSIGNAL
_array = array.array
_POLLOUT = select.POLLOUT
_CLOEXEC = socket.MSG_CMSG_CLOEXEC
_IS_RIGHTS = socket.SOL_SOCKET, socket.SCM_RIGHTS
_make_scanner: Any = scanner.make_scanner
_scan = _make_scanner(JSONDecoder())
# Written in C: the methods of JSONEncoder need builtins.
_default = JSONEncoder().default
_encoder: Any = encoder
_parts = _encoder.c_make_encoder(None, _default, _encoder.encode_basestring_ascii, None, ":", ",", False, False, False)


def encode(value: Any) -> str:
    """Return a value as JSON, in ASCII; raises ValueError, TypeError or RecursionError where there is none."""
    return "".join(_parts(value, 0))


class LostError(Exception):
    """The other end is gone, or the descriptor isn't the line any more."""


def high(fd: int, least: int = _HIGH) -> int:
    """Return a high duplicate of a descriptor, which is closed. Where the limit forbids it, one above 2."""
    try:
        new = _duplicate(fd, _F_DUPFD_CLOEXEC, least)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EMFILE):
            raise
        new = _duplicate(fd, _F_DUPFD_CLOEXEC, 3)
    _close(fd)
    return new


def received(control: list[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors of a message's ancillary data."""
    numbers = _array("i")
    for level, kind, data in control:
        if (level, kind) == _IS_RIGHTS:
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
    return list(numbers)


class Channel:
    """One end of a line.

    fds: descriptors that have come with frames, in their order; the reader takes them.
    """

    def __init__(self, fd: int, least: int = _HIGH) -> None:
        """Take a connected stream socket; raises OSError.

        fd: it belongs to the channel from now on.
        least: the lowest number that its descriptor may have.
        """
        self.fd = high(fd, least)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, self.fd)
        self._receive = self._socket.recvmsg
        self._send = self._socket.send
        status = _fstat(self.fd)
        self._identity = status.st_dev, status.st_ino
        self._data = bytearray()
        self._waiting = _poll()
        self._waiting.register(self.fd, _POLLIN)
        self._asking = _poll()  # another one: it is asked by a handler of signals, while the first one waits
        self._asking.register(self.fd, _POLLIN)
        self.fds: list[int] = []

    def close(self) -> None:
        """Close it, if it is still there."""
        self._check()
        self._socket.close()

    def avoid(self, numbers: list[int]) -> None:
        """Move the line to another descriptor, if it has one of these; raises OSError."""
        if self.fd in numbers:
            fds, data = self.fds, self._data
            self.__init__(self._socket.detach(), max(numbers) + 1)  # type: ignore[misc]
            self.fds, self._data = fds, data

    def _check(self) -> None:
        try:
            status = _fstat(self.fd)
        except OSError:
            raise LostError from None
        if (status.st_dev, status.st_ino) != self._identity:
            raise LostError

    def has_data(self) -> bool:
        """Return whether something was received that hasn't been read yet."""
        return bool(self._data)

    def has_more(self) -> bool:
        """Return whether something has come that hasn't been read yet."""
        return bool(self._data) or bool(self._asking.poll(0))

    def wait(self) -> None:
        """Wait until there is something to read, or the end."""
        if not self._data:
            self._check()
            self._waiting.poll()

    def _fill(self, count: int) -> bytearray:
        data = self._data
        while len(data) < count:
            try:
                self._check()
                more, control, _, _ = self._receive(max(_ROOM, count - len(data)), _CONTROL, _CLOEXEC)
            except OSError:
                raise LostError from None
            if control:
                self.fds += received(control)
            if not more:
                raise LostError
            data += more
        return data

    def receive(self) -> dict[str, Any]:
        """Return the next frame; raises LostError at the end."""
        (size,) = _LENGTH.unpack_from(self._fill(4))
        if size > LONGEST:
            raise LostError
        data = self._fill(4 + size)
        text = data[4 : 4 + size].decode("utf-8", "surrogatepass")
        del data[: 4 + size]
        frame: dict[str, Any] = _scan(text, 0)[0]
        return frame

    def send_bytes(self, content: bytes) -> None:
        """Send a frame's content; raises LostError."""
        data = memoryview(_LENGTH.pack(len(content)) + content)
        while data:
            self._check()
            try:
                data = data[self._send(data, _NOSIGNAL) :]
            except BlockingIOError:
                ready = _poll()
                ready.register(self.fd, _POLLOUT)
                ready.poll()
            except OSError:
                raise LostError from None

    def send(self, frame: dict[str, Any]) -> None:
        """Send a frame; raises LostError, or what JSON can't say."""
        self.send_bytes(encode(frame).encode("ascii"))
