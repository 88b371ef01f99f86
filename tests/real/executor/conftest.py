"""Fixtures: an executor, warm for all tests of one file that don't end it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nsbox import Policy, SandboxExecutor


@pytest.fixture
def executor(policy: Policy) -> Iterator[SandboxExecutor]:
    with SandboxExecutor(policy, max_workers=2) as made:
        yield made
