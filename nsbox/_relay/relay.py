"""The relay of a network list: its process, the requests that it takes, and what it reports.

The relay is a program of this package, nsbox-net (csrc/relay). It runs in the host's network, and has sockets in the
networks of its sandboxes. A spawn shows it the new sandbox; it serves that until pid 1 there has ended, even if this
process ends before. Each Sandbox object has a relay of its own; commands without one share a relay for each list.
"""

from __future__ import annotations

import atexit
import errno
import os
import sys
import weakref
from contextlib import suppress

from nsbox._base.errors import PolicyError, Reason, SetupError, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.stdlib import RLock
from nsbox._core import abi, command
from nsbox._layout.network import listed
from nsbox._logs import logger
from nsbox._network import events, messages
from nsbox._network.log import NetworkLog
from nsbox._network.network import Network
from nsbox._relay import wire
from nsbox._relay.asks import Answers
from nsbox._relay.process import MESSAGE, OPEN, PUBLISH, SETTLE, UNPUBLISH, VERDICT, Observer, Process

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Literal

    from nsbox._network.events import NetworkEvent
    from nsbox._network.log import Mark, NetworkRecord
    from nsbox._network.network import Network
    from nsbox._policy.policy import Policy
    from nsbox._relay.proxy import Process as Proxy


class Line:
    """What connects one sandbox with its relay. A spawn takes it; the owner of the command keeps it.

    id: the relay's number for the sandbox.
    log: what the relay has reported about it.
    """

    is_later: Literal[False] = False  # the spawn itself shows the sandbox to the relay

    def __init__(self, relay: Relay, number: int) -> None:
        self.relay, self.id = relay, number
        self._process = relay.process
        self.environment: dict[str, str] = {}  # variables that the command needs to use the network
        self.is_kept = False  # whether processes there may outlive this object
        self.log = NetworkLog()

    def __del__(self, *, _is_late: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _is_late():
            if self._process is not None and not self.is_kept:
                self._process.release(self.id)
            self.relay.leave(self.id)

    def port(self) -> int:
        """Return the port of 127.0.0.1 of a proxy; 0 for a relay, which needs none."""
        return 0 if self._process is None else self._process.port

    def fileno(self) -> int:
        """Return the socket on which the sandbox is shown to the relay."""
        return self.relay.fileno()

    def is_served(self) -> bool:
        """Say if the process that the sandbox was shown to is still running."""
        process = self._process
        return process is not None and process is self.relay.process and process.is_running()

    def record(self, since: Mark | None = None) -> NetworkRecord:
        """Return what has happened so far, or only since a mark."""
        self.relay.settle()
        return self.log.record(since)

    def mark(self) -> Mark:
        """Return the log's present state, for record()."""
        self.relay.settle()
        return self.log.mark()


class Relay:
    """The relay for one list. Its process is started for the first sandbox. Threads may share this object.

    network: the list.
    on_connect: decides about what isn't listed, as Answers says; None: nobody is asked.
    on_network: gets each NetworkEvent, in a thread; None: nothing does.
    """

    def __init__(
        self,
        network: Network,
        *,
        on_connect: Callable[..., Any] | None = None,
        on_network: Callable[[NetworkEvent], object] | None = None,
    ) -> None:
        self.network = network
        self.problem = ""  # what the process reported as failing
        self._asks = None if on_connect is None else Answers(on_connect)
        self._observer = None if on_network is None else Observer(on_network)
        self._lock = RLock()  # a signal's handler may use it too
        self.process: Process | Proxy | None = None
        self._lines: weakref.WeakValueDictionary[int, Line] = weakref.WeakValueDictionary()
        self._last = self._lost = 0
        self._is_retired = False
        _all.add(self)

    # ---- its process

    def line(self) -> Line:
        """Return the line of a new sandbox. Starts the process unless it is running; raises SetupError."""
        with self._lock:
            if not self.is_running():
                if self.process is not None:
                    logger.warning("the relay of a network list has ended: another one starts")
                self._let_go()
                self.problem, self._lost = "", 0
                self.process = _begun(self._list(), weakref.ref(self), is_awaited=self._asks is not None)
                logger.info("the relay of a network list of %d entries has started", len(self.network.allow))
            assert self.process is not None
            self._last += 1
            line = Line(self, self._last)
            line.environment = self.process.admit(line.id)
            self._lines[line.id] = line
            return line

    def fileno(self) -> int:
        """Return the socket to the process; raises SetupError if there is none."""
        process = self.process
        if process is None:
            raise SetupError(errno.EPIPE, "network list", None, "the relay belongs to the parent process")
        return process.socket.fileno()

    def is_running(self) -> bool:
        """Say if its process is running."""
        return self.process is not None and self.process.is_running()

    def _list(self) -> bytes:
        return wire.blob(self.network, asks=self._asks is not None)

    # ---- requests to it

    def update(self, network: Network) -> None:
        """Enforce another list, for running sandboxes too; connections that it doesn't allow end. Raises SetupError."""
        with self._lock:
            before, self.network = self.network, network
            process = self.process
            if process is None or not process.is_running():
                return
            try:
                process.change(self._list())
            except BaseException:
                self.network = before
                with suppress(OSError, SetupError):
                    process.change(self._list())  # the new list may be in force although something failed
                raise

    def publish(self, port: int, listener: int, number: int, line: Line | None = None) -> None:
        """Connect clients of a listening socket to a port of a sandbox.

        port: inside.
        listener: the descriptor of the socket.
        number: for unpublish().
        line: the sandbox's; None: the newest sandbox that listens at that port.
        """
        self._send(PUBLISH, port, 0 if line is None else line.id, number, [listener])

    def unpublish(self, number: int) -> None:
        """Stop taking clients for what publish() has given this number."""
        self._send(UNPUBLISH, 0, 0, number)

    def open(self, line: Line, fds: Sequence[int]) -> None:
        """Show it a running sandbox. fds: descriptors of its net namespace and its pid 1. Raises SetupError."""
        process = self.process
        if process is None or len(fds) != 2:
            raise SetupError(errno.ESRCH, "network list: join a running sandbox")
        process.ask(MESSAGE.pack(OPEN, 0, line.id, 0), fds, "join a running sandbox")

    def _send(self, kind: int, value: int, sandbox: int, number: int, fds: Sequence[int] = ()) -> None:
        process = self.process
        if process is None:
            raise SetupError(errno.EPIPE, "network list", None, "there is no relay")
        process.send(MESSAGE.pack(kind, value, sandbox, number), fds)

    # ---- its reports

    def take(self) -> bool:
        """Handle the messages that have arrived, from any thread; False if no more will come."""
        process = self.process
        return process is not None and process.take(self)

    def settle(self) -> None:
        """Handle everything that has happened by now: the relay reports it on request."""
        process = self.process
        if process is not None and process.is_running():
            with suppress(SetupError):
                process.ask(MESSAGE.pack(SETTLE, 0, 0, 0), (), "report what has happened")
        self.take()

    def flush(self) -> None:
        """Wait until on_network has got every event handled so far. It must not call this itself."""
        if self._observer is not None:
            self._observer.flush()

    def receive(self, packet: bytes) -> Callable[[], object] | None:
        """Handle one message; return a function to call when no lock is held, or None. Raises ValueError."""
        head = events.head(packet)
        if head.kind == events.READY:  # about the process itself: only a failure matters
            if head.value < 0:
                self.problem = f"{events.step(packet)}: {os.strerror(-head.value)}"
            return None
        event = events.decode(packet)
        if head.kind == events.ASK:
            return self._question(event, head)
        line = self._lines.get(head.sandbox)
        if line is not None:
            line.log.add(event)
        if head.value > self._lost:
            for known in list(self._lines.values()):  # nobody knows which sandboxes these were about
                known.log.lose(head.value - self._lost)
            self._lost = head.value
        observer = self._observer
        return None if observer is None else lambda: self._notify(observer, event, line)

    def _notify(self, observer: Observer, event: NetworkEvent, line: Line | None) -> None:
        if not observer.put(event) and line is not None:
            line.log.lose(1)

    def _question(self, event: NetworkEvent, head: events.Head) -> Callable[[], object]:
        request = messages.request(self.network, event)
        asks = self._asks
        if asks is None:
            return lambda: self._answer(head, event, False)
        return lambda: asks.ask(request, head.id, lambda _, allow: self._answer(head, event, allow))

    def _answer(self, head: events.Head, event: NetworkEvent, allow: bool) -> None:
        line = self._lines.get(head.sandbox)
        if allow and line is not None:
            line.log.grant(event)
        try:
            self._send(VERDICT, int(allow), head.sandbox, head.id)
        except (OSError, SetupError):
            pass  # the relay has ended, and with it the connection that was asked about

    # ---- the end

    def retire(self) -> None:
        """Close it as soon as none of its sandboxes is in use."""
        self._is_retired = True
        self.leave(0)

    def leave(self, number: int) -> None:
        """Note that the line with this number is no longer in use."""
        self._lines.pop(number, None)
        if self._is_retired and not self._lines:
            self.close()

    def forget(self) -> None:
        """Let go of the parent's process, in a forked child."""
        self._lock = RLock()
        process, self.process = self.process, None
        if process is not None:
            process.forget()
        if self._observer is not None:
            self._observer = Observer(self._observer.call)
        self._lines.clear()

    def close(self) -> None:
        """Let go of the process, which ends when its sandboxes have. From now on it reports nothing."""
        self._let_go()
        if self._asks is not None:
            self._asks.close()
        if self._observer is not None:
            self._observer.put(None)

    def _let_go(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.close()

    def __del__(self, *, _is_late: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _is_late():
            self.close()


def _begun(content: bytes, owner: weakref.ref[Relay], *, is_awaited: bool) -> Process | Proxy:
    """Start the program that enforces a list on this system; raises SetupError."""
    if not abi.on_darwin:
        return Process(content, owner, is_awaited=is_awaited)
    from nsbox._relay.proxy import Process as MacProcess

    return MacProcess(content, owner)


def spawn_error(result: command.Result, line: command.Line | command.LateLine | None) -> Exception:
    """Return what to raise if a spawn has failed because its sandbox's network couldn't be made."""
    step = result.detail.decode("ascii", "replace")
    if step == "routes" and result.error == errno.EOPNOTSUPP:
        what = "network: this kernel has no policy routing (CONFIG_IP_MULTIPLE_TABLES), which a network list needs"
        return UnavailableError(Reason(what, "use network='none' or 'host'"))
    hint = ""
    if line is not None and not line.is_later:  # otherwise no relay knows of it yet
        line.relay.take()
        hint = line.relay.problem
    if not step and result.error in (errno.EPIPE, errno.ECONNRESET, errno.ECONNREFUSED):
        hint = f"the relay (nsbox-net) has ended{hint and ': ' + hint}"
    return SetupError(result.error, f"network list: {step}" if step else "network list", None, hint)


def relayed(
    policy: Policy,
    known: Relay | None,
    on_connect: Callable[..., Any] | None,
    on_network: Callable[[NetworkEvent], object] | None,
    *,
    publishes: bool = False,
) -> tuple[Policy, Relay | None]:
    """Return the policy with the list that is enforced, and the relay for it; None if there is no list.

    known: the relay so far, if any; its list is replaced by the policy's.
    on_connect, on_network: as for Relay.
    publishes: whether a relay is needed even without a list.

    Raises PolicyError and SetupError.
    """
    asks = on_connect is not None
    if policy.network == "host":
        if asks:
            raise PolicyError("network", "is 'host', about which on_connect can't be asked; give a list, or 'none'")
        return policy, None
    network = listed(policy) or Network()
    if known is not None:
        known.update(network)
    if policy.network == "none" and not (asks or publishes):
        return policy, None
    relay = known or Relay(network, on_connect=on_connect, on_network=on_network)
    return (policy if policy.network is network else policy.with_(network=network)), relay


# ---- all relays of this process

_MOST_SHARED = 8  # relays that are kept for commands without a Sandbox
_shared: dict[Network, Relay] = {}
_all: weakref.WeakSet[Relay] = weakref.WeakSet()


def shared(network: Network) -> Relay:
    """Return the relay for commands with this list that are started without a Sandbox."""
    relay = _shared.pop(network, None) or Relay(network)
    _shared[network] = relay  # now the newest
    while len(_shared) > _MOST_SHARED:
        _shared.pop(next(iter(_shared)), None)
    return relay


def _after_fork() -> None:
    for relay in list(_all):  # before any of them is collected: its close() would end the parent's connection
        relay.forget()
    _shared.clear()


def _close_all() -> None:
    """Close all relays before the interpreter ends."""
    _shared.clear()
    for relay in list(_all):
        relay.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_close_all)
