"""The ids of a session's commands: which ones a call may ask for, and what pid 1 needs to give them.

Pid 1 has the caller's real ids, so that the caller may always end it. Where the sandbox has several ids, it keeps the
capabilities to change those of its commands: csrc/init/ids.c.
"""

from __future__ import annotations

import os

from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, replace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from nsbox._core.command import Command
    from nsbox._plan.plan import Plan
    from nsbox._spawn.prepare import Prepared

    Ids: TypeAlias = tuple[int | None, int | None, Sequence[int] | None]


def of_pid_1(prepared: Prepared) -> Prepared:
    """Return the same with the caller's ids, for pid 1: it must not change its own before its exec."""
    plan = prepared.plan
    if not plan.identity.change_ids:
        return prepared
    identity = replace(plan.identity, uid=os.geteuid(), gid=os.getegid(), change_ids=False)
    return replace(prepared, plan=replace(plan, identity=identity))


def ids_of(plan: Plan, command: Command, remedy: str) -> Ids:
    """Return the uid, gid and supplementary groups that a command is to get from pid 1; None: pid 1's.

    plan: the session's. command: with what the call asks for. remedy: what the user can do for more ids.

    Raises PolicyError for an id that the session doesn't have.
    """
    identity = plan.identity
    uid, gid, groups = command.uid, command.gid, command.groups
    if not identity.by_helper:
        for field, name, value, own in (("user", "uid", uid, identity.uid), ("group", "gid", gid, identity.gid)):
            if value not in (None, own):
                raise PolicyError(field, f"{name} {value} doesn't exist in this sandbox, only {own}: {remedy}")
        if groups is not None and (groups or not plan.drop_groups):
            raise PolicyError("extra_groups", f"groups can't be changed in a sandbox with one id: {remedy}")
        return None, None, None
    for field, text, values in (
        ("user", identity.uid_map, [uid]),
        ("group", identity.gid_map, [gid]),
        ("extra_groups", identity.gid_map, groups or ()),
    ):
        for value in values:
            if value is not None and not _has(text, value):
                raise PolicyError(field, f"id {value} is not among the ids that are mapped in this sandbox")
    if identity.change_ids:  # another user must not keep the caller's groups
        return identity.uid if uid is None else uid, identity.gid if gid is None else gid, groups or ()
    return uid, gid, groups


def _has(text: str, number: int) -> bool:
    """Return whether a map, as user_namespaces(7) has it, maps this id."""
    rows = (map(int, row.split()) for row in text.splitlines())
    return any(first <= number < first + count for first, _, count in rows)
