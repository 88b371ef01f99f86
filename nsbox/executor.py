"""SandboxExecutor: concurrent.futures with functions that run contained, each call in a branch of a warm interpreter.

    with nsbox.SandboxExecutor(policy, timeout=5) as executor:
        print(list(executor.map(score, submissions)))

Functions go inside by their source or by the path of their module. Arguments and results are JSON, or what the caller's
codec makes of JSON. Nothing that a sandbox has written is unpickled.
"""

from __future__ import annotations

import contextvars
import os
import threading
import weakref
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from itertools import islice
from types import FunctionType

from nsbox._base.display import type_phrase
from nsbox._base.forks import Alive
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._batches.pool import check_workers
from nsbox._executor.call import Chunk, Codec, call, chunk, outcome
from nsbox._executor.errors import RemoteError as RemoteError
from nsbox._executor.function import function, unwrapped
from nsbox._executor.future import SandboxFuture as SandboxFuture
from nsbox.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import CodeType
    from typing import Any, Unpack

    from nsbox._batches.options import MapOptions
    from nsbox._executor.call import Call
    from nsbox._executor.function import Function
    from nsbox._policy.policy import Policy

__all__ = ["RemoteError", "SandboxExecutor", "SandboxFuture"]

_MOST_STOCK = 64


class SandboxExecutor(Executor):
    """A concurrent.futures.Executor whose functions run in sandboxes, each call in a branch of its own.

    What a call leaves in memory or in /tmp is gone with it. Only files in directories that the policy opens for writing
    stay. In a forked child, the executor starts fresh, without the parent's futures. Threads may share
    it.
    """

    def __init__(
        self,
        policy: Policy | Sandbox,
        *,
        max_workers: int | None = None,
        imports: Sequence[str] = (),
        setup: str = "",
        python: str | os.PathLike[str] | None = None,
        overlay: bool = False,
        codec: tuple[Callable[[Any], Any], Callable[[Any], Any]] | None = None,
        **options: Unpack[MapOptions],
    ) -> None:
        """Store the options; nothing is started before the first call.

        policy: what functions may do, or a Sandbox, which shutdown() leaves open.
        max_workers: how many calls run at the same time, 1 to 256. Default: the number of CPUs that this process may
            use.
        imports, setup, python, overlay: of the warm interpreter, as for Sandbox.python(). `setup` replaces other
            executors' `initializer`. Both it and `imports` are trusted.
        codec: a pair of functions, encode and decode, for values that JSON can't hold. encode(value) returns a value
            of JSON, decode() turns it back. They are called on each argument and on each result, here and inside. They
            go inside as submitted functions do. Your decode() gets what a sandbox has sent. Default: None.
        timeout: seconds that a call may take. Default: None, for no limit.
        grace, args, cwd, env, input, secrets, max_output: of each call, as for Python.run().

        Raises TypeError, ValueError, PolicyError and UnavailableError.
        """
        if max_workers is None:
            max_workers = max(1, min(256, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1))
        self._workers = check_workers(max_workers)
        self._codec = None if codec is None else Codec(codec)
        self._owns = not isinstance(policy, Sandbox)
        self._box = policy if isinstance(policy, Sandbox) else Sandbox(policy, stock=0)
        stock = min(self._workers, _MOST_STOCK)
        self._python = self._box.python(imports=imports, setup=setup, python=python, stock=stock, overlay=overlay)
        self._run = self._python.run_one(options)
        self._functions: weakref.WeakKeyDictionary[FunctionType, tuple[CodeType, Function]] = (
            weakref.WeakKeyDictionary()
        )
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="nsbox-executor")
        self._futures: set[SandboxFuture] = set()
        self._is_shut = False

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> SandboxFuture:
        """Return the future of a call in a sandbox.

        fn: a function that is written with def, without closure or decorators. Only its source goes inside; modules
            that it uses are imported there. Or a path, "package.module:function", of a module that can be imported
            there. Or a functools.partial of either.
        args, kwargs: values that JSON can hold, or that the codec turns into such values. Tuples become lists.

        The future's result is a value of JSON, of at most 1 MiB. Its exception is a RemoteError if the function has
        raised, has been ended or has returned anything else. If no code could run, it is what Python.run() raises.
        cancel() also ends a running call. Raises TypeError and ValueError for a function or an argument that can't go
        inside, and RuntimeError after shutdown().
        """
        made = self._call(fn, args, kwargs)
        future = SandboxFuture()
        with self._lock:
            if self._is_shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._futures.add(future)
            try:
                self._pool.submit(contextvars.copy_context().run, self._work, future, made)
            except BaseException:
                self._futures.discard(future)
                raise
        return future

    def _call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        if isinstance(fn, Chunk):
            of, first, named = unwrapped(fn.of, (), {})
            if named:
                raise TypeError("map() with chunksize= can't pass arguments by name: give functools.partial positions")
            return chunk(self._function(of), [(*first, *one) for one in args[0]], self._codec)
        of, positional, named = unwrapped(fn, args, kwargs)
        return call(self._function(of), positional, named, self._codec)

    def _function(self, given: object) -> Function:
        """Return what goes inside for a function. Reading its source takes longer than a call."""
        if not isinstance(given, FunctionType):
            return function(given)
        code, found = self._functions.get(given, (None, None))
        if found is None or code is not given.__code__:
            found = function(given)
            self._functions[given] = given.__code__, found
        return found

    def _work(self, future: SandboxFuture, made: Call) -> None:
        """Run one call, in a thread of the pool."""
        try:
            if future.set_running_or_notify_cancel():
                future.finish(*self._outcome(future, made))
        finally:
            with self._lock:
                self._futures.discard(future)
                is_last = self._is_shut and not self._futures
            if is_last:
                self._close()

    def _outcome(self, future: SandboxFuture, made: Call) -> tuple[Any, BaseException | None]:
        try:
            record = self._run(0, made.code, made.inputs, future.token)
            future.record = record
            found = outcome(made, record)
            if isinstance(found, RemoteError):
                return None, found
            values = found if self._codec is None else [self._codec.decode(one) for one in found]
            return (values if made.is_chunk else values[0]), None
        except BaseException as error:  # the future raises it
            return None, error

    def map(
        self, fn: Any, *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1, **options: Any
    ) -> Iterator[Any]:
        """Return an iterator of the results of calls, in the order of the arguments.

        fn: as for submit().
        iterables: of its arguments, as for the builtin map().
        timeout: seconds from this call until a result must be there; otherwise TimeoutError, and calls that aren't
            done are cancelled. Default: None.
        chunksize: how many calls share a branch. They see what earlier ones leave, and fail together. Default: 1.
        options: other options of Executor.map() in newer Pythons.

        Raises what submit() raises.
        """
        if isinstance(chunksize, bool) or not isinstance(chunksize, int):
            raise TypeError(f"chunksize is {type_phrase(chunksize)}, must be an int")
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if chunksize == 1:
            return super().map(fn, *iterables, timeout=timeout, **options)
        several: Any = Chunk(fn)  # submit() knows it
        chunks = _chunks(zip(*iterables, strict=False), chunksize)
        return _flat(super().map(several, chunks, timeout=timeout, **options))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the executor once all of its calls are done: its interpreter and, unless it is yours, its Sandbox.

        wait: whether to return only then. Default: True.
        cancel_futures: whether to cancel all calls first: those that wait, and those that run. Default: False.

        Raises KillError if something doesn't end. Calling it again isn't an error.
        """
        with self._lock:
            self._is_shut = True
            waiting = list(self._futures)
        if cancel_futures:
            for future in waiting:
                future.cancel()
        self._pool.shutdown(wait=wait)
        with self._lock:
            is_done = not self._futures
        if is_done:
            self._close()

    def _close(self) -> None:
        self._python.close()
        if self._owns:
            self._box.close()

    def __repr__(self) -> str:
        state = "shut down" if self._is_shut else f"{len(self._futures)} calls"
        return f"<nsbox.SandboxExecutor {state}, {self._workers} workers>"

    def _after_fork(self) -> None:
        """Start fresh in a forked child: the threads and futures are the parent's."""
        was_shut = self._is_shut
        self._begin()
        self._is_shut = was_shut


def _chunks(calls: Iterator[tuple[Any, ...]], size: int) -> Iterator[list[tuple[Any, ...]]]:
    return iter(partial(lambda: list(islice(calls, size))), [])


def _flat(chunks: Iterator[list[Any]]) -> Iterator[Any]:
    for values in chunks:
        yield from values


_all = Alive()
