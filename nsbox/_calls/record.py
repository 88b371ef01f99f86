"""ToolResult: what a command did and, if it failed, why, as one value."""

from __future__ import annotations

import json
import subprocess

from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._lifetime import ends
from nsbox._network.log import NetworkRecord

if TYPE_CHECKING:
    from typing import Any, Literal

    from nsbox._lifetime.usage import Usage
    from nsbox._tools.verdicts import Hint

    Cause = Literal["exit", "signal", "timeout", "cancelled", "limit", "not-started", "unknown"]

SCHEMA = "nsbox.result/1"
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # the statuses of a shell for such programs


class NeverStartedError(subprocess.CalledProcessError):
    """A call that was cancelled before its command was started, for check=True."""

    def __str__(self) -> str:
        return f"Command {self.cmd!r} was cancelled before it was started."


@frozen
class ToolResult(Frozen):
    """What a command did and, if it failed, why.

    args: as the caller gave them.
    returncode: the exit status; -N after signal N; 127 for a program that doesn't exist, 126 for one that can't be
        executed. A command that was ended (timed_out, cancelled) and then exited with 0 has -15, since it hasn't done
        its work.
    stdout, stderr: text (bytes that aren't UTF-8 become U+FFFD), with a note in the middle if some was left out.
    stdout_bytes, stderr_bytes: how many bytes there were.
    is_truncated: whether some of stdout or stderr was left out.
    timed_out: whether it was ended for taking too long.
    duration: seconds from the call until nothing of the command was left.
    why: what in the policy may have made it fail, a sentence each; () if it hasn't failed.
    usage: the resources that it used, and why it ended; None if it wasn't started.
    shell: the shell that read the command line, as a path in the sandbox; None if none did.
    ended_by: if it took too long or was cancelled, the signal after which nothing was left: "SIGTERM" (in the grace
        time) or "SIGKILL"; otherwise None.
    background_output: a file in the session. The command has left processes running, and what they print from then on
        goes there. None if no such process has its streams.
    cancelled: whether it was ended by a CancelToken, by a cancelled asyncio or trio task, or by its handle.
    network: its connections under a network list; empty without one.
    audit_id: what its audit records and lines of the log have as `id`; None if there are none.
    """

    args: Any
    returncode: int
    stdout: str
    stderr: str
    stdout_bytes: int
    stderr_bytes: int
    is_truncated: bool
    timed_out: bool
    duration: float
    why: tuple[Hint, ...] = ()
    usage: Usage | None = None
    shell: str | None = None
    ended_by: str | None = None
    background_output: str | None = None
    cancelled: bool = False
    network: NetworkRecord = NetworkRecord()
    audit_id: str | None = None

    @property
    def signal(self) -> str | None:
        """The name of the signal that ended it, such as "SIGKILL"."""
        return ends.signal_name(self.returncode)

    @property
    def cause(self) -> Cause:
        """Why it ended: as Usage.cause, or "not-started" for a program that can't be started."""
        if self.cancelled:
            return "cancelled"
        if self.timed_out:
            return "timeout"
        return "not-started" if self.usage is None else self.usage.cause

    def check_returncode(self) -> None:
        """Raise CalledProcessError unless the exit status is 0."""
        if self.returncode:
            kind = NeverStartedError if self.cancelled and self.usage is None else subprocess.CalledProcessError
            raise kind(self.returncode, self.args, self.stdout, self.stderr)

    def as_dict(self) -> dict[str, object]:
        """Return it as values for JSON, for a model. `schema` changes when the meaning of a key does."""
        network = self.network
        return {
            "schema": SCHEMA,
            **ends.words(self.returncode, self.cause),
            "timed_out": self.timed_out,
            "cancelled": self.cancelled,
            "ended_by": self.ended_by,
            "background_output": self.background_output,
            "duration": round(self.duration, 3),
            "stdout": self.stdout,
            "stderr": self.stderr,
            "stdout_bytes": self.stdout_bytes,
            "stderr_bytes": self.stderr_bytes,
            "truncated": self.is_truncated,
            "shell": self.shell,
            "why": [{"kind": hint.kind, "message": hint.message} for hint in self.why],
            "usage": None if self.usage is None else self.usage.as_dict(),
            "network": {
                "allowed": network.allowed,
                "refused": network.refused,
                "failed": network.failed,
                "sent": network.sent,
                "received": network.received,
            },
        }

    def as_json(self) -> str:
        """Return as_dict() as JSON."""
        return json.dumps(self.as_dict())
