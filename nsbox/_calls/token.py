"""CancelToken: one switch that ends any number of tool calls, from any thread."""

from __future__ import annotations


class CancelToken:
    """Ends tool calls: give it as cancel= to any number of them, and call cancel() when they shall end.

    A call ends as after a time limit: everything that it has started gets SIGTERM and, after the grace time, SIGKILL.
    Its record says cause="cancelled". A call with a token that was cancelled before starts nothing.

    Any thread, and a signal handler, may cancel. A call notices within 0.05 seconds.
    """

    __slots__ = ("_is_cancelled", "_parent")

    def __init__(self) -> None:
        self._is_cancelled = False
        self._parent: CancelToken | None = None

    def child(self) -> CancelToken:
        """Return a token that is cancelled together with this one, or by itself."""
        token = CancelToken()
        token._parent = self
        return token

    def cancel(self) -> None:
        """Cancel the calls that have this token, now and later. Doing so twice is no error."""
        self._is_cancelled = True

    @property
    def is_cancelled(self) -> bool:
        """Whether cancel() was called, of this token or of the one that it is a child of."""
        token: CancelToken | None = self
        while token is not None and not token._is_cancelled:
            token = token._parent
        return token is not None

    def __repr__(self) -> str:
        return f"<nsbox.CancelToken{' cancelled' if self.is_cancelled else ''}>"
