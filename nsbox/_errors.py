"""What can go wrong, by whose fault.

    NsboxError
     |- PolicyError(ValueError)        the wish is malformed or contradictory; names the field
     |   '- ConfigError                  a configuration file; all that is wrong with it, with lines (_config_errors)
     |- UnavailableError(OSError)      this machine can't; lists the reasons and the remedy of each
     |- SetupError(OSError)            a step of the set-up failed; names the step and the op
     |   |- IdsError(PermissionError)        user=, group= or extra_groups= can't be had
     |   '- ProcessesError(BlockingIOError)  no room for another process
     |- AccessError(PermissionError)   a path is outside of the sandbox; says what is inside
     |- KillError                      what was killed doesn't end; says which processes are left
     |- ConflictError                  a transaction's changes, and others of the same; says which
     '- CommitError(OSError)           a step of a commit failed; says whether it has been undone

From IdsError on they are in _rare_errors. Failures of the command's own exec are the standard library's:
FileNotFoundError, PermissionError, NotADirectoryError.
"""

from __future__ import annotations

import errno

from nsbox._early import os
from nsbox._frozen import Frozen, frozen


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
        from nsbox._names import printable  # seldom needed

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
        from nsbox._names import printable  # seldom needed

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
        from nsbox._names import printable  # seldom needed

        return printable(f"{text}; {self.hint}" if self.hint else text)
