"""Whether commands can reach a directory of nsbox's own, whose contents nsbox carries out, keeps or shows again.

Lean: functions import `_machine.probe` (6 ms) for a kept home, `_files.links` (4 ms) for a directory of nsbox's own.
"""

from __future__ import annotations

import os
import sys

from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.imports import opened
from nsbox._base.paths import is_below
from nsbox._paths.home import HOMES, name_of
from nsbox._plan.ops import Bind, BindFd, DevBind, Mask, Overlay

if TYPE_CHECKING:
    from nsbox._plan.plan import Plan
    from nsbox._policy.policy import Policy


reached: set[tuple[str, frozenset[str]]] = set()  # what commands of any policy could write to, with what was masked


def writable(policy: Policy) -> set[str]:
    """Return the directories that a policy opens for writing, without links, and without "/"."""
    if "os" not in sys.modules:
        return set()  # a program that starts one command and ends, for which importing os would take too long
    paths = {*policy.write}
    for op in policy.ops:
        if isinstance(op, Bind | DevBind):
            paths.add(os.path.realpath(op.src))
        elif isinstance(op, BindFd) and not op.read_only:
            paths.add(os.path.realpath(f"/proc/self/fd/{op.fd}"))
        elif isinstance(op, Overlay):
            paths |= {os.path.realpath(op.upper), os.path.realpath(op.work)}
    if name_of(policy.home) is not None:
        from nsbox._machine.probe import probe

        paths.add(f"{probe().state}/{HOMES}/{name_of(policy.home)}")
    return paths - {"/"}


def note(policy: Policy, plan: Plan) -> None:
    """Remember what commands can write to from now on: nothing there is imported, and no transaction keeps files there.

    With mounts, commands can't reach what a workspace masks, and can't move anything on the way to it.
    """
    paths = writable(policy)
    if not paths:
        return
    has_mounts = policy.base == "workspace" and plan.backend != "landlock"
    masked = frozenset(op.dest for op in plan.ops if isinstance(op, Mask)) if has_mounts else frozenset()
    opened.update(paths)
    reached.update((path, masked) for path in paths)


def check_place(policy: Policy, base: str, named: str, *, field: str = "dir") -> None:
    """Raise PolicyError if commands could reach a directory of nsbox's own, or anything on the way to it.

    It looks at commands of this policy, and of all policies that this process has had so far.

    base: the directory, without links.
    named: the directory as it was named.
    field: the field that the error names. With "home", what is below the directory doesn't count: commands have those
        homes as their own.
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
