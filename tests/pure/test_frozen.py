"""Frozen classes: what dataclasses would make of the same fields, as far as it can be told; functions that remember."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import weakref
from typing import Any

import pytest

import nsbox
from nsbox._base.frozen import Frozen, field, fields, frozen, frozen_by_name, remembered, replace


@frozen
class Point(Frozen):
    """Two numbers, checked."""

    x: int
    y: int = 2

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x")


@frozen
class Named(Point):
    """A base's fields come first."""

    name: str = field(default="", repr=False, compare=False)
    length: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", len(self.name))


@frozen
class Bare(Point):
    """A subclass without fields of its own."""


@frozen_by_name
class Options(Frozen):
    """Fields without an order."""

    must: int
    may: tuple[int, ...] = ()


@frozen
class Nothing(Frozen):
    """No fields at all."""


@dataclasses.dataclass(frozen=True)
class _Point:
    x: int
    y: int = 2


@dataclasses.dataclass(frozen=True)
class _Named(_Point):
    name: str = dataclasses.field(default="", repr=False, compare=False)
    length: int = dataclasses.field(init=False, repr=False, compare=False, default=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options:
    must: int
    may: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Nothing:
    pass


PAIRS = [(Point, _Point), (Named, _Named), (Options, _Options), (Nothing, _Nothing)]
VALUES = [Point(1), Named(1, 2, "n"), Bare(1, 3), Options(must=1, may=(2,)), Nothing()]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_told_as_a_dataclass(ours: Any, theirs: Any) -> None:
    """Its fields, their attributes, its signature and its match patterns are a dataclass's."""
    assert dataclasses.is_dataclass(ours)
    attributes = ("name", "type", "default", "init", "repr", "compare", "kw_only")
    said, meant = ([[getattr(f, name) for name in attributes] for f in dataclasses.fields(c)] for c in (ours, theirs))
    assert said == meant
    assert inspect.signature(ours) == inspect.signature(theirs)
    assert ours.__match_args__ == theirs.__match_args__
    assert [f.name for f in fields(ours)] == [f.name for f in dataclasses.fields(theirs)]


@pytest.mark.parametrize(
    ("args", "named"),
    [((1,), {}), ((1, 5), {}), ((), {"x": 3}), ((3,), {"y": 4}), ((1, 2, "n"), {}), ((1,), {"name": "n"})],
)
def test_made_and_shown_alike(args: Any, named: Any) -> None:
    """Arguments by position and by name end where a dataclass puts them; the text is the same."""
    ours, theirs = Named(*args, **named), _Named(*args, **named)
    assert (ours.x, ours.y, ours.name) == (theirs.x, theirs.y, theirs.name)
    assert repr(ours) == repr(theirs).replace("_Named", "Named")


@pytest.mark.parametrize(
    ("cls", "args", "named", "said"),
    [
        (Point, (), {}, "'x'"),
        (Point, (), {"y": 1}, "'x'"),
        (Point, (1, 2, 3), {}, "3 were given"),
        (Point, (1,), {"x": 1}, "multiple values for argument 'x'"),
        (Point, (1,), {"z": 1}, "'z'"),
        (Named, (1,), {"length": 1}, "'length'"),
        (Options, (1,), {}, "1 were given"),
        (Options, (), {}, "'must'"),
        (Nothing, (1,), {}, "1 were given"),
    ],
)
def test_wrong_arguments(cls: Any, args: Any, named: Any, said: str) -> None:
    """Arguments that don't fit are a TypeError that names them."""
    with pytest.raises(TypeError, match=said) as caught:
        cls(*args, **named)
    assert f"{cls.__qualname__}.__init__()" in str(caught.value)


def test_checked() -> None:
    """__post_init__ sees every value, also that of a changed copy."""
    with pytest.raises(ValueError, match="x"):
        Point(-1)
    with pytest.raises(ValueError, match="x"):
        replace(Point(1), x=-1)
    assert Named(1, name="abc").length == 3
    assert replace(Named(1, name="abc"), name="ab").length == 2


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values(value: Any) -> None:
    """A value is equal to its copies of any kind, and hashes like them."""
    copies = [copy.copy(value), copy.deepcopy(value), replace(value), dataclasses.replace(value), value.__replace__()]
    copies += [pickle.loads(pickle.dumps(value, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)]
    for other in copies:
        assert other == value
        assert hash(other) == hash(value)
        assert repr(other) == repr(value)
        assert dataclasses.asdict(other) == {f.name: getattr(value, f.name) for f in fields(value)}
    assert weakref.ref(value)() is value


def test_equality() -> None:
    """Only of the same class, and only by the fields that are compared."""
    assert Point(1) == Point(1, 2) != Point(1, 3)
    assert Named(1, name="a") == Named(1, name="b")
    assert hash(Named(1, name="a")) == hash(Named(1, name="b"))
    assert len({Point(1), Bare(1), Named(1)}) == 3
    assert Point(1) != (1, 2)
    assert Nothing() == Nothing() != Options(must=1)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_no_changes(value: Any) -> None:
    """Nothing can be assigned or deleted, with the error of a frozen dataclass."""
    for f in fields(value):
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot assign to field '{f.name}'"):
            setattr(value, f.name, 1)
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot delete field '{f.name}'"):
            delattr(value, f.name)
    with pytest.raises(AttributeError):
        value.other = 1


def test_attributes_of_a_subclass() -> None:
    """A subclass may have attributes of its own, as one of a frozen dataclass; the fields stay frozen."""

    class Marked(Point):
        mark = 0

    marked = Marked(1)
    marked.mark = 5  # type: ignore[misc]
    assert marked.mark == 5
    del marked.mark
    with pytest.raises(dataclasses.FrozenInstanceError):
        marked.x = 5  # type: ignore[misc]


def test_matched() -> None:
    """Match patterns take fields by position and by name."""
    match Named(1, 5, "n"):
        case Point(1, y, name=name):
            assert (y, name) == (5, "n")
        case _:
            pytest.fail("no match")


def test_a_dataclass_of_it() -> None:
    """A frozen dataclass may have it for a base."""

    @dataclasses.dataclass(frozen=True)
    class Third(Point):
        z: int = 3

    assert [f.name for f in dataclasses.fields(Third)] == ["x", "y", "z"]
    assert (Third(1).x, Third(1).z) == (1, 3)
    assert Third(1) == Third(1) != Third(1, 2, 4)


PUBLIC = [value for name in nsbox.__all__ if isinstance(value := getattr(nsbox, name), type)]


@pytest.mark.parametrize("cls", [cls for cls in PUBLIC if hasattr(cls, "__frozen_fields__")])
def test_public_values_are_dataclasses_to_others(cls: Any) -> None:
    """dataclasses and inspect find in each public value what is documented of it."""
    assert dataclasses.is_dataclass(cls)
    assert {f.name for f in dataclasses.fields(cls) if f.init} == set(inspect.signature(cls).parameters)
    assert len([cls for cls in PUBLIC if hasattr(cls, "__frozen_fields__")]) > 30


# ---- functions that remember


def test_remembered() -> None:
    """Equal arguments, by position or by name, are answered without another call; None is an answer."""
    asked = []

    @remembered
    def answer(x: int, *, y: int = 0) -> int | None:
        """Say something."""
        asked.append((x, y))
        return x or None

    assert [answer(1), answer(1), answer(1, y=2), answer(1, y=2), answer(0), answer(0)] == [1, 1, 1, 1, None, None]
    assert asked == [(1, 0), (1, 2), (0, 0)]
    assert answer.__doc__ == "Say something."
    answer.cache_clear()  # type: ignore[attr-defined]
    assert answer(1) == 1
    assert len(asked) == 4


def test_remembers_not_for_ever() -> None:
    """However many arguments there are, no more than 64 answers are kept."""
    alive = []

    class Answer:
        pass

    @remembered
    def answer(x: int) -> Answer:
        alive.append(weakref.ref(made := Answer()))
        return made

    for x in range(1000):
        answer(x)
    assert sum(ref() is not None for ref in alive) <= 64


def test_failures_are_not_remembered() -> None:
    """What raised an error is tried again."""
    asked = []

    @remembered
    def answer(x: int) -> int:
        asked.append(x)
        return {}[x]  # type: ignore[no-any-return]

    for _ in range(2):
        with pytest.raises(KeyError):
            answer(1)
    assert asked == [1, 1]


def test_no_subclass() -> None:
    """What isn't a subclass of Frozen would have fields that nothing sets."""
    with pytest.raises(TypeError, match="Loose isn't a subclass of Frozen"):

        @frozen
        class Loose:
            x: int


def test_threads_complete_a_class_at_once() -> None:
    """A thread that finds it unfinished, and then finished by another thread, uses the other's result."""
    from nsbox._base import frozen as base_frozen

    @frozen
    class New(Frozen):
        x: int

    late = New.__dict__["__frozen_fields__"]
    assert New(1).x == 1  # another thread, between finding the descriptor and asking it
    assert late.__get__(None, New) is New.__frozen_fields__
    assert isinstance(late, base_frozen._Completed)
