"""Warm interpreters without a sandbox, of each version that this machine has."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from nsbox_testing.guests import Branch, Interpreter, interpreters

THOROUGH = bool(int(os.environ.get("NSBOX_THOROUGH", "0")))


def _versions() -> list[str]:
    """Return the versions to try: the oldest and the newest of this machine's; thoroughly: all."""
    found = sorted(interpreters(), key=lambda version: int(version.split(".")[1]))
    return found if THOROUGH else sorted({found[0], found[-1]}, key=found.index)


@pytest.fixture(scope="module", params=_versions())
def python(request: pytest.FixtureRequest) -> str:
    """The path of an interpreter."""
    return interpreters()[request.param]


@pytest.fixture
def start(python: str) -> Iterator[Callable[..., Interpreter]]:
    """Start an interpreter; all that were started end with the test."""
    started: list[Interpreter] = []

    def begin(**config: Any) -> Interpreter:
        started.append(Interpreter(python, **config))
        return started[-1]

    yield begin
    for interpreter in started:
        interpreter.close()


@pytest.fixture(scope="module")
def shared(python: str, temporary: str, apart: None) -> Iterator[Interpreter]:
    """An interpreter for a module's tests."""
    interpreter = Interpreter(python)
    try:
        assert interpreter.hello is not None and interpreter.hello.get("ready") is True, interpreter.hello
        yield interpreter
    finally:
        interpreter.close()


@pytest.fixture
def warm(shared: Interpreter) -> Iterator[Interpreter]:
    """An interpreter that is ready, whose branches end with the test."""
    yield shared
    shared.end_branches()


@pytest.fixture
def branch(warm: Interpreter) -> Branch:
    """A branch for one piece of code."""
    return warm.branch()


@pytest.fixture
def kernel(warm: Interpreter) -> Branch:
    """A branch that stays."""
    return warm.kernel()
