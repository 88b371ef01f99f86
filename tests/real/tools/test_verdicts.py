"""What is said of how a command has ended: never 0 for what isn't known, and the limit that it was."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from nsbox_testing.running import python

import nsbox
from nsbox import Limits, Policy, Sandbox
from nsbox._core.orphans import status_by_pidfd
from nsbox._lifetime.usage import Usage
from nsbox._tools.verdicts import ended, limited


def knows_exits() -> bool:
    """Say if the kernel tells how a process ended that other code has reaped (Linux 6.15)."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(7)
    pidfd = os.pidfd_open(pid)
    os.close(writer)
    os.close(reader)
    with contextlib.suppress(ChildProcessError):  # where the kernel reaps it, when it has
        os.waitpid(pid, 0)
    try:
        return status_by_pidfd(pidfd) == 7 << 8
    finally:
        os.close(pidfd)


@pytest.fixture
def ignored() -> Iterator[None]:
    """SIGCHLD is ignored, as it is by some launchers for all that they start."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)


STATUSES = {"exit 7": 7, "kill -TERM $$": -15, "sleep 0.2; exit 9": 9, "exit 0": 0}


@pytest.mark.parametrize("way", ["cold", "warm", "landlock", "host"])
@pytest.mark.parametrize("line", STATUSES)
def test_children_that_the_kernel_reaps(policy: Policy, ignored: None, way: str, line: str) -> None:
    chosen: Policy | Sandbox = {"host": Policy.host(), "warm": Sandbox(policy, stock=1)}.get(way) or (
        policy.with_(backend="landlock", require="nothing") if way == "landlock" else policy
    )
    known = knows_exits()
    for _ in range(5):
        process = nsbox.Popen(["sh", "-c", line], policy=chosen)
        status = process.wait()
        is_lost = process.sandbox.usage.cause == "unknown"
        # Root's commands under Policy.host() are forked, and may end before anybody has their pidfd.
        assert status == (255 if is_lost else STATUSES[line])
        assert is_lost == (not known) or way == "host"
    if isinstance(chosen, Sandbox):
        chosen.close()


def test_it_isnt_inherited(policy: Policy, ignored: None) -> None:
    """A program that waits for children of its own can tell how they end."""
    code = "import signal; print(signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL)"
    assert nsbox.run(python(code), policy=policy, stdout=-1).stdout == b"True\n"


def test_the_command_line(workspace: Path) -> None:
    """`nsbox run`, started by a process that ignores SIGCHLD."""
    words = [sys.executable, "-P", "-m", "nsbox", "run", "-w", str(workspace), "--", "sh", "-c", "exit 7"]
    start = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    assert subprocess.run([sys.executable, "-c", start, *words]).returncode == 7


def test_no_descriptor_is_left(policy: Policy, ignored: None) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        nsbox.run(["true"], policy=policy)
        with pytest.raises(FileNotFoundError):
            nsbox.run(["nonexistent"], policy=policy)
    assert len(os.listdir("/proc/self/fd")) == before


# ---- limits


def test_processor_time(workspace: Path) -> None:
    """The kernel counts ticks, getrusage(2) says something else; a shell tells 128 and the signal's number."""
    ignores = "import signal; signal.signal(24, signal.SIG_IGN)\nwhile True: pass"
    policy = Policy.workspace(workspace, limits=Limits(cpu_seconds=1))
    with Sandbox(policy, stock=0) as box:
        for line in ("while :; do :; done", f"{sys.executable} -c 'while True: pass'; exit $?"):
            result = box.shell(line)
            assert result.returncode in (-24, 152)
            assert [hint.kind for hint in result.why] == ["limit"]
            assert "limits.cpu_seconds=1" in result.why[0].message
        program, *args = python(ignores)
        result = box.exec(program, args)
        assert (result.returncode, result.why[0].kind) == (-9, "limit")
        assert "limits.cpu_seconds=1" in result.why[0].message


def used(seconds: float, cause: str = "signal", oom_kills: int = 0) -> Usage:
    return Usage(9.0, seconds, 0.0, 1, cause, True, None, oom_kills)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limits", "status", "usage", "expected"),
    [
        (Limits(cpu_seconds=10), -9, used(9.4), "cpu_seconds=10"),
        (Limits(cpu_seconds=10), 137, used(9.4), "cpu_seconds=10"),
        (Limits(cpu_seconds=10), -9, used(1), "killed by SIGKILL, by itself or by another process"),
        (Limits(total_memory="1G"), -9, used(1, "limit", 1), "total_memory=1 GiB"),
        (Limits(total_memory="1G"), 2, used(1, "exit", 1), "total_memory=1 GiB"),
        (Limits(total_memory="1G", cpu_seconds=1), 137, used(3, "exit", 1), "total_memory"),
        (Limits(memory="1G"), -11, used(1), "limits.memory=1 GiB"),
        (Limits(memory="1G"), 139, used(1), "limits.memory=1 GiB"),
        (Limits(memory="1G"), 133, used(1), "limits.memory=1 GiB"),
        (Limits(file_size="1M"), 153, used(1), "limits.file_size=1 MiB"),
        (Limits(), 139, used(1), "it crashed (SIGSEGV)"),
        (Limits(), 255, used(1, "unknown"), "isn't known"),
    ],
)
def test_causes(limits: Limits, status: int, usage: Usage, expected: str) -> None:
    policy = Policy.host(limits=limits)
    assert any(expected in hint.message for hint in ended(policy, status, usage, None))


@pytest.mark.parametrize(
    "said",
    [
        "Fatal process out of memory: Failed to reserve virtual memory for CodeRange",
        "Error: Could not reserve enough space for object heap",
        "There is insufficient memory for the Java Runtime Environment to continue.",
        "java.lang.OutOfMemoryError: Java heap space",
        "fatal error: failed to reserve page summary memory",
        "runtime: cannot allocate memory",
        "memory allocation of 1073741824 bytes failed",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "error while loading shared libraries: libc.so.6: failed to map segment from shared object",
        "virtual memory exhausted: Cannot allocate memory",
        "Error: cannot allocate vector of size 7.5 Gb",
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB for an array",
    ],
)
def test_words_of_runtimes(said: str) -> None:
    found = list(limited(Policy.host(limits=Limits(memory="1G")), said))
    assert [hint.kind for hint in found] == ["limit"]
    assert list(limited(Policy.host(), said)) == []


def test_memory_by_exec(workspace: Path) -> None:
    """A program that can't have its memory crashes without a word; the limit is named."""
    policy = Policy.workspace(workspace, limits=Limits(memory="200M"))
    with Sandbox(policy, stock=0) as box:
        for line in (f"{sys.executable} -c 'x = bytearray(10**9)'", "kill -SEGV $$"):
            result = box.shell(line)
            assert any("limits.memory=200 MiB" in hint.message for hint in result.why)


def test_a_limit_on_the_way(workspace: Path) -> None:
    """A line that succeeds at last may have met a limit before: its stderr says so. The control has no such limit."""
    said = "bash: fork: retry: Resource temporarily unavailable"
    for limits, expected in ((Limits(processes=20), ["limit"]), (Limits(), [])):
        policy = Policy.workspace(workspace, limits=limits)
        found = nsbox.hints(policy, 0, stderr=said, args="work; true", shell="/bin/bash")
        assert [hint.kind for hint in found] == expected
    policy = Policy.workspace(workspace, limits=Limits(open_files=8))
    with Sandbox(policy) as box:
        result = box.shell("python3 -c 'files = [open(\"/dev/null\") for _ in range(9)]'; true")
        assert result.returncode == 0
        assert [hint.message for hint in result.why] == ["a limit may have been reached: limits.open_files=8"]


def test_its_own_kill(workspace: Path) -> None:
    """Where a SIGKILL came from isn't known, and the hint doesn't pretend that it is."""
    with Sandbox(Policy.workspace(workspace)) as box:
        for line in ("kill -9 $$", "sh -c 'kill -9 $$'; exit $?"):
            (hint,) = box.shell(line).why
            assert hint.kind == "killed" and "by itself or by another process" in hint.message
            assert "no limit of the policy seems to have been reached" in hint.message and "perhaps" in hint.message
