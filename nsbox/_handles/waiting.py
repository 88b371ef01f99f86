"""Waiting in coroutines for what other threads do: under asyncio, trio, and anyio on either of them.

A cancelled task doesn't leave its command behind: the command is ended first. Only then does the cancellation go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
import threading

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._calls.failure import clear

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    T = TypeVar("T")
    Listener = Callable[[], object]


def _trio() -> Any:
    """Return the module trio if the running task is one of trio's; otherwise None."""
    trio = sys.modules.get("trio")
    if trio is not None:
        with contextlib.suppress(
            RuntimeError, AttributeError
        ):  # this is no task of trio's, or another thread is importing it
            trio.lowlevel.current_task()
            return trio
    return None


class _Shield(contextlib.ExitStack):
    """Where anyio is in use, keeps it from cancelling the rest of a task again and again."""

    def __enter__(self) -> _Shield:
        scope = getattr(sys.modules.get("anyio"), "CancelScope", None)  # None while another thread imports it
        if scope is not None:
            self.enter_context(scope(shield=True))
        return self


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def _asyncio_until(
    is_ready: Callable[[], bool], listen: Callable[[Listener], Listener], cancel: Listener
) -> None:
    loop, error = asyncio.get_running_loop(), None
    with contextlib.ExitStack() as stack:
        while not is_ready():
            waiter = loop.create_future()

            def wake(waiter: asyncio.Future[None] = waiter) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(_settle, waiter)

            leave = listen(wake)
            try:
                if not is_ready():
                    await waiter
            except asyncio.CancelledError as problem:
                if error is None:
                    error = problem
                    cancel()
                    stack.enter_context(_Shield())
            except BaseException:  # GeneratorExit: the loop is gone, and nobody waits any more
                stack.pop_all()  # a shield can't end without a loop
                cancel()
                raise
            finally:
                leave()
    if error is not None:
        raise error


async def _trio_until(
    trio: Any, is_ready: Callable[[], bool], listen: Callable[[Listener], Listener], cancel: Listener
) -> None:
    token, raise_cancel = trio.lowlevel.current_trio_token(), None
    while not is_ready():
        task, is_asleep = trio.lowlevel.current_task(), [True]

        def wake_task(task: Any = task, is_asleep: list[bool] = is_asleep) -> None:
            if is_asleep.pop() if is_asleep else False:
                trio.lowlevel.reschedule(task)

        def wake(wake_task: Any = wake_task) -> None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(wake_task)

        def abort(function: Any) -> Any:
            nonlocal raise_cancel
            raise_cancel = function
            cancel()
            return trio.lowlevel.Abort.FAILED  # it sleeps on, until nothing of the command is left

        leave = listen(wake)
        try:
            if is_ready():
                is_asleep.clear()
                break
            await trio.lowlevel.wait_task_rescheduled(abort)
        finally:
            leave()
    if raise_cancel is not None:
        raise_cancel()


async def until(is_ready: Callable[[], bool], listen: Callable[[Listener], Listener], cancel: Listener) -> None:
    """Wait until something is ready.

    is_ready: returns whether it is ready; called in any thread.
    listen: has a function called after each change, in any thread; returns a function that stops this.
    cancel: called when the task is cancelled. The wait then goes on to its end, and raises the cancellation.
    """
    trio = _trio()
    if trio is not None:
        await _trio_until(trio, is_ready, listen, cancel)
    else:
        await _asyncio_until(is_ready, listen, cancel)


async def turn(is_ready: Callable[[], bool], listen: Callable[[Listener], Listener], cancel: Listener) -> None:
    """Let other tasks run. If the task is cancelled, call cancel() and wait, as until() does."""
    trio = _trio()
    try:
        await (asyncio.sleep(0) if trio is None else trio.lowlevel.checkpoint())
    except BaseException as error:
        cancel()
        if isinstance(error, asyncio.CancelledError if trio is None else trio.Cancelled):
            with _Shield() if trio is None else trio.CancelScope(shield=True):
                await until(is_ready, listen, bool)
        raise


async def in_thread(
    function: Callable[[], T],
    cancel: Listener = bool,
    *,
    unstarted: Listener = bool,
    undo: Callable[[T], object] | None = None,
) -> T:
    """Run a function in a thread of its own, and return what it returns. For asyncio, trio, and anyio on either.

    If the task is cancelled, cancel() is called. The wait then goes on until the function has returned. Only then is
    the cancellation raised. So a cancelled task leaves no command behind.

    function: what to run, without arguments. It sees the task's context variables.
    cancel: asks the function to end, such as CancelToken.cancel. Default: bool, which does nothing.
    unstarted: called if no thread can be started. Default: bool.
    undo: if the task is cancelled meanwhile, called in that thread with what the function has returned. Default: None.

    Raises what the function raises, and RuntimeError if no thread can be started.
    """
    outcome: list[T] = []
    cancelled: list[bool] = []
    errors: list[BaseException] = []
    listeners: list[Listener] = []
    has_ended = threading.Event()

    def work() -> None:
        try:
            outcome.append(function())
            if cancelled and undo is not None:
                undo(outcome.pop())
        except BaseException as error:  # it is raised in the task
            clear(error)
            errors.append(error)
        has_ended.set()
        for listener in tuple(listeners):
            listener()

    def listen(listener: Listener) -> Listener:
        listeners.append(listener)
        return lambda: listeners.remove(listener)

    def stop() -> None:
        cancelled.append(True)
        cancel()

    _begin(work, cancel, unstarted)
    try:
        await until(has_ended.is_set, listen, stop)
    except BaseException as error:
        if errors:
            error.__cause__ = errors[0]  # such as a KillError, which says that something is left
        if outcome and undo is not None:  # it came at the last moment
            threading.Thread(target=undo, args=(outcome[0],), daemon=True).start()
        raise
    if errors:
        raise errors[0]
    return outcome[0]


def _begin(work: Callable[[], None], cancel: Listener, unstarted: Listener) -> None:
    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), name="nsbox-call", daemon=True)
    try:
        thread.start()
    except BaseException:
        if thread.ident is None:
            unstarted()
        else:
            cancel()
        raise
