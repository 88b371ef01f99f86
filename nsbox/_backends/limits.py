"""From a policy's limits to resource limits of each process, and a cgroup for all of them together. Pure."""

from __future__ import annotations

from nsbox._base.errors import Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._plan.host import Host
from nsbox._plan.plan import Rlimit
from nsbox._policy.limits import Limits, with_small
from nsbox._policy.losses import words_for
from nsbox._policy.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

SETUP_PROCESSES = 2  # the mediator, and the helper that maps several ids; both end before the command runs
DELEGATION = (
    "systemd-run --user --scope -p Delegate=yes COMMAND; in a container, a writable cgroup namespace; where cgroups "
    "are of version 1, boot with systemd.unified_cgroup_hierarchy=1"
)


def _lacks_nproc(host: Host, own_userns: bool) -> Reason | None:
    """Return why RLIMIT_NPROC doesn't limit the processes of a sandbox; None if it does."""
    if not own_userns:
        return Reason("without a user namespace RLIMIT_NPROC counts all processes of the user")
    if host.is_kernel_root:
        return Reason("the kernel exempts its uid 0 from RLIMIT_NPROC", "run as an ordinary user")
    if host.kernel < (5, 14):
        return Reason("RLIMIT_NPROC counts the whole user's processes before Linux 5.14", "a newer kernel")
    return None


def _lacks_controller(host: Host, name: str) -> Reason | None:
    if name in host.cgroup_controllers:
        return None
    if host.cgroup:
        return Reason(f"{host.cgroup} was delegated without the controller {name}", DELEGATION)
    return Reason(host.cgroup_problem or "there is no cgroup v2", DELEGATION)


def _by_cgroup(policy: Policy, host: Host, own: int, own_userns: bool) -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """Return, for each limit of the policy that needs a cgroup, the controller, and what to write to its files."""
    limits, settings = policy.limits, {}
    if limits.total_memory is not None:
        files = [("memory.max", str(limits.total_memory)), ("memory.swap.max", "0"), ("memory.oom.group", "1")]
        settings["limits.total_memory"] = ("memory", files)
    if limits.processes is not None and _lacks_nproc(host, own_userns) is not None:
        count = limits.processes + SETUP_PROCESSES + own
        settings["limits.processes"] = ("pids", [("pids.max", str(count))])
    if limits.cpus is not None:
        settings["limits.cpus"] = ("cpu", [("cpu.max", f"{round(limits.cpus * 100_000)} 100000")])
    return settings


def cgroup_limits(
    policy: Policy, host: Host, *, own: int = 1, own_userns: bool = True
) -> tuple[tuple[tuple[str, str], ...], dict[str, Reason]]:
    """Return what to write to the cgroup's files, and the wishes that can't be granted, with reasons.

    own: how many processes the sandbox itself has, such as pid 1.
    own_userns: whether it has a user namespace, so that RLIMIT_NPROC counts only its processes.
    """
    granted: list[tuple[str, str]] = []
    lacking: dict[str, Reason] = {}
    for wish, (controller, files) in _by_cgroup(policy, host, own, own_userns).items():
        reason = _lacks_controller(host, controller)
        if reason is None:
            granted += files
            continue
        other = _lacks_nproc(host, own_userns) if wish == "limits.processes" else None
        what = f"{wish}: {other.what}, and {reason.what}" if other else f"{wish}: {reason.what}"
        lacking[wish] = Reason(what, "; or ".join(filter(None, (other.remedy if other else "", reason.remedy))))
    return tuple(granted), lacking


def cgroup_caveats(policy: Policy, limits: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return sentences: how a command could escape limits by cgroup."""
    if not limits or policy.base == "workspace":
        return ()
    return ("limits by cgroup: where the cgroup file system is shown writable, the command can lift them, or leave",)


def check_lacking(policy: Policy, lacking: dict[str, Reason]) -> tuple[str, ...]:
    """Return what is lost, as sentences; raises UnavailableError unless the policy accepts each loss (degrade)."""
    refused = [wish for wish in lacking if not policy.may_lack(wish)]
    if refused:
        # This spelling is right in Python, and in each format of files.
        names = ", ".join(f'"{word}"' for word in words_for({*policy.degrade, *refused}))
        raise UnavailableError(*(lacking[wish] for wish in refused), Reason("or do without", f"degrade=[{names}]"))
    return tuple(reason.what for reason in lacking.values())


_IN_ONE_MESSAGE = 253  # SCM_MAX_FD: descriptors that a message may hold even at the limit (too_many_unix_fds)


def _open_files(policy: Policy, host: Host) -> tuple[Rlimit, ...]:
    """Return a limit of descriptors: a command must not have so many in flight that its caller can't send any."""
    soft = host.open_files
    if policy.filter.base != "hardened" or policy.base != "workspace" or not soft or policy.limits.open_files:
        return ()
    # If the caller's own limit is too low for both, the command gets enough to run.
    most = soft // 2 if soft > 2 * _IN_ONE_MESSAGE else max(soft - _IN_ONE_MESSAGE - 1, min(64, soft // 2))
    return (Rlimit("NOFILE", most, most),)


def rlimits(policy: Policy, host: Host, *, own_userns: bool = True) -> tuple[Rlimit, ...]:
    """Return the resource limits of each process. own_userns: as for cgroup_limits()."""
    hard = dict(host.hard_limits)
    limits = []
    wished = with_small(policy.limits) if policy.base == "workspace" and host.system == "Linux" else policy.limits
    for name, value in wished.rlimits():
        if name == "CORE" or (name == "NPROC" and _lacks_nproc(host, own_userns) is not None):
            continue
        # SIGXCPU at the limit says why; a process that ignores it is killed five seconds later.
        soft, top = value, value + 5 if name == "CPU" else value
        limits.append(Rlimit(name, min(soft, hard.get(name, soft)), min(top, hard.get(name, top))))
    limits += _open_files(policy, host)
    core = _core_size(policy)
    if core is not None:
        # To the kernel 1 means no dump at all; at 0 a core_pattern that is a pipe still gets one (core(5)).
        core = min(core or (1 if host.system == "Linux" else 0), hard.get("CORE", core or 1))
        limits.append(Rlimit("CORE", core, core))
    return tuple(limits)


def inotify_instances(policy: Policy, host: Host) -> int:
    """Return how many instances of inotify(7) a workspace with limits may have in all; 0: as many as the user.

    The kernel counts them by its own uid: a command with a kernel uid of its own uses up nobody else's. A policy
    without limits gets none here either, to start faster: a user namespace's settings are made when they are first
    looked up, which costs 2 % of a new sandbox.
    """
    is_free = policy.base != "workspace" or policy.limits == Limits() or host.kernel_id
    return 0 if is_free else host.inotify_instances // 2


def _core_size(policy: Policy) -> int | None:
    """Return how large core dumps may be; None: as the caller's limit says."""
    for name, value in policy.limits.rlimits():
        if name == "CORE":
            return value
    # A filter program of the policy may kill at the exec; that must leave no dump.
    return 0 if policy.base == "workspace" or policy.filter.programs else None


def core_stays(policy: Policy, host: Host) -> bool:
    """Say if the limit is the one that allows no core dumps at all; a command must not change it."""
    return host.system == "Linux" and Rlimit("CORE", 1, 1) in rlimits(policy, host)


def core_caveats(policy: Policy, host: Host) -> tuple[str, ...]:
    """Return sentences: where core dumps go although the policy wants none."""
    if host.system != "Linux" or _core_size(policy) not in (0, 1):
        return ()
    if host.core_handler == "socket":
        return ("core dumps: the kernel sends them to the socket of kernel.core_pattern, whatever the limit is",)
    if host.core_handler == "pipe" and dict(host.hard_limits).get("CORE") == 0:
        return ("core dumps: the host's handler gets them (kernel.core_pattern), since the caller's hard limit is 0",)
    return ()
