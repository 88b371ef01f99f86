"""When the machine has no more to give: descriptors, processes, namespaces. The right error, and all works again after."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing import leftovers
from nsbox_testing.running import in_fork

import nsbox
from nsbox import Policy, SetupError, UnavailableError

_CLONE_NEWUSER = 0x10000000
_SPARE = 61_000 + os.getpid() % 4000
"""A uid that nobody else has, so that its processes can be counted."""


def fill(free: int) -> list[int]:
    """Open descriptors until only this many are free."""
    held = []
    try:
        while True:
            held.append(os.dup(0))
    except OSError:
        pass
    for _ in range(free):
        os.close(held.pop())
    return held


@pytest.mark.parametrize("kind", ["workspace", "host"])
@pytest.mark.parametrize("pipes", [True, False])
def test_no_descriptors_left(policy: Policy, kind: str, pipes: bool) -> None:
    """With 0 to 15 free descriptors a spawn works, or is EMFILE and leaves as many free as before; then it works again.

    CPython's own test (test_no_leaking) leaves ten free, and wants a start with three pipes to succeed.
    """
    chosen = policy if kind == "workspace" else Policy.host()
    options = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")} if pipes else {}

    def attempt(free: int) -> str:
        nsbox.run(["true"], policy=chosen)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        before = set(leftovers.fds())
        held = fill(free)
        try:
            with nsbox.Popen(["true"], policy=chosen, **options):
                result = "started"
        except SetupError as error:
            result = f"{errno.errorcode[error.errno]} {'RLIMIT_NOFILE' in str(error)}"
        except OSError as error:  # from pipe(2) in the constructor, which leaks some itself before Python 3.12
            return f"{errno.errorcode[error.errno]} True"
        for fd in held:
            os.close(fd)
        assert set(leftovers.fds()) <= before | {leftovers.kept_fd()}
        assert nsbox.run(["true"], policy=chosen).returncode == 0
        return result

    results = [in_fork(lambda free=free: attempt(free)) for free in range(16)]
    assert set(results) <= {"started", "EMFILE True"}, results
    assert results[0] == results[1] == "EMFILE True"  # two for the caller; the set-up makes room in a table of its own
    first = results.index("started")
    assert set(results[first:]) == {"started"}, results
    assert first <= (10 if pipes else 4), f"{first} free descriptors are needed for a spawn"


def as_nobody(function: Callable[[], Any]) -> Any:
    """Run a function in a fork as an ordinary user with no other processes, if this is root."""

    def run() -> Any:
        os.chdir("/")
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(_SPARE, _SPARE, _SPARE)
            os.setresuid(_SPARE, _SPARE, _SPARE)
            ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: its /proc files are its own again
        return function()

    return in_fork(run)


def test_no_processes_left() -> None:
    """RLIMIT_NPROC reached: SetupError with EAGAIN and a hint that names the limit; it works again with a higher one."""

    def run() -> list[Any]:
        policy = Policy.host()
        assert nsbox.run(["true"], policy=policy).returncode == 0
        soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
        resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))
        before = sorted(os.listdir("/proc/self/fd"))
        try:
            nsbox.run(["true"], policy=policy)
        except SetupError as error:
            found = [error.errno, error.hint]
        else:
            found = [0, "started"]
        assert sorted(os.listdir("/proc/self/fd")) == before
        resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))
        return [*found, nsbox.run(["true"], policy=policy).returncode]

    number, hint, again = as_nobody(run)
    assert number == errno.EAGAIN
    assert "RLIMIT_NPROC" in hint
    assert again == 0


@pytest.mark.parametrize("limit", range(2, 6))
def test_few_processes_left(limit: int) -> None:
    """With some more processes than that each of the set-up's own may be the one too many: the same error, or it works."""

    def run() -> str:
        before = len(_own_processes())
        _soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
        resource.setrlimit(resource.RLIMIT_NPROC, (before + limit - 1, hard))
        try:
            with nsbox.Popen(["true"], policy=Policy.host(), stdin=subprocess.DEVNULL):
                return "started"
        except SetupError as error:
            assert "RLIMIT_NPROC" in error.hint, str(error)
            return errno.errorcode[error.errno]

    assert as_nobody(run) in ("started", "EAGAIN")


def _own_processes() -> list[int]:
    uid = str(os.getuid())
    return [pid for pid in leftovers.processes() if leftovers.status(pid).get("Uid", "x").split()[0] == uid]


def in_user_namespace(function: Callable[[], Any]) -> Any:
    """Run a function in a fork that is uid 0 of a new user namespace."""

    def run() -> Any:
        uid, gid = os.geteuid(), os.getegid()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWUSER) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
        return function()

    return in_fork(run)


def test_user_namespaces_forbidden(policy: Policy) -> None:
    """user.max_user_namespaces is 0: UnavailableError that names the sysctl and what to set."""

    def run() -> list[Any]:
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
        nsbox.probe(refresh=True)
        try:
            nsbox.run(["true"], policy=policy)
        except UnavailableError as error:
            return [error.errno == errno.ENOTSUP, str(error), [reason.remedy for reason in error.reasons]]
        return ["started"]

    found = in_user_namespace(run)
    assert found[0] is True, found
    assert "max_user_namespaces" in found[1]
    assert any("sysctl" in remedy for remedy in found[2])


@pytest.mark.parametrize("limit", [0, 1])
def test_user_namespaces_used_up(policy: Policy, limit: int) -> None:
    """The limit is reached between probing and spawning, at the first or the second namespace: SetupError ENOSPC with a hint."""

    def run() -> list[Any]:
        nsbox.probe(refresh=True)
        Path("/proc/sys/user/max_user_namespaces").write_text(str(limit))
        try:
            done = nsbox.run(["true"], policy=policy.with_(uid=5, gid=5))
        except SetupError as error:
            return [error.errno, error.step, error.hint]
        return ["started", done.returncode]

    number, _step, hint = in_user_namespace(run)
    assert number == errno.ENOSPC
    assert "max_user_namespaces" in hint


@pytest.mark.parametrize("name", ["mnt", "pid", "net", "ipc", "uts", "cgroup"])
def test_other_namespaces_used_up(policy: Policy, name: str) -> None:
    """The same for the other kinds of namespaces: SetupError ENOSPC, and a hint that leads to the limit."""

    def run() -> list[Any]:
        nsbox.probe(refresh=True)
        Path(f"/proc/sys/user/max_{name}_namespaces").write_text("0")
        try:
            nsbox.run(["true"], policy=policy)
        except SetupError as error:
            return [error.errno, error.step, error.hint]
        return [0, "started", ""]

    number, step, hint = in_user_namespace(run)
    assert number == errno.ENOSPC, step
    assert "sysctl user" in hint


def test_no_memory_for_the_arena(policy: Policy) -> None:
    """RLIMIT_AS that leaves no room for a large plan's work space: MemoryError or OSError, no crash."""

    def run() -> str:
        nsbox.run(["true"], policy=policy)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 16), resource.RLIM_INFINITY))
        try:
            nsbox.run(["true"], policy=policy, stdin=subprocess.DEVNULL)
        except (MemoryError, OSError) as error:
            return type(error).__name__
        return "started"

    assert in_fork(run) in ("started", "MemoryError", "OSError", "SetupError")


def test_file_size_limit_of_the_caller(policy: Policy) -> None:
    """RLIMIT_FSIZE 0 in the caller, which forbids any write to a file: an error or a start, but the caller isn't killed."""

    def run() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        try:
            return f"started {nsbox.run(['true'], policy=policy).returncode}"
        except OSError as error:
            return type(error).__name__

    found = in_fork(run)
    assert found in ("started 0", "SetupError")
