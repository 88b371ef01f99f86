"""What goes inside for a function: its source, or the path of its module. Nothing is pickled.

A function's source is all of it that goes inside. Modules that it uses by their names in its own module are imported
there too. Its other globals aren't. They are noted, so that an error can name those that the function misses.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import keyword
import textwrap
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

from nsbox._base.display import type_phrase
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen

if TYPE_CHECKING:
    from typing import Any

_REMEDY = 'submit a function that is written with "def" at the top of a file, or "module:function"'


@frozen
class Function(Frozen):
    """What a sandbox needs to call a function.

    label: its name, for messages.
    expression: how code calls it.
    imports: statements that come first.
    source: its definition; "" if a module has it.
    missing: globals of its module that don't come along.
    """

    label: str
    expression: str
    imports: tuple[str, ...] = ()
    source: str = ""
    missing: tuple[str, ...] = ()


def function(given: object) -> Function:
    """Return what goes inside for a function, or for a path such as "module:function"; raises TypeError, ValueError."""
    if isinstance(given, str):
        return _by_path(given)
    if isinstance(given, BuiltinFunctionType):
        return _built_in(given)
    if not isinstance(given, FunctionType):
        raise _refusal(given, _other_kind(given))
    if given.__name__ == "<lambda>":
        raise _refusal(given, "is a lambda, whose source can't be separated from its line")
    if given.__closure__:
        names = ", ".join(given.__code__.co_freevars)
        raise _refusal(given, f"is a closure: it uses {names} of the function around it, which can't come along")
    if inspect.iscoroutinefunction(given) or inspect.isasyncgenfunction(given):
        raise _refusal(given, "is a coroutine function")
    return _by_source(given)


def unwrapped(given: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[object, list[Any], dict[str, Any]]:
    """Return a function and its arguments: those of functools.partial included."""
    while isinstance(given, partial):
        one: partial[Any] = given
        given, args, kwargs = one.func, (*one.args, *args), {**one.keywords, **kwargs}
    return given, list(args), kwargs


def _name(given: object) -> str:
    return str(getattr(given, "__qualname__", None) or type(given).__qualname__)


def _refusal(given: object, problem: str) -> TypeError:
    return TypeError(f"{_name(given)} {problem}, so it can't be called in a sandbox: {_REMEDY}")


def _other_kind(given: object) -> str:
    if isinstance(given, MethodType):
        return "is a method, whose object can't come along"
    if isinstance(given, type):
        return "is a class"
    return f"is {type_phrase(given)}, not a plain function"


def _by_path(path: str) -> Function:
    module, colon, name = path.partition(":")
    parts = [*module.split("."), *name.split(".")]
    if not colon or not all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
        raise ValueError(f"{path!r:.100} isn't the path of a function, such as 'package.module:function'")
    return Function(path, f"_module.{name}", (f"import {module} as _module",))


def _built_in(given: BuiltinFunctionType) -> Function:
    """Return a function that is written in C, such as math.sqrt: its module has it inside too."""
    owner = getattr(given, "__self__", None)
    if not isinstance(owner, ModuleType):
        raise _refusal(given, "is a method, whose object can't come along")
    return _by_path(f"{owner.__name__}:{given.__name__}")


def _definition(given: FunctionType) -> tuple[str, ast.FunctionDef]:
    """Return the source of a function, and the tree of it."""
    try:
        source = textwrap.dedent(inspect.getsource(given))
    except (OSError, TypeError) as error:
        raise _refusal(given, f"has no source that can be found ({error})") from None
    try:
        body = ast.parse(source).body
    except SyntaxError as error:
        raise _refusal(given, f"has a source that can't be read ({error})") from None
    if len(body) != 1 or not isinstance(body[0], ast.FunctionDef):
        raise _refusal(given, "has no source that begins with def")
    if body[0].decorator_list or hasattr(given, "__wrapped__"):
        raise _refusal(given, "is decorated, and its decorator can't come along")
    if body[0].name != given.__name__:
        raise _refusal(given, f"isn't what its file has now: {body[0].name}")
    return source, body[0]


def _by_source(given: FunctionType) -> Function:
    source, tree = _definition(given)
    known, own = given.__globals__, {*given.__code__.co_varnames, given.__name__}
    imports, missing = [], []
    for name in sorted({node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - own):
        if isinstance(module := known.get(name), ModuleType):
            imports.append(f"import {module.__name__} as {name}")
        elif name in known and not hasattr(builtins, name):
            missing.append(name)
    return Function(given.__qualname__, given.__name__, tuple(imports), source, tuple(missing))
