"""How code ends: its status and its last words, as `python -c` has them, and what is flushed and called at the end.

The interpreter isn't finalized, since that would end what it has made itself: an os._exit() ends the branch. So what
Python would do for the code is done here: threads are waited for, atexit functions run, files are flushed.
"""

from __future__ import annotations

import _signal
import atexit
import gc
import io
import os
import sys
import threading
from typing import Any, Callable

from .interrupts import call
from .results.reply import exit_message, exit_status
from .results.values import mro

_write = os.write
_kill, _getpid = os.kill, os.getpid
_set_handler, _getsignal, _SIG_DFL = _signal.signal, _signal.getsignal, _signal.SIG_DFL
_mask, _BLOCK, _UNBLOCK = _signal.pthread_sigmask, _signal.SIG_BLOCK, _signal.SIG_UNBLOCK
_SIGTERM, _SIGINT = _signal.SIGTERM, _signal.SIGINT
_text, _buffers = io.TextIOWrapper, (io.BufferedWriter, io.BufferedRandom)
_get_objects = gc.get_objects
_collect = gc.collect
_run_exitfuncs = atexit._run_exitfuncs
_excepthook = sys.excepthook
_shutdown: Callable[[], None] = threading._shutdown  # type: ignore[attr-defined]


class Ending:
    """The end of a branch: made before foreign code runs, so that it has what it needs."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        """Remember what the interpreter has.

        namespace: of the module __main__.
        """
        self._namespace = namespace
        self._before = dict(namespace)  # what the interpreter has made lives on
        self._streams: list[Any] = [stream for stream in (sys.stdout, sys.stderr) if stream is not None]
        self._pid = os.getpid()
        _set_handler(_SIGTERM, self._terminate)
        os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=self._forget)

    def _forget(self) -> None:
        """In a fork: signals do what they do in other programs."""
        if _getsignal(_SIGTERM) == self._terminate:
            _set_handler(_SIGTERM, _SIG_DFL)
        _release()

    def _terminate(self, number: int, _: Any) -> None:
        """At SIGTERM: what was written isn't lost; then the signal ends the process, as it would have."""
        _set_handler(number, _SIG_DFL)
        self.flush()
        _kill(_getpid(), number)

    def flush(self) -> None:
        """Flush the standard streams, the interpreter's and those of the code."""
        for stream in (*self._streams, vars(sys).get("stdout"), vars(sys).get("stderr")):
            if stream is not None:
                call(_flush, stream)

    def report(self, error: BaseException | None, told: dict[str, Any] | None) -> int:
        """Print an exception as Python would at its end; return the status to exit with, negative for a signal.

        told: the exception's record.
        """
        if error is None:
            return 0
        if SystemExit in mro(type(error)):
            text = exit_message(error)
            if text:
                self._say(text)
            return exit_status(error)
        hook = vars(sys).get("excepthook")
        if hook is not None and hook is not _excepthook:
            call(hook, type(error), error, error.__traceback__)
        elif told is not None:
            self._say(told["traceback"])
        return -_SIGINT if type(error) is KeyboardInterrupt else 1

    def _say(self, text: str) -> None:
        call(self.flush)
        _, error = call(_print, vars(sys).get("stderr"), text)
        if error is not None:
            call(_write, 2, text.encode("utf-8", "backslashreplace"))

    def finish(self, wait: bool) -> None:
        """Do what Python does at its end.

        wait: for threads, as Python does for those that aren't daemons.
        """
        if wait:
            call(_shutdown)
        call(_run_exitfuncs)
        call(self._drop)
        call(_flush_all)
        self.flush()

    def rehearse(self) -> None:
        """Do what finish() will do where it changes nothing: see branch.rehearse()."""
        call(self._drop)
        call(_flush_all)
        self.flush()

    def _drop(self) -> None:
        """Let go of the code's own objects: their files are closed, and their finalizers run."""
        for name in list(self._namespace):
            if name not in self._before:
                self._namespace.pop(name, None)
            elif self._namespace[name] is not self._before[name]:
                self._namespace[name] = self._before[name]
        _collect()


def _hold() -> None:
    """Before a fork: a SIGTERM that comes too early for the fork's own handler would be lost."""
    _mask(_BLOCK, {_SIGTERM})


def _release() -> None:
    _mask(_UNBLOCK, {_SIGTERM})


def _flush(stream: Any) -> None:
    stream.flush()


def _print(stream: Any, text: str) -> None:
    stream.write(text)
    stream.flush()


def _flush_all() -> None:
    """Flush the files that code has left open, text before bytes. The interpreter's own aren't among gc's objects."""
    buffers = []
    for found in _get_objects():
        bases = mro(type(found))
        if _text in bases:
            call(_flush, found)
        elif _buffers[0] in bases or _buffers[1] in bases:
            buffers.append(found)
    for found in buffers:
        call(_flush, found)
