"""Runs scripts that use the driver, and reads the log of the stub that stands in for libsandbox."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PRELUDE = """\
import errno, os, signal, sys, threading
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):  # ignored in what a shell or nohup starts behind it
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
sys.path.insert(0, {lib!r})
from nsbox_seatbelt_core.driver import *
"""


@dataclass(frozen=True)
class Call:
    """One call of a function of libsandbox. live: what it has given away and not got back, after it."""

    name: str
    args: tuple[str, ...]
    pid: int
    tid: int
    live: int


@dataclass(frozen=True)
class Core:
    """A build of the core. `run` runs a script with the driver's names and returns what it says."""

    directory: Path  # of the extension, the helper and the stub
    log: Path  # of the stub

    def run(self, script: str, *arguments: object, **env: str) -> Any:
        """Return what the script has said last; it fails the test if it ends otherwise than well."""
        done = self.start(script, *arguments, **env)
        try:
            out, err = done.communicate()
        finally:
            if done.returncode is None:  # the test took too long
                os.killpg(done.pid, signal.SIGKILL)
                done.communicate()
        assert (done.returncode, err) == (0, ""), err
        return json.loads(out.splitlines()[-1])

    def start(self, script: str, *arguments: object, **env: str) -> subprocess.Popen[str]:
        """Start a script, with pipes for its output and errors."""
        text = PRELUDE.format(lib=str(Path(__file__).parents[1])) + textwrap.dedent(script)
        given = {"PATH": "/usr/bin:/bin", "NSBOX_DARWIN_DIR": str(self.directory), "NSBOX_STUB_LOG": str(self.log)}
        return subprocess.Popen(
            [sys.executable, "-IB", "-W", "error", "-c", text, *map(str, arguments)],
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE},
            text=True,
            start_new_session=True,
            env=given | env,
        )

    def calls(self) -> list[Call]:
        """Return what the stub has been asked, in all processes."""
        if not self.log.exists():
            return []
        found = []
        for line in self.log.read_text().splitlines():
            row = json.loads(line)
            args = tuple(text.encode("latin-1").decode(errors="surrogateescape") for text in row["args"])
            found.append(Call(row["call"], args, row["pid"], row["tid"], row["live"]))
        return found

    def names(self) -> list[str]:
        """Return the names of the functions that have been called."""
        return [call.name for call in self.calls()]
