"""Calls that coroutines wait for, each in a thread of its own: those that run, and how they end with their object."""

from __future__ import annotations

import os
import threading
from typing import TypeVar

from nsbox._base.display import type_phrase
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._calls.token import CancelToken
from nsbox._handles import waiting

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

T = TypeVar("T")


class AsyncCalls:
    """Runs calls in threads. A cancelled task ends its call first, and close() ends all that run."""

    def __init__(self) -> None:
        self._tokens: set[CancelToken] = set()  # of calls that are running
        self._changed = threading.Condition()
        self._is_closing = False
        self._creator = os.getpid()

    async def _result(self, function: Callable[..., T], options: dict[str, Any]) -> T:
        """Run a call in a thread of its own, and return its record. If the task is cancelled, the call is ended."""
        wish = options.get("cancel")
        if wish is not None and not isinstance(wish, CancelToken):
            raise TypeError(f"cancel is {type_phrase(wish)}, must be a CancelToken")
        token = CancelToken() if wish is None else wish.child()

        def call() -> T:
            try:
                return function(**options | {"cancel": token})
            finally:
                forget()

        def forget() -> None:
            with self._changed:
                self._tokens.discard(token)
                self._changed.notify_all()

        with self._changed:
            if self._is_closing:
                token.cancel()
            self._tokens.add(token)
        return await waiting.in_thread(call, token.cancel, unstarted=forget)

    def _end(self, close: Callable[[], object]) -> None:
        """End calls that are still running, perhaps because their event loop is gone; then close what they ran in."""
        if self._creator != os.getpid():  # the calls belong to the process that this one was forked from
            close()
            return
        with self._changed:
            self._is_closing = True
            for token in self._tokens:
                token.cancel()
            self._changed.wait_for(lambda: not self._tokens)
        close()
