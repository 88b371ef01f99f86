"""No command can trace the exit of a process, with which it would hold up the end of its sandbox."""

from __future__ import annotations

import errno
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing import needs
from nsbox_testing.running import python

import nsbox
import nsbox.asyncio
from nsbox import Filter, Policy, Sandbox

LACKED = {"attributes", "namespaces", "secrets"}
X86 = platform.machine() == "x86_64"

# A parent may trace its child whatever Yama's ptrace_scope says, up to 1.
EXITS = """
import ctypes, json, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
def ptrace(*args): return ctypes.get_errno() if libc.ptrace(*args) < 0 else 0
SETOPTIONS, OLDSETOPTIONS, SEIZE, INTERRUPT, EXIT = 0x4200, 21, 0x4206, 0x4207, 0x40
pid = os.fork()
if pid == 0:
    signal.pause()
found = {"seize": ptrace(SEIZE, pid, 0, EXIT | 1)}
if found["seize"]:
    found["plain"] = ptrace(SEIZE, pid, 0, 1)
ptrace(INTERRUPT, pid, 0, 0)
os.waitpid(pid, 0x40000000)
for name, request in ("options", SETOPTIONS), ("old", OLDSETOPTIONS):
    found[name] = ptrace(request, pid, 0, EXIT)
found["others"] = ptrace(SETOPTIONS, pid, 0, 1)  # exits aren't traced any more
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0x40000000)
print(json.dumps(found))
"""

OLD = 0 if X86 else errno.EIO  # what a kernel says that doesn't know the request


def exits(run: Callable[..., Any], **options: Any) -> dict[str, int]:
    """Return what came of asking for exit stops, each way."""
    done = run(python(EXITS), stdout=subprocess.PIPE, text=True, check=True, **options)
    found: dict[str, int] = json.loads(done.stdout)
    return found


REFUSED = {"seize": errno.EPERM, "plain": 0, "options": errno.EPERM, "old": errno.EPERM, "others": 0}

ALLOWED = {"seize": 0, "options": 0, "old": OLD, "others": 0}


@pytest.mark.vm
@pytest.mark.parametrize("nested", [False, True])
def test_exits_are_not_traced(policy: Policy, nested: bool) -> None:
    """No request that sets the option is allowed, with every profile; other options are."""
    assert exits(nsbox.run, policy=policy.with_(nested=nested)) == REFUSED


def test_nor_in_sandboxes_that_are_kept(policy: Policy, tmp_path: Path) -> None:
    """In a copy of a sandbox, a session and a transaction it is the same."""
    with Sandbox(policy, stock=1) as box:
        assert [exits(box.run) for _ in range(2)] == [REFUSED] * 2
        with box.session() as session:
            assert exits(session.run) == REFUSED
        with box.transaction(dir=tmp_path / "store") as tx:
            assert exits(tx.run) == REFUSED


@pytest.mark.parametrize("seccomp", ["default", "off"])
def test_nor_under_a_policy_of_the_host(seccomp: Any) -> None:
    assert exits(nsbox.run, policy=Policy.host(seccomp=seccomp)) == REFUSED


@pytest.mark.skipif(nsbox.probe().landlock_abi < 2, reason="needs Landlock of version 2 or later")
@pytest.mark.parametrize("seccomp", ["default", "off"])
def test_nor_behind_landlock_alone(workspace: Path, seccomp: Any) -> None:
    policy = Policy.workspace(workspace, backend="landlock", degrade=LACKED, seccomp=seccomp)
    assert exits(nsbox.run, policy=policy) == REFUSED


@pytest.mark.as_user("bwrap doesn't protect kernel settings from the kernel's uid 0")
@pytest.mark.skipif(not os.access("/usr/bin/bwrap", os.X_OK), reason=needs.reason("bwrap", " at /usr/bin/bwrap"))
def test_nor_behind_bwrap(workspace: Path) -> None:
    assert exits(nsbox.run, policy=Policy.workspace(workspace, backend="bwrap")) == REFUSED


def test_nor_by_the_command_line_of_bwrap() -> None:
    nsbox = str(Path(sys.executable).parent / "nsbox")
    argv = [nsbox, "bwrap", "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-all"]
    assert exits(lambda command, **options: subprocess.run([*argv, *command], **options)) == REFUSED


@pytest.mark.parametrize("base", ["default", "hardened", "off"])
def test_control_the_filter_alone_refuses_it(workspace: Path, base: Any) -> None:
    """Control: without the rule, each of them is allowed, except a request that the machine lacks."""
    policy = Policy.workspace(workspace, seccomp=Filter(base=base, allow=["ptrace"]))
    assert exits(nsbox.run, policy=policy) == exits(subprocess.run) == ALLOWED
