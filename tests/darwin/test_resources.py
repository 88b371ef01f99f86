"""What running many commands costs a caller on a Mac: no memory, no descriptors; and how long one takes, printed."""

from __future__ import annotations

import gc
import statistics
import subprocess
import time
from collections.abc import Callable

import psutil
import pytest

import nsbox

pytestmark = pytest.mark.darwin

TRUE = ["/usr/bin/true"]
MARGIN = 8 << 20  # bytes: what an allocator keeps differs by a few pages from run to run; a leaked profile is more


def _times(start: Callable[[], object], count: int) -> float:
    """Return the median time of one run, in milliseconds."""
    found = []
    for _ in range(count):
        began = time.perf_counter()
        start()
        found.append(time.perf_counter() - began)
    return 1000 * statistics.median(found)


def test_nothing_grows(policy: nsbox.Policy) -> None:
    """After 200 commands this process has as many descriptors as before, and no more memory to speak of."""
    process = psutil.Process()
    for _ in range(50):  # what is only made once is made by now
        nsbox.run(TRUE, policy=policy)
    gc.collect()
    fds, memory = process.num_fds(), process.memory_info().rss
    for _ in range(200):
        nsbox.run(TRUE, policy=policy)
    gc.collect()
    assert process.num_fds() == fds
    assert process.memory_info().rss - memory < MARGIN


def test_many_policies(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nor do policies that are used once each leave their profiles behind."""
    process = psutil.Process()
    directories = [tmp_path_factory.mktemp("one") for _ in range(150)]
    for directory in directories[:100]:
        nsbox.run(TRUE, policy=nsbox.Policy.workspace(directory))
    gc.collect()
    fds, memory = process.num_fds(), process.memory_info().rss
    for directory in directories[100:]:
        nsbox.run(TRUE, policy=nsbox.Policy.workspace(directory))
    gc.collect()
    assert process.num_fds() == fds
    assert process.memory_info().rss - memory < MARGIN


def test_failures_leave_nothing(policy: nsbox.Policy) -> None:
    """Nor do spawns that fail."""
    process = psutil.Process()
    counts = []
    for _ in range(2):
        for _ in range(20):
            with pytest.raises(FileNotFoundError):
                nsbox.run(["/nowhere/program"], policy=policy)
        gc.collect()
        counts.append(process.num_fds())
    assert counts[0] == counts[1]
    assert not process.children()


def test_latency(policy: nsbox.Policy, capsys: pytest.CaptureFixture[str]) -> None:
    """How long a command takes is printed, against plain subprocess and sandbox-exec; it decides nothing."""
    by_exec = ["/usr/bin/sandbox-exec", "-p", "(version 1)(allow default)", *TRUE]
    plain = _times(lambda: subprocess.run(TRUE, check=True), 30)
    system = _times(lambda: subprocess.run(by_exec, check=True), 30)
    nsbox.run(TRUE, policy=policy)
    ours = _times(lambda: nsbox.run(TRUE, policy=policy, check=True), 30)
    with capsys.disabled():
        print(f"\n{ours:.1f} ms: {ours / plain:.2f}x plain subprocess, {ours / system:.2f}x sandbox-exec")
