"""The backend of bubblewrap: a plan that becomes arguments of the system's bwrap(1).

It is for machines on which a security profile lets only that program make user namespaces: Ubuntu since 23.10 binds one
to /usr/bin/bwrap. _plan.bwrap_words translates the plan; _spawn.bwrap carries it out.
"""

from __future__ import annotations

import errno

from nsbox._backends import sentences
from nsbox._backends.filters import left_behind, programs, refused, unkillable
from nsbox._backends.limits import cgroup_caveats, cgroup_limits, check_lacking, core_caveats, rlimits
from nsbox._backends.refusals import no_core, refused_userns
from nsbox._base.errors import Reason, UnavailableError
from nsbox._layout.layout import completed, home, layout, pinned_paths, wants_full, without_list
from nsbox._plan import ops
from nsbox._plan.host import Host
from nsbox._plan.plan import Identity, Plan
from nsbox._policy.policy import Policy

NAME = "bwrap"
_FLOOR = (0, 8)  # the first with --disable-userns; nobody has studied what older versions lack
_SPOKEN = (
    *(ops.Bind, ops.RoBind, ops.DevBind, ops.BindFd, ops.Tmpfs, ops.Proc, ops.Dev, ops.Mqueue),
    *(ops.Dir, ops.File, ops.BindData, ops.Symlink, ops.RemountRo, ops.Chmod),
    *(ops.Mask, ops.Hostname, ops.Loopback),
)


def missing(host: Host) -> tuple[Reason, ...]:
    """Return why this backend can't be used on this host."""
    reasons = []
    if host.system != "Linux":
        return (Reason(f"{host.system} has no bubblewrap"),)
    if host.core_problem:
        reasons.append(no_core(host))
    if host.is_kernel_root:
        # bwrap's own cover of /proc leaves out /proc/sys; its file modes let uid 0 write there without a capability.
        reasons.append(Reason("bwrap leaves kernel settings writable to the kernel's uid 0", "run as an ordinary user"))
    if not host.bwrap:
        reasons.append(Reason("there is no /usr/bin/bwrap", "install the package bubblewrap"))
    elif host.bwrap_problem:
        # What it prints guesses at the kernel's settings. Behind a filter, or where namespaces are refused to this
        # process too, the cause is the same one.
        is_refused = host.userns_error or host.is_filtered
        cause = refused_userns(host.userns_error or errno.EPERM, host) if is_refused else Reason("")
        what = f"{host.bwrap} doesn't work here: {host.bwrap_problem}"
        reasons.append(Reason(f"{what} ({cause.what})" if cause.remedy else what, cause.remedy))
    elif () < host.bwrap_version < _FLOOR:
        have = ".".join(map(str, host.bwrap_version))
        reasons.append(Reason(f"{host.bwrap} is version {have}", "bubblewrap 0.8 or later"))
    return tuple(reasons)


def compile(policy: Policy, host: Host) -> Plan:
    """Return the plan for this policy on this host; raises UnavailableError for a wish that can't be granted here."""
    own_ops = policy.ops
    policy, no_list = without_list(policy, "bwrap: network: no list: its net namespace can't be set up from outside")
    policy = completed(policy, host)
    plan_ops = layout(policy, host)
    _check_possible(policy, own_ops, plan_ops)
    in_cgroup, no_cgroup = cgroup_limits(policy, host, own=2, own_userns=False)
    lacking = _lacking(policy, host) | no_cgroup | no_list
    not_granted = check_lacking(policy, lacking)
    limits = rlimits(policy, host, own_userns=False)
    uid = host.euid if policy.uid is None else policy.uid
    gid = host.egid if policy.gid is None else policy.gid
    namespaces = policy.unshare | (frozenset({"net"}) if policy.network == "none" else frozenset())
    return Plan(
        ops=plan_ops,
        namespaces=namespaces,
        identity=Identity(uid, gid, "", "", deny_setgroups=False),
        rlimits=limits,
        new_session=policy.new_session,
        cgroup=host.cgroup if in_cgroup else "",
        cgroup_limits=in_cgroup,
        programs=programs(policy, host, by_second_userns=False),
        drop_groups=host.can_set_groups,
        plain=True,
        wrapper=(host.bwrap, *_options(policy, namespaces, uid, gid)),
        home=home(policy, host),
        backend=NAME,
        enforced=(
            *_enforced(policy),
            *sentences.limits(limits, in_cgroup),
        ),
        not_enforced=(
            *_not_enforced(policy, host),
            *unkillable(policy),
            *cgroup_caveats(policy, in_cgroup),
            *core_caveats(policy, host),
            *not_granted,
        ),
        lost=frozenset(lacking),
    )


def _options(policy: Policy, namespaces: frozenset[str], uid: int, gid: int) -> tuple[str, ...]:
    """Return the options whose order doesn't matter."""
    words = [f"--unshare-{name}" for name in sorted(namespaces - {"mount"})]
    words += ["--uid", str(uid), "--gid", str(gid), "--cap-drop", "ALL", "--die-with-parent"]
    return (*words, "--new-session") if policy.new_session else tuple(words)


def _check_possible(policy: Policy, own: tuple[ops.Op, ...], plan_ops: tuple[ops.Op, ...]) -> None:
    """Raise UnavailableError for a wish that bwrap can't grant and that can't be left out either.

    own: the policy's own ops. A mask among these is refused: what is at its place need not be the host's, so it is
        unknown whether that is a file or a directory.
    """
    for op in (*own, *plan_ops):
        if not isinstance(op, _SPOKEN) or (isinstance(op, ops.Mask) and op in own):
            raise UnavailableError(Reason(f"bwrap: {op.describe()}: it has no option for that"))
    if "time" in policy.unshare:
        raise UnavailableError(Reason("bwrap: unshare: it makes no time namespaces"))
    if not policy.kill_on_exit:
        raise UnavailableError(Reason("bwrap: kill_on_exit=False: its sandbox ends with the command"))


def _lacking(policy: Policy, host: Host) -> dict[str, Reason]:
    lacking = {}
    inside = pinned_paths(policy)
    if inside and not host.bwrap_binds_fds:
        raise UnavailableError(
            Reason(
                f"bwrap: {', '.join(inside)} in a writable place: a link could be put there while it looks",
                "a bubblewrap with --bind-fd (0.10 and later, and security updates of earlier ones)",
            )
        )
    if wants_full(policy, host):
        lacking["ids"] = Reason("bwrap: ids: it maps one uid and gid only")
    if policy.landlock:
        lacking["landlock"] = Reason("bwrap: landlock: it has none")
    return lacking


# ---- what is enforced


def _enforced(policy: Policy) -> tuple[str, ...]:
    lines = [sentences.own_processes("when the command ends")]
    lines.append(sentences.privileges(userns="own"))
    lines.append(refused(policy))
    if policy.base != "host":
        lines.append(sentences.FILES_OF_THE_PLAN)
    if not policy.inherit_env:
        lines.append(sentences.BUILT_ENVIRONMENT)
    if policy.network == "none":
        lines.append(sentences.OWN_NETWORK)
    return tuple(lines)


def _not_enforced(policy: Policy, host: Host) -> tuple[str, ...]:
    gaps = [sentences.system_calls(policy)]
    if policy.base == "host":
        gaps.append(sentences.ALL_FILES)
    gaps.append("mounts: what the host mounts later below a visible directory appears in the sandbox")
    gaps.append(sentences.DESCRIPTORS)
    if policy.network == "host":
        gaps.append(sentences.host_network(abstract=True))
    gaps.append(sentences.unix_sockets(vsock=policy.filter.base == "off"))
    gaps.append(sentences.FIFOS)
    gaps.append(left_behind(policy))
    if pinned_paths(policy):
        gaps.append(sentences.MOVED_PATHS)
    gaps.append("pid 1: bwrap's own, which a command can take over (ptrace); then the caller's death needn't end it")
    gaps.append("the caller's thread: when the one that started the command ends, so does the sandbox")
    if not host.can_set_groups:
        gaps.append(sentences.CALLERS_GROUPS)
    if not policy.new_session:
        gaps.append(sentences.CALLERS_SESSION)
    return tuple(gaps)
