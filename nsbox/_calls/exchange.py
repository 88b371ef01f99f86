"""Moves data between this process and a command: its streams, or its terminal."""

from __future__ import annotations

import fcntl
import os
import selectors
import sys
import time

from nsbox._base.checks import check_answer
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._calls.output import CHUNK

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO, Protocol

    from nsbox._calls.inlet import Inlet
    from nsbox._calls.output import Output
    from nsbox._popen.popen import Popen

    class Gate(Protocol):
        """Says whether a caller who reads the output as it comes has room for more."""

        def has_room(self) -> bool:
            """Return whether there is room."""

        def await_room(self, seconds: float) -> bool:
            """Wait for room; return whether there is."""

    class Side(Protocol):
        """A socket besides the streams. It never blocks."""

        @property
        def wants_room(self) -> bool:
            """Whether there is something to write."""

        @property
        def has_ended(self) -> bool:
            """Whether nothing more will come."""

        def fileno(self) -> int:
            """Return its descriptor."""

        def read(self) -> None:
            """Read what there is."""

        def write(self) -> None:
            """Write what there is room for."""

        def drain(self) -> None:
            """Read what is left of a command that has ended."""


_MOST = 4 * CHUNK  # bytes that are read in one step
_F_SETPIPE_SZ = 1031  # fcntl(2), F_SETPIPE_SZ of Linux
GLANCE = 0.05  # seconds; so often it checks whether the command has ended, or was cancelled, while its pipes stay open


class Exchange:
    """Moves data until a command ends or closes its streams, its time is up, or it is cancelled.

    gate: holds back the output, and so the command, while the caller has no room for it; None: it never does.
    side: what is read and written besides.
    """

    def __init__(
        self,
        process: Popen[bytes],
        inlet: Inlet,
        outputs: tuple[Output, Output],
        gate: Gate | None = None,
        side: Side | None = None,
    ) -> None:
        self._process, self._inlet, self._gate, self._side = process, inlet, gate, side
        self._selector = selectors.DefaultSelector()
        self._outputs: dict[IO[bytes], Output] = {}
        self._stdin: IO[bytes] | None
        self._terminal = process.terminal
        self._has_large_pipes = sys.platform == "linux"
        if self._terminal is not None:
            self._outputs[self._terminal], self._stdin = outputs[0], self._terminal
        else:
            assert process.stdout is not None
            assert process.stderr is not None
            self._outputs = {process.stdout: outputs[0], process.stderr: outputs[1]}
            self._stdin = process.stdin
        for stream in self._outputs:
            self._want(stream, selectors.EVENT_READ)
        if not inlet.has_ended:
            self._selector.register(inlet.fd, selectors.EVENT_READ)
        if self._stdin is not None and self._stdin not in self._outputs:
            os.set_blocking(self._stdin.fileno(), False)
        if side is not None:
            self._selector.register(side, selectors.EVENT_READ | (selectors.EVENT_WRITE if side.wants_room else 0))
        self._supply()

    def _want(self, stream: IO[bytes], events: int) -> None:
        """Wait for these events of a stream; 0: for none."""
        present = self._selector.get_map().get(stream)
        if present is None and events:
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, events)
        elif present is not None and not events:
            self._selector.unregister(stream)
        elif present is not None and present.events != events:
            self._selector.modify(stream, events)

    def _supply(self) -> None:
        """If there is data for stdin, wait until stdin accepts it; close stdin if no more data can come."""
        if self._stdin is None:
            return
        reads = selectors.EVENT_READ if self._stdin in self._outputs else 0
        has_ended = self._inlet.has_ended  # look at this first: another thread may send data and then end stdin
        has_data = len(self._inlet.next()) > 0
        if not has_data and has_ended and self._stdin is not self._terminal:
            self._drop_stdin()
        elif not has_data and has_ended:
            self._want(self._stdin, reads)
            self._forget_bell()
            self._stdin = None
        else:
            self._want(self._stdin, reads | (selectors.EVENT_WRITE if has_data else 0))

    def _forget_bell(self) -> None:
        if self._inlet.fd >= 0 and self._inlet.fd in self._selector.get_map():
            self._selector.unregister(self._inlet.fd)

    def _drop_stdin(self) -> None:
        stream, self._stdin = self._stdin, None
        if stream is not None:
            self._forget_bell()
            if stream is not self._terminal:
                self._want(stream, 0)
                stream.close()
            self._inlet.close()

    def _drop_output(self, stream: IO[bytes]) -> None:
        self._outputs.pop(stream)
        self._want(stream, 0)
        if stream is self._terminal:  # stays open until the command's end: closing it is SIGHUP
            self._drop_stdin()
        else:
            stream.close()

    def _read(self, stream: IO[bytes]) -> None:
        try:
            data = self._read_terminal() if stream is self._terminal else self._read_pipe(stream.fileno())
        except BlockingIOError:
            return
        if data is None:
            return
        self._outputs[stream].feed(data)
        if not data:
            self._drop_output(stream)

    def _read_terminal(self) -> bytes | None:
        """Read what the terminal has; None: nothing now."""
        return None if self._terminal is None else self._terminal.read(CHUNK)

    def _read_pipe(self, fd: int) -> bytes:
        """Read what a pipe has. One that was full gets more room, so that long output needs fewer steps."""
        data = os.read(fd, _MOST)
        if len(data) == CHUNK and self._has_large_pipes:
            try:
                fcntl.fcntl(fd, _F_SETPIPE_SZ, _MOST)
            except OSError:  # this user has many large pipes already (pipe(7), pipe-user-pages-soft)
                self._has_large_pipes = False
        return data

    def _write(self) -> None:
        data = self._inlet.next()
        if self._stdin is None or not len(data):
            return
        try:
            self._inlet.drop(os.write(self._stdin.fileno(), data))
        except BlockingIOError:
            return
        except OSError as error:  # EPIPE, or EIO of a terminal: the command doesn't want the rest
            check_answer(error)
            self._drop_stdin()
            return
        self._supply()

    def _step_aside(self, side: Side, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            side.write()
        if events & selectors.EVENT_READ:
            side.read()
        if side.has_ended:
            self._selector.unregister(side)
        elif events & selectors.EVENT_WRITE and not side.wants_room:
            self._selector.modify(side, selectors.EVENT_READ)

    def _step(self, key: selectors.SelectorKey, events: int, *, with_output: bool = True) -> None:
        if self._side is not None and key.fileobj is self._side:
            self._step_aside(self._side, events)
            return
        if key.fileobj == self._inlet.fd:
            self._inlet.hush()
            self._supply()
            return
        if events & selectors.EVENT_WRITE:
            self._write()
        if with_output and events & selectors.EVENT_READ and key.fileobj in self._outputs:
            self._read(key.fileobj)

    def run(self, deadline: float | None, is_stopped: Callable[[], bool] | None) -> bool:
        """Return whether the command ended in time, and before it was stopped.

        A command that ends has ended, even if other processes hold its streams open.
        """
        glance = time.monotonic() + GLANCE
        while self._selector.get_map():
            now = time.monotonic()
            if (deadline is not None and now >= deadline) or (is_stopped is not None and is_stopped()):
                if self._process.poll() is None:
                    return False
                break
            if now >= glance:  # also while other processes keep writing
                if self._process.poll() is not None:
                    break
                glance = now + GLANCE
            left = (glance if deadline is None else min(glance, deadline)) - now
            has_room = self._gate is None or self._gate.has_room() or self._gate.await_room(left)
            for key, events in self._selector.select(left if has_room else 0):
                self._step(key, events, with_output=has_room)
        return self._ends(deadline, is_stopped)

    def _ends(self, deadline: float | None, is_stopped: Callable[[], bool] | None) -> bool:
        """Wait for the end of a command whose streams are closed; return as run()."""
        if deadline is None and is_stopped is None:
            self._process.wait()
            return True
        while True:
            left = GLANCE if deadline is None else max(0.001, deadline - time.monotonic())
            if self._process.ends_within(min(left, GLANCE) if is_stopped is not None else left):
                return True
            if is_stopped is not None and is_stopped():
                return False
            if deadline is not None and time.monotonic() >= deadline:
                return False

    def drain(self) -> None:
        """Read what an ended command left in its pipes, but no more than a pipe holds: others may still write."""
        for _ in range(64):
            ready = [key.fileobj for key, _ in self._selector.select(0) if key.fileobj in self._outputs]
            if not ready:
                break
            for stream in ready:
                self._read(stream)
        if self._side is not None:
            self._side.drain()

    def left_open(self) -> list[int]:
        """Return the pipes that other processes hold open although the command has ended."""
        return [] if self._terminal is not None else [stream.fileno() for stream in self._outputs]

    def close(self) -> None:
        """Close the streams."""
        self._drop_stdin()
        for stream in list(self._outputs):
            self._drop_output(stream)
        if self._terminal is not None:
            self._terminal.close()
        self._selector.close()
        self._inlet.close()
