"""A branch: it waits on its line, becomes what a `go` frame says, and runs code, once or as a kernel.

Foreign code runs in this process, and can do to it what it likes. Accidents don't matter: what a reply needs was bound
before, stands in builtins of its own, or is put back (`_builtins`).

Frames from the caller: go, run, fork, end. To it: one reply for each run and fork; before any, `{"failed": {...}}` if
`go` can't be done, and the branch ends with status 127. In a reply to a run,

has_value: the code ends with an expression, whose value isn't None.
value: that value, if it is JSON; else it is absent, and no_value says why.
type, repr: of that value.
mime: the value's bundle beside plain text, or None.
exit: the status by which the code wants to exit, if it does.
truncated: which of value, repr, mime, displays miss something.
"""

from __future__ import annotations

import builtins
import os
import signal
import time
from typing import Any, NoReturn

from . import ending, interrupts, start
from .channel import LARGEST, Channel, LostError, encode
from .children import Forks
from .execution import Execution
from .interrupts import call, settle
from .results.displays import Displays
from .results.exceptions import record
from .results.values import NoValueError, as_json, as_text, mro, type_name

_VALUE_BYTES = 1 << 20
_MIME_BYTES = 8 << 20
_DEPTH = 64

# Bound: see above.
_getpid = os.getpid
_exit = os._exit
_builtins = vars(builtins)


class Branch:
    """What runs in a branch, for good."""

    def __init__(self, line: Channel, namespace: dict[str, Any], displays: Displays, forks: Forks) -> None:
        """Take the line; nothing is done yet.

        namespace: of the module __main__.
        displays: where display() and plt.show() put what they show.
        forks: makes forks of a kernel, and watches them.
        """
        self._line = line
        self._displays = displays
        self._execution = Execution(namespace)
        self._ending = ending.Ending(namespace)
        self._forks = forks
        self._pid = _getpid()
        self._is_kernel = False
        self._ballast: bytearray | None = bytearray(1 << 20)  # room for the report of a MemoryError
        self._own_builtins = dict(_builtins)

    def serve(self) -> NoReturn:
        """Wait for frames, and do what they say, until the end."""
        try:
            interrupts.install(self._line.has_more)
            start.settle()
            while True:
                self._next()
        except LostError:
            self._leave(0)
        finally:
            _exit(70)

    def _next(self) -> None:
        state = interrupts.state
        state.is_idle = True
        self._forks.await_frame(self._line)
        state.is_idle = False
        frame = self._line.receive()
        kind = frame.get("op")
        if kind == "run":
            self._run(frame)
        elif kind == "go":
            self._go(frame)
        elif kind == "fork":
            self._fork(frame)
        elif kind == "end":
            self._leave(0)

    def _go(self, frame: dict[str, Any]) -> None:
        fds = self._line.fds
        self._line.fds = []
        self._is_kernel = bool(frame.get("kernel"))
        try:
            start.prepare(frame, fds, self._line)
        except start.StartError as error:
            self._line.send({"failed": {"what": error.what, "errno": error.error, "message": str(error)}})
            _exit(127)

    # ---- run --------------------------------------------------------------------------------------------------------

    def _run(self, frame: dict[str, Any]) -> None:
        limits = frame.get("limits") or {}
        execution, displays = self._execution, self._displays
        value_bytes, depth = limits.get("value_bytes", _VALUE_BYTES), limits.get("depth", _DEPTH)
        displays.start(limits.get("mime_bytes", _MIME_BYTES), depth)
        if frame.get("inputs"):
            execution.namespace.update(frame["inputs"])
        name = execution.remember(frame.get("name") or "<python>", frame["code"])
        if self._is_kernel:
            interrupts.renew()
        value, has_value, error = execution.run(frame["code"], name)
        settle()
        if self._is_copy():
            self._leave(self._ending.report(error, self._told(error)))
        foreign = self._restored_builtins()
        reply: dict[str, Any] = {"id": frame.get("id"), "done": True, "has_value": False, "repr": None, "type": None}
        reply.update(exception=None, exit=None, displays=displays.bundles, mime=None, truncated=[])
        call(self._finish_displays, value)
        if has_value and value is not None:
            self._add_value(reply, value, value_bytes, depth)
        if error is not None:
            self._add_error(reply, error)
        reply["displays"] = displays.bundles
        if displays.is_short:
            reply["truncated"].append("displays")
        settle()
        self._end_run(reply, error)
        if foreign is not None:
            _builtins.clear()
            _builtins.update(foreign)

    def _finish_displays(self, value: Any) -> None:
        self._displays.figures(value)

    def _add_value(self, reply: dict[str, Any], value: Any, size: int, depth: int) -> None:
        reply["has_value"] = True
        reply["type"] = type_name(type(value))
        said, error = call(as_text, value, size)
        reply["repr"], is_short = said if error is None else ("...", True)
        new, error = call(as_json, value, depth, size)
        if error is None:
            reply["value"] = new
        else:
            reply["no_value"] = str(error) if type(error) is NoValueError else "reading it was interrupted"
        was_short, self._displays.is_short = self._displays.is_short, False
        reply["mime"], error = call(self._displays.bundle, value)
        if self._displays.is_short or error is not None:
            reply["truncated"].append("mime")
        self._displays.is_short = was_short
        if is_short:
            reply["truncated"].append("repr")

    def _told(self, error: BaseException | None) -> dict[str, Any] | None:
        if error is None:
            return None
        told, failure = call(record, error, self._execution.sources)
        if failure is None:
            return dict(told)
        name = type_name(type(error))
        why = f"{name}: nothing more can be said ({type_name(type(failure))} meanwhile)"
        return {"type": name, "module": None, "message": why, "traceback": why + "\n", "notes": [], "lines": []}

    def _add_error(self, reply: dict[str, Any], error: BaseException) -> None:
        if MemoryError in mro(type(error)):
            self._ballast = None
        if SystemExit in mro(type(error)):
            reply["exit"] = ending.exit_status(error)
        else:
            reply["exception"] = self._told(error)

    def _end_run(self, reply: dict[str, Any], error: BaseException | None) -> None:
        """Send the reply, after all output of the code; end a branch that has run its code."""
        is_last = not self._is_kernel or reply["exit"] is not None
        status = self._ending.report(error, reply["exception"]) if is_last else 0
        self._ending.flush()
        interrupts.state.is_idle = True  # from here on a signal isn't meant for this run
        interrupts.state.is_pending = False
        self._line.send_bytes(_encoded(reply))
        if is_last:
            self._leave(status)

    def _restored_builtins(self) -> dict[str, Any] | None:
        """Put Python's builtins back where code has changed them; return what it has made of them, or None."""
        own = self._own_builtins
        if _builtins.keys() == own.keys() and all(_builtins[name] is own[name] for name in own):
            return None
        theirs = dict(_builtins)
        _builtins.update(own)
        return theirs

    # ---- processes --------------------------------------------------------------------------------------------------

    def _is_copy(self) -> bool:
        """Return whether this is another process, which foreign code has forked: it must not talk on the line."""
        return _getpid() != self._pid

    def _fork(self, frame: dict[str, Any]) -> None:
        fds = self._line.fds
        self._line.fds = []
        line = self._forks.fork(frame.get("id"), fds, self._line)
        if line is not None:  # in the fork
            self._line = line
            self._pid = _getpid()
            interrupts.install(line.has_more)

    def _leave(self, status: int) -> NoReturn:
        """End this process: what the code has registered for its end runs, and what it has written is flushed."""
        try:
            interrupts.state.is_idle = False
            self._ending.finish(wait=not self._is_kernel)
        finally:
            if status >= 0:
                _exit(status)
            signal.signal(-status, signal.SIG_DFL)
            os.kill(_getpid(), -status)
            time.sleep(1)  # the signal ends it at once
            _exit(128 - status)


def _encoded(reply: dict[str, Any]) -> bytes:
    """Return a reply as bytes: without what makes it too large, or what can't be said."""
    for left_out in ((), ("displays",), ("mime",), ("value",), ("repr",), ("exception",)):
        for name in left_out:
            reply[name] = [] if name == "displays" else None
            reply["truncated"].append(name)
        text, error = call(encode, reply)
        if error is None and len(text) <= LARGEST:
            return bytes(text.encode("ascii"))
    return bytes(encode({"id": reply["id"], "done": True, "truncated": ["all"]}).encode("ascii"))
