"""What only Policy.layers() can ask for: what bubblewrap's command line can say, and a wish doesn't need. Pure."""

from __future__ import annotations

from nsbox._base.checks import check_bool, check_fd, is_iterable
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import Frozen, frozen, frozen_by_name

CAPABILITIES = (  # by their numbers, <linux/capability.h>
    *("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID"),
    *("CAP_SETUID", "CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST"),
    *("CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO"),
    *("CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE"),
    *("CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE"),
    *("CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG", "CAP_WAKE_ALARM"),
    *("CAP_BLOCK_SUSPEND", "CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE"),
)
_SHARED = frozenset({"pid"})


def check_capability(word: object) -> str:
    """Return the word if it is a capability's name, "all" or "caller", the first two also with a "-" before them."""
    if not isinstance(word, str):
        raise PolicyError("details.capabilities", f"has a {type(word).__name__}, must be names")
    if word.removeprefix("-") not in ("all", *CAPABILITIES) and word != "caller":
        raise PolicyError("details.capabilities", f"{word!r} is no capability such as 'CAP_NET_ADMIN'")
    return word


@frozen_by_name
class Details(Frozen):
    """Wishes of Policy.layers() alone, by their names in bwrap(1).

    share: namespaces of the caller that the command stays in; only "pid", in which case nothing of the sandbox but
    the command itself ends with it, and Proc shows the caller's processes. capabilities: those that the command has
    over its own namespaces, from none, in order: names, "all", "caller" (as many as the caller has), each but the
    last also with a "-" to take it away; the mounts are then locked. userns, userns2, pidns: descriptors of
    namespaces to be joined, the second user namespace at the end of the set-up. With share={"pid"} the command is in
    pidns itself, else in a pid namespace below it; who asks for it must be non-dumpable. disable_userns: no further
    user namespaces, by a limit; assert_userns_disabled: it doesn't start unless that is so. host_writes: mount points,
    directories, files and modes are made on the host, where a writable bind leads there. die_with_parent: all ends
    with the caller; with False the sandbox goes on.
    """

    share: frozenset[str] = frozenset()
    capabilities: tuple[str, ...] = ()
    userns: int | None = None
    userns2: int | None = None
    pidns: int | None = None
    disable_userns: bool = False
    assert_userns_disabled: bool = False
    host_writes: bool = False
    die_with_parent: bool = True

    def __post_init__(self) -> None:
        for name in ("share", "capabilities"):
            value: object = getattr(self, name)
            if isinstance(value, str) or not is_iterable(value):
                raise PolicyError(f"details.{name}", f"is a {type(value).__name__}, must be a sequence")
        object.__setattr__(self, "share", frozenset(self.share))
        object.__setattr__(self, "capabilities", tuple(check_capability(word) for word in self.capabilities))
        unknown = self.share - _SHARED
        if unknown:
            raise PolicyError("details.share", f"{', '.join(sorted(map(str, unknown)))}: must be among pid")
        for name in ("userns", "userns2", "pidns"):
            if getattr(self, name) is not None:
                check_fd(f"details.{name}", getattr(self, name))
        for name in ("disable_userns", "assert_userns_disabled", "host_writes", "die_with_parent"):
            check_bool(f"details.{name}", getattr(self, name))
        self._check_together()

    def _check_together(self) -> None:
        if self.userns is not None and (self.disable_userns or self.capabilities):
            other = "disable_userns" if self.disable_userns else "capabilities"
            raise PolicyError(
                f"details.{other}", "takes a user namespace below that of the mounts; it doesn't go with userns"
            )
        if self.userns2 is not None and (self.disable_userns or self.capabilities):
            other = "disable_userns" if self.disable_userns else "capabilities"
            raise PolicyError(f"details.{other}", "is about a second user namespace of its own, not about userns2")

    def mask(self, caller: int, last: int) -> int:
        """Return the capabilities as bits. caller: those that the caller has; last: the number of the kernel's last."""
        everything = (1 << last + 1) - 1
        found = 0
        for word in self.capabilities:
            name = word.removeprefix("-")
            bits = {"all": everything, "caller": caller}.get(name)
            if bits is None:
                bits = 1 << CAPABILITIES.index(name)
            found = found & ~bits if word.startswith("-") else found | bits
        return found & everything


NO_DETAILS = Details()


@frozen
class Rlimit(Frozen):
    """One resource limit, as setrlimit(2) has it; the name without RLIMIT_."""

    name: str
    soft: int
    hard: int


@frozen
class Capabilities(Frozen):
    """What a command keeps, as bits: what it has, what passes to other users' programs, and the most it could have."""

    permitted: int
    inheritable: int
    bounding: int


@frozen
class Identity(Frozen):
    """Who the command is: the lines of the user namespaces' maps, "inside outside count" each.

    The second pair, when there is one, is for a namespace entered after the mounts, whose parent is the first.
    by_helper: the maps hold more than one id and are written by a process outside of the namespace (map2_by_helper: so
    do the second ones); map_programs: the paths of newuidmap(1) and newgidmap(1), when it has to be these. userns,
    userns2: descriptors of namespaces to be joined instead of the first and of the second; then without maps.
    """

    uid: int
    gid: int
    uid_map: str
    gid_map: str
    uid_map2: str | None = None
    gid_map2: str | None = None
    deny_setgroups: bool = True
    by_helper: bool = False
    change_ids: bool = False
    map_programs: tuple[str, str] | None = None
    map2_by_helper: bool = False
    userns: int | None = None
    userns2: int | None = None
