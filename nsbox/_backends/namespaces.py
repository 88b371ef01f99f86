"""The backend of Linux namespaces: the command's ids, what confines it, and what is enforced.

Lean: what few policies need is imported by functions: `_seccomp.profiles` (0.6 ms), `_plan.landlock` (0.14 ms),
`_layout.network` (0.12 ms), `_backends.refusals` (0.09 ms).
"""

from __future__ import annotations

import errno

from nsbox._backends import sentences
from nsbox._backends.filters import left_behind, programs, refused, unkillable
from nsbox._backends.limits import (
    cgroup_caveats,
    cgroup_limits,
    check_lacking,
    core_caveats,
    inotify_instances,
    rlimits,
)
from nsbox._base.errors import Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.paths import is_below
from nsbox._layout.layout import (
    completed,
    home,
    home_caveats,
    home_source,
    layout,
    may_be_kernel_root,
    pinned_paths,
    private_caveats,
    wants_full,
)
from nsbox._plan.capabilities import Capabilities
from nsbox._plan.host import Host, IdRange
from nsbox._plan.ops import Bind, Dev, Devpts, Op, RoBind
from nsbox._plan.plan import UNCHANGED, Identity, Plan, Rlimit
from nsbox._policy.policy import Policy

if TYPE_CHECKING:
    from nsbox._network.network import Network
    from nsbox._plan.landlock import Ruleset
    from nsbox._seccomp.bpf import Rule

NAME = "namespaces"
_TRUNCATE = 1 << 14  # <linux/landlock.h>; it stands here so that commands without Landlock don't import _plan.landlock
_CLOSED = ("/run", "/var/tmp")  # but not /tmp, where every program makes files
KERNEL_FLOOR = (5, 12)  # mount_setattr(2)


def missing(host: Host) -> tuple[Reason, ...]:
    """Return why sandboxes of this kind can't be made on this host, as far as that is known without a trial."""
    reasons = []
    if host.system != "Linux":
        reasons.append(Reason(f"{host.system} has no namespaces"))
    elif host.kernel < KERNEL_FLOOR:
        have, need = (".".join(map(str, v)) for v in (host.kernel, KERNEL_FLOOR))
        reasons.append(Reason(f"Linux {have} lacks mount_setattr(2)", f"Linux {need} or later"))
    if host.core_problem:
        from nsbox._backends.refusals import no_core  # a broken installation

        reasons.append(no_core(host))
    if host.max_user_namespaces == 0:
        reasons.append(Reason("user.max_user_namespaces is 0", "sysctl user.max_user_namespaces=15000"))
    if host.unprivileged_userns is False and not host.can_set_ids:
        reasons.append(
            Reason("kernel.unprivileged_userns_clone is 0", "sysctl kernel.unprivileged_userns_clone=1, or run as root")
        )
    if host.refused_calls and not reasons:
        from nsbox._backends.refusals import refused_calls  # seldom needed

        reasons.append(refused_calls(host.refused_calls))
    elif host.userns_error and not reasons:
        from nsbox._backends.refusals import refused_userns  # seldom needed

        reason = refused_userns(host.userns_error, host, is_uid_map=host.userns_error_at == "map")
        number = errno.errorcode.get(host.userns_error, str(host.userns_error))
        reasons.append(Reason(f"{reason.what} ({host.userns_error_at}: {number})", reason.remedy))
    return tuple(reasons)


def compile(policy: Policy, host: Host) -> Plan:
    """Return the plan for this policy on this host; raises UnavailableError for a wish that can't be granted here."""
    policy = completed(policy, host)
    ops = layout(policy, host)
    full = wants_full(policy, host)
    identity = _joined(policy, host) if "user" not in policy.unshare else None
    identity = identity or (_full(policy, host) if full else _single(policy, host, ops))
    limits, details = rlimits(policy, host), policy.details
    in_cgroup, lacking = cgroup_limits(policy, host)
    ruleset = _ruleset(policy, host, ops, lacking)
    not_granted = check_lacking(policy, lacking)
    return Plan(
        ops=ops,
        namespaces=policy.unshare | (frozenset() if policy.network == "host" else frozenset({"net"})),
        identity=identity,
        rlimits=limits,
        new_session=policy.new_session,
        cgroup=host.cgroup if in_cgroup else "",
        cgroup_limits=in_cgroup,
        programs=programs(policy, host, by_second_userns=identity.uid_map2 is not None, last=_last(ruleset)),
        ruleset=ruleset,
        nested=policy.may_give_children,
        drop_groups=host.can_set_groups and policy.base != "host",
        kill_on_exit=policy.kill_on_exit,
        capabilities=_capabilities(policy, host),
        pidns=details.pidns,
        limit_userns=details.disable_userns,
        inotify_instances=inotify_instances(policy, host),
        no_userns=details.disable_userns or details.assert_userns_disabled,
        host_writes=details.host_writes,
        die_with_parent=details.die_with_parent,
        kernel_id=host.kernel_id,
        owners=_owners(policy, host, ops),
        map_root=_may_map_root(policy, host, identity),
        network=_network(policy),
        home=home(policy, host),
        backend=NAME,
        enforced=_enforced(policy, host, identity, limits, ruleset, in_cgroup),
        not_enforced=(
            *_not_enforced(policy, host, identity, ops, ruleset),
            *unkillable(policy),
            *cgroup_caveats(policy, in_cgroup),
            *core_caveats(policy, host),
            *private_caveats(policy, host),
            *home_caveats(policy, host),
            *not_granted,
        ),
        lost=frozenset(lacking),
    )


# ---- identity


def _identity_rows(ranges: tuple[IdRange, ...]) -> list[IdRange]:
    return [IdRange(row.inside, row.inside, row.count) for row in ranges]


def _subordinate_rows(own: int, ranges: tuple[tuple[int, int], ...]) -> list[IdRange]:
    """Return rows that map the caller's own id to itself, and the subordinate ones to all other ids from 0 up."""
    rows = [IdRange(own, own, 1)]
    inside = 0
    for first, count in ranges:
        if inside <= own < inside + count:
            before = own - inside
            rows += [IdRange(inside, first, before), IdRange(own + 1, first + before, count - before)]
            inside += 1
        else:
            rows.append(IdRange(inside, first, count))
        inside += count
    return sorted((row for row in rows if row.count), key=lambda row: row.inside)


def _full(policy: Policy, host: Host) -> Identity:
    uid = host.euid if policy.uid is None else policy.uid
    gid = host.egid if policy.gid is None else policy.gid
    if host.can_set_ids:
        maps = _identity_rows(host.uid_ranges), _identity_rows(host.gid_ranges)
    else:
        maps = _subordinate_rows(host.euid, host.subuids), _subordinate_rows(host.egid, host.subgids)
    for name, value, rows in (("uid", uid, maps[0]), ("gid", gid, maps[1])):
        if not any(row.has(value) for row in rows):
            raise UnavailableError(Reason(f"{name}={value} is not among the ids that can be mapped here"))
    texts = ["".join(f"{row.inside} {row.outside} {row.count}\n" for row in rows) for rows in maps]
    second = ["".join(f"{row.inside} {row.inside} {row.count}\n" for row in rows) for rows in maps]
    locked = _has_second(policy)
    return Identity(
        uid=uid,
        gid=gid,
        uid_map=texts[0],
        gid_map=texts[1],
        uid_map2=second[0] if locked else None,
        gid_map2=second[1] if locked else None,
        map2_by_helper=locked,
        deny_setgroups=False,
        by_helper=True,
        change_ids=(uid, gid) != (host.euid, host.egid),
        map_programs=None if host.can_set_ids else host.map_programs,
        userns2=policy.details.userns2,
    )


def _owners(policy: Policy, host: Host, ops: tuple[Op, ...]) -> tuple[tuple[str, int, int], ...]:
    """Return, for each bind of the policy's paths, its destination and the owner whose files become the command's.

    A directory that is bound onto itself, on the way to another path, counts as a part of the path that it lies in.
    """
    by_path = {path: (uid, gid) for path, uid, gid in host.owners}
    own = [source] if (source := home_source(policy, host)) else []
    owners = []
    for op in ops:
        if not isinstance(op, Bind | RoBind):
            continue
        above = max((p for p in (*policy.write, *policy.read, *own) if is_below(op.src, p)), key=len, default=op.src)
        owner = by_path.get(op.src) or by_path.get(above)
        if owner is not None:
            owners.append((op.dest, *owner))
    return tuple(owners)


def _may_map_root(policy: Policy, host: Host, identity: Identity) -> bool:
    """Say if the command, as uid 0, gets CAP_SETFCAP, so that it can make user namespaces that have a uid 0.

    Since Linux 5.12 the kernel refuses to map the parent's uid 0 without it (user_namespaces(7)). The capability lets
    the command give files capabilities, within the ids of its namespace.
    """
    # The kernel's uid 0 could mount a procfs in such a namespace, and owns the kernel settings in it.
    may = policy.base != "workspace" or not may_be_kernel_root(policy, host)
    wants = may and (policy.nested or policy.base == "host")
    # host_writes stands for a command line of bubblewrap, which leaves root only capabilities that it was asked for.
    as_asked = bool(policy.details.capabilities) or policy.details.host_writes
    return wants and identity.uid == 0 and "user" in policy.unshare and not as_asked


def _has_second(policy: Policy) -> bool:
    """Say if the command must end up in a user namespace below the one that owns the mounts."""
    return bool(policy.details.capabilities) or policy.details.disable_userns


def _joined(policy: Policy, host: Host) -> Identity:
    """Return the ids in a user namespace that another process made; the kernel checks that they are mapped there."""
    uid = UNCHANGED if policy.uid is None else policy.uid
    gid = UNCHANGED if policy.gid is None else policy.gid
    return Identity(
        uid,
        gid,
        "",
        "",
        userns=policy.details.userns,
        userns2=policy.details.userns2,
    )


def _single(policy: Policy, host: Host, ops: tuple[Op, ...]) -> Identity:
    uid = host.euid if policy.uid is None else policy.uid
    gid = host.egid if policy.gid is None else policy.gid
    outer = (host.kernel_id, host.kernel_id) if host.kernel_id else (host.euid, host.egid)
    # devpts needs a uid 0 in its user namespace to own the nodes. The ids that the policy wants come in a second one.
    as_root_first = (uid, gid) != (0, 0) and any(isinstance(op, Dev | Devpts) for op in ops)
    userns2 = policy.details.userns2
    if userns2 is None and as_root_first:
        return Identity(uid, gid, f"0 {outer[0]} 1", f"0 {outer[1]} 1", f"{uid} 0 1", f"{gid} 0 1")
    maps = f"{uid} {outer[0]} 1", f"{gid} {outer[1]} 1"
    if _has_second(policy):
        return Identity(uid, gid, *maps, f"{uid} {uid} 1", f"{gid} {gid} 1")
    return Identity(uid, gid, *maps, userns2=userns2)


def _capabilities(policy: Policy, host: Host) -> Capabilities | None:
    words = policy.details.capabilities
    if not words:
        return None
    if words == ("caller",):
        return Capabilities(host.capabilities, host.inheritable, host.bounding)
    mask = policy.details.mask(host.capabilities, host.last_capability)
    return Capabilities(mask, mask, mask)


def _ruleset(policy: Policy, host: Host, ops: tuple[Op, ...], lacking: dict[str, Reason]) -> Ruleset | None:
    # A net namespace of its own has no abstract sockets of other processes.
    reaches_out = policy.base == "workspace" and policy.network == "host"
    if not policy.landlock and not reaches_out:
        return None
    from nsbox._plan import landlock

    if policy.landlock and host.landlock_abi < landlock.FILES_ABI:
        have = f"version {host.landlock_abi}" if host.landlock_abi else "none"
        lacking["landlock"] = Reason(
            f"landlock: this kernel has {have} of Landlock, version {landlock.FILES_ABI} is needed",
            "Linux 5.19 or later, with landlock among the modules of lsm= on its command line",
        )
    elif policy.landlock:
        closed = _CLOSED if policy.base == "workspace" else ()
        return landlock.ruleset(_resolved(policy, ops), host.landlock_abi, closed=closed)
    return landlock.scopes(host.landlock_abi) if reaches_out else None


def _last(ruleset: Ruleset | None) -> tuple[Rule, ...]:
    """Return the seccomp rules that must accompany Landlock's rules about files."""
    if ruleset is None or not ruleset.files:
        return ()
    from nsbox._seccomp.profiles import beside_landlock

    return beside_landlock(truncates=bool(ruleset.files & _TRUNCATE))


def _network(policy: Policy) -> Network | None:
    if policy.network in ("none", "host"):
        return None
    from nsbox._layout.network import listed  # seldom needed

    for is_so, what, remedy in (
        ("user" not in policy.unshare, "the relay can't set up the net namespace of a joined user namespace", "userns"),
        (policy.details.userns2 is not None, "no list in a user namespace that is joined at the end", "userns2"),
        (
            bool(policy.details.capabilities),
            "a list doesn't go with capabilities, by which the command could change its own net namespace",
            "capabilities",
        ),
        (
            "pid" not in policy.unshare,
            "the relay needs a sandbox's pid 1, which isn't there",
            "share={'pid'}",
        ),
    ):
        if is_so:
            raise UnavailableError(Reason(f"network: {what}", f"leave {remedy} out"))
    return listed(policy)


# ---- what is enforced


def _enforced(
    policy: Policy,
    host: Host,
    identity: Identity,
    rlimits: tuple[Rlimit, ...],
    ruleset: Ruleset | None,
    cgroup: tuple[tuple[str, str], ...],
) -> tuple[str, ...]:
    end = "when the command ends or the caller dies" if policy.kill_on_exit else "when the caller dies"
    details = policy.details
    if not details.die_with_parent:
        end = "when the command ends" if policy.kill_on_exit else "when nothing runs there any more"
    lines = [sentences.own_processes(end)] if "pid" in policy.unshare else []
    privileges = (
        "only the requested capabilities over its own namespaces" if details.capabilities else "no capabilities"
    )
    privileges += " except CAP_SETFCAP" if _may_map_root(policy, host, identity) else ""
    whose = "own" if "user" in policy.unshare else "joined"
    lines.append(sentences.privileges(privileges, whose))
    if host.kernel_id:
        lines.append(
            "ids: outside an unused uid and gid, not the caller's 0; there the files of each path's owner are its own"
        )
    lines.append(refused(policy))
    if policy.base == "workspace":
        lines.append(sentences.FILES_OF_THE_PLAN)
        lines.append(sentences.BUILT_ENVIRONMENT)
    elif policy.base == "layers":
        lines.append(sentences.FILES_OF_THE_PLAN)
    if policy.network == "none":
        lines.append(sentences.OWN_NETWORK)
    elif policy.network != "host":
        from nsbox._layout.network import enforced  # seldom needed

        lines += enforced(policy)
    if ruleset is not None and ruleset.scoped:
        lines.append("sockets: no abstract unix sockets from outside (Landlock)")
    if ruleset is not None and ruleset.files:
        lines.append("files: the same again by Landlock, even those passed as descriptors")
        if not ruleset.files & _TRUNCATE:
            lines.append(sentences.NO_TRUNCATE)
    lines += sentences.limits(rlimits, cgroup)
    if most := inotify_instances(policy, host):
        lines.append(f"limits: {most} instances of inotify")
    return tuple(lines)


def _resolved(policy: Policy, ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """Return the ops for Landlock, whose rules are about places, not names."""
    if policy.base != "layers":
        return ops
    from nsbox._paths.destinations import resolved

    return resolved(ops)


def _reached(policy: Policy, ops: tuple[Op, ...], ruleset: Ruleset) -> tuple[str, ...]:
    from nsbox._plan import landlock

    return landlock.reached(_resolved(policy, ops), ruleset)


def _not_enforced(
    policy: Policy, host: Host, identity: Identity, ops: tuple[Op, ...], ruleset: Ruleset | None
) -> tuple[str, ...]:
    gaps = [sentences.system_calls(policy)]
    if "pid" not in policy.unshare:
        whose = "the caller's" if policy.details.pidns is None else "a joined"
        gaps.append(f"processes: {whose} pid namespace; what the command leaves running goes on")
        if policy.details.die_with_parent:
            gaps.append(sentences.CALLERS_END)
    if policy.details.host_writes:
        gaps.append("the host: mount points, files and modes that ops lack are made there, where it is writable")
    if policy.base == "host":
        gaps.append(sentences.ALL_FILES)
    if ruleset is None or not ruleset.files:
        gaps.append(sentences.DESCRIPTORS)
    if policy.network == "host":
        gaps.append(sentences.host_network(abstract=ruleset is None or not ruleset.scoped))
    elif policy.network != "none":
        from nsbox._layout.network import not_enforced  # seldom needed

        gaps += not_enforced(policy)
    gaps.append(sentences.unix_sockets(vsock=policy.filter.base == "off"))
    if ruleset is None or not ruleset.files:
        gaps.append(sentences.FIFOS)
    else:
        places = _reached(policy, ops, ruleset)
        below = f"; below {', '.join(places)} they can be written to, also in read-only directories" if places else ""
        gaps.append(f"FIFOs: those in visible directories can be read empty{below}")
    gaps.append(left_behind(policy))
    if policy.nested and host.kernel_id:
        gaps.append("afterwards: file capabilities that it gives in sandboxes of its own, in a workspace of root's")
    if policy.base != "workspace" and may_be_kernel_root(policy, host) and _may_map_root(policy, host, identity):
        gaps.append("kernel settings, file capabilities: the command has them in a user namespace of its own, as root")
    if pinned_paths(policy):
        gaps.append(sentences.MOVED_PATHS)
    if policy.nested and (pinned_paths(policy) or may_be_kernel_root(policy, host)):
        gaps.append(
            "nested namespaces: in one of its own the command can rename what is hidden, for a later command to see"
        )
    if policy.nested and policy.base == "workspace" and may_be_kernel_root(policy, host):
        gaps.append("nested sandboxes: the kernel's uid 0 can't map itself again, nor mount a procfs")
        gaps.append("cgroups: in a user namespace of its own the kernel's uid 0 can mount and write to the host's")
    if host.unmapped:
        gaps.append(f"ids: outside the command is the caller's uid 0: {host.unmapped}")
    if not host.can_set_groups:
        gaps.append(sentences.CALLERS_GROUPS)
    if not policy.new_session:
        gaps.append(sentences.CALLERS_SESSION)
    return tuple(gaps)
