"""System calls by name and number, and the filters of a policy for them.

The numbers are written down from the kernel's tables, independently of the headers that nsbox is built with.
"""

from __future__ import annotations

from typing import Any

from nsbox import Policy
from nsbox._backends import compile_policy
from nsbox._core.wire import encode_programs
from nsbox_pure.hosts import DEBIAN

EPERM, ENOSYS, EPROTONOSUPPORT, EAFNOSUPPORT = 1, 38, 93, 97

# name: x86_64, aarch64
NUMBERS = {
    "read": (0, 63),
    "openat": (257, 56),
    "execve": (59, 221),
    "clone": (56, 220),
    "clone3": (435, 435),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "kexec_load": (246, 104),
    "finit_module": (313, 273),
    "reboot": (169, 142),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "syslog": (103, 116),
    "acct": (163, 89),
    "swapon": (167, 224),
    "mbind": (237, 235),
    "get_mempolicy": (239, 236),
    "pipe2": (293, 59),
    "setsockopt": (54, 208),
    "remap_file_pages": (216, 234),
    "move_pages": (279, 239),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "fanotify_init": (300, 262),
    "vhangup": (153, 58),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "mount_setattr": (442, 442),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "open_tree_attr": (467, 467),
    "file_setattr": (469, 469),
    "listns": (470, 470),
    "lsm_set_self_attr": (460, 460),
    "futex_waitv": (449, 449),
    "mseal": (462, 462),
    "ioctl": (16, 29),
    "fcntl": (72, 25),
    "flock": (73, 32),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "personality": (135, 92),
    "prlimit64": (302, 261),
    "setrlimit": (160, 164),
    "sched_setaffinity": (203, 122),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "vmsplice": (278, 75),
    "mincore": (27, 232),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "pidfd_open": (434, 434),
    "seccomp": (317, 277),
    "rt_sigaction": (13, 134),
    "getpid": (39, 172),
    "inotify_init1": (294, 26),
    "shmget": (29, 194),
    "kill": (62, 129),
    "prctl": (157, 167),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "mknodat": (259, 33),
    "mkdirat": (258, 34),
    "openat2": (437, 437),
}

ONLY_X86 = {"modify_ldt": 154, "iopl": 172, "ioperm": 173, "uselib": 134, "ustat": 136, "sysfs": 139, "_sysctl": 156}

ONLY_X86 |= {"create_module": 174, "arch_prctl": 158, "time": 201, "fork": 57, "vfork": 58, "open": 2}
ONLY_X86 |= {"chmod": 90, "creat": 85, "mknod": 133, "mkdir": 83}

SIGCHLD, NEWUSER, NEWNS, NEWNET, NEWTIME, PARENT = 17, 0x10000000, 0x20000, 0x40000000, 0x80, 0x8000

UNIX, INET, INET6, NETLINK, PACKET, ALG, VSOCK, BLUETOOTH = 1, 2, 10, 16, 17, 38, 40, 31

WHOLE = {
    "x86_64": {**{n: a for n, (a, _) in NUMBERS.items()}, **ONLY_X86},
    "aarch64": {n: b for n, (_, b) in NUMBERS.items()},
}


def codes(policy: Policy, machine: str = "x86_64", host: Any = DEBIAN) -> list[bytes]:
    """Return the programs of a policy's plan."""
    return encode_programs(compile_policy(policy, host).programs, machine, WHOLE[machine])
