"""Functions of this process that a kernel's code may call. What the code says of a call is foreign, and is checked."""

from __future__ import annotations

from nsbox._base.display import type_phrase
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._interpreter.wire import frame, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_COROUTINE = 0x80  # inspect.CO_COROUTINE
_MOST_TEXT = 100_000  # characters of an exception


def check_functions(functions: Mapping[str, Callable[..., Any]] | None) -> dict[str, Callable[..., Any]]:
    """Return the functions by name; raises TypeError and ValueError for what can't be called by name."""
    if functions is None:
        return {}
    if not hasattr(functions, "items"):
        raise TypeError(f"functions is {type_phrase(functions)}, must be a mapping of names to functions")
    for name, function in functions.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"functions has {name!r:.100}, names must be Python identifiers")
        if not callable(function):
            raise TypeError(f"functions[{name!r}] is {type_phrase(function)}, and can't be called")
        if getattr(getattr(function, "__code__", None), "co_flags", 0) & _COROUTINE:
            raise TypeError(f"functions[{name!r}] is a coroutine function, must be one that returns its value")
    return dict(functions)


def answer(functions: Mapping[str, Callable[..., Any]], call: Mapping[str, Any]) -> bytes:
    """Call the function that the code wants, and return the frame with its answer.

    An Exception becomes part of the answer. What isn't one, such as KeyboardInterrupt, is raised.
    """
    number, name, args, kwargs = _number(call), call.get("name"), call.get("args"), call.get("kwargs")
    if not isinstance(name, str) or name not in functions:
        return _error(number, "NameError", f"there is no function {name!r:.100}")
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        return _error(number, "TypeError", "the call can't be read")
    try:
        value = functions[name](*args, **kwargs)
    except Exception as error:
        return _error(number, type(error).__name__, _text(error))
    try:
        return frame({"op": "answer", "n": number, "value": value})
    except (TypeError, ValueError, RecursionError) as error:
        return _error(number, "TypeError", f"{name}() returned what JSON can't say: {error}")


def refused(call: Mapping[str, Any]) -> bytes:
    """Return the answer to a call that comes too late."""
    return _error(_number(call), "RuntimeError", "no function can be called any more: the code was interrupted")


def _number(call: Mapping[str, Any]) -> int | None:
    """Return the number of a call, which its answer repeats; None for anything else, such as megabytes of text."""
    number = call.get("n")
    return number if type(number) is int else None


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # of its own __str__
        return ""


def _error(number: int | None, kind: str, message: str) -> bytes:
    return frame({"op": "answer", "n": number, "error": {"type": kind, "message": plain(message)[:_MOST_TEXT]}})
