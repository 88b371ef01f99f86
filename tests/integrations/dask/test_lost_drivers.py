"""Drivers that are killed while code runs on workers: nothing of it is left, and the workers go on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from dask_functions import running, scratch_policy
from distributed import Client

from nsbox.integrations import dask as contained

Cluster = Callable[..., Client]
LONG = 120  # seconds: a limit that only something broken reaches


def start(directory: Path, *words: str) -> subprocess.Popen[str]:
    program = str(Path(__file__).with_name("dask_driver.py"))
    return subprocess.Popen([sys.executable, program, *words], cwd=directory, stdout=subprocess.PIPE, text=True)


def until(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + LONG
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def beats(directory: Path) -> list[Path]:
    """Return the files that code has written to."""
    return [file for file in directory.rglob("beat-*") if file.exists() and file.read_text()]


def test_killed_driver(cluster: Cluster, workspace: Path) -> None:
    """Killed while code runs on two workers, and at moments that nobody chose: a second driver has its results."""
    client = cluster()
    workers = client.run(os.getpid)
    for delay in (None, random.uniform(0, 2), random.uniform(2, 5)):
        driver = start(workspace, "connected", client.scheduler.address)
        with driver:
            if delay is None:
                until(lambda: len(beats(workspace)) == 2)
            else:
                time.sleep(delay)
            driver.kill()
        assert driver.returncode == -signal.SIGKILL
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
    driver = start(tmp_path, "alone", str(scratch))
    with driver:
        until(lambda: len(beats(scratch)) == 2)
        processes = psutil.Process(driver.pid).children(recursive=True)
        driver.kill()
    assert len(processes) > 4
    assert not psutil.wait_procs(processes, timeout=LONG)[1]
    assert str(scratch) not in Path("/proc/self/mountinfo").read_text()
    left = list(scratch.rglob("nsbox-*"))
    assert len(left) == 2  # in the directories of Dask's workers
    again = start(tmp_path, "alone", str(scratch))
    with again:
        until(lambda: len(set(beats(scratch))) >= 2 and not any(path.exists() for path in left))
        processes = psutil.Process(again.pid).children(recursive=True)
        again.kill()
    assert not psutil.wait_procs(processes, timeout=LONG)[1]
