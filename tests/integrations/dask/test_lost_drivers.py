"""Drivers that are killed while code runs on workers: nothing of it is left, and the workers go on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from dask_functions import running, scratch_policy
from distributed import Client

from nsbox.integrations import dask as contained

Cluster = Callable[..., Client]
LONG = 120  # seconds: a limit that only something broken reaches


@contextmanager
def driver_of(directory: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a driver, and kill it at the end."""
    program = str(Path(__file__).with_name("dask_driver.py"))
    with subprocess.Popen([sys.executable, program, *words], cwd=directory, stdout=subprocess.DEVNULL) as driver:
        try:
            yield driver
        finally:
            driver.kill()
    assert driver.returncode == -signal.SIGKILL  # it hadn't ended before


def until(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + LONG
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def beats(directory: Path) -> list[Path]:
    """Return the files that code has written to."""
    try:
        return [file for file in directory.rglob("beat-*") if file.read_text()]
    except FileNotFoundError:  # Dask removes what another cluster has left there, just now
        return []


def test_killed_driver(cluster: Cluster, workspace: Path) -> None:
    """Killed while code runs on two workers, and at moments that nobody chose: a second driver has its results."""
    client = cluster()
    workers = client.run(os.getpid)
    for delay in (None, random.uniform(0, 2), random.uniform(2, 5)):
        with driver_of(workspace, "connected", client.scheduler.address):
            if delay is None:
                until(lambda: len(beats(workspace)) == 2)
            else:
                time.sleep(delay)
        until(lambda: len(client.scheduler_info()["workers"]) == 2 and not any(client.run(running).values()))
        before = {file: file.read_text() for file in beats(workspace)}
        time.sleep(0.5)
        assert {file: file.read_text() for file in beats(workspace)} == before
        for file in before:
            file.unlink()
    assert client.run(os.getpid) == workers
    client.register_plugin(contained.SandboxPlugin(scratch_policy))
    results = contained.map(client, [("n * n", {"n": n}) for n in range(50)])
    assert [(one.value, one.attempt) for one in results] == [(n * n, 1) for n in range(50)]
    below = [one for pid in workers.values() for one in psutil.Process(pid).children(recursive=True)]
    assert below  # the warm interpreters
    here = client.cluster
    client.close()
    here.close()
    assert not psutil.wait_procs(below, timeout=LONG)[1]


def test_killed_driver_with_workers_of_its_own(tmp_path: Path) -> None:
    """They end with it, and all that runs in their sandboxes. The next cluster in the same place removes their files."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with driver_of(tmp_path, "alone", str(scratch)) as driver:
        until(lambda: len(beats(scratch)) == 2)
        processes = psutil.Process(driver.pid).children(recursive=True)
    assert len(processes) > 4
    assert not psutil.wait_procs(processes, timeout=LONG)[1]
    assert str(scratch) not in Path("/proc/self/mountinfo").read_text()
    left = list(scratch.rglob("nsbox-*"))
    assert len(left) == 2  # in the directories of Dask's workers
    with driver_of(tmp_path, "alone", str(scratch)) as again:
        until(lambda: len(set(beats(scratch))) >= 2 and not any(path.exists() for path in left))
        processes = psutil.Process(again.pid).children(recursive=True)
    assert not psutil.wait_procs(processes, timeout=LONG)[1]
