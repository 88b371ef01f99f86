"""The exec tool of an agent: run a shell command in a sandbox, and say in one record what came of it.

    python examples/exec_tool.py 'make && ./a.out'

It never raises for what a command does: a command that hangs, floods its output, eats memory or doesn't exist gives an
Outcome that a language model can read.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import nsbox
from nsbox import Limits, Policy

LIMITS = Limits(memory="2G", cpu_seconds=60, file_size="512M", open_files=512)

_SIGNALS = {
    signal.SIGXCPU: "it used more processor time than limits.cpu_seconds",
    signal.SIGXFSZ: "it wrote a file larger than limits.file_size",
    signal.SIGKILL: "it was killed, perhaps since the machine is short of memory",
    signal.SIGSEGV: "it crashed",
}


@dataclass(frozen=True)
class Outcome:
    """What came of a command. status: its exit status, -N after signal N, None if it was stopped or didn't start."""

    status: int | None
    output: str  # stdout and stderr, in the order they were written
    dropped: int  # bytes left out of the middle of the output
    seconds: float
    problem: str = ""  # why it failed, where the status alone doesn't say it

    def __str__(self) -> str:
        status = "none" if self.status is None else str(self.status)
        notes = [f"status {status}", f"{self.seconds:.1f} s", *filter(None, [self.problem])]
        return f"[{', '.join(notes)}]\n{self.output}"


class _HeadAndTail:
    """The first and the last bytes of a stream; what lies between is counted and forgotten."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._seen = 0

    def add(self, data: bytes) -> None:
        self._seen += len(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail = (self._tail + data[room:])[-self._half :]

    @property
    def dropped(self) -> int:
        return self._seen - len(self._head) - len(self._tail)

    def text(self) -> str:
        gap = f"\n[... {self.dropped} bytes left out ...]\n".encode() if self.dropped else b""
        return bytes(self._head + gap + self._tail).decode(errors="replace")


class ExecTool:
    """Runs shell commands in one workspace, each in a sandbox of its own; only the workspace outlives a command."""

    def __init__(self, policy: Policy, *, timeout: float = 30.0, max_output: int = 20_000) -> None:
        self.policy = policy
        self.timeout = timeout
        self.max_output = max_output

    def run(self, command: str, timeout: float | None = None) -> Outcome:
        """Run a shell command to its end, at most timeout seconds."""
        start = time.monotonic()
        end = start + (self.timeout if timeout is None else timeout)
        kept = _HeadAndTail(self.max_output)
        try:
            with nsbox.Popen(
                command,
                shell=True,
                policy=self.policy,
                stdin=nsbox.DEVNULL,
                stdout=nsbox.PIPE,
                stderr=nsbox.STDOUT,
            ) as process:
                status = self._follow(process, kept, end)
        except (OSError, nsbox.NsboxError) as error:  # no command ran: the sandbox can't be made, say
            return Outcome(None, "", 0, time.monotonic() - start, f"{type(error).__name__}: {error}")
        problem = "stopped: it took too long" if status is None else _why(status)
        return Outcome(status, kept.text(), kept.dropped, time.monotonic() - start, problem)

    def _follow(self, process: nsbox.Popen, kept: _HeadAndTail, end: float) -> int | None:
        """Read all output until the command ends; None: the time was over, and nothing of it is left."""
        assert process.stdout is not None
        try:
            while select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                data = os.read(process.stdout.fileno(), 1 << 16)
                if not data:
                    return process.wait(timeout=max(0.0, end - time.monotonic()))
                kept.add(data)
        except nsbox.TimeoutExpired:
            pass
        process.kill()  # ends every process of the sandbox
        process.wait()
        return None


def _why(status: int) -> str:
    if status >= 0:
        return ""
    number = signal.Signals(-status)
    return f"{number.name}: {_SIGNALS[number]}" if number in _SIGNALS else number.name


def main(commands: list[str]) -> None:
    """Run the commands in the current directory, one after the other."""
    tool = ExecTool(Policy.workspace(Path.cwd(), limits=LIMITS), timeout=10)
    for command in commands:
        print(f"$ {command}\n{tool.run(command)}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["echo hello; id -u", "cat /etc/shadow", "kill -SEGV $$"])
