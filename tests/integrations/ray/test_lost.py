"""Drivers and actors that are killed while code runs in their sandboxes: nothing of it is left, and Ray goes on."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

PROGRAM = str(Path(__file__).with_name("lost_driver.py"))
LONG = 240  # seconds: a limit that only something broken reaches

pytestmark = pytest.mark.timeout(900)


class Cluster:
    """A Ray of its own process, to which drivers connect."""

    def __init__(self, short: Path, env: dict[str, str]) -> None:
        self.tmp, self.env = short / "tmp", env
        self.errors = open(short / "errors", "w+")  # noqa: SIM115  (closed by close())
        self.process = self.start("cluster", str(short), stdin=subprocess.PIPE)
        self.address = ""

    def await_start(self) -> None:
        """Wait until Ray runs; that may fail, as Ray has limits of its own, so the cluster is to be closed in any case."""
        self.address = self.said(self.process)

    def start(self, *words: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        command = [sys.executable, PROGRAM, *words]
        pipes = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": self.errors}
        return subprocess.Popen(command, env=self.env, cwd=self.tmp.parent, text=True, **pipes)  # type: ignore[call-overload,no-any-return]

    def said(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        logs = self.tmp.parent / "ray/session_latest/logs"
        files = [self.tmp.parent / "errors", *logs.glob("raylet.*"), *logs.glob("gcs_server.*")]
        assert line, "\n".join(f"{file.name}: {file.read_text()[-3000:]}" for file in files)
        return line

    def beats(self) -> list[Path]:
        """Return the files that running code writes to, each in a directory of its own."""
        return [file for file in self.tmp.glob("nsbox-*/beat") if file.exists()]

    def in_actors(self) -> set[psutil.Process]:
        """Return the processes below Ray's workers, which are those of sandboxes."""
        found: set[psutil.Process] = set()
        for ray in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if "::_Actor" in ray.name() or "::_Actor" in " ".join(ray.cmdline()):
                    found.update(ray.children(recursive=True))
            except psutil.Error:  # has ended meanwhile
                pass
        return found

    def check(self) -> None:
        """Have a second driver compute something."""
        driver = self.start("check", self.address)
        with driver:
            assert json.loads(self.said(driver)) == [math.factorial(n) for n in range(10)]
        assert driver.returncode == 0

    def close(self) -> None:
        with self.process:
            assert self.process.stdin is not None
            self.process.stdin.close()
        self.errors.close()


def until(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + LONG
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def cluster(short: Path, env: dict[str, str]) -> Iterator[Cluster]:
    with contextlib.closing(Cluster(short, env)) as made:
        made.await_start()
        yield made


def assert_nothing_left(cluster: Cluster, processes: set[psutil.Process]) -> None:
    """Wait until nothing of the sandboxes is there: no process, directory or mount."""
    _, alive = psutil.wait_procs(list(processes), timeout=LONG)
    assert not alive
    until(lambda: not cluster.in_actors())
    until(lambda: not list(cluster.tmp.glob("nsbox-*")))
    assert str(cluster.tmp) not in Path("/proc/self/mountinfo").read_text()


def test_killed_driver(cluster: Cluster) -> None:
    """Killed while code runs on two actors, and at moments that nobody chose: then a second driver has its results."""
    for delay in (None, random.uniform(0, 2), random.uniform(2, 6)):
        driver = cluster.start("victim", cluster.address)
        with driver:
            if delay is None:
                until(lambda: len(cluster.beats()) == 2)
            else:
                time.sleep(delay)
            processes = cluster.in_actors()
            assert delay is not None or len(processes) >= 2
            driver.kill()
        assert driver.returncode == -signal.SIGKILL
        assert_nothing_left(cluster, processes)
    cluster.check()
    assert_nothing_left(cluster, set())


def test_killed_actor(cluster: Cluster) -> None:
    """Its process is killed while code runs that has made directories which nobody can enter: nothing is left."""
    driver = cluster.start("victim", cluster.address)
    with driver:
        until(lambda: len(cluster.beats()) == 2)
        for file in cluster.beats():
            (file.parent / "closed" / "deep").mkdir(parents=True)
            (file.parent / "closed").chmod(0)
        processes = cluster.in_actors()
        workers = {process.ppid() for process in processes} - {process.pid for process in processes}
        assert len(workers) == 2
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        assert driver.wait(LONG) == 1  # ray.get() has raised RayActorError
    assert_nothing_left(cluster, processes)
    cluster.check()
