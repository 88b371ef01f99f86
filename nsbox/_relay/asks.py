"""on_connect: a function of the user decides about connections that a network list doesn't mention.

Each question gets one verdict: the function's, or no. The function is called in daemon threads, which end with the
interpreter, and don't exist in a forked child. A thread ends as soon as there is nothing left to ask.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque

from nsbox._base.display import type_phrase
from nsbox._base.forks import Alive
from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable
    from typing import Any, Literal

    from nsbox._network.events import NetworkRequest

    Answer = bool | Literal["always", "never"]
    OnConnect = Callable[[NetworkRequest], Answer | Awaitable[Answer]]
    Key = tuple[str, int, str]

MOST = 8  # questions at once
_MOST_KEPT = 10_000  # destinations that are refused unasked: a command can make up names for ever
PATIENCE = 120.0  # seconds, after which the answer is no; the relay waits as long


class _Ask:
    """One question. Only its first answer counts."""

    def __init__(self, request: NetworkRequest, number: int, send: Callable[[int, bool], object], end: float) -> None:
        self.request, self.end = request, end
        self.key: Key = (request.name or request.address, request.port, request.protocol)
        self._number, self._send = number, send
        self._is_open, self._lock = True, threading.RLock()  # as Answers' lock

    @property
    def is_open(self) -> bool:
        return self._is_open

    def forget(self) -> None:
        """Leave the answer to the parent, in a forked child. One of the parent's threads may have held the lock."""
        self._is_open, self._lock = False, threading.RLock()

    def answer(self, allow: bool) -> None:
        with self._lock:
            was_open, self._is_open = self._is_open, False
        if was_open:
            try:
                self._send(self._number, allow)
            except OSError:  # the relay has ended, and with it the connection that was asked about
                pass


class Answers:
    """The decisions of an on_connect, for one Sandbox object and all sandboxes that it starts.

    on_connect gets a NetworkRequest. It returns True or False for the one sandbox that asks, or "always" or "never" for
    all sandboxes of this object from then on. It may also return an awaitable of these. That is awaited in the event
    loop that was running when this object was made; if there was none, by asyncio.run() in a thread. Any other value,
    and any exception, means no, and goes to threading.excepthook. Two questions about the same destination are asked
    one after the other, since the first answer may hold for all.
    """

    def __init__(self, on_connect: OnConnect, *, patience: float = PATIENCE, most: int = MOST) -> None:
        if not callable(on_connect):
            raise TypeError(f"on_connect is {type_phrase(on_connect)}, must be a function")
        self._on_connect, self._patience, self._most = on_connect, patience, most
        self._loop = _running_loop()
        self._kept: dict[Key, bool] = {}  # the answers "always" and "never"
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        # Reentrant: a question keeps its relay alive, so a thread that drops its last one, perhaps while it holds the
        # lock, collects the relay too. That closes this object.
        self._changed = threading.Condition(threading.RLock())
        self._queue: deque[_Ask] = deque()
        self._asked: list[_Ask] = []  # of the threads
        self._n_threads, self._has_watch, self._is_closed = 0, False, False

    def ask(self, request: NetworkRequest, number: int, send_verdict: Callable[[int, bool], object]) -> None:
        """Arrange for send_verdict(number, allow) to be called, at once or in a thread. Never blocks, never raises."""
        ask = _Ask(request, number, send_verdict, time.monotonic() + self._patience)
        with self._changed:
            verdict = self._kept.get(ask.key, False if self._is_closed else None)
            if verdict is None:
                self._queue.append(ask)
                try:
                    self._call_threads()
                except RuntimeError:  # no thread can be started: a limit is reached, or the interpreter is ending
                    if not self._n_threads or not self._has_watch:
                        if ask in self._queue:
                            self._queue.remove(ask)
                        verdict = False
        if verdict is not None:
            ask.answer(verdict)

    def _call_threads(self) -> None:
        """Start a thread to ask what can be asked now, and one that watches the time. The lock is held."""
        if not self._has_watch:
            _start(self._watch, "nsbox-asks")
            self._has_watch = True
        if self._n_threads < self._most:
            _start(self._work, "nsbox-ask")
            self._n_threads += 1

    def _next(self) -> _Ask | None:
        """Take a question unless another thread is asking the same one; None if there is none."""
        with self._changed:
            busy = {ask.key for ask in self._asked}
            for ask in list(self._queue):
                if ask.key not in busy:
                    self._queue.remove(ask)
                    self._asked.append(ask)
                    return ask
            self._n_threads -= 1
            return None

    def _work(self) -> None:
        while (ask := self._next()) is not None:
            try:
                self._decide(ask)
            finally:
                with self._changed:
                    is_parents = ask not in self._asked  # on_connect has forked, and this is the child
                    if not is_parents:
                        self._asked.remove(ask)
                        self._changed.notify_all()
            if is_parents:
                return

    def _decide(self, ask: _Ask) -> None:
        if ask.key in self._kept:
            ask.answer(self._kept[ask.key])
        if not ask.is_open:  # too late to ask
            return
        try:
            answer: Any = self._on_connect(ask.request)
            if hasattr(answer, "__await__"):
                answer = self._awaited(answer, ask.end)
            is_kept = isinstance(answer, str) and answer in ("always", "never")
            if not isinstance(answer, bool) and not is_kept:
                what = f"{answer!r:.100} ({type(answer).__name__})"
                raise TypeError(
                    f"on_connect returned {what} for {ask.request}, must be True, False, 'always' or 'never'"
                )
        except BaseException as error:  # SystemExit too: the thread is ours, and the connection waits
            ask.answer(False)
            report(error)
            return
        allow = answer is True or answer == "always"
        if is_kept and (allow or len(self._kept) < _MOST_KEPT):
            self._kept[ask.key] = allow
        ask.answer(allow)

    def _awaited(self, answer: Awaitable[Answer], end: float) -> object:
        """Wait for an awaitable's answer, in the event loop if there is one, until the time is up."""
        import asyncio

        async def wait() -> Answer:
            return await answer

        async def wait_until(seconds: float) -> Answer:
            return await asyncio.wait_for(answer, seconds)

        loop = self._loop
        if loop is None or loop.is_closed():
            return asyncio.run(wait_until(max(0.001, end - time.monotonic())))
        coroutine = answer if asyncio.iscoroutine(answer) else wait()
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except RuntimeError:  # it has been closed just now
            coroutine.close()
            raise
        try:
            return future.result(max(0.001, end - time.monotonic()))
        except BaseException:
            if future.cancelled():  # the loop ends
                return False
            future.cancel()  # the loop is stuck, or the coroutine takes too long
            raise

    def _watch(self) -> None:
        """Refuse questions that have waited too long; end when none is waiting."""
        while True:
            with self._changed:
                waiting = [ask for ask in (*self._asked, *self._queue) if ask.is_open]
                if not waiting:
                    self._has_watch = False
                    return
                now = time.monotonic()
                late = [ask for ask in waiting if ask.end <= now]
                for ask in late:
                    if ask in self._queue:
                        self._queue.remove(ask)
                if not late:
                    until = min(ask.end for ask in waiting)
                    waiting.clear()  # so that this thread doesn't keep their relay alive
                    self._changed.wait(until - now)
            for ask in late:
                ask.answer(False)

    def close(self) -> None:
        """Refuse what is waiting, and whatever is asked from now on. Doesn't wait for a function that is running."""
        with self._changed:
            self._is_closed = True
            waiting = [*self._asked, *self._queue]
            self._queue.clear()
            self._changed.notify_all()
        for ask in waiting:
            ask.answer(False)

    def _after_fork(self) -> None:
        """In a forked child, leave all questions to the parent, and use fresh locks: its threads may have held ours."""
        for ask in (*self._asked, *self._queue):
            ask.forget()
        self._loop = None  # the parent's
        self._begin()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread. Without asyncio there is none."""
    loaded: Any = sys.modules.get("asyncio")
    return None if loaded is None else loaded._get_running_loop()


def _start(call: Callable[[], None], name: str) -> None:
    threading.Thread(target=call, name=name, daemon=True).start()


def report(error: BaseException) -> None:
    """Report an exception of a user's function that a thread of nsbox called, as threading does."""
    try:
        hook = threading.excepthook
        hook(threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread())))
    except Exception as worse:  # the hook is the user's too
        sys.excepthook(type(worse), worse, worse.__traceback__)


_all = Alive()
