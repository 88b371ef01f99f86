"""Names of OpenTelemetry's semantic conventions, and of ours where there is none.

Spans are the client (caller) spans of "Semantic conventions for CLI programs", whose status is "development": a span is
named by process.executable.name, its kind is CLIENT, and an exit code other than 0 is an error.
TRACEPARENT and TRACESTATE are those of "Environment Variables as Context Propagation Carriers", a release candidate.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsbox._logs.observers import Story

EXECUTABLE_NAME = "process.executable.name"
EXIT_CODE = "process.exit.code"
PID = "process.pid"
COMMAND_ARGS = "process.command_args"
ERROR_TYPE = "error.type"

KIND = "nsbox.kind"
BACKEND = "nsbox.backend"
POLICY_DIGEST = "nsbox.policy.digest"
CAUSE = "nsbox.cause"
SIGNAL = "nsbox.signal"
RECORD_ID = "nsbox.audit.id"
VERDICT = "nsbox.network.verdict"
REASON = "nsbox.network.reason"

DURATION = "nsbox.command.duration"
ACTIVE = "nsbox.command.active"
REFUSALS = "nsbox.command.refusals"
NETWORK_VERDICTS = "nsbox.network.verdicts"

# In seconds: commands start in milliseconds, and a build takes minutes.
BUCKETS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
VARIABLES = ("TRACEPARENT", "TRACESTATE")


def executable(story: Story) -> str:
    """Return the name of a command's program, without its directory and without what isn't visible."""
    from nsbox._base.display import encodable, printable

    return printable(encodable(os.path.basename(os.fsdecode(story.program))))[:256] or "unknown"


def exit_code(status: int) -> int:
    """Return an exit code as a shell has it: 128+N after signal N."""
    return status if status >= 0 else 128 - status
