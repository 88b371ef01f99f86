"""Workers are killed while code runs: no record is lost, and nothing runs twice unless its record says so."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import dask
import pytest
from distributed import Client, KilledWorker

import nsbox
from nsbox.integrations import dask as contained

Cluster = Callable[..., Client]
# Each start of a snippet leaves a file of its own. The first ones of all wait until a worker was killed.
CODE = (
    "import os, tempfile, time\n"
    "tempfile.mkstemp(prefix=f'ran-{n}-', dir='.')\n"
    "while not os.path.exists('go'): time.sleep(0.01)\n"
    "n * n"
)


class Killer(threading.Thread):
    """Kills a worker once both have begun a snippet, then lets the snippets go on."""

    def __init__(self, client: Client, workspace: Path) -> None:
        super().__init__()
        self.workspace = workspace
        self.pids = client.run(os.getpid)
        self.victim = sorted(self.pids)[0]
        self.before: Counter[int] = Counter()

    def run(self) -> None:
        while len(starts(self.workspace)) < len(self.pids):
            time.sleep(0.02)
        self.before = starts(self.workspace)
        os.kill(self.pids[self.victim], signal.SIGKILL)
        time.sleep(0.5)
        (self.workspace / "go").touch()


def starts(workspace: Path) -> Counter[int]:
    """Return how often each snippet was started."""
    return Counter(int(path.name.split("-")[1]) for path in workspace.glob("ran-*"))


@pytest.mark.parametrize("rerun", [True, False])
def test_killed_worker(cluster: Cluster, workspace: Path, rerun: bool) -> None:
    client = cluster()
    client.register_plugin(contained.SandboxPlugin(nsbox.Policy.workspace(workspace)))
    killer = Killer(client, workspace)
    killer.start()
    codes = [(CODE, {"n": n}) for n in range(60)]
    results = list(contained.map(client, codes, batch=5, rerun=rerun))
    killer.join()
    ran = starts(workspace)
    assert len(killer.before) == 2  # both workers had begun one
    assert [result.index for result in results] == list(range(60))
    twice = {n for n, count in ran.items() if count > 1}
    marked = {result.index for result in results if result.attempt > 1}
    assert len(marked) == 5 and len(killer.before.keys() & marked) == 1  # the batch that the dead worker had begun
    assert {result.lost for result in results if result.attempt > 1} == {(killer.victim,)}
    assert twice <= marked
    if rerun:
        assert [result.value for result in results] == [n * n for n in range(60)]
        assert len(twice) == 1
    else:
        assert not twice
        assert {result.cause for result in results if result.index in marked} == {"unknown"}
        assert {result.returncode for result in results if result.index in marked} == {255}
        assert f"a worker that had begun its batch was lost ({killer.victim})" in results[min(marked)].why[0].message
        assert {n: ran[n] for n in range(60) if n not in marked} == {n: 1 for n in range(60) if n not in marked}


def test_dask_gives_up(cluster: Cluster, workspace: Path) -> None:
    """Where Dask raises KilledWorker, what may have run is "unknown"; what had only waited there runs, once."""
    with dask.config.set(
        {"distributed.scheduler.allowed-failures": 0, "distributed.scheduler.worker-saturation": "inf"}
    ):
        client = cluster()
        client.register_plugin(contained.SandboxPlugin(nsbox.Policy.workspace(workspace)))
        killer = Killer(client, workspace)
        killer.start()
        results = list(contained.map(client, [(CODE, {"n": n}) for n in range(30)], batch=1))
        killer.join()
        ran = starts(workspace)
        unknown = [result.index for result in results if result.cause == "unknown"]
        assert len(unknown) == 1 and unknown[0] in killer.before
        assert [result.index for result in results] == list(range(30))
        assert all(result.value == result.index**2 for result in results if result.cause != "unknown")
        assert ran == Counter(range(30))
        (workspace / "go").unlink()
        killer = Killer(client, workspace)
        for path in workspace.glob("ran-*"):
            path.unlink()
        killer.pids = {killer.victim: killer.pids[killer.victim]}
        killer.start()
        future = contained.submit(client, CODE, inputs={"n": 3}, dask={"workers": [killer.victim]})
        with pytest.raises(KilledWorker):
            future.result()
        killer.join()


def test_record_that_was_lost(cluster: Cluster, workspace: Path) -> None:
    """A worker dies after the code has run, and before its record was fetched: the second run says so."""
    (workspace / "go").touch()
    client = cluster()
    client.register_plugin(contained.SandboxPlugin(nsbox.Policy.workspace(workspace)))
    pids = client.run(os.getpid)
    for rerun, due in ((True, (4, "exit")), (False, (None, "unknown"))):
        future = contained.submit(client, CODE, inputs={"n": 2}, rerun=rerun)
        while future.status != "finished":
            time.sleep(0.02)
        (holder,) = client.who_has([future])[future.key]
        if holder not in pids:
            pids = client.run(os.getpid)
        os.kill(pids[holder], signal.SIGKILL)
        while client.who_has([future]).get(future.key) == (holder,):
            time.sleep(0.02)
        result = future.result()
        assert (result.value, result.cause, result.attempt, result.lost) == (*due, 2, (holder,))
    assert starts(workspace) == {2: 3}


def test_nothing_is_left_of_a_killed_worker(cluster: Cluster, workspace: Path) -> None:
    """What ran on a worker that was killed ends with it."""
    client = cluster(n_workers=1)
    client.register_plugin(contained.SandboxPlugin(nsbox.Policy.workspace(workspace)))
    beat = "import time\nn = 0\nwhile True:\n    n += 1\n    open('beat', 'w').write(str(n))\n    time.sleep(0.01)"
    future = contained.submit(client, beat, rerun=False)
    file = workspace / "beat"
    while not (file.exists() and file.read_text()):
        time.sleep(0.02)
    (pid,) = client.run(os.getpid).values()
    os.kill(pid, signal.SIGKILL)
    assert future.result().cause == "unknown"
    before = file.read_text()
    time.sleep(0.5)
    assert file.read_text() == before


def test_example(tmp_path: Path) -> None:
    """The program of the page gets a record for each of its programs, although a worker is killed midway."""
    example = Path(__file__).parents[3] / "examples/integrations/dask_programs.py"
    env = {**os.environ, "DASK_TEMPORARY_DIRECTORY": str(tmp_path)}
    command = [sys.executable, str(example), "--count", "300", "--kill"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    killed, summary, table = done.stdout.splitlines()
    assert killed.startswith("killing tcp://")
    assert re.fullmatch(r"300 programs, \d+ a second; \d+ were run again", summary)
    assert {"6 ZeroDivisionError", "288 status 0"} <= set(table.split(", ")), table
