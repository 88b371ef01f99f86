"""A branch, as this process knows it: its start, its line, its end, and signals to it.

A branch is a child of the warm interpreter, which reports on a socket ("told") that it exists, and how it has ended.
What the branch itself says comes by another one, its line.
"""

from __future__ import annotations

import _socket  # as in _base.descriptors
import array
import contextlib
import errno
import json
import os
import select
import signal
import sys
from itertools import chain

from nsbox._base.descriptors import from_3_up
from nsbox._base.errors import SetupError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.owners import opened, own_received
from nsbox._base.poll import is_readable
from nsbox._base.stdlib import RLock
from nsbox._core.command import Used
from nsbox._interpreter.descent import GoneError, pids_of
from nsbox._interpreter.wire import MOST_MESSAGE, WireError, decoded, frame, number_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from nsbox._base.owners import Owner
    from nsbox._relay.relay import Line

LONGEST = 60_000  # milliseconds until a branch exists: the machine may be very busy
_LOOK = 1000  # milliseconds until the next look at an interpreter that does nothing
_NOT_KNOWN = 255 << 8  # a wait status that stands for one that isn't known
_by_pidfd: Any = getattr(signal, "pidfd_send_signal", None)  # on Linux
_Socket = _socket.socket


class Lost(Exception):
    """A branch has ended, or never came to be, before it got any code. Another one can run that."""


class EndedError(Lost):
    """The interpreter has closed its end of the connection: it has ended, or is about to."""


class SilentError(Lost):
    """The interpreter does nothing. It is of no more use."""


class Failed(Exception):
    """A branch couldn't be made. number, step, op, detail: as a spawn reports them."""

    def __init__(self, number: int, step: int, op: int, detail: str = "") -> None:
        super().__init__(number, step, op, detail)
        self.number, self.step, self.op, self.detail = number, step, op, detail


class Ends:
    """Both ends of connections between this process and an interpreter, numbered from 3 up. It closes them when freed.

    ours, theirs: of each connection, in the order of `kinds`, which are _socket's. None of them has a timeout.
    """

    def __init__(self, *kinds: int) -> None:
        self._all: list[_Socket] = []
        for kind in kinds:  # in one step, as in _base.owners: a signal handler may raise
            self._all.extend(chain.from_iterable(map(_socket.socketpair, (_socket.AF_UNIX,), (kind,))))
        self._all[:] = map(from_3_up, self._all)
        for end in self._all:
            end.settimeout(None)
        self.ours, self.theirs = self._all[::2], self._all[1::2]

    def give(self) -> None:
        """Close what the other process has got by now."""
        for end in self.theirs:
            end.close()

    def close(self) -> None:
        """Close all of them."""
        for end in self._all:
            end.close()

    def __del__(self, *, _is_late: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _is_late():
            self.close()


def received(sock: _Socket, most: int, owners: list[Owner]) -> dict[str, Any] | None:
    """Return the next message of a warm interpreter, and own what comes with it; None at the end.

    most: how many descriptors may come.

    Raises BlockingIOError if there is none yet, and WireError.
    """
    try:
        data = sock.recv(
            MOST_MESSAGE, _socket.MSG_PEEK | _socket.MSG_DONTWAIT
        )  # without the descriptors: those are owned as they come
        if not data:
            return None
        own_received(sock, most, owners)
    except ConnectionResetError:
        return None
    return decoded(data)


def _check_made(message: dict[str, Any]) -> None:
    """Raise Failed for a message that says so, and WireError."""
    if "failed" in message:
        number, step, op = (number_in(message, name, -1, 1 << 20) for name in ("failed", "step", "op"))
        raise Failed(number, step, op, str(message.get("detail", ""))[:64])


class BranchCommand:
    """One branch: parked at first, then the process that runs code.

    pid: as this process numbers it; -1 until start().
    net: connects it with the relay of its network list; None: there is no list.
    status: its wait status, once it has ended.
    is_lost: whether that isn't known, because the interpreter has ended before it.
    """

    def __init__(self) -> None:
        self.net: Line | None = None
        self.ends = Ends(_socket.SOCK_SEQPACKET, _socket.SOCK_STREAM)
        self._told, self.line = self.ends.ours
        self.line.setblocking(False)
        self._lock = RLock()
        self.owners: list[Owner] = []  # of the pidfds of the branch and of its pid 1, and what that says
        self.pid = self.init_pid = -1
        self.status: int | None = None
        self.is_lost = self._has_entered = False
        self.used: Used | None = None
        self.on_look: Callable[[BranchCommand], object] = bool  # called with it when a look shows that it goes on
        self.on_wait: Callable[[], bool] = bool  # called while it doesn't begin: whether the interpreter is stopped
        self.exited_at: float | None = None  # see Interpreter.look()

    # ---- its start

    @property
    def is_ready(self) -> bool:
        """Whether it is there: start() doesn't wait."""
        return self.pid > 0 or self.ends_within(0)

    def start(self, interpreter: int) -> None:
        """Wait until it exists. interpreter: the pidfd of a process that it can't outlive.

        Raises Lost and Failed.
        """
        if self.pid > 0:
            return
        is_ours = False
        try:
            self._begin(self._first(interpreter), interpreter)
            is_ours = True
        except (WireError, GoneError) as error:
            raise Lost(str(error)) from None
        finally:
            while self.owners and not is_ours:
                self.owners.pop().close()  # no signal may go there: it could be any process

    def await_entered(self, interpreter: int) -> None:
        """Wait until it is confined, so that its mounts are made. interpreter: as for start().

        Raises Lost and Failed.
        """
        if not self._has_entered:
            message = self._first(interpreter)
            try:
                _check_made(message)
            except WireError as error:
                raise Lost(str(error)) from None
            if "entered" not in message:
                raise Lost("it has ended")
            self._has_entered = True

    def _begin(self, message: dict[str, Any], interpreter: int) -> None:
        if "entered" in message:  # the branch itself says so, perhaps before the interpreter has told of it
            self._has_entered = True
            message = self._first(interpreter)
        _check_made(message)
        if "ended" in message:
            raise Lost("it ended before it could be reported: perhaps too many descriptors are in flight")
        number_in(message, "started", 1, 1 << 30)
        if len(self.owners) != 3:
            os.close(os.dup(self._told.fileno()))  # raises EMFILE: then the kernel has dropped what came
            raise Lost("it came without its descriptors")
        self.pid, self.init_pid = pids_of([owner.fileno() for owner in self.owners[:2]], interpreter)

    def _first(self, interpreter: int) -> dict[str, Any]:
        try:
            try:
                message = received(self._told, 3, self.owners)
            except BlockingIOError:
                self._await_first(interpreter)
                message = received(self._told, 3, self.owners)
        except WireError as error:
            raise Lost(str(error)) from None
        if message is None:
            raise EndedError("the interpreter has ended")
        return message

    def _await_first(self, interpreter: int) -> None:
        poller = select.poll()
        poller.register(self._told, select.POLLIN)
        poller.register(interpreter, select.POLLIN)
        for _ in range(LONGEST // _LOOK):
            ready = dict(poller.poll(_LOOK))
            if ready:
                break
            if self.on_wait():
                raise SilentError("the interpreter is stopped (SIGSTOP)")
        else:
            raise SilentError(f"the interpreter made no branch within {LONGEST // 1000} seconds")
        if self._told.fileno() not in ready:
            raise EndedError("the interpreter has ended")

    def go(self, message: Mapping[str, object], fds: Sequence[int]) -> bytes:
        """Let it begin, without code so far; return what its line couldn't take yet.

        message: "go". fds: what it gets.

        Raises Lost, and SetupError if too many descriptors of this user are on their way already (unix(7), SCM_RIGHTS).
        """
        return self._sent(frame(message), [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", fds))])

    def run(self, code: bytes, rest: bytes = b"") -> bytes:
        """Send it code, after what was left of "go"; return what its line couldn't take yet.

        Raises Lost, unless it has ended with a word: it says so if it can't become what "go" wanted.
        """
        if not code:
            return rest
        try:
            return self._sent(rest + code)
        except BlockingIOError:
            return rest + code
        except Lost:
            with contextlib.suppress(OSError):
                if self.line.recv(1, _socket.MSG_PEEK):
                    return b""
            raise

    def _sent(self, data: bytes, rights: Sequence[Any] = ()) -> bytes:
        try:
            return data[self.line.sendmsg([data], rights, _socket.MSG_NOSIGNAL) :]
        except (BrokenPipeError, ConnectionResetError):
            raise Lost("it has ended") from None
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                raise
            hint = "processes of this user hold as many as they may: end those, or raise RLIMIT_NOFILE"
            raise SetupError(errno.ETOOMANYREFS, "send descriptors to a branch", None, hint) from None

    # ---- its end

    def try_wait(self, flags: int) -> bool:
        """Return whether it has ended; without WNOHANG in flags, wait for that."""
        if self.status is not None:
            return True
        if not flags & os.WNOHANG:
            while not self.ends_within(3600.0):
                pass
        with self._lock:
            if self.status is not None or self._read():
                return True
        self.on_look(self)
        return False

    def _read(self) -> bool:
        """Look at the report of its end, which stays in the socket: other threads may wait for it to be readable."""
        try:
            data = self._told.recv(MOST_MESSAGE, _socket.MSG_PEEK | _socket.MSG_DONTWAIT)
            message = decoded(data)
            names = ("user_us", "system_us", "max_rss")
            used = Used(*(number_in(message, name, 0, 1 << 62) for name in names))
            self.status, self.used = number_in(message, "ended", 0, 0xFFFF), used
        except BlockingIOError:
            return False
        except (ConnectionResetError, WireError):
            self.is_lost, self.status = True, _NOT_KNOWN
        return True

    def ends_within(self, seconds: float) -> bool:
        """Return whether it ends within some seconds. If so, try_wait() doesn't wait."""
        if self.status is not None:
            return True
        return is_readable(self._told.fileno(), seconds)

    def has_exited(self) -> bool:
        """Return whether its process is no more; the interpreter may still have to report that."""
        with self._lock:
            if self.status is not None or not self.owners:
                return False
            return is_readable(self.owners[0].fileno())

    def pidfd(self) -> Owner:
        """Return a copy of its pidfd. Raises OSError."""
        return opened(os.dup, self.owners[0].fileno())

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when its end is reported."""
        return self._told.fileno()

    def signal(self, number: int) -> None:
        """Send it a signal, if it still exists."""
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self.owners and self.status is None:
                signal.pidfd_send_signal(self.owners[0].fileno(), number)

    # At the interpreter's end: see _lifetime.shutdown.

    def last_status(
        self, is_patient: bool, *, loads: Any = json.loads, decode: Any = os.waitstatus_to_exitcode
    ) -> int | None:
        """Return how it has ended; None: it hasn't. is_patient: wait for its end."""
        if self.status is None:
            self._told.setblocking(is_patient)
            try:
                data = self._told.recv(65536)
            except BlockingIOError:
                return None
            except ConnectionResetError:
                data = b""
            self.status = loads(data)["ended"] if data else 255 << 8
        return decode(self.status)  # type: ignore[no-any-return]

    def last_signal(self, number: int, *, send: Any = _by_pidfd) -> None:
        """Send it a signal, if it still exists."""
        if self.owners:
            send(self.owners[0].fileno(), number)

    def end(self) -> None:
        """Close its descriptors after its end, except for the line, where there may be something to read."""
        self.ends.give()
        self._told.close()
        with self._lock:
            while self.owners:
                self.owners.pop().close()

    def close(self) -> None:
        """Close its descriptors. A branch that is parked ends then, and one that runs can't report any more."""
        self.end()
        self.ends.close()
