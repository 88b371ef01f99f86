"""A policy brought to life: what is kept for its commands, made at the first one and again when it no longer fits."""

from __future__ import annotations

import errno
import time

from nsbox._base.display import printable
from nsbox._base.errors import NsboxError, SetupError, StaleError, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.stdlib import RLock
from nsbox._kept.tree import KeptTree
from nsbox._logs import logger
from nsbox._spawn.start import spawn
from nsbox._spawn.way import Way

if TYPE_CHECKING:
    from nsbox._core.command import Result
    from nsbox._policy.policy import Policy
    from nsbox._relay.relay import Relay
    from nsbox._spawn.prepare import Prepared
    from nsbox._spawn.start import Start


class KeptWay(Way):
    """Starts commands in copies of a kept sandbox or, if none can be kept, in sandboxes built from scratch.

    Building one is never wrong, only slower, and its errors are better. So whenever something about the kept one is
    odd, a new one is built.
    """

    def __init__(self, policy: Policy, stock: int, relay: Relay | None = None) -> None:
        super().__init__(policy, relay)
        self.why_cold = ""  # why nothing is kept, if that is so
        self._stock = stock
        self._kept: KeptTree | None = None
        self._lock = RLock()  # a signal handler may acquire it too
        self._is_closed = False
        self._is_hopeless = False
        self._not_before = 0.0  # after a failure

    @property
    def is_keeping(self) -> bool:
        """Whether there is something to let go."""
        return self._kept is not None

    def keep(self, prepared: Prepared) -> KeptTree | None:
        """Return the kept sandbox, and make it first if there is none; None if none can be kept."""
        kept = self._kept
        if kept is not None and self._fits(kept, prepared):
            return kept
        if self._is_hopeless or self._is_closed or time.monotonic() < self._not_before:
            return None
        with self._lock:
            self._renew(prepared)
            return self._kept

    def _renew(self, prepared: Prepared) -> None:
        """Make the kept sandbox again, unless it fits. close() may run before this thread has the lock, or any time."""
        kept = self._kept
        if kept is not None and self._fits(kept, prepared):
            return
        kept = None
        self._let_go()  # first
        if not self._is_closed:
            self._kept = self._make(prepared)
            self._drop_if_closed()

    def _drop_if_closed(self) -> None:
        """Let go after a close() in a signal handler. A close() in another thread waits for the lock and does it."""
        if self._is_closed:
            self._let_go()

    @staticmethod
    def _fits(kept: KeptTree, prepared: Prepared) -> bool:
        """Return whether it was made from what is prepared now: this process may have changed its user since then."""
        return kept.prepared is prepared and not kept.stale

    def _let_go(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.retire()

    def _make(self, prepared: Prepared) -> KeptTree | None:
        try:
            kept = KeptTree(prepared, self._stock, self.relay)
            kept.refill()
        except UnavailableError as error:  # nothing can ever be kept for this plan
            self._is_hopeless = True
            self.why_cold = "; ".join(str(reason) for reason in error.reasons)
            logger.info("a Sandbox keeps nothing, each command has one built for it: %s", self.why_cold)
            return None
        except (NsboxError, OSError) as error:  # a command in a new sandbox reports what is wrong, if it still is
            if isinstance(error, TimeoutError) and error.errno is None:
                raise  # a signal handler's
            self.why_cold = str(error)
            logger.warning("a Sandbox can't keep anything at the moment: %s", self.why_cold)
            self._not_before = time.monotonic() + 1.0
            return None
        self.why_cold = ""
        logger.info("a sandbox is kept for %s, with %d copies ahead", printable(str(self.policy.workdir)), self._stock)
        return kept

    def spawn(self, start: Start) -> Result:
        try:
            result = self._spawn(start)
        except OSError:
            self.check_open()
            raise
        ended = result.on_end

        def on_end() -> None:
            ended()
            self._make_up()

        result.on_end = on_end
        return result

    def _spawn(self, start: Start) -> Result:
        kept = self.keep(start.prepared) if start.policy is self.policy else None
        if kept is None or kept.wants_console(start.command):
            return spawn(start)
        try:
            return kept.spawn(start)
        except StaleError:
            kept.stale = True
        except SetupError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._let_go()  # its descriptors are what the command lacks
            self._not_before = time.monotonic() + 1.0
        del kept
        start.command.parked = None
        return spawn(start)

    def check_open(self) -> None:
        """Raise ValueError once it is closed: a command may lack what was closed with it, such as its home."""
        if self._is_closed:
            raise ValueError("the Sandbox is closed")

    def _make_up(self) -> None:
        """Replace the copy that a command used, after its end."""
        kept = self._kept
        if kept is not None:
            kept.refill()

    def close(self) -> None:
        """Keep nothing from now on. Running commands go on."""
        self._is_closed = True
        with self._lock:
            self._let_go()

    def after_fork(self) -> None:
        """In a forked child, forget what the parent keeps. Another thread of the parent may have held the lock."""
        self._lock = RLock()
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.forget()
