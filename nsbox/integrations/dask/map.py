"""submit and map: code for the workers of a cluster, and the records that come back."""

from __future__ import annotations

import sys
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distributed import KilledWorker, as_completed

from nsbox._base.display import type_phrase
from nsbox._batches.map import split
from nsbox._batches.progress import Meter, check_progress, length
from nsbox._python.call import check_code, check_inputs
from nsbox.integrations.dask.batch import Done, gone, refused, run_batch, run_single
from nsbox.integrations.dask.ledger import begun
from nsbox.integrations.dask.plugin import NAME

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Unpack

    from distributed import Client, Future

    from nsbox._batches.map import Snippet
    from nsbox._batches.options import SnippetOptions
    from nsbox._batches.progress import Wish
    from nsbox.integrations.dask.result import DaskResult


_OPTIONS = ("timeout", "grace", "args", "cwd", "env", "input", "max_output")
_SECONDS = 0.5  # of work in a batch: Dask's own share is some milliseconds
_FIRST, _MOST = 4, 1000  # snippets in a batch
_AHEAD = 3  # batches for each thread: one runs, one waits there, one is on its way
_WAITING = 8  # batches for each thread that may wait for the one whose turn it is


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    for name in options:
        if name not in _OPTIONS:
            raise TypeError(f"unexpected option {name!r}, must be one of {', '.join(_OPTIONS)}")
    return dict(options)


def submit(
    client: Client,
    code: str,
    *,
    inputs: Mapping[str, object] | None = None,
    rerun: bool = True,
    plugin: str = NAME,
    dask: Mapping[str, Any] | None = None,
    **options: Unpack[SnippetOptions],
) -> Future:
    """Run code on a worker; return Dask's Future of a DaskResult. Cancelling it ends the code.

    client: a Client of Dask's, whose workers have a SandboxPlugin.
    code, inputs: as for nsbox.Python.run().
    rerun: whether to run the code again if a worker is lost after it began. False: the record's cause is "unknown".
    plugin: the name of the SandboxPlugin.
    dask: options of Client.submit(): resources, workers, priority and others. Default: None.
    options: timeout, grace, args, cwd, env, input and max_output, as for nsbox.Python.run().

    Code that fails raises nothing: the record says so. The future raises what nsbox.Python.run() raises, or the
    UnavailableError of the worker's sandbox. If Dask gives up, it raises Dask's KilledWorker.
    """
    task = (check_code(code), check_inputs(inputs), plugin, bool(rerun), _checked(options))
    chosen = {"key": f"nsbox-run-{uuid.uuid4().hex}", **(dask or {})}
    return client.submit(run_single, *task, **{**chosen, "pure": False})


def map(
    client: Client,
    codes: Iterable[Snippet],
    *,
    inputs: Mapping[str, object] | None = None,
    batch: int | None = None,
    ordered: bool = True,
    progress: Wish | bool = None,
    rerun: bool = True,
    plugin: str = NAME,
    dask: Mapping[str, Any] | None = None,
    **options: Unpack[SnippetOptions],
) -> DaskMap:
    """Run many snippets on all workers of a cluster; return an iterator of a DaskResult for each.

    Each result's `index` says which snippet it belongs to. If a worker is lost, its batches run again elsewhere, and
    `attempt` and `lost` of their records say so. Batches that no worker had begun aren't marked.

    client: a Client of Dask's (not an asynchronous one), whose workers have a SandboxPlugin.
    codes: an iterable of str, or of tuples: a str, and a mapping of inputs for this one. It may be endless: it is read
        only some batches ahead.
    inputs: variables for all snippets. Default: None.
    batch: how many snippets make up one task of Dask's, from 1 to 1000. Default: None, for as many as run in 0.5 s.
    ordered: whether results come in the order of the codes; otherwise as batches are completed. Default: True.
    progress: True for a line on the terminal, or a function, as for nsbox.Python.map(). Default: None.
    rerun: whether to run a batch again if its worker is lost after it began. False: the records of its snippets have
        the cause "unknown", so nothing runs twice.
    plugin, dask, options: as for submit().

    Closing or dropping the iterator cancels the tasks and ends what runs; a `with` block closes it. Raises TypeError
    and ValueError. During iteration, it raises what the future of submit() raises, except KilledWorker: then records
    have the cause "unknown".
    """
    chosen = {"plugin": plugin, "rerun": bool(rerun), "options": _checked(options)}
    return DaskMap(client, codes, check_inputs(inputs), batch, bool(ordered), progress, chosen, dict(dask or {}))


@dataclass(frozen=True)
class _Sent:
    """A batch that was sent. tries: how often Dask was asked for it."""

    first: int
    items: list[Any]
    future: Any
    tries: int = 1


class DaskMap(Iterator["DaskResult"]):
    """The results of many snippets: an iterator of DaskResult. `map()` makes it. One thread uses it at a time."""

    def __init__(
        self,
        client: Client,
        codes: Iterable[Snippet],
        inputs: dict[str, object] | None,
        batch: int | None,
        is_ordered: bool,
        progress: Wish | bool,
        chosen: dict[str, Any],
        dask: dict[str, Any],
    ) -> None:
        """Store the options; map() describes them."""
        if isinstance(codes, str) or not isinstance(codes, Iterable):
            raise TypeError(f"codes is {type_phrase(codes)}, must be an iterable of str")
        if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= _MOST):
            raise ValueError(f"batch is {batch!r:.100}, must be 1 to {_MOST}")
        check_progress(progress)
        if client.asynchronous:
            raise TypeError("client is asynchronous: use submit(), and await its futures")
        self._client, self._chosen, self._dask, self._inputs = client, chosen, dask, inputs
        self._total, self._batch, self._is_ordered = length(codes), batch, is_ordered
        self._codes: Iterator[Snippet] | None = iter(codes)
        self._meter = Meter(progress, self._total)
        self._prefix = f"nsbox-map-{uuid.uuid4().hex}-"
        self._sent: dict[str, _Sent] = {}
        self._count, self._sequence, self._next = (
            0,
            0,
            0,
        )  # snippets read; tasks submitted; the snippet whose turn it is
        self._finished: dict[int, deque[DaskResult]] = {}  # by the first index
        self._errors: dict[int, Exception] = {}  # instead of a record, by its index
        self._iterable_error: Exception | None = None
        self._seconds, self._ran = 0.0, 0
        self._threads, self._looked = 0, 0.0
        self._completed = as_completed(loop=client.loop, with_results=True, raise_errors=False)

    def __iter__(self) -> DaskMap:
        return self

    def __next__(self) -> DaskResult:
        try:
            while True:
                self._fill()
                found = self._take()
                if found is not None:
                    return found
                if not self._sent:
                    self._meter.close()
                    raise StopIteration
                self._receive(*next(self._completed))
        except StopIteration:
            raise
        except BaseException:  # also KeyboardInterrupt
            self.close()
            raise

    # ---- to the cluster

    def _fill(self) -> None:
        """Read codes ahead, and send them."""
        while self._codes is not None and self._wants():
            items: list[Any] = []
            size = self._size()
            while len(items) < size and self._codes is not None:
                try:
                    items.append(split(next(self._codes), self._count + len(items), self._inputs))
                except StopIteration:
                    self._codes = None
                except Exception as error:  # raised after the results of what came before
                    self._codes, self._iterable_error = None, error
            if items:
                self._send(self._count, items)
                self._count += len(items)

    def _wants(self) -> bool:
        threads = self._all_threads()
        return len(self._sent) < _AHEAD * threads and len(self._finished) < _WAITING * threads

    def _all_threads(self) -> int:
        """Return how many threads the cluster has, at most two seconds ago."""
        now = time.monotonic()
        if not self._threads or now - self._looked > 2:
            self._threads = max(1, sum(self._client.nthreads().values()))
            self._looked = now
        return self._threads

    def _size(self) -> int:
        """Return how many snippets the next batch has."""
        if self._batch is not None:
            return self._batch
        if not self._ran:
            return _FIRST
        size = max(1, min(_MOST, int(_SECONDS * self._ran / max(self._seconds, 1e-9))))
        if self._total is not None:  # the last ones are spread over all threads
            size = min(size, max(_FIRST, (self._total - self._count) // (2 * self._all_threads())))
        return size

    def _send(self, first: int, items: list[Any], tries: int = 1) -> None:
        key = f"{self._prefix}{self._sequence}"
        self._sequence += 1
        chosen = {**self._dask, "key": key, "pure": False}
        future = self._client.submit(run_batch, first, items, **self._chosen, **chosen)
        self._sent[key] = _Sent(first, items, future, tries)
        self._completed.add(future)

    # ---- from the cluster

    def _receive(self, future: Future, result: Any) -> None:
        """Note what became of a batch."""
        sent = self._sent.pop(future.key)
        if isinstance(result, Done):
            self._seconds += result.seconds
            self._ran += len(result.records)
            self._note(sent, list(result.records), result.error)
        elif future.status == "cancelled":
            raise RuntimeError(f"the cluster has dropped {future.key}: was it restarted, or the task cancelled?")
        else:
            error = result[1] if isinstance(result, tuple) else result
            self._fail(sent, error)

    def _fail(self, sent: _Sent, error: Exception) -> None:
        if not isinstance(error, KilledWorker):
            self._note(sent, [], error)
            return
        # Dask counts the deaths of workers on which a task only waited, too. The ledger knows which have begun it.
        lost = begun(self._client, sent.future.key)
        if lost:
            self._note(sent, refused(sent.first, sent.items, lost), None)
        elif sent.tries < 3:
            self._send(sent.first, sent.items, sent.tries + 1)
        else:
            self._note(sent, [], error)

    def _note(self, sent: _Sent, records: list[DaskResult], error: Exception | None) -> None:
        if error is not None:
            self._errors[sent.first + len(records)] = error
        self._finished[sent.first] = deque(records)
        self._meter.add([*records, *[None] * (len(sent.items) - len(records))])

    def _take(self) -> DaskResult | None:
        """Return the next result that is there. Raises what came instead of one."""
        while (first := self._turn()) is not None:
            records = self._finished[first]
            if records:
                found = records.popleft()
                self._next += 1
                return found
            del self._finished[first]
        if self._next in self._errors or (self._errors and not self._is_ordered):
            raise self._errors.popitem()[1]
        if not self._sent and self._iterable_error is not None:
            raise self._iterable_error
        return None

    def _turn(self) -> int | None:
        """Return the first index of the batch whose turn it is, None if it isn't there."""
        if not self._is_ordered:
            return next(iter(self._finished), None)
        turns = (first for first, records in self._finished.items() if not records or records[0].index == self._next)
        return next(turns, None)

    # ---- the end

    def close(self) -> None:
        """Cancel what was sent, and return when nothing of it runs any more. Closing twice isn't an error."""
        sent, self._sent = self._sent, {}
        self._codes = None
        self._meter.close()
        if sent:
            self._client.cancel([one.future for one in sent.values()], force=True)
            self._completed.clear()
            self._client.run(gone, self._chosen["plugin"], self._prefix, on_error="ignore")

    def __del__(self) -> None:
        futures = [one.future for one in getattr(self, "_sent", {}).values()]
        if futures and not sys.is_finalizing():
            client = self._client
            client.loop.add_callback(lambda: client.cancel(futures, asynchronous=True, force=True))

    def __enter__(self) -> DaskMap:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
