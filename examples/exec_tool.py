"""The exec tool of an agent: run a shell command in a sandbox, and say in one record what came of it.

    python examples/exec_tool.py 'make && ./a.out'

It never raises for what a command does: a command that hangs, floods its output, eats memory or doesn't exist gives a
text that a language model can read.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nsbox
from nsbox import Limits, Policy, Sandbox

LIMITS = Limits(memory="2G", cpu_seconds=60, file_size="512M", open_files=512)


class ExecTool:
    """Runs shell commands in one workspace, each in a sandbox of its own; only the workspace outlives a command."""

    def __init__(self, policy: Policy, *, timeout: float = 30.0, max_output: int = 20_000) -> None:
        self.box = Sandbox(policy)
        self.timeout = timeout
        self.max_output = max_output

    def run(self, command: str) -> str:
        """Run a shell command to its end, or to the end of its time."""
        try:
            result = self.box.shell(command, timeout=self.timeout, max_output=self.max_output)
        except (OSError, ValueError, nsbox.NsboxError) as error:
            # No command ran: the sandbox can't be made, say, or the line has a NUL.
            return f"[not started, {type(error).__name__}: {error}]\n"
        how = result.signal or f"status {result.returncode}"
        notes = ", ".join([how, f"{result.duration:.1f} s", *map(str, result.why)])
        return f"[{notes}]\n{result.stdout}{result.stderr}"


def main(commands: list[str]) -> None:
    """Run the commands in the current directory, one after the other."""
    tool = ExecTool(Policy.workspace(Path.cwd(), limits=LIMITS), timeout=10)
    with tool.box:
        for command in commands:
            print(f"$ {command}\n{tool.run(command)}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["echo hello; id -u", "touch /usr/x", "kill -SEGV $$"])
