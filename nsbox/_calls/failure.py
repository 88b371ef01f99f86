"""Starting a command, with the first shell that exists, and the records of commands that weren't started."""

from __future__ import annotations

import errno
import os
import signal
import time
import traceback

from nsbox._base.display import printable
from nsbox._base.errors import NsboxError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._calls.record import NOT_EXECUTABLE, NOT_FOUND, ToolResult
from nsbox._layout.owner import remedy
from nsbox._lookup.host import host_for
from nsbox._tools import hints
from nsbox._tools import shell as tools_shell
from nsbox._tools.verdicts import Hint
from nsbox._tools.view import view

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from nsbox._policy.policy import Policy
    from nsbox._popen.popen import Popen


OWN = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC)
)  # what this process lacks; the program isn't to blame


def started(
    start: Callable[..., Popen[bytes]], policy: Policy, argv: list[str], shells: tuple[str, ...], **options: Any
) -> tuple[Popen[bytes], str | None]:
    """Start a command, and return it with the shell that reads it: the first one that exists."""
    if not shells:
        return start(argv, **options), None

    def start_by(shell: str) -> tuple[Popen[bytes], str]:
        return start([shell, *(shell if word is tools_shell.ITSELF else word for word in argv)], **options), shell

    candidates = list(shells)
    while len(candidates) > 1:
        shell = candidates.pop(0)
        try:
            return start_by(shell)
        except OSError as error:
            is_shells = error.filename is not None and os.fsdecode(error.filename) == shell
            if isinstance(error, NsboxError) or error.errno == errno.E2BIG or not is_shells:
                raise
            if len(candidates) == len(shells) - 1:
                candidates = [*tools_shell.likely(policy, candidates[:-1]), candidates[-1]]
    return start_by(candidates[0])


def not_started(
    error: OSError,
    policy: Policy,
    argv: list[str],
    args: Any,
    cwd: str | None,
    began: float,
    shells: tuple[str, ...],
    audit_id: str | None,
) -> ToolResult:
    """Return the result that a shell would give for a program that can't be started.

    Raises AccessError if the working directory is the problem.
    """
    shown = os.fsdecode(error.filename)
    cwd = policy.workdir if cwd is None else cwd
    if cwd is not None and shown in (cwd, os.path.realpath(cwd)) and shown != argv[0]:
        instead = remedy(policy, host_for(policy), os.path.realpath(cwd)) if error.errno == errno.EACCES else ""
        problem = f"is no directory in the sandbox ({error.strerror}){instead and f': {instead}'}"
        raise view(policy).refusal(cwd, problem, write=False) from None
    text = f"{shown}: {error.strerror}\n"
    status = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    why = hints.reasons(policy, status, "", text, cwd=cwd, usage=None, ending=None)
    if not shells and " " in argv[0] and status == NOT_FOUND:
        advice = f"{printable(argv[0])!r} has blanks: give arguments as a list, or use shell()"
        why = (Hint("missing-program", advice), *why)
    if error.errno == errno.E2BIG:
        why = (_too_long(argv),)
    elif shells:
        why = (hints.no_shell(shells), *(hint for hint in why if hint.kind != "missing-program"))
    return ToolResult(
        args=args,
        returncode=status,
        stdout="",
        stderr=text,
        stdout_bytes=0,
        stderr_bytes=len(text.encode()),
        is_truncated=False,
        timed_out=False,
        duration=time.monotonic() - began,
        why=why,
        audit_id=audit_id,
    )


def _too_long(argv: list[str]) -> Hint:
    """Return the hint for more arguments than the kernel takes: a model can shorten them."""
    longest = max(len(os.fsencode(word)) for word in argv)
    which = (
        f"the longest argument has {longest} bytes"
        if longest >= 32 * os.sysconf("SC_PAGE_SIZE")
        else "no argument alone is too long"
    )
    return Hint(
        "limit",
        "arguments and variables are too long for the kernel (Linux usually takes 128 KiB in each, and 2 MiB in all); "
        f"{which}: write long text to a file, or send it as input",
    )


def clear(error: BaseException | None) -> None:
    """Let go of what an error's frames hold, such as what was kept for a command: the error may be kept for long."""
    seen: set[int] = set()
    todo = [error]
    while todo:
        one = todo.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            todo += [one.__context__, one.__cause__]


def cancelled(args: Any) -> ToolResult:
    """Return the record of a command that was cancelled before it was started."""
    return ToolResult(
        args=args,
        returncode=-signal.SIGTERM,
        stdout="",
        stderr="",
        stdout_bytes=0,
        stderr_bytes=0,
        is_truncated=False,
        timed_out=False,
        duration=0.0,
        why=(Hint("cancelled", "it was cancelled before it was started"),),
        cancelled=True,
    )
