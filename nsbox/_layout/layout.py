"""The ops for a policy, in order: the file system of a sandbox, for any backend that mounts. Pure.

The ops of a workspace, which are the hardest, are in workspace.py.

Lean: functions import what other policies start sooner without: `workspace` (0.3 ms), `user` (0.16 ms), `network` (0.12
ms).
"""

from __future__ import annotations

from nsbox._base.errors import PolicyError, Reason, UnavailableError
from nsbox._base.frozen import replace
from nsbox._base.paths import innermost, is_below, is_inside
from nsbox._paths.home import name_of
from nsbox._paths.patterns import is_pattern
from nsbox._plan import ops
from nsbox._plan.host import Host
from nsbox._policy.policy import Policy

_PROC_SETTINGS = ("sys", "sysrq-trigger", "irq", "bus", "fs", "asound")  # as op_mount.c covers them


def common(policy: Policy) -> list[ops.Op]:
    """Return the ops that have nothing to do with files."""
    steps: list[ops.Op] = []
    if policy.network != "host":
        steps.append(ops.Loopback())
    if policy.hostname is not None:
        steps.append(ops.Hostname(policy.hostname))
    return steps


def _has_subordinates(host: Host) -> bool:
    return host.map_programs is not None and bool(host.subuids) and bool(host.subgids)


def wants_full(policy: Policy, host: Host) -> bool:
    """Say if all ids of the caller are mapped; raises UnavailableError if the policy insists and they can't be."""
    if policy.ids == "full" and not host.can_set_ids and not _has_subordinates(host):
        raise UnavailableError(
            Reason(
                "ids='full' needs CAP_SETUID and CAP_SETGID, or subordinate ids",
                "run as root, or install newuidmap and give the user ranges in /etc/subuid and /etc/subgid, "
                "or set ids='single'",
            )
        )
    return policy.ids == "full" or (policy.ids == "auto" and host.can_set_ids)


def may_be_kernel_root(policy: Policy, host: Host) -> bool:
    """Say if the command is, or can become, the kernel's uid 0, which can write to /proc/sys."""
    mapped = any(row.outside <= 0 < row.outside + row.count for row in host.uid_ranges)
    return host.is_kernel_root or (mapped and host.can_set_ids and wants_full(policy, host))


def pinned_paths(policy: Policy) -> list[str]:
    """Return the paths inside of a writable one that must not be moved."""
    return [p for p in (*policy.deny, *policy.read, *policy.write) if any(is_inside(p, w) for w in policy.write)]


def needs_no_userns(policy: Policy, host: Host) -> bool:
    """Say if a command must not make user namespaces, because one would be a way out.

    In one, the kernel's uid 0 could mount the cgroup file systems, whose files it owns. An id that stands in for it
    could give capabilities to files in root's workspace. And a mount protects its mount point from being moved only in
    its own mount namespace: in another one, the mount that pins a path can be left behind.
    """
    is_root = bool(host.kernel_id) or may_be_kernel_root(policy, host)
    return policy.base != "host" and (is_root or bool(pinned_paths(policy)))


def without_list(policy: Policy, why: str) -> tuple[Policy, dict[str, Reason]]:
    """Return the policy, with no network instead of a list, and what is lacking: for backends that can't enforce it.

    why: the backend's explanation.
    """
    if policy.network in ("none", "host"):
        return policy, {}
    return replace(policy, network="none"), {"network": Reason(f"{why}; without one there is no network at all")}


def completed(policy: Policy, host: Host) -> Policy:
    """Return the policy with everything that follows from it on this host. Every backend that mounts begins here."""
    return with_state_hidden(with_interpreter(with_matches(policy, host), host), host)


def with_matches(policy: Policy, host: Host) -> Policy:
    """Return the policy with patterns replaced by what they match, and without paths that `deny` hides.

    Whatever a pattern of `deny` matches is hidden, with everything below it, even if another list names it.
    """
    if policy.base != "workspace":
        return policy
    if not policy.has_patterns and set(policy.deny).isdisjoint((*policy.write, *policy.read)):
        return policy
    matches = dict(host.matches)  # a Host made by hand may lack it: then each name is meant literally
    read, deny = (
        tuple(dict.fromkeys(match for path in paths for match in matches.get(path, (path,))))
        for paths in (policy.read, policy.deny)
    )
    hidden = {match for path in policy.deny if is_pattern(path) for match in matches.get(path, ())}
    visible = [
        tuple(p for p in paths if p not in deny and not any(is_below(p, at) for at in hidden))
        for paths in (policy.write, read)
    ]
    at = policy.workdir
    if at is not None and any(is_below(at, path) for path in (*hidden, *deny)):
        raise PolicyError("deny", f"hides {at}, which commands work in")
    paths = tuple(rule for rule in policy.paths if rule.root in (*visible[0], *visible[1]))
    tools = policy.tools_bin if policy.tools_bin in visible[1] else None
    deny = tuple(path for path in deny if path in hidden or not any(is_below(path, at) for at in hidden))
    return replace(policy, write=visible[0], read=visible[1], deny=deny, paths=paths, tools_bin=tools, strict=False)


def with_interpreter(policy: Policy, host: Host) -> Policy:
    """Return the policy with the interpreter's paths, and those it imports from, read-only inside writable ones.

    A command that could write to the caller's own venv could make the caller run its code, outside. Everything else
    that follows from the policy counts these paths too. If the caller imports from a path that the policy names as
    writable, nothing can be done; _spawn.start warns.
    """
    if policy.base != "workspace":
        return policy
    inside: list[str] = []
    for path in (*host.prefixes, host.package, *host.imports):
        above = innermost(path, (*policy.write, *policy.read, *inside))
        is_own = path in host.prefixes or path == host.package
        if above is None or above == path or (above not in policy.write and not is_own):
            continue
        if any(is_below(path, w) for w in policy.write) and not any(is_below(path, denied) for denied in policy.deny):
            inside.append(path)
    return replace(policy, read=(*policy.read, *dict.fromkeys(inside))) if inside else policy


def with_state_hidden(policy: Policy, host: Host) -> Policy:
    """Return the policy with the user's directory of nsbox denied, if a path that the policy shows contains it.

    With the key in there, a command could forge what a commit leaves to be completed after a crash. If the policy names
    something in that directory, only the key is denied.
    """
    if not host.state or policy.base == "host":
        return policy
    if policy.base == "layers":
        return _with_state_masked(policy, host)
    key = f"{host.state}/key"
    hidden = key if any(is_below(path, host.state) for path in (*policy.write, *policy.read)) else host.state
    shown = (*policy.write, *policy.read, *(path for path, link in host.directories if link is None), *host.prefixes)
    if any(is_below(hidden, denied) for denied in policy.deny) or not any(is_below(hidden, path) for path in shown):
        return policy
    return replace(policy, deny=(*policy.deny, hidden))


def sources(op: ops.Op) -> tuple[str | int, ...]:
    """Return what an op shows of the host: paths, or a descriptor."""
    if isinstance(op, ops.Bind | ops.RoBind | ops.DevBind):
        return (op.src,)
    if isinstance(op, ops.BindFd):
        return (op.fd,)
    if isinstance(op, ops.Overlay):
        return (*op.lower, op.upper)
    return op.lower if isinstance(op, ops.RoOverlay | ops.TmpOverlay) else ()


def _with_state_masked(policy: Policy, host: Host) -> Policy:
    """Return the policy with a mask right after each op that shows nsbox's directory. A later op of its own wins.

    Directories on the way there, inside a writable bind, are bound onto themselves: otherwise a command could move
    them, and make a key of its own. There are two exceptions: a command line of bubblewrap, under which renames have to
    work as with bwrap, and a file system that is writable as a whole.
    """
    led = dict(host.sources)
    steps: list[ops.Op] = []
    for op in policy.ops:
        steps.append(op)
        for source in sources(op):
            around = led.get(source, source if isinstance(source, str) else "")
            if not around or not is_below(host.state, around):
                continue
            dest = str(getattr(op, "dest", ""))
            way = host.state[len(around.rstrip("/")) :].strip("/").split("/") if around != host.state else []
            steps += _pins(op, around, dest, way[:-1]) if not policy.details.host_writes else []
            at = "/".join((dest.rstrip("/"), *way))
            named = (str(getattr(own, "dest", "")) for own in policy.ops)
            is_named = any(is_inside(path, at) for path in named)
            steps.append(ops.Mask(f"{at}/key" if is_named or not way else at, optional=True))
    return policy if len(steps) == len(policy.ops) else replace(policy, ops=tuple(steps))


def _pins(op: ops.Op, around: str, dest: str, way: list[str]) -> list[ops.Op]:
    if isinstance(op, ops.RoBind | ops.Overlay | ops.RoOverlay | ops.TmpOverlay) or around == "/":
        return []
    if isinstance(op, ops.BindFd) and op.read_only:
        return []
    kind = ops.DevBind if isinstance(op, ops.DevBind) else ops.Bind
    paths = ("/".join(way[: i + 1]) for i in range(len(way)))
    return [kind(f"{around}/{path}", f"{dest.rstrip('/')}/{path}", optional=True, nofollow=True) for path in paths]


def _host(policy: Policy, host: Host) -> tuple[ops.Op, ...]:
    is_root = may_be_kernel_root(policy, host)
    files: tuple[ops.Op, ...] = ()
    if host.ssh_files:
        from nsbox._layout.user import ssh_ops  # seldom needed

        files = tuple(ssh_ops(policy, host).values())
    return (ops.DevBind("/", "/"), ops.Proc("/proc", cover=is_root, nests=is_root), *files, *common(policy))


def _proc(op: ops.Proc, policy: Policy, cover: bool) -> tuple[ops.Op, ...]:
    """Return the ops that show a pid namespace: a new procfs, or the caller's /proc for the caller's own, as bwrap."""
    if "pid" in policy.unshare or policy.details.pidns is not None:
        return (ops.Proc(op.dest, cover=cover or op.cover),)
    at = op.dest.rstrip("/")
    names = _PROC_SETTINGS if cover or op.cover is True else _PROC_SETTINGS[:1] if op.cover else ()
    return (ops.Bind("/proc", op.dest), *(ops.RoBind(f"/proc/{name}", f"{at}/{name}", optional=True) for name in names))


def _layers(policy: Policy, host: Host) -> tuple[ops.Op, ...]:
    cover = may_be_kernel_root(policy, host)
    steps = tuple(
        made for op in policy.ops for made in (_proc(op, policy, cover) if isinstance(op, ops.Proc) else (op,))
    )
    has_loopback = any(isinstance(op, ops.Loopback) for op in steps)
    if policy.network not in ("none", "host"):
        from nsbox._layout.network import files  # seldom needed

        steps += files(policy, host)
    return steps + tuple(op for op in common(policy) if not (has_loopback and isinstance(op, ops.Loopback)))


def layout(policy: Policy, host: Host) -> tuple[ops.Op, ...]:
    """Return the ops for a policy; raises PolicyError or UnavailableError if it makes no sense on this host."""
    if policy.base == "workspace":
        from nsbox._layout.workspace import workspace  # other policies start sooner without it

        return workspace(policy, host)
    return _host(policy, host) if policy.base == "host" else _layers(policy, host)


def project(policy: Policy) -> str | None:
    """Return the workspace of a workspace policy; None if it has none.

    That is the first writable path. But where commands start in the first readable one, outside of all that they can
    write to, it is that one: read_only=True.
    """
    start = policy.workdir
    if start is not None and start in policy.read[:1] and not any(is_below(start, path) for path in policy.write):
        return start
    return next(iter(policy.write), None)


def home(policy: Policy, host: Host) -> str:
    """Return HOME of a built environment, for a backend that mounts."""
    if policy.base != "workspace":
        return policy.home or "/"
    from nsbox._layout.user import home_path

    return home_path(policy, host)


def home_source(policy: Policy, host: Host) -> str | None:
    """Return the directory of this machine that keeps a workspace's home; None if it isn't kept."""
    if name_of(policy.home) is None:
        return None
    from nsbox._layout import user

    return user.home_source(policy, host)


def home_caveats(policy: Policy, host: Host) -> tuple[str, ...]:
    """Return sentences: what isn't enforced about a workspace's home."""
    if policy.base != "workspace" or name_of(policy.home) is None:
        return ()
    from nsbox._layout import user

    return user.home_caveats(policy, host)


def private_caveats(policy: Policy, host: Host) -> tuple[str, ...]:
    """Return sentences: where files that only root may read aren't hidden, because there are too many to look at."""
    if policy.base != "workspace" or not host.private_unknown:
        return ()
    first = ", ".join(host.private_unknown[:3]) + (", ..." if len(host.private_unknown) > 3 else "")
    return (f"secrets: what only root may read below {first}: too many entries to look for it; deny= hides it",)
