"""Errors that a program which starts one command needn't have classes for; _errors shows where they belong."""

from __future__ import annotations

import errno

from nsbox._early import os
from nsbox._errors import NsboxError, SetupError
from nsbox._frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._names import printable, shown

if TYPE_CHECKING:
    from collections.abc import Sequence


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
        shown = ", ".join(map(str, self.survivors[:10])) or "nothing that can be seen"
        more = f" and {len(self.survivors) - 10} more" if len(self.survivors) > 10 else ""
        return f"killed {self.seconds:.0f} seconds ago, and not all has ended: {shown}{more} is left"


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
