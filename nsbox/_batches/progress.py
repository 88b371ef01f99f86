"""How far Python.map() is: a value for the caller's function, or a line on the terminal, drawn by rich."""

from __future__ import annotations

import operator
import sys
import time

from nsbox._base.display import type_phrase
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal

    from nsbox._python.result import PythonResult

    Wish = Literal[True] | Callable[["MapProgress"], object] | None


@frozen
class MapProgress(Frozen):
    """How far Python.map() is.

    done: how many snippets have run.
    failed: how many of them have failed: those whose returncode isn't 0.
    total: how many there are; None if the iterable doesn't say.
    seconds: since map() was called.
    """

    done: int
    failed: int
    total: int | None
    seconds: float

    @property
    def rate(self) -> float:
        """Snippets per second so far."""
        return self.done / self.seconds if self.seconds else 0.0


def check_progress(progress: object) -> None:
    """Raise TypeError unless it is None, True, False or a function."""
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise TypeError(f"progress is {type_phrase(progress)}, must be True, a function, or None")


def length(codes: object) -> int | None:
    """Return how many items an iterable has, if it says so."""
    return operator.length_hint(codes, -1) if operator.length_hint(codes, -1) >= 0 else None


class Meter:
    """Counts what has run, and shows it.

    progress: as for map().
    total: how many snippets there are; None if that isn't known.
    """

    def __init__(self, progress: Wish | bool, total: int | None) -> None:
        self._began = time.monotonic()
        self._done, self._failed, self._total = 0, 0, total
        self._bar = _Bar(total) if progress is True and _has_terminal() else None
        self._call = None if progress is None or isinstance(progress, bool) else progress

    def add(self, results: list[PythonResult | None]) -> None:
        """Count what has run since the last time, and show it. None stands for an error."""
        for result in results:
            self._done += 1
            self._failed += result is None or result.returncode != 0
            if self._call is not None:
                self._call(MapProgress(self._done, self._failed, self._total, time.monotonic() - self._began))
        if self._bar is not None and results:
            self._bar.show(self._done, self._failed)

    def close(self) -> None:
        """Leave the terminal as it was, below a last line."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.close()


def _has_terminal() -> bool:
    """Return whether stderr is a terminal."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


class _Bar:
    """A line on the terminal; nothing without rich."""

    def __init__(self, total: int | None) -> None:
        self._shown: Any = None
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        except ImportError:
            return
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[failed]} failed"),
            TextColumn("{task.fields[rate]:.0f}/s"),
            TimeElapsedColumn(),
        )
        # It draws from this thread alone: with a thread of its own, a fork of this process could inherit a held lock.
        self._shown = Progress(*columns, console=Console(stderr=True), auto_refresh=False)
        self._began = self._drawn = time.monotonic()
        self._task = self._shown.add_task("", total=total, failed=0, rate=0.0)
        self._shown.start()

    def show(self, done: int, failed: int) -> None:
        """Draw the line, at most ten times a second."""
        if self._shown is None:
            return
        now = time.monotonic()
        rate = done / max(1e-9, now - self._began)
        self._shown.update(self._task, completed=done, failed=failed, rate=rate)
        if now - self._drawn > 0.1:
            self._drawn = now
            self._shown.refresh()

    def close(self) -> None:
        """Draw it for the last time."""
        if self._shown is not None:
            self._shown.refresh()
            self._shown.stop()
