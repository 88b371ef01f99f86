"""This process's end of a branch's line: what the code gets, and what comes back about it while its output is read."""

from __future__ import annotations

import _socket  # as in _base.descriptors
import array
import errno

from nsbox._base.checks import check_answer
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._interpreter.wire import Frames, WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

_ANSWERS = {"forked", "failed", "synced"}  # of a kernel, to what isn't code
_CHUNK = 1 << 18
_MOST_DISPLAYS = 1000  # that are held: a reply keeps fewer
_MOST_CALLS = 16  # of functions, that wait: the code waits for each, unless it is interrupted
_LARGEST_CALL = 4 << 20  # bytes, as in _guest.results.functions


class BranchLine:
    """The line of one branch. It never blocks.

    problem: why nothing more can be read from it; "": nothing is wrong.
    is_prepared: whether it has said that its own imports and setup are done, and the code begins.
    reply: what was said about the latest run; None: nothing yet. displays: what was shown before that.
    calls: of this process's functions, unanswered; takes_calls: whether there are such functions.
    failure: why the branch couldn't begin; None: it could. Only the first frame can say so: it was sent before any code
        ran.
    """

    def __init__(self, line: _socket.socket, rest: bytes = b"", number: int = 1) -> None:
        """Hold it. rest: what the branch is still to get. number: of the run."""
        self._line, self._rest, self._number = line, memoryview(rest), number
        self._fds: Sequence[int] = ()
        self._frames = Frames()
        self.problem = ""
        self.has_ended = self.is_prepared = False
        self.reply: dict[str, Any] | None = None
        self.displays: list[Any] = []
        self.failure: dict[str, Any] | None = None
        self.calls: list[dict[str, Any]] = []
        self.takes_calls = False
        self._is_first = True
        self.on_problem: Callable[[], object] = bool  # called when it can't be read any more

    def begin(self, number: int, data: bytes, fds: Sequence[int] = ()) -> None:
        """Begin another run: send this, and wait for its reply. fds: go with the first byte."""
        self._number, self._rest, self._fds = number, memoryview(bytes(self._rest) + data), fds
        self.reply, self.displays, self.calls = None, [], []
        self._frames.renew()

    def answer(self, data: bytes) -> None:
        """Send the answer to a call."""
        self._rest = memoryview(bytes(self._rest) + data)
        self.write()

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
            check_answer(error)
            self._rest, self._fds = memoryview(b""), ()
            if error.errno == errno.ETOOMANYREFS:
                raise

    def read(self) -> None:
        """Read what there is."""
        try:
            data = self._line.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            check_answer(error)
            data = b""
        if not data:
            self.has_ended = True
            return
        try:
            for message, size in zip(self._frames.feed(data), self._frames.sizes, strict=True):
                self._take(message, size)
        except WireError as error:
            self._fail(str(error))

    def _take(self, message: dict[str, Any], size: int) -> None:
        if self._is_first and isinstance(message.get("failed"), dict):
            self.failure = message["failed"]
        self._is_first = False
        if message.get("id") != self._number or self.reply is not None:
            return
        if message.get("done") is True or message.keys() & _ANSWERS:
            self.reply = message
        elif message.get("prepared") is True:
            self.is_prepared = True
        elif "display" in message and len(self.displays) < _MOST_DISPLAYS:
            self.displays.append(message["display"])
        elif self.takes_calls and isinstance(message.get("call"), dict):
            self._take_call(message["call"], size)

    def _take_call(self, call: dict[str, Any], size: int) -> None:
        if size > _LARGEST_CALL:
            raise WireError(f"a call of {size} bytes is more than {_LARGEST_CALL}")
        if len(self.calls) == _MOST_CALLS:
            raise WireError("it calls functions without waiting for the answers")
        self.calls.append(call)
        self._frames.left += size  # calls may go on for ever: no more than these few are held

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
