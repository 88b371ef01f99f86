"""Filters: what the profiles say about each system call, by an interpreter of the programs that rules become.

The numbers of this file are written down from the kernel's tables, independently of the headers that nsbox is built with.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nsbox_pure import calm
from nsbox_pure.bpf import ALLOWED, IGNORED, name, run, verdict
from nsbox_pure.hosts import DEBIAN, ROOT, workspace

from nsbox import Arg, Filter, Policy, PolicyError, Rule
from nsbox._backends import compile_policy
from nsbox._core.wire import encode_programs
from nsbox._seccomp import profiles
from nsbox._seccomp.bpf import COMPATIBLE, LAST, MACHINES, NEWER, Program, Table, assemble
from nsbox._seccomp.filter import COMPATIBLE_NUMBERS, no_user_namespaces, profile, profiled

EPERM, ENOSYS, EPROTONOSUPPORT, EAFNOSUPPORT = 1, 38, 93, 97
HIGH = 1 << 32  # the kernel doesn't look at this half of the arguments tested here, so the filter mustn't

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
THREAD = 0x3D0F00  # what pthread_create(3) asks for
UNIX, INET, INET6, NETLINK, PACKET, ALG, VSOCK, BLUETOOTH = 1, 2, 10, 16, 17, 38, 40, 31
CLOEXEC = 0x80000

# (call, arguments): off, default, hardened
CASES: list[tuple[str, Sequence[int], int, int, int]] = [
    *((call, (), 0, 0, 0) for call in ("read", "openat", "execve", "memfd_create", "pidfd_open", "kill")),
    *((call, (), 0, 0, 0) for call in ("rt_sigaction", "getpid", "shmget", "futex_waitv", "mseal")),
    *((call, (), 0, 0, ENOSYS) for call in ("inotify_init1", "seccomp")),
    ("fanotify_init", (), 0, EPERM, ENOSYS),
    *(("prctl", (option, 2), 0, 0, 22 if option & 0xFFFFFFFF == 22 else 0) for option in (22, 22 | HIGH, 21, 38, 4)),
    *((call, (), ENOSYS, ENOSYS, ENOSYS) for call in ("keyctl", "add_key", "request_key", "clone3")),
    *((call, (), 0, ENOSYS, ENOSYS) for call in ("io_uring_setup", "io_uring_enter", "io_uring_register")),
    *((call, (), 0, ENOSYS, ENOSYS) for call in ("file_setattr", "lsm_set_self_attr", "listns")),
    ("adjtimex", (), 0, 0, 0),
    *(("pipe2", (0, flags), 0, 0, 0) for flags in (0, CLOEXEC, CLOEXEC | 0x800, 0x4000)),
    *(("pipe2", (0, flags), 0, 65, 65) for flags in (0x80, 0x80 | CLOEXEC, 0x80 | HIGH)),  # O_NOTIFICATION_PIPE
    *(("setsockopt", (3, level, option), 0, 0, 0) for level, option in ((6, 1), (1, 31), (6, 13), (0, 31))),
    *(("setsockopt", (3, 6, 31 | high), 0, 2, 2) for high in (0, HIGH)),  # TCP_ULP
    *(
        (call, (), 0, EPERM, EPERM)
        for call in (
            *("mount", "umount2", "pivot_root", "chroot", "mount_setattr", "open_tree", "move_mount", "fsopen"),
            *("open_tree_attr", "sethostname", "setdomainname", "bpf", "perf_event_open", "userfaultfd", "kexec_load"),
            *("finit_module", "reboot", "open_by_handle_at", "name_to_handle_at", "syslog", "acct", "swapon", "mbind"),
            *("move_pages", "settimeofday", "clock_settime", "get_mempolicy", "vhangup", "kcmp"),
            *("pidfd_getfd", "process_madvise", "setns", "remap_file_pages"),
        )
    ),
    *((call, (), 0, 0, EPERM) for call in ("process_vm_readv", "vmsplice", "mincore", "memfd_secret")),
    ("flock", (3, 2), 0, 0, ENOSYS),
    ("setns", (3, NEWNS), 0, EPERM, EPERM),
    ("clone", (SIGCHLD,), 0, 0, 0),
    ("clone", (THREAD,), 0, 0, 0),
    ("clone", (SIGCHLD | PARENT,), EPERM, EPERM, EPERM),
    ("clone", (SIGCHLD | PARENT | HIGH,), EPERM, EPERM, EPERM),
    *(("clone", (SIGCHLD | 1 << bit,), 0, EPERM, EPERM) for bit in (17, 25, 26, 27, 28, 29, 30)),
    ("unshare", (0x400 | 0x200,), 0, 0, 0),  # CLONE_FILES, CLONE_FS
    ("unshare", (0x40000,), 0, 0, 0),  # CLONE_SYSVSEM
    *(("unshare", (1 << bit,), 0, EPERM, EPERM) for bit in range(32) if bit not in (9, 10, 18)),
    ("unshare", (NEWUSER | HIGH,), 0, EPERM, EPERM),
    ("ptrace", (0,), EPERM, EPERM, EPERM),
    ("ptrace", (HIGH,), EPERM, EPERM, EPERM),
    ("ptrace", (0x4206, 3), 0, 0, EPERM),
    *(("ptrace", (request, 3, 0, 0x10008F), 0, 0, EPERM) for request in (16, 0x4200, 0x4206, 21)),
    *(
        ("ptrace", (request | more, 3, 0, options | high), EPERM, EPERM, EPERM)
        for request in (0x4200, 0x4206, 21)
        for options in (0x40, 0xC0, 0x7F, 0x10005F, 0xFFFFFFFF)
        for more in (0, HIGH)
        for high in (0, HIGH)
    ),
    *(("ptrace", (request, 3, 0, 0x40), 0, 0, EPERM) for request in (1, 7, 8, 16, 17, 24, 0x4201, 0x4207, 0x4208)),
    *(
        ("ioctl", (0, request), 0, EPERM, EPERM)
        for request in (0x5412, 0x541C, 0x5423, 0x5412 | HIGH, 0x541C | 7 << 32)
    ),
    *(("ioctl", (0, request), 0, 0, 0) for request in (0x5401, 0x5413, 0x5412 << 16, 0x541B)),
    *(("fcntl", (3, command), EPERM, EPERM, EPERM) for command in (1024, 1040, 1024 | HIGH)),
    *(("fcntl", (3, command), 0, 0, EPERM) for command in (6, 7, 36, 37, 38, 1026)),
    *(("fcntl", (3, command), 0, 0, 0) for command in (0, 1, 2, 3, 4, 1030, 1031)),
    ("fcntl", (1024, 3), 0, 0, 0),
    *(
        (call, (*before, mode | high), 0, *(2 * [EPERM if mode & 0o6000 else 0]))
        for call, before in (("fchmod", (3,)), ("fchmodat", (3, 0)), ("fchmodat2", (3, 0)), ("mknodat", (3, 0)))
        for mode in (0, 0o777, 0o1777, 0o4755, 0o2755, 0o6000, 0o100000 | 0o2000, 0o10000 | 0o4000)
        for high in (0, HIGH)
    ),
    *(
        ("openat", (3, 0, flags, mode), 0, *(2 * [EPERM if flags & 0o20000100 and mode & 0o6000 else 0]))
        for flags in (0, 1, 0o100, 0o101 | HIGH, 0o20200002, 0o200000, 0o100 | CLOEXEC)
        for mode in (0, 0o777, 0o4755, 0o2000 | HIGH, 0o6777)
    ),
    ("openat2", (3, 0, 0, 24), 0, ENOSYS, ENOSYS),
    ("mkdirat", (3, 0, 0o6777), 0, 0, 0),
    *(("prlimit64", (pid,), error, error, error) for pid, error in ((1, EPERM), (1 | HIGH, EPERM), (0, 0), (2, 0))),
    *(("sched_setaffinity", (pid,), error, error, error) for pid, error in ((1, EPERM), (0, 0), (77, 0))),
    *(("setpriority", args, EPERM, EPERM, EPERM) for args in ((0, 1), (1, 1), (2, 0), (2 | HIGH, 0))),
    ("setpriority", (0, 2), 0, 0, 0),
    *(("ioprio_set", args, EPERM, EPERM, EPERM) for args in ((1, 1), (3, 0))),
    ("ioprio_set", (1, 0), 0, 0, 0),
    *(("personality", (value,), 0, 0, EPERM) for value in (0, 8, 0x20000, 0x20008, 0x40000, 0x40008, 0x60000)),
    ("personality", (0xFFFFFFFF,), 0, 0, 0),
    *(("personality", (value,), 0, EPERM, EPERM) for value in (0x0400000, 0x40000 | 0x400000, 1, 6)),
    *(("socket", (UNIX, kind, 0), 0, 0, 0) for kind in (1, 2, 3, 5, 1 | CLOEXEC)),
    ("socket", (NETLINK, 3, 0), 0, 0, 0),
    *(
        ("socket", (NETLINK, 3 | CLOEXEC, protocol), 0, EPROTONOSUPPORT, EPROTONOSUPPORT)
        for protocol in (4, 12, 15, 16)
    ),
    *(("socket", (family, 1 | CLOEXEC, protocol), 0, 0, 0) for family in (INET, INET6) for protocol in (0, 6)),
    *(("socket", (family, 2, protocol), 0, 0, 0) for family in (INET, INET6) for protocol in (0, 17, 1, 58)),
    *(("socket", (family, 3 | CLOEXEC, 255), 0, EPERM, EPERM) for family in (INET, INET6)),
    *(("socket", (INET, kind, 0), 0, EPROTONOSUPPORT, EPROTONOSUPPORT) for kind in (4, 5, 6, 10, 0)),
    *(("socket", (INET, 1, protocol), 0, EPROTONOSUPPORT, EPROTONOSUPPORT) for protocol in (132, 262, 17)),
    *(("socket", (INET, 2, protocol), 0, EPROTONOSUPPORT, EPROTONOSUPPORT) for protocol in (6, 136, 132, 255)),
    *(
        ("socket", (family, 5, 0), 0, EAFNOSUPPORT, EAFNOSUPPORT)
        for family in (PACKET, ALG, VSOCK, BLUETOOTH, 0, 3, 9, 15, 29, 30, 44, 45, 1000, 0xFFFFFFFF)
    ),
    ("socket", (ALG | HIGH, 5, 0), 0, EAFNOSUPPORT, EAFNOSUPPORT),
    ("socketpair", (UNIX, 1, 0), 0, 0, 0),
    ("socketpair", (30, 1, 0), 0, EAFNOSUPPORT, EAFNOSUPPORT),
]
WHOLE = {
    "x86_64": {**{n: a for n, (a, _) in NUMBERS.items()}, **ONLY_X86},
    "aarch64": {n: b for n, (_, b) in NUMBERS.items()},
}


def codes(policy: Policy, machine: str = "x86_64", host: Any = DEBIAN) -> list[bytes]:
    """Return the programs of a policy's plan."""
    return encode_programs(compile_policy(policy, host).programs, machine, WHOLE[machine])


@pytest.mark.parametrize("machine", COMPATIBLE)
def test_profiles(machine: str) -> None:
    """Each case of the table has the verdict of its column, in each profile."""
    for column, chosen in enumerate(("off", "default", "hardened")):
        found = codes(workspace(seccomp=chosen), machine)
        for call, args, *expected in CASES:
            said = verdict(found, MACHINES[machine], WHOLE[machine][call], args)
            assert said == expected[column], (chosen, call, args, name(said), name(expected[column]))


def test_calls_of_one_machine() -> None:
    """What only x86_64 has is refused too, as far as it is dangerous."""
    found = codes(workspace())
    for call, number in ONLY_X86.items():
        allowed = call in ("arch_prctl", "time", "fork", "vfork", "open", "chmod", "creat", "mknod", "mkdir")
        assert verdict(found, MACHINES["x86_64"], number) == (ALLOWED if allowed else EPERM), call


@pytest.mark.parametrize("machine", COMPATIBLE)
@pytest.mark.parametrize("chosen", ["default", "hardened"])
def test_other_tables_are_closed(machine: str, chosen: str) -> None:
    """Through the tables of other machines (int 0x80, x32) and above our own there is no system call at all."""
    found = codes(workspace(seccomp=chosen), machine)
    for arch in (MACHINES[COMPATIBLE[machine]], 0x8, 0, 0xFFFFFFFF):
        for number in range(600):
            assert verdict(found, arch, number) == ENOSYS
    for number in (LAST + 1, LAST + 2, 512, 547, 0x40000000, 0x40000000 | 59, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF):
        assert verdict(found, MACHINES[machine], number) == ENOSYS
    assert verdict(found, MACHINES[machine], LAST - 2) == ALLOWED


@pytest.mark.parametrize("machine", COMPATIBLE)
def test_the_guard_in_both_tables(machine: str) -> None:
    """Without a profile, 32-bit programs run, and what leads to the caller is refused in their table as well."""
    found = codes(Policy.host(seccomp="off"), machine)
    other = COMPATIBLE[machine]
    numbers = COMPATIBLE_NUMBERS[other]
    for call, args, off, *_ in CASES:
        if call in numbers:
            assert verdict(found, MACHINES[other], numbers[call], args) == off, (call, args)
    assert verdict(found, MACHINES[other], numbers["fcntl64"], (3, 1024)) == EPERM
    for number in range(1024):
        if number not in numbers.values():
            assert verdict(found, MACHINES[other], number, (1, 1024)) == ALLOWED
    assert verdict(found, MACHINES["x86_64"], 0x40000000 | 39) == ENOSYS
    assert verdict(found, 0x8, 39) == ENOSYS


def test_numbers_of_32_bit_tables() -> None:
    """The guard's calls in the tables of 32-bit programs, written down a second time."""
    i386, arm = COMPATIBLE_NUMBERS["i386"], COMPATIBLE_NUMBERS["arm"]
    calls = ("ptrace", "fcntl", "setpriority", "clone", "sched_setparam", "sched_setscheduler", "fcntl64")
    assert [i386[call] for call in calls] == [arm[call] for call in calls] == [26, 55, 97, 120, 154, 156, 221]
    calls = ("sched_setaffinity", "clone3", "add_key", "request_key", "keyctl", "ioprio_set", "unshare", "prlimit64")
    assert [i386[call] for call in calls] == [241, 435, 286, 287, 288, 289, 310, 340]
    assert [arm[call] for call in calls] == [241, 435, 309, 310, 311, 314, 337, 369]
    assert (i386["sched_setattr"], arm["sched_setattr"]) == (351, 380)
    assert i386["setrlimit"] == arm["setrlimit"] == 75
    calls = ("open", "openat", "openat2", "open_by_handle_at", "truncate", "truncate64")
    assert [i386[call] for call in calls] == [5, 295, 437, 342, 92, 193]
    assert [arm[call] for call in calls] == [5, 322, 437, 371, 92, 193]
    calls = ("io_uring_setup", "io_uring_enter", "io_uring_register")
    assert [i386[call] for call in calls] == [arm[call] for call in calls] == [425, 426, 427]
    assert i386.keys() == arm.keys()


@pytest.mark.parametrize("base", ["default", "off"])
def test_the_limit_of_core_dumps(base: Any) -> None:
    """In a workspace RLIMIT_CORE can be read; to set it has no effect, by whatever pointer, and no other limit's rule."""
    found, numbers = codes(workspace(seccomp=base)), WHOLE["x86_64"]
    low, high = 0x1000, 7 << 32
    for args, expected in (
        ((0, 4, 0, low), ALLOWED),
        ((9, 4, 0, high), ALLOWED),
        *(((pid, 4 | bits, new, 0), IGNORED) for pid in (0, 9) for bits in (0, HIGH) for new in (low, high)),
        *(((0, 4, new, old), EPERM) for new in (low, high) for old in (low, high)),
        ((1, 4, low, 0), EPERM),  # pid 1 of the sandbox
        *(((0, other, low, low), ALLOWED) for other in (0, 3, 5, 7)),
    ):
        assert verdict(found, MACHINES["x86_64"], numbers["prlimit64"], args) == expected, args
    assert verdict(found, MACHINES["x86_64"], 160, (4, low)) == IGNORED
    assert verdict(found, MACHINES["x86_64"], 160, (7, low)) == ALLOWED


def test_nested_lifts_what_sandboxes_need_and_no_more() -> None:
    """nested=True allows namespaces, mounts, CLONE_PARENT and clone3; the rest of the profile stays."""
    found, strict = codes(workspace(nested=True)), codes(workspace())
    lifted = set()
    for call, args, *_ in CASES:
        before, after = (verdict(c, MACHINES["x86_64"], WHOLE["x86_64"][call], args) for c in (strict, found))
        if before != after:
            assert after == ALLOWED
            lifted.add(call)
    assert lifted == {
        *("clone", "clone3", "unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "sethostname"),
        *("mount_setattr", "open_tree", "open_tree_attr", "move_mount", "fsopen", "openat2"),
    }


def test_the_hosts_profile() -> None:
    """Policy.host() has the default profile as nested=True leaves it, and set-user-ID bits.

    Without kill_on_exit there are no children for the caller.
    """
    nested, machine = codes(workspace(nested=True)), MACHINES["x86_64"]
    set_ids = {call for rule in profiles.SET_IDS for call in rule.calls}
    for policy, base in ((Policy.host(), "default"), (Policy.host(seccomp=Filter()), Filter())):
        assert policy.seccomp == base
        for call, args, *_ in CASES:
            number = WHOLE["x86_64"][call]
            expected = ALLOWED if call in set_ids else verdict(nested, machine, number, args)
            assert verdict(codes(policy), machine, number, args) == expected, call
    going_on = codes(Policy.host(kill_on_exit=False))
    assert verdict(going_on, machine, 56, (PARENT,)) == EPERM
    assert verdict(going_on, machine, 272, (NEWUSER,)) == ALLOWED
    assert verdict(codes(Policy.host(seccomp="hardened")), machine, 272, (NEWUSER,)) == EPERM
    assert verdict(codes(Policy.host(seccomp="off")), machine, 321) == ALLOWED


def test_the_way_into_the_own_net_namespace() -> None:
    """Where there is one, the set-up enters it behind the filter: setns(2) for that kind alone, else none."""
    for network, expected in (("none", ALLOWED), ("host", EPERM)):
        found = codes(workspace(network=network))
        assert verdict(found, MACHINES["x86_64"], 308, (3, NEWNET)) == expected
        for kind in (0, NEWUSER, NEWNS, NEWNET | NEWUSER):
            assert verdict(found, MACHINES["x86_64"], 308, (3, kind)) == EPERM


@pytest.mark.parametrize("host", [DEBIAN, ROOT])
def test_the_second_user_namespace(host: Any) -> None:
    """Where the set-up enters one, what refuses it is installed late, and nothing else is."""
    plan = compile_policy(workspace(), host)
    late = [program for program in plan.programs if program.stage != "early"]
    assert bool(late) is (plan.identity.uid_map2 is not None) is (host is DEBIAN)
    early = encode_programs([p for p in plan.programs if p.stage == "early"], "x86_64", WHOLE["x86_64"])
    assert (verdict(early, MACHINES["x86_64"], 272, (NEWUSER,)) == ALLOWED) is bool(late)
    if late:
        assert late == [Program(no_user_namespaces(), stage="confined")]
        # The maps of that namespace are written, ids and capabilities given up, the directory entered.
        for number in (1, 3, 257, 157, 105, 117, 119, 116, 126, 436, 33, 292, 79, 80, 302, 59, 202, 13, 14, 24):
            assert verdict(early, MACHINES["x86_64"], number) == ALLOWED


# ---- Filter


def test_allowing_again() -> None:
    """allow lifts the rules of a name, of all that the profile has; what every command is refused stays.

    Namespaces are lifted for the one call that is named.
    """
    found = codes(workspace(seccomp=Filter(base="hardened", allow=["ptrace", "bpf", "socket", "unshare"])))
    for call, args, expected in (
        ("bpf", (), 0),
        ("ptrace", (16,), 0),
        ("ptrace", (0x4206, 3, 0, 0x40), 0),
        ("ptrace", (0,), EPERM),
        ("socket", (ALG, 5, 0), 0),
        ("kcmp", (), EPERM),
        ("mount", (), EPERM),
        ("unshare", (NEWUSER | NEWNS,), 0),
        ("clone", (NEWUSER | SIGCHLD,), EPERM),
    ):
        assert verdict(found, MACHINES["x86_64"], WHOLE["x86_64"][call], args) == expected, call


@pytest.mark.parametrize("base", ["off", "default", "hardened"])
def test_tracing_exits_again(base: Any) -> None:
    """With "ptrace" in allow the exit of processes can be traced in every profile, and the plan says what that means."""
    policy = workspace(seccomp=Filter(base=base, allow=["ptrace"]))
    found = codes(policy)
    for request in (0x4200, 0x4206, 21):
        assert verdict(found, MACHINES["x86_64"], 101, (request, 3, 0, 0x40)) == ALLOWED
    assert verdict(found, MACHINES["x86_64"], 101, (0,)) == EPERM
    words = "can't be killed, not even by root"
    assert any(words in said for said in compile_policy(policy, DEBIAN).not_enforced)
    assert not any(words in said for said in compile_policy(workspace(seccomp=base), DEBIAN).not_enforced)


def test_own_rules() -> None:
    """Rules are tried in their order before the profile's verdict counts, which they can't loosen."""
    rules = (
        Rule("openat", 13, (Arg(2, 0, mask=3, inverted=True),)),
        Rule("kill", 0, (Arg(1, 0),)),
        Rule("kill"),
        Rule(("mount",), 0),
    )
    found = codes(workspace(seccomp=Filter(rules=rules)))
    for call, args, expected in (
        ("openat", (0, 0, 0), 0),
        ("openat", (0, 0, 1), 13),
        ("openat", (0, 0, 0x80002), 13),
        ("kill", (1, 0), 0),
        ("kill", (1, 9), EPERM),
        ("mount", (), EPERM),
        ("read", (), 0),
    ):
        assert verdict(found, MACHINES["x86_64"], WHOLE["x86_64"][call], args) == expected, call
    open_to_32 = codes(workspace(seccomp=Filter(base="off", rules=rules)))
    assert verdict(open_to_32, MACHINES["i386"], 37, (1, 9)) == ENOSYS  # kill, which would be a way around


def test_ready_programs() -> None:
    """Ready code is passed on as it is, last."""
    code = struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000)
    plan = compile_policy(workspace(seccomp=Filter(programs=[code, code * 2])), ROOT)
    assert encode_programs(plan.programs, "x86_64", WHOLE["x86_64"])[1:] == [code, code * 2]
    assert [program.stage for program in plan.programs] == ["early", "last", "last"]


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: workspace(seccomp="strict"), "seccomp"),
        (lambda: workspace(seccomp=None), "seccomp"),
        (lambda: workspace(seccomp=[]), "seccomp"),
        (lambda: Filter(base="none"), "seccomp.base"),
        (lambda: Filter(allow="ptrace"), "seccomp.allow"),
        (lambda: Filter(allow=["ptrace!"]), "seccomp.allow"),
        (lambda: Filter(allow=[1]), "seccomp.allow"),
        (lambda: Filter(allow=["keyctl"]), "seccomp.allow"),
        (lambda: Filter(allow=["process_vm_readv"]), "seccomp.allow"),  # the default profile doesn't refuse it
        (lambda: Filter(base="off", allow=["bpf"]), "seccomp.allow"),
        (lambda: codes(workspace(seccomp=Filter(allow=["unshare"])), host=ROOT), "seccomp.allow"),
        (
            lambda: codes(workspace(seccomp=Filter(allow=["clone"]), deny=["/home/me/repo/.env"])),
            "seccomp.allow",
        ),
        (lambda: Filter(allow=["clone3"]), "seccomp.allow"),
        (lambda: Filter(rules=["ptrace"]), "seccomp.rules"),
        (lambda: Filter(rules=Rule("ptrace")), "seccomp.rules"),
        (lambda: Filter(programs=b"12345678"), "seccomp.programs"),
        (lambda: Filter(programs=[b"1234567"]), "seccomp.programs"),
        (lambda: Filter(programs=[b""]), "seccomp.programs"),
        (lambda: Filter(programs=[bytes(8 * 4097)]), "seccomp.programs"),
        (lambda: Rule(""), "Rule.calls"),
        (lambda: Rule((1,)), "Rule.calls"),
        (lambda: Rule(()), "Rule.calls"),
        (lambda: Rule("read", -1), "Rule.errno"),
        (lambda: Rule("read", 4096), "Rule.errno"),
        (lambda: Rule("read", True), "Rule.errno"),
        (lambda: Rule("read", "0"), "Rule.errno"),
        (lambda: Arg(0, 0, high=1), "Arg.high"),
        (lambda: Rule("read", 1, ("x",)), "Rule.when"),
        (lambda: Rule("read", 1, 7), "Rule.when"),
        (lambda: Arg(6, 0), "Arg.index"),
        (lambda: Arg(-1, 0), "Arg.index"),
        (lambda: Arg(0, 1 << 32), "Arg.values"),
        (lambda: Arg(0, ()), "Arg.values"),
        (lambda: Arg(0, "x"), "Arg.values"),
        (lambda: Arg(0, b"x"), "Arg.values"),
        (lambda: Arg(0, 1, inverted=[]), "Arg.inverted"),
        (lambda: Arg(0, 4, mask=3), "Arg.values"),
        (lambda: Arg(0, 0, mask=-1), "Arg.mask"),
    ],
)
def test_malformed(make: Any, field: str) -> None:
    """What makes no sense is refused when it is made, by the name of the field."""
    with pytest.raises(PolicyError) as caught:
        make()
    assert caught.value.field == field


def test_values() -> None:
    """Filters are values: hashable, picklable, equal whatever kind of sequence they were made from."""
    made = Filter(allow=["bpf"], rules=[Rule(["read"], 5, [Arg(0, [1, 2])])], programs=[b"12345678"])
    same = Filter(allow=("bpf",), rules=(Rule(("read",), 5, (Arg(0, (1, 2)),)),), programs=(b"12345678",))
    assert made == same and hash(made) == hash(same)
    policy = workspace(seccomp=made)
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert policy.with_(seccomp="hardened").filter == Filter(base="hardened")


# ---- the assembler


def expected(rules: Sequence[Rule], numbers: dict[str, int], number: int, args: Sequence[int], last: int | None) -> int:
    """Say what the rules mean, plainly."""
    if number > (0x3FFFFFFF if last is None else last):
        return ENOSYS
    for rule in rules:
        if number in {numbers.get(call) for call in rule.calls}:
            tests = [
                ((args[test.index] >> 32 * test.high & test.mask) in test.values) is not test.inverted  # type: ignore[operator]
                for test in rule.when
            ]
            if all(tests):
                return IGNORED if rule.errno is None else rule.errno
    return ALLOWED


small = st.integers(0, 5)
words = st.one_of(small, st.sampled_from([0xFFFFFFFF, 0x80000000, 255, 256]))
halves = st.builds(lambda high, low: high << 32 | low, st.one_of(st.just(0), words), words)


@st.composite
def args_tests(draw: st.DrawFn) -> Arg:
    mask = draw(st.sampled_from([0xFFFFFFFF, 0xF, 1, 0x80000000, 0]))
    values = draw(st.lists(words.map(lambda value: value & mask), min_size=1, max_size=4))
    return Arg(draw(small), values, mask, draw(st.booleans()), draw(st.booleans()))


calls = [f"c{i}" for i in range(40)]
rules = st.lists(
    st.builds(
        Rule,
        st.lists(st.sampled_from(calls), min_size=1, max_size=6).map(tuple),
        st.sampled_from([0, 1, 13, 38, 97, None]),
        st.lists(args_tests(), max_size=3).map(tuple),
    ),
    max_size=60,
)


@calm
@given(
    rules=rules,
    gaps=st.lists(st.integers(1, 20), min_size=40, max_size=40),
    asked=st.lists(st.tuples(st.integers(0, 420), st.lists(halves, min_size=6, max_size=6)), min_size=1, max_size=40),
    last=st.sampled_from([None, 150, 400, 420]),
)
def test_assembled_means_the_rules(
    rules: list[Rule], gaps: list[int], asked: list[tuple[int, list[int]]], last: int | None
) -> None:
    """Whatever the rules, the program says what they say, of every number; also when jumps are too far for 8 bits."""
    numbers, at = {}, -1
    for call, gap in zip(calls, gaps, strict=True):
        at += gap
        numbers[call] = at
    code = assemble(rules, Table("x86_64", numbers, last))
    for number, args in [*asked, *((n, args) for n in numbers.values() for _, args in asked[:2])]:
        assert run(code, MACHINES["x86_64"], number, args)[0] == expected(rules, numbers, number, args, last)
    assert run(code, MACHINES["aarch64"], 0)[0] == ENOSYS


def test_large_programs() -> None:
    """Hundreds of rules, whose jumps don't fit into 8 bits, mean what they say; too many are an error that says so."""
    numbers = {f"c{i}": i for i in range(400)}
    many = [Rule((f"c{i}",), 1 + i % 90, (Arg(i % 6, (i, i + 1, i + 2)),)) for i in range(400)]
    code = assemble(many, Table("x86_64", numbers))
    assert len(code) // 8 > 1000
    for i in range(400):
        for value in (i - 1, i, i + 2, i + 3):
            said, steps = run(code, MACHINES["x86_64"], i, [max(value, 0)] * 6)
            assert said == (1 + i % 90 if i <= value <= i + 2 or value < 0 == i else ALLOWED), (i, value)
            assert steps < 40
    with pytest.raises(PolicyError, match="instructions, at most 4096"):
        assemble([Rule(("c0",), 1 + i % 4000, (Arg(0, i),)) for i in range(4000)], Table("x86_64", numbers))


def test_search_is_short() -> None:
    """A number takes ten instructions on the average to be found allowed, in the largest profile, and never twice that.

    A balanced tree over ranges takes eleven.
    """
    found = codes(workspace(seccomp="hardened"), "x86_64", ROOT)[:1]  # the next is about filters
    assert len(found[0]) // 8 < 272
    tested = {
        "socket",
        "socketpair",
        "setsockopt",
        "pipe2",
        "ioctl",
        "personality",
        "fcntl",
        "setns",
        *COMPATIBLE_NUMBERS["i386"],
    }
    numbers = set(range(LAST + 2)) - {WHOLE["x86_64"].get(call) for call in tested} - {142, 144, 314}  # sched_set*
    steps = [run(found[0], MACHINES["x86_64"], number)[1] for number in numbers]
    assert max(steps) <= 16 and sum(steps) <= 10 * len(steps)


def test_newer_numbers() -> None:
    """The numbers that headers may lack run on from the last that all have, to the newest that is known."""
    assert sorted(NEWER.values()) == list(range(424, LAST + 1))


def test_every_profiled_call_is_a_name() -> None:
    """The profiles name system calls of some machine: what this one's headers lack is known to be another's."""
    others = {
        *("create_module", "get_kernel_syms", "query_module", "nfsservctl", "uselib", "ustat", "sysfs", "_sysctl"),
        *("stime", "clock_settime64", "clock_adjtime64", "umount", "fcntl64", "socketcall", "vm86", "vm86old"),
        *("afs_syscall", "getpmsg", "putpmsg", "security", "tuxcall", "vserver", "modify_ldt", "subpage_prot"),
        *("iopl", "ioperm", "lookup_dcookie", "truncate64", "chmod", "creat", "mknod", "inotify_init"),
    }
    from nsbox._core import abi, linux

    if abi.problem:
        pytest.skip("no C core, so no kernel headers")
    machine, numbers = linux.syscalls()
    assert {*numbers, *NEWER, *others} >= profiled()
    assert linux.numbers_of([*numbers, "", "no such call", "rea"]) == (machine, numbers)


def test_profiles_grow() -> None:
    """Each profile refuses all that the one before refuses."""
    sizes = [
        len({call for rule in profile(base, nested=False, for_net=False) for call in rule.calls})
        for base in ("off", "default", "hardened")
    ]
    assert sizes == sorted(set(sizes))
