"""Functions of the caller's, which a kernel's code may call: a call goes out as a frame, and its answer comes as one.

To the caller: `{"id": RUN, "call": {"n": COUNT, "name": NAME, "args": [...], "kwargs": {...}}}`. From it:
`{"op": "answer", "n": COUNT, "value": ...}`, or "error", with a type and a message, instead of "value".

The line belongs to the thread that runs the code, so no other may call. A call that is interrupted while it waits is
forgotten: its answer, when it comes, is skipped.
"""

from __future__ import annotations

import _thread
import builtins
import os
from typing import Any, Callable

from ..channel import Channel, encode
from ..interrupts import hold

LARGEST = 4 << 20  # bytes of a call

# Bound: code that runs here may replace them.
_getpid = os.getpid
_get_ident = _thread.get_ident
_hold = hold
_encode = encode
_ERRORS = {
    name: kind for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)
}
_TypeError, _ValueError, _RuntimeError = TypeError, ValueError, RuntimeError
_RecursionError = RecursionError


class Functions:
    """The functions that code in one namespace may call."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        """There are none yet."""
        self._namespace = namespace
        self._names: set[str] = set()
        self._line: Channel | None = None
        self._number: Any = None  # of the run
        self._count = 0
        self._owner = (0, 0)

    def begin(self, line: Channel, frame: dict[str, Any]) -> None:
        """Let a run's code call the functions that its frame names."""
        names = frame.get("functions") or ()
        if not names:
            return
        for name in names:
            if name not in self._names:  # the code may have put something else there since
                self._names.add(name)
                self._namespace[name] = self._function(name)
        self._line, self._number, self._owner = line, frame.get("id"), (_getpid(), _get_ident())

    def end(self) -> None:
        """Let nothing be called any more."""
        self._line = None

    def _function(self, name: str) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            return self._call(name, args, kwargs)

        function.__name__ = function.__qualname__ = name
        function.__module__ = "__main__"
        return function

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        line = self._line
        if line is None or self._owner != (_getpid(), _get_ident()):
            raise _RuntimeError(f"{name}() can be called only by the thread that runs the code, while it runs")
        self._count += 1
        count = self._count
        call = {"n": count, "name": name, "args": args, "kwargs": kwargs}
        try:
            content = _encode({"id": self._number, "call": call}).encode("ascii")
        except (_TypeError, _ValueError, _RecursionError) as error:
            raise _TypeError(f"{name}(): the arguments must be values that JSON has: {error}") from None
        if len(content) > LARGEST:
            raise _ValueError(f"{name}(): {len(content)} bytes of arguments are more than {LARGEST}")
        answer = self._exchange(line, content, count)
        told = answer.get("error")
        if told is None:
            return answer.get("value")
        raise _exception(told["type"], told["message"])

    def _exchange(self, line: Channel, content: bytes, count: int) -> dict[str, Any]:
        """Send a call, and wait for its answer. A signal may interrupt the waiting, but no frame."""
        _hold(True)
        try:
            line.send_bytes(content)
        finally:
            _hold(False)
        while True:
            line.wait()
            _hold(True)
            try:
                frame = line.receive()
            finally:
                _hold(False)
            if frame.get("op") == "answer" and frame.get("n") == count:
                return frame


def _exception(kind: str, message: str) -> Exception:
    """Return the exception of that name, if Python has it."""
    if kind in _ERRORS:
        try:
            found: Exception = _ERRORS[kind](message)
            return found
        except _TypeError:  # it has parts of its own, as UnicodeDecodeError
            pass
    return _RuntimeError(f"{kind}: {message}")
