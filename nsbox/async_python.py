"""AsyncPython: Python code, contained, for coroutines, under asyncio, trio, and anyio on either of them.

    async with nsbox.AsyncSandbox(policy) as box:
        py = box.python(imports=["json"])
        result = await py.run("print(6 * 7)", timeout=5)
        async for result in py.map(candidates, workers=2, timeout=5):
            print(result.index, result.cause)

If a task is cancelled, its run is ended first, and a kernel's call is interrupted. Only then does the cancellation go
on.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable
from functools import partial

from nsbox._base.display import type_phrase
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._batches.map import Mapped
from nsbox._handles import waiting
from nsbox._handles.async_calls import AsyncCalls, Beginning

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Any, Unpack

    from nsbox._batches.map import RunOne, Snippet
    from nsbox._batches.options import MapOptions
    from nsbox._batches.progress import Wish
    from nsbox._calls.token import CancelToken
    from nsbox._kept.tool_calls import ToolOptions
    from nsbox._kernels.kernel import KernelOptions, PythonKernel
    from nsbox._python.result import PythonResult
    from nsbox.python import Python
    from nsbox.secrets import Secret, Store

__all__ = ["AsyncKernel", "AsyncMap", "AsyncPython"]


class AsyncKernel(AsyncCalls):
    """A kernel for coroutines. AsyncPython.kernel() makes it; see PythonKernel.

    kernel: the PythonKernel itself, for methods that don't wait.
    """

    def __init__(self, kernel: PythonKernel) -> None:
        super().__init__(kernel)
        self.kernel = kernel

    async def run(self, code: str, *, check: bool = False, **options: Unpack[KernelOptions]) -> PythonResult:
        """Run code in the kernel, as PythonKernel.run(). on_output is called in a thread.

        If the task is cancelled, the code is interrupted; if it goes on for `grace` seconds, the kernel is killed.
        """
        return await self._result(partial(self.kernel.run, code), {**options, "check": check})

    def interrupt(self) -> bool:
        """Raise KeyboardInterrupt in the code that runs, as PythonKernel.interrupt()."""
        return self.kernel.interrupt()

    async def fork(self, n: int = 1) -> list[AsyncKernel]:
        """Return kernels that begin with the state of this one, as PythonKernel.fork()."""

        def undo(made: list[PythonKernel]) -> None:
            for kernel in made:
                kernel.close()

        return [AsyncKernel(kernel) for kernel in await waiting.in_thread(partial(self.kernel.fork, n), undo=undo)]

    async def reset(self) -> None:
        """Begin again, without the variables, as PythonKernel.reset()."""
        await waiting.in_thread(self.kernel.reset)

    @property
    def ended(self) -> str | None:
        """How it has ended, as text; None while it goes on."""
        return self.kernel.ended

    async def __aenter__(self) -> AsyncKernel:
        return self

    def __repr__(self) -> str:
        return f"<nsbox.AsyncKernel of {self.kernel!r}>"


class AsyncMap(Mapped, AsyncIterator["PythonResult"]):
    """The results of many snippets, for `async for`. AsyncPython.map() makes it; see PythonMap.

    What runs ends with the loop: when the task is cancelled while it waits for a result, at the end of an `async with`
    block, and when nothing refers to the iterator any more.
    """

    def __init__(self, run: RunOne, codes: Iterable[Snippet] | AsyncIterable[Snippet], **options: Any) -> None:
        if isinstance(codes, str) or not isinstance(codes, Iterable | AsyncIterable):
            raise TypeError(f"codes is {type_phrase(codes)}, must be an iterable of str, or an async one")
        super().__init__(run, codes, **options)
        self._iterable = codes
        self._codes: AsyncIterator[Snippet] | None = None

    def __aiter__(self) -> AsyncMap:
        return self

    async def __anext__(self) -> PythonResult:
        batch = self._batch
        assert batch is not None
        batch.check_creator()
        try:
            while True:
                await self._fill()
                found = self._take()
                if found:
                    return found[0]
                await waiting.until(self._has_news, batch.listen, self._abandon)
        except StopIteration:
            raise StopAsyncIteration from None
        except BaseException:
            self._abandon()
            raise

    def _has_news(self) -> bool:
        """Return whether there is something to take; once it was abandoned, whether nothing runs any more."""
        batch = self._batch
        return batch is None or (batch.is_gone if batch.is_stopped else batch.has_news() or batch.has_run)

    async def _fill(self) -> None:
        """Read codes ahead."""
        batch = self._batch
        assert batch is not None
        while batch.wants():
            try:
                if self._codes is None:
                    codes = self._iterable
                    self._codes = aiter(codes) if isinstance(codes, AsyncIterable) else _Each(codes)
                item = await anext(self._codes)
            except StopAsyncIteration:
                batch.end()
            except Exception as error:
                self._fail(error)
            else:
                self._put(item)

    async def aclose(self) -> None:
        """End what runs, and return when nothing of it is left. Closing twice isn't an error."""
        self._abandon()
        batch = self._batch
        if batch is not None and batch.is_ours:
            await waiting.until(lambda: batch.is_gone, batch.listen, bool)

    async def __aenter__(self) -> AsyncMap:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


class _Each(AsyncIterator["Snippet"]):
    """An iterable, for `async for`. No async generator: those have to be closed, and a map may be dropped."""

    def __init__(self, codes: Iterable[Snippet]) -> None:
        self._codes = iter(codes)

    async def __anext__(self) -> Snippet:
        for code in self._codes:
            return code
        raise StopAsyncIteration


class AsyncPython(AsyncCalls):
    """Python code for coroutines. AsyncSandbox.python() makes it; see Python.

    python: the Python itself, for methods that don't wait.
    """

    def __init__(self, python: Python) -> None:
        super().__init__(python)
        self.python = python

    async def start(self) -> AsyncPython:
        """Return this object once the interpreter is warm, as Python.start()."""
        await waiting.in_thread(self.python.start)
        return self

    async def run(
        self,
        code: str,
        *,
        inputs: Mapping[str, object] | None = None,
        args: Sequence[str] = (),
        check: bool = False,
        **options: Unpack[ToolOptions],
    ) -> PythonResult:
        """Run code in a branch of its own, as Python.run(). on_output is called in a thread."""
        more = {**options, "inputs": inputs, "args": args, "check": check}
        return await self._result(partial(self.python.run, code), more)

    def kernel(
        self,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Store | Mapping[str, Secret | str] | None = None,
        functions: Mapping[str, Callable[..., Any]] | None = None,
    ) -> Beginning[AsyncKernel]:
        """Begin a kernel: `async with py.kernel() as k`, or `k = await py.kernel()`. See Python.kernel().

        functions: as for Python.kernel(). Each is called in the thread of the run that calls it.
        """
        make = partial(self.python.kernel, cwd=cwd, env=env, secrets=secrets, functions=functions)
        return Beginning(make, AsyncKernel, lambda kernel: kernel.close())

    def map(
        self,
        codes: Iterable[Snippet] | AsyncIterable[Snippet],
        *,
        inputs: Mapping[str, object] | None = None,
        workers: int = 2,
        ordered: bool = True,
        progress: Wish | bool = None,
        cancel: CancelToken | None = None,
        **options: Unpack[MapOptions],
    ) -> AsyncMap:
        """Return an async iterator of the results of many snippets, as Python.map(). codes may be an async iterable."""
        chosen = {"inputs": inputs, "workers": workers, "ordered": ordered, "progress": progress}
        return AsyncMap(self.python.run_one(options), codes, cancel=cancel, **chosen)

    async def __aenter__(self) -> AsyncPython:
        return await self.start()

    def __repr__(self) -> str:
        return f"<nsbox.AsyncPython of {self.python!r}>"
