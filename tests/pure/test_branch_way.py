"""BranchWay: what it does about an interpreter that ends while it is asked for a branch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from nsbox import Policy
from nsbox._base.errors import SetupError
from nsbox._interpreter.branch import EndedError, Lost, SilentError
from nsbox._python.way import BranchWay


class Interpreter:
    """It makes no branch. Its connections have gone; that it has ended is known after a wait alone."""

    def __init__(self, error: Lost) -> None:
        self.error, self.is_usable = error, True

    def take(self, *, is_kernel: bool) -> Any:
        raise self.error

    def await_end(self) -> None:
        self.is_usable = False

    def give_up(self, why: str) -> None:
        self.is_usable = False


class Supply:
    """Returns one interpreter until it is known to be of no use, and then another one. It makes the errors of each."""

    def __init__(self, *errors: Lost) -> None:
        self.errors = list(errors)
        self.made: list[Interpreter] = []

    def interpreter(self, *_: object) -> Interpreter:
        if not self.made or not self.made[-1].is_usable:
            self.made.append(Interpreter(self.errors.pop(0)))
        return self.made[-1]


class Reached(Lost):
    """Another interpreter was asked."""


def spawn(supply: Supply) -> None:
    command = SimpleNamespace(preexec=None, uid=None, gid=None, groups=None, flags=-1, stdio=(0, 1, 2))
    start: Any = SimpleNamespace(command=command, prepared=None)
    any_supply: Any = supply
    BranchWay(Policy(), any_supply, b"", []).spawn(start)


@pytest.mark.parametrize("kind", [EndedError, SilentError])
def test_another_interpreter(kind: type[Lost]) -> None:
    """It isn't asked again once its connections have gone, even if its pidfd doesn't report its end yet."""
    supply = Supply(kind("it was killed"), Reached("the other one"))
    with pytest.raises(SetupError, match="the other one"):
        spawn(supply)
    assert len(supply.made) == 2


def test_a_lost_branch() -> None:
    """One that has lost a branch alone is asked for another."""
    supply = Supply(Lost("it has ended"))
    with pytest.raises(SetupError, match="it has ended, time and again"):
        spawn(supply)
    assert len(supply.made) == 1
