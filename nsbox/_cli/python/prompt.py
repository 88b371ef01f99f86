"""The prompt of `nsbox python`: a kernel behind it, lines as Python's own prompt reads them.

A call of the kernel runs in a thread. The main thread waits for it, and turns Ctrl-C into an interrupt of the kernel:
a KeyboardInterrupt in our own code would leave the call half done.
"""

from __future__ import annotations

import codeop
import contextlib
import signal
import sys
import threading
import warnings

from nsbox._base.errors import NsboxError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._cli.messages import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from nsbox._cli.python.display import Display
    from nsbox._cli.python.history import History
    from nsbox._handles.stream import StreamEvent
    from nsbox._python.kernel import PythonKernel
    from nsbox._python.result import PythonResult

FIRST, MORE = ">>> ", "... "
_PATIENCE = 2  # typed interrupts that the code may ignore; the next one ends the kernel


def is_whole(block: str) -> bool:
    """Return whether lines are whole, or so wrong that no further line mends them: the kernel says what is wrong."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the kernel's Python gives them too
        try:
            return codeop.compile_command(block, "<python>", "single") is not None
        except (SyntaxError, OverflowError, ValueError, MemoryError, RecursionError):
            return True


class Prompt:
    """Reads blocks, and has a kernel run them."""

    def __init__(self, kernel: PythonKernel, display: Display, history: History, timeout: float | None = None) -> None:
        """Hold what it works with. timeout: seconds for each block."""
        self._kernel, self._display, self._history, self._timeout = kernel, display, history, timeout

    def run(self) -> int:
        """Read and run blocks until Ctrl-D or exit(); return the exit status."""
        while (block := self._read()) is not None:
            self._history.add(block)
            try:
                result = self._call(block)
            except NsboxError as error:
                say(str(error))
                continue
            if result is None:
                continue
            self._show(result)
            if self._kernel.ended:
                if result.signal is None and not result.timed_out:  # exit(), sys.exit()
                    return result.returncode
                self._begin_again(result)
        return 0

    # ---- reading

    def _read(self) -> str | None:
        """Return the next block; None at the end of input."""
        lines: list[str] = []
        while True:
            try:
                lines.append(input(MORE if lines else FIRST))
            except EOFError:
                print()
                return None
            except KeyboardInterrupt:
                print("\nKeyboardInterrupt")
                lines.clear()
                continue
            block = "\n".join(lines)
            if not block.strip():
                lines.clear()
            elif is_whole(block):
                return block

    # ---- running

    def _call(self, block: str) -> PythonResult | None:
        """Return what a block did; None if it had to be ended, and a new kernel has begun. Raises NsboxError."""
        made: list[PythonResult] = []
        failed: list[BaseException] = []
        done = threading.Event()

        def work() -> None:
            try:
                made.append(self._kernel.run(block, timeout=self._timeout, on_output=_print))
            except BaseException as error:
                failed.append(error)
            finally:
                done.set()

        thread = threading.Thread(target=work, name="nsbox-prompt", daemon=True)
        count = 0

        def interrupt(number: int, frame: FrameType | None) -> None:
            nonlocal count
            count += 1
            with contextlib.suppress(NsboxError, OSError, ValueError):  # it has just ended
                if count > _PATIENCE:
                    self._kernel.close()
                else:
                    self._kernel.interrupt()

        with _at_interrupt(interrupt):
            thread.start()
            done.wait()
            thread.join()
        if failed:
            if count > _PATIENCE:
                self._begin_again(None)
                return None
            raise failed[0]
        return made[0]

    def _show(self, result: PythonResult) -> None:
        for line in self._display.lines(result):
            print(line)
        sys.stdout.flush()
        if result.exception is not None:
            text = result.exception.traceback
            print(text, end="" if text.endswith("\n") else "\n", file=sys.stderr, flush=True)
        if result.timed_out:
            say(f"--timeout: the code was ended after {self._timeout:g} s")

    def _begin_again(self, result: PythonResult | None) -> None:
        """Begin a new kernel in the place of one that has ended, and say so."""
        how = "" if result is None or result.signal is None else f" by {result.signal}"
        for hint in () if result is None else result.why:
            say(hint.message)
        self._kernel.reset()
        say(f"the kernel was ended{how}; a new one begins, without your variables")


def _print(event: StreamEvent) -> None:
    stream = sys.stdout if event.kind == "stdout" else sys.stderr
    with contextlib.suppress(OSError):
        stream.flush()
        stream.buffer.write(event.data)
        stream.flush()


@contextlib.contextmanager
def _at_interrupt(handle: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Have SIGINT handled by this function; afterwards as before."""
    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
