"""A branch: it waits on its line, becomes what a `go` frame says, and runs code, once or as a kernel.

Foreign code runs in this process, and can do to it what it likes. Accidents don't matter: what a reply needs was bound
before, stands in builtins of its own, or is put back.

Frames from the caller: go, run, fork, sync, end, and answers (results/functions.py). To it: first `{"begun": true}`,
then one reply for each run (results/reply.py), fork and sync. Where `go` can't be done, `{"failed": {...}}` stands for
all that, and the branch ends with status 127.

A SIGINT may come after the reply to the call that it was meant for. A caller that has sent one sends `sync` after that
reply: once that is answered, no earlier signal interrupts anything.
"""

from __future__ import annotations

import _signal
import os
import socket
import time
from typing import Any, NoReturn

from . import interrupts, start
from .channel import Channel, LostError, encode
from .children import Forks, rights
from .ending import Ending
from .environment.prelude import Prelude
from .results.functions import Functions
from .results.reply import Runs, encoded

_REHEARSED = {
    "op": "run",
    "id": 0,
    "code": "print(end='')\n_ = 6\n_ * 7",
    "name": "<python>",
    "inputs": None,
    "limits": {"value_bytes": 1 << 20, "mime_bytes": 8 << 20, "depth": 64},
}
_MOST_REHEARSED = 1 << 16  # bytes: what a socket holds, though nobody reads yet

# Bound: see above.
_getpid = os.getpid
_exit = os._exit
_write = os.write
_kill = os.kill
_set_handler, _SIG_DFL = _signal.signal, _signal.SIG_DFL
_sleep = time.sleep


def rehearse(runs: Runs, times: int) -> None:
    """Begin, run a piece of code, and reply, for nothing, on a line that nobody reads.

    In the interpreter: so that Python has adapted this program's code before it is forked. In a branch, while it is
    parked: so that the pages that a run writes to are its own already. Each page would take 2 to 4 us later.
    """
    runs.take()
    try:
        ours, theirs = socket.socketpair()
    except OSError:  # no descriptor is free: then the first run takes longer
        return
    line = Channel(theirs.detach())
    try:
        for _ in range(times):
            _rehearse(runs, ours, line)
    finally:
        line.close()
        ours.close()


def _rehearse(runs: Runs, ours: socket.socket, line: Channel) -> None:
    frame, fds = start.unchanged()
    begin = _framed(frame)
    ours.sendmsg([begin if len(begin) < _MOST_REHEARSED else _framed({"op": "go"})], rights(fds))
    frame = line.receive()
    fds, line.fds = line.fds, []
    start.prepare(frame, fds, line)
    line.send({"begun": True})
    ours.send(_framed(_REHEARSED))
    reply, _ = runs.run(line.receive())
    if reply is not None:
        line.send_bytes(encoded(reply))
    runs.execution.forget()
    ours.recv(_MOST_REHEARSED)


def _framed(frame: dict[str, Any]) -> bytes:
    content = encode(frame).encode("ascii")
    return len(content).to_bytes(4, "little") + content


def _formatted(error: BaseException) -> str:
    """Return an exception of this program, as text, though code may have damaged the standard library."""
    places, found = [], error.__traceback__
    while found is not None:
        places.append(f"{found.tb_frame.f_code.co_name}:{found.tb_lineno}")
        found = found.tb_next
    return f"{type(error).__name__}: {error} ({' > '.join(places)})"


class Branch:
    """What runs in a branch, for good."""

    def __init__(
        self, line: Channel, runs: Runs, rehearsal: Runs, forks: Forks, prelude: Prelude | None = None
    ) -> None:
        """Take the line; nothing is done yet.

        runs: run the code, in the module __main__.
        rehearsal: runs a piece of code for nothing.
        forks: makes forks of a kernel, and watches them.
        prelude: what is still to be done before the first code.
        """
        self._line = line
        self._prelude = prelude
        self._runs, self._rehearsal = runs, rehearsal
        runs.take()
        self._ending = Ending(runs.execution.namespace)
        self._forks = forks
        self._functions = Functions(runs.execution.namespace)
        self._is_kernel = False
        os.register_at_fork(after_in_child=self._lose_line)

    def _lose_line(self) -> None:
        """In a fork: leave the line, so that it ends with this process, and no other reads what comes later."""
        try:
            self._line.close()
        except (LostError, OSError):
            pass

    def serve(self) -> NoReturn:
        """Wait for frames, and do what they say, until the end."""
        try:
            start.settle()
            rehearse(self._rehearsal, 1)
            self._ending.rehearse()
            interrupts.install(self._line.has_more)
            while True:
                self._next()
        except LostError:
            self._leave(0)
        except BaseException as error:
            _write(2, f"nsbox: a branch has failed: {_formatted(error)}\n".encode("utf-8", "backslashreplace"))
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
        elif kind == "sync":
            state.is_pending = False
            self._line.send({"id": frame.get("id"), "synced": True})
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
        self._line.send({"begun": True})  # no code has run yet, so the caller can believe the first frame

    def _run(self, frame: dict[str, Any]) -> None:
        """Run code; send the reply, after all output of the code; end a branch that has run it."""
        if self._is_kernel:
            interrupts.renew()
        stdin = start.replaced_stdin(self._line) if frame.get("stdin") else None
        if self._prelude is not None:
            if self._runs.begin(self._prelude):
                self._prelude = None
                self._line.send({"id": frame.get("id"), "prepared": True})
            if _getpid() != self._runs.pid:  # what was done has forked
                self._leave(0)
        self._functions.begin(self._line, frame)
        reply, error = self._runs.run(frame)
        self._functions.end()
        if stdin is not None:
            interrupts.call(start.restore_stdin, stdin)
        try:
            self._reply(reply, error)
        finally:
            del error  # as in interrupts.py

    def _reply(self, reply: dict[str, Any] | None, error: BaseException | None) -> None:
        if reply is None:
            self._leave(self._ending.report(error, self._runs.told(error) if error is not None else None))
        is_last = not self._is_kernel or reply["exit"] is not None
        status = self._ending.report(error, reply["exception"]) if is_last else 0
        self._ending.flush()
        content = encoded(reply)
        interrupts.state.is_idle = True  # from here on a signal isn't meant for this run
        interrupts.state.is_pending = False
        self._line.send_bytes(content)
        if is_last:
            self._leave(status)

    def _fork(self, frame: dict[str, Any]) -> None:
        fds = self._line.fds
        self._line.fds = []
        line = self._forks.fork(frame.get("id"), fds, self._line)
        if line is not None:  # in the fork
            self._line = line
            self._runs.pid = _getpid()
            interrupts.install(line.has_more)

    def _leave(self, status: int) -> NoReturn:
        """End this process: what the code has registered for its end runs, and what it has written is flushed."""
        try:
            interrupts.state.is_idle = False
            self._ending.finish(wait=not self._is_kernel)
        finally:
            if status >= 0:
                _exit(status)
            _set_handler(-status, _SIG_DFL)
            _kill(_getpid(), -status)
            _sleep(1)  # the signal ends it at once
            _exit(128 - status)
