"""Sandbox: one policy for many commands.

    with nsbox.Sandbox(nsbox.Policy.workspace("repo")) as box:
        box.run(["make"], check=True)
        print(box.shell("grep -r TODO . | wc -l", timeout=30).stdout)
        print(box.read("README.md", max_chars=1000))

Each command has its own sandbox, as if it had been started with policy=. What is the same for all of them is made once
and kept.
"""

from __future__ import annotations

import contextlib
import os
import sys
import weakref

from nsbox._base.checks import check_answer
from nsbox._base.display import type_phrase
from nsbox._base.errors import PolicyError, Reason, UnavailableError
from nsbox._base.forks import Alive
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.stdlib import RLock
from nsbox._core import abi
from nsbox._filetools.methods import FileTools
from nsbox._kept.commands import Commands
from nsbox._kept.way import KeptWay
from nsbox._lookup.host import host_for
from nsbox._machine.caller import transactions_dir
from nsbox._machine.probe import probe
from nsbox._paths.home import PRIVATE
from nsbox._policy.policy import Policy
from nsbox._popen.story import Attempt
from nsbox._spawn.prepare import prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Any

    from nsbox._homes.homes import BoxHome
    from nsbox._network.events import NetworkEvent
    from nsbox._relay.asks import OnConnect
    from nsbox._relay.ports import Published
    from nsbox._relay.relay import Relay
    from nsbox.python import Python
    from nsbox.session import Session
    from nsbox.task import Task
    from nsbox.transaction import Transaction

__all__ = ["Sandbox"]

_MODES = ("enabled", "disabled")


class Sandbox(Commands, FileTools):
    """One policy for many commands. Each starts from what is kept: a copy of a mount tree, a ready net namespace.

    Every nsbox function with a policy= parameter accepts a Sandbox too. A Sandbox's own methods have the parameters and
    errors of the functions of the same name in nsbox and nsbox.asyncio. Threads may share a Sandbox. In a forked child
    of this process it starts afresh, and leaves alone what the parent keeps.

    A command leaves nothing behind for the next one, with two exceptions: what it writes where the policy allows
    writing, and a private home, which is kept until the Sandbox is closed. If the policy allows writing nowhere, as a
    workspace with read_only=True does, or says home="tmp", each command has a home of its own. So has Python code.
    Each command has its own /tmp, /dev, /proc and message queues, and its own namespaces except for the user namespace
    that owns the mounts.

    nsbox notices changes on the host between two commands: a source was replaced, a file to hide has appeared, anything
    was mounted. The next command then starts as it would without a Sandbox, and after it everything kept is made again.
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
        """Hold the policy; nothing happens before start() or the first command.

        policy: what commands may do.
        mode: "enabled", or "disabled" to start commands uncontained, in the environment and directory that the policy
            says. Default: "enabled".
        stock: how many sandboxes to make ahead, 0 to 64, each for one command. Where the policy has no network, each
            has its own net namespace. If none is ready, a command's sandbox is made from what is kept. Default: 2.
        on_connect: a function, called in one of nsbox's threads, or a coroutine function. It decides about connections
            that the network list doesn't mention; with network="none", about all of them. It is called once for each
            name and port of a sandbox, and the connection waits. True allows it in this sandbox, "always" in all
            sandboxes of this object. "never" refuses it in all of them. Any other result, an error, or no answer in two
            minutes refuses it in this sandbox. Default: None.
        on_network: a function that is called with each NetworkEvent, in one of nsbox's threads. Default: None.

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
        self._pythons: list[Python] = []
        self._policy, self._mode = _checked(policy, mode)
        self._home: BoxHome | None = None
        self._way = self._new_way()
        _all.add(self)

    def _new_way(self) -> KeptWay:
        policy = self._policy
        self._has_home = False
        if self._mode == "disabled":
            if policy.network not in ("none", "host"):  # with nothing to enforce it, a list would be an error
                policy = policy.with_(network="host")
            policy = policy.with_(backend="passthrough", require="nothing")
            return KeptWay(policy, self._stock)
        policy, relay = self._with_relay(policy)
        return KeptWay(policy, self._stock, relay)

    def _with_relay(self, policy: Policy) -> tuple[Policy, Relay | None]:
        """Return the policy with the list to enforce, and the relay that enforces it; None without a list."""
        is_plain = self._on_connect is None and not self._publishes
        if policy.network == "none" and is_plain and self._relay is None:
            return policy, None
        if policy.network == "host" and self._on_connect is None:
            return policy, None
        from nsbox._relay.relay import relayed  # for network lists alone

        policy, relay = relayed(policy, self._relay, self._on_connect, self._on_network, publishes=self._publishes)
        self._relay = relay or self._relay
        return policy, relay

    def _open_way(self) -> KeptWay:
        """Return the way in which commands start now; raises ValueError if the Sandbox is closed."""
        if self._is_closed:
            raise ValueError("the Sandbox is closed")
        if not self._has_home:
            with self._lock:
                self._begin_home()
        return self._way

    def _begin_home(self) -> None:
        """Let commands share a home if the policy's is private and one can be kept; otherwise each has its own.

        Where the policy opens nothing for writing, they leave nothing for each other, so they share no home either.
        """
        way = self._way
        has_mounts = abi.on_linux and way.policy.backend in ("auto", "namespaces", "bwrap")
        wants_home = way.policy.home == PRIVATE and has_mounts and bool(way.policy.write)
        try:
            if not self._has_home and wants_home:
                from nsbox._homes.homes import BoxHome

                self._home = self._home or BoxHome(probe().state)
                policy = way.policy.with_(home=self._home.home)
                if self._home.hold(policy):
                    way.policy = policy
        finally:
            self._has_home = True  # only now: other threads read it without the lock

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
        """Return a Sandbox with the policy and the mode that a TOML, JSON or YAML file describes.

        path, section, workspace: as for Policy.load(), whose errors it raises.
        stock: as for Sandbox(). Default: 2.
        """
        from nsbox._config.load import load

        config = load(path, section=section, workspace=workspace)
        return cls(config.policy, mode=config.mode, stock=stock)

    @property
    def policy(self) -> Policy:  # type: ignore[override]
        """What commands may do."""
        return self._policy

    @property
    def mode(self) -> str:
        """Whether commands are contained: "enabled" or "disabled"."""
        return self._mode

    @property
    def why_cold(self) -> str:
        """Why every command starts cold: what in the policy prevents keeping anything, or what failed.

        "" while no reason is known. For a single command, see Popen.sandbox.is_warm.
        """
        return self._way.why_cold

    # ---- its life

    def start(self) -> Sandbox:
        """Return this Sandbox after making what the first command would have to wait for.

        It also finishes interrupted commits of transactions, as nsbox.transaction.recover() does, and raises the errors
        that concern this policy's working directory. Raises what starting a command raises.
        """
        with Attempt("sandbox", policy=self._policy):
            way = self._open_way()
            _finish_commits(self._policy.workdir)
            prepared = prepare(way.policy, host_for(way.policy))
            way.keep(prepared)
        return self

    def update(self, policy: Policy | None = None, *, mode: str | None = None) -> None:
        """Change the policy, the mode, or both, at once, for all commands that start from now on.

        Running commands, sessions and tasks keep what they have, except for their network list: the new one replaces
        it, and connections that it doesn't allow end. A new network="none" ends all of them; "host" changes nothing
        for them. What began with "none" has no way out, whatever comes later: begin with [] to allow hosts later.

        policy: the new one. Default: as before.
        mode: "enabled" or "disabled". Default: as before.

        Raises TypeError, ValueError, PolicyError and SetupError; then nothing has changed.
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

    def _containing(self, problem: str) -> KeptWay:
        """Return what starts commands; raises UnavailableError, which says the problem, in mode "disabled"."""
        if self._mode == "disabled":
            raise UnavailableError(Reason(f"in mode 'disabled' nothing is contained, so {problem}"))
        return self._open_way()

    def transaction(
        self, workspace: str | os.PathLike[str] | None = None, *, dir: str | os.PathLike[str] | None = None
    ) -> Transaction:
        """Return a Transaction under this policy: its commands' changes to the workspace last only if committed.

        workspace: a directory. Default: the policy's working directory.
        dir: where the changes are kept until then, on a file system that overlayfs can write to. The directory itself
            stays. Default: nsbox/transactions in $XDG_STATE_HOME (~/.local/state).

        Raises PolicyError, OSError, and UnavailableError if the policy, the backend or a mount in the workspace rules
        it out.
        """
        from nsbox.transaction import Transaction  # seldom needed

        with Attempt("transaction", policy=self._policy):
            way = self._containing("nothing can be kept aside")
            transaction = Transaction(way.policy, None if workspace is None else os.fspath(workspace), dir, way.relay)
        transaction._keeps = self
        return transaction

    def session(self) -> Session:
        """Return a Session under this policy: one sandbox in which commands can leave things behind for the next ones.

        Raises what starting a command raises, and UnavailableError if the policy or the backend rules it out.
        """
        from nsbox.session import Session  # seldom needed

        with Attempt("session", policy=self._policy):
            way = self._containing("there is nothing to be kept")
            session = Session(way.policy, way.relay)
        session._keeps = self  # the home lasts as long as the Sandbox
        session._relay_of = self._relay_of_sessions
        self._sessions.add(session)
        return session

    def task(
        self, workspace: str | os.PathLike[str] | None = None, *, dir: str | os.PathLike[str] | None = None
    ) -> Task:
        """Return a Task under this policy: a session whose commands may write anywhere, on top of the host's files.

        workspace: the directory whose changes can be committed, in one that the policy opens for writing. Default: the
            policy's working directory.
        dir: where what commands write is kept until the task ends, as for transaction().

        Raises PolicyError, OSError, and UnavailableError if the policy, the backend or a mount in the workspace rules
        it out.
        """
        from nsbox.task import Task  # seldom needed

        with Attempt("task", policy=self._policy):
            way = self._containing("nothing can be kept aside")
            task = Task(way.policy, None if workspace is None else os.fspath(workspace), dir, way.relay)
        task._keeps = self
        task._relay_of = self._relay_of_sessions
        self._sessions.add(task)
        return task

    def python(
        self,
        *,
        python: str | os.PathLike[str] | None = None,
        imports: Sequence[str] = (),
        setup: str = "",
        stock: int = 2,
        start_timeout: float = 60.0,
        overlay: bool = False,
    ) -> Python:
        """Return a Python under this policy, until this is closed: it runs code in branches of a warm interpreter.

        python: the interpreter, version 3.9 or later: a path as commands see it, or a name to look for in their PATH.
            Default: None, for the one of the workspace's virtual environment (.venv, venv) or, without one, the one
            that runs this program, if the sandbox shows it, or else python3.
        imports: names of modules that it imports when it starts, so that code needn't wait for them. They mustn't
            leave threads running. Default: none.
        setup: code that it runs after that; all code finds what it defines. Default: none.
        stock: how many branches are made ahead, 0 to 64. Default: 2.
        start_timeout: seconds until it must be ready. Default: 60.
        overlay: whether each branch gets a throw-away overlay of every directory that the policy opens for writing.
            What it writes there, at most Policy.tmp_size, is gone when it ends; nothing reaches the host. Default:
            False.

        Nothing happens before its start() or the first code. Raises TypeError, ValueError, and UnavailableError in mode
        "disabled".
        """
        from nsbox.python import Python as OwnPython  # seldom needed

        if self._mode == "disabled":
            raise UnavailableError(Reason("in mode 'disabled' nothing is contained, so there is nothing to be kept"))
        self._open_way()
        made = OwnPython(
            self,
            python=python,
            imports=imports,
            setup=setup,
            stock=stock,
            start_timeout=start_timeout,
            overlay=overlay,
        )
        self._pythons = [*(one for one in self._pythons if not one.is_closed), made]
        return made

    def _relay_of_sessions(self) -> Relay:
        """Return the relay that sessions share; made when one first needs it."""
        with self._lock:
            if self._relay is None:
                from nsbox._network.network import Network
                from nsbox._relay.relay import Relay as OwnRelay  # seldom needed

                self._relay = OwnRelay(Network(), on_connect=self._on_connect, on_network=self._on_network)
            return self._relay

    def publish(self, port: int, to: int | str | None = None) -> Published:
        """Return a Published port: through it the host reaches a server inside that listens on 127.0.0.1:port.

        If several sandboxes have such a server, connections go to the newest one. Running sandboxes are included if
        they have a network list, are sessions, or began when something was already published. The port is closed with
        this Sandbox, or by its own close().

        port: inside the sandbox.
        to: where on the host: a port of 127.0.0.1, "ADDRESS:PORT", or the path of a unix socket, which only this user
            can use. Port 0 means any free one. Default: the same port or, if that is taken, any free one; `address` of
            the result says which.

        Raises PolicyError, SetupError and OSError.
        """
        from nsbox._relay import ports  # seldom needed

        inside = ports.check_port(port)
        with self._lock:
            self._open_way()
            if self._policy.network == "host" or self._mode == "disabled":
                raise PolicyError("network", "is 'host': a server that listens there is reachable already")
            if not self._publishes:
                self._publishes = True
                old, self._way = self._way, self._new_way()
                old.close()
            assert self._relay is not None
            for session in self._sessions:
                session._join(self._relay)
            self._relay.line()  # it has a process
            with ports.listening(inside, to) as listener:
                published = ports.Published(self._relay, port, listener, None)
            self._published.append(published)
            return published

    def close(self, *, _is_late: Callable[[], bool] = sys.is_finalizing) -> None:
        """End streams, jobs, sessions, tasks and warm interpreters, and release what is kept.

        Closing twice isn't an error. Other running commands go on; no new one can start.
        """
        if _is_late():  # the kernel lets go
            self._is_closed = True
            return
        with self._lock:
            self._is_closed = True
        self._end_calls()
        with contextlib.ExitStack() as stack:  # a KillError doesn't keep the rest from being released
            stack.callback(self._release)
            for session in list(self._sessions):
                stack.callback(session.close)

    def _release(self) -> None:
        """Release what is kept."""
        for python in self._pythons:
            python.close()
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
        if not way.is_keeping and not any(python.is_warm for python in self._pythons):
            self._drop_home()
            return
        import warnings

        warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else self._mode
        return f"<nsbox.Sandbox {state} {self._policy.base}>"

    def _after_fork(self) -> None:
        """Start afresh in a forked child: other threads of the parent may have held its locks."""
        self._lock = RLock()
        self._forget_calls()
        for python in self._pythons:
            python._after_fork()
        self._way.after_fork()
        home, self._home = self._home, None
        if home is not None:
            home.forget()
            self._has_home = False
            self._way.policy = self._way.policy.with_(home=PRIVATE)


def _finish_commits(workspace: str | None) -> None:
    """Finish what interrupted transactions left behind, so that no command sees a workspace that is half changed."""
    base = transactions_dir()
    try:
        names = os.listdir(base)
    except OSError as error:
        check_answer(error)
        return
    if workspace is not None and names not in ([], ["lock"]):
        from nsbox.transaction import recover_for  # seldom needed

        recover_for(workspace, base)


def _check_callable(name: str, function: Any) -> Any:
    if function is not None and not callable(function):
        raise TypeError(f"{name} is {type_phrase(function)}, must be a function")
    return function


def _checked(policy: Policy, mode: str) -> tuple[Policy, str]:
    if not isinstance(policy, Policy):
        raise TypeError(f"policy is {type_phrase(policy)}, must be nsbox.Policy")
    if mode not in _MODES:
        raise PolicyError("mode", f"{mode!r} is unknown, must be one of {', '.join(_MODES)}")
    return policy, mode


_all = Alive()
