"""SandboxPlugin: keeps a warm sandbox in each worker of a cluster."""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed import WorkerPlugin, get_worker

import nsbox
from nsbox.integrations._policies import check, made
from nsbox.integrations.dask.ledger import open_ledger

if TYPE_CHECKING:
    from distributed import Worker

    from nsbox.integrations._policies import Policies

NAME = "nsbox"


class SandboxPlugin(WorkerPlugin):  # type: ignore[misc,unused-ignore]
    """Keeps a Sandbox and a warm interpreter in each worker, also in those that join later.

    policy: a Policy, or a function that returns one. Each worker calls the function with an empty directory that it has
        made for this sandbox alone.
    imports, setup, python, stock, overlay, start_timeout: as for Sandbox.python().
    share: whether code gets its share of the worker's memory limit, if the policy sets neither `memory` nor
        `total_memory`: the worker's limit, divided by its threads, as Limits.memory. Default: True.
    name: for a second plugin with another policy. `map` and `submit` name it as plugin=. Default: "nsbox".

    `client.register_plugin()` returns once all workers are warm. If a worker can't be, it raises that worker's error,
    such as an UnavailableError. On a worker that joins later, tasks raise it. Raises TypeError for a policy of another
    type.
    """

    def __init__(
        self,
        policy: Policies,
        *,
        imports: Sequence[str] = (),
        setup: str = "",
        python: str | None = None,
        stock: int = 2,
        overlay: bool = False,
        start_timeout: float = 60.0,
        share: bool = True,
        name: str = NAME,
    ) -> None:
        check(policy)
        self.name = name
        self._policy, self._share = policy, share
        self._options: dict[str, Any] = {
            **{"imports": list(imports), "setup": setup, "python": python},
            **{"stock": stock, "overlay": overlay, "start_timeout": start_timeout},
        }

    def __getstate__(self) -> dict[str, Any]:
        return {name: vars(self)[name] for name in ("name", "_policy", "_share", "_options")}

    # ---- for Dask

    async def setup(self, worker: Worker) -> None:
        """Make the sandbox, and have the scheduler keep a ledger."""
        self.worker = worker
        self._error: Exception | None = None
        self._tokens: dict[Any, nsbox.CancelToken] = {}
        self._lock = threading.Lock()
        self._all = nsbox.CancelToken()
        self._box: nsbox.Sandbox | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        try:
            await open_ledger(worker)
            await asyncio.to_thread(self._start)
        except Exception as error:
            self._error = error
            await asyncio.to_thread(self._close)
            raise

    async def teardown(self, worker: Worker) -> None:
        """End what runs, and the sandbox."""
        self._all.cancel()
        await asyncio.to_thread(self._close)

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        """End the code of a task that was cancelled."""
        if finish == "released" and start in ("executing", "long-running"):
            with self._lock:
                token = self._tokens.get(key)
            if token is not None:
                token.cancel()

    # ---- for tasks

    def begin(self, key: Any) -> tuple[nsbox.Python, nsbox.CancelToken]:
        """Return the interpreter for a task, and the token that is cancelled with it. Call end() afterwards."""
        if self._error is not None:
            raise self._error
        token = self._all.child()
        with self._lock:
            self._tokens[key] = token
        return self._python, token

    def end(self, key: Any) -> None:
        """Note that nothing of a task runs any more."""
        with self._lock:
            self._tokens.pop(key, None)

    async def await_gone(self, prefix: str) -> None:
        """Wait until no task whose key begins like this runs here."""
        while any(str(key).startswith(prefix) for key in list(self._tokens)):
            await asyncio.sleep(0.01)

    # ---- within

    def _start(self) -> None:
        self._box = nsbox.Sandbox(self._shared(self._asked()))
        self._python = self._box.python(**self._options).start()

    def _asked(self) -> nsbox.Policy:
        if isinstance(self._policy, nsbox.Policy):
            return self._policy
        self._scratch = tempfile.TemporaryDirectory(prefix="nsbox-", dir=self.worker.local_directory)
        return made(self._policy, Path(self._scratch.name))

    def _shared(self, policy: nsbox.Policy) -> nsbox.Policy:
        """Return the policy with its share of the worker's memory."""
        limits, whole = policy.limits, self.worker.memory_manager.memory_limit
        if not self._share or not whole or limits.memory is not None or limits.total_memory is not None:
            return policy
        return policy.with_(limits=dataclasses.replace(limits, memory=whole // max(1, self.worker.state.nthreads)))

    def _close(self) -> None:
        box, self._box = self._box, None
        if box is not None:
            box.close()
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            scratch.cleanup()


def here(name: str) -> SandboxPlugin:
    """Return the plugin of the worker that runs this task. Raises LookupError."""
    worker = get_worker()
    plugin = worker.plugins.get(name)
    if not isinstance(plugin, SandboxPlugin):
        raise LookupError(
            f"worker {worker.address} has no SandboxPlugin {name!r}: call client.register_plugin(SandboxPlugin(policy))"
        )
    return plugin
