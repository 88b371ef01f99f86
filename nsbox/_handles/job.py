"""Job: the handle of a command in the background, to read its output, talk to it, and end it."""

from __future__ import annotations

import subprocess
import threading

from nsbox._base.checks import check_size
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._calls.output import MOST_OUTPUT, incomplete
from nsbox._tools.arguments import check_flags, check_wait

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsbox._calls.call import Call
    from nsbox._calls.record import ToolResult
    from nsbox._handles.worker import Worker


_MOST_ENDED = 100  # ended jobs that are still listed


def kept(max_output: int | str | None) -> int:
    """Return how many bytes of a job's output are kept."""
    return MOST_OUTPUT if max_output is None else check_size("max_output", max_output)


@frozen
class JobOutput(Frozen):
    """What a job has printed since some position.

    text: stdout and stderr in the order in which they came; bytes that aren't UTF-8 become U+FFFD.
    next: the position after the text, for the next call's `since`.
    left_out: how many bytes before the text aren't kept any more.
    is_over: whether the job has ended and this is the end of its output.
    """

    text: str
    next: int
    left_out: int
    is_over: bool

    def as_dict(self) -> dict[str, object]:
        """Return it as values for JSON."""
        return {"text": self.text, "next": self.next, "left_out": self.left_out, "is_over": self.is_over}


class Tail:
    """The end of what a job has printed, at most `most` bytes."""

    def __init__(self, most: int) -> None:
        self._most = max(1, most)
        self._kept = bytearray()
        self._first = 0  # the position of the first byte that is kept
        self._lock = threading.RLock()  # a signal handler may ask too
        self.tell: Callable[[], object] = bool

    def put(self, kind: str, data: bytes) -> None:
        """Add a piece."""
        with self._lock:
            self._kept += data
            if len(self._kept) > 2 * self._most:
                self._first += len(self._kept) - self._most
                del self._kept[: -self._most]
        self.tell()

    def trim(self) -> None:
        """Free what nobody can ask for any more."""
        with self._lock:
            self._first += max(0, len(self._kept) - self._most)
            self._kept = self._kept[-self._most :]

    @property
    def end(self) -> int:
        """The position after the last byte."""
        return self._first + len(self._kept)

    def since(self, position: int, most: int) -> tuple[bytes, int, int]:
        """Return the bytes from a position on, at most `most`; the position after them; how many are missing before."""
        with self._lock:
            kept = self._kept[-self._most :]
            first = self._first + len(self._kept) - len(kept)
            begin = min(max(position, first), first + len(kept))
            data = bytes(kept[begin - first : begin - first + most])
        if begin > position:  # the cut may be within a character
            skipped = next((i for i, byte in enumerate(data[:3]) if byte & 0xC0 != 0x80), 0)
            data, begin = data[skipped:], begin + skipped
        if len(data) == most and (cut := incomplete(data)) and cut < len(data):
            data = data[:-cut]
        return data, begin + len(data), max(0, begin - position)


class Job:
    """The handle of a command in the background. `Sandbox.background()` makes it; any thread may use it.

    id: its number among the jobs of its Sandbox, Session, Task or Transaction.
    args: as the caller gave them.

    The command ends with the object that started it. It goes on if you drop only this handle.
    """

    def __init__(
        self, id: int, args: object, call: Callable[..., Call], start: Callable[[Call], Worker], most: int
    ) -> None:
        self.id, self.args = id, args
        self._tail = Tail(most)
        made = call(sink=self._tail.put)
        try:
            self._worker = start(made)
            self._tail.tell = self._worker.notify
        except BaseException:  # a signal handler may raise
            made.cancel(at_once=True)
            raise

    def _await_start(self) -> None:
        """Wait until the command has started; raises its error."""
        self._worker.await_start()

    @staticmethod
    def _worth_keeping(jobs: tuple[Job, ...]) -> list[Job]:
        """Return the jobs that run, and the last ones that have ended."""
        ended = [job for job in jobs if not job.is_running]
        for job in ended:
            job._tail.trim()
        dropped = set(map(id, ended[: max(0, len(ended) - _MOST_ENDED)]))
        return [job for job in jobs if id(job) not in dropped]

    @property
    def is_running(self) -> bool:
        """Whether something of it is left."""
        return not self._worker.has_ended

    @property
    def result(self) -> ToolResult | None:
        """Its record once it has ended; None before."""
        return self._worker.result

    @property
    def pid(self) -> int | None:
        """The command's process number, as this process sees it; None if it wasn't started."""
        process = self._worker.call.process
        return None if process is None else int(process.pid)

    def output(self, since: int = 0, *, max_bytes: int = 100_000, wait: float | None = None) -> JobOutput:
        """Return what it has printed since a position.

        since: a position: `next` of an earlier JobOutput. Default: 0, for the beginning.
        max_bytes: how many bytes to return at most. Default: 100,000.
        wait: seconds to wait for output if there is none after `since`. Default: None, for no wait.

        Raises ValueError for a position or a size that makes no sense.
        """
        self._check_position(since, max_bytes)
        worker = self._worker
        worker.check_creator()
        if wait is not None:
            self._await_news(since, check_wait("wait", wait))
        is_over = worker.has_ended  # ask before reading: output may come in between
        data, following, left_out = self._tail.since(since, max_bytes)
        is_over = is_over and following >= self._tail.end
        return JobOutput(data.decode("utf-8", "replace"), following, left_out, is_over)

    @staticmethod
    def _check_position(since: object, max_bytes: object) -> None:
        """Raise ValueError for what output() can't use."""
        if isinstance(since, bool) or not isinstance(since, int) or since < 0:
            raise ValueError(f"since is {since!r:.60}, must be 0, or `next` of an earlier output")
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 4:
            raise ValueError(f"max_bytes is {max_bytes!r:.60}, must be a number from 4")

    def _has_news(self, since: int) -> bool:
        """Return whether there is output after a position, or the job has ended."""
        return self._worker.has_ended or self._tail.end > since

    def _await_news(self, since: int, seconds: float | None, stopped: Sequence[object] = ()) -> None:
        """Wait for output after a position, for at most `seconds`. Give up as soon as `stopped` has something in it.

        seconds: None for no limit.
        """
        with self._worker.changed:
            self._worker.changed.wait_for(lambda: bool(stopped) or self._has_news(since), seconds)

    def wait(self, timeout: float | None = None) -> ToolResult:
        """Wait until nothing of it is left, and return its record.

        timeout: seconds. Default: None, for no limit.

        Raises subprocess.TimeoutExpired, and the job goes on; and KillError. Raises TypeError and ValueError for a
        timeout that makes no sense.
        """
        if not self._worker.await_end(check_wait("timeout", timeout)):
            assert timeout is not None
            raise subprocess.TimeoutExpired(str(self.args), timeout)
        return self._worker.outcome()

    def kill(self, *, at_once: bool = False) -> ToolResult:
        """End it and everything that it has started, and return its record, even if it has ended already.

        at_once: whether to send SIGKILL at once, without SIGTERM and grace time. Default: False.

        Raises KillError if something of it survives.
        """
        check_flags(at_once=at_once)
        if self.is_running:
            self._worker.check_creator()
            self._worker.call.cancel(at_once=at_once)
        return self.wait()

    def send(self, data: str | bytes, *, timeout: float | None = None) -> None:
        r"""Send data to its stdin, or type it at its terminal: "\x03" is Ctrl-C there.

        data: bytes, or a str, which is sent as UTF-8.
        timeout: seconds to wait while more than 1 MiB is unread. Default: None, for no limit.

        Raises ValueError if its stdin isn't open, BrokenPipeError once it has ended or closed its stdin, and
        TimeoutError.
        """
        self._worker.check_creator()
        self._worker.call.inlet.send(data, timeout)

    def send_eof(self) -> None:
        """End its stdin after what was sent."""
        self._worker.check_creator()
        self._worker.call.end_input()

    def __repr__(self) -> str:
        return f"<nsbox.Job {self.id} {'runs' if self.is_running else 'has ended'}: {self.args!r:.60}>"
