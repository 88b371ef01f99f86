"""What was typed at the prompt: kept in nsbox's own directory of the user, which no command sees."""

from __future__ import annotations

import contextlib
import os

_MOST = 2000  # lines that are kept
_NAME = "python_history"


class History:
    """The lines of earlier prompts, for the arrow keys. Without a directory, or without readline, it does nothing."""

    def __init__(self, directory: str) -> None:
        """Load them. directory: nsbox's directory for state; "" if the user has none."""
        self._path = os.path.join(directory, _NAME) if directory else ""
        try:
            import readline  # input() uses it from now on
        except ImportError:  # an interpreter that was built without it
            self._path = ""
            return
        self._readline = readline
        readline.set_auto_history(False)
        readline.set_history_length(_MOST)
        if self._path:
            try:
                os.makedirs(directory, mode=0o700, exist_ok=True)
                os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
                readline.read_history_file(self._path)
            except OSError:
                self._path = ""

    def add(self, block: str) -> None:
        """Keep the lines of a block. They are written now, since a terminal may be closed at any time."""
        readline = getattr(self, "_readline", None)
        lines = [line for line in block.split("\n") if line.strip()]
        if readline is None or not lines:
            return
        for line in lines:
            readline.add_history(line)
        append = getattr(readline, "append_history_file", None)  # libedit has none before Python 3.13
        if self._path and append is not None:
            with contextlib.suppress(OSError):
                append(len(lines), self._path)
