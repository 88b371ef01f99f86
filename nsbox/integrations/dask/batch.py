"""What a worker does with a batch of snippets: one task of Dask's, which returns a record for each."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from distributed import get_worker

from nsbox.integrations.dask.ledger import begin
from nsbox.integrations.dask.plugin import SandboxPlugin, here
from nsbox.integrations.dask.result import DaskResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Item = tuple[str, Mapping[str, Any] | None]


@dataclasses.dataclass(frozen=True)
class Done:
    """What became of a batch.

    records: of its snippets, in order; fewer than there are if an error came between.
    error: what nsbox raised instead of a record.
    seconds: how long it took.
    """

    records: tuple[DaskResult, ...]
    error: Exception | None
    seconds: float


def run_batch(first: int, items: Sequence[Item], plugin: str, rerun: bool, options: dict[str, Any]) -> Done:
    """Run snippets one after the other, each in a branch of its own.

    first: the index of the first one. items: codes, each with its inputs.
    rerun: whether to run them although another worker may have.
    """
    worker, began = get_worker(), time.monotonic()
    key, keeper = worker.get_current_task(), here(plugin)
    python, token = keeper.begin(key)
    try:
        run = python.run_one(options)  # type: ignore[arg-type]
        lost = begin(worker, key)
        if lost and not rerun:
            return Done(tuple(refused(first, items, lost)), None, time.monotonic() - began)
        records: list[DaskResult] = []
        error = None
        for index, (code, inputs) in enumerate(items, first):
            if token.is_cancelled:  # nobody waits for the rest
                break
            try:
                records.append(DaskResult.of(run(index, code, inputs, token), worker.address, lost))
            except Exception as problem:
                error = problem.with_traceback(None)
                break
        return Done(tuple(records), error, time.monotonic() - began)
    finally:
        keeper.end(key)


def refused(first: int, items: Sequence[Item], lost: tuple[str, ...]) -> list[DaskResult]:
    """Return the records of snippets that aren't run again."""
    why = f"this code may have run: a worker that had begun its batch was lost ({', '.join(lost)})"
    return [DaskResult.unknown(code, index, lost, why) for index, (code, _) in enumerate(items, first)]


def run_single(code: str, inputs: Mapping[str, Any] | None, plugin: str, rerun: bool, options: dict[str, Any]) -> Any:
    """Run one snippet; return its record."""
    done = run_batch(0, [(code, inputs)], plugin, rerun, options)
    if done.error is not None:
        raise done.error
    return dataclasses.replace(done.records[0], index=None)


async def gone(plugin: str, prefix: str, dask_worker: Any = None) -> None:
    """Wait, on a worker, until nothing of these tasks runs there any more. For client.run(), which gives the worker."""
    keeper = dask_worker.plugins.get(plugin)
    if isinstance(keeper, SandboxPlugin):
        await keeper.await_gone(prefix)
