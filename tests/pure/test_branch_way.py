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

    def __init__(self, error: Exception) -> None:
        self.error, self.is_usable = error, True

    def fits(self, prepared: object) -> bool:
        return self.is_usable

    def take(self, *, is_kernel: bool) -> Any:
        raise self.error

    def await_end(self) -> None:
        self.is_usable = False

    def give_up(self, why: str) -> None:
        self.is_usable = False


class Supply:
    """Returns one interpreter until it is known to be of no use, and then another one. errors: what each one raises."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.made: list[Interpreter] = []

    def interpreter(self, *_: object) -> Interpreter:
        if not self.made or not self.made[-1].is_usable:
            self.made.append(Interpreter(self.errors.pop(0)))
        return self.made[-1]


class Reached(Exception):
    """Another interpreter was asked."""


def spawn(supply: Supply) -> None:
    command = SimpleNamespace(preexec=None, uid=None, gid=None, groups=None, flags=-1, stdio=(0, 1, 2))
    start: Any = SimpleNamespace(command=command, prepared=None)
    any_supply: Any = supply
    BranchWay(Policy(), any_supply, b"", []).spawn(start)


@pytest.mark.parametrize("kind", [EndedError, SilentError])
def test_another_interpreter(kind: type[Lost]) -> None:
    """It isn't asked again once its connections have gone, even if its pidfd doesn't report its end yet."""
    with pytest.raises(Reached):
        spawn(Supply(kind("it was killed"), Reached()))


def test_lost_branches() -> None:
    """The branches of a killed interpreter may end before it; that doesn't use up the attempts with others."""
    supply = Supply(Lost("it has ended"), Reached())
    first, count = Interpreter(Lost("it has ended")), 0

    def take(*, is_kernel: bool) -> Any:
        nonlocal count
        count += 1
        raise Lost("it has ended") if count < 5 else EndedError("the interpreter has ended")

    first.take = take  # type: ignore[method-assign]
    supply.made.append(first)
    supply.errors.pop(0)
    with pytest.raises(Reached):
        spawn(supply)
    assert count == 5


@pytest.mark.parametrize("kind", [EndedError, Lost])
def test_no_end_of_it(kind: type[Lost]) -> None:
    """At last there is an error."""
    supply = Supply(*(kind("it has ended") for _ in range(9)))
    with pytest.raises(SetupError, match="it has ended, time and again"):
        spawn(supply)
