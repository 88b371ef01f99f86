"""Worker: a tool call in a thread of its own, so that the caller can do something else meanwhile."""

from __future__ import annotations

import contextvars
import os
import threading

from nsbox._base.errors import KillError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._calls.failure import clear

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from nsbox._calls.call import Call
    from nsbox._calls.record import ToolResult

    Listener = Callable[[], object]


class Worker:
    """Runs a call in a thread. Its state changes under the lock `changed`; listeners are called after each change.

    When the interpreter ends, the thread stops where it is, and the kernel ends the command.
    """

    def __init__(self, call: Call, on_end: Callable[[Worker], object]) -> None:
        self.call, self._on_end = call, on_end
        self.changed = threading.Condition()
        self._listeners: list[Listener] = []
        self._creator = os.getpid()
        self.has_started = self.has_ended = False
        self.is_begun = False  # the start has succeeded
        self.result: ToolResult | None = None
        self.error: BaseException | None = None
        context = contextvars.copy_context()  # carries confined(), and what audit hooks look at
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="nsbox-call", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        try:
            self._thread.start()
        except BaseException as error:
            self.call.cancel(at_once=True)  # if a signal handler has raised, the thread may run already
            if self._thread not in threading.enumerate():
                self.call.inlet.close()
                self._set(error=error, has_started=True, has_ended=True)
                self._on_end(self)
            raise

    @property
    def is_ours(self) -> bool:
        """Whether it was made in this process, not in the one that this process was forked from."""
        return self._creator == os.getpid()

    def _run(self) -> None:
        result = error = None
        try:
            result = self.call.start()
            self.is_begun = True
            self._set(has_started=True)
            if result is None:
                result = self.call.attend()
        except BaseException as problem:  # it is raised in the caller's thread
            clear(problem)
            error = problem
        self._set(result=result, error=error, has_started=True, has_ended=True)
        self._on_end(self)

    def _set(self, **values: Any) -> None:
        with self.changed:
            vars(self).update(values)
        self.notify()

    def notify(self) -> None:
        """Wake the threads that wait for a change, and call the listeners."""
        with self.changed:
            self.changed.notify_all()
        for listener in tuple(self._listeners):
            listener()

    def listen(self, listener: Listener) -> Listener:
        """Call a function after each change, in any thread; return a function that stops this."""
        self._listeners.append(listener)

        def leave() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return leave

    def await_start(self) -> None:
        """Wait until the command has started; raises the error of the start. An interrupted wait ends the command."""
        try:
            with self.changed:
                while not self.has_started:
                    self.changed.wait()
        except BaseException:
            self.call.cancel(at_once=True)
            raise
        self.check_start()

    def check_start(self) -> None:
        """Raise the error of the start, if there was one."""
        if self.error is not None and not self.is_begun:
            raise self.error

    def await_end(self, timeout: float | None = None) -> bool:
        """Wait for the end, for at most `timeout` seconds; return whether it has come."""
        self.check_creator()
        with self.changed:
            return self.changed.wait_for(lambda: self.has_ended, timeout)

    def check_killed(self) -> None:
        """Raise KillError if something of the command has survived a kill."""
        if isinstance(self.error, KillError):
            raise self.error

    def outcome(self) -> ToolResult:
        """Return the record of a call that has ended; raises the call's error."""
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result

    def check_creator(self) -> None:
        """Raise ValueError in a forked copy of the process that made it: the copy doesn't have the thread."""
        if not self.is_ours:
            raise ValueError("the command belongs to the process that this one was forked from")


class Workers:
    """The calls of one Sandbox, Session, Task or Transaction that run in threads of their own."""

    def __init__(self) -> None:
        self._all: set[Worker] = set()
        self._is_closed = False
        self.lock = threading.RLock()
        self._count = 0

    def number(self) -> int:
        """Return 1, 2, and so on."""
        with self.lock:
            self._count += 1
            return self._count

    def start(self, call: Call) -> Worker:
        """Return a new Worker that has begun; raises ValueError after close()."""
        worker = Worker(call, self._forget)
        with self.lock:
            if self._is_closed:
                call.inlet.close()
                raise ValueError("the Sandbox, session, task or transaction is closed")
            self._all.add(worker)
        worker.start()
        return worker

    def _forget(self, worker: Worker) -> None:
        with self.lock:
            self._all.discard(worker)

    def close(self) -> None:
        """End all calls, and return when nothing of them is left."""
        with self.lock:
            self._is_closed = True
            running = tuple(self._all)
        for worker in running:
            worker.call.cancel()
        for worker in running:
            if worker.is_ours and worker._thread is not threading.current_thread():
                worker.await_end()
