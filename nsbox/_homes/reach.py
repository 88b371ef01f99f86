"""Whether commands can reach a directory of nsbox's own, in which what is found is carried out, kept or shown again."""

from __future__ import annotations

import sys

from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.imports import opened
from nsbox._base.lean_os import os
from nsbox._base.paths import is_below
from nsbox._paths.home import HOMES, name_of
from nsbox._plan.ops import Bind, BindFd, DevBind, Mask, Overlay

if TYPE_CHECKING:
    from nsbox._plan.plan import Plan
    from nsbox._policy.policy import Policy


reached: set[tuple[str, frozenset[str]]] = set()  # by commands of any policy so far: writable(), and what they hide


def writable(policy: Policy) -> set[str]:
    """Return the directories that a policy opens for writing, without links; none if it opens the whole system."""
    if "os" not in sys.modules:
        return set()  # a program that starts one command and ends, for which os takes too long to import
    found = {*policy.write}
    for op in policy.ops:
        if isinstance(op, Bind | DevBind):
            found.add(os.path.realpath(op.src))
        elif isinstance(op, BindFd) and not op.read_only:
            found.add(os.path.realpath(f"/proc/self/fd/{op.fd}"))
        elif isinstance(op, Overlay):
            found |= {os.path.realpath(op.upper), os.path.realpath(op.work)}
    if name_of(policy.home) is not None:
        from nsbox._machine.probe import probe

        found.add(f"{probe().state}/{HOMES}/{name_of(policy.home)}")
    return found - {"/"}


def note(policy: Policy, plan: Plan) -> None:
    """Remember what commands can write to from now on: nothing there is imported, and no transaction keeps files there.

    What a workspace masks is out of their reach, where there are mounts, and what is on the way there can't be moved.
    """
    found = writable(policy)
    if not found:
        return
    has_mounts = policy.base == "workspace" and plan.backend != "landlock"
    masked = frozenset(op.dest for op in plan.ops if isinstance(op, Mask)) if has_mounts else frozenset()
    opened.update(found)
    reached.update((path, masked) for path in found)


def check_place(policy: Policy, base: str, named: str, *, field: str = "dir") -> None:
    """Raise PolicyError if commands could reach a directory of nsbox's own, or what it is reached through.

    Commands of this policy, and of all others that this process has had so far. base: the directory, without links;
    named: how it was named; field: what the error is about. For field="home" what is below it are homes, which commands
    have as their own.
    """
    from nsbox._files.links import ways  # the way to a spawn doesn't need it

    on_the_way = [base, *ways(named)]
    for path in sorted(writable(policy)):
        _check_apart(field, base, on_the_way, path, "this policy")
    for path, masked in sorted(reached, key=lambda one: one[0]):
        if not (is_below(base, path) and any(is_below(base, hidden) for hidden in masked)):
            _check_apart(field, base, on_the_way, path, "another policy of this process")


def _check_apart(field: str, base: str, ways: list[str], path: str, whose: str) -> None:
    inside = next((way for way in ways if is_below(way, path)), None)
    if inside is not None or (is_below(path, base) and field == "dir"):
        where = f"{base} contains {path}" if inside is None else f"{inside} lies in {path}"
        what = f"{where}, which commands of {whose} may write to"
        instead = "give a directory" if field == "dir" else "set XDG_STATE_HOME to one"
        raise PolicyError(field, f"{what}: {instead} that is out of their reach")
