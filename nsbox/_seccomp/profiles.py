"""The profiles: what "default" and "hardened" refuse, as tables with their reasons.

Rules that hold for every command are in filter.py. Commands that need nothing else don't import this module.
"""

from __future__ import annotations

from nsbox._seccomp.bpf import EAFNOSUPPORT, ENOSYS, EPERM, EPROTONOSUPPORT, Arg, Rule, has_bit

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000

# ---- the default profile: calls that attackers of the kernel need, and programs in a sandbox don't

# Only sandboxes need these; nested=True and Policy.host() lift the rules.
_NAMESPACES = 0x7E020000  # CLONE_NEW*, except CLONE_NEWTIME: only unshare(2) has it; in clone(2) it is part of a signal
_MOUNTS = (
    *("mount", "umount", "umount2", "pivot_root", "chroot", "mount_setattr", "move_mount"),
    *("fsopen", "fsconfig", "fsmount", "fspick", "open_tree", "open_tree_attr"),
)

_ADMINISTRATION = (
    *("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "create_module"),
    *("reboot", "swapon", "swapoff", "acct", "quotactl", "quotactl_fd", "syslog", "iopl", "ioperm", "vhangup"),
    *(
        "settimeofday",
        "stime",
        "clock_settime",
        "clock_settime64",
    ),  # not adjtimex, which also reads; writing needs CAP_SYS_TIME
    *("setdomainname", "lookup_dcookie", "fanotify_init"),
)
_OBSOLETE = (
    *("uselib", "ustat", "sysfs", "_sysctl", "nfsservctl", "query_module", "get_kernel_syms", "afs_syscall"),
    *("getpmsg", "putpmsg", "security", "tuxcall", "vserver", "modify_ldt", "vm86", "vm86old", "subpage_prot"),
    "remap_file_pages",
)
# Wide doors to the kernel's memory; each has been used to gain privileges.
_DANGEROUS = ("bpf", "perf_event_open", "userfaultfd", "kcmp", "pidfd_getfd", "process_madvise")
_HANDLES = ("open_by_handle_at", "name_to_handle_at")  # reach any file of a file system, past the mounts ("shocker")
_NUMA = ("get_mempolicy", "mbind", "set_mempolicy", "set_mempolicy_home_node", "migrate_pages", "move_pages")
# Absent, not forbidden: at ENOSYS programs fall back to other calls; at EPERM they give up (libuv, glibc).
_ABSENT = (
    *("io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("file_setattr", "lsm_set_self_attr", "listns"),  # so new that no program relies on them
)

# Only its user may type into a terminal: CVE-2017-5226, CVE-2023-28100. The kernel looks at 32 bits of the request
# (CVE-2019-10063), as Arg does.
_TERMINAL = Rule(("ioctl",), EPERM, (Arg(1, (0x5412, 0x541C, 0x5423)),))  # TIOCSTI, TIOCLINUX, TIOCSETD
# PER_LINUX, PER_LINUX32, UNAME26, each also with ADDR_NO_RANDOMIZE (debuggers); 0xFFFFFFFF only asks. Others disable
# checks.
_PERSONALITIES = tuple(base | flag for base in (0, 0x8, 0x20000, 0x20008) for flag in (0, 0x40000))
_PERSONALITY = Rule(("personality",), EPERM, (Arg(0, (*_PERSONALITIES, 0xFFFFFFFF), inverted=True),))
# Kernel watches on a pipe (CVE-2022-0995). The error is the one of a kernel without them: ENOPKG.
_WATCHES = Rule(("pipe2",), 65, (has_bit(1, 0x80),))
# Protocols on top of TCP, such as the kernel's TLS (CVE-2023-0461). The error is the one for an unknown one: ENOENT.
_UPPER = Rule(("setsockopt",), 2, (Arg(1, 6), Arg(2, 31)))  # IPPROTO_TCP, TCP_ULP

_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_STREAM, _DATAGRAM, _RAW, _KIND = 1, 2, 3, 0xF  # the rest of the type is flags
_ICMP, _TCP, _UDP, _ICMP6 = 1, 6, 17, 58
_ROUTE = 0  # NETLINK_ROUTE: which interfaces there are

# Only the usual kinds: no raw sockets, no AF_ALG (CVE-2026-31431), no AF_VSOCK, which no namespace isolates.
_SOCKETS = (
    Rule(("socket",), EAFNOSUPPORT, (Arg(0, (_UNIX, _INET, _INET6, _NETLINK), inverted=True),)),
    Rule(("socket",), 0, (Arg(0, _UNIX),)),
    Rule(("socket",), EPROTONOSUPPORT, (Arg(0, _NETLINK), Arg(2, _ROUTE, inverted=True))),
    Rule(("socket",), 0, (Arg(0, _NETLINK),)),
    Rule(("socket",), EPERM, (Arg(1, _RAW, _KIND),)),
    Rule(("socket",), EPROTONOSUPPORT, (Arg(1, (_STREAM, _DATAGRAM), _KIND, inverted=True),)),
    Rule(("socket",), EPROTONOSUPPORT, (Arg(1, _STREAM, _KIND), Arg(2, (0, _TCP), inverted=True))),
    Rule(("socket",), EPROTONOSUPPORT, (Arg(1, _DATAGRAM, _KIND), Arg(2, (0, _UDP, _ICMP, _ICMP6), inverted=True))),
    Rule(("socketpair",), EAFNOSUPPORT, (Arg(0, _UNIX, inverted=True),)),
    Rule(("socketcall",), ENOSYS),
)


DEFAULT = (
    Rule((*_ADMINISTRATION, *_OBSOLETE, *_DANGEROUS, *_HANDLES, *_NUMA)),
    Rule(_ABSENT, ENOSYS),
    _TERMINAL,
    _PERSONALITY,
    _WATCHES,
    _UPPER,
    *_SOCKETS,
)
# A file with the set-user-ID bit, left in a workspace, gives anyone who executes it outside the ids of its owner, the
# caller. mkdir(2) and similar calls aren't here, since the kernel itself ignores the bits in these. systemd's
# RestrictSUIDSGID= refuses the same calls.
_SET_IDS = 0o6000
_CREATES = 0o100 | 0o20000000  # O_CREAT, __O_TMPFILE: without either, the mode is ignored (open(2))
SET_IDS = (
    Rule(("chmod", "fchmod", "creat", "mknod"), EPERM, (has_bit(1, _SET_IDS),)),
    Rule(("fchmodat", "fchmodat2", "mknodat"), EPERM, (has_bit(2, _SET_IDS),)),
    Rule(("open",), EPERM, (has_bit(1, _CREATES), has_bit(2, _SET_IDS))),
    Rule(("openat",), EPERM, (has_bit(2, _CREATES), has_bit(3, _SET_IDS))),
)
"""Calls that have the mode as an argument can't make a file set-user-ID or set-group-ID."""
NO_OPENAT2 = Rule(("openat2",), ENOSYS)
"""openat2(2) has its mode behind a pointer. Programs that use it can do without, as on kernels before Linux 5.6."""

# ---- the hardened profile: also calls that help to attack a process, or could be a channel to another sandbox

_LOCKS = (6, 7, 13, 14, 36, 37, 38, 1026)  # F_SETLK, F_SETLKW, their 64-bit forms, F_OFD_*, F_NOTIFY
HARDENED = (
    Rule(("ptrace", "process_vm_readv", "process_vm_writev", "vmsplice", "memfd_secret")),
    Rule(("mincore", "cachestat")),  # show what other processes have read
    Rule(("flock",), ENOSYS),
    Rule(("fcntl", "fcntl64"), EPERM, (Arg(1, _LOCKS),)),
    Rule(("personality",), EPERM, (Arg(0, 0xFFFFFFFF, inverted=True),)),
    # A watch on a directory of the host shows which programs other processes execute there, and which files they open.
    # It follows inodes, so mounts don't help. Programs that handle ENOSYS compare times instead.
    Rule(("inotify_init", "inotify_init1", "fanotify_init"), ENOSYS),
)
# All processes of the machine share the memory for filters (net.core.bpf_jit_limit). The errors are those of a kernel
# without filters, so programs do without (seccomp(2)).
_PR_SET_SECCOMP, _EINVAL = 22, 22
NO_MORE_FILTERS = (Rule(("seccomp",), ENOSYS), Rule(("prctl",), _EINVAL, (Arg(0, _PR_SET_SECCOMP),)))


_UNSHARED = 0x400 | 0x200 | 0x40000  # CLONE_FILES, CLONE_FS, CLONE_SYSVSEM: what threads of a process share


def making_namespaces(may_nest: bool, for_net: bool) -> tuple[Rule, ...]:
    """Return the rules against calls that make sandboxes. for_net: the set-up enters the command's net namespace."""
    if may_nest:
        return ()
    # Harmless: entering one needs CAP_SYS_ADMIN in the user namespace that owns it, which no process inside can have.
    enter = (Rule(("setns",), 0, (Arg(1, _CLONE_NEWNET),)),) if for_net else ()
    return (
        *enter,
        Rule(("setns", "sethostname", *_MOUNTS)),
        Rule(("clone",), EPERM, (has_bit(0, _NAMESPACES),)),
        # All flags except the allowed ones: later kernels know more, such as UNSHARE_EMPTY_MNTNS.
        Rule(("unshare",), EPERM, (has_bit(0, 0xFFFFFFFF & ~(_UNSHARED | _CLONE_NEWUSER)),)),
    )


# ---- for a command without namespaces of its own, which shares what these would separate

_SYSV_AND_MQUEUE = (
    *("shmget", "shmat", "shmctl", "shmdt", "msgget", "msgsnd", "msgrcv", "msgctl"),
    *("semget", "semop", "semtimedop", "semctl", "mq_open", "mq_unlink"),
)
# Through a unix socket a command can talk to any server, such as a bus that starts programs. Pairs of sockets are
# allowed if they stay connected. Those of datagrams aren't: each one can name its receiver, and connect(2) changes it.
_PAIRS = Rule(("socketpair",), EPERM, (Arg(1, (_STREAM, 5), _KIND, inverted=True),))  # SOCK_SEQPACKET
# Rings make sockets too (Linux 5.19), and open files; so do rings that were passed.
_NO_RINGS = Rule(("io_uring_setup", "io_uring_enter", "io_uring_register"), ENOSYS)
_NO_UNIX = (Rule(("socket",), EPERM, (Arg(0, _UNIX),)), _PAIRS, _NO_RINGS)
_NO_SOCKETS = (Rule(("socket",), EPERM), _PAIRS, _NO_RINGS)
_NO_IPC = Rule(_SYSV_AND_MQUEUE, ENOSYS)
_OWN_LIMITS = Rule(
    ("prlimit64",), EPERM, (Arg(0, 0, inverted=True),)
)  # it could change limits of other processes, such as the caller


def without_namespaces(*, network: bool, files: bool, ipc: bool) -> tuple[Rule, ...]:
    """Return the rules that stand in for namespaces.

    network: whether the command has the host's network.
    files: whether only some files are open to it.
    ipc: whether the host's System V ipc and message queues are closed to it.
    """
    sockets = (_NO_UNIX if files else ()) if network else _NO_SOCKETS
    return (*sockets, *((_NO_IPC,) if ipc else ()), _OWN_LIMITS)


# ---- beside Landlock's rules about files

_O_TRUNC, _O_ACCMODE = 0o1000, 0o3
# The calls that open with flags, and which argument these are. Other calls open in a single way, which Landlock checks:
# creat(2) to write, execve(2) to execute. openat2(2) has its flags behind a pointer.
_OPENING = (("open", 1), ("openat", 2), ("open_by_handle_at", 2))
_NO_POINTERS = Rule(("openat2",), ENOSYS)  # nor rings, which open files as well: _NO_RINGS
# Access mode 3 is neither reading nor writing, so Landlock checks nothing. But ioctl(2) works on the descriptor:
# FIDEDUPERANGE compares the file with another one, FS_IOC_SETFLAGS changes it.
_NO_MODE_3 = tuple(Rule((call,), EPERM, (Arg(index, 3, mask=_O_ACCMODE),)) for call, index in _OPENING)
# Before Linux 6.2 Landlock doesn't know truncation, by a path or by an open(2) that doesn't write.
_NO_TRUNCATION = (
    Rule(("truncate", "truncate64"), EPERM),
    *(Rule((call,), EPERM, (Arg(index, _O_TRUNC, mask=_O_TRUNC | _O_ACCMODE),)) for call, index in _OPENING),
)


def beside_landlock(*, truncates: bool) -> tuple[Rule, ...]:
    """Return the rules for what Landlock doesn't check. They may refuse calls of the set-up.

    truncates: whether Landlock has a right to truncate.
    """
    return (*_NO_MODE_3, *(() if truncates else _NO_TRUNCATION), _NO_POINTERS, _NO_RINGS)


NAMES = frozenset(
    call
    for rule in (
        *HARDENED,
        *DEFAULT,
        *SET_IDS,
        *NO_MORE_FILTERS,
        *making_namespaces(False, False),
        _NO_IPC,
        *beside_landlock(truncates=False),
    )
    for call in rule.calls
)
"""The names in these tables; not every machine has all of these system calls."""
