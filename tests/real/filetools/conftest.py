"""Fixtures for tests of file tools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nsbox import Policy, Sandbox, Session


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A workspace `ws` with a file, a read-only and a hidden directory, and links out of it; and what is outside."""
    for name in ("ws/sub", "ws/ro", "ws/hidden", "outside"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text(f"{name}\n")
    (tmp_path / "ws/out").symlink_to("../outside")
    (tmp_path / "ws/link").symlink_to("sub/file")
    return tmp_path


@pytest.fixture
def ws(tree: Path) -> Path:
    return tree / "ws"


@pytest.fixture
def policy(tree: Path) -> Policy:
    return Policy.workspace(tree / "ws", read=[tree / "ws/ro"], deny=[tree / "ws/hidden"], protected=["SOUL.md"])


@pytest.fixture
def box(policy: Policy) -> Iterator[Sandbox]:
    with Sandbox(policy, stock=0) as made:
        yield made


@pytest.fixture
def s(box: Sandbox) -> Iterator[Session]:
    with box.session() as made:
        yield made
