"""The backend of Linux namespaces: which ops, in which order, for which policy.

Order is by depth, so that whatever is mounted inside of something comes after it; on the same path a mask wins over a
writable bind, which wins over a read-only one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nsbox import _landlock
from nsbox._bpf import Program, Rule
from nsbox._errors import PolicyError, Reason, UnavailableError
from nsbox._host import Host
from nsbox._limits import cgroup_limits, rlimits
from nsbox._plan import (
    Bind,
    Dev,
    DevBind,
    Devpts,
    Hostname,
    Identity,
    Loopback,
    Mask,
    Op,
    Plan,
    Proc,
    RemountRo,
    Rlimit,
    RoBind,
    Ruleset,
    Symlink,
    Tmpfs,
)
from nsbox._policy import Policy, is_below
from nsbox._seccomp import no_user_namespaces, profile

NAME = "namespaces"
KERNEL_FLOOR = (5, 12)  # mount_setattr(2)

# Files of procfs that tell uid 0, even without capabilities, about the machine; container runtimes mask them too.
_PROC_SECRETS = (
    *("acpi", "kcore", "latency_stats", "timer_list", "sched_debug", "scsi"),
    *("slabinfo", "vmallocinfo", "pagetypeinfo", "kpagecount", "kpageflags", "kpagecgroup", "dynamic_debug"),
)


def missing(host: Host) -> tuple[Reason, ...]:
    """Return why sandboxes of this kind can't be made on this host, as far as it is known without trying."""
    reasons = []
    if host.system != "Linux":
        reasons.append(Reason(f"{host.system} has no namespaces"))
    elif host.kernel < KERNEL_FLOOR:
        have, need = (".".join(map(str, v)) for v in (host.kernel, KERNEL_FLOOR))
        reasons.append(Reason(f"Linux {have} lacks mount_setattr(2)", f"Linux {need} or later"))
    if host.core_problem:
        reasons.append(Reason(host.core_problem, "install nsbox where it has a C core: Linux on x86_64 or aarch64"))
    if host.max_user_namespaces == 0:
        reasons.append(Reason("user.max_user_namespaces is 0", "sysctl user.max_user_namespaces=15000"))
    if host.unprivileged_userns is False and not host.can_set_ids:
        reasons.append(
            Reason("kernel.unprivileged_userns_clone is 0", "sysctl kernel.unprivileged_userns_clone=1, or run as root")
        )
    return tuple(reasons)


def compile(policy: Policy, host: Host) -> Plan:
    """Return the plan for this policy on this host; raises UnavailableError for a wish that can't be granted here."""
    if policy.base == "workspace":
        policy = _with_interpreter(policy, host)
    ops = {"workspace": _workspace, "host": _host, "layers": _layers}[policy.base](policy, host)
    full = _wants_full(policy, host)
    identity = _full(policy, host) if full else _single(policy, host, ops)
    limits = rlimits(policy, host)
    in_cgroup, lacking = cgroup_limits(policy, host)
    ruleset = _ruleset(policy, host, ops, lacking)
    return Plan(
        ops=ops,
        namespaces=policy.unshare | (frozenset({"net"}) if policy.network == "none" else frozenset()),
        identity=identity,
        rlimits=limits,
        new_session=policy.new_session,
        cgroup=host.cgroup if in_cgroup else "",
        cgroup_limits=in_cgroup,
        programs=_programs(policy, host, identity),
        ruleset=ruleset,
        nested=policy.nested,
        drop_groups=host.can_set_groups and policy.base != "host",
        kill_on_exit=policy.kill_on_exit,
        backend=NAME,
        enforced=_enforced(policy, limits, ruleset, in_cgroup),
        not_enforced=(*_not_enforced(policy, host, ruleset), *(reason.what for reason in lacking.values())),
    )


# ---- ops


def _depth(path: str) -> int:
    return 0 if path == "/" else path.count("/")


def _common(policy: Policy) -> list[Op]:
    ops: list[Op] = []
    if policy.network == "none":
        ops.append(Loopback())
    if policy.hostname is not None:
        ops.append(Hostname(policy.hostname))
    return ops


def _may_be_kernel_root(policy: Policy, host: Host) -> bool:
    """Say if the command is, or can be given, the kernel's uid 0, to which /proc/sys is writable."""
    mapped = any(outside <= 0 < outside + count for _, outside, count in host.uid_ranges)
    return host.is_kernel_root or (mapped and host.can_set_ids and _wants_full(policy, host))


def _pinned_paths(policy: Policy) -> list[str]:
    """List the paths inside of a writable one that must stay where they are."""
    return [
        p for p in (*policy.deny, *policy.read, *policy.write) if any(p != w and is_below(p, w) for w in policy.write)
    ]


def _needs_no_userns(policy: Policy, host: Host) -> bool:
    """Say if a user namespace of the command's own is a way out.

    The kernel's uid 0 could mount the cgroup file systems in one, whose files are its own. And mount points are fixed
    only in the mount namespace they are in: in another one, what pins a path can be left behind.
    """
    return policy.base != "host" and (_may_be_kernel_root(policy, host) or bool(_pinned_paths(policy)))


def _with_interpreter(policy: Policy, host: Host) -> Policy:
    """Make the running interpreter, and nsbox itself, read-only where they lie in a writable directory.

    A command that could write to the caller's own venv could have the caller execute its code, outside.
    """
    inside = [
        path
        for path in (*host.prefixes, host.package)
        if any(path != w and is_below(path, w) for w in policy.write)
        and path not in (*policy.write, *policy.read)
        and not any(is_below(path, denied) for denied in policy.deny)
    ]
    return replace(policy, read=(*policy.read, *dict.fromkeys(inside))) if inside else policy


def _host(policy: Policy, host: Host) -> tuple[Op, ...]:
    return (DevBind("/", "/"), Proc("/proc", cover=_may_be_kernel_root(policy, host)), *_common(policy))


def _layers(policy: Policy, host: Host) -> tuple[Op, ...]:
    cover = _may_be_kernel_root(policy, host)
    ops = tuple(Proc(op.dest, cover=True) if isinstance(op, Proc) and cover else op for op in policy.ops)
    has_loopback = any(isinstance(op, Loopback) for op in ops)
    return ops + tuple(op for op in _common(policy) if not (has_loopback and isinstance(op, Loopback)))


def _readable(policy: Policy, host: Host) -> dict[str, Op]:
    """Read-only binds, without those that a wider one contains."""
    wanted: dict[str, Op] = {}
    binds = [path for path, target in host.directories if target is None]
    prefixes = [p for p in host.prefixes if not any(is_below(p, w) for w in policy.write)]
    for path in sorted({*binds, *policy.read, *prefixes} - set(policy.write), key=lambda p: (_depth(p), p)):
        above = max((p for p in (*wanted, *policy.write) if is_below(path, p)), key=_depth, default=None)
        # What is bound from wider above isn't seen through the sandbox's own file systems.
        hidden = above is not None and any(is_below(path, p) and not is_below(above, p) for p in ("/tmp", "/run"))
        if above is None or above in policy.write or hidden:
            wanted[path] = RoBind(path, path, nofollow=path in policy.read)
    for path, target in host.directories:
        if target is not None and not any(is_below(path, above) for above in (*wanted, *policy.write)):
            wanted[path] = Symlink(target, path)
    return wanted


def _masked(policy: Policy, host: Host) -> dict[str, Op]:
    named = (*policy.write, *policy.read)
    for secret in (*host.secrets, *host.private):
        for path in named:
            if path != secret and is_below(path, secret):
                raise PolicyError(
                    "read" if path in policy.read else "write",
                    f"{path} lies in {secret}, which is masked unless it is named itself",
                )
    paths = [secret for secret in host.secrets if secret not in named]  # what is named by itself is no secret
    paths += [path for path in host.private if not any(is_below(path, name) for name in named)]
    if not policy.nested:  # a sandbox inside needs a fully visible /proc to mount its own
        paths.append("/proc/1/autogroup")  # the init's own; by its niceness it could be starved
        paths += ["/proc/keys", "/proc/key-users"]  # what the session keyring holds, by name
    if _may_be_kernel_root(policy, host):
        paths += [f"/proc/{name}" for name in _PROC_SECRETS]
    masks: dict[str, Op] = {path: Mask(path, optional=True) for path in paths}
    return masks | {path: Mask(path, optional=True, nofollow=True) for path in policy.deny}


def _pinned(policy: Policy) -> dict[str, Op]:
    """Bind each directory on the way through a writable one to another path of the policy onto itself.

    A mount point can't be renamed (EBUSY). Without this a command could move the way's directories, and what was
    hidden or read-only would be neither for the next command. Below a read-only path nothing can be moved anyway.
    """
    named = (*policy.write, *policy.read)
    pins: dict[str, Op] = {}
    for path in (*policy.deny, *named):
        parts = path.strip("/").split("/")
        for i in range(1, len(parts)):
            way = "/" + "/".join(parts[:i])
            above = max((p for p in named if is_below(way, p)), key=_depth, default=None)
            if above in policy.write and way not in named:
                pins[way] = Bind(way, way, optional=True, nofollow=True)
    return pins


def _var_tmp(chosen: Iterable[str], tmp_size: int | None) -> dict[str, Op]:
    """Return the second temporary directory: a link to /tmp, if nothing wished for is there."""
    chosen = tuple(chosen)
    if any(is_below("/var/tmp", path) for path in chosen):
        return {}
    if any(is_below(path, "/var/tmp") for path in chosen):
        return {"/var/tmp": Tmpfs("/var/tmp", size=tmp_size, mode=0o1777)}
    return {"/var/tmp": Symlink("/tmp", "/var/tmp")}


def _check_links(policy: Policy, wished: dict[str, Op]) -> None:
    """Refuse a bind below a link: it would be mounted elsewhere than its name says."""
    links = [op for op in wished.values() if isinstance(op, Symlink)]
    for name in ("write", "read"):
        for path in getattr(policy, name):
            for link in links:
                if is_below(path, link.dest):
                    raise PolicyError(
                        name, f"{path} lies below {link.dest}, a link to {link.target}: name the real path"
                    )


def _workspace(policy: Policy, host: Host) -> tuple[Op, ...]:
    tmp_size = policy.tmp_size if isinstance(policy.tmp_size, int) else None
    own: dict[str, Op] = {
        "/dev": Dev("/dev", size=tmp_size),
        "/proc": Proc("/proc", cover=_may_be_kernel_root(policy, host)),
        "/tmp": Tmpfs("/tmp", size=tmp_size, mode=0o1777),
    }
    wished = _pinned(policy) | _readable(policy, host)
    wished |= {path: Bind(path, path, nofollow=True) for path in policy.write}
    if policy.network == "host" and host.resolv_conf is not None:
        wished.setdefault(host.resolv_conf, RoBind(host.resolv_conf, host.resolv_conf, optional=True))
    _check_links(policy, wished)
    if any(is_below("/run", path) for path in (*policy.write, *policy.read) if path != "/run"):
        own["/run"] = Tmpfs("/run", size=tmp_size)  # its sockets lead out; who wants it names it
    wished |= _var_tmp((*wished, *policy.deny), tmp_size)
    # The policy refuses to name a path below a denied one; what is there by default goes.
    chosen = {p: op for p, op in (own | wished).items() if not any(is_below(p, denied) for denied in policy.deny)}
    chosen |= _masked(policy, host)
    ordered = sorted(chosen.items(), key=lambda item: (_depth(item[0]), isinstance(item[1], Mask)))
    return (*(op for _, op in ordered), *_common(policy), RemountRo("/"))


# ---- identity


def _has_subordinates(host: Host) -> bool:
    return host.map_programs is not None and bool(host.subuids) and bool(host.subgids)


def _wants_full(policy: Policy, host: Host) -> bool:
    if policy.ids == "full" and not host.can_set_ids and not _has_subordinates(host):
        raise UnavailableError(
            Reason(
                "ids='full' needs CAP_SETUID and CAP_SETGID, or subordinate ids",
                "run as root, or install newuidmap and give the user ranges in /etc/subuid and /etc/subgid, "
                "or say ids='single'",
            )
        )
    return policy.ids == "full" or (policy.ids == "auto" and host.can_set_ids)


def _identity_rows(ranges: tuple[tuple[int, int, int], ...]) -> list[tuple[int, int, int]]:
    return [(inside, inside, count) for inside, _, count in ranges]


def _subordinate_rows(own: int, ranges: tuple[tuple[int, int], ...]) -> list[tuple[int, int, int]]:
    """Map the own id to itself and the subordinate ones to all others from 0 up."""
    rows = [(own, own, 1)]
    inside = 0
    for first, count in ranges:
        if inside <= own < inside + count:
            before = own - inside
            rows += [(inside, first, before), (own + 1, first + before, count - before)]
            inside += 1
        else:
            rows.append((inside, first, count))
        inside += count
    return sorted(row for row in rows if row[2])


def _full(policy: Policy, host: Host) -> Identity:
    uid = host.euid if policy.uid is None else policy.uid
    gid = host.egid if policy.gid is None else policy.gid
    if host.can_set_ids:
        maps = _identity_rows(host.uid_ranges), _identity_rows(host.gid_ranges)
    else:
        maps = _subordinate_rows(host.euid, host.subuids), _subordinate_rows(host.egid, host.subgids)
    for name, value, rows in (("uid", uid, maps[0]), ("gid", gid, maps[1])):
        if not any(inside <= value < inside + count for inside, _, count in rows):
            raise UnavailableError(Reason(f"{name}={value} is not among the ids that can be mapped here"))
    texts = ["".join(f"{inside} {outside} {count}\n" for inside, outside, count in rows) for rows in maps]
    return Identity(
        uid=uid,
        gid=gid,
        uid_map=texts[0],
        gid_map=texts[1],
        deny_setgroups=False,
        by_helper=True,
        change_ids=(uid, gid) != (host.euid, host.egid),
        map_programs=None if host.can_set_ids else host.map_programs,
    )


def _single(policy: Policy, host: Host, ops: tuple[Op, ...]) -> Identity:
    uid = host.euid if policy.uid is None else policy.uid
    gid = host.egid if policy.gid is None else policy.gid
    # devpts must own its nodes as uid 0 of the namespace it is mounted in; the wished ids then come in a second one.
    as_root_first = (uid, gid) != (0, 0) and any(isinstance(op, Dev | Devpts) for op in ops)
    if as_root_first:
        return Identity(uid, gid, f"0 {host.euid} 1", f"0 {host.egid} 1", f"{uid} 0 1", f"{gid} 0 1")
    return Identity(uid, gid, f"{uid} {host.euid} 1", f"{gid} {host.egid} 1")


# ---- system calls


def _programs(policy: Policy, host: Host, identity: Identity) -> tuple[Program, ...]:
    """Return the seccomp filters. The first is installed beside the mounts, where its cost is hidden."""
    wish = policy.filter
    rules = profile(wish.base, nested=policy.nested, for_net=policy.network == "none", allow=wish.allow)
    way_out = not policy.nested and _needs_no_userns(policy, host)
    if way_out and not {"clone", "unshare"}.isdisjoint(wish.allow):
        raise PolicyError(
            "seccomp.allow",
            "in a user namespace of its own a command could leave behind what protects files here; "
            "nested=True allows them, and gives that up",
        )
    no_userns: tuple[Rule, ...] = ()
    if way_out or (wish.base != "off" and not policy.nested):
        no_userns = no_user_namespaces(wish.allow)
    with_compatible = wish.base == "off" and not wish.rules
    if identity.uid_map2 is None:
        programs = [Program((*rules, *no_userns), with_compatible=with_compatible)]
    else:
        programs = [Program(rules, with_compatible=with_compatible)]
        if no_userns:
            programs.append(Program(no_userns, with_compatible=with_compatible, stage="confined"))
    programs += [Program(code=code, stage="last") for code in wish.programs]
    if wish.rules:  # after the ready ones: they may be about seccomp(2) itself
        programs.append(Program(wish.rules, stage="last"))
    return tuple(programs)


def _ruleset(policy: Policy, host: Host, ops: tuple[Op, ...], lacking: dict[str, Reason]) -> Ruleset | None:
    if policy.landlock and host.landlock_abi < _landlock.FILES_ABI:
        have = f"version {host.landlock_abi}" if host.landlock_abi else "none"
        reason = Reason(
            f"landlock=True: this kernel has {have} of Landlock, version {_landlock.FILES_ABI} is needed",
            "Linux 5.19 or later, with landlock among the modules of lsm= on its command line",
        )
        if "landlock" not in policy.best_effort:
            raise UnavailableError(reason)
        lacking["landlock"] = reason
    elif policy.landlock:
        return _landlock.ruleset(ops, host.landlock_abi)
    # In a net namespace of one's own there are no abstract sockets of others.
    reaches_out = policy.base == "workspace" and policy.network == "host"
    return _landlock.scopes(host.landlock_abi) if reaches_out else None


# ---- what it amounts to


def _enforced(
    policy: Policy, rlimits: tuple[Rlimit, ...], ruleset: Ruleset | None, cgroup: tuple[tuple[str, str], ...]
) -> tuple[str, ...]:
    end = "when the command ends or the caller dies" if policy.kill_on_exit else "when the caller dies"
    said = [f"processes: own pid namespace; all are killed {end}"]
    said.append("privileges: no capabilities, no new privileges, own user namespace")
    said.append(f"system calls: {_filtered(policy)}")
    if policy.base == "workspace":
        said.append("files: only what the plan mounts; the host's mounts are gone")
        said.append("environment: built, not inherited")
    elif policy.base == "layers":
        said.append("files: only what the plan mounts; the host's mounts are gone")
    if policy.network == "none":
        said.append("network: own net namespace, loopback only")
    if ruleset is not None and ruleset.scoped:
        said.append("sockets: no abstract unix sockets from outside (Landlock)")
    if ruleset is not None and ruleset.files:
        said.append("files: the same again by Landlock, also those passed as descriptors")
    said += [f"limits: RLIMIT_{limit.name} {limit.soft}" for limit in rlimits]
    said += [f"limits: {name} {value}" for name, value in cgroup]
    return tuple(said)


def _filtered(policy: Policy) -> str:
    """Say what the seccomp filters refuse."""
    wish = policy.filter
    refused = ["keyrings"] if policy.nested else ["keyrings", "children of the caller"]
    if wish.base != "off":
        refused += ["administration", "bpf", "io_uring", "file handles", "raw and unusual sockets"]
        refused += [] if policy.nested else ["namespaces", "mounts"]
    if wish.base == "hardened":
        refused += ["tracing", "file locks"]
    text = f"no {', '.join(refused)}"
    text += f", but {', '.join(wish.allow)} allowed" if wish.allow else ""
    own = len(wish.rules), len(wish.programs)
    return text + (f"; {own[0]} rules and {own[1]} programs of the policy's own" if any(own) else "")


def _not_enforced(policy: Policy, host: Host, ruleset: Ruleset | None) -> tuple[str, ...]:
    said = [
        "system calls: all others"
        if policy.filter.base == "off"
        else "system calls: flaws of the kernel in those that are allowed"
    ]
    if policy.base == "host":
        said.append("files: the whole file system is visible and writable by the user's own permissions")
    if ruleset is None or not ruleset.files:
        said.append(
            "descriptors: a file passed to the command can be reopened with any mode that its permissions allow"
        )
    if policy.network == "host":
        abstract = "" if ruleset is not None and ruleset.scoped else ", with its abstract unix sockets"
        said.append(f"network: the host's{abstract}")
    vsock = ", and AF_VSOCK," if policy.filter.base == "off" else ""
    said.append(f"sockets: unix sockets in visible directories{vsock} can be connected to")
    said.append("afterwards: set-user-ID programs and scripts that the command leaves in writable places")
    if _pinned_paths(policy):
        said.append("hidden and read-only paths inside of writable ones: when somebody outside replaces or moves them")
    if policy.nested and _needs_no_userns(policy, host):
        said.append("nested namespaces: in one of its own the command can rename what is hidden, for a later command")
    if not host.can_set_groups:
        said.append("groups: the caller's supplementary groups stay in force")
    if not policy.new_session:
        said.append("terminal and signals: the caller's session and process group can be reached")
    return tuple(said)
