"""SandboxFuture: a future whose running call can be cancelled, since a sandbox can be ended."""

from __future__ import annotations

from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import Any

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._calls.token import CancelToken

if TYPE_CHECKING:
    from nsbox._python.result import PythonResult


class SandboxFuture(Future[Any]):
    """A concurrent.futures.Future of a call in a SandboxExecutor.

    record: the PythonResult of the call, with what it has printed; None before it is done, and if it never ran.
    """

    def __init__(self) -> None:
        super().__init__()
        self.record: PythonResult | None = None
        self.token = CancelToken()
        self._was_running = False  # when it was cancelled

    def cancel(self) -> bool:
        """Cancel the call, even while it runs: its code is ended. Return False if it is done already."""
        if super().cancel():
            return True
        if self.done():
            return False
        self.token.cancel()
        self._was_running = True  # first: the next line wakes those that wait, and they may ask
        try:
            self.set_exception(CancelledError())
        except InvalidStateError:  # it has just finished
            self._was_running = isinstance(super().exception(0), CancelledError)
            return self._was_running
        return True

    def cancelled(self) -> bool:
        """Return whether the call was cancelled, before it ran or while it did."""
        return super().cancelled() or (self._was_running and self.done())

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what the call raised, None if it returned. Raises CancelledError, and TimeoutError."""
        error = super().exception(timeout)
        if self._was_running:
            raise CancelledError
        return error

    def finish(self, result: object, error: BaseException | None) -> None:
        """Set the outcome of the call, unless it was cancelled meanwhile."""
        try:
            if error is None:
                self.set_result(result)
            else:
                self.set_exception(error)
        except InvalidStateError:
            pass
