"""One op list through both: which ops are refused, and by whose right; what the two sandboxes have become."""

from __future__ import annotations

import contextlib
import errno
import shlex
from collections.abc import Sequence

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


def refused_by_design(arena: Arena, ops: Sequence[Op], case: Case, error: SetupError, theirs: Outcome) -> bool:
    """Is it right that nsbox refuses the last op, which bwrap has carried out?"""
    *before, op = ops
    if unmarked(theirs.host) != arena.pristine:
        return error.step == "would change the host" or isinstance(op, File)
    view = arena.run_bwrap(before, case).view
    assert view is not None, "bwrap has run the probe"
    name, place = view.resolve(arena.neutral(located(op, arena.bwrap).dest))  # type: ignore[attr-defined]
    is_through_link = name != place
    if isinstance(op, File) and (is_through_link or view.mount_of(place).point == place):
        return True
    if isinstance(op, Chmod) and view.mount_of(place).type in ("proc", "devpts", "mqueue", "devtmpfs"):
        return True
    leads_nowhere = ("stat", place) not in view.facts or error.errno == errno.ELOOP
    return is_through_link and leads_nowhere and not isinstance(op, Chmod | RemountRo)


def limit_of_bwrap(arena: Arena, ops: Sequence[Op], theirs: Outcome, case: Case) -> str:
    """Return what it is of bwrap 0.8 that makes it refuse the last op, which nsbox has carried out; "" for nothing known."""
    *before, op = ops
    message = str(theirs.error)
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


def check(arena: Arena, case: Case) -> None:
    """Run a case in both, leaving out the ops that neither can do, and compare."""
    ops = list(case.ops)
    same_links: list[Op] = []  # left out for bwrap
    while True:
        mine = arena.run_nsbox(ops, case)
        assert unmarked(mine.host) == arena.pristine, "nsbox's set-up has changed the host"
        if isinstance(mine.error, SetupError):
            drop_refused(arena, ops, case, mine.error)
            continue
        spoken = [op for op in ops if not any(op is link for link in same_links)]
        theirs = arena.run_bwrap(spoken, case)
        if theirs.error is None:
            break
        say(arena, spoken, case)
        at = next(n for n in range(len(ops)) if arena.run_bwrap(spoken[: n + 1], case).error)
        why = limit_of_bwrap(arena, spoken[: at + 1], theirs, case)
        assert why, f"bwrap alone refuses {spoken[at]!r}: {theirs.error}"
        event(f"bwrap 0.8 refuses: {why}")
        if why == "same link":
            same_links.append(spoken[at])
        else:
            ops = [op for op in ops if op is not spoken[at]]
    event(f"{len(ops)} ops compared")
    say(arena, ops, case)
    assert mine.view is not None and theirs.view is not None
    problems = [
        *fact_differences(mine.view, theirs.view),
        *mount_differences(mine.view, theirs.view, arena.host_mounts),
        *(f"on the host: {line}" for line in tree_differences(mine.host, theirs.host)),
    ]
    assert not problems, "\n".join(problems)


def drop_refused(arena: Arena, ops: list[Op], case: Case, error: SetupError) -> None:
    """Remove the op that nsbox refuses, if it is right that it does."""
    at = failing(arena, ops, case, error)
    theirs = arena.run_bwrap(ops[: at + 1], case)
    say(arena, ops[: at + 1], case)
    if theirs.error is None:
        right = refused_by_design(arena, ops[: at + 1], case, error, theirs)
        assert right, f"nsbox alone refuses {ops[at]!r}: {error}"
    event(f"{type(ops[at]).__name__} refused: {error.step}" + (", by design" if theirs.error is None else ""))
    del ops[at]


def say(arena: Arena, ops: Sequence[Op], case: Case) -> None:
    """Show both spellings of a failing example."""
    spoken = Spoken([located(op, arena.bwrap, arena.probe) for op in ops])
    note(shlex.join(arena.argv(spoken, case)))
    spoken.close()
    note(nsbox.explain(arena.policy(ops, case)))
