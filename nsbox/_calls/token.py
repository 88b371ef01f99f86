"""CancelToken: one switch that ends any number of tool calls, from any thread."""

from __future__ import annotations


class CancelToken:
    """Ends tool calls: give it as cancel= to any number of them, and call cancel() to end them all.

    A call ends as it would at its time limit: everything that it has started gets SIGTERM and, after the grace time,
    SIGKILL. The cause in its record is "cancelled". Once a token is cancelled, a call with it starts nothing.

    Any thread may cancel it, and so may a signal handler. A call notices within 0.05 seconds.
    """

    __slots__ = ("_is_cancelled", "_parent")

    def __init__(self) -> None:
        self._is_cancelled = False
        self._parent: CancelToken | None = None

    def child(self) -> CancelToken:
        """Return a token that is cancelled when this one is. Cancelling it leaves this one alone."""
        token = CancelToken()
        token._parent = self
        return token

    def cancel(self) -> None:
        """Cancel the calls that have this token, now and later. Cancelling twice isn't an error."""
        self._is_cancelled = True

    @property
    def is_cancelled(self) -> bool:
        """Whether this token was cancelled, or the one that it is a child of."""
        token: CancelToken | None = self
        while token is not None and not token._is_cancelled:
            token = token._parent
        return token is not None

    def __repr__(self) -> str:
        return f"<nsbox.CancelToken{' cancelled' if self.is_cancelled else ''}>"
