"""One op list through both: which ops are refused, and by whose right; what the two sandboxes have become."""

from __future__ import annotations

import contextlib
import errno
import shlex
from collections.abc import Collection, Sequence

import hypothesis

import nsbox
from nsbox import BindData, Chmod, File, Op, Proc, RemountRo, SetupError, Symlink
from nsbox_differential.arena import Arena, Case, Outcome
from nsbox_differential.compare import fact_differences, mount_differences, tree_differences
from nsbox_differential.spoken import Spoken, located
from nsbox_differential.tree import unmarked
from nsbox_differential.view import is_below


def note(text: str) -> None:
    """Show this when the test fails."""
    (hypothesis.note if hypothesis.currently_in_test_context() else print)(text)


def event(text: str) -> None:
    """Count this, for --hypothesis-show-statistics."""
    if hypothesis.currently_in_test_context():
        hypothesis.event(text)


def failing(arena: Arena, ops: Sequence[Op], case: Case, error: SetupError) -> int:
    """Return the index of the op that the error is about."""

    def says(op: Op) -> set[str]:
        full = located(op, arena.nsbox, arena.probe)
        parts = (*full.primitives(), *((Proc(full.dest, cover=True),) if isinstance(full, Proc) else ()))
        return {part.describe() for part in parts}

    suspects = [i for i, op in enumerate(ops) if error.op in says(op)]
    assert suspects, f"{error!r} names no op of the policy"
    while len(suspects) > 1:
        first = suspects.pop(0)
        with contextlib.suppress(FileNotFoundError):  # the probe comes later
            if arena.run_nsbox(ops[: first + 1], case).error is not None:
                return first
    return suspects[0]


def refused_by_design(
    arena: Arena, op: Op, error: SetupError, before: Outcome, theirs: Outcome, links: Collection[str]
) -> bool:
    """Say if nsbox rightly refuses an op that bwrap carries out. before, theirs: bwrap's without it and with it.

    links: those that ops before it have made, for the probe may not search the directory that they are in.
    """
    if unmarked(theirs.host) != arena.pristine:
        return error.step == "would change the host" or isinstance(op, File)
    view = before.view
    assert view is not None, "bwrap has run the probe"
    name, place = view.resolve(arena.neutral(located(op, arena.bwrap).dest))  # type: ignore[attr-defined]
    is_through_link = name != place or op.dest in links  # type: ignore[attr-defined]
    if isinstance(op, File) and (is_through_link or view.mount_of(place).point == place):
        return True
    if isinstance(op, RemountRo) and any(mount.point == place for mount in view.mounts):
        return view.mount_of(place).point != place  # bwrap finds the mount in the table, under another
    if isinstance(op, Chmod) and view.mount_of(place).type in ("proc", "devpts", "mqueue", "devtmpfs"):
        return True
    leads_nowhere = ("stat", place) not in view.facts or error.errno == errno.ELOOP
    return is_through_link and leads_nowhere and not isinstance(op, Chmod | RemountRo)


def limit_of_bwrap(arena: Arena, ops: Sequence[Op], message: str, case: Case) -> str:
    """Return what it is of bwrap 0.8 that makes it alone refuse the last op; "" for nothing known."""
    *before, op = ops
    if isinstance(op, Symlink) and message.endswith(": File exists\n"):
        return "same link"  # if it weren't the same, nsbox would have refused too
    deleted = message.endswith((": No such file or directory\n", '(deleted)" in mount table\n'))
    if deleted and any(isinstance(one, BindData) for one in before):
        return "on bind-data"
    view = arena.run_bwrap(before, case).view
    if message.endswith('" in mount table\n') and view is not None:
        name, place = view.resolve(arena.neutral(located(op, arena.bwrap).dest))  # type: ignore[attr-defined]
        return "covers its own link" if is_below(name, place) and name != place else ""
    return ""


class Comparison:
    """One list on its way through both. ops: what is left of it."""

    def __init__(self, arena: Arena, case: Case) -> None:
        """Take the whole list."""
        self.arena, self.case = arena, case
        self.ops = list(case.ops)
        self.same_links: list[Op] = []  # of ops, those that bwrap isn't told

    def run(self) -> tuple[Outcome, Outcome]:
        """Leave out what neither does, and what only one does with good reason; return what came of the rest."""
        while True:
            mine = self.arena.run_nsbox(self.ops, self.case)
            assert unmarked(mine.host) == self.arena.pristine, "nsbox's set-up has changed the host"
            if mine.error is None:
                theirs = self._bwrap(len(self.ops))
                if theirs is not None:
                    return mine, theirs
            else:
                assert isinstance(mine.error, SetupError)
                at = failing(self.arena, self.ops, self.case, mine.error)
                before = self._bwrap(at)
                if before is not None:
                    self._judge(at, mine.error, before)
                    del self.ops[at]

    def _spoken(self, count: int) -> list[Op]:
        return [op for op in self.ops[:count] if not any(op is link for link in self.same_links)]

    def _bwrap(self, count: int) -> Outcome | None:
        """Run bwrap on the first ops, which nsbox has carried out; None when they had to be changed for it."""
        spoken = self._spoken(count)
        theirs = self.arena.run_bwrap(spoken, self.case)
        if theirs.error is None:
            return theirs
        self.say(spoken)
        parts = (spoken[: n + 1] for n in range(len(spoken)))
        part = next(part for part in parts if self.arena.run_bwrap(part, self.case).error)
        why = limit_of_bwrap(self.arena, part, str(theirs.error), self.case)
        assert why, f"bwrap alone refuses {part[-1]!r}: {theirs.error}"
        event(f"bwrap 0.8 refuses: {why}")
        if why == "same link":
            self.same_links.append(part[-1])
        else:
            self.ops = [op for op in self.ops if op is not part[-1]]
        return None

    def _judge(self, at: int, error: SetupError, before: Outcome) -> None:
        """Is it right that nsbox refuses this op?"""
        op = self.ops[at]
        self.say(self.ops[: at + 1])
        theirs = self.arena.run_bwrap([*self._spoken(at), op], self.case)
        if theirs.error is None:
            links = {one.dest for one in self.ops[:at] if isinstance(one, Symlink)}
            right = refused_by_design(self.arena, op, error, before, theirs, links)
            assert right, f"nsbox alone refuses {op!r}: {error}"
        event(f"{type(op).__name__} refused: {error.step}" + (", by design" if theirs.error is None else ""))

    def say(self, ops: Sequence[Op]) -> None:
        """Show both spellings of a failing example."""
        spoken = Spoken([located(op, self.arena.bwrap, self.arena.probe) for op in ops])
        note(shlex.join(self.arena.argv(spoken, self.case)))
        spoken.close()
        note(nsbox.explain(self.arena.policy(ops, self.case)))


def check(arena: Arena, case: Case) -> None:
    """Run a case in both, and compare all that came of it."""
    comparison = Comparison(arena, case)
    mine, theirs = comparison.run()
    event(f"{len(comparison.ops)} ops compared")
    comparison.say(comparison.ops)
    assert mine.view is not None and theirs.view is not None
    problems = [
        *fact_differences(mine.view, theirs.view),
        *mount_differences(mine.view, theirs.view, arena.host_mounts),
        *(f"on the host: {line}" for line in tree_differences(mine.host, theirs.host)),
    ]
    assert not problems, "\n".join(problems)
