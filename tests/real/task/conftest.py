"""Fixtures of the tests of tasks: a workspace with something in it, a directory to read, and a task."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nsbox import Policy, Sandbox, Task, UnavailableError


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def filled(workspace: Path) -> Path:
    """The workspace, with something in it."""
    (workspace / "directory").mkdir()
    (workspace / "file").write_text("one\n")
    (workspace / "directory" / "inner").write_text("inner\n")
    return workspace


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """A directory that the policy shows read-only."""
    path = tmp_path / "shown"
    (path / "deep").mkdir(parents=True)
    (path / "text").write_text("the host's\n")
    (path / "deep" / "text").write_text("the host's\n")
    return path


@pytest.fixture
def box(filled: Path, shown: Path) -> Iterator[Sandbox]:
    with Sandbox(Policy.workspace(filled, read=[shown]), stock=0) as made:
        yield made


@pytest.fixture
def task(box: Sandbox, store: Path) -> Iterator[Task]:
    try:
        made = box.task(dir=store)
    except UnavailableError as error:
        if "has no user.* attributes" not in str(error):
            raise
        pytest.skip(str(error))  # tmpfs before Linux 6.6, which is all that some virtual machines have
    with made:
        yield made
