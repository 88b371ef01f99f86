"""Limits as seen from inside."""

from __future__ import annotations

import resource
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing.running import in_fork

import nsbox
from nsbox import Limits, Policy


def test_limits_are_set(inside: Callable[..., Any], policy: Policy) -> None:
    """Each limit is what getrlimit() says inside, soft and hard, and is not the caller's."""
    before = {
        name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in ("AS", "CPU", "FSIZE", "NOFILE")
    }
    limits = Limits(memory="512M", cpu_seconds=30, file_size="1M", open_files=64)
    code = "import resource; report({n: resource.getrlimit(getattr(resource, 'RLIMIT_' + n)) for n in ('AS', 'CPU', 'FSIZE', 'NOFILE')})"
    found = inside(code, policy=policy.with_(limits=limits))
    assert {name: soft for name, (soft, _) in found.items()} == {
        "AS": 512 << 20,
        "CPU": 30,
        "FSIZE": 1 << 20,
        "NOFILE": 64,
    }
    assert all(soft <= hard <= soft + 5 for soft, hard in found.values())
    assert {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in before} == before


def test_file_size_limit(policy: Policy, workspace: Path) -> None:
    """A write beyond file_size ends the command with SIGXFSZ; the file has exactly that size."""
    with (workspace / "out").open("wb") as out:
        done = nsbox.run(
            ["head", "-c", "2M", "/dev/zero"], stdout=out, policy=policy.with_(limits=Limits(file_size="1M"))
        )
    assert done.returncode == -signal.SIGXFSZ
    assert (workspace / "out").stat().st_size == 1 << 20


def test_memory_limit(inside: Callable[..., Any], policy: Policy) -> None:
    """More address space than allowed is MemoryError."""
    code = """
try: bytearray(1 << 30)
except MemoryError: report("refused")
else: report("granted")
"""
    assert inside(code, policy=policy.with_(limits=Limits(memory="512M"))) == "refused"
    assert inside(code) == "granted"


def test_open_files_limit(inside: Callable[..., Any], policy: Policy) -> None:
    """More descriptors than allowed are EMFILE."""
    code = """
held = []
try:
    while True: held.append(os.dup(0))
except OSError as error: report([error.errno, len(held)])
"""
    number, count = inside(code, policy=policy.with_(limits=Limits(open_files=32)))
    assert number == 24
    assert count <= 29


def test_cpu_limit(policy: Policy) -> None:
    """A command that uses more processor time than allowed is killed."""
    done = nsbox.run(["sh", "-c", "while :; do :; done"], policy=policy.with_(limits=Limits(cpu_seconds=1)))
    assert done.returncode in (-signal.SIGKILL, -signal.SIGXCPU)


def test_processes_limit(inside: Callable[..., Any], policy: Policy) -> None:
    """More processes than allowed are EAGAIN; two sandboxes don't count each other's."""
    code = """
import signal
pids, error = [], 0
read, write = os.pipe()
for _ in range(40):
    try: pid = os.fork()
    except BlockingIOError as e: error = e.errno; break
    if pid == 0: os.close(write); os.read(read, 1); os._exit(0)
    pids.append(pid)
report([len(pids), error])
"""
    count, error = inside(code, policy=policy.with_(limits=Limits(processes=12)))
    assert error == 11
    assert 8 <= count <= 12
    with nsbox.Popen(
        ["sh", "-c", "for i in 1 2 3 4 5 6 7 8; do cat <&3 & done; echo x; wait"],
        pass_fds=(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        policy=policy,
    ) as other:
        other.stdout.readline()
        assert inside(code, policy=policy.with_(limits=Limits(processes=12))) == [count, error]
        other.kill()


@pytest.mark.as_root("an ordinary user can have this limit")
def test_processes_limit_refused(policy: Policy) -> None:
    """limits.processes for the kernel's uid 0, which it wouldn't bind, is UnavailableError."""
    with pytest.raises(nsbox.UnavailableError, match="processes"):
        nsbox.run(["true"], policy=policy.with_(limits=Limits(processes=5), ids="full"))


def test_limits_above_the_callers(inside: Callable[..., Any], policy: Policy) -> None:
    """A limit above the caller's own hard limit is no error: the lower one holds."""

    def run() -> list[int]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 50))
        nsbox.probe(refresh=True)
        return inside(
            "import resource; report(resource.getrlimit(resource.RLIMIT_NOFILE))",
            policy=policy.with_(limits=Limits(open_files=5000)),
        )

    before = nsbox.probe(refresh=True)
    found = in_fork(run)
    assert found[1] == 50
    assert nsbox.probe() == before
