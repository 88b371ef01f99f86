"""From a plan to the C core's request: all of it that doesn't depend on the command."""

from __future__ import annotations

from nsbox import _core, _core_linux, _wire
from nsbox._base.frozen import TYPE_CHECKING, remembered
from nsbox._base.lean_os import os
from nsbox._core import constants as c
from nsbox._plan.ops import Op
from nsbox._plan.plan import Identity, Plan
from nsbox._seccomp.bpf import NEWER, Program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# clone(2)'s flags, <linux/sched.h>
_NAMESPACES = {
    "mount": 0x00020000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "time": 0x00000080,
}


def _flags(plan: Plan) -> int:
    flags = c.DENY_SETGROUPS if plan.identity.deny_setgroups else 0
    flags |= c.MAP_BY_HELPER if plan.identity.by_helper else 0
    flags |= c.DROP_GROUPS if plan.drop_groups else 0
    flags |= c.MAP2_BY_HELPER if plan.identity.map2_by_helper else 0
    flags |= c.HOST_WRITES if plan.host_writes else 0
    flags |= c.LIMIT_USERNS if plan.limit_userns else 0
    flags |= c.NO_USERNS if plan.no_userns else 0
    flags |= c.MAP_ROOT if plan.map_root else 0
    flags |= 0 if plan.die_with_parent else c.OUTLIVE
    flags |= c.FORK_COMMAND if plan.identity.userns is not None else 0  # its ids there may be others of the kernel's
    # A ready program may kill at the exec, and before Linux 5.16 a core dump ends all who share the memory.
    flags |= c.FORK_COMMAND if any(program.code for program in plan.programs) and not plan.wrapper else 0
    if not plan.plain:
        return flags if plan.kill_on_exit else flags | c.STAY
    flags |= c.PLAIN | (c.SET_GROUPS if plan.drop_groups else 0)
    return flags | c.UNCONFINED if plan.wrapper else flags


def _map_programs(identity: Identity) -> tuple[list[bytes], list[bytes]] | None:
    """Return the argument lists of newuidmap(1) and newgidmap(1); the C core puts the pid in the place of "0"."""
    if identity.map_programs is None:
        return None
    uid, gid = (
        [os.fsencode(program), b"0", *map(str.encode, text.split())]
        for program, text in zip(identity.map_programs, (identity.uid_map, identity.gid_map), strict=True)
    )
    return uid, gid


def _capabilities(plan: Plan) -> tuple[int, int, int] | None:
    kept = plan.capabilities
    return None if kept is None else (kept.permitted, kept.inheritable, kept.bounding)


def _whose(
    plan: Plan,
) -> tuple[dict[str, int], Callable[[], list[tuple[tuple[int, int], _core_linux.UserNamespace]]] | None]:
    """Return the numbers of the mappings of the plan's binds, from 1 up, and what returns these mappings."""
    if not plan.owners:
        return {}, None
    from functools import partial  # which only root's commands need

    from nsbox._kernel_id import namespaces_of

    owners = dict.fromkeys((uid, gid) for _, uid, gid in plan.owners)
    numbers = {owner: i for i, owner in enumerate(owners, 1)}
    find = partial(namespaces_of, tuple(owners), plan.kernel_id)
    return {dest: numbers[uid, gid] for dest, uid, gid in plan.owners}, find


ready: list[tuple[Program, bytes]] = []  # what was assembled when the package was built, see csrc/tools/front.py


@remembered
def assembled(programs: tuple[Program, ...]) -> list[bytes]:
    """Return a plan's filters for this machine; most policies have the same."""
    return [assembled_once(program) for program in programs]


def assembled_once(program: Program) -> bytes:
    """Return one filter, which isn't remembered."""
    for known, code in ready:
        if (known.rules, known.with_compatible) == (program.rules, program.with_compatible) and not program.code:
            return code
    names = {name for rule in program.rules for name in rule.calls}
    machine, numbers = _core_linux.numbers_of(names)
    return _wire.encode_programs([program], machine, NEWER | numbers)[0]


def _rlimits(plan: Plan) -> list[tuple[int, int, int]]:
    import resource  # not on every system that this module is imported on

    return [(getattr(resource, f"RLIMIT_{limit.name}"), limit.soft, limit.hard) for limit in plan.rlimits]


def template(
    plan: Plan,
    ops: Sequence[Op],
    *,
    flags: int = 0,
    without: frozenset[str] = frozenset(),
    stamps: _core.Stamps | None = None,
    entered: _core.Entered | None = None,
    last_maps: tuple[str, str] | None = None,
    within: tuple[int, int] | None = None,
) -> _core.Template:
    """Return the request for this plan. ops: the plan's, taken apart, with their contents.

    flags: more of them. without: namespaces that aren't made. stamps, entered: as _core.Template has them.
    last_maps: of a second user namespace, instead of the plan's. within: descriptors of a user and a mount namespace,
    in a copy of which the root is built, instead of one of the caller's.
    """
    identity = plan.identity
    programs = () if plan.wrapper else plan.programs  # which installs them
    maps = (identity.uid_map, identity.gid_map, *(last_maps or (identity.uid_map2, identity.gid_map2)))
    uid_map, gid_map, uid_map2, gid_map2 = (None if text is None else text.encode() + b"\0" for text in maps)
    assert uid_map is not None and gid_map is not None
    user, mount = within or (identity.userns, None)
    numbers, idmaps = _whose(plan) if entered is None and within is None else ({}, None)
    return _core.Template(
        plan=_wire.encode(ops, numbers),
        nops=len(ops),
        namespaces=0 if plan.plain else sum(_NAMESPACES[name] for name in plan.namespaces - without),
        flags=_flags(plan) | flags,
        uid_map=uid_map,
        gid_map=gid_map,
        uid_map2=uid_map2,
        gid_map2=gid_map2,
        map_programs=_map_programs(identity),
        rlimits=_rlimits(plan) if plan.rlimits else [],
        programs=assembled(programs),
        n_confined=sum(program.stage == "confined" for program in programs),
        n_last=sum(program.stage == "last" for program in programs),
        ruleset=_wire.encode_ruleset(plan.ruleset),
        capabilities=_capabilities(plan),
        joined=tuple(-1 if fd is None else fd for fd in (user, identity.userns2, plan.pidns, mount)),
        stamps=stamps,
        entered=entered,
        kernel_ids=(plan.kernel_id, plan.kernel_id),
        inotify_instances=plan.inotify_instances,
        idmaps=idmaps,
    )
