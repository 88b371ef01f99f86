"""What a user types at a terminal to have something run."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from nsbox_testing.terminals import NSBOX

RUN = f"{NSBOX} run"
PYTHON = shlex.quote(sys.executable)
WAYS = ("", f"{RUN} -- ", f"{RUN} --keep-session -- ", f"{RUN} --host -- ")  # the first is the control


def words(line: str) -> list[str]:
    return shlex.split(f"{RUN} {line}")


def code(text: str, workspace: Path) -> str:
    """Return a command that runs Python code."""
    name = f"p{len(list(workspace.iterdir()))}.py"
    (workspace / name).write_text(text)
    return f"{PYTHON} -ISu {name}"


def running(workspace: Path) -> str:
    """Return a command that says that it is running. It dies of each signal at once; a shell may be about to fork."""
    text = "import signal\nsignal.signal(2, signal.SIG_DFL)\nsignal.signal(18, lambda *_: print('again'))\n"
    return code(f"{text}print('running')\nwhile True: signal.pause()", workspace)
