"""Capabilities by name and by bit, as capabilities(7) and <linux/capability.h> have them."""

from __future__ import annotations

from nsbox._base.display import type_phrase
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import Frozen, frozen

CAPABILITIES = (  # by their numbers, <linux/capability.h>
    *("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID"),
    *("CAP_SETUID", "CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST"),
    *("CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO"),
    *("CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE"),
    *("CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE"),
    *("CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG", "CAP_WAKE_ALARM"),
    *("CAP_BLOCK_SUSPEND", "CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE"),
)


def check_capability(word: object) -> str:
    """Return a word of Details.capabilities: a name, "all", "-" before either, or "caller"; raises PolicyError."""
    if not isinstance(word, str):
        raise PolicyError("details.capabilities", f"has {type_phrase(word)}, must be names")
    if word.removeprefix("-") not in ("all", *CAPABILITIES) and word != "caller":
        raise PolicyError("details.capabilities", f"{word!r} isn't a capability such as 'CAP_NET_ADMIN'")
    return word


@frozen
class Capabilities(Frozen):
    """The capabilities that a command keeps, as bits: capabilities(7) explains the three sets."""

    permitted: int
    inheritable: int
    bounding: int
