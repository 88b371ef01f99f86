"""Threads of a confined() block: they have its policy, and so has work that the block gives to a pool of threads.

A new thread begins with a context of its own, without the block's policy. So Thread.start() hands the policy on, and
ThreadPoolExecutor.submit() sends it along with the work: the threads of a pool serve many callers, inside and outside.
So does Future.add_done_callback(), whose function is called by the thread that has done the work, after it, and so does
ThreadPoolExecutor() with its initializer, which the pool's threads call when they start: maybe after the block.
OpenTelemetry carries its context in the same way. What stays as it is outside of blocks: threads that run already and
fetch their work by means of their own, and threads that are started without the module threading.
"""

from __future__ import annotations

import functools
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from nsbox._base.errors import NsboxError
from nsbox._popen.blocks import in_force

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsbox._policy.policy import Policy
    from nsbox._spawn.way import Keeper


def follow() -> None:
    """Have threads and pools follow blocks, for the whole process. To be called once."""
    threading.Thread.start = _starting(threading.Thread.start)  # type: ignore[assignment, method-assign]
    ThreadPoolExecutor.__init__ = _making(ThreadPoolExecutor.__init__)  # type: ignore[method-assign]
    ThreadPoolExecutor.submit = _submitting(ThreadPoolExecutor.submit)  # type: ignore[method-assign]
    Future.add_done_callback = _calling_back(Future.add_done_callback)  # type: ignore[method-assign]


def _starting(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    @functools.wraps(start)
    def started(self: threading.Thread) -> None:
        policy = in_force.get()
        if policy is None or self.ident is not None:  # a second start() is an error
            return start(self)
        self.run = functools.partial(_run, self, self.run, policy)  # type: ignore[method-assign]
        return start(self)

    return started


def _run(thread: threading.Thread, run: Callable[[], object], policy: Policy | Keeper) -> None:
    """Run a thread's work with a policy in force, in the thread's own context."""
    in_force.set(policy)
    vars(thread).pop("run", None)  # a circle, which would keep what the thread refers to
    run()


def _making(make: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(make)
    def made(
        self: ThreadPoolExecutor,
        max_workers: Any = None,
        thread_name_prefix: Any = "",
        initializer: Any = None,
        *args: Any,
        **options: Any,
    ) -> None:
        policy = in_force.get()
        if policy is not None and callable(initializer) and _is_of_threads(self):
            initializer = functools.partial(_call, policy, initializer)
        make(self, max_workers, thread_name_prefix, initializer, *args, **options)

    return made


def _submitting(submit: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(submit)
    def submitted(self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        policy = in_force.get()
        if not _is_of_threads(self):
            if policy is not None:
                raise NsboxError(
                    "work would be given to an InterpreterPoolExecutor, outside of the sandbox that nsbox.confined() "
                    "asks for: use a ThreadPoolExecutor"
                )
            return submit(self, fn, *args, **options)
        return submit(self, functools.partial(_call, policy, fn), *args, **options)

    return submitted


def _calling_back(add: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(add)
    def added(self: Future[Any], fn: Callable[[Future[Any]], object]) -> None:
        add(self, functools.partial(_call, in_force.get(), fn))

    return added


def _is_of_threads(executor: ThreadPoolExecutor) -> bool:
    """Return whether an executor's work is done in this interpreter: Python 3.14 has one with interpreters."""
    module = sys.modules.get("concurrent.futures.interpreter")
    return module is None or not isinstance(executor, module.InterpreterPoolExecutor)


def _call(policy: Policy | Keeper | None, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
    """Do work with the policy of the code that has submitted it; None: it isn't contained."""
    token = in_force.set(policy)
    try:
        return fn(*args, **options)
    finally:
        in_force.reset(token)
