"""What a failed command of a task is told: what a task opens, and what it can't."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nsbox import Task
from nsbox._tools import space


def test_roots_directories(task: Task) -> None:
    """What to do instead, and nothing about a directory that is no longer read-only."""
    if os.geteuid() == 0:
        pytest.skip("root may write there")
    done = task.shell("touch /usr/lib/nsbox-test")
    assert [hint.kind for hint in done.why] == ["permissions"]
    assert "'/usr/lib/nsbox-test' lies in a directory of root's" in done.why[0].message
    assert "pip install --user" in done.why[0].message


def test_what_may_not_be_read(task: Task) -> None:
    """Where a file can't be read, advice on where to install says nothing; a later line gets it all the same."""
    if os.geteuid() == 0:
        pytest.skip("root's is hidden")
    done = task.shell("cat /etc/shadow")
    assert [hint.kind for hint in done.why] == ["permissions"]
    assert "'/etc/shadow' let this user neither read nor change it" in done.why[0].message
    assert "nstall" not in done.why[0].message
    done = task.shell("cat /etc/shadow /etc/gshadow /etc/shadow; touch /usr/lib/nsbox-test")
    assert len(done.why) == 2
    assert "'/usr/lib/nsbox-test' lies in a directory of root's" in done.why[-1].message


def test_the_root(task: Task) -> None:
    done = task.shell("mkdir /app")
    assert "name a directory in write=" in done.why[-1].message
    assert done.why[-1].kind == "read-only"


def test_a_full_store(task: Task, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system that keeps what commands write; /tmp, and others with room, have other hints."""
    fails = "echo 'cp: error writing x: No space left on device' >&2; exit 1"
    assert "no-space" not in [hint.kind for hint in task.shell(fails).why]
    monkeypatch.setattr(space, "LITTLE", 1 << 62)
    done = task.shell(fails)
    assert [hint.kind for hint in done.why] == ["no-space"]
    assert str(store) in done.why[0].message


def test_packages_of_the_systems_python(task: Task) -> None:
    """Elsewhere they are told to be read-only; here they may be installed."""
    done = task.shell("echo 'error: externally-managed-environment' >&2; exit 1")
    assert [hint.kind for hint in done.why] == ["installation"]
    assert "--break-system-packages" in done.why[0].message


def test_success_needs_none(task: Task) -> None:
    assert task.shell("echo Permission denied: /usr/lib/x").why == ()


@pytest.mark.as_root("others may not change the system's directories in a task")
def test_a_program_that_was_removed(task: Task) -> None:
    """It is on the host, and its directory is in PATH: it isn't said to be somewhere else."""
    done = task.shell("rm /usr/bin/cksum; cksum file")
    assert [hint.kind for hint in done.why] == ["missing-program"]
    assert done.why[0].message == (
        "'cksum' is /usr/bin/cksum outside, but the command didn't find it: an earlier command may have removed it, or "
        "this one has set PATH"
    )
