"""The words of SBPL, as data: operations and what they are part of, filters and where they may stand, modifiers.

The names are those that macOS 10.15 to 15 know; not all of them are known to each version.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

DEFAULT = "default"

_OPERATIONS = """
default
appleevent-send authorization-right-obtain boot-arg-set
darwin-notification-post device* device-camera device-microphone distributed-notification-post dynamic-code-generation
file* file-chroot file-clone file-ioctl file-issue-extension file-issue-extension* file-link file-map-executable
file-mknod file-mount file-mount-update file-revoke file-search file-test-existence file-unlink file-unmount
file-read* file-read-data file-read-metadata file-read-xattr
file-write* file-write-acl file-write-create file-write-data file-write-finderinfo file-write-flags file-write-mode
file-write-mount file-write-owner file-write-setugid file-write-times file-write-umount file-write-unlink
file-write-unmount file-write-xattr
fs-rename fs-snapshot* fs-snapshot-create fs-snapshot-delete fs-snapshot-revert
generic-issue-extension hid-control
iokit* iokit-async-external-method iokit-external-method iokit-get-properties iokit-issue-extension iokit-open
iokit-open* iokit-open-service iokit-open-user-client iokit-set-properties
ipc* ipc-posix* ipc-posix-issue-extension
ipc-posix-sem ipc-posix-sem* ipc-posix-sem-create ipc-posix-sem-open ipc-posix-sem-post ipc-posix-sem-unlink
ipc-posix-sem-wait
ipc-posix-shm ipc-posix-shm* ipc-posix-shm-read* ipc-posix-shm-read-data ipc-posix-shm-read-metadata
ipc-posix-shm-write* ipc-posix-shm-write-create ipc-posix-shm-write-data ipc-posix-shm-write-unlink
ipc-sysv* ipc-sysv-msg ipc-sysv-sem ipc-sysv-shm
job-creation load-unsigned-code lsopen
mach* mach-bootstrap mach-cross-domain-lookup mach-host* mach-host-exception-port-set mach-host-special-port-set
mach-issue-extension mach-lookup mach-per-user-lookup mach-priv* mach-priv-host-port mach-priv-task-port mach-register
mach-task* mach-task-inspect mach-task-name mach-task-read mach-task-special-port* mach-task-special-port-get
mach-task-special-port-set
managed-preference-read necp-client-open
network* network-bind network-inbound network-outbound
nvram* nvram-delete nvram-get nvram-set opendirectory-user-modify
process* process-codesigning process-codesigning* process-codesigning-blob-get process-codesigning-cdhash-get
process-codesigning-entitlements-blob-get process-codesigning-identity-get process-codesigning-status*
process-codesigning-status-get process-codesigning-status-set process-codesigning-teamid-get
process-codesigning-text-offset-get process-exec process-exec* process-exec-interpreter process-fork
process-info* process-info-codesignature process-info-dirtycontrol process-info-ledger process-info-listpids
process-info-pidfdinfo process-info-pidfileportinfo process-info-pidinfo process-info-rusage process-info-setcontrol
process-iopolicy*
pseudo-tty qtn-user signal socket-ioctl socket-option* socket-option-get socket-option-set storage-class-map
syscall* syscall-mach syscall-mig syscall-unix
sysctl* sysctl-read sysctl-write
system* system-acct system-audit system-automount system-debug system-fcntl system-fsctl system-info system-kext*
system-kext-load system-kext-query system-kext-unload system-mac-label system-mac-syscall system-necp-client-action
system-nfssvc system-package-check system-privilege system-reboot system-sched system-set-time system-socket
system-suspend-resume system-swap
user-preference* user-preference-read user-preference-write
"""
OPERATIONS = frozenset(_OPERATIONS.split())

# Other names for the same operation: in libsandbox the one on the left is defined as the one on the right.
ALIASES = {
    "file-issue-extension*": "file-issue-extension",
    "file-unlink": "file-write-unlink",
    "file-write-mount": "file-mount",
    "file-write-umount": "file-unmount",
    "file-write-unmount": "file-unmount",
    "iokit-open": "iokit-open*",
    "ipc-posix-sem": "ipc-posix-sem*",
    "ipc-posix-shm": "ipc-posix-shm*",
    "process-codesigning": "process-codesigning*",
    "process-exec": "process-exec*",
}
# Allowed unless a rule is about them: (deny default) doesn't reach them.
OPEN = frozenset({"process-info*", "nvram*", "iokit-get-properties", "file-map-executable"})
_PARENTS = {"managed-preference-read": "user-preference*"}  # whose names don't say it


@cache
def parent(operation: str) -> str | None:
    """Return the operation that this one is part of; None for the topmost, "default". Aliases count as their own."""
    if operation == DEFAULT:
        return None
    if operation in _PARENTS:
        return _PARENTS[operation]
    stem = operation.removesuffix("*")
    if stem == operation and f"{stem}*" in OPERATIONS:
        return f"{stem}*"
    while "-" in stem:
        stem = stem.rpartition("-")[0]
        if f"{stem}*" in OPERATIONS:
            return f"{stem}*"
    return DEFAULT


@cache
def levels(operation: str) -> tuple[str, ...]:
    """Return the operation without aliases and all that it is part of, from it up to "default"; KeyError: unknown."""
    if operation not in OPERATIONS:
        raise KeyError(operation)
    at: str | None = ALIASES.get(operation, operation)
    found = []
    while at is not None:
        found.append(at)
        at = parent(at)
    return tuple(found)


def is_within(operation: str, outer: str) -> bool:
    """Return whether an operation is this one, or part of it."""
    return ALIASES.get(outer, outer) in levels(operation)


Kind = Literal[
    "path",
    "path-regex",
    "all",
    "any",
    "not",
    "name",
    "name-prefix",
    "name-regex",
    "symbol",
    "number",
    "address",
    "extension",
    "other",
]


@dataclass(frozen=True)
class Filter:
    """Where a filter may stand, and what follows its name.

    kind: of its arguments; "other" is known, but not modelled. symbols: the only ones that it takes, if that is known.
    """

    kind: Kind
    operations: tuple[str, ...]
    symbols: frozenset[str] | None = None

    def fits(self, operation: str) -> bool:
        """Return whether it may stand in a rule on this operation."""
        return any(is_within(operation, outer) for outer in self.operations)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


TARGETS = _words("self pgrp others children same-sandbox initproc")
VNODE_TYPES = _words("REGULAR-FILE DIRECTORY SYMLINK BLOCK-DEVICE CHARACTER-DEVICE FIFO SOCKET TTY")
SOCKET_DOMAINS = _words("AF_UNSPEC AF_UNIX AF_LOCAL AF_INET AF_INET6 AF_ROUTE AF_LINK AF_NDRV AF_SYSTEM AF_UTUN")
SOCKET_TYPES = _words("SOCK_STREAM SOCK_DGRAM SOCK_RAW SOCK_RDM SOCK_SEQPACKET")
PROTOCOLS = _words("ip ip4 ip6 tcp tcp4 tcp6 udp udp4 udp6")
UNIX_SOCKET = "unix-socket"
_FSCTLS = _words("FSIOC_CAS_BSDFLAGS FSIOC_SYNC_VOLUME FSIOC_FD_ONLY_OPEN_ONCE APFSIOC_GET_CLONE_INFO")

_PATHS = ("file*", "process-exec*", "network*")
_ANY = (DEFAULT,)
_NAMED = ("mach-lookup", "mach-register", "mach-issue-extension")
_SOCKETS = ("system-socket", "network*")
_PREFERENCES = ("user-preference*",)
_ISSUES = (
    *("file-issue-extension", "generic-issue-extension", "iokit-issue-extension", "mach-issue-extension"),
    *("ipc-posix-issue-extension", "iokit-open*"),
)


def _names(stem: str, *operations: str) -> dict[str, Filter]:
    return {
        stem: Filter("name", operations),
        f"{stem}-prefix": Filter("name-prefix", operations),
        f"{stem}-regex": Filter("name-regex", operations),
    }


FILTERS: dict[str, Filter] = {
    "literal": Filter("path", _PATHS),
    "path": Filter("path", _PATHS),
    "path-literal": Filter("path", _PATHS),
    "subpath": Filter("path", _PATHS),
    "prefix": Filter("path", _PATHS),
    "path-ancestors": Filter("path", _PATHS),
    "regex": Filter("path-regex", _PATHS),
    "require-all": Filter("all", _ANY),
    "require-any": Filter("any", _ANY),
    "require-not": Filter("not", _ANY),
    "vnode-type": Filter("symbol", ("file*", "process-exec*", "network*"), VNODE_TYPES),
    "target": Filter("symbol", ("signal", "process*", "mach-priv*", "mach-task*", "system-sched"), TARGETS),
    "local": Filter("address", ("network*",)),
    "remote": Filter("address", ("network*",)),
    "socket-domain": Filter("symbol", _SOCKETS, SOCKET_DOMAINS),
    "socket-type": Filter("symbol", _SOCKETS, SOCKET_TYPES),
    "socket-protocol": Filter("number", _SOCKETS),
    "extension": Filter("extension", _ANY),
    "fsctl-command": Filter("symbol", ("system-fsctl",), _FSCTLS),
    "ioctl-command": Filter("number", ("file-ioctl", "socket-ioctl")),  # names are known to some versions only
    "mac-syscall-number": Filter("number", ("system-mac-syscall",)),
    "semaphore-owner": Filter("symbol", ("ipc-posix-sem*",), TARGETS),
    "privilege-id": Filter("symbol", ("system-privilege",), frozenset({"PRIV_GLOBAL_PROC_INFO"})),
    **_names("global-name", *_NAMED),
    **_names("local-name", *_NAMED),
    **_names("xpc-service-name", "mach-lookup"),
    **_names("sysctl-name", "sysctl*"),
    **_names("iokit-user-client-class", "iokit*"),
    **_names("iokit-registry-entry-class", "iokit*"),
    **_names("iokit-property", "iokit*", "nvram-set"),
    **_names("iokit-connection", "iokit*"),
    **_names("ipc-posix-name", "ipc-posix*"),
    **_names("preference-domain", *_PREFERENCES),
    **_names("extension-class", *_ISSUES),
    **_names("xattr", "file-read-xattr", "file-write-xattr"),
    **_names("control-name", "network-outbound"),
    **_names("info-type", "system-info"),
    **_names("mac-policy-name", "system-mac-syscall"),
    **_names("nvram-variable", "nvram*"),
    **_names("right-name", "authorization-right-obtain"),
    **_names("appleevent-destination", "appleevent-send"),
    **_names("notification-name", "darwin-notification-post", "distributed-notification-post"),
    **_names("kext-bundle-id", "system-kext*"),
    "mount-relative-literal": Filter("other", ("file*",)),
    "mount-relative-regex": Filter("other", ("file*",)),
    "mount-relative-subpath": Filter("other", ("file*",)),
    "file-mode": Filter("other", ("file*",)),
    "file-attribute": Filter("other", ("file*",)),
    "device-conforms-to": Filter("other", ("file*",)),
    "filesystem-name": Filter("other", ("file*",)),
    "extension-path-ancestor": Filter("other", ("file-read*",)),
    "iokit-method-number": Filter("other", ("iokit-external-method", "iokit-async-external-method")),
    "socket-option-name": Filter("other", ("socket-option*",)),
    "syscall-number": Filter("other", ("syscall*",)),
    "machtrap-number": Filter("other", ("syscall-mach",)),
    "kernel-mig-routine": Filter("other", ("syscall-mig",)),
    "fcntl-command": Filter("number", ("system-fcntl",)),
    "necp-client-action": Filter("other", ("system-necp-client-action",)),
    "codesigning-operation": Filter("other", ("process-codesigning*",)),
    "signing-identifier": Filter("other", _ANY),
    "target-signing-identifier": Filter("other", ("process-info*", "signal")),
    "process-attribute": Filter("other", _ANY),
    "process-path": Filter("other", _ANY),
    "system-attribute": Filter("other", _ANY),
    "require-entitlement": Filter("other", _ANY),
    "uid": Filter("other", _ANY),
}
COMBINATORS = frozenset({"require-all", "require-any", "require-not"})

# The kind of the one argument that a modifier takes, None for none.
MODIFIERS: dict[str, Literal["string", "symbol"] | None] = {
    "no-log": None,
    "no-report": None,
    "report": None,
    "no-sandbox": None,
    "telemetry": None,
    "telemetry-backtrace": None,
    "message": "string",
    "send-signal": "symbol",
    "errno": "symbol",
}

# All words that stand for themselves as an argument.
SYMBOLS = frozenset(
    {
        *(word for known in FILTERS.values() for word in known.symbols or ()),
        *PROTOCOLS,
        UNIX_SOCKET,
        *("SIGKILL", "EPERM", "EACCES", "ENOENT"),
    }
)
