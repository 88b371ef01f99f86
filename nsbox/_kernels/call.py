"""One call of a kernel, from its parameters to its reply: what is sent, what is printed, how it is ended early."""

from __future__ import annotations

import os
import signal
import time
from functools import partial

from nsbox._base.descriptors import sealed
from nsbox._base.display import type_phrase
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._calls.call import check_max_output
from nsbox._calls.output import MOST_OUTPUT, Output
from nsbox._calls.token import CancelToken
from nsbox._interpreter.branch import LONGEST
from nsbox._interpreter.wire import WireError, frame
from nsbox._kernels.record import Stop
from nsbox._lifetime import kills
from nsbox._python.call import check_code, check_inputs, run_frame
from nsbox._python.reply import Reader
from nsbox._tools.arguments import as_bytes, check_timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Literal

    from nsbox._handles.stream import StreamEvent
    from nsbox._kernels.exchange import KernelExchange
    from nsbox._kernels.process import KernelProcess
    from nsbox._leaks.scrub import Scrubber
    from nsbox._python.reply import Reply

    Sink = Callable[[str, bytes], object]

_PATIENCE = 1.0  # seconds from SIGKILL on
CLOSED = "the code has closed the descriptor that carries its results, and was killed"


class KernelCall:
    """One call. PythonKernel.run() describes the parameters; number counts the kernel's calls.

    outputs: what it prints, once begin() was called.
    """

    outputs: tuple[Output, Output]

    def __init__(
        self,
        code: str,
        *,
        inputs: Mapping[str, object] | None = None,
        input: str | bytes | None = None,
        timeout: float | None = None,
        grace: float = kills.GRACE,
        max_output: int | str = MOST_OUTPUT,
        cancel: CancelToken | None = None,
        on_output: Callable[[StreamEvent], object] | None = None,
    ) -> None:
        if cancel is not None and not isinstance(cancel, CancelToken):
            raise TypeError(f"cancel is {type_phrase(cancel)}, must be a CancelToken")
        self.code, self._inputs = check_code(code), check_inputs(inputs)
        self._input = None if input is None else as_bytes("input", input)
        self._timeout, self.grace = check_timeout(timeout), kills.check_grace(grace)
        self._most, self.cancel, self._sink = check_max_output(max_output), cancel, _sink(on_output)
        self.began = 0.0
        self.is_interrupted = False  # by interrupt()
        self.interrupted = float("-inf")  # when it last sent a signal
        self.has_signalled = False  # it, or interrupt(), has sent SIGINT
        self.functions: Mapping[str, Callable[..., object]] = {}  # that the code may call
        run_frame(0, self.code, self._inputs)  # raises what is wrong with them

    @property
    def is_cancelled(self) -> bool:
        """Whether its token was cancelled."""
        return self.cancel is not None and self.cancel.is_cancelled

    def begin(self, process: KernelProcess, number: int, scrubber: Scrubber | None) -> None:
        """Send it. Raises OSError if there is no descriptor or memory for its input."""
        began = time.monotonic()
        sinks = (None, None) if self._sink is None else (partial(self._sink, "stdout"), partial(self._sink, "stderr"))
        first, second = (Output(self._most, None if scrubber is None else scrubber.another(), one) for one in sinks)
        self.outputs = first, second
        has_stdin = self._input is not None
        data = run_frame(number, self.code, self._inputs, has_stdin=has_stdin, functions=self.functions)
        if self._input is None:
            process.line.begin(number, data)
            process.line.write()
            self.began = began
            return
        file = sealed("nsbox-input", self._input, 0o444, "a kernel's stdin")
        try:
            os.lseek(file, 0, os.SEEK_SET)
            process.line.begin(number, data, (file,))
            process.line.write()  # an idle kernel's socket has room for the first byte, with which the file goes
            self.began = began
        finally:
            os.close(file)

    def talk(self, process: KernelProcess, exchange: KernelExchange, scrubber: Scrubber | None) -> Outcome:
        """Move data until the call is over, and return what came of it. Raises what the caller's function raises."""
        deadline = None if self._timeout is None else self.began + self._timeout
        stop = self._await(process, exchange, deadline)
        reply, problem = _reply(process, scrubber)
        if reply is not None and reply.exit is not None and not exchange.has_ended:
            stop = self._await(process, exchange, deadline, to_end=True) or stop  # what atexit handlers do
        elif reply is None and not problem and not self._ends(exchange):
            problem = CLOSED
        if stop is None and self.is_interrupted and reply is not None and reply.exception is not None:
            stop = Stop("cancelled", "SIGINT", 0.0, 0.0) if reply.exception.type == "KeyboardInterrupt" else None
        return Outcome(reply, stop, problem)

    def _ends(self, exchange: KernelExchange) -> bool:
        """Return whether the kernel ends by itself: its line does so a little earlier, or the code has closed it."""
        return exchange.has_ended or exchange.run(time.monotonic() + max(self.grace, 1), to_end=True) != "late"

    def _await(
        self, process: KernelProcess, exchange: KernelExchange, deadline: float | None, *, to_end: bool = False
    ) -> Stop | None:
        """Wait for the reply, or the end. If it takes too long, interrupt the code, then kill the kernel."""
        is_stopped = None if self.cancel is None else lambda: self.is_cancelled
        if exchange.run(deadline, is_stopped, to_end=to_end) != "late":
            return None
        exchange.refuse()
        cause: Literal["cancelled", "timeout"] = "cancelled" if self.is_cancelled else "timeout"
        if self.grace:
            self.has_signalled = True
            process.signal(signal.SIGINT)
            if exchange.run(time.monotonic() + self.grace, to_end=to_end) != "late":
                return Stop(cause, "SIGINT", self._timeout or 0.0, self.grace)
        process.signal(signal.SIGKILL)
        exchange.run(time.monotonic() + _PATIENCE, to_end=True)  # process.kill() does the rest
        return Stop(cause, "SIGKILL", self._timeout or 0.0, self.grace)


def sync(process: KernelProcess, exchange: KernelExchange, number: int) -> bool:
    """Wait until no signal that was sent before can interrupt a later call; return whether the kernel says so."""
    process.line.begin(number, frame({"op": "sync", "id": number}))
    exchange.begin_other()
    return exchange.run(time.monotonic() + LONGEST / 1000) == "reply"


class Outcome:
    """What came of a call. reply: None if there was none. problem: why nsbox has to end the kernel; "": it needn't."""

    def __init__(self, reply: Reply | None, stop: Stop | None, problem: str) -> None:
        self.reply, self.stop, self.problem = reply, stop, problem

    @property
    def is_last(self) -> bool:
        """Whether the kernel ends, or has ended, with this call."""
        is_killed = self.stop is not None and self.stop.by == "SIGKILL"
        return is_killed or self.reply is None or self.reply.exit is not None


def _reply(process: KernelProcess, scrubber: Scrubber | None) -> tuple[Reply | None, str]:
    """Return what was replied, and what is wrong with it."""
    line = process.line
    problem = line.problem
    if line.reply is not None and not problem:
        try:
            return Reader(None if scrubber is None else scrubber.scrub).read(line.reply, line.displays), ""
        except WireError as error:
            problem = str(error)
    return None, problem and f"what it said about the code can't be read ({problem}), and it was killed"


def _sink(on_output: Callable[[StreamEvent], object] | None) -> Sink | None:
    if on_output is None:
        return None
    from nsbox._handles.stream import sink

    return sink(on_output)
