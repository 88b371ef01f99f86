"""A policy brought to life: what is kept for its commands, made at the first one and again when it no longer fits."""

from __future__ import annotations

import errno
import time
from _thread import RLock

from nsbox._base.errors import NsboxError, SetupError, StaleError, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._spawn.start import spawn
from nsbox._spawn.way import Way
from nsbox._template import Kept

if TYPE_CHECKING:
    from typing import Any

    from nsbox._core.command import Command, Result
    from nsbox._policy.policy import Policy
    from nsbox._relay.relay import Relay
    from nsbox._spawn.prepare import Prepared


class KeptWay(Way):
    """Starts commands in copies of a sandbox that is kept or, if that can't be, in sandboxes built from nothing.

    To build one is never wrong, only slower, and it has the better errors. So it is the way out of whatever is odd
    about the kept one.
    """

    def __init__(self, policy: Policy, stock: int, relay: Relay | None = None) -> None:
        super().__init__(policy, relay)
        self.why_cold = ""  # why nothing is kept, if that is so
        self._stock = stock
        self._kept: Kept | None = None
        self._lock = RLock()  # a signal's handler may use it too
        self._is_closed = False
        self._is_hopeless = False
        self._not_before = 0.0  # after a failure

    @property
    def is_keeping(self) -> bool:
        """Say if there is something that has to be let go."""
        return self._kept is not None

    def keep(self, prepared: Prepared) -> Kept | None:
        """Return what is kept, which is made now if there is nothing yet; None if there can be nothing."""
        kept = self._kept
        if kept is not None and self._fits(kept, prepared):
            return kept
        if self._is_hopeless or self._is_closed or time.monotonic() < self._not_before:
            return None
        with self._lock:
            self._renew(prepared)
            return self._kept

    def _renew(self, prepared: Prepared) -> None:
        """Make it again, unless it fits. close() may have come while this thread waited for the lock, or comes now."""
        kept = self._kept
        if kept is not None and self._fits(kept, prepared):
            return
        kept = None
        self._let_go()  # first
        if not self._is_closed:
            self._kept = self._make(prepared)
            self._drop_if_closed()

    def _drop_if_closed(self) -> None:
        """Let go after a close() in a signal's handler; one in another thread does it by itself, with the lock."""
        if self._is_closed:
            self._let_go()

    @staticmethod
    def _fits(kept: Kept, prepared: Prepared) -> bool:
        """Say if it was made from what is prepared now: this process may have become another user's meanwhile."""
        return kept.prepared is prepared and not kept.stale

    def _let_go(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.retire()

    def _make(self, prepared: Prepared) -> Kept | None:
        try:
            kept = Kept(prepared, self._stock, self.relay)
            kept.refill()
        except UnavailableError as error:  # the plan is none that anything can be kept of, ever
            self._is_hopeless = True
            self.why_cold = "; ".join(str(reason) for reason in error.reasons)
            return None
        except (NsboxError, OSError) as error:  # a command that is started anew tells what is wrong, if it still is
            self.why_cold = str(error)
            self._not_before = time.monotonic() + 1.0
            return None
        self.why_cold = ""
        return kept

    def spawn(self, policy: Policy, prepared: Prepared, command: Command, program: Any, cwd: Any) -> Result:
        try:
            result = self._spawn(policy, prepared, command, program, cwd)
        except OSError:
            self.check_open()
            raise
        ended = result.on_end

        def on_end() -> None:
            ended()
            self._make_up()

        result.on_end = on_end
        return result

    def _spawn(self, policy: Policy, prepared: Prepared, command: Command, program: Any, cwd: Any) -> Result:
        kept = self.keep(prepared) if policy is self.policy else None
        if kept is None or kept.wants_console(command):
            return spawn(policy, prepared, command, program, cwd)
        try:
            return kept.spawn(policy, command, program, cwd)
        except StaleError:
            kept.stale = True
        except SetupError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._let_go()  # its descriptors are what the command lacks
            self._not_before = time.monotonic() + 1.0
        del kept
        command.parked = None
        return spawn(policy, prepared, command, program, cwd)

    def check_open(self) -> None:
        """Raise ValueError once it is closed: what goes with it, such as its home, may be what a command lacks."""
        if self._is_closed:
            raise ValueError("the Sandbox is closed")

    def _make_up(self) -> None:
        """Make up for what a command that has ended had taken."""
        kept = self._kept
        if kept is not None:
            kept.refill()

    def close(self) -> None:
        """Keep nothing any more. Commands that run go on."""
        self._is_closed = True
        with self._lock:
            self._let_go()

    def after_fork(self) -> None:
        """Forget what the parent keeps, in a forked child: another thread of the parent may have held the lock."""
        self._lock = RLock()
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.forget()
