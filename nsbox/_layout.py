"""Which ops, in which order, for which policy: the file system that a sandbox has, whoever mounts it. Pure.

Order is by depth, so that whatever is mounted inside of something comes after it; on the same path a mask wins over a
writable bind, which wins over a read-only one.
"""

from __future__ import annotations

from nsbox._errors import PolicyError, Reason, UnavailableError
from nsbox._frozen import TYPE_CHECKING, replace
from nsbox._host import Host
from nsbox._plan import (
    Bind,
    Dev,
    DevBind,
    Hostname,
    Loopback,
    Mask,
    Op,
    Proc,
    RemountRo,
    RoBind,
    Symlink,
    Tmpfs,
)
from nsbox._policy import Policy, is_below

if TYPE_CHECKING:
    from collections.abc import Iterable

# Files of procfs that tell uid 0, even without capabilities, about the machine; container runtimes mask them too.
_PROC_SECRETS = (
    *("acpi", "kcore", "latency_stats", "timer_list", "sched_debug", "scsi"),
    *("slabinfo", "vmallocinfo", "pagetypeinfo", "kpagecount", "kpageflags", "kpagecgroup", "dynamic_debug"),
)

_PROC_SETTINGS = ("sys", "sysrq-trigger", "irq", "bus", "fs", "asound")  # as op_mount.c covers them


def _depth(path: str) -> int:
    return 0 if path == "/" else path.count("/")


def _common(policy: Policy) -> list[Op]:
    ops: list[Op] = []
    if policy.network == "none":
        ops.append(Loopback())
    if policy.hostname is not None:
        ops.append(Hostname(policy.hostname))
    return ops


def _has_subordinates(host: Host) -> bool:
    return host.map_programs is not None and bool(host.subuids) and bool(host.subgids)


def wants_full(policy: Policy, host: Host) -> bool:
    """Say if all ids that the caller has are mapped; raises UnavailableError if they have to be and can't."""
    if policy.ids == "full" and not host.can_set_ids and not _has_subordinates(host):
        raise UnavailableError(
            Reason(
                "ids='full' needs CAP_SETUID and CAP_SETGID, or subordinate ids",
                "run as root, or install newuidmap and give the user ranges in /etc/subuid and /etc/subgid, "
                "or say ids='single'",
            )
        )
    return policy.ids == "full" or (policy.ids == "auto" and host.can_set_ids)


def _may_be_kernel_root(policy: Policy, host: Host) -> bool:
    """Say if the command is, or can be given, the kernel's uid 0, to which /proc/sys is writable."""
    mapped = any(outside <= 0 < outside + count for _, outside, count in host.uid_ranges)
    return host.is_kernel_root or (mapped and host.can_set_ids and wants_full(policy, host))


def pinned_paths(policy: Policy) -> list[str]:
    """List the paths inside of a writable one that must stay where they are."""
    return [
        p for p in (*policy.deny, *policy.read, *policy.write) if any(p != w and is_below(p, w) for w in policy.write)
    ]


def needs_no_userns(policy: Policy, host: Host) -> bool:
    """Say if a user namespace of the command's own is a way out.

    The kernel's uid 0 could mount the cgroup file systems in one, whose files are its own. And mount points are fixed
    only in the mount namespace they are in: in another one, what pins a path can be left behind.
    """
    return policy.base != "host" and (_may_be_kernel_root(policy, host) or bool(pinned_paths(policy)))


def with_interpreter(policy: Policy, host: Host) -> Policy:
    """Make the running interpreter, and nsbox itself, read-only where they lie in a writable directory.

    A command that could write to the caller's own venv could have the caller execute its code, outside. Every backend
    begins with this: what else follows from the policy counts these paths in.
    """
    if policy.base != "workspace":
        return policy
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


def _proc(op: Proc, policy: Policy, cover: bool) -> tuple[Op, ...]:
    """Return what shows a pid namespace: a new procfs, or for the caller's own, the caller's, as bwrap has it."""
    if "pid" in policy.unshare or policy.details.pidns is not None:
        return (Proc(op.dest, cover=op.cover or cover),)
    at = op.dest.rstrip("/")
    settings = (RoBind(f"/proc/{name}", f"{at}/{name}", optional=True) for name in _PROC_SETTINGS)
    return (Bind("/proc", op.dest), *(settings if cover or op.cover else ()))


def _layers(policy: Policy, host: Host) -> tuple[Op, ...]:
    cover = _may_be_kernel_root(policy, host)
    ops = tuple(made for op in policy.ops for made in (_proc(op, policy, cover) if isinstance(op, Proc) else (op,)))
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


def layout(policy: Policy, host: Host) -> tuple[Op, ...]:
    """Return the ops for a policy; raises PolicyError or UnavailableError for one that makes no sense on this host."""
    return {"workspace": _workspace, "host": _host, "layers": _layers}[policy.base](policy, host)
