"""The record of one call in a kernel: what the code's program has replied, and what became of the kernel."""

from __future__ import annotations

import signal

from nsbox._base.display import seconds_phrase
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen, replace
from nsbox._lifetime.usage import Usage
from nsbox._python.reply import Reply
from nsbox._python.result import PythonResult
from nsbox._tools import hints
from nsbox._tools.verdicts import Hint

if TYPE_CHECKING:
    from typing import Literal

    from nsbox._calls.output import Output
    from nsbox._policy.policy import Policy

FRESH = "reset() begins a fresh one"


@frozen
class Stop(Frozen):
    """Why and how a call was ended early.

    cause: "timeout", or "cancelled" by a CancelToken or interrupt().
    by: the signal that ended it: "SIGINT", or "SIGKILL", which has ended the kernel too.
    timeout: the time limit in seconds. grace: seconds between the two signals.
    """

    cause: Literal["timeout", "cancelled"]
    by: Literal["SIGINT", "SIGKILL"]
    timeout: float
    grace: float

    def hint(self, *, has_ended: bool) -> Hint:
        """Return it as a hint. has_ended: whether the kernel has ended with it."""
        when = f"after {seconds_phrase(self.timeout)}, the time limit of this call" if self.cause == "timeout" else ""
        first = f"it was interrupted {when}" if when else "it was cancelled: it was interrupted"
        if self.by == "SIGINT":
            rest = f"which ended the kernel; {FRESH}" if has_ended else "and the kernel goes on, with its variables"
            return Hint(self.cause, f"{first} (KeyboardInterrupt), {rest}")
        if not self.grace:
            first = f"it was killed {when}" if when else "it was cancelled, and killed"
            return Hint(self.cause, f"{first}: the kernel has ended, and its variables are gone; {FRESH}")
        late = f"went on for {seconds_phrase(self.grace)}, the grace time, and was killed"
        return Hint(self.cause, f"{first}, {late}: the kernel has ended, and its variables are gone; {FRESH}")


@frozen
class Fate(Frozen):
    """How a kernel has ended.

    status: as Popen.returncode. problem: what nsbox ended it for; "": nothing.
    is_orphan: whether it is a fork, and the kernel that it was forked from has ended, too.
    """

    status: int
    usage: Usage | None
    problem: str = ""
    is_orphan: bool = False

    def __str__(self) -> str:
        if self.problem:
            return self.problem
        if self.status < 0:
            try:
                name = signal.Signals(-self.status).name
            except ValueError:
                name = f"signal {-self.status}"
            rest = ", and the kernel that it was forked from has ended too" if self.is_orphan else ""
            return f"it was ended by {name}{rest}"
        return f"it has exited with status {self.status}"


@frozen
class CallFacts(Frozen):
    """What is known of a call once it is over.

    code: as the caller gave it. reply: what the code's program has said; None: nothing.
    stop: why it was ended early. fate: how the kernel has ended with it; None: it goes on.
    duration: seconds. usage: of the call; None if the kernel has ended.
    """

    code: str
    reply: Reply | None
    stop: Stop | None
    fate: Fate | None
    duration: float
    usage: Usage | None


def _status(facts: CallFacts) -> int:
    reply, stop, fate = facts.reply, facts.stop, facts.fate
    if fate is not None and (reply is None or reply.exit is None):
        status = fate.status
    elif reply is not None and reply.exit is not None:
        status = reply.exit if fate is None else fate.status
    else:
        status = 0 if reply is None or reply.exception is None else 1
    if stop is not None and (stop.by == "SIGINT" and status >= 0):
        return -signal.SIGINT  # whatever it has returned, it hasn't done its work
    return status


def _usage(facts: CallFacts) -> Usage | None:
    """Return what the call has used. Its cause doesn't contradict the record's, also if the kernel goes on."""
    usage = facts.usage if facts.fate is None else facts.fate.usage
    if usage is None or facts.stop is None:
        return usage
    return replace(usage, cause=facts.stop.cause)


def record(policy: Policy, facts: CallFacts, outputs: tuple[Output, Output]) -> PythonResult:
    """Return the record of a call."""
    status, reply = _status(facts), facts.reply or Reply()
    stdout, stderr = (output.text() for output in outputs)
    usage = _usage(facts)
    return PythonResult(
        args=facts.code,
        returncode=status,
        stdout=stdout,
        stderr=stderr,
        stdout_bytes=outputs[0].count,
        stderr_bytes=outputs[1].count,
        is_truncated=any(output.left_out for output in outputs),
        timed_out=facts.stop is not None and facts.stop.cause == "timeout",
        duration=facts.duration,
        why=_why(policy, facts, status, usage, stdout, stderr),
        usage=usage,
        ended_by=None if facts.stop is None else facts.stop.by,
        cancelled=facts.stop is not None and facts.stop.cause == "cancelled",
        value=reply.value,
        has_value=reply.has_value,
        repr=reply.repr,
        type=reply.type,
        mime=reply.mime,
        displays=reply.displays,
        exception=reply.exception,
        omissions=reply.omissions,
        ended=facts.fate is not None,
    )


def _why(
    policy: Policy, facts: CallFacts, status: int, usage: Usage | None, stdout: str, stderr: str
) -> tuple[Hint, ...]:
    """Return hints: what may have made it fail."""
    found: list[Hint] = []
    if facts.stop is not None:
        found.append(facts.stop.hint(has_ended=facts.fate is not None))
    elif facts.fate is not None and (status or facts.reply is None):
        found.append(Hint("ended", f"the kernel has ended: {facts.fate}; its variables are gone, and {FRESH}"))
    if facts.stop is None and status:
        trace = "" if facts.reply is None or facts.reply.exception is None else facts.reply.exception.traceback
        text = f"{stderr}\n{trace}" if trace else stderr
        if facts.fate is not None and facts.fate.problem:  # nsbox sent the SIGKILL: no guesses about where it came from
            status, usage = 1, None
        found += hints.reasons(policy, status, stdout, text, cwd=None, usage=usage, ending=None)
    return tuple(found)


def not_begun(code: str) -> PythonResult:
    """Return the record of a call that was cancelled before its turn came."""
    return PythonResult(
        args=code,
        returncode=-signal.SIGINT,
        stdout="",
        stderr="",
        stdout_bytes=0,
        stderr_bytes=0,
        is_truncated=False,
        timed_out=False,
        duration=0.0,
        why=(Hint("cancelled", "it was cancelled before it began"),),
        cancelled=True,
    )
