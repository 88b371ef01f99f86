"""nsbox's bwrap, started and awaited."""

from __future__ import annotations

import contextlib
import select
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

SHARED = ("--dev-bind", "/", "/")
OWN_PID = (*SHARED, "--unshare-pid", "--proc", "/proc")
AS_PID_1 = (*OWN_PID, "--as-pid-1")
KINDS = pytest.mark.parametrize("options", [SHARED, OWN_PID, AS_PID_1], ids=["caller's pids", "own pids", "as pid 1"])


def run(*command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run to the end; the output is text in which no byte is lost."""
    return subprocess.run(command, capture_output=True, text=True, errors="surrogateescape", timeout=30, **options)


def heed() -> None:
    """Ignore nothing: tests in the background of a shell are started with SIGINT and SIGQUIT ignored, by nohup SIGHUP."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def started(*command: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a command that says when it is up; what is left of its output ends with the last process that has it."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=heed, **options) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        try:
            yield process
        finally:
            process.kill()


def is_over(process: subprocess.Popen[str]) -> bool:
    """Wait for the end of all that write to its output; False if something goes on."""
    assert process.stdout is not None
    return bool(select.select([process.stdout], [], [], 30)[0]) and process.stdout.read() == ""
