"""Sandbox: a policy brought to life, for many commands.

    with nsbox.Sandbox(nsbox.Policy.workspace("repo")) as box:
        box.run(["make"], check=True)
        print(box.shell("grep -r TODO . | wc -l", timeout=30).stdout)
        print(box.read("README.md", max_chars=1000))

Each command has a sandbox of its own, as if it had been started with policy=; what is the same for all of them is made
once and kept.
"""

from __future__ import annotations

import os
import sys
import weakref
from _thread import RLock

from nsbox._base.errors import PolicyError, Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._commands import Commands
from nsbox._core import abi
from nsbox._file_tools import FileTools
from nsbox._kept.way import KeptWay
from nsbox._lookup.host import host_for
from nsbox._machine.caller import transactions_dir
from nsbox._machine.probe import probe
from nsbox._paths.home import PRIVATE
from nsbox._policy.policy import Policy
from nsbox._spawn.prepare import prepare

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

    from nsbox._homes.homes import BoxHome
    from nsbox._network.events import NetworkEvent
    from nsbox._relay.asks import OnConnect
    from nsbox._relay.ports import Published
    from nsbox._relay.relay import Relay
    from nsbox.session import Session
    from nsbox.transaction import Transaction

__all__ = ["Sandbox"]

_MODES = ("enabled", "disabled")


class Sandbox(Commands, FileTools):
    """One policy, many commands, each of which starts in a copy of what is kept: a mount tree, net namespaces.

    Every function of nsbox that takes policy= takes a Sandbox as well. Its own methods take and raise what those of the
    same name in nsbox and nsbox.asyncio do. Threads may share one. A forked child of this process makes its own; what
    the parent keeps is none of its business.

    Nothing of a command is left for the next one but what the policy binds writable, and a private home, which is kept
    until the Sandbox is closed: /tmp, /dev, /proc, message queues
    and all namespaces, but for the user namespace that the mounts belong to, are its own. What has changed on the host
    since a command before (a source replaced, a file that is to be hidden come into being, anything mounted) is
    noticed: that command is started as without a Sandbox, and then all is made anew.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        mode: str = "enabled",
        stock: int = 2,
        on_connect: OnConnect | None = None,
        on_network: Callable[[NetworkEvent], object] | None = None,
    ) -> None:
        """Take the policy; nothing happens before start() or the first command.

        mode: "disabled" starts commands without any containment, but in the environment and the directory that the
        policy says. stock: how many sandboxes, with net namespaces of their own where the policy has no network, are
        made ahead (0 to 64), each for one command; a command that finds none has its own made from what is kept.
        on_connect: asked about each connection that the network list says nothing of, once for each name and port of a
        sandbox, which waits: True allows it, "always" in all sandboxes of this object; a function, which is called in a
        thread of ours, or one of a coroutine. Whatever else it returns or raises, and two minutes, are a no. With
        network="none" it is asked about everything. on_network: told of each NetworkEvent, in a thread of ours.
        Raises TypeError, ValueError and PolicyError.
        """
        if isinstance(stock, bool) or not isinstance(stock, int) or not 0 <= stock <= 64:
            raise ValueError(f"stock is {stock!r}, must be 0 to 64")
        self._stock = stock
        self._lock = RLock()
        self._is_closed = False
        self._on_connect = _check_callable("on_connect", on_connect)
        self._on_network = _check_callable("on_network", on_network)
        self._relay: Relay | None = None
        self._publishes = False
        self._published: list[Published] = []
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._policy, self._mode = _checked(policy, mode)
        self._home: BoxHome | None = None
        self._way = self._new_way()
        _all.add(self)

    def _new_way(self) -> KeptWay:
        policy = self._policy
        self._has_home = False
        if self._mode == "disabled":
            if policy.network not in ("none", "host"):  # a list that nothing enforces would be an error
                policy = policy.with_(network="host")
            policy = policy.with_(backend="passthrough", require="nothing")
            return KeptWay(policy, self._stock)
        policy, relay = self._with_relay(policy)
        return KeptWay(policy, self._stock, relay)

    def _with_relay(self, policy: Policy) -> tuple[Policy, Relay | None]:
        """Return the policy with the list that is enforced, and the relay that enforces it; None: there is no list."""
        is_plain = self._on_connect is None and not self._publishes
        if policy.network == "none" and is_plain and self._relay is None:
            return policy, None
        if policy.network == "host" and self._on_connect is None:
            return policy, None
        from nsbox._relay.relay import relayed  # for network lists alone

        policy, relay = relayed(policy, self._relay, self._on_connect, self._on_network, publishes=self._publishes)
        self._relay = relay or self._relay
        return policy, relay

    def way(self) -> KeptWay:
        """Return how commands are started now; raises ValueError when it is closed."""
        if self._is_closed:
            raise ValueError("the Sandbox is closed")
        if not self._has_home:
            with self._lock:
                self._begin_home()
        return self._way

    def _begin_home(self) -> None:
        """Have commands share a home, if the policy's is private and one can be kept; else each has its own."""
        way = self._way
        has_mounts = abi.on_linux and way.policy.backend in ("auto", "namespaces", "bwrap")
        try:
            if not self._has_home and way.policy.home == PRIVATE and has_mounts:
                from nsbox._homes.homes import BoxHome

                self._home = self._home or BoxHome(probe().state)
                policy = way.policy.with_(home=self._home.home)
                if self._home.hold(policy):
                    way.policy = policy
        finally:
            self._has_home = True  # now: another thread may look at it without the lock

    # ---- what it is

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        section: str | None = None,
        workspace: str | os.PathLike[str] | None = None,
        stock: int = 2,
    ) -> Sandbox:
        """Return one with the policy and the mode that a TOML, JSON or YAML file describes; as Policy.load()."""
        from nsbox._config.load import load

        config = load(path, section=section, workspace=workspace)
        return cls(config.policy, mode=config.mode, stock=stock)

    @property
    def policy(self) -> Policy:  # type: ignore[override]
        """What commands may do."""
        return self._policy

    @property
    def mode(self) -> str:
        """Whether commands are contained: "enabled" or "disabled", in a word."""
        return self._mode

    @property
    def why_cold(self) -> str:
        """Why each command is started anew: what about the policy allows nothing to be kept, or what failed.

        "" as long as nothing is known against it. Popen.sandbox.is_warm tells of one command.
        """
        return self._way.why_cold

    # ---- its life

    def start(self) -> Sandbox:
        """Make now what the first command would wait for, and return this. Raises what starting a command raises.

        Also finishes commits of transactions that were interrupted: see nsbox.transaction.recover(), whose errors it
        raises if they are about this policy's working directory.
        """
        way = self.way()
        _finish_commits(self._policy.workdir)
        prepared = prepare(way.policy, host_for(way.policy))
        way.keep(prepared)
        return self

    def update(self, policy: Policy | None = None, *, mode: str | None = None) -> None:
        """Change the policy, the mode, or both: from one moment to the other, for commands that start from then on.

        Those that run keep what they have, except for a network list: theirs becomes the new one, and connections that
        it doesn't allow end. Under network="none" that is all of them; "host" changes nothing for them. Raises
        TypeError, ValueError, PolicyError and SetupError, and has changed nothing then.
        """
        with self._lock:
            if self._is_closed:
                raise ValueError("the Sandbox is closed")
            chosen = _checked(self._policy if policy is None else policy, self._mode if mode is None else mode)
            if chosen == (self._policy, self._mode):
                return
            before, old = (self._policy, self._mode), self._way
            self._policy, self._mode = chosen
            try:
                self._way = self._new_way()
            except BaseException:
                self._policy, self._mode = before
                raise
        old.close()

    def transaction(
        self, workspace: str | os.PathLike[str] | None = None, *, dir: str | os.PathLike[str] | None = None
    ) -> Transaction:
        """Begin a transaction under this policy: commands whose changes to the workspace are only kept if committed.

        workspace: by default the policy's working directory. dir: where the changes are kept until then; by default
        nsbox/transactions in $XDG_STATE_HOME (~/.local/state). It has to be on a file system that overlayfs can write
        to, and remains. Raises PolicyError, UnavailableError where the policy, the backend or what is mounted in the
        workspace doesn't allow it, and OSError.
        """
        from nsbox.transaction import Transaction  # seldom needed

        if self._mode == "disabled":
            raise UnavailableError(Reason("in mode 'disabled' nothing is contained, so nothing can be kept aside"))
        way = self.way()
        transaction = Transaction(way.policy, None if workspace is None else os.fspath(workspace), dir, way.relay)
        transaction.keeps = self
        return transaction

    def session(self) -> Session:
        """Begin a session under this policy: one sandbox in which commands run, and leave things behind, until its end.

        Raises UnavailableError where the policy or the backend doesn't allow it, and what starting a command raises.
        """
        from nsbox.session import Session  # seldom needed

        if self._mode == "disabled":
            raise UnavailableError(Reason("in mode 'disabled' nothing is contained, so there is nothing to be kept"))
        way = self.way()
        session = Session(way.policy, way.relay)
        session.keeps = self  # its home goes with the Sandbox
        session.relay_of = self.relay_of_sessions
        self._sessions.add(session)
        return session

    def relay_of_sessions(self) -> Relay:
        """Return the relay that sessions have, once they need one."""
        with self._lock:
            if self._relay is None:
                from nsbox._network.network import nothing
                from nsbox._relay.relay import Relay as OwnRelay  # seldom needed

                self._relay = OwnRelay(nothing(), on_connect=self._on_connect, on_network=self._on_network)
            return self._relay

    def publish(self, port: int, to: int | str | None = None) -> Published:
        """Make a server reachable on the host: of the newest sandbox in which one listens at 127.0.0.1:port.

        port: inside. to: a port of the host's 127.0.0.1, "ADDRESS:PORT", or the path of a unix socket, for this user
        alone; port 0 is any that is free. None: the same port, or any if that is taken: `address` of what comes back
        says which. It is closed with this object, or by its own close(). Sandboxes that run have it too if they have a
        network list or are sessions, or if something was published when they began. Raises PolicyError, SetupError and
        OSError.
        """
        from nsbox._relay import ports  # seldom needed

        inside = ports.check_port(port)
        with self._lock:
            self.way()
            if self._policy.network == "host" or self._mode == "disabled":
                raise PolicyError("network", "is 'host': what listens there is reachable as it is")
            if not self._publishes:
                self._publishes = True
                old, self._way = self._way, self._new_way()
                old.close()
            assert self._relay is not None
            for session in self._sessions:
                session.join(self._relay)
            self._relay.line()  # it has a process
            with ports.listening(inside, to) as listener:
                made = ports.Published(self._relay, port, listener, None)
            self._published.append(made)
            return made

    def close(self, *, _is_late: Callable[[], bool] = sys.is_finalizing) -> None:
        """Let go of what is kept. Commands that run go on; no new one can be started. Twice is no error."""
        if _is_late():  # the kernel lets go
            self._is_closed = True
            return
        with self._lock:
            self._is_closed = True
        self._way.close()
        for each in self._published:
            each.close()
        if self._relay is not None:
            self._relay.retire()
        self._drop_home()

    def _drop_home(self) -> None:
        home = getattr(self, "_home", None)
        if home is not None:
            home.remove()

    def __enter__(self) -> Sandbox:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self, *, _is_late: Callable[[], bool] = sys.is_finalizing) -> None:
        way = getattr(self, "_way", None)
        if way is None or self._is_closed or _is_late():
            return
        if not way.is_keeping:
            self._drop_home()
            return
        import warnings

        warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else self._mode
        return f"<nsbox.Sandbox {state} {self._policy.base}>"

    def after_fork(self) -> None:
        """Start anew in a forked child, whose locks other threads of the parent may have held."""
        self._lock = RLock()
        self._way.after_fork()
        home, self._home = self._home, None
        if home is not None:
            home.forget()
            self._has_home = False
            self._way.policy = self._way.policy.with_(home=PRIVATE)


def _finish_commits(workspace: str | None) -> None:
    """Have what transactions left behind dealt with, before anybody sees a workspace that is changed in part."""
    base = transactions_dir()
    try:
        left = os.listdir(base)
    except OSError:
        return
    if workspace is not None and left not in ([], ["lock"]):
        from nsbox.transaction import recover_for  # seldom needed

        recover_for(workspace, base)


def _check_callable(name: str, given: Any) -> Any:
    if given is not None and not callable(given):
        raise TypeError(f"{name} is a {type(given).__name__}, must be a function")
    return given


def _checked(policy: Policy, mode: str) -> tuple[Policy, str]:
    if not isinstance(policy, Policy):
        raise TypeError(f"policy is a {type(policy).__name__}, must be nsbox.Policy")
    if mode not in _MODES:
        raise PolicyError("mode", f"{mode!r} is unknown, must be one of {', '.join(_MODES)}")
    return policy, mode


_all: weakref.WeakSet[Sandbox] = weakref.WeakSet()


def _after_fork() -> None:
    for box in list(_all):
        box.after_fork()


os.register_at_fork(after_in_child=_after_fork)
