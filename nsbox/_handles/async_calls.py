"""Objects for coroutines: the calls of each that are running, how they end with it, and how its making is awaited."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from nsbox._base.display import type_phrase
from nsbox._calls.token import CancelToken
from nsbox._handles import waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from types import TracebackType
    from typing import Any

T = TypeVar("T")
C = TypeVar("C", bound="AsyncCalls")


class Closable(Protocol):
    """What runs the calls, and has a close() that waits."""

    def close(self) -> None: ...


class AsyncCalls:
    """Runs calls in threads. A cancelled task ends its call first, and close() ends all that run."""

    def __init__(self, owner: Closable) -> None:
        self._owner = owner
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

    async def close(self) -> None:
        """End the calls, streams and jobs that run in it, then what they ran in; return when nothing of it is left."""
        await waiting.in_thread(self._end)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _end(self) -> None:
        """End calls that are still running, perhaps because their event loop is gone; then close what they ran in."""
        if self._creator != os.getpid():  # the calls belong to the process that this one was forked from
            self._owner.close()
            return
        with self._changed:
            self._is_closing = True
            for token in self._tokens:
                token.cancel()
            self._changed.wait_for(lambda: not self._tokens)
        self._owner.close()


class Beginning(Generic[C]):
    """A session, task or kernel that begins: `await` it, or use it in `async with`, which closes it at the end."""

    def __init__(self, make: Callable[[], T], kind: Callable[[T], C], undo: Callable[[T], object]) -> None:
        """Hold what is to be made.

        make: makes the object below, and waits.
        kind: the class for coroutines.
        undo: closes what make() returned if the task was cancelled meanwhile.
        """

        async def begin() -> C:
            return kind(await waiting.in_thread(make, undo=undo))

        self._begin: Callable[[], Coroutine[Any, Any, C]] = begin
        self._made: C

    def __await__(self) -> Generator[Any, Any, C]:
        return self._begin().__await__()

    async def __aenter__(self) -> C:
        self._made = await self._begin()
        return self._made

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._made.close()
