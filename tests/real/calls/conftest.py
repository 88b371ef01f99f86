"""What starts tool calls: a Sandbox, and a session of one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nsbox import Policy, Sandbox, Session


@pytest.fixture(params=["sandbox", "session"])
def box(request: pytest.FixtureRequest, policy: Policy) -> Iterator[Sandbox | Session]:
    with Sandbox(policy, stock=0) as box:  # no thread opens descriptors meanwhile
        if request.param == "sandbox":
            yield box
        else:
            with box.session() as session:
                yield session
