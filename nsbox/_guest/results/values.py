"""What an object is as JSON, or as text: bounded, and whatever the object's class does.

A value has JSON if json.dumps() would write it and JSON can say it: None, bool, int, finite float, str, list, dict with
keys that are str, subclasses of these by what they hold, numpy's scalars, and tuples, which become lists. Everything
else has only its repr. A NaN, an infinity or a key 1 has no JSON form, and any other value would be a wrong answer. So
one of them anywhere leaves the whole value without JSON, and the reason is told. So do too many levels or bytes.

The walks end at a depth. What lies deeper is never visited, so no nesting exhausts the stack.
"""

from __future__ import annotations

import sys
from typing import Any

from ..interrupts import attempt

DEPTH = 64  # levels of a value, unless the caller says another number
_MOST_DEPTH = 150
_REPR_DEPTH = 50
_MOST_BITS = 14_000  # sys.int_info.default_max_str_digits, 4300 digits: more take quadratic time, or raise ValueError

# Taken from the base classes, not looked up: what a class or its metaclass overrides would be foreign code.
_mro = vars(type)["__mro__"].__get__
_name = vars(type)["__name__"].__get__
_qualname = vars(type)["__qualname__"].__get__
_module = vars(type)["__module__"].__get__
_modules = sys.modules


class NoValueError(Exception):
    """A value has no JSON; the message says why."""


class Budget:
    """How much may be written still. left: bytes."""

    __slots__ = ("is_short", "left")

    def __init__(self, left: int) -> None:
        """Start with a number of bytes."""
        self.left = left
        self.is_short = False  # something was left out


def plain(text: str, limit: int) -> str:
    """Return at most so many characters of a str, which may be of a class of its own, as a str."""
    return str.__getitem__(text, slice(0, limit))


def mro(kind: type) -> tuple[type, ...]:
    """Return a class's bases, itself first."""
    found: tuple[type, ...] = _mro(kind)
    return found


def type_name(kind: type) -> str:
    """Return a class's name as tracebacks have it: with its module, unless that is builtins or __main__."""
    module, name = module_name(kind), plain(_qualname(kind), 500)
    return name if module in (None, "builtins", "__main__") else f"{module}.{name}"


def module_name(kind: type) -> str | None:
    """Return the name of a class's module, None if the class has none."""
    try:
        module = _module(kind)
    except AttributeError:
        return None
    return plain(module, 500) if str in _mro(type(module)) else None


# ---- JSON -----------------------------------------------------------------------------------------------------------


def as_json(value: Any, depth: int, size: int) -> Any:
    """Return a copy of a value of lists, dicts, and what lies in them, of these types alone; raises NoValueError.

    depth: levels, at most 150.
    size: bytes that it may have as JSON, about.
    """
    try:
        return _converted(value, min(depth, _MOST_DEPTH), Budget(size))
    except NoValueError:
        raise
    except Exception as error:  # a container that another thread changes
        raise NoValueError(f"it can't be read: {type(error).__name__}") from None


def _spend(budget: Budget, count: int) -> None:
    budget.left -= count
    if budget.left < 0:
        raise NoValueError("it is too large")


def _text(value: str, budget: Budget) -> str:
    length = str.__len__(value)
    _spend(budget, 2 + length)
    text = plain(value, length)
    if not text.isascii():
        _spend(budget, 5 * length)
    return text


def _converted(value: Any, depth: int, budget: Budget) -> Any:
    kind = type(value)
    if value is None or kind is bool:
        _spend(budget, 5)
        return value
    bases = _mro(kind)
    if str in bases:
        return _text(value, budget)
    if int in bases:
        if int.bit_length(value) > _MOST_BITS:
            raise NoValueError("an int has more than 4300 digits")
        _spend(budget, 2 + int.bit_length(value) // 3)
        return int.__pos__(value)
    if float in bases:
        _spend(budget, 24)
        number = float.__pos__(value)
        if number - number != 0.0:
            raise NoValueError("JSON has no NaN and no infinity")
        return number
    if depth <= 0:
        raise NoValueError("it has too many levels")
    if list in bases or tuple in bases:
        return _sequence(value, list if list in bases else tuple, depth, budget)
    if dict in bases:
        return _mapping(value, depth, budget)
    return _converted(_number(value, bases), depth, budget)


def _sequence(value: Any, base: Any, depth: int, budget: Budget) -> list[Any]:
    _spend(budget, 2 + 2 * base.__len__(value))
    return [_converted(item, depth - 1, budget) for item in tuple(base.__iter__(value))]


def _mapping(value: Any, depth: int, budget: Budget) -> dict[str, Any]:
    _spend(budget, 2 + 4 * dict.__len__(value))
    result = {}
    for key, item in tuple(dict.items(value)):
        if str not in _mro(type(key)):
            raise NoValueError("a dict has a key that isn't a str")
        text = _text(key, budget)
        if text in result:
            raise NoValueError("a dict has two keys of the same letters")
        result[text] = _converted(item, depth - 1, budget)
    return result


def _number(value: Any, bases: tuple[type, ...]) -> Any:
    numpy = _modules.get("numpy")
    if numpy is not None and vars(numpy).get("generic") in bases:
        number, _ = attempt(vars(numpy)["generic"].item, value)
        if type(number) in (bool, int, float, str):
            return number
    raise NoValueError(f"JSON has no {type_name(bases[0])}")


# ---- text -----------------------------------------------------------------------------------------------------------


def as_text(value: Any, limit: int) -> tuple[str, bool]:
    """Return the repr of a value, and whether something is missing; raises nothing.

    Containers of Python's own are written here, up to the limit, as repr() would. All else is asked.

    limit: characters.
    """
    kind = type(value)
    if kind not in _BRACKETS and kind is not dict:
        return _leaf(value, limit)
    parts: list[str] = []
    budget = Budget(limit)
    try:
        _write(value, parts, budget, _REPR_DEPTH, set())
    except (Exception, KeyboardInterrupt):  # a container that another thread changes; an interrupt
        parts.append("...")
        budget.is_short = True
    text = "".join(parts)
    return text[:limit], budget.is_short or len(text) > limit


_BRACKETS: dict[type, tuple[str, str, str]] = {
    list: ("[", "]", "[]"),
    tuple: ("(", ")", "()"),
    set: ("{", "}", "set()"),
    frozenset: ("frozenset({", "})", "frozenset()"),
}
_RECURSIVE: dict[type, str] = {list: "[...]", tuple: "(...)", dict: "{...}"}


def _leaf(value: Any, limit: int, is_inside: bool = False) -> tuple[str, bool]:
    kind = type(value)
    if (kind is str or kind is bytes) and len(value) > limit:
        return repr(value[:limit])[:limit], True
    if kind is int and value.bit_length() > _MOST_BITS:
        return f"<an int of {value.bit_length()} bits>", True
    text, error = attempt(repr, value)
    if error is None:
        return plain(text, limit), str.__len__(text) > limit
    if is_inside and type(error) is KeyboardInterrupt:
        raise error
    return f"<{type_name(kind)} object, whose repr() raised {type_name(type(error))}>", True


def _write(value: Any, parts: list[str], budget: Budget, depth: int, above: set[int]) -> None:
    kind = type(value)
    brackets = _BRACKETS.get(kind)
    if brackets is None and kind is not dict:
        text, is_short = _leaf(value, max(budget.left, 20), True)
        budget.is_short |= is_short
        budget.left -= len(text)
        parts.append(text)
        return
    if id(value) in above:
        parts.append(_RECURSIVE.get(kind, "..."))
        return
    if depth <= 0:
        parts.append("...")
        budget.is_short = True
        return
    above.add(id(value))
    before, after, empty = brackets or ("{", "}", "{}")
    if not value:
        parts.append(empty)
    else:
        parts.append(before)
        _items(value, parts, budget, depth, above)
        parts.append(",)" if kind is tuple and len(value) == 1 else after)
    above.discard(id(value))


def _items(value: Any, parts: list[str], budget: Budget, depth: int, above: set[int]) -> None:
    is_first = True
    for item in value:
        if not is_first:
            parts.append(", ")
        is_first = False
        budget.left -= 4
        if budget.left <= 0:
            parts.append("...")
            budget.is_short = True
            return
        _write(item, parts, budget, depth - 1, above)
        if type(value) is dict:
            parts.append(": ")
            _write(value[item], parts, budget, depth - 1, above)
