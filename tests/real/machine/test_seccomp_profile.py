"""deploy/seccomp.json beside the default profile of Docker, call by call: what it allows more, and what less.

Docker's profile isn't here. What it refuses is written down below, by what it asks for. It is seccomp/default.json of
moby/profiles, commit 02e898b137aed1024e232d59bcb05e6179b72177, looked at in November 2026. The filter itself is compiled
by the library that engines use, and an interpreter is asked about every number of both machines.
"""

from __future__ import annotations

import errno
import importlib.util
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing import bpf, engine, needs

ROOT = Path(__file__).resolve().parents[3]
PROFILE: dict[str, Any] = json.loads((ROOT / "deploy/seccomp.json").read_text())
ALLOWED, NEEDED, ABSENT = ({*row["names"]} for row in PROFILE["syscalls"][:3])
BY_ARGUMENT = {"socket", "personality"}

# Of the calls that x86_64 or aarch64 has: those that Docker's profile allows to a process with a capability alone.
BY_CAPABILITY = {
    "CAP_SYS_ADMIN": {
        *("bpf", "clone", "clone3", "fanotify_init", "lookup_dcookie", "perf_event_open", "quotactl", "quotactl_fd"),
        *("fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr", "move_mount", "open_tree", "umount2"),
        *("lsm_get_self_attr", "lsm_list_modules", "lsm_set_self_attr", "syslog"),
        *("setdomainname", "sethostname", "setns", "unshare"),
    },
    "CAP_DAC_READ_SEARCH": {"open_by_handle_at"},
    "CAP_SYS_BOOT": {"reboot"},
    "CAP_SYS_CHROOT": {"chroot"},
    "CAP_SYS_MODULE": {"delete_module", "finit_module", "init_module"},
    "CAP_SYS_NICE": {"get_mempolicy", "mbind", "set_mempolicy", "set_mempolicy_home_node"},
    "CAP_SYS_PACCT": {"acct"},
    "CAP_SYS_PTRACE": {"kcmp", "pidfd_getfd", "process_madvise"},
    "CAP_SYS_RAWIO": {"ioperm", "iopl"},
    "CAP_SYS_TIME": {"clock_settime", "settimeofday"},
    "CAP_SYS_TTY_CONFIG": {"vhangup"},
}
# Those that it allows nobody.
BY_NOBODY = {
    *("pivot_root", "open_tree_attr"),
    *("add_key", "keyctl", "request_key", "io_uring_enter", "io_uring_register", "io_uring_setup", "userfaultfd"),
    *("kexec_file_load", "kexec_load", "migrate_pages", "move_pages", "swapoff", "swapon", "file_getattr"),
    *("file_setattr", "listns"),
    *("_sysctl", "afs_syscall", "create_module", "get_kernel_syms", "getpmsg", "nfsservctl", "putpmsg"),
    *("query_module", "security", "sysfs", "tuxcall", "uselib", "ustat", "vserver"),
}
NEWEST = {"rseq_slice_yield", "uprobe"}  # allowed nobody too; the generator doesn't know them
REFUSED = BY_NOBODY.union(*BY_CAPABILITY.values())
# What it allows, and ours doesn't, since nothing current calls them.
STRICTER = {"modify_ldt", "remap_file_pages"}
# AF_ALG and AF_VSOCK, and those that no kernel has any more, or none that is looked after.
DOCKERS_OTHER_FAMILIES = {0, 12, 19, 20, 23, 25, 34, 37, 38, 40}
DOCKERS_PERSONALITIES = {0, 8, 0x20000, 0x20008, 0xFFFFFFFF}


by_engine = needs.library(engine.LIBRARY, "libseccomp2")


def values(name: str) -> set[int]:
    """Return what the first argument of a call may be, by the profile."""
    rows = [row for row in PROFILE["syscalls"] if row["names"] == [name]]
    assert all(row["action"] == "SCMP_ACT_ALLOW" for row in rows)
    conditions = [condition for row in rows for condition in row["args"]]
    assert len(conditions) == len(rows)
    assert {(condition["index"], condition["op"]) for condition in conditions} == {(0, "SCMP_CMP_EQ")}
    return {condition["value"] for condition in conditions}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the generator needs the table of x86_64")
def test_it_is_dockers_and_what_sandboxes_need() -> None:
    """What is allowed is what Docker allows any process, less two calls, and the calls of NEEDED; no call is in neither list."""
    spec = importlib.util.spec_from_file_location("profile_writer", ROOT / "deploy/seccomp.py")
    assert spec is not None and spec.loader is not None
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    assert writer.profile() == PROFILE
    known = {*writer.names(), *writer.NEEDED, *writer.ABSENT, *writer.REFUSED, *BY_ARGUMENT}
    of_other_machines = {"clock_settime64", "stime", "subpage_prot", "vm86", "vm86old"}
    assert known - of_other_machines >= REFUSED | STRICTER
    assert known - of_other_machines - REFUSED - STRICTER - BY_ARGUMENT == ALLOWED
    assert NEEDED <= REFUSED
    assert ABSENT <= REFUSED and not ABSENT & NEEDED


def test_what_is_added_needs_an_administrator_there() -> None:
    """What is added for sandboxes Docker keeps for CAP_SYS_ADMIN, or allows nobody; clone3(2) is absent, as it is there."""
    assert NEEDED - BY_CAPABILITY["CAP_SYS_ADMIN"] == {"pivot_root", "open_tree_attr"}
    assert "mount" not in ALLOWED | NEEDED
    assert "clone3" in ABSENT
    assert not ALLOWED & REFUSED


def test_arguments_and_machines() -> None:
    """Families of sockets and machines are some of Docker's, personalities the same."""
    assert values("personality") == DOCKERS_PERSONALITIES
    assert values("socket") == {1, 2, 10, 16}
    assert not values("socket") & DOCKERS_OTHER_FAMILIES
    assert PROFILE["architectures"] == ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"]  # and no 32-bit ones
    assert (PROFILE["defaultAction"], PROFILE["defaultErrnoRet"]) == ("SCMP_ACT_ERRNO", 1)


# ---- the filter, as an engine compiles it


def expected(name: str) -> int:
    """Return what the call gets without arguments, by the lists above."""
    if name in NEEDED or name == "personality":
        return bpf.ALLOWED
    if name in ABSENT:
        return errno.ENOSYS
    return errno.EPERM if name in REFUSED | NEWEST | STRICTER | BY_ARGUMENT else bpf.ALLOWED


@by_engine
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_number(machine: str) -> None:
    """Each system call of the machine gets what the lists say, and what has no name is refused."""
    code, numbers = engine.compiled(PROFILE), engine.numbers(machine)
    assert len(numbers) > 300
    found = {name: bpf.answer(code, machine, number) for name, number in numbers.items()}
    assert found == {name: expected(name) for name in numbers}
    for number in {*range(600)} - {*numbers.values()}:
        assert bpf.answer(code, machine, number) == errno.EPERM


@by_engine
def test_arguments_of_the_filter() -> None:
    """Sockets and personalities by their first argument; clone(2) with each namespace, which Docker's rule refuses."""
    code, numbers = engine.compiled(PROFILE), engine.numbers("x86_64")
    families = {n for n in range(64) if bpf.answer(code, "x86_64", numbers["socket"], [n]) == bpf.ALLOWED}
    assert families == values("socket")
    for value in (1, 0x40000, 0x400000, 0x20009, 1 << 32):
        assert bpf.answer(code, "x86_64", numbers["personality"], [value]) == errno.EPERM
    masked = {"index": 0, "value": 0x7E020000, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}
    row = {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [masked]}
    dockers = [row, *(row for row in PROFILE["syscalls"] if "clone" not in row["names"])]
    default = engine.compiled({**PROFILE, "syscalls": dockers})
    for bit in (17, *range(25, 31)):
        assert bpf.answer(code, "x86_64", numbers["clone"], [1 << bit]) == bpf.ALLOWED
        assert bpf.answer(default, "x86_64", numbers["clone"], [1 << bit]) == errno.EPERM
    assert bpf.answer(default, "x86_64", numbers["clone"], [0x11]) == bpf.ALLOWED


@by_engine
def test_other_machines_calls_kill() -> None:
    """A call by a 32-bit entry, or by x32's numbers, ends the process; control: by the machine's own it is allowed."""
    code = engine.compiled(PROFILE)
    assert bpf.answer(code, "x86_64", 39) == bpf.ALLOWED  # getpid
    assert bpf.answer(code, "x86_64", 39 | 0x40000000) == bpf.KILLED
    assert bpf.answer(code, "i386", 20) == bpf.KILLED
    assert bpf.answer(code, "arm", 20) == bpf.KILLED


# ---- calls without which the default policy works


HOSTNAME = """
from nsbox import Dev, Policy, Proc, RoBind, run
layers = RoBind("/", "/"), Proc("/proc"), Dev("/dev")
run(["echo", "contained"], policy=Policy.layers(*layers, unshare={"uts"}, hostname="inside"), check=True)
"""
OTHERS = {
    "sethostname": ["-c", HOSTNAME],
    "fspick": ["-m", "nsbox", "run", "--transaction", "--", "sh", "-c", "echo contained | tee made"],
}


@by_engine
@pytest.mark.parametrize("name", sorted(OTHERS))
def test_calls_of_other_policies(name: str, tmp_path: Path, workspace: Path) -> None:
    """A host name and a transaction each need a call that the default policy doesn't; control: with it they work."""
    path = tmp_path / "profile.json"
    command = [sys.executable, engine.__file__, str(path), sys.executable, "-P", *OTHERS[name]]
    path.write_text(json.dumps(PROFILE))
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=workspace)
    assert done.stdout == "contained\n", done.stderr
    rows = [{**row, "names": [other for other in row["names"] if other != name]} for row in PROFILE["syscalls"]]
    path.write_text(json.dumps({**PROFILE, "syscalls": rows}))
    (workspace / "made").unlink(missing_ok=True)
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=workspace)
    assert done.returncode != 0
    assert "Operation not permitted" in done.stderr
    assert not (workspace / "made").exists()
