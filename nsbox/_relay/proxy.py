"""macOS: the process that enforces a network list, an HTTP and SOCKS5 proxy on 127.0.0.1, and the messages to it.

The proxy is a program of this package, nsbox-proxy (csrc/proxy). A command's profile lets it connect to the port of the
proxy and nothing else. The variables that name the proxy contain a secret, by which the proxy knows a client's sandbox.
A program that uses no proxy reaches nothing. The proxy ends with this process; what a command left running then has no
network.
"""

from __future__ import annotations

import _socket  # as in _base.descriptors
import errno
import os
import select
import struct
import time
from _thread import start_new_thread  # threading.Thread.start() also waits until the thread runs
from collections import deque
from contextlib import suppress

from nsbox._base.errors import Reason, SetupError, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.owners import high, opened
from nsbox._base.paths import PACKAGE
from nsbox._base.stdlib import RLock, original
from nsbox._network import events

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable, Sequence

    from nsbox._relay.relay import Relay

PROGRAM = os.path.join(PACKAGE, "nsbox-proxy")
_MESSAGE = struct.Struct("=IiQQ")  # nsbox_net_message
_RULES, _OPEN, _SETTLE, _END = 2, 1, 6, 7  # its kinds, to the proxy
_PACKET = events.PACKET.size
_PATIENCE = 30.0  # seconds to wait for a proxy, which may be stopped (SIGSTOP)
_PORT = 10  # its index in PACKET
_SECRET = 8  # bytes


class Process:
    """A running proxy, and the thread that reads its reports. Threads may share this object.

    port: where it listens.
    """

    def __init__(self, content: bytes, owner: weakref.ref[Relay], program: str = PROGRAM) -> None:
        """Start it; raises SetupError."""
        self._owner = owner
        self._reads, self._sends = RLock(), RLock()
        self._bytes = b""
        self._answers: dict[int, tuple[int, int]] = {}  # by the request's number: the value, and the port
        self._number, self._is_sending, self._is_over = 0, False, False
        self._ended: deque[int] = deque()  # sandboxes whose end the proxy doesn't know yet
        self.port = 0
        try:
            self.socket = _started(program)
        except OSError as error:
            hint = "it belongs to the package: install that again" if error.errno == errno.ENOENT else ""
            raise SetupError(error.errno or errno.EIO, "network list: start nsbox-proxy", None, hint) from None
        try:
            self.port = self._ask(_RULES, content, "start nsbox-proxy")
        except BaseException:
            self.socket.close()
            raise
        self._read()

    def is_running(self) -> bool:
        """Say if it is running: its end of the socket is still open."""
        if not self._is_over:
            try:
                self._is_over = self.socket.recv(1, _socket.MSG_DONTWAIT | _socket.MSG_PEEK) == b""
            except BlockingIOError:
                pass
            except OSError:
                self._is_over = True
        return not self._is_over

    def admit(self, sandbox: int) -> dict[str, str]:
        """Make it serve a sandbox; return the variables by which programs find the proxy. Raises SetupError."""
        secret = os.urandom(_SECRET)
        number = int.from_bytes(secret, "big") or 1
        try:
            self._send(_OPEN, 0, sandbox, number)
        except OSError as error:
            raise SetupError(error.errno or errno.EPIPE, "network list", None, "nsbox-proxy has ended") from None
        return variables(f"http://{sandbox}:{number:016x}@127.0.0.1:{self.port}")

    def release(self, sandbox: int) -> None:
        """End a sandbox's connections, when the next message is sent. Safe anywhere, even in a destructor."""
        self._ended.append(sandbox)

    def send(self, message: bytes, fds: Sequence[int] = ()) -> None:
        """Send it a message; raises OSError, and UnavailableError for one with descriptors."""
        if fds:
            raise UnavailableError(Reason("seatbelt: publish: a command on macOS can't have a server"))
        self._send(*_MESSAGE.unpack(message))

    def change(self, content: bytes) -> None:
        """Replace its list; returns when the new one is in force. Raises SetupError."""
        self._ask(_RULES, content, "change it")

    def ask(self, message: bytes, fds: Sequence[int], what: str) -> None:
        """Make a request; returns when it is done. Raises SetupError; UnavailableError for what a proxy can't do."""
        if _MESSAGE.unpack(message)[0] != _SETTLE:
            raise UnavailableError(Reason(f"seatbelt: network: {what}"))
        self._ask(_SETTLE, b"", what)

    def take(self, relay: Relay | None) -> bool:
        """Handle the messages that have arrived; False if no more will come."""
        calls: list[Callable[[], object]] = []
        with self._reads:
            goes_on = self._receive()
            while len(self._bytes) >= _PACKET:
                packet, self._bytes = self._bytes[:_PACKET], self._bytes[_PACKET:]
                head = events.head(packet)
                if head.kind == events.READY:
                    port = events.PACKET.unpack(packet)[_PORT]
                    self._answers[head.id] = head.value, port
                elif relay is not None and (call := relay.receive(packet)) is not None:
                    calls.append(call)
        for call in calls:
            call()
        return goes_on

    def forget(self) -> None:
        """Close the parent's descriptors, in a forked child."""
        self._is_over = True
        self.socket.close()

    def close(self) -> None:
        """Let go of it: it ends, and all connections with it."""
        self._is_over = True
        with suppress(OSError):
            self.socket.shutdown(_socket.SHUT_RDWR)  # wakes the reading thread
        self.socket.close()

    # ---- its stream

    def _send(self, kind: int, value: int, sandbox: int, number: int, content: bytes = b"") -> None:
        """Send one whole message. BlockingIOError in a signal's handler that interrupts this very function."""
        with self._sends:
            if self._is_sending:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            ended = b"".join(_MESSAGE.pack(_END, 0, self._ended.popleft(), 0) for _ in range(len(self._ended)))
            self._is_sending = True
            try:
                self.socket.sendall(ended + _MESSAGE.pack(kind, value, sandbox, number) + content)
            finally:
                self._is_sending = False

    def _ask(self, kind: int, content: bytes, what: str) -> int:
        """Send a message and wait for its answer; return the proxy's port. Raises SetupError."""
        with self._reads:
            self._number += 1
            number = self._number
        end = time.monotonic() + _PATIENCE
        problem = errno.EPIPE
        try:
            self._send(kind, len(content), 0, number, content)
            while number not in self._answers and time.monotonic() < end:
                if not self.take(self._owner()):
                    break
                self._wait(0.02)  # another thread may take the answer
            problem = errno.ETIMEDOUT if time.monotonic() >= end else problem
        except OSError as error:
            problem = error.errno or problem
        value, port = self._answers.pop(number, (-problem, 0))
        if value < 0:
            raise SetupError(-value, f"network list: {what}")
        return port

    def _receive(self) -> bool:
        try:
            while part := self.socket.recv(1 << 16, _socket.MSG_DONTWAIT):
                self._bytes += part
        except BlockingIOError:
            return True
        except OSError:  # the socket was closed meanwhile
            pass
        return False

    def _wait(self, seconds: float | None) -> None:
        poller = original(select, "poll")()
        with suppress(OSError, ValueError):
            poller.register(self.socket.fileno(), select.POLLIN)
            poller.poll(None if seconds is None else int(seconds * 1000))

    def _read(self) -> None:
        """Start a thread that handles messages as long as the relay is in use."""
        owner = self._owner  # the thread must not keep us alive
        copy = high(opened(os.dup, self.socket.fileno()))

        def read() -> None:
            poller = original(select, "poll")()
            poller.register(copy.fileno(), select.POLLIN)
            goes_on = True
            while goes_on:
                poller.poll()
                relay = owner()
                goes_on = relay is not None and relay.take()
                del relay  # the thread must not keep it alive

        start_new_thread(read, ())


def variables(url: str) -> dict[str, str]:
    """Return the variables that name a proxy. ALL_PROXY is an HTTP URL too: some clients fail at once without SOCKS."""
    lower = {"http_proxy": url, "https_proxy": url, "all_proxy": url, "no_proxy": ""}
    return lower | {name.upper(): value for name, value in lower.items()} | {"NODE_USE_ENV_PROXY": "1"}


def _started(program: str) -> _socket.socket:
    """Start the program; return a socket to it. Raises OSError."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
    end = high(opened(os.dup, theirs.fileno()))
    try:
        high_end = end.fileno() if end.fileno() > 3 else os.dup(end.fileno())
        actions = [(os.POSIX_SPAWN_DUP2, high_end, 3)]
        pid = os.posix_spawn(program, [program], {}, file_actions=actions, setsigmask=())
        with suppress(ChildProcessError):  # it detaches at once; other code may already have waited for all children
            os.waitpid(pid, 0)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        end.close()
    ours.settimeout(None)  # not the default timeout
    ours.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDTIMEO, struct.pack("@ll", int(_PATIENCE), 0))
    return ours
