"""Batch: many snippets, a few at a time, each in a thread of a small pool. Results wait until the caller fetches them.

Nothing here starts a process: what runs an item is a function. The caller's iterable is never touched by the pool's
threads: the face puts items in, in the thread or task that wants results, and at most a few more than the pool needs.
So an endless iterable costs no memory, and its errors arise where the caller can handle them.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections import deque

from nsbox._base.display import type_phrase
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._calls.failure import clear
from nsbox._calls.token import CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Listener = Callable[[], object]
    Run = Callable[[int, Any, CancelToken], Any]

_AHEAD = 4  # items for each worker that are waiting, running, or finished and not fetched
MOST_WORKERS = 256


def check_workers(workers: object) -> int:
    """Return how many snippets run at the same time; raises TypeError and ValueError."""
    if isinstance(workers, bool) or not isinstance(workers, int):
        raise TypeError(f"workers is {type_phrase(workers)}, must be an int")
    if not 1 <= workers <= MOST_WORKERS:
        raise ValueError(f"workers is {workers}, must be from 1 to {MOST_WORKERS}")
    return workers


class Batch:
    """Runs items, and holds their results until they are fetched.

    run: called with the index of an item, the item, and a token that asks for an early end. It returns the result.
    workers: how many items run at the same time.
    cancel: a token of the caller's, which ends what runs.
    ordered: whether take() returns results in the order of the items. Otherwise, in the order in which they finish.

    One thread or task puts and takes; any thread may stop().
    """

    def __init__(self, run: Run, workers: int, *, ordered: bool, cancel: CancelToken | None = None) -> None:
        self._run, self._workers, self._ordered = run, workers, ordered
        self._token = CancelToken() if cancel is None else cancel.child()
        self._todo: deque[tuple[int, Any]] = deque()
        self._finished: dict[int, tuple[Any, BaseException | None]] = {}  # in the order in which they finished
        self._threads: set[threading.Thread] = set()
        self._idle = 0  # threads that wait for an item
        self._next = 0  # index of the next item to put
        self._taken = 0  # how many results were fetched
        self._news: list[Any] = []  # what has run since news() was called: results, and None for an error
        self._has_ended = self._is_stopped = False
        self._changed = threading.Condition()
        self._listeners: list[Listener] = []
        self._creator = os.getpid()
        self._context = contextvars.copy_context()  # carries confined(), and what audit hooks look at

    # ---- the caller's side

    @property
    def count(self) -> int:
        """How many items were put."""
        return self._next

    @property
    def is_ours(self) -> bool:
        """Whether it was made in this process, not in the one that this process was forked from."""
        return self._creator == os.getpid()

    def check_creator(self) -> None:
        """Raise ValueError in a forked copy of the process that made it: the copy doesn't have the threads."""
        if not self.is_ours:
            raise ValueError("the map belongs to the process that this one was forked from")

    def wants(self) -> bool:
        """Return whether there is room for another item. A token of the caller's that was cancelled is the end."""
        if self._token.is_cancelled and not self._has_ended:
            self.end()
        return not self._has_ended and self._next - self._taken < self._workers * _AHEAD

    def put(self, item: Any) -> None:
        """Add an item; a thread begins with it as soon as one is free."""
        with self._changed:
            if self._is_stopped:
                return
            self._todo.append((self._next, item))
            self._next += 1
            if self._idle >= len(self._todo):
                self._changed.notify_all()
                return
            if len(self._threads) >= self._workers:
                return
            context = self._context.copy()
            thread = threading.Thread(target=context.run, args=(self._work,), name="nsbox-map", daemon=True)
            self._threads.add(thread)
        try:
            thread.start()
        except BaseException:
            with self._changed:
                if thread.ident is None:
                    self._threads.discard(thread)
            raise

    def end(self) -> None:
        """Say that there are no more items."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def take(self) -> list[Any]:
        """Return the next result in a list; an empty list if it isn't there yet.

        Raises StopIteration once all results were fetched, and an item's error in the place of its result.
        """
        with self._changed:
            index = self._ready()
            if index is None:
                if self._is_stopped or (self._has_ended and self._taken == self._next):
                    raise StopIteration
                return []
            result, error = self._finished.pop(index)
            self._taken += 1
        if error is not None:
            raise error
        return [result]

    def _ready(self) -> int | None:
        if self._ordered:
            return self._taken if self._taken in self._finished else None
        return next(iter(self._finished), None)

    def has_news(self) -> bool:
        """Return whether take() has something to return or to raise."""
        is_over = self._is_stopped or (self._has_ended and self._taken == self._next)
        return is_over or self._ready() is not None

    def await_news(self) -> None:
        """Wait until take() or news() has something."""
        with self._changed:
            self._changed.wait_for(lambda: self.has_news() or self._news)

    def news(self) -> list[Any]:
        """Return what has run since the last time, in the order in which it finished: results, and None for an error.

        At most as many as wants() allows wait there.
        """
        with self._changed:
            news, self._news = self._news, []
        return news

    def listen(self, listener: Listener) -> Listener:
        """Call a function after each change, in any thread; return a function that stops this."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def cancel(self) -> None:
        """Ask everything to end, and don't wait. Results that weren't fetched are dropped."""
        if not self.is_ours:
            return
        self._token.cancel()
        with self._changed:
            self._is_stopped = self._has_ended = True
            self._todo.clear()
            self._finished.clear()
            self._news.clear()
            self._changed.notify_all()
        self._tell()

    @property
    def is_stopped(self) -> bool:
        """Whether cancel() was called."""
        return self._is_stopped

    @property
    def has_run(self) -> bool:
        """Whether news() has something."""
        return bool(self._news)

    @property
    def is_gone(self) -> bool:
        """Whether nothing runs any more."""
        return not self._threads

    def await_gone(self) -> None:
        """Wait until nothing runs any more."""
        if self.is_ours:
            with self._changed:
                self._changed.wait_for(lambda: self.is_gone)

    # ---- the threads' side

    def _work(self) -> None:
        """Run items until there are none."""
        try:
            while (entry := self._fetch()) is not None:
                self._finish(entry[0], *self._outcome(*entry))
        finally:
            with self._changed:
                self._threads.discard(threading.current_thread())
                self._changed.notify_all()
            self._tell()

    def _fetch(self) -> tuple[int, Any] | None:
        """Return the next item, once there is one; None if none will come."""
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._todo or self._has_ended)
            self._idle -= 1
            return self._todo.popleft() if self._todo else None

    def _outcome(self, index: int, item: Any) -> tuple[Any, BaseException | None]:
        try:
            return self._run(index, item, self._token), None
        except BaseException as error:  # it is raised by take()
            clear(error)
            return None, error

    def _finish(self, index: int, result: Any, error: BaseException | None) -> None:
        with self._changed:
            if not self._is_stopped:
                self._news.append(result)
                self._finished[index] = (result, error)
            self._changed.notify_all()
        self._tell()

    def _tell(self) -> None:
        for listener in tuple(self._listeners):
            listener()
