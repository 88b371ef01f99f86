"""The exceptions: what can go wrong, and whose fault it is.

    NsboxError
     |- PolicyError(ValueError)        a wish is malformed or contradictory; names the field
     |   '- ConfigError                  a configuration file is wrong; lists everything, with lines (_config.errors)
     |- UnavailableError(OSError)      this machine can't do it; lists the reasons and the remedy of each
     |- SetupError(OSError)            a step of the set-up failed; names the step and the op
     |   |- IdsError(PermissionError)        the command can't have user=, group= or extra_groups=
     |   '- ProcessesError(BlockingIOError)  there is no room for another process
     |- AccessError(PermissionError)   a path is outside of the sandbox; says what is inside
     |- EditError(ValueError)          a file wasn't edited; says how often the text is there (_filetools.edit)
     |- BusyError(ValueError)          something still runs in a task or transaction that has to be at rest
     |- KillError                      a sandbox was killed and doesn't end; says which processes are left
     |- ForkError                      a kernel can't be forked; names the threads in it, if that is why
     |- InterpreterError               a warm interpreter can't be made; says at which stage, and why
     |- ConflictError                  paths that a transaction has changed were changed elsewhere too; lists them
     '- CommitError(OSError)           a step of a commit failed; says whether it has been undone

If the command's own exec fails, the exception is the standard library's: FileNotFoundError, PermissionError,
NotADirectoryError.
"""

from __future__ import annotations

import errno
import os

from nsbox._base.display import printable, seconds_phrase, shown
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen

if TYPE_CHECKING:
    from collections.abc import Sequence


class NsboxError(Exception):
    """The base class of all exceptions that are nsbox's own."""


class PolicyError(NsboxError, ValueError):
    """A policy, or a part of one, makes no sense.

    field: the name of the part, such as "limits.memory".
    problem: what is wrong with it.
    """

    def __init__(self, field: str, problem: str) -> None:
        """Make the exception; the parameters become attributes."""
        super().__init__(field, problem)
        self.field = field
        self.problem = problem

    def __str__(self) -> str:
        return printable(f"{self.field}: {self.problem}")


@frozen
class Reason(Frozen):
    """Something that this machine lacks.

    what: a description.
    remedy: how to get it; "": there is no way.
    """

    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.what} (remedy: {self.remedy})" if self.remedy else self.what


class UnavailableError(NsboxError, OSError):
    """This machine can't grant a policy.

    reasons: every Reason why, with its remedy.
    """

    reasons: tuple[Reason, ...]

    def __init__(self, *reasons: Reason) -> None:
        """Make the exception from all reasons, not only the first; errno is ENOTSUP."""
        super().__init__(errno.ENOTSUP, "; ".join(map(str, reasons)))
        self.reasons = reasons

    def __reduce__(self) -> tuple[type[UnavailableError], tuple[Reason, ...], dict[str, object]]:
        return type(self), self.reasons, self.__dict__

    def __str__(self) -> str:
        return printable(f"this machine can't do it: {'; '.join(map(str, self.reasons))}")


class SetupError(NsboxError, OSError):
    """A step between clone and exec failed, so no command has run.

    errno: the kernel's.
    step: what was being done.
    op: the description of the op of the plan that was being carried out; None: it wasn't an op.
    hint: what may help, or "".
    """

    def __init__(self, number: int, step: str, op: str | None = None, hint: str = "") -> None:
        """Make the exception. number: the errno; the other parameters become attributes."""
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
    """Something that was kept for many commands no longer fits. Users never see it: the command is started again."""


class IdsError(SetupError, PermissionError):
    """The command can't have the ids in user=, group= or extra_groups=. A PermissionError, as with subprocess.Popen."""


class ProcessesError(SetupError, BlockingIOError):
    """There is no room for another process. A BlockingIOError (EAGAIN), as with subprocess.Popen."""


class AccessError(NsboxError, PermissionError):
    """A path is outside of the sandbox; the message says which paths are inside. filename: the path."""

    def __init__(self, path: str, problem: str) -> None:
        """Make the exception. problem: what is wrong with the path, which becomes strerror; errno is EACCES."""
        super().__init__(errno.EACCES, problem, path)

    def __str__(self) -> str:
        return printable(f"{self.filename} {self.strerror}")

    def __reduce__(self) -> tuple[type[AccessError], tuple[str, str], dict[str, object]]:
        return type(self), (str(self.filename), self.strerror or ""), self.__dict__


class BusyError(NsboxError, ValueError):
    """Something still runs in a task or transaction, so its changes can't be committed, or copied. Nothing was done."""


@frozen
class Survivor(Frozen):
    """A process of a killed sandbox that hasn't ended.

    pid: as the caller numbers it.
    name: the name of its program.
    state: the letter of its state, as in proc_pid_status(5).
    tracer: the pid of the process that traces it, without which it can't end; 0: none.
    """

    pid: int
    name: str
    state: str
    tracer: int

    def __str__(self) -> str:
        traced = f", traced by {self.tracer}" if self.tracer else ""
        return f"pid {self.pid} ({self.name!a}, state {self.state}{traced})"


class KillError(NsboxError):
    """A sandbox was killed, and hasn't ended. You can wait for it again.

    seconds: how long ago it was killed.
    survivors: the processes that are left, each a Survivor.
    """

    def __init__(self, seconds: float, survivors: Sequence[Survivor]) -> None:
        """Make the exception; the parameters become attributes."""
        super().__init__(seconds, tuple(survivors))
        self.seconds, self.survivors = seconds, tuple(survivors)

    def __str__(self) -> str:
        listed = ", ".join(map(str, self.survivors[:10])) or "nothing that can be seen"
        more = f" and {len(self.survivors) - 10} more" if len(self.survivors) > 10 else ""
        return f"killed {seconds_phrase(round(self.seconds))} ago, and not all has ended: {listed}{more} is left"


class InterpreterError(NsboxError):
    """A warm interpreter couldn't be made, so no code has run.

    stage: what it was doing: "start" (of the program), "core", "import", "setup", "threads" or "timeout".
    what: what that was about, such as the name of a module or of a thread; "" if nothing in particular.
    problem: what was wrong.
    traceback: the interpreter's own; "" if there is none.
    """

    def __init__(self, stage: str, what: str, problem: str, traceback: str = "") -> None:
        """Make the exception; the parameters become attributes."""
        super().__init__(stage, what, problem, traceback)
        self.stage, self.what, self.problem, self.traceback = stage, what, problem, traceback

    def __str__(self) -> str:
        at = f"{self.stage} {self.what}" if self.what else self.stage
        lines = [printable(line) for line in self.traceback.strip().splitlines()[-6:]]
        return "\n".join([printable(f"no warm interpreter ({at}): {self.problem}"), *lines])


class ForkError(NsboxError):
    """A kernel couldn't be forked; it goes on.

    problem: why; "threads" if threads run in it, which a fork would lack.
    threads: their names.
    """

    def __init__(self, problem: str, threads: tuple[str, ...] = ()) -> None:
        """Make the exception; the parameters become attributes."""
        super().__init__(problem, threads)
        self.problem, self.threads = problem, threads

    def __str__(self) -> str:
        if not self.threads:
            return printable(f"the kernel can't be forked: {self.problem}")
        names = ", ".join(self.threads)
        return printable(f"the kernel can't be forked while threads run in it: {names}; end them first (join())")


class ConflictError(NsboxError):
    """Nothing was committed: paths that a transaction has changed were changed in the workspace too, or after a review.

    conflicts: pairs of a path, relative to the workspace, and what happened to it there: "changed" (or made),
        "deleted", or "isn't what was reviewed".
    """

    def __init__(self, conflicts: Sequence[tuple[str, str]], what: str = "", remedy: str = "") -> None:
        """Make the exception. what: the beginning of the message, unless it is about the workspace. remedy: advice."""
        super().__init__(tuple(conflicts), *([what, remedy] if what else []))
        self.conflicts = tuple(conflicts)
        self._what = what or "changed in the workspace since the transaction began"
        self._remedy = f" (remedy: {remedy})" if remedy else ""

    def __str__(self) -> str:
        listed = ", ".join(f"{shown(path)} ({what})" for path, what in self.conflicts[:10])
        more = f" and {len(self.conflicts) - 10} more" if len(self.conflicts) > 10 else ""
        return f"{self._what}: {listed}{more}{self._remedy}"


class CommitError(NsboxError, OSError):
    """A step of a commit failed.

    errno, strerror, filename: those of the cause.
    step: what was being done.
    is_undone: True: nothing was changed. False: the journal remains, for recover().
    """

    def __init__(self, error: OSError, step: str, *, is_undone: bool = True) -> None:
        """Make the exception. error: the cause."""
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


# Tracebacks and pickles say nsbox.AccessError, the name that users know, not where it is defined.
for _error in (
    *(NsboxError, PolicyError, UnavailableError, SetupError, IdsError, ProcessesError),
    *(AccessError, BusyError, KillError, ForkError, InterpreterError, ConflictError, CommitError, Reason, Survivor),
):
    _error.__module__ = "nsbox"
