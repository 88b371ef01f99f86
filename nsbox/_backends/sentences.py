"""What is enforced and what isn't, in the words that several backends have in common: users compare them. Pure.

A sentence begins with its topic and a colon. What only one backend says stands there.
"""

from __future__ import annotations

from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsbox._plan.plan import Rlimit
    from nsbox._policy.policy import Policy

# Enforced.
BUILT_ENVIRONMENT = "environment: built, not inherited"
FILES_OF_THE_PLAN = "files: only what the plan mounts; the host's mounts are gone"
NO_TRUNCATE = "files: no truncate(2), which this kernel's Landlock doesn't know (seccomp)"
OWN_NETWORK = "network: own net namespace, loopback only"

# Not enforced.
ALL_FILES = "files: the whole file system is visible and writable by the user's own permissions"
CALLERS_END = "the caller's end: only what the main thread started is killed with it"
CALLERS_GROUPS = "groups: the caller's supplementary groups stay in force"
CALLERS_SESSION = "terminal and signals: the caller's session and process group can be reached"
DESCRIPTORS = "descriptors: a file passed to the command can be reopened with any mode that its permissions allow"
FIFOS = "FIFOs: those in visible directories can be written to, even where these are read-only"
KERNEL_FLAWS = "system calls: flaws of the kernel in those that are allowed"
MOVED_PATHS = "hidden and read-only paths inside of writable ones: if a process outside replaces or moves them"


def system_calls(policy: Policy) -> str:
    """Return what is open about system calls."""
    return "system calls: all others" if policy.filter.base == "off" else KERNEL_FLAWS


def own_processes(end: str) -> str:
    """Return what is enforced by a pid namespace. end: when all in it are killed, such as "when the caller dies"."""
    return f"processes: own pid namespace; all are killed {end}"


def privileges(capabilities: str = "no capabilities", userns: str = "") -> str:
    """Return what is enforced about privileges. userns: which user namespace it has, "own" or "joined"; "": none."""
    return f"privileges: {capabilities}, no new privileges{f', {userns} user namespace' if userns else ''}"


def limits(rlimits: Sequence[Rlimit], cgroup: Sequence[tuple[str, str]] = ()) -> tuple[str, ...]:
    """Return a sentence for each limit that is enforced. cgroup: files of the command's cgroup, and their contents."""
    return (
        *(f"limits: RLIMIT_{limit.name} {limit.soft}" for limit in rlimits),
        *(f"limits: {name} {value}" for name, value in cgroup),
    )


def host_network(*, abstract: bool = False) -> str:
    """Return what is open where the network is the host's. abstract: its abstract unix sockets, too."""
    return f"network: the host's{', with its abstract unix sockets' if abstract else ''}"


def unix_sockets(*, vsock: bool = False) -> str:
    """Return which sockets can be connected to. vsock: those of AF_VSOCK, too."""
    return f"sockets: unix sockets in visible directories{', and AF_VSOCK,' if vsock else ''} can be connected to"
