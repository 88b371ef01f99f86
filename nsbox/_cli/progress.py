"""A bar on standard error for what takes longer than a second: by rich if it is installed, else a plain line.

Only on a terminal: nothing of it gets into a pipe or a file. It draws when it is told something and from the caller's
thread alone, so it disturbs no measurement, and a fork of this process inherits no held lock.
"""

from __future__ import annotations

import os
import sys
import time

from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Self

_PERIOD = 0.1  # seconds: it isn't drawn more often


class Progress:
    """Shows how much is done, as a context manager that leaves the terminal as it was.

    total: how much there is to do.
    delay: seconds that pass before anything is shown.
    """

    def __init__(self, total: int, delay: float = 0.0) -> None:
        self._total, self._width = total, 0
        self.is_seen = _is_terminal()
        self._next = time.monotonic() + delay
        self._bar: Any = None

    def show(self, done: int, text: str) -> None:
        """Draw how much is done, and what is being done; not more often than is useful."""
        now = time.monotonic()
        if not self.is_seen or now < self._next:
            return
        self._next = now + _PERIOD
        self._draw(done, text)

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
            return
        self._clear()
        if sys.stderr is not None:
            print(text, file=sys.stderr, flush=True)

    def _draw(self, done: int, text: str) -> None:
        if self._bar is None and not self._width:
            self._begin()
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, description=text)
            self._bar.refresh()
            return
        line = f"{done}/{self._total} {text}"[: max(10, _columns() - 1)]
        print(f"\r{line:<{self._width}}", end="", file=sys.stderr, flush=True)
        self._width = len(line)

    def _begin(self) -> None:
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        except ImportError:
            return
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
        )
        self._bar = Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
        self._bar.add_task("", total=self._total)
        self._bar.start()

    def _clear(self) -> None:
        if self._width:
            print(f"\r{'':<{self._width}}\r", end="", file=sys.stderr, flush=True)
            self._width = 0

    def __enter__(self) -> Self:
        """Return self. Nothing is drawn yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove what was drawn."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()
        self._clear()


def _is_terminal() -> bool:
    """Return whether stderr is a terminal that can move its cursor."""
    try:
        return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")
    except ValueError:  # it is closed
        return False


def _columns() -> int:
    try:
        return os.get_terminal_size(2).columns or 80
    except OSError:
        return 80
