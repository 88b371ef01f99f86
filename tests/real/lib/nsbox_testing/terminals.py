"""A user at a terminal: a program on a real pseudo-terminal, what is typed there, and what is shown."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

NSBOX = f"{sys.executable} -P -m nsbox"
PROMPT = "OUT> "
_PATIENCE = 40.0  # seconds, after which what is awaited isn't going to come


class Screen:
    """A program whose controlling terminal is one of ours, of which it is the session's leader."""

    def __init__(
        self,
        command: Sequence[str],
        cwd: Path,
        env: Mapping[str, str] | None = None,
        size: tuple[int, int] = (24, 80),
    ) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(cwd)
                set_size(0, size)
                for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
                    signal.signal(number, signal.SIG_DFL)
                os.execvpe(command[0], list(command), dict(os.environ) | {"TERM": "xterm"} | dict(env or {}))
            finally:
                os._exit(126)
        self.shown = ""
        self._seen = 0
        self._status: int | None = None

    def __repr__(self) -> str:
        return f"<Screen {self.shown!r} {self.shown[self._seen :]!r}>"

    # ---- at the keyboard

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def line(self, text: str) -> None:
        self.type(f"{text}\r")

    def resize(self, rows: int, columns: int) -> None:
        set_size(self.fd, (rows, columns))

    def settings(self) -> list[object]:
        return termios.tcgetattr(self.fd)

    # ---- on the screen

    def _read(self, until: float) -> bool:
        """Take what is shown; False: it has come to its end."""
        if not select.select([self.fd], [], [], max(0.0, until - time.monotonic()))[0]:
            raise TimeoutError(repr(self))
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.shown += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)

    def until(self, pattern: str, patience: float = _PATIENCE) -> str:
        """Wait for something to be shown, after what was awaited last; return what has come before it."""
        until = time.monotonic() + patience
        while (found := re.compile(pattern).search(self.shown, self._seen)) is None:
            if not self._read(until):
                raise EOFError(f"{pattern!r} isn't in {self.shown[self._seen :]!r}")
        before = self.shown[self._seen : found.start()]
        self._seen = found.end()
        return before

    def rest(self) -> str:
        """Return all that is still shown, up to the end."""
        until = time.monotonic() + _PATIENCE
        while self._read(until):
            pass
        rest, self._seen = self.shown[self._seen :], len(self.shown)
        return rest

    # ---- the end

    def status(self) -> int:
        """Return the exit status, -N after signal N."""
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status

    def close(self) -> None:
        """Close the terminal, as a window is closed."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        if self._status is None:
            os.kill(self.pid, signal.SIGCONT)
            try:
                os.kill(self.pid, signal.SIGKILL)
            finally:
                self.status()


def set_size(fd: int, size: tuple[int, int]) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("4H", *size, 0, 0))


def bash(cwd: Path, **options: object) -> Screen:
    """Return an interactive bash with job control, at its first prompt."""
    screen = Screen(
        ["bash", "--norc", "--noprofile", "--noediting", "-i"],
        cwd,
        {"PS1": PROMPT, "PROMPT_COMMAND": "", "HISTFILE": "", "LC_ALL": "C.UTF-8"},
        **options,  # type: ignore[arg-type]
    )
    screen.until(PROMPT)
    return screen
