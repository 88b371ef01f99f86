"""The file system of a workspace policy: which ops, in which order. Pure.

The order is by depth, so that a mount comes after the one that it lies in. On the same path, a mask wins over a
writable bind, and a writable bind over a read-only one.
"""

from __future__ import annotations

from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.paths import innermost, is_below, is_inside
from nsbox._layout.layout import common, may_be_kernel_root
from nsbox._layout.user import accounts, home_links, home_ops, home_path, ssh_ops
from nsbox._plan import ops
from nsbox._plan.host import Host
from nsbox._policy.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Iterable


def _depth(path: str) -> int:
    return 0 if path == "/" else path.count("/")


def _readable(policy: Policy, host: Host) -> dict[str, ops.Op]:
    """Return the read-only binds, without those that a wider one contains, and system directories that are links."""
    wanted: dict[str, ops.Op] = {}
    binds = [path for path, target in host.directories if target is None]
    prefixes = [p for p in host.prefixes if not any(is_below(p, w) for w in policy.write)]
    for path in sorted({*binds, *policy.read, *prefixes} - set(policy.write), key=lambda p: (_depth(p), p)):
        above = innermost(path, (*wanted, *policy.write))
        # A wider bind isn't visible through a file system of the sandbox's own that is mounted over it.
        hidden = above is not None and any(is_below(path, p) and not is_below(above, p) for p in ("/tmp", "/run"))
        # For commands with kernel ids of their own, each named path has its own owner.
        is_mapped = bool(host.kernel_id) and path in policy.read
        if above is None or above in policy.write or hidden or is_mapped:
            wanted[path] = ops.RoBind(path, path, nofollow=path in policy.read)
    for path, target in host.directories:
        if target is not None and not any(is_below(path, above) for above in (*wanted, *policy.write)):
            wanted[path] = ops.Symlink(target, path)
    return wanted


def _masked(policy: Policy, host: Host) -> dict[str, ops.Op]:
    named = (*policy.write, *policy.read)
    for secret in (*host.secrets, *host.private):
        for path in named:
            if is_inside(path, secret):
                raise PolicyError(
                    "read" if path in policy.read else "write",
                    f"{path} lies in {secret}, which is masked unless it is named itself",
                )
    paths = [secret for secret in host.secrets if secret not in named]  # a policy that names one itself means it
    paths += [path for path in host.private if not any(is_below(path, name) for name in named)]
    if not policy.nested:  # a sandbox inside needs a fully visible /proc to mount its own
        paths.append("/proc/1/autogroup")  # the init's niceness: a command could starve it
        paths += ["/proc/keys", "/proc/key-users"]  # the names of the keys in the session keyring
    if may_be_kernel_root(policy, host):
        paths += [f"/proc/{name}" for name in ops.PROC_SECRETS]
    masks: dict[str, ops.Op] = {path: ops.Mask(path, optional=True) for path in paths}
    return masks | {path: ops.Mask(path, optional=True, nofollow=True) for path in policy.deny}


def _pinned(policy: Policy) -> dict[str, ops.Op]:
    """Return binds of directories onto themselves: those between a writable path and another path inside of it.

    A mount point can't be renamed (EBUSY). Without these a command could move the directories, and what was hidden or
    read-only would be neither for the next command. Below a read-only path nothing can be moved anyway.
    """
    named = (*policy.write, *policy.read)
    pins: dict[str, ops.Op] = {}
    for path in (*policy.deny, *named):
        parts = path.strip("/").split("/")
        for i in range(1, len(parts)):
            way = "/" + "/".join(parts[:i])
            above = innermost(way, named)
            if above in policy.write and way not in named:
                pins[way] = ops.Bind(way, way, optional=True, nofollow=True)
    return pins


def _var_tmp(chosen: Iterable[str], tmp_size: int | None) -> dict[str, ops.Op]:
    """Return /var/tmp: a link to /tmp, unless the policy shows something there."""
    chosen = tuple(chosen)
    if any(is_below("/var/tmp", path) for path in chosen):
        return {}
    if any(is_below(path, "/var/tmp") for path in chosen):
        return {"/var/tmp": ops.Tmpfs("/var/tmp", size=tmp_size, mode=0o1777)}
    return {"/var/tmp": ops.Symlink("/tmp", "/var/tmp")}


def _check_links(policy: Policy, wished: dict[str, ops.Op]) -> None:
    """Raise PolicyError for a bind below a link: it would be mounted somewhere else than its name says."""
    links = [op for op in wished.values() if isinstance(op, ops.Symlink)]
    for name in ("write", "read"):
        for path in getattr(policy, name):
            for link in links:
                if is_below(path, link.dest):
                    raise PolicyError(
                        name, f"{path} lies below {link.dest}, a link to {link.target}: name the real path"
                    )


def _links(policy: Policy, host: Host, chosen: dict[str, ops.Op]) -> dict[str, ops.Op]:
    """Return the links on the way to what the policy names, except for those that a bind already contains.

    None is made in /proc, /dev, /sys or a denied path, or where the sandbox has something below the link.
    """
    own = ("/proc", "/dev", "/sys")
    bound = [path for path, op in chosen.items() if isinstance(op, ops.Bind | ops.RoBind)]
    links: dict[str, ops.Op] = {}
    for link, target in (*policy.links, *host.ways, *home_links(policy, host)):
        if any(is_below(path, link) for path in chosen) or any(is_below(link, path) for path in (*own, *policy.deny)):
            continue
        above = innermost(link, chosen)
        if above is None or (above not in bound and not isinstance(chosen[above], ops.Symlink)):
            links[link] = ops.Symlink(target, link)
    return links


def _ways(chosen: dict[str, ops.Op]) -> dict[str, ops.Op]:
    """Return mounts that become read-only: over the directories between a tmpfs of the sandbox's own and binds in it.

    These directories look like the host's, but aren't: a file written beside a workspace in /tmp would vanish with the
    command. One mount at the topmost directory is enough, and no command can move it.
    """
    fresh = [path for path, op in chosen.items() if isinstance(op, ops.Tmpfs)]
    ways: dict[str, ops.Op] = {}
    for path, op in chosen.items():
        above = innermost(path, (base for base in fresh if base != path))
        if above is None or not isinstance(op, ops.Bind | ops.RoBind):
            continue
        way = f"{above}/{path[len(above) + 1 :].partition('/')[0]}"
        if way not in chosen:  # otherwise it is bound itself
            ways[way] = ops.Tmpfs(way, mode=0o755)
    return ways


def workspace(policy: Policy, host: Host) -> tuple[ops.Op, ...]:
    """Return the ops for a workspace policy."""
    tmp_size = policy.tmp_size if isinstance(policy.tmp_size, int) else None
    own: dict[str, ops.Op] = {
        "/dev": ops.Dev("/dev", size=tmp_size),
        # Nested sandboxes need a fully visible /proc (mount_too_revealing in the kernel).
        "/proc": ops.Proc("/proc", cover=may_be_kernel_root(policy, host) or (False if policy.nested else "sys")),
        "/tmp": ops.Tmpfs("/tmp", size=tmp_size, mode=0o1777),
    }
    wished = _pinned(policy) | _readable(policy, host)
    wished |= {path: ops.Bind(path, path, nofollow=True) for path in policy.write}
    own |= {path: ops.Device(path, path) for path in host.devices}
    if policy.network == "host" and host.resolv_conf is not None:
        wished.setdefault(host.resolv_conf, ops.RoBind(host.resolv_conf, host.resolv_conf, optional=True))
    wished |= {path: ops.RoBind(path, path, nofollow=True) for path in host.certificate_files}
    wished |= accounts(policy, host, home_path(policy, host)) | ssh_ops(policy, host)
    homes, fixed = home_ops(policy, host, tmp_size)
    own |= homes
    _check_links(policy, wished)
    if any(is_below("/run", path) for path in (*policy.write, *policy.read) if path != "/run"):
        own["/run"] = ops.Tmpfs("/run", size=tmp_size)  # the host's has sockets that lead out; a policy can name them
    wished |= _var_tmp((*wished, *policy.deny), tmp_size)
    # The policy itself can't name a path below a denied one; what is there by default is left out.
    chosen = {p: op for p, op in (own | wished).items() if not any(is_below(p, denied) for denied in policy.deny)}
    chosen |= _links(policy, host, chosen)
    chosen |= (ways := _ways(chosen))
    chosen |= _masked(policy, host)
    if policy.network not in ("none", "host"):
        from nsbox._layout.network import files  # seldom needed

        own_files = {op.dest: op for op in files(policy, host)}
        chosen |= {p: op for p, op in own_files.items() if not any(is_below(p, denied) for denied in policy.deny)}
    ordered = sorted(chosen.items(), key=lambda item: (_depth(item[0]), isinstance(item[1], ops.Mask)))
    return (*(op for _, op in ordered), *fixed, *common(policy), *map(ops.RemountRo, ways), ops.RemountRo("/"))
