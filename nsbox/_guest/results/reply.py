"""A run, and the reply to it.

has_value: the code ends with an expression, whose value isn't None.
value: that value, if JSON has it; otherwise it is absent, and no_value says why.
type, repr: of that value.
mime: the value's bundle beside plain text, or None.
exception: a record (exceptions.py), or None.
exit: the status with which the code wants to exit, if it does.
displays: the bundles of what was displayed.
truncated: which of repr, mime, displays and so on aren't complete.
"""

from __future__ import annotations

import builtins
import mmap
import os
from typing import Any

from ..channel import LARGEST, encode
from ..environment.prelude import Failure, Prelude
from ..execution import Execution
from ..interrupts import call
from .displays import Displays
from .exceptions import record
from .values import DEPTH, NoValueError, as_json, as_text, mro, plain, type_name

_VALUE_BYTES = 1 << 20
_MIME_BYTES = 8 << 20

_NOTE = "this was the {} of the interpreter, which each run does itself here: Python.why_cold says why"

# Bound: code that runs here may replace them.
_getpid = os.getpid
_builtins = vars(builtins)
_exit_code = vars(SystemExit)["code"].__get__


class Runs:
    """Runs code in one namespace, and makes the replies."""

    def __init__(self, namespace: dict[str, Any], displays: Displays) -> None:
        """Nothing is run yet.

        namespace: of the module __main__.
        displays: where display() and plt.show() put what they show.
        """
        self.displays = displays
        self.execution = Execution(namespace)
        self.pid = _getpid()
        # Room for the report of a MemoryError. Nothing is written there: each page would cost each branch a fault.
        self._ballast: mmap.mmap | None = mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE)
        self._failure: Failure | None = None
        self._note_builtins()

    def _note_builtins(self) -> None:
        self._own = dict(_builtins)
        self._ids = tuple(map(id, _builtins.values()))

    def take(self) -> None:
        """Belong to this process. It is made before the fork, since to look at all builtins costs a fork 100 faults."""
        self.pid = _getpid()

    def begin(self, prelude: Prelude) -> bool:
        """Do what happens before the first code; return whether that worked. If not, the next run's reply says why."""
        self._failure = prelude.failure()
        self._note_builtins()
        return self._failure is None

    def run(self, frame: dict[str, Any]) -> tuple[dict[str, Any] | None, BaseException | None]:
        """Run a frame's code; return the reply, and what the code has raised.

        The reply is None in another process, which the code has forked: that must not talk on the line.
        """
        limits = frame.get("limits") or {}
        execution = self.execution
        self.displays.start(limits.get("mime_bytes", _MIME_BYTES), limits.get("depth", DEPTH))
        if self._failure is not None:
            return self._unprepared(frame.get("id"), limits)
        if frame.get("inputs"):
            execution.namespace.update(frame["inputs"])
        name = execution.remember(frame.get("name") or "<python>", frame["code"])
        outcome = execution.run(frame["code"], name)
        try:
            return self._reply(frame.get("id"), outcome, limits), outcome[2]
        finally:
            del outcome  # as in interrupts.py

    def _unprepared(self, number: Any, limits: dict[str, Any]) -> tuple[dict[str, Any] | None, BaseException | None]:
        failure, self._failure = self._failure, None
        assert failure is not None
        reply = self._reply(number, (None, False, failure.error), limits)
        if reply is not None and reply["exception"] is not None:
            reply["exception"]["notes"].append(_NOTE.format(failure.stage))
        return reply, failure.error

    def _reply(
        self, number: Any, outcome: tuple[Any, bool, BaseException | None], limits: dict[str, Any]
    ) -> dict[str, Any] | None:
        value, has_value, error = outcome
        displays = self.displays
        if _getpid() != self.pid:
            return None
        theirs = None if tuple(map(id, _builtins.values())) == self._ids else self._restored_builtins()
        call(displays.figures, value)
        reply = {
            "id": number,
            "done": True,
            "has_value": False,
            "repr": None,
            "type": None,
            "exception": None,
            "exit": None,
            "displays": displays.bundles,
            "mime": None,
            "truncated": ["displays"] if displays.is_short else [],
        }
        if has_value and value is not None:
            self._add_value(reply, value, limits.get("value_bytes", _VALUE_BYTES), limits.get("depth", DEPTH))
        if error is not None:
            self._add_error(reply, error)
        if theirs is not None:
            _builtins.clear()
            _builtins.update(theirs)
        return reply

    def _restored_builtins(self) -> dict[str, Any]:
        """Put Python's builtins back where code has changed them; return what it has made of them."""
        theirs = dict(_builtins)
        _builtins.update(self._own)
        return theirs

    def _add_value(self, reply: dict[str, Any], value: Any, size: int, depth: int) -> None:
        reply["has_value"] = True
        reply["type"] = type_name(type(value))
        said, error = call(as_text, value, size)
        reply["repr"], is_short = said if error is None else ("...", True)
        if is_short:
            reply["truncated"].append("repr")
        new, error = call(as_json, value, depth, size)
        if error is None:
            reply["value"] = new
        else:
            reply["no_value"] = str(error) if type(error) is NoValueError else "reading it was interrupted"
        self.displays.is_short = False
        reply["mime"], error = call(self.displays.bundle, value)
        if self.displays.is_short or error is not None:
            reply["truncated"].append("mime")
        del error  # as in interrupts.py

    def told(self, error: BaseException) -> dict[str, Any]:
        """Return an exception's record, or as much of it as can be had."""
        found, failure = call(record, error, self.execution.sources)
        if failure is None:
            return dict(found)
        name = type_name(type(error))
        why = f"{name}: nothing more can be said ({type_name(type(failure))} meanwhile)"
        return {"type": name, "module": None, "message": why, "traceback": why + "\n", "notes": [], "lines": []}

    def _add_error(self, reply: dict[str, Any], error: BaseException) -> None:
        if MemoryError in mro(type(error)):
            self._ballast = None
        if SystemExit in mro(type(error)):
            reply["exit"] = exit_status(error)
        else:
            reply["exception"] = self.told(error)


def exit_status(error: BaseException) -> int:
    """Return the status that a SystemExit asks for."""
    code = _exit_code(error)
    if code is None:
        return 0
    if int in mro(type(code)):
        number = int.__pos__(code)
        return number & 0xFF if -(2**31) <= number < 2**31 else 0xFF
    return 1


def exit_message(error: BaseException) -> str:
    """Return what a SystemExit wants printed."""
    code = _exit_code(error)
    if code is None or int in mro(type(code)):
        return ""
    text, failure = call(str, code)
    return plain(text, 1 << 20) + "\n" if failure is None else ""


def encoded(reply: dict[str, Any]) -> bytes:
    """Return a reply as bytes: without what makes it too large, or what can't be said."""
    for name in (None, "displays", "mime", "value", "repr", "exception"):
        if name is not None:
            reply[name] = [] if name == "displays" else None
            reply["truncated"].append(name)
        text, error = call(encode, reply)
        if error is None and len(text) <= LARGEST:
            return bytes(text.encode("ascii"))
    return bytes(encode({"id": reply["id"], "done": True, "truncated": ["all"]}).encode("ascii"))
