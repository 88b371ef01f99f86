"""Frozen values, and functions that remember: dataclasses' and functools', without what importing those costs.

A command line that starts one command is over in milliseconds; dataclasses alone takes ten, for inspect and for methods
that it compiles class by class. What is here serves all classes with the same few methods. Whoever takes one of them
for a dataclass (dataclasses.replace(), fields(), asdict(), inspect.signature()) hears a twin, which is made then.
"""

from __future__ import annotations

from _operator import attrgetter  # operator's own, as _collections_abc and _struct are collections.abc's and struct's

TYPE_CHECKING = False  # typing's own takes as long to import as all of this package
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ParamSpec, TypeVar, dataclass_transform

    P = ParamSpec("P")
    T = TypeVar("T")
else:

    def dataclass_transform(**_):
        """Tell type checkers; nobody else listens."""
        return lambda decorator: decorator


_MISSING: Any = object()


class Field:
    """A field of a frozen class. init: __init__ takes it; repr, compare: it counts there."""

    __slots__ = ("compare", "default", "init", "name", "repr", "type")
    name: str
    type: str  # as it was written

    def __init__(self, default: Any, init: bool = True, repr: bool = True, compare: bool = True) -> None:
        self.default, self.init, self.repr, self.compare = default, init, repr, compare


def field(*, default: Any = _MISSING, init: bool = True, repr: bool = True, compare: bool = True) -> Any:
    """Say more of a field than its default; as dataclasses.field()."""
    return Field(default, init, repr, compare)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """Make the class, a subclass of Frozen, one of frozen values, whose fields are its annotations.

    As @dataclass(frozen=True).
    """
    return _made(cls, by_name=False)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def frozen_by_name(cls: type[T]) -> type[T]:
    """Make the class as frozen() does, with fields that are only given by name; those of a base too."""
    return _made(cls, by_name=True)


def _made(cls: Any, *, by_name: bool) -> type[Any]:
    # Nothing is compiled; and the class isn't made anew, as it would be for __slots__: classes are most of an import.
    if Frozen not in cls.__mro__:
        raise TypeError(f"{cls.__qualname__} is no subclass of Frozen")
    cls.__frozen_by_name__ = by_name
    cls.__frozen_fields__, cls.__frozen_key__, cls.__match_args__ = _FIELDS, _KEY, _MATCH_ARGS  # type: ignore[misc]
    if Field in map(type, cls.__dict__.values()):
        _complete(cls)  # which puts defaults in the place of these
    made: type[Any] = cls
    return made


def _complete(cls: Any) -> None:
    """Find out the fields of a frozen class, which most programs never make a value of."""
    own = cls.__dict__
    added = []
    for name, kind in cls.__annotations__.items():
        given = own.get(name, _MISSING)
        added.append(found := given if isinstance(given, Field) else Field(given))
        found.name, found.type = name, kind
        if found is given and found.default is _MISSING:
            delattr(cls, name)
        elif found is given:
            setattr(cls, name, found.default)
    above = next(base for base in cls.__mro__[1:] if Frozen in base.__mro__)
    fields = (*above.__frozen_fields__, *added)
    names = () if cls.__frozen_by_name__ else tuple([f.name for f in fields if f.init])
    cls.__match_args__ = names  # type: ignore[misc]
    cls.__frozen_key__ = attrgetter("__class__", *[f.name for f in fields if f.compare])
    cls.__frozen_fields__ = fields


class _Completed:
    """An attribute of a frozen class until one of these is asked for: then the class is completed, and has its own."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, _: object, cls: type[Any]) -> Any:
        for base in cls.__mro__:
            if base.__dict__.get(self.name) is self:  # or another thread has completed it meanwhile
                _complete(base)
                break
        return getattr(cls, self.name)


_FIELDS, _KEY, _MATCH_ARGS = map(_Completed, ("__frozen_fields__", "__frozen_key__", "__match_args__"))


class _Twin:
    """An attribute that a frozen class has from a dataclass of the same fields."""

    made: dict[type[Any], type[Any]] = {}  # noqa: RUF012  (one for all attributes)

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
    """Raise the error of a frozen dataclass, but for what a subclass has of its own."""
    cls = type(value)
    if "__frozen_by_name__" in cls.__dict__ or any(f.name == name for f in cls.__frozen_fields__):
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot {verb} field {name!r}")


def fields(of: Any) -> tuple[Field, ...]:
    """Return the fields of a frozen class or value."""
    found: tuple[Field, ...] = of.__frozen_fields__
    return found


def replace(value: T, /, **changes: object) -> T:
    """Return a copy with these fields changed."""
    given = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
    return type(value)(**(given | changes))


def remembered(function: Callable[P, T]) -> Callable[P, T]:
    """Keep what a function has returned; as functools.lru_cache(64), but that when it is full it forgets all."""
    known: dict[object, T] = {}

    def answer(*args: P.args, **named: P.kwargs) -> T:
        key = (args, *named.items())
        try:
            return known[key]
        except KeyError:
            pass
        if len(known) >= 64:
            known.clear()
        made = known[key] = function(*args, **named)
        return made

    answer.__doc__, answer.__wrapped__, answer.cache_clear = function.__doc__, function, known.clear  # type: ignore[attr-defined]
    return answer
