r"""The streams of a shell that another program drives: it writes a command line, then a marker that the shell prints.

The streams pass everything on, and know which command runs, and when it has ended. So a failed command's output can be
followed by what the sandbox refused. What the driver writes at a command's end is

    printf 'MARKER %s\n' $?

and what it looks for on stdout is a line that begins with MARKER, followed by the status. Any other way of driving a
shell passes through unchanged.
"""

from __future__ import annotations

import codecs
import fcntl
import io
import re
import select
import struct
import termios
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from nsbox import NetworkRecord, hints
from nsbox.integrations._status import shell_status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsbox import NetworkEvent, Policy, Popen

_END = re.compile(r"printf '(\w+) %s\\n' \$\?\n")
_EXIT = "exit\n"  # what the driver writes to end the shell
_PIECE = 1 << 16  # bytes that one read returns, and characters of the longest line that is passed on as one
_MARKER = 256  # characters, among them a whole marker, that a piece of a line leaves to the next one
_TAIL = 1 << 16  # characters of each stream that are kept, to find out why a command failed
_PATIENCE = 5.0  # seconds that stdout waits for stderr's reader
_HINTS = 5  # lines that may follow a command's output, and for which room is kept
_HINT = 400  # bytes for each
_MOST_HELD = 10_000, 4 << 20  # lines and characters


class Limits:
    """How many lines and bytes of a command's output the driver keeps: what follows those is lost."""

    def __init__(self, lines: int, size: int | None) -> None:
        self._lines, self._size = lines, size
        self.reset()

    def reset(self) -> None:
        """Begin with another command."""
        self._count = self._bytes = 0

    def add(self, line: str) -> None:
        """Count a line."""
        self._count += 1
        self._bytes += len(line.encode("utf-8", "replace"))

    def has_room(self, lines: int, size: int) -> bool:
        """Return whether the driver would keep this much more."""
        return self._count + lines <= self._lines and (self._size is None or self._bytes + size <= self._size)


class Shell:
    """A shell's process, and its command that runs. Its streams replace those of the Popen.

    limits: None: the driver gets no reasons if a command fails.

    Near the limit of what the driver keeps, lines are held back until the command ends. So the reasons for its failure
    can come before the lines that the driver cuts off.
    """

    def __init__(self, process: Popen[Any], policy: Policy, program: str, limits: Limits | None) -> None:
        self.process, self._policy, self._program, self._limits = process, policy, program, limits
        self._held: list[str] = []
        self._held_chars = 0
        self.lock = threading.Condition()
        self.marker = ""  # of the command that runs
        self._line = ""
        self._seen: NetworkEvent | None = None
        self.is_ending = False
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        self.stdout, self.stderr = Output(self, process.stdout), Output(self, process.stderr)
        streams: tuple[Any, Any, Any] = Input(self, process.stdin), self.stdout, self.stderr
        process.stdin, process.stdout, process.stderr = streams

    def end(self) -> None:
        """End the shell and everything that it has started."""
        with self.lock:
            self.is_ending = True
        self.process.kill(grace=2)
        self.process.wait()

    def write(self, text: str) -> str:
        """Return what is to be written to the shell instead of what the driver writes."""
        with self.lock:
            if text == _EXIT and self.marker:  # a command runs, so the shell doesn't read this
                self.process.terminate()
            end = _END.fullmatch(text)
            if end is None:
                if not self.marker:
                    self._begin(text.removesuffix("\n"))
                return text
            self.marker = end[1]
            return f"printf '{self.marker} %s %s\\n' $? \"$PWD\"\n"

    def _begin(self, line: str) -> None:
        self._line = line
        self.stdout.tail = self.stderr.tail = ""
        events = self.process.sandbox.network.events
        self._seen = events[-1] if events else None
        if self._limits is not None:
            self._limits.reset()

    def lines(self, line: str, *, is_stderr: bool) -> list[str]:
        """Return what a line becomes for the driver."""
        with self.lock:
            marker = self.marker
            before, found, after = line.partition(f"{marker} ")
            if not marker:
                return [line]
            if is_stderr or not found:
                return self._passed(line, is_stderr=is_stderr)
            shown = self._passed(before, is_stderr=False) if before else []  # output without a newline at its end
            status, _, cwd = after.strip("\n").partition(" ")
            shown = self._with_why(shown, status, cwd)
            self.marker = ""
            return [*shown, f"{marker} {status}\n"]

    def _passed(self, line: str, *, is_stderr: bool) -> list[str]:
        limits = self._limits
        if limits is None:
            return [line]
        if not self._held and limits.has_room(_HINTS + 1, len(line) * 4 + _HINTS * _HINT):
            limits.add(line)
            return [line]
        self._held.append(f"[stderr] {line}" if is_stderr else line)  # as the driver marks it
        self._held_chars += len(line)
        is_much = len(self._held) > _MOST_HELD[0] or self._held_chars > _MOST_HELD[1]
        return self._released() if is_much else []

    def _released(self) -> list[str]:
        held, self._held, self._held_chars = self._held, [], 0
        assert self._limits is not None
        for line in held:
            self._limits.add(line)
        return held

    def _with_why(self, shown: list[str], status: str, cwd: str) -> list[str]:
        """Return the lines before the marker."""
        if self._limits is None or not status.isdecimal():
            return shown
        self._await_stderr()
        why = [f"[sandbox] {hint}\n" for hint, _ in zip(self._why(int(status), cwd), range(_HINTS), strict=False)]
        size = sum(len(line.encode()) for line in [*self._held, *why])
        is_cut = not self._limits.has_room(len(self._held) + len(why), size)
        rest = self._released()
        lines = shown if is_cut else [*shown, *rest]
        if why and lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        return [*lines, *why, *(rest if is_cut else [])]

    def last_lines(self) -> list[str]:
        """Return what the driver gets after the last line: if this was ended from outside, the end of its command."""
        with self.lock:
            marker, self.marker = self.marker, ""
            rest = self._released() if self._held else []
            if not (marker and self.is_ending):
                return rest
        return [*rest, f"{marker} {shell_status(self.process.wait())}\n"]

    def settle(self) -> None:
        """After its end, wait until its readers have noticed, so that no descriptor is left."""
        if self.process.poll() is not None:
            with self.lock:
                self.lock.wait_for(lambda: self.stdout.is_over and self.stderr.is_over, _PATIENCE)

    def _await_stderr(self) -> None:
        """Wait until what was in stderr's pipe is read: the command wrote it before the marker."""
        aim = self.stderr.count + self.stderr.waiting()
        self.lock.wait_for(lambda: self.stderr.is_over or self.stderr.count >= aim, _PATIENCE)

    def _why(self, status: int, cwd: str) -> Iterator[str]:
        events = self.process.sandbox.network.events
        start = events.index(self._seen) + 1 if self._seen in events else 0
        why = hints(
            self._policy,
            status,
            self.stdout.tail,
            self.stderr.tail,
            cwd=cwd if cwd.startswith("/") else None,
            usage=self.process.sandbox.usage,
            args=self._line,
            shell=self._program,
            network=NetworkRecord(events=events[start:]),
        )
        return (str(hint).replace("\n", " ") for hint in why)


class Input(io.TextIOBase):
    """The shell's stdin, as a text stream.

    The shell gets nothing before flush(). So the marker is known before its command prints: the driver writes both and
    then flushes.
    """

    def __init__(self, shell: Shell, pipe: Any) -> None:
        self._shell, self._pipe = shell, pipe
        self._text = ""  # what was written since the last flush()

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of the pipe."""
        return int(self._pipe.fileno())

    def write(self, text: str) -> int:
        """Keep it for flush(). Raises ValueError if it is closed."""
        self._check()
        self._text += self._shell.write(text)
        return len(text)

    def flush(self) -> None:
        """Write all of it. A shell that has ended by itself looks like one that hangs, which its driver replaces.

        Raises BrokenPipeError if the shell was ended from outside, and ValueError if this is closed.
        """
        self._check()
        text, self._text = self._text, ""
        data = memoryview(text.encode("utf-8", "surrogateescape"))
        try:
            while data:
                data = data[self._pipe.write(data) :]
        except BrokenPipeError:
            if self._shell.is_ending:
                raise

    def _check(self) -> None:
        if self.closed:
            raise ValueError("the stream is closed")

    def close(self) -> None:
        """Flush and close it. If the shell has ended, its readers have noticed when this returns."""
        try:
            if not self.closed:
                self.flush()
        finally:
            self._pipe.close()
            self._shell.settle()

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return bool(self._pipe.closed)


class Output(io.TextIOBase):
    """The shell's stdout or stderr, as a text stream, for one reader.

    count: how many bytes were read.
    tail: the end of what the present command has printed.
    is_over: whether there is nothing more to read.
    """

    def __init__(self, shell: Shell, pipe: Any) -> None:
        self._shell, self._pipe = shell, pipe
        self._decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
        self._poller = select.poll()
        self._poller.register(pipe.fileno(), select.POLLIN)
        self._text = ""  # what has come after the last newline
        self._lines: deque[str] = deque()
        self._ready: list[str] = []
        self.count, self.tail, self.is_over = 0, "", False

    def readable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of the pipe."""
        return int(self._pipe.fileno())

    def waiting(self) -> int:
        """Return how many bytes are in the pipe."""
        if self.is_over:
            return 0
        return int(struct.unpack("i", fcntl.ioctl(self._pipe.fileno(), termios.FIONREAD, b"\0" * 4))[0])

    def readline(self, size: int | None = -1) -> str:  # type: ignore[override]
        """Return the next line, whatever the size; "" at the end."""
        while not self._ready:
            line = self._next()
            if not line:
                self._ready = self._shell.last_lines() if self is self._shell.stdout else []
                return self._ready.pop(0) if self._ready else ""
            self._ready = self._shell.lines(line, is_stderr=self is self._shell.stderr)
        return self._ready.pop(0)

    def _next(self) -> str:
        """Return the next line, with its newline, or a piece of a long one; "" at the end."""
        while not self._lines and not self.is_over:
            self._read()
            head, newline, self._text = self._text.rpartition("\n")
            if newline:
                self._lines.extend(f"{line}\n" for line in head.split("\n"))
            if len(self._text) >= _PIECE:
                self._lines.append(self._text[:-_MARKER])
                self._text = self._text[-_MARKER:]
        if self._lines:
            return self._lines.popleft()
        rest, self._text = self._text, ""
        return rest

    def _read(self) -> None:
        self._poller.poll()
        shell = self._shell
        with shell.lock:
            data = self._pipe.read(_PIECE) or b""
            text = self._decoder.decode(data, final=not data)
            self.count += len(data)
            self.tail = (self.tail + text)[-_TAIL:]
            self._text += text
            self.is_over = not data
            if not data:
                self._pipe.close()
            shell.lock.notify_all()
        if not data:
            shell.process.wait()  # the driver doesn't, after it has killed it

    def read(self, size: int | None = -1) -> str:
        """Return all that is left, whatever the size."""
        return "".join(iter(self.readline, ""))

    def close(self) -> None:
        """Close it."""
        self.is_over = True
        self._pipe.close()
        super().close()
