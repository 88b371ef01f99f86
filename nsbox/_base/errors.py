"""What can go wrong, by whose fault.

    NsboxError
     |- PolicyError(ValueError)        the wish is malformed or contradictory; names the field
     |   '- ConfigError                  a configuration file; all that is wrong with it, with lines (_config.errors)
     |- UnavailableError(OSError)      this machine can't; lists the reasons and the remedy of each
     |- SetupError(OSError)            a step of the set-up failed; names the step and the op
     |   |- IdsError(PermissionError)        user=, group= or extra_groups= can't be had
     |   '- ProcessesError(BlockingIOError)  no room for another process
     |- AccessError(PermissionError)   a path is outside of the sandbox; says what is inside
     |- KillError                      what was killed doesn't end; says which processes are left
     |- ConflictError                  a transaction's changes, and others of the same; says which
     '- CommitError(OSError)           a step of a commit failed; says whether it has been undone

Failures of the command's own exec are the standard library's:
FileNotFoundError, PermissionError, NotADirectoryError.
"""

from __future__ import annotations

import errno

from nsbox._base.display import printable, shown
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._base.lean_os import os

if TYPE_CHECKING:
    from collections.abc import Sequence


class NsboxError(Exception):
    """Base of all errors that are nsbox's own."""


class PolicyError(NsboxError, ValueError):
    """A policy, or a part of one, makes no sense; `field` names the part."""

    def __init__(self, field: str, problem: str) -> None:
        """Say which field it is, and what is wrong with it."""
        super().__init__(field, problem)
        self.field = field
        self.problem = problem

    def __str__(self) -> str:
        return printable(f"{self.field}: {self.problem}")


@frozen
class Reason(Frozen):
    """One thing that this machine lacks, and how to get it ("" where there is no way)."""

    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.what} (remedy: {self.remedy})" if self.remedy else self.what


class UnavailableError(NsboxError, OSError):
    """This machine can't grant a policy; `reasons` says why, and what would help."""

    reasons: tuple[Reason, ...]

    def __init__(self, *reasons: Reason) -> None:
        """List every reason, not just the first."""
        super().__init__(errno.ENOTSUP, "; ".join(map(str, reasons)))
        self.reasons = reasons

    def __reduce__(self) -> tuple[type[UnavailableError], tuple[Reason, ...], dict[str, object]]:
        return type(self), self.reasons, self.__dict__

    def __str__(self) -> str:
        return printable(f"this machine can't do it: {'; '.join(map(str, self.reasons))}")


class SetupError(NsboxError, OSError):
    """A step between clone and exec failed, so that no command ran.

    `errno` is the kernel's; `step` says what was being done, `op` which op of the plan (its one-line description, None
    outside of one); `hint` what may help, or "".
    """

    def __init__(self, number: int, step: str, op: str | None = None, hint: str = "") -> None:
        """Take the errno, the step's name, the op's description and a hint."""
        super().__init__(number, os.strerror(number))
        self.step = step
        self.op = op
        self.hint = hint

    def __reduce__(self) -> tuple[type[SetupError], tuple[int, str, str | None, str], dict[str, object]]:
        return type(self), (self.errno or 0, self.step, self.op, self.hint), self.__dict__

    def __str__(self) -> str:
        where = f"{self.op}: {self.step}" if self.op else self.step
        text = f"{where}: {self.strerror}"
        return printable(f"{text}; {self.hint}" if self.hint else text)


class StaleError(SetupError):
    """What was kept for many commands doesn't fit any more. Never leaves the package: the command is started anew."""


class IdsError(SetupError, PermissionError):
    """The ids asked for by user=, group= or extra_groups= can't be had; a PermissionError as with subprocess.Popen."""


class ProcessesError(SetupError, BlockingIOError):
    """There is no room for another process; a BlockingIOError (EAGAIN) as with subprocess.Popen."""


class AccessError(NsboxError, PermissionError):
    """A path is outside of the sandbox; the message says which paths are inside."""

    def __init__(self, path: str, problem: str) -> None:
        """Name the path, and say what is wrong with it."""
        super().__init__(errno.EACCES, problem, path)

    def __str__(self) -> str:
        return printable(f"{self.filename} {self.strerror}")

    def __reduce__(self) -> tuple[type[AccessError], tuple[str, str], dict[str, object]]:
        return type(self), (str(self.filename), self.strerror or ""), self.__dict__


@frozen
class Survivor(Frozen):
    """A process that is left of what was killed.

    state: what it does, as proc_pid_status(5) says it. tracer: the pid of who traces it, without whom it can't end; 0.
    """

    pid: int
    name: str
    state: str
    tracer: int

    def __str__(self) -> str:
        traced = f", traced by {self.tracer}" if self.tracer else ""
        return f"pid {self.pid} ({self.name!a}, state {self.state}{traced})"


class KillError(NsboxError):
    """A sandbox was killed, and hasn't ended. `survivors` says what is left of it; waiting can be tried again."""

    def __init__(self, seconds: float, survivors: Sequence[Survivor]) -> None:
        """Say how many seconds ago it was killed, and what is left."""
        super().__init__(seconds, tuple(survivors))
        self.seconds, self.survivors = seconds, tuple(survivors)

    def __str__(self) -> str:
        listed = ", ".join(map(str, self.survivors[:10])) or "nothing that can be seen"
        more = f" and {len(self.survivors) - 10} more" if len(self.survivors) > 10 else ""
        return f"killed {self.seconds:.0f} seconds ago, and not all has ended: {listed}{more} is left"


class ConflictError(NsboxError):
    """What a transaction has changed was changed in the workspace meanwhile too; nothing has been committed.

    Or they aren't what was reviewed. `conflicts`: paths, relative to the workspace, and what happened to each there:
    "changed" (or made), "deleted"; "isn't what was reviewed".
    """

    def __init__(self, conflicts: Sequence[tuple[str, str]], what: str = "", remedy: str = "") -> None:
        """List all of them. what: the sentence's beginning, if they aren't about the workspace; remedy: what to do."""
        super().__init__(tuple(conflicts), *([what, remedy] if what else []))
        self.conflicts = tuple(conflicts)
        self._what = what or "changed in the workspace since the transaction began"
        self._remedy = f" (remedy: {remedy})" if remedy else ""

    def __str__(self) -> str:
        listed = ", ".join(f"{shown(path)} ({what})" for path, what in self.conflicts[:10])
        more = f" and {len(self.conflicts) - 10} more" if len(self.conflicts) > 10 else ""
        return f"{self._what}: {listed}{more}{self._remedy}"


class CommitError(NsboxError, OSError):
    """A commit failed. `step` says at what; `is_undone`: nothing was changed; else the journal remains."""

    def __init__(self, error: OSError, step: str, *, is_undone: bool = True) -> None:
        """Take the error that was the cause."""
        super().__init__(error.errno or errno.EIO, error.strerror or str(error))
        self.filename = error.filename
        self.step, self.is_undone = step, is_undone

    def __str__(self) -> str:
        state = "nothing was changed" if self.is_undone else "the workspace may be changed in part: see recover()"
        at = f" ({shown(os.fsdecode(self.filename))})" if self.filename else ""
        return f"{printable(self.step)}: {printable(self.strerror or '')}{at}; {state}"

    def __reduce__(self) -> tuple[object, ...]:
        error = OSError(self.errno, self.strerror, self.filename)
        return _commit_error, (error, self.step, self.is_undone), self.__dict__


def _commit_error(error: OSError, step: str, is_undone: bool) -> CommitError:
    return CommitError(error, step, is_undone=is_undone)


# Tracebacks and pickles say nsbox.AccessError: where a user finds it, wherever it is defined.
for _error in (
    *(NsboxError, PolicyError, UnavailableError, SetupError, IdsError, ProcessesError),
    *(AccessError, KillError, ConflictError, CommitError, Reason, Survivor),
):
    _error.__module__ = "nsbox"
