"""PythonMap: the results of many snippets, a few of which run at the same time, for a loop."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping

from nsbox._base.display import type_phrase
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._batches.pool import Batch, check_workers
from nsbox._batches.progress import Meter, check_progress, length
from nsbox._calls.token import CancelToken
from nsbox._python.call import check_inputs

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

    from nsbox._batches.progress import Wish
    from nsbox._python.result import PythonResult

    Snippet = str | tuple[str, Mapping[str, Any]]
    RunOne = Callable[[int, str, Mapping[str, Any] | None, CancelToken], PythonResult]


def split(item: object, index: int, inputs: Mapping[str, Any] | None) -> tuple[str, Mapping[str, Any] | None]:
    """Return the code of an item, and its inputs."""
    if isinstance(item, str):
        return item, inputs
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], Mapping):
        return item[0], {**(inputs or {}), **(check_inputs(item[1]) or {})}
    kind = type_phrase(item)
    raise TypeError(f"item {index} of codes is {kind}, must be a str, or a tuple of a str and a mapping of inputs")


class Mapped:
    """What PythonMap and AsyncMap have in common. Both end what runs when they are closed or forgotten."""

    _batch: Batch | None = None

    def __init__(
        self,
        run: RunOne,
        codes: object,
        *,
        inputs: Mapping[str, Any] | None,
        workers: int,
        ordered: bool,
        progress: Wish | bool,
        cancel: CancelToken | None = None,
    ) -> None:
        self._inputs = check_inputs(inputs)
        check_progress(progress)

        def run_one(index: int, item: Any, token: CancelToken) -> PythonResult:
            code, variables = item
            return run(index, code, variables, token)

        self._meter = Meter(progress, length(codes))
        self._error: BaseException | None = None  # the iterable's, raised after the results of what came before
        if cancel is not None and not isinstance(cancel, CancelToken):
            raise TypeError(f"cancel is {type_phrase(cancel)}, must be a CancelToken")
        self._batch = Batch(run_one, check_workers(workers), ordered=bool(ordered), cancel=cancel)

    def _put(self, item: object) -> None:
        """Add an item of the caller's. If it isn't a snippet, the map ends after the results of what came before."""
        assert self._batch is not None
        try:
            one = split(item, self._batch.count, self._inputs)
        except (TypeError, ValueError) as error:
            self._fail(error)
        else:
            self._batch.put(one)

    def _fail(self, error: BaseException) -> None:
        """After the results of what came before, raise this error of the iterable's."""
        assert self._batch is not None
        self._error = error
        self._batch.end()

    def _take(self) -> list[PythonResult]:
        """Return the next result in a list; an empty list if it isn't there yet. Raises StopIteration at the end."""
        assert self._batch is not None
        self._meter.add(self._batch.news())
        try:
            return self._batch.take()
        except StopIteration:
            self._meter.close()
            error, self._error = self._error, None
            if error is not None:
                raise error from None
            raise

    def _abandon(self) -> None:
        """Ask everything to end, and don't wait."""
        if self._batch is not None:
            self._batch.cancel()
            self._meter.close()

    def __del__(self, *, _is_late: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._batch is not None and not _is_late():
            self._abandon()


class PythonMap(Mapped, Iterator["PythonResult"]):
    """The results of many snippets: an iterator of PythonResult. `Python.map()` makes it.

        for result in py.map(candidates, workers=2, timeout=5):
            print(result.index, result.cause)

    It reads only a few codes ahead. Closing it, as the end of a `with` block does, ends what runs; so does an error in
    the caller's loop once nothing refers to the iterator any more. One thread uses it at a time.
    """

    def __init__(self, run: RunOne, codes: Iterable[Snippet], **options: Any) -> None:
        if isinstance(codes, str) or not isinstance(codes, Iterable):
            raise TypeError(f"codes is {type_phrase(codes)}, must be an iterable of str")
        super().__init__(run, codes, **options)
        self._codes: Iterator[Snippet] | None = None
        self._iterable: Iterable[Snippet] = codes

    def __iter__(self) -> PythonMap:
        return self

    def __next__(self) -> PythonResult:
        batch = self._batch
        assert batch is not None
        batch.check_creator()
        try:
            while True:
                self._fill(batch)
                found = self._take()
                if found:
                    return found[0]
                batch.await_news()
        except StopIteration:
            raise
        except BaseException:  # also KeyboardInterrupt
            self.close()
            raise

    def _fill(self, batch: Batch) -> None:
        """Read codes ahead."""
        while batch.wants():
            try:
                if self._codes is None:
                    self._codes = iter(self._iterable)
                item = next(self._codes)
            except StopIteration:
                batch.end()
            except Exception as error:
                self._fail(error)
            else:
                self._put(item)

    def close(self) -> None:
        """End what runs, and return when nothing of it is left. Closing twice isn't an error."""
        self._abandon()
        if self._batch is not None:
            self._batch.await_gone()

    def __enter__(self) -> PythonMap:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
