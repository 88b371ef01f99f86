"""Frozen values, and functions that remember: replacements for dataclasses and functools that import faster.

Why: importing dataclasses costs more than importing subprocess, because of inspect. Processor time with CPython 3.11 on
Linux, the least of 30 runs: 8 ms for a bare interpreter (-I -S), 21 ms more for dataclasses, 14 ms more for subprocess.
Then dataclasses compiles methods, class by class. The installed bwrap may take 1.6 times a bare interpreter's start,
and takes 1.51; there is no room for it. Here all classes share the same few methods, and none is compiled.

Delete this module, and use dataclasses and functools, when importing them takes less than 5 % of a bare interpreter's
start with the oldest Python that nsbox supports. Until then, add no second piece of machinery like it.

Code that expects a dataclass (dataclasses.replace(), fields(), asdict(), inspect.signature()) is served by a real one
with the same fields, built on first use.
"""

from __future__ import annotations

from _operator import attrgetter  # operator's own, as _collections_abc and _struct are collections.abc's and struct's

TYPE_CHECKING = False  # importing typing for it would take as long as importing all of this package
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ParamSpec, TypeVar, dataclass_transform

    P = ParamSpec("P")
    T = TypeVar("T")
else:

    def dataclass_transform(**_):
        """Do nothing: this is for type checkers."""
        return lambda decorator: decorator


_MISSING: Any = object()


class Field:
    """A field of a frozen class.

    default: its value if __init__ gets none.
    init: whether __init__ takes it.
    repr, compare: whether it counts in repr(), and in == and hash().
    """

    __slots__ = ("compare", "default", "init", "name", "repr", "type")
    name: str
    type: str  # the annotation as it was written

    def __init__(self, default: Any, init: bool = True, repr: bool = True, compare: bool = True) -> None:
        self.default, self.init, self.repr, self.compare = default, init, repr, compare


def field(*, default: Any = _MISSING, init: bool = True, repr: bool = True, compare: bool = True) -> Any:
    """Return a Field, which says more about a field than its default does, as dataclasses.field() would."""
    return Field(default, init, repr, compare)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """Make a subclass of Frozen a class of frozen values, whose fields are its annotations: @dataclass(frozen=True)."""
    return _prepare(cls, by_name=False)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def frozen_by_name(cls: type[T]) -> type[T]:
    """Do what frozen() does, with fields that are keyword-only, even those of a base class."""
    return _prepare(cls, by_name=True)


def _prepare(cls: Any, *, by_name: bool) -> type[Any]:
    # Nothing is compiled, and the class isn't made a second time, as it would be for __slots__: making classes is most
    # of the cost of an import.
    if Frozen not in cls.__mro__:
        raise TypeError(f"{cls.__qualname__} isn't a subclass of Frozen")
    cls.__frozen_by_name__ = by_name
    cls.__frozen_fields__, cls.__frozen_key__, cls.__match_args__ = _FIELDS, _KEY, _MATCH_ARGS  # type: ignore[misc]
    if Field in map(type, cls.__dict__.values()):
        _complete(cls)  # replaces each Field by its default
    made: type[Any] = cls
    return made


def _complete(cls: Any) -> None:
    """Find out the fields of a frozen class, on first use: most programs never make a value of most classes."""
    own = cls.__dict__
    added = []
    for name, kind in cls.__annotations__.items():
        default = own.get(name, _MISSING)
        added.append(entry := default if isinstance(default, Field) else Field(default))
        entry.name, entry.type = name, kind
        if entry is default and entry.default is _MISSING:
            delattr(cls, name)
        elif entry is default:
            setattr(cls, name, entry.default)
    above = next(base for base in cls.__mro__[1:] if Frozen in base.__mro__)
    fields = (*above.__frozen_fields__, *added)
    names = () if cls.__frozen_by_name__ else tuple([f.name for f in fields if f.init])
    cls.__match_args__ = names  # type: ignore[misc]
    cls.__frozen_key__ = attrgetter("__class__", *[f.name for f in fields if f.compare])
    cls.__frozen_fields__ = fields


class _Completed:
    """An attribute of a frozen class that isn't complete yet. When it is first read, the class is completed."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, _: object, cls: type[Any]) -> Any:
        for base in cls.__mro__:
            if base.__dict__.get(self.name) is self:  # otherwise another thread has completed it meanwhile
                _complete(base)
                break
        return getattr(cls, self.name)


_FIELDS, _KEY, _MATCH_ARGS = map(_Completed, ("__frozen_fields__", "__frozen_key__", "__match_args__"))


class _Twin:
    """An attribute that a frozen class gets from a dataclass with the same fields."""

    made: dict[type[Any], type[Any]] = {}  # noqa: RUF012  (shared by all attributes)

    def __init__(self, of: Callable[[type[Any]], object]) -> None:
        self.of = of

    def __get__(self, _: object, cls: type[Any]) -> object:
        import dataclasses

        if cls not in self.made:
            rows = []
            for f in cls.__frozen_fields__:
                default = dataclasses.MISSING if f.default is _MISSING else f.default
                options = {"init": f.init, "repr": f.repr, "compare": f.compare}
                options["kw_only"] = f.init and f.name not in cls.__match_args__
                rows.append((f.name, f.type, dataclasses.field(default=default, **options)))
            self.made[cls] = dataclasses.make_dataclass(cls.__name__, rows, frozen=True)
        return self.of(self.made[cls])


def _signature(twin: type[Any]) -> object:
    import inspect

    return inspect.signature(twin)


class Frozen:
    """What the frozen classes have in common."""

    __frozen_fields__: tuple[Field, ...] = ()
    __frozen_key__: Callable[[object], object] = attrgetter("__class__")
    __match_args__: tuple[str, ...] = ()
    __dataclass_fields__ = _Twin(lambda twin: twin.__dataclass_fields__)
    __dataclass_params__ = _Twin(lambda twin: twin.__dataclass_params__)
    __signature__ = _Twin(_signature)

    def __init__(self, *args: object, **named: object) -> None:
        if len(args) > len(self.__match_args__):
            raise _misuse(self, f"takes {len(self.__match_args__)} positional arguments, {len(args)} were given")
        fields, values = self.__frozen_fields__, self.__dict__
        for value, f in zip(args, fields, strict=False):
            values[f.name] = value
        for f in fields[len(args) :]:
            value = named.pop(f.name, f.default) if f.init else f.default
            if value is _MISSING:
                raise _misuse(self, f"missing required argument {f.name!r}")
            values[f.name] = value
        for name in named:
            what = "multiple values for" if name in self.__match_args__ else "an unexpected keyword"
            raise _misuse(self, f"got {what} argument {name!r}")
        self.__post_init__()

    def __post_init__(self) -> None:
        pass

    def __repr__(self) -> str:
        shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in self.__frozen_fields__ if f.repr)
        return f"{type(self).__qualname__}({shown})"

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return self.__frozen_key__(self) == self.__frozen_key__(other)

    def __hash__(self) -> int:
        return hash(self.__frozen_key__(self))

    def __setattr__(self, name: str, value: object) -> None:
        _check_change(self, name, "assign to")
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        _check_change(self, name, "delete")
        object.__delattr__(self, name)

    def __getstate__(self) -> tuple[object, ...]:
        return tuple([getattr(self, f.name) for f in self.__frozen_fields__])

    def __setstate__(self, state: tuple[object, ...]) -> None:
        self.__dict__.update(zip([f.name for f in self.__frozen_fields__], state, strict=True))

    def __replace__(self, /, **changes: object) -> Any:
        return replace(self, **changes)


def _misuse(value: Frozen, problem: str) -> TypeError:
    return TypeError(f"{type(value).__qualname__}.__init__() {problem}")


def _check_change(value: Frozen, name: str, verb: str) -> None:
    """Raise the error of a frozen dataclass, unless the attribute belongs to a subclass that isn't frozen."""
    cls = type(value)
    if "__frozen_by_name__" in cls.__dict__ or any(f.name == name for f in cls.__frozen_fields__):
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot {verb} field {name!r}")


def fields(of: Any) -> tuple[Field, ...]:
    """Return the fields of a frozen class or value."""
    found: tuple[Field, ...] = of.__frozen_fields__
    return found


def replace(value: T, /, **changes: object) -> T:
    """Return a copy of a frozen value with these fields changed."""
    values = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
    return type(value)(**(values | changes))


def remembered(function: Callable[P, T]) -> Callable[P, T]:
    """Keep what a function returns, as functools.lru_cache(64) does; but a full cache forgets everything at once."""
    known: dict[object, T] = {}

    def answer(*args: P.args, **named: P.kwargs) -> T:
        key = (args, *named.items())
        try:
            return known[key]
        except KeyError:
            pass
        if len(known) >= 64:
            known.clear()
        value = known[key] = function(*args, **named)
        return value

    answer.__doc__, answer.__wrapped__, answer.cache_clear = function.__doc__, function, known.clear  # type: ignore[attr-defined]
    return answer
