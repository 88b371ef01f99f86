"""Fixtures of the tests of transactions: a workspace with something in it, and a transaction on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsbox import Policy, Sandbox, Transaction, UnavailableError


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def filled(workspace: Path) -> Path:
    """The workspace, with something in it."""
    (workspace / "directory").mkdir()
    (workspace / "file").write_text("one\ntwo\nthree\n")
    (workspace / "directory" / "inner").write_text("inner\n")
    os.symlink("file", workspace / "link")
    return workspace


@pytest.fixture
def box(policy: Policy) -> Iterator[Sandbox]:
    with Sandbox(policy, stock=0) as made:
        yield made


@pytest.fixture
def tx(box: Sandbox, filled: Path, store: Path) -> Iterator[Transaction]:
    try:
        made = box.transaction(dir=store)
    except UnavailableError as error:
        if "has no user.* attributes" not in str(error):
            raise
        pytest.skip(str(error))  # tmpfs before Linux 6.6, which is all that some virtual machines have
    with made:
        yield made
