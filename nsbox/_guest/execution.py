"""Code that is compiled and run: its last expression's value is kept, as in a notebook.

Each piece of code has a file name of its own, by which linecache knows its lines: so tracebacks show them, and
inspect.getsource() finds them. `await` may stand outside of functions, as in a notebook.
"""

from __future__ import annotations

import ast
import linecache
import sys
from symtable import symtable
from types import CodeType
from typing import Any

from .interrupts import call

_MOST_TEXT = 16 << 20  # characters of earlier pieces of code that a kernel remembers
_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_COROUTINE = 0x80  # inspect.CO_COROUTINE
_ONLY_AST = ast.PyCF_ONLY_AST
# From 3.11 on, a deep tree is a RecursionError; before, only where names are looked up, and the optimizer before that
# needs as much stack as the tree is deep. So names are looked up first.
_CHECK_FROM = 2000 if sys.version_info < (3, 11) else sys.maxsize  # characters

# Bound: code that runs here may replace them.
_compile = compile
_exec = exec
_symtable = symtable
_eval = eval
_Expr = ast.Expr
_Expression = ast.Expression
_cache: Any = linecache.cache


def _future_flags() -> int:
    import __future__

    features = [getattr(__future__, name) for name in __future__.all_feature_names]
    return sum({feature.compiler_flag for feature in features})


_FUTURE = _future_flags()


class Execution:
    """What is run in one namespace, piece by piece.

    sources: the lines of each piece, by its file name.
    """

    def __init__(self, namespace: dict[str, Any]) -> None:
        """Nothing is run yet.

        namespace: of the module __main__.
        """
        self.namespace = namespace
        self.sources: dict[str, list[str]] = {}
        self._sizes: dict[str, int] = {}
        self._flags = 0  # of `from __future__ import ...`, which holds for the pieces that follow
        self._loop: Any = None

    def remember(self, name: str, source: str) -> str:
        """Make a piece's lines known; return its file name: the given one, with a number if there is one already."""
        if name in self.sources:
            number = 2
            start, end = (name[:-1], ">") if name.endswith(">") else (name, "")
            while f"{start} {number}{end}" in self.sources:
                number += 1
            name = f"{start} {number}{end}"
        lines = lines_of(source)
        self.sources[name] = lines
        self._sizes[name] = len(source)
        _cache[name] = len(source), None, lines, name
        while sum(self._sizes.values()) > _MOST_TEXT and len(self._sizes) > 1:
            old = next(iter(self._sizes))
            del self._sizes[old]
            del self.sources[old]
            _cache.pop(old, None)
        return name

    def forget(self) -> None:
        """Let go of all pieces, as if none had been run."""
        for name in self.sources:
            _cache.pop(name, None)
        self.sources.clear()
        self._sizes.clear()

    def _parts(self, source: str, name: str) -> tuple[CodeType | None, CodeType | None]:
        """Return the code without its last expression, and that expression; raises what compile() raises."""
        if "\0" in source:
            raise _null_byte(source, name)  # compile() raises it without a place, before 3.12 a ValueError
        if len(source) > _CHECK_FROM:
            _symtable(source, name, "exec")
        flags = self._flags | _AWAIT
        tree = _compile(source, name, "exec", flags | _ONLY_AST, True)
        body = tree.body
        last = body[-1] if body else None
        if type(last) is not _Expr or _is_silent(source, last):
            return _compile(tree, name, "exec", flags, True), None
        expression = _compile(_Expression(last.value), name, "eval", flags, True)
        del body[-1]
        return _compile(tree, name, "exec", flags, True) if body else None, expression

    def run(self, source: str, name: str) -> tuple[Any, bool, BaseException | None]:
        """Run a piece of code; return its value, whether it has one, and what it has raised.

        source: the code.
        name: what remember() has returned.
        """
        try:
            body, expression = self._parts(source, name)
        except BaseException as error:
            return None, False, _without_frames(error)
        value, raised = None, None
        try:
            if body is not None:
                self._flags |= body.co_flags & _FUTURE
                _, raised = self._evaluate(_exec, body)
            if expression is None or raised is not None:
                return None, False, raised
            value, raised = self._evaluate(_eval, expression)
            return value, raised is None, raised
        finally:
            del value, raised  # as in interrupts.py

    def _evaluate(self, function: Any, code: CodeType) -> tuple[Any, BaseException | None]:
        if not code.co_flags & _COROUTINE:
            return call(function, code, self.namespace)
        outcome: Any = call(_eval, code, self.namespace)
        try:
            if outcome[1] is None:
                outcome = call(self._finish, outcome[0])
                if outcome[1] is None:
                    outcome = outcome[0]
            return outcome[0], outcome[1]
        finally:
            del outcome

    def _finish(self, coroutine: Any) -> tuple[Any, BaseException | None]:
        """Return what a coroutine returns, or what it raises, without the frames of the event loop."""
        import asyncio

        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        task = self._loop.create_task(_outcome(coroutine))
        try:
            outcome: tuple[Any, BaseException | None] = self._loop.run_until_complete(task)
        except KeyboardInterrupt:
            task.cancel()  # the code gets its CancelledError
            self._loop.run_until_complete(task)
            raise
        return outcome


async def _outcome(coroutine: Any) -> tuple[Any, BaseException | None]:
    try:
        return await coroutine, None
    except BaseException as error:
        return None, error


def lines_of(source: str) -> list[str]:
    """Return the lines of a piece of code, as Python counts them, each with its end."""
    if "\r" in source:
        source = source.replace("\r\n", "\n").replace("\r", "\n")
    lines = source.split("\n")
    last = lines.pop()
    return [line + "\n" for line in lines] + ([last + "\n"] if last else [])


def _without_frames(error: BaseException) -> BaseException:
    return error.with_traceback(None)


def _is_silent(source: str, last: ast.Expr) -> bool:
    """Return whether a semicolon follows the last expression: in a notebook it says that the value isn't wanted."""
    if ";" not in source:
        return False
    lines = lines_of(source)
    number, column = last.end_lineno or 0, last.end_col_offset or 0
    if not 0 < number <= len(lines):
        return False
    return lines[number - 1].encode("utf-8", "surrogatepass")[column:].lstrip().startswith(b";")


def _null_byte(source: str, name: str) -> SyntaxError:
    before = source.partition("\0")[0]
    number = before.count("\n") + 1
    text = source.split("\n")[number - 1].replace("\0", "")
    column = len(before) - (before.rfind("\n") + 1) + 1
    return SyntaxError("source code cannot contain null bytes", (name, number, column, text))
