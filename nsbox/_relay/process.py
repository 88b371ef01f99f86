"""A relay as a process, the thread that reads its reports, and the thread that passes events to a user's function."""

from __future__ import annotations

import _socket  # as in _base.descriptors
import array
import errno
import os
import select
import struct
import time
import weakref
from _thread import start_new_thread  # threading.Thread.start() also waits until the thread runs
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock

from nsbox._base.descriptors import pair, write_all
from nsbox._base.errors import SetupError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.owners import high, opened
from nsbox._base.paths import PACKAGE
from nsbox._base.stdlib import RLock, original
from nsbox._core import linux, orphans
from nsbox._network import events
from nsbox._relay.asks import report

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsbox._base.owners import Owner
    from nsbox._network.events import NetworkEvent
    from nsbox._relay.relay import Relay

_PROGRAM = os.path.join(PACKAGE, "nsbox-net")
MESSAGE = struct.Struct("=IiQQ")  # nsbox_net_message
OPEN, RULES, VERDICT, PUBLISH, UNPUBLISH, SETTLE = 1, 2, 3, 4, 5, 6  # its kinds, to the relay
_MOST_WAITING = 10_000  # events that an on_network hasn't got yet
_PATIENCE = 30.0  # seconds to wait for a relay, which may be stopped (SIGSTOP)
_ROOM = 1 << 20  # bytes of events on their way to us; the kernel caps it at net.core.wmem_max
_LONGEST = 4096  # bytes of a message
_PAUSE = 0.002  # seconds in which events gather: waking a thread for each one halves a connection's speed


class Process:
    """A running relay, and the thread that reads its reports."""

    port = 0  # only a proxy has one
    pidfd: Owner
    _thread_socket: Owner  # the thread's own descriptor of the socket

    def __init__(self, content: bytes, owner: weakref.ref[Relay], *, is_awaited: bool) -> None:
        """Start it; raises SetupError.

        content: the list as bytes, which blob() has made.
        owner: what handles the messages.
        is_awaited: whether a command may be waiting for the answer to a message.
        """
        self._lock = RLock()  # held while reading
        self.socket, theirs = pair()
        try:
            seconds = struct.pack("@ll", int(_PATIENCE), 0)
            self.socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDTIMEO, seconds)
            theirs.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, _ROOM)
            self.pidfd = _started(content, theirs.fileno())
            self._thread_socket = high(opened(os.dup, self.socket.fileno()))
            _read(self._thread_socket, weakref.ref(self), owner, 0 if is_awaited else _PAUSE)
        except OSError as error:
            self.socket.close()
            raise SetupError(error.errno or errno.EIO, "network list: start nsbox-net", None, _hint(error)) from None
        finally:
            theirs.close()

    def is_running(self) -> bool:
        """Say if it is running."""
        return not _has_ended(self.pidfd.fileno())

    def admit(self, sandbox: int) -> dict[str, str]:
        """Return the variables that a command needs: none. The spawn shows the sandbox to the relay."""
        return {}

    def release(self, sandbox: int) -> None:
        """Do nothing when a sandbox is no longer in use: the relay itself sees the end of its pid 1."""

    def send(self, message: bytes, fds: Sequence[int] = ()) -> None:
        """Send it a message with descriptors; raises OSError."""
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.socket.sendmsg([message], rights, _socket.MSG_NOSIGNAL)

    def change(self, content: bytes) -> None:
        """Replace its list; returns when the new one is in force. Raises SetupError."""
        listing = _memory(content)
        try:
            self.ask(MESSAGE.pack(RULES, 0, 0, 0), [listing.fileno()], "change it")
        finally:
            listing.close()

    def ask(self, message: bytes, fds: Sequence[int], what: str) -> None:
        """Make a request; returns when it is done. Raises SetupError. what: the request, in words."""
        ours, theirs = pair()
        try:
            self.send(message, [*fds, theirs.fileno()])
            theirs.close()
            ours.settimeout(_PATIENCE)
            answer = ours.recv(_LONGEST)
        except OSError as error:
            raise SetupError(error.errno or errno.ETIMEDOUT, f"network list: {what}") from None
        finally:
            ours.close()
            theirs.close()
        if not answer:
            raise SetupError(errno.EPIPE, f"network list: {what}", None, "the relay has ended")
        value = events.head(answer).value
        if value < 0:
            raise SetupError(-value, f"network list: {what}: {events.step(answer)}")

    def take(self, relay: Relay) -> bool:
        """Handle the messages that have arrived; False if no more will come."""
        calls: list[Callable[[], object]] = []
        goes_on = True
        with self._lock:
            while goes_on and (packet := _packet(self.socket)) is not None:
                goes_on = packet != b""
                with suppress(ValueError):  # our relay sends nothing that raises it
                    call = relay.receive(packet) if goes_on else None
                    if call is not None:
                        calls.append(call)
        for call in calls:
            call()
        return goes_on

    def forget(self) -> None:
        """Close the parent's descriptors, in a forked child."""
        self.socket.close()
        self._thread_socket.close()
        self.pidfd.close()

    def close(self) -> None:
        """Let go of it."""
        try:
            self.socket.shutdown(_socket.SHUT_RDWR)  # wakes the reading thread
        except OSError:
            pass
        self.socket.close()
        orphans.leftovers.add(self.pidfd)  # if this process is a subreaper, the relay becomes its child


_HINTS = {
    errno.ENOENT: "it belongs to the package: install that again",
    errno.EACCES: "its file system is mounted noexec, or a security module forbids it: install the package elsewhere",
    errno.EMFILE: "this process has too many open files: raise RLIMIT_NOFILE (ulimit -n)",
    errno.EAGAIN: "too many processes: RLIMIT_NPROC (ulimit -u) or the cgroup's pids.max is reached",
}


def _hint(error: OSError) -> str:
    return _HINTS.get(error.errno or 0, "")


def _started(content: bytes, control: int) -> Owner:
    """Start the program; return the owner of its pidfd. Raises OSError. content: the list. control: its socket."""
    listing, null = _memory(content), high(opened(os.open, "/dev/null", os.O_RDWR | os.O_CLOEXEC))
    caller = high(opened(os.pidfd_open, os.getpid()))
    try:
        fds = control, listing.fileno(), caller.fileno()
        return opened(linux.start_relay, os.fsencode(_PROGRAM), fds, null.fileno())
    finally:
        for owner in (listing, null, caller):
            owner.close()


def _memory(content: bytes) -> Owner:
    """Return the owner of a memfd with this content."""
    file = high(opened(os.memfd_create, "nsbox-network", os.MFD_CLOEXEC))
    write_all(file.fileno(), content)
    return file


def _has_ended(fd: int) -> bool:
    poller = original(select, "poll")()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))


def _packet(sock: _socket.socket) -> bytes | None:
    """Return the next message; None if there is none yet, b"" if no more will come."""
    try:
        return sock.recv(_LONGEST, _socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    except OSError:  # the socket was closed meanwhile, or the relay was killed
        return b""


def _read(copy: Owner, its: weakref.ref[Process], owner: weakref.ref[Relay], pause: float) -> None:
    """Start a thread that handles messages as long as the relay is in use.

    It has a descriptor of its own, since close() closes the other one. With gevent's patches it is a greenlet.
    """

    def read() -> None:
        poller = select.poll()
        poller.register(copy.fileno(), select.POLLIN)
        goes_on = True
        while goes_on:
            (_, mask), *_ = poller.poll()
            if pause and not mask & select.POLLHUP:  # nothing gathers after the end
                time.sleep(pause)
            process, relay = its(), owner()
            goes_on = process is not None and relay is not None and process.take(relay)
            del process, relay  # the thread must not keep them alive

    start_new_thread(read, ())


class Flush:
    """A place in an Observer's queue: `done` is released once everything before it was handled."""

    def __init__(self) -> None:
        self.done = Lock()
        self.done.acquire()


class Observer:
    """Passes events to an on_network, in a thread of its own."""

    def __init__(self, call: Callable[[NetworkEvent], object]) -> None:
        self.call = call
        self._queue: SimpleQueue[NetworkEvent | Flush | None] = SimpleQueue()
        self._is_running = False

    def put(self, event: NetworkEvent | None) -> bool:
        """Queue an event, or None to end the thread. Never blocks; False if too many are waiting already."""
        if event is not None and self._queue.qsize() >= _MOST_WAITING:
            return False
        if event is not None and not self._is_running:
            self._is_running = True
            start_new_thread(self._run, (self._queue, self.call))
        self._queue.put(event)
        return True

    def flush(self) -> None:
        """Wait until it has got every event so far; give up after a while."""
        if self._is_running:
            mark = Flush()
            self._queue.put(mark)
            mark.done.acquire(timeout=_PATIENCE)

    @staticmethod
    def _run(queue: SimpleQueue[NetworkEvent | Flush | None], call: Callable[[NetworkEvent], object]) -> None:
        while (item := queue.get()) is not None:
            if isinstance(item, Flush):
                item.done.release()
                continue
            try:
                call(item)
            except Exception as error:  # reported like errors of other callbacks
                report(error)
