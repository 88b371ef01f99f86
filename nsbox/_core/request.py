"""Requests: everything that a plan asks of the C core, and that doesn't depend on the command.

Lean: `functools` (2.8 ms) and `_core.idmaps` (1.3 ms) are imported for root's commands alone, `resource` (0.2 ms) for
limits.
"""

from __future__ import annotations

import os
import sys

from nsbox._base.frozen import TYPE_CHECKING, remembered
from nsbox._core import buffers, linux, wire
from nsbox._core.abi import constants as c
from nsbox._core.abi import ffi
from nsbox._core.buffers import Stamps, _strings
from nsbox._plan.ops import Op
from nsbox._plan.plan import Identity, Plan
from nsbox._seccomp.bpf import NEWER, Program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    from nsbox._core.abi import CData
    from nsbox._core.idmaps import Swap

    Idmaps: TypeAlias = Callable[[], Sequence[tuple[tuple[int, int], linux.UserNamespace]]]

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


class KeptRoot:
    """A kept sandbox. fds: its user and mount namespace, its /dev/null and its init's program.

    plan: the blob that made it.

    root_id: the id of the mount that was the caller's root at that time.
    """

    __slots__ = ("blob", "fds", "plan", "root_id", "stamps")

    def __init__(self, fds: tuple[int, int, int, int], plan: bytes, stamps: Stamps, root_id: int) -> None:
        self.fds, self.plan, self.stamps, self.root_id = fds, plan, stamps, root_id
        self.blob = ffi.from_buffer("uint8_t[]", plan)


class Request:
    """A request with everything that doesn't depend on the command, and the buffers that it points to.

    plan, nops: a blob as wire.py makes it, and how many ops it has.
    uid_map, gid_map: for user_namespaces(7). uid_map2, gid_map2: for a second namespace, if there is one.
    map_programs: arguments of newuidmap(1) and newgidmap(1).
    rlimits: (resource, soft, hard) of each limit.
    programs: seccomp filters. The last n_last are installed right before exec, and the n_confined before these in the
        last user namespace.
    ruleset: Landlock's.
    capabilities: the permitted, inheritable and bounding ones that the command keeps.
    joined: descriptors of a user namespace, a second one, a pid and a mount namespace; -1 for each that isn't joined.
    stamps: those of a new sandbox that is to be kept.
    kept: a kept sandbox, of which a copy is made.
    kernel_ids: uid and gid that the whole sandbox has outside, whatever the caller's are; zeros: the caller's.
    inotify_instances: how many there may be; 0: no limit.
    idmaps: returns pairs: a uid and gid, and the owner of the user namespace by which their files are mapped.
    """

    __slots__ = ("_keep", "idmaps", "nops", "plan", "request")

    def __init__(
        self,
        *,
        plan: bytes,
        nops: int,
        namespaces: int,
        flags: int,
        uid_map: bytes,
        gid_map: bytes,
        uid_map2: bytes | None,
        gid_map2: bytes | None,
        map_programs: tuple[Sequence[bytes], Sequence[bytes]] | None,
        rlimits: Sequence[tuple[int, int, int]],
        programs: Sequence[bytes],
        n_confined: int,
        n_last: int,
        ruleset: wire.RulesetRow | None = None,
        capabilities: tuple[int, int, int] | None = None,
        joined: Sequence[int] = (-1, -1, -1, -1),
        stamps: Stamps | None = None,
        kept: KeptRoot | None = None,
        kernel_ids: tuple[int, int] = (0, 0),
        inotify_instances: int = 0,
        idmaps: Idmaps | None = None,
    ) -> None:
        blob = ffi.from_buffer("uint8_t[]", plan)
        maps = [
            ffi.NULL if text is None else ffi.from_buffer("char[]", text)
            for text in (uid_map, gid_map, uid_map2, gid_map2)
        ]
        limits = ffi.new("nsbox_rlimit[]", [(name, 0, soft, hard) for name, soft, hard in rlimits])
        codes = [ffi.from_buffer("uint8_t[]", code) for code in programs]
        filters = ffi.new("nsbox_filter[]", [(code, len(code) // 8, 0) for code in codes])
        self._keep: list[object] = [blob, maps, limits, codes, filters]
        self.nops, self.plan = nops, plan
        self.request = r = ffi.new("nsbox_request *")
        r.plan, r.plan_len = blob, len(plan)
        r.namespaces, r.flags = namespaces, flags
        r.uid_map, r.gid_map, r.uid_map2, r.gid_map2 = maps
        if map_programs is not None:
            r.uid_map_program, r.gid_map_program = (_strings(argv, self._keep) for argv in map_programs)
        r.rlimits, r.n_rlimits = limits, len(rlimits)
        if ruleset is not None:
            r.ruleset = self._ruleset(ruleset)
        if capabilities is not None:
            r.caps = caps = ffi.new("nsbox_caps *", capabilities)
            self._keep.append(caps)
        r.user_fd, r.user2_fd, r.pid_fd, r.mnt_fd = joined
        r.null_fd = r.image_fd = r.park_fd = r.go_fd = r.hold_fd = r.report_fd = r.cgroup_fd = r.relay_fd = -1
        r.kernel_uid, r.kernel_gid = kernel_ids
        r.inotify_instances = inotify_instances
        self.idmaps = idmaps
        if stamps is not None:
            r.stamps = stamps.array
            self._keep.append(stamps)
        if kept is not None:
            self._copy(kept)
        r.filters, r.n_filters = filters, len(programs)
        r.n_confined_filters, r.n_last_filters = n_confined, n_last

    def _copy(self, kept: KeptRoot) -> None:
        r = self.request
        r.user_fd, r.mnt_fd, r.null_fd, r.image_fd = kept.fds
        r.stamps, r.template_plan, r.template_plan_len = kept.stamps.array, kept.blob, len(kept.plan)
        r.root_id = kept.root_id
        self._keep.append(kept)

    def _ruleset(self, row: wire.RulesetRow) -> object:
        names = [ffi.from_buffer("char[]", rule.path) for rule in row.rules]
        rules = [(name, rule.rights, rule.flags, 0) for name, rule in zip(names, row.rules, strict=True)]
        paths = ffi.new("nsbox_path_rule[]", rules)
        made = ffi.new("nsbox_ruleset *", (row.files, row.net, row.scoped, paths, len(rules), 0))
        self._keep += [names, paths, made]
        return made


class Blob:
    """A request in one piece, for a process that has none of ours: see csrc/abi_branch.h.

    data: a request with all that it points to. Its pointers are offsets.
    pointers: where these are, 8 bytes each.
    """

    __slots__ = ("data", "pointers")

    def __init__(self, request: Request, uid: int, gid: int) -> None:
        """Copy what a branch needs of it: its plan, filters, limits, ruleset, capabilities and second maps.

        uid, gid: the branch's.
        """
        r = request.request
        r.uid, r.gid = uid, gid
        self.data, self.pointers = bytearray(), list[int]()
        start = self._put(bytes(ffi.buffer(r)))
        fields = dict(ffi.typeof("nsbox_request").fields)
        for field in fields.values():
            if field.type.kind == "pointer":
                self.data[start + field.offset : start + field.offset + 8] = bytes(8)

        def point(name: str, at: int) -> None:
            self._point(start + fields[name].offset, at)

        point("plan", self._put(request.plan))
        point("stamps", self._put(bytes(request.nops * ffi.sizeof("nsbox_stamp"))))  # the interpreter fills them in
        point("filters", self._filters(r))
        point("rlimits", self._put(_content(r.rlimits, r.n_rlimits * ffi.sizeof("nsbox_rlimit"))))
        if r.ruleset != ffi.NULL:
            point("ruleset", self._ruleset(r.ruleset))
        if r.caps != ffi.NULL:
            point("caps", self._put(bytes(ffi.buffer(r.caps))))
        for name in ("uid_map2", "gid_map2"):
            text = getattr(r, name)
            if text != ffi.NULL:
                point(name, self._put(ffi.string(text) + b"\0"))

    def _put(self, data: bytes) -> int:
        at = len(self.data)
        self.data += data + bytes(-len(data) % 8)
        return at

    def _point(self, position: int, at: int) -> None:
        self.data[position : position + 8] = at.to_bytes(8, sys.byteorder)
        self.pointers.append(position)

    def _filters(self, r: CData) -> int:
        size = ffi.sizeof("nsbox_filter")
        code = dict(ffi.typeof("nsbox_filter").fields)["code"].offset
        at = self._put(_content(r.filters, r.n_filters * size))
        for i in range(r.n_filters):
            self._point(at + i * size + code, self._put(_content(r.filters[i].code, r.filters[i].len * 8)))
        return at

    def _ruleset(self, ruleset: CData) -> int:
        size = ffi.sizeof("nsbox_path_rule")
        path = dict(ffi.typeof("nsbox_path_rule").fields)["path"].offset
        paths = dict(ffi.typeof("nsbox_ruleset").fields)["paths"].offset
        at = self._put(bytes(ffi.buffer(ruleset)))
        rules = self._put(_content(ruleset.paths, ruleset.n_paths * size))
        self._point(at + paths, rules)
        for i in range(ruleset.n_paths):
            self._point(rules + i * size + path, self._put(ffi.string(ruleset.paths[i].path) + b"\0"))
        return at


def _content(values: CData, size: int) -> bytes:
    return bytes(ffi.buffer(values, size)) if size else b""


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
    flags |= c.FORK_COMMAND if plan.identity.userns is not None else 0  # its ids there may be other kernel ids
    # A ready program may kill at the exec, and before Linux 5.16 a core dump ends all processes that share the memory.
    flags |= c.FORK_COMMAND if any(program.code for program in plan.programs) and not plan.wrapper else 0
    if not plan.plain:
        return flags if plan.kill_on_exit else flags | c.STAY
    flags |= c.PLAIN | (c.SET_GROUPS if plan.drop_groups else 0)
    return flags | c.UNCONFINED if plan.wrapper else flags


def _map_programs(identity: Identity) -> tuple[list[bytes], list[bytes]] | None:
    """Return the argument lists of newuidmap(1) and newgidmap(1); the C core replaces "0" by the pid."""
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


def _whose(plan: Plan) -> tuple[dict[str, int], Idmaps | None]:
    """Return the numbers of the id mappings for the plan's binds, from 1 up, and a function that returns these."""
    if not plan.owners:
        return {}, None
    from functools import partial  # only root's commands need it

    from nsbox._core.idmaps import namespaces_of

    owners = dict.fromkeys((uid, gid) for _, uid, gid in plan.owners)
    numbers = {owner: i for i, owner in enumerate(owners, 1)}
    find = partial(namespaces_of, tuple(owners), plan.kernel_id)
    return {dest: numbers[uid, gid] for dest, uid, gid in plan.owners}, find


def _swapped(swaps: Mapping[str, tuple[tuple[int, int], Swap]]) -> tuple[dict[str, int], Idmaps]:
    """Return the same as _whose(), for binds in whose files two users change places."""
    from nsbox._core.idmaps import swapped

    rows = list(dict.fromkeys(swaps.values()))
    numbers = {dest: rows.index(row) + 1 for dest, row in swaps.items()}
    return numbers, lambda: [(found, swapped(swap)) for found, swap in rows]


@remembered
def assembled(programs: tuple[Program, ...]) -> list[bytes]:
    """Return a plan's filters for this machine. They are remembered, since most policies have the same."""
    return [assembled_once(program) for program in programs]


def assembled_once(program: Program) -> bytes:
    """Return one filter, without remembering it."""
    names = {name for rule in program.rules for name in rule.calls}
    machine, numbers = linux.numbers_of(names)
    return wire.encode_programs([program], machine, NEWER | numbers)[0]


def _rlimits(plan: Plan) -> list[tuple[int, int, int]]:
    import resource  # some systems on which this module is imported lack it

    return [(getattr(resource, f"RLIMIT_{limit.name}"), limit.soft, limit.hard) for limit in plan.rlimits]


def request_for(
    plan: Plan,
    ops: Sequence[Op],
    *,
    flags: int = 0,
    without: frozenset[str] = frozenset(),
    stamps: buffers.Stamps | None = None,
    kept: KeptRoot | None = None,
    last_maps: tuple[str, str] | None = None,
    within: tuple[int, int] | None = None,
    devices: Mapping[Op, int] | None = None,
    swaps: Mapping[str, tuple[tuple[int, int], Swap]] | None = None,
) -> Request:
    """Return the request for this plan.

    ops: the plan's, as primitives, with their contents.
    flags: further flags.
    without: namespaces that aren't made.
    stamps, kept: as for Request.
    last_maps: the id maps of a second user namespace, instead of the plan's.
    within: descriptors of a user and a mount namespace: the root is built in a copy of that, instead of the caller's.
    devices: the device that the directory of a bind must lie on, as in a stamp; otherwise nothing starts (ESTALE).
    swaps: for the destinations of some binds, who owns the source, and which users change places in it.
    """
    identity = plan.identity
    programs = () if plan.wrapper else plan.programs  # the wrapper installs them
    maps = (identity.uid_map, identity.gid_map, *(last_maps or (identity.uid_map2, identity.gid_map2)))
    uid_map, gid_map, uid_map2, gid_map2 = (None if text is None else text.encode() + b"\0" for text in maps)
    assert uid_map is not None and gid_map is not None
    user, mount = within or (identity.userns, None)
    numbers, idmaps = _whose(plan) if kept is None and within is None else ({}, None)
    if swaps:
        numbers, idmaps = _swapped(swaps)
    return Request(
        plan=wire.encode(ops, numbers, devices),
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
        ruleset=wire.encode_ruleset(plan.ruleset),
        capabilities=_capabilities(plan),
        joined=tuple(-1 if fd is None else fd for fd in (user, identity.userns2, plan.pidns, mount)),
        stamps=stamps,
        kept=kept,
        kernel_ids=(plan.kernel_id, plan.kernel_id),
        inotify_instances=plan.inotify_instances,
        idmaps=idmaps,
    )
