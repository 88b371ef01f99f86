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
    from nsbox._kernels.kernel import PythonKernel
    from nsbox._python.result import PythonResult

FIRST, MORE = ">>> ", "... "
_PATIENCE = 2  # typed interrupts that the code may ignore; the next one ends the kernel
_GLANCE = 0.1  # seconds; interrupts that follow each other faster may count as one
_FRESH = "a new one begins, without your variables"


def is_whole(block: str) -> bool:
    """Return whether lines are complete, or so wrong that no further line helps: the kernel then says what is wrong."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the kernel's Python shows them too
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
            self._show(result)
            if self._was_reset:
                say(f"the kernel has ended; {_FRESH}")
            elif (how := self._kernel.ended) is not None:
                if result.signal is None and not result.timed_out:  # exit(), sys.exit()
                    return result.returncode
                for hint in result.why:
                    if hint.kind != "ended":  # it names reset(), which the prompt lacks; the line below says the rest
                        say(hint.message)
                self._kernel.reset()
                say(f"the kernel has ended: {how}; {_FRESH}")
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

    def _call(self, block: str) -> PythonResult:
        """Return what a block did. Raises NsboxError."""
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
        typed, obeyed, self._was_reset = 0, 0, False

        def note(number: int, frame: FrameType | None) -> None:
            nonlocal typed
            typed += 1

        with _at_interrupt(note):
            thread.start()
            while not done.wait(_GLANCE):  # not by the handler, which could interrupt itself within the kernel's lock
                if obeyed < typed and not self._was_reset:
                    obeyed += 1
                    self._was_reset = obeyed > _PATIENCE
                    (self._kernel.reset if self._was_reset else self._kernel.interrupt)()
            thread.join()
        if failed:
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
