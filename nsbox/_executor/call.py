"""One call, or a chunk of calls: code and inputs on the way in, values or a RemoteError on the way out."""

from __future__ import annotations

from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._executor.errors import ended, raised
from nsbox._executor.function import function
from nsbox._guest.results.values import NoValueError, as_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from nsbox._executor.errors import RemoteError
    from nsbox._executor.function import Function
    from nsbox._python.result import PythonResult

_DEPTH = 64  # levels of a value, as of a result's
_MOST_ARGUMENTS = 16 << 20  # bytes as JSON
_SHOWN = 100  # characters


class Chunk:
    """Stands for a function of which several calls go inside at once."""

    def __init__(self, of: object) -> None:
        """Stand for `of`."""
        self.of = of


class Codec:
    """Turns values that JSON can't hold into values that it can, and back. Both ends have the same two functions."""

    def __init__(self, pair: tuple[Callable[[Any], Any], Callable[[Any], Any]]) -> None:
        """Hold encode and decode. Raises TypeError and ValueError, as for functions that are submitted."""
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError("codec must be a pair of functions: encode, decode")
        self.encode, self.decode = pair
        self.functions = function(pair[0]), function(pair[1])
        if isinstance(pair[0], str) or isinstance(pair[1], str):
            raise TypeError("codec has a path: both functions are also called here, so they must be functions")


@frozen
class Call(Frozen):
    """What runs in one branch.

    of: the function.
    code, inputs: for Python.run().
    count: how many values come back.
    is_chunk: whether the caller wants all of them in a list.
    """

    of: Function
    code: str
    inputs: dict[str, Any]
    count: int = 1
    is_chunk: bool = False


def call(of: Function, args: list[Any], kwargs: dict[str, Any], codec: Codec | None) -> Call:
    """Return one call. Raises TypeError if JSON can't hold an argument."""
    inputs = {
        "_args": [_argument(of, position + 1, value, codec) for position, value in enumerate(args)],
        "_kwargs": {name: _argument(of, name, value, codec) for name, value in kwargs.items()},
    }
    if codec is None:
        return Call(of, _code(of, None, [f"[{of.expression}(*_args, **_kwargs)]"]), inputs)
    lines = [
        "_args, _kwargs = [_decode(_) for _ in _args], {_: _decode(_kwargs[_]) for _ in _kwargs}",
        f"[_encode({of.expression}(*_args, **_kwargs))]",
    ]
    return Call(of, _code(of, codec, lines), inputs)


def chunk(of: Function, calls: list[tuple[Any, ...]], codec: Codec | None) -> Call:
    """Return several calls, each with its positional arguments. Raises TypeError if JSON can't hold one."""
    inputs = {"_calls": [[_argument(of, at + 1, one, codec) for at, one in enumerate(args)] for args in calls]}
    if codec is None:
        return Call(of, _code(of, None, [f"[{of.expression}(*_) for _ in _calls]"]), inputs, len(calls), True)
    last = f"[_encode({of.expression}(*map(_decode, _))) for _ in _calls]"
    return Call(of, _code(of, codec, [last]), inputs, len(calls), True)


def _argument(of: Function, which: int | str, value: Any, codec: Codec | None) -> Any:
    """Return a copy of an argument, as plain values of JSON. What the caller changes later doesn't affect it."""
    try:
        return as_json(value if codec is None else codec.encode(value), _DEPTH, _MOST_ARGUMENTS)
    except NoValueError as error:
        remedy = "see codec=" if codec is None else "the codec's encode() returned it"
        raise TypeError(f"argument {which} of {of.label} can't be written as JSON: {error} ({remedy})") from None


def _code(of: Function, codec: Codec | None, last: list[str]) -> str:
    """Return a program; annotations in it aren't evaluated, since what they name stays outside."""
    parts = [of] if codec is None else [*codec.functions, of]
    imports = dict.fromkeys(line for part in parts for line in part.imports)
    lines = ["; ".join(["from __future__ import annotations", *imports])]
    if codec is not None:
        lines += [part.source for part in codec.functions]
        lines.append(f"_encode, _decode = {', '.join(part.expression for part in codec.functions)}")
    return "\n".join([*lines, *([of.source] if of.source else []), *last])


def outcome(made: Call, record: PythonResult) -> list[Any] | RemoteError:
    """Return the values of a call, or its error."""
    exception, value = record.exception, record.value
    if exception is not None:
        return raised(exception, record, _hint(made.of, exception.type))
    if record.returncode != 0 or record.type is None:
        return ended(f"{made.of.label} {_end(record)}", record)
    if not record.has_value:
        shown = (record.repr or "")[1:-1]
        shown = f"{shown[:_SHOWN]}..." if len(shown) > _SHOWN else shown
        return ended(f"{made.of.label} returned what JSON can't hold, or more than 1 MiB of it: {shown}", record)
    if not isinstance(value, list) or len(value) != made.count:
        return ended(f"{made.of.label}: the sandbox has sent something other than the result of a call", record)
    return value


def _end(record: PythonResult) -> str:
    if record.timed_out:
        return f"took longer than its time limit, and was ended after {record.duration:.1f} s"
    if record.signal is not None:
        return f"was ended by {record.signal} before it returned"
    if record.cause == "unknown":
        return "was lost before it returned"
    return f"exited with status {record.returncode} before it returned"


def _hint(of: Function, kind: str) -> str:
    if kind == "NameError" and of.missing:
        names = ", ".join(of.missing[:10])
        return f"Only the source of {of.label} goes inside, not what its module defines: {names}. See setup=."
    if kind == "ModuleNotFoundError":
        return (
            f"Inside, {of.label} finds only what the sandbox's own interpreter imports. To extend sys.path, use setup=."
        )
    return ""
