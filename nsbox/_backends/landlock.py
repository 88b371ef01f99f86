"""The backend of Landlock: a plain child behind Landlock, seccomp and resource limits, where namespaces are refused.

Nothing is mounted: files have their usual names, and nothing inside an allowed directory can be hidden. _lacking()
lists what the backend can't do, by the names in degrade.
"""

from __future__ import annotations

from nsbox._backends import sentences
from nsbox._backends.filters import left_behind, refused, unkillable
from nsbox._backends.limits import cgroup_caveats, cgroup_limits, check_lacking, core_caveats, core_stays, rlimits
from nsbox._base.errors import Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.paths import is_below, is_inside
from nsbox._layout.layout import home, home_source, private_caveats, with_interpreter, with_matches, without_list
from nsbox._paths.home import PRIVATE, is_of_box
from nsbox._plan import landlock
from nsbox._plan.host import Host
from nsbox._plan.landlock import Ruleset
from nsbox._plan.ops import DEVICES
from nsbox._plan.plan import Identity, Plan
from nsbox._policy.policy import Policy
from nsbox._seccomp.bpf import Program
from nsbox._seccomp.filter import no_more_filters, no_user_namespaces, profile
from nsbox._seccomp.profiles import beside_landlock, without_namespaces

if TYPE_CHECKING:
    from typing import Literal

NAME = "landlock"
_REMEDY = "Linux 5.19 or later, with landlock among the modules of lsm= on its command line"


def missing(host: Host) -> tuple[Reason, ...]:
    """Return why this backend can't be used on this host."""
    reasons = []
    if host.system != "Linux":
        return (Reason(f"{host.system} has no Landlock"),)
    if host.core_problem:
        from nsbox._backends.refusals import no_core  # a broken installation

        reasons.append(no_core(host))
    if host.landlock_abi < landlock.FILES_ABI:
        have = f"version {host.landlock_abi}" if host.landlock_abi else "none"
        reasons.append(Reason(f"this kernel has {have} of Landlock, version {landlock.FILES_ABI} is needed", _REMEDY))
    return tuple(reasons)


def compile(policy: Policy, host: Host) -> Plan:
    """Return the plan for this policy on this host; raises UnavailableError for a wish that can't be granted here."""
    _check_possible(policy)
    policy, no_list = without_list(policy, "landlock: network: no list: its rules know ports, and no hosts")
    policy = with_interpreter(with_matches(policy, host), host)
    in_cgroup, no_cgroup = cgroup_limits(policy, host, own=0, own_userns=False)
    lacking = _lacking(policy, host) | no_cgroup | no_list
    not_granted = check_lacking(policy, lacking)
    contains_files = policy.base == "workspace"
    limits = rlimits(policy, host, own_userns=False)
    return Plan(
        ops=(),
        namespaces=frozenset(),
        identity=_identity(policy, host),
        rlimits=limits,
        new_session=policy.new_session,
        cgroup=host.cgroup if in_cgroup else "",
        cgroup_limits=in_cgroup,
        programs=_programs(policy, host),
        ruleset=_ruleset(policy, host),
        drop_groups=host.can_set_groups and contains_files,
        kill_on_exit=policy.kill_on_exit,
        plain=True,
        tmpdir=_tmpdir(policy),
        home=_home(policy, host),
        backend=NAME,
        enforced=(
            *_enforced(policy, host),
            *sentences.limits(limits, in_cgroup),
        ),
        not_enforced=(
            *_not_enforced(policy, host),
            *unkillable(policy),
            *cgroup_caveats(policy, in_cgroup),
            *core_caveats(policy, host),
            *private_caveats(policy, host),
            *not_granted,
        ),
        lost=frozenset(lacking),
    )


# ---- what it can't do


def _check_possible(policy: Policy) -> None:
    """Raise UnavailableError for a wish that can't be granted and can't be left out either."""
    if policy.base == "layers":
        raise UnavailableError(Reason("landlock: Policy.layers() is made of mounts, which need namespaces"))
    if policy.nested:
        raise UnavailableError(Reason("landlock: nested=True: behind Landlock nothing can be mounted"))
    if "time" in policy.unshare:
        raise UnavailableError(Reason("landlock: unshare: it makes no time namespaces"))


def _within(path: str, roots: dict[str, Literal["read", "write"]]) -> str | None:
    """Return an allowed path that contains this one, or None."""
    return next((root for root in roots if is_below(path, root)), None)


def _lacking(policy: Policy, host: Host) -> dict[str, Reason]:
    """Return the wishes that this backend can't grant: their names in degrade, and why."""
    signals = ", signalled" if host.landlock_abi < landlock.SCOPES_ABI else ""
    lacking = {
        "processes": Reason(
            f"landlock: processes: those of the same user can be seen{signals} and slowed down; "
            f"what the command leaves running goes on{', out of its process group' if policy.new_session else ''}"
        )
    }
    if policy.hostname is not None:
        lacking["hostname"] = Reason("landlock: hostname: there is no uts namespace to set it in")
    if not host.can_set_ids:
        wished, own = (policy.uid, policy.gid), (host.euid, host.egid)
        others = any(wish not in (None, have) for wish, have in zip(wished, own, strict=True))
        if others or policy.ids == "full":
            lacking["ids"] = Reason(
                f"landlock: ids: only the caller's own uid and gid are there, {own[0]} and {own[1]}"
            )
    return lacking | _lacking_files(policy, host) if policy.base == "workspace" else lacking


def _lacking_files(policy: Policy, host: Host) -> dict[str, Reason]:
    rights = _rights(policy, host)
    lacking = {
        "attributes": Reason(
            "landlock: attributes: names, sizes and owners of all files can be seen; modes, owners, times and extended "
            "attributes of the user's own can be changed anywhere"
        )
    }
    if "/tmp" not in rights:
        host_tmp = "can be read" if _within("/tmp", rights) else "is closed"
        lacking["tmp"] = Reason(
            f"landlock: tmp: there is no private /tmp: the host's {host_tmp}, TMPDIR is {_tmpdir(policy)}"
        )
    elif policy.tmp_size is not None:
        lacking["tmp"] = Reason("landlock: tmp: no tmp_size: /tmp is the host's")
    if policy.home == PRIVATE or is_of_box(policy.home):
        lacking["home"] = Reason(f"landlock: home: there is none of the sandbox's own: HOME is {_tmpdir(policy)}")
    hidden = [path for path in policy.deny if _within(path, rights)]
    if hidden:
        lacking["deny"] = Reason(f"landlock: deny: {', '.join(hidden)} can't be closed inside of what is open")
    inside = [p for p in _read_only(policy, host) if any(is_below(p, w) for w in policy.write)]
    if inside:
        lacking["read"] = Reason(f"landlock: read: {', '.join(inside)} can't be read-only inside of what is writable")
    secrets = _lacking_secrets(policy, host, rights)
    if secrets is not None:
        lacking["secrets"] = secrets
    return lacking


def _lacking_secrets(policy: Policy, host: Host, rights: dict[str, Literal["read", "write"]]) -> Reason | None:
    """Return which secrets can't be closed, and why; None if all are."""
    named = (*policy.write, *policy.read)
    private = (p for p in host.private if not any(is_below(p, name) for name in named))  # as behind mounts
    secrets = [p for p in (*host.secrets, *private) if _within(p, rights) and p not in named]
    if secrets:
        more = f" and {len(secrets) - 2} more" if len(secrets) > 2 else ""
        what = f"{', '.join(secrets[:2])}{more} can't be closed inside of what is readable"
        remedy = "run as an ordinary user, who can't read them"
    elif host.has_key and _within(key := f"{host.state}/key", rights):
        what = f"{key} can't be closed inside of what is readable"
        remedy = "open a narrower directory, or remove the key, if no commit is to be completed"
    elif host.state and any(is_below(host.state, path) for path in policy.write):
        what = f"{host.state}, nsbox's own directory, can't be closed in a writable one"
        remedy = "open a narrower directory"
    elif host.state and _within(host.state, rights) and not any(is_below(path, host.state) for path in named):
        what = f"{host.state}, nsbox's own directory, with the homes that it keeps, can't be closed in a readable one"
        remedy = "open a narrower directory"
    else:
        what, remedy = "", "open narrower directories"
    # Behind mounts these are the sandbox's own, whatever is readable around them: terminals, and what services keep.
    hosts = [p for p in ("/dev", "/run") if any(is_inside(p, root) for root in rights) and p not in named]
    if hosts:
        what += f"{'; ' if what else ''}the host's {' and '.join(hosts)} can't be closed inside of what is readable"
    return Reason(f"landlock: secrets: {what}", remedy) if what else None


# ---- files


def _tmpdir(policy: Policy) -> str:
    """Return the directory for temporary files: the workspace, since there is no private /tmp."""
    if policy.base != "workspace" or any(is_below("/tmp", path) for path in policy.write):
        return "/tmp"
    return policy.workdir or policy.write[0]


def _home(policy: Policy, host: Host) -> str:
    """Return HOME. Nothing can be mounted: a private one is where temporary files go, a kept one has its own path."""
    source = home_source(policy, host)
    if source is not None and not is_of_box(policy.home):
        return source
    return _tmpdir(policy) if policy.home in (PRIVATE, "tmp") or source is not None else home(policy, host)


def _read_only(policy: Policy, host: Host) -> tuple[str, ...]:
    """Return the paths that are read-only: those that the policy names, and the running interpreter's."""
    own = (p for p in (*host.prefixes, host.package) if p and not any(is_below(p, w) for w in policy.write))
    return tuple(dict.fromkeys((*policy.read, *own)))


def _rights(policy: Policy, host: Host) -> dict[str, Literal["read", "write"]]:
    """Return the right for each path. Links need no rule: Landlock goes by the file's place."""
    system = (path for path, target in host.directories if target is None)
    rights: dict[str, Literal["read", "write"]] = {}
    for path in (*system, *_read_only(policy, host), "/proc"):
        if not any(is_below(path, denied) for denied in policy.deny):
            rights[path] = "read"
    resolv_conf = host.resolv_conf if policy.network == "host" else None
    if resolv_conf is not None and not any(is_below(resolv_conf, denied) for denied in policy.deny):
        rights[resolv_conf] = "read"
    source = None if is_of_box(policy.home) else home_source(policy, host)
    for path in (*(f"/dev/{name}" for name in DEVICES), *host.devices, *policy.write, *filter(None, [source])):
        rights[path] = "write"
    for path in host.certificate_files:
        if not any(is_below(path, denied) for denied in policy.deny):
            rights.setdefault(path, "read")
    return rights


def _ruleset(policy: Policy, host: Host) -> Ruleset:
    files = _files(policy, host)
    return files if policy.network == "host" else landlock.without_tcp(files, host.landlock_abi)


def _files(policy: Policy, host: Host) -> Ruleset:
    if policy.base != "workspace":
        # A ruleset of scopes alone makes a domain, which protects other processes. Older kernels lack scopes: there the
        # ruleset allows all files.
        allowed: dict[str, Literal["read", "write"]] = {"/": "write"}
        scopes = None if policy.landlock else landlock.scopes(host.landlock_abi)
        return scopes or landlock.paths_alone(allowed, (), host.landlock_abi)
    return landlock.paths_alone(_rights(policy, host), (*policy.read, *policy.write), host.landlock_abi)


# ---- ids and system calls


def _identity(policy: Policy, host: Host) -> Identity:
    """Return the command's ids: the caller's, or any if the caller has the capabilities."""
    if not host.can_set_ids:
        return Identity(host.euid, host.egid, "", "", deny_setgroups=False)
    uid = host.euid if policy.uid is None else policy.uid
    gid = host.egid if policy.gid is None else policy.gid
    changes = (uid, gid) != (host.euid, host.egid)
    return Identity(uid, gid, "", "", deny_setgroups=False, by_helper=True, change_ids=changes)


def _programs(policy: Policy, host: Host) -> tuple[Program, ...]:
    wish = policy.filter
    own = without_namespaces(
        network=policy.network == "host", files=policy.base == "workspace", ipc="ipc" in policy.unshare
    )
    stays = core_stays(policy, host)
    contains_files, may = policy.base == "workspace", policy.may_nest
    rules = profile(
        wish.base,
        nested=False,
        may_nest=may,
        for_net=False,
        set_ids=contains_files,
        allow=wish.allow,
        core_stays=stays,
    )
    rules = (*own, *rules)
    if wish.base != "off" and not may:
        rules += no_user_namespaces(wish.allow)
    shares_all = not contains_files and policy.network == "host" and "ipc" not in policy.unshare
    # A call refused here may have another number for 32-bit programs; so they may run only if nothing is refused.
    programs = [Program(rules, with_compatible=shares_all and wish.base == "off" and not wish.rules)]
    if contains_files:
        last = beside_landlock(truncates=host.landlock_abi >= landlock.TRUNCATE_ABI)
        programs.append(Program(last, stage="last"))
    programs += [Program(code=code, stage="last") for code in wish.programs]
    rules = (*no_more_filters(wish.base, wish.allow), *wish.rules)
    if rules:
        programs.append(Program(rules, stage="last"))
    return tuple(programs)


# ---- what is enforced


def _enforced(policy: Policy, host: Host) -> tuple[str, ...]:
    lines = [sentences.privileges(), refused(policy, has_init=False)]
    if policy.base == "workspace":
        lines.append("files: the contents of those that the policy names, the system's, and no others (Landlock)")
        lines.append(sentences.BUILT_ENVIRONMENT)
        if host.landlock_abi < landlock.TRUNCATE_ABI:
            lines.append(sentences.NO_TRUNCATE)
    if policy.network == "none":
        lines.append("network: no sockets, not even on loopback or unix sockets, except pairs of streams (seccomp)")
        if host.landlock_abi >= landlock.TCP_ABI:
            lines.append("network: no bind(2) and no connect(2) of TCP sockets that are passed (Landlock)")
    elif policy.base == "workspace":
        lines.append("sockets: no unix sockets except pairs of streams (seccomp)")
    if "ipc" in policy.unshare:
        lines.append("ipc: no System V ipc and no message queues (seccomp)")
    lines.append("memory and tracing: none of processes outside (Landlock)")
    if host.landlock_abi >= landlock.SCOPES_ABI:
        lines.append("signals: none to processes outside (Landlock)")
    return tuple(lines)


def _not_enforced(policy: Policy, host: Host) -> tuple[str, ...]:
    gaps = [sentences.system_calls(policy)]
    if policy.base == "host":
        gaps.append(sentences.ALL_FILES)
        if host.is_kernel_root:
            gaps.append("kernel settings: those in /proc/sys can be changed, as the kernel's uid 0")
    if policy.network == "host":
        gaps.append(sentences.host_network(abstract=policy.base == "host" and host.landlock_abi < landlock.SCOPES_ABI))
    is_off = policy.filter.base == "off"
    if policy.base == "host" and policy.network == "host":
        gaps.append(sentences.unix_sockets(vsock=is_off))
    elif policy.network == "host" and is_off:
        gaps.append("sockets: those of AF_VSOCK can be connected to")
    gaps.append(left_behind(policy))
    gaps.append("namespaces: none of its own; /proc is the machine's, with the names of keys")
    gaps.append(f"{sentences.CALLERS_END}, unless it objects (prctl(2))")
    if not host.can_set_groups:
        gaps.append(sentences.CALLERS_GROUPS)
    if not policy.new_session:
        gaps.append(sentences.CALLERS_SESSION)
    return tuple(gaps)
