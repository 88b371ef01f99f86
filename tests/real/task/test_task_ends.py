"""Tasks: how they end, with nothing left of them."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from nsbox_testing.running import Orphans, in_fork
from nsbox_testing.trees import taken

from nsbox import Sandbox, Task
from nsbox import transaction as transactions


def test_close_ends_all(task: Task, filled: Path, store: Path) -> None:
    before = taken(filled)
    running = task.Popen(["sleep", "1000"])
    task.shell("echo x > file; mkdir -p a/b; chmod 0 a; sleep 1000 >/dev/null 2>&1 &", check=True)
    pid = task._open_way().pid
    task.close()
    task.close()
    assert running.wait() == -signal.SIGKILL
    assert not os.path.exists(f"/proc/{pid}/root")
    assert taken(filled) == before
    assert os.listdir(store) == ["lock"]
    with pytest.raises(ValueError, match=r"the task is over: .* begin another by box.task\(\)"):
        task.shell("true")


def test_it_ends_with_its_sandbox(box: Sandbox, store: Path) -> None:
    task = box.task(dir=store)
    task.shell("echo x > x", check=True)
    box.close()
    with pytest.raises(ValueError, match="the task is over"):
        task.shell("true")
    assert os.listdir(store) == ["lock"]


def test_unclosed(box: Sandbox, store: Path) -> None:
    task = box.task(dir=store)
    with pytest.warns(ResourceWarning, match="unclosed <nsbox.Task of"):
        del task
        gc.collect()
    assert os.listdir(store) == ["lock"]


def test_a_fork_has_none_of_it(task: Task) -> None:
    """A forked child can't use it, and its end drops nothing."""

    def child() -> None:
        for use in (lambda: task.run("true"), task.diff, task.snapshot, task.reset):
            with pytest.raises(ValueError, match="is over"):
                use()
        task.close()

    task.shell("echo x > x", check=True)
    in_fork(child)
    assert [str(change) for change in task.diff()] == ["A x"]
    assert task.shell("cat x").stdout == "x\n"


LIVE = """
import os, sys, nsbox
box = nsbox.Sandbox(nsbox.Policy.workspace(sys.argv[1]), stock=0)
task = box.task(dir=sys.argv[2])
task.shell("echo x > x; mkdir -p a/b; chmod 0 a", check=True)
task.snapshot()
task.shell("sleep 1000 >/dev/null 2>&1 &", check=True)
print(task._open_way().pid, flush=True)
sys.stdin.read()
"""


def test_a_killed_caller(filled: Path, store: Path, orphans: Orphans) -> None:
    """The kernel ends the processes; the next recover() removes the files, which were never synced."""
    before = taken(filled)
    command = [sys.executable, "-P", "-c", LIVE, str(filled), str(store)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        pid = int(caller.stdout.readline())
        caller.kill()
    orphans.reap()
    assert not os.path.exists(f"/proc/{pid}/root")
    assert len(os.listdir(store)) == 2
    transactions.recover(store)
    assert os.listdir(store) == ["lock"]
    assert taken(filled) == before
