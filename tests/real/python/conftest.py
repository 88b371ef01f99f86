"""Fixtures: a Sandbox with a Python, warm for all tests of one file that don't end it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nsbox import Policy, Python, Sandbox


@pytest.fixture
def box(policy: Policy) -> Iterator[Sandbox]:
    with Sandbox(policy, stock=0) as made:
        yield made


@pytest.fixture
def py(box: Sandbox) -> Python:
    """A warm interpreter of the policy of the fixture `workspace`."""
    return box.python()
