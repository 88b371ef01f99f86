"""Inspect's own checks of a sandbox pass, except those of an exact list."""

from __future__ import annotations

import os
from typing import Any

import pytest
from inspect_ai.util import SandboxUserUnsupportedError
from inspect_ai.util._sandbox import self_check

pytestmark = pytest.mark.anyio

# What can't pass, by name: the error for root, and for an ordinary user. docs/integrations/inspect-ai.md says why.
FAILURES: dict[str, tuple[tuple[type[BaseException], str], tuple[type[BaseException], str]]] = {
    "test_exec_as_user": (
        (AssertionError, "adduser"),  # it needs root's capabilities
        (SandboxUserUnsupportedError, "only if root begins it"),
    ),
}


def test_list() -> None:
    """The list names checks that exist; there are as many checks as the page says."""
    assert FAILURES.keys() <= set(self_check.__all__)
    assert len(self_check.__all__) >= 44


@pytest.mark.parametrize("name", sorted(self_check.__all__))
async def test_self_check(name: str, sandbox_env: Any) -> None:
    """A check passes, or fails as the list says, and in no other way."""
    check = getattr(self_check, name)
    if name not in FAILURES:
        await check(sandbox_env)
        return
    kind, words = FAILURES[name][os.geteuid() != 0]
    with pytest.raises(kind, match=words):
        await check(sandbox_env)
