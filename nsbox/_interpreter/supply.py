"""Where branches come from: one warm interpreter, made when it is first needed, and again when it no longer fits."""

from __future__ import annotations

from nsbox._base.display import printable
from nsbox._base.errors import StaleError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.stdlib import RLock
from nsbox._interpreter.environments.choice import OpenError
from nsbox._interpreter.interpreter import Interpreter
from nsbox._logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsbox._interpreter.program import Wish
    from nsbox._policy.policy import Policy
    from nsbox._relay.relay import Relay
    from nsbox._spawn.prepare import Prepared

_ATTEMPTS = 3


class Supply:
    """Holds the interpreter that is in use. Threads may share it.

    relay_of: returns the relay that serves branches with a network list; None: it is the list's shared one.
    """

    def __init__(self, wish: Wish, relay_of: Callable[[], Relay | None] = lambda: None) -> None:
        self.wish, self._relay_of = wish, relay_of
        self._lock = RLock()  # a signal handler may acquire it too
        self._current: Interpreter | None = None
        self._is_closed = False

    def interpreter(self, policy: Policy, prepared: Prepared) -> Interpreter:
        """Return an interpreter for what is prepared of a policy. It may end at any time.

        Raises ValueError once this is closed, InterpreterError, and what starting a command raises.
        """
        current = self._current
        if current is not None and current.fits(prepared) and not self._is_closed:
            return current
        with self._lock:
            self._check_open()
            current = self._current
            if current is None or not current.fits(prepared):
                self._current = None
                if current is not None:
                    _tell_of_end(current)
                    current.retire()
                self._keep(self._made(policy, prepared))
                _tell_of_start(self._current)
            assert self._current is not None
            return self._current

    def _made(self, policy: Policy, prepared: Prepared) -> Interpreter:
        """Make one. If what the policy shows is replaced meanwhile, make another.

        If its imports or its setup come across a module that commands can write to, make one without them: its branches
        do that.
        """
        why_cold = ""
        for _ in range(_ATTEMPTS):
            try:
                return Interpreter(policy, prepared, self.wish, self._relay(prepared), why_cold)
            except StaleError:
                continue
            except OpenError as error:
                why_cold = error.why
        return Interpreter(policy, prepared, self.wish, self._relay(prepared), why_cold)

    def _relay(self, prepared: Prepared) -> Relay | None:
        network = prepared.plan.network
        if network is None:
            return None
        from nsbox._relay.relay import shared  # for network lists alone

        return self._relay_of() or shared(network)

    def _keep(self, made: Interpreter) -> None:
        """Use it, unless a signal handler has closed this, or made another one, meanwhile."""
        other, self._current = self._current, made
        if other is not None:
            other.retire()
        if self._is_closed:
            self.close()
            self._check_open()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError("the Python is closed: Sandbox.python() makes another")

    @property
    def current(self) -> Interpreter | None:
        """The interpreter in use."""
        return self._current

    def close(self) -> None:
        """End the interpreter and all of its branches."""
        self._is_closed = True
        with self._lock:
            current, self._current = self._current, None
        if current is not None:
            current.close()
            logger.info("the interpreter %s was closed", printable(current.program))

    def after_fork(self) -> None:
        """In a forked child, begin afresh: the interpreter is the parent's."""
        self._lock = RLock()
        current, self._current = self._current, None
        if current is not None:
            current.forget()


def _tell_of_start(made: Interpreter | None) -> None:
    if made is not None and logger.listens(logger.INFO):
        version = ".".join(map(str, made.facts.version))
        program, why_cold = printable(made.program), made.choice.why_cold
        cold = f"; imports wait for each branch: {printable(why_cold)}" if why_cold else ""
        logger.info("the interpreter %s, %s, is ready after %.1f s%s", program, version, made.facts.seconds, cold)


def _tell_of_end(old: Interpreter) -> None:
    """Log why an interpreter is replaced: one that has ended before its time is worth a warning."""
    program = printable(old.program)
    if old.has_ended or old.is_given_up:
        logger.warning("the interpreter %s is replaced: %s", program, printable(old.fate()))
    else:
        logger.info("the interpreter %s is retired: what it was made for has changed", program)
