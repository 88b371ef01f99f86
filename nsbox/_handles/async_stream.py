"""AsyncStream and AsyncJob: a stream and a job for coroutines."""

from __future__ import annotations

import subprocess
import threading

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._handles import waiting
from nsbox._handles.stream import Streamed
from nsbox._tools.arguments import check_flags, check_wait

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from nsbox._calls.call import Call
    from nsbox._calls.record import ToolResult
    from nsbox._handles.job import Job, JobOutput
    from nsbox._handles.stream import StreamEvent
    from nsbox._handles.worker import Worker

_TURNS = 16  # events; after so many, other tasks get a turn


async def _send(worker: Worker, data: str | bytes, timeout: float | None) -> None:
    """Send data to a command's stdin. If the task is cancelled, part of it may have been sent."""
    worker.check_creator()
    stopped: list[bool] = []

    def stop() -> None:
        stopped.append(True)
        worker.call.inlet.wake()

    await waiting.in_thread(lambda: worker.call.inlet.send(data, timeout, stopped), stop)


class AsyncStream(Streamed):
    """The output of a command as it comes, for `async for`. `AsyncSandbox.stream()` makes it; see Stream.

    The command ends with its reader: when the task is cancelled while it waits for output, at the end of an
    `async with` block, and when nothing refers to the stream any more.
    """

    _turn = 0

    def __init__(self, call: Callable[..., Call], start: Callable[[Call], Worker]) -> None:
        super().__init__(call, start)

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> StreamEvent:
        worker = self._worker
        assert worker is not None
        worker.check_creator()
        self._turn += 1
        try:
            if self._turn % _TURNS == 0:
                await waiting.turn(self._has_news, worker.listen, self._abandon)
            while (event := self._next()) is None:
                await waiting.until(self._has_news, worker.listen, self._abandon)
        except StopIteration:
            raise StopAsyncIteration from None
        return event

    def _has_news(self) -> bool:
        """Return whether there is an event. If nobody reads the command any more, only its end counts."""
        worker = self._worker
        return worker is None or worker.has_ended or not (self._queue.is_dropped or self._queue.is_empty)

    async def send(self, data: str | bytes, *, timeout: float | None = None) -> None:
        """Send data to the command's stdin, as Stream.send()."""
        assert self._worker is not None
        await _send(self._worker, data, timeout)

    async def send_eof(self) -> None:
        """End the command's stdin after what was sent."""
        if self._worker is not None:
            self._worker.call.end_input()

    async def aclose(self) -> None:
        """End the command, and return when nothing of it is left. Closing twice isn't an error."""
        self._abandon()
        worker = self._worker
        if worker is not None:
            await waiting.until(lambda: worker.has_ended, worker.listen, bool)
            worker.check_killed()
        self._is_over = True

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


class AsyncJob:
    """The handle of a command in the background. `AsyncSandbox.background()` makes it; see Job.

    A cancelled wait leaves the job running; kill() ends it.
    """

    def __init__(self, job: Job) -> None:
        self._job, self._worker = job, job._worker

    @property
    def id(self) -> int:
        """Its number, as Job.id."""
        return self._job.id

    @property
    def args(self) -> object:
        """The command as the caller gave it."""
        return self._job.args

    @property
    def pid(self) -> int | None:
        """The command's process number, as Job.pid."""
        return self._job.pid

    @property
    def is_running(self) -> bool:
        """Whether something of it is left."""
        return self._job.is_running

    @property
    def result(self) -> ToolResult | None:
        """Its record once it has ended; None before."""
        return self._job.result

    async def output(self, since: int = 0, *, max_bytes: int = 100_000, wait: float | None = None) -> JobOutput:
        """Return what it has printed since a position, as Job.output()."""
        self._job._check_position(since, max_bytes)
        seconds = check_wait("wait", wait)
        if wait is not None and not self._job._has_news(since):
            stopped: list[bool] = []

            def stop() -> None:
                stopped.append(True)
                self._worker.notify()

            await waiting.in_thread(lambda: self._job._await_news(since, seconds, stopped), stop)
        return self._job.output(since, max_bytes=max_bytes)

    async def wait(self, timeout: float | None = None) -> ToolResult:
        """Wait until nothing of it is left, and return its record; as Job.wait()."""
        seconds = check_wait("timeout", timeout)
        worker, is_given_up = self._worker, []
        worker.check_creator()
        listeners: list[Callable[[], object]] = []

        def listen(listener: Callable[[], object]) -> Callable[[], object]:
            listeners.append(listener)
            leave = worker.listen(listener)

            def forget() -> None:
                listeners.remove(listener)
                leave()

            return forget

        def give_up() -> None:
            is_given_up.append(True)
            for listener in tuple(listeners):
                listener()

        timer = None if seconds is None else threading.Timer(seconds, give_up)
        try:
            if timer is not None:
                timer.daemon = True
                timer.start()
            await waiting.until(lambda: bool(worker.has_ended or is_given_up), listen, give_up)
        finally:
            if timer is not None:
                timer.cancel()
        if timeout is not None and not worker.has_ended:
            raise subprocess.TimeoutExpired(str(self.args), timeout)
        return worker.outcome()

    async def kill(self, *, at_once: bool = False) -> ToolResult:
        """End it and everything that it has started, and return its record, as Job.kill()."""
        check_flags(at_once=at_once)
        if self._job.is_running:
            self._worker.check_creator()
            self._worker.call.cancel(at_once=at_once)
        worker = self._worker
        await waiting.until(lambda: worker.has_ended, worker.listen, bool)
        return worker.outcome()

    async def send(self, data: str | bytes, *, timeout: float | None = None) -> None:
        """Send data to its stdin, or type it at its terminal, as Job.send()."""
        await _send(self._worker, data, timeout)

    async def send_eof(self) -> None:
        """End its stdin after what was sent."""
        self._job.send_eof()

    def __repr__(self) -> str:
        return repr(self._job).replace("nsbox.Job", "nsbox.AsyncJob")
