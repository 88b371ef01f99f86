"""The ledger: which worker has begun which task. The scheduler keeps it, so it outlives workers.

Dask runs a task again if its worker is lost, and doesn't say so. With the ledger, a worker learns before the first line
of code whether another one has begun it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distributed import SchedulerPlugin
from distributed.protocol.pickle import dumps
from distributed.utils import sync

if TYPE_CHECKING:
    from distributed import Client, Worker

NAME = "nsbox-ledger"


class NotWanted(Exception):
    """The scheduler no longer wants this task from this worker, so the worker doesn't begin it."""


def _ledger() -> Any:
    """Return the plugin. Its class is local, so that it is pickled by value: the scheduler needn't have nsbox."""

    class Ledger(SchedulerPlugin):
        idempotent = True

        def start(self, scheduler: Any) -> None:
            """Answer workers and drivers from now on."""
            self.scheduler = scheduler
            self.begun: dict[Any, list[str]] = {}
            scheduler.handlers["nsbox_begin"] = self.begin
            scheduler.handlers["nsbox_begun"] = self.look

        async def begin(self, key: Any, worker: str) -> Any:
            """Note that a worker begins a task; return who began it before, None if it must not begin."""
            task = self.scheduler.tasks.get(key)
            if task is None or task.processing_on is None or task.processing_on.address != worker:
                return None
            before = self.begun.setdefault(key, [])
            before.append(worker)
            return before[:-1]

        async def look(self, key: Any) -> Any:
            """Return who began a task."""
            return list(self.begun.get(key, ()))

        def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
            """Forget a task with its scheduler."""
            if finish == "forgotten":
                self.begun.pop(key, None)

    return Ledger()


async def open_ledger(worker: Worker) -> None:
    """Have the scheduler of this worker keep a ledger, if it doesn't yet."""
    await worker.scheduler.register_scheduler_plugin(plugin=dumps(_ledger()), name=NAME, idempotent=True)


def begin(worker: Worker, key: Any) -> tuple[str, ...]:
    """Note that this worker begins a task; return the workers that began it before. Raises NotWanted."""
    before = sync(worker.loop, worker.scheduler.nsbox_begin, key=key, worker=worker.address)
    if before is None:
        raise NotWanted(f"{key} is no longer a task of {worker.address}")
    return tuple(before)


def begun(client: Client, key: Any) -> tuple[str, ...]:
    """Return the workers that began a task whose future the driver holds."""
    return tuple(client.sync(client.scheduler.nsbox_begun, key=key))
