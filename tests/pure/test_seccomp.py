"""Filters: what the profiles say about each system call, by an interpreter of the programs that rules become."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from nsbox_pure.bpf import ALLOWED, IGNORED, name, verdict
from nsbox_pure.calls import (
    ALG,
    BLUETOOTH,
    EAFNOSUPPORT,
    ENOSYS,
    EPERM,
    EPROTONOSUPPORT,
    INET,
    INET6,
    NETLINK,
    NEWNET,
    NEWNS,
    NEWUSER,
    ONLY_X86,
    PACKET,
    PARENT,
    SIGCHLD,
    UNIX,
    VSOCK,
    WHOLE,
    codes,
)
from nsbox_pure.hosts import DEBIAN, ROOT, workspace

from nsbox import Filter, Policy
from nsbox._backends import compile_policy
from nsbox._core.wire import encode_programs
from nsbox._seccomp import profiles
from nsbox._seccomp.bpf import COMPATIBLE, LAST, MACHINES, Program
from nsbox._seccomp.filter import COMPATIBLE_NUMBERS, no_user_namespaces

HIGH = 1 << 32  # the kernel doesn't look at this half of the arguments tested here, so the filter mustn't

THREAD = 0x3D0F00  # what pthread_create(3) asks for
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
