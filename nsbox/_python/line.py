"""This process's end of a branch's line: what the code gets, and what comes back about it while its output is read."""

from __future__ import annotations

import _socket  # as in _base.descriptors
import array
import errno

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._interpreter.wire import Frames, WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

_ANSWERS = {"forked", "failed", "synced"}  # of a kernel, to what isn't code
_CHUNK = 1 << 18
_MOST_DISPLAYS = 1000  # that are held: a reply keeps fewer


class BranchLine:
    """The line of one branch. It never blocks.

    problem: why nothing more can be read from it; "": nothing is wrong.
    reply: what was said about the latest run; None: nothing yet. displays: what was shown before that.
    failure: why the branch couldn't begin; None: it could. Only the first frame can say so: it was sent before any code
        ran.
    """

    def __init__(self, line: _socket.socket, rest: bytes = b"", number: int = 1) -> None:
        """Hold it. rest: what the branch is still to get. number: of the run."""
        self._line, self._rest, self._number = line, memoryview(rest), number
        self._fds: Sequence[int] = ()
        self._frames = Frames()
        self.problem = ""
        self.has_ended = False
        self.reply: dict[str, Any] | None = None
        self.displays: list[Any] = []
        self.failure: dict[str, Any] | None = None
        self._is_first = True
        self.on_problem: Callable[[], object] = bool  # called when it can't be read any more

    def begin(self, number: int, data: bytes, fds: Sequence[int] = ()) -> None:
        """Begin another run: send this, and wait for its reply. fds: go with the first byte."""
        self._number, self._rest, self._fds = number, memoryview(bytes(self._rest) + data), fds
        self.reply, self.displays = None, []
        self._frames.renew()

    def close(self) -> None:
        """Close it, when all that matters was read."""
        self._line.close()

    def fileno(self) -> int:
        """Return its descriptor."""
        return self._line.fileno()

    @property
    def wants_room(self) -> bool:
        """Whether there is something to send."""
        return bool(self._rest)

    def write(self) -> None:
        """Send what there is room for. Raises OSError if too many descriptors of this user are on their way already."""
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", self._fds))] if self._fds else []
        try:
            self._rest = self._rest[self._line.sendmsg([self._rest[:_CHUNK]], rights, _socket.MSG_NOSIGNAL) :]
            self._fds = ()
        except BlockingIOError:
            return
        except OSError as error:  # it has ended, or has closed it
            self._rest, self._fds = memoryview(b""), ()
            if error.errno == errno.ETOOMANYREFS:
                raise

    def read(self) -> None:
        """Read what there is."""
        try:
            data = self._line.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.has_ended = True
            return
        try:
            for message in self._frames.feed(data):
                self._take(message)
        except WireError as error:
            self._fail(str(error))

    def _take(self, message: dict[str, Any]) -> None:
        if self._is_first and isinstance(message.get("failed"), dict):
            self.failure = message["failed"]
        self._is_first = False
        if message.get("id") != self._number or self.reply is not None:
            return
        if message.get("done") is True or message.keys() & _ANSWERS:
            self.reply = message
        elif "display" in message and len(self.displays) < _MOST_DISPLAYS:
            self.displays.append(message["display"])

    def _fail(self, problem: str) -> None:
        self.problem, self.has_ended = problem, True
        self._frames = Frames()
        self.on_problem()

    def drain(self) -> None:
        """Read what is left of a branch that has ended."""
        while not self.has_ended:
            before = self._frames.left
            self.read()
            if self._frames.left == before:  # another process holds its end: all that was written has been read
                break
