"""The text of a profile as S-expressions, and its rules. What words mean is in vocabulary.py, not here.

Strict on purpose: what a generator of profiles has no need for is an error here, though Scheme knows it (quotation,
other escapes in strings, numbers in other bases, carriage returns). So nothing is understood in two ways.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, cast

MOST_NESTED = 64
_TOKEN = re.compile(
    r"(?P<space>[ \t\n]+|;[^\n]*)"
    r"|(?P<open>\()"
    r"|(?P<close>\))"
    r'|(?P<raw>#"[^"]*")'
    r'|(?P<string>"(?:[^"\\]|\\[\\"])*")'
    r'|(?P<word>(?!#")[A-Za-z0-9%#_*.+?!/<>=:-]+)'
)
_INTEGER = re.compile(r"[+-]?[0-9]+")
_SYMBOL = re.compile(r"[A-Za-z%_][A-Za-z0-9%_*.+?!-]*")
_ENDS_A_WORD = frozenset(" \t\n();")


class SbplError(ValueError):
    """A profile that isn't one. line and column count from 1."""

    def __init__(self, problem: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {problem}")
        self.problem, self.line, self.column = problem, line, column


@dataclass(frozen=True)
class Symbol:
    """A name. Where it stood counts for no comparison."""

    name: str
    line: int = field(default=0, compare=False)
    column: int = field(default=0, compare=False)


@dataclass(frozen=True)
class String:
    """A string, without its quotes and escapes. is_raw: it was written as #"..."."""

    text: str
    is_raw: bool = False
    line: int = field(default=0, compare=False)
    column: int = field(default=0, compare=False)


Form = Symbol | String | int | tuple["Form", ...]  # a bool is #t or #f; a tuple is a list


@dataclass(frozen=True)
class Rule:
    """One (allow ...) or (deny ...). modifiers: its (with ...) forms."""

    action: Literal["allow", "deny"]
    operations: tuple[str, ...]
    filters: tuple[Form, ...]
    modifiers: tuple[Form, ...]
    line: int


def parse(text: str) -> tuple[Form, ...]:
    """Return the forms of a profile; raises SbplError."""
    open_lists: list[tuple[list[Form], int, int]] = []
    current: list[Form] = []
    for kind, token, line, column in _tokens(text):
        if kind == "open":
            if len(open_lists) == MOST_NESTED:
                raise SbplError(f"more than {MOST_NESTED} lists in one another", line, column)
            open_lists.append((current, line, column))
            current = []
        elif kind == "close":
            if not open_lists:
                raise SbplError("a ) without its (", line, column)
            done = tuple(current)
            current = open_lists.pop()[0]
            current.append(done)
        else:
            current.append(_atom(kind, token, line, column))
    if open_lists:
        raise SbplError("a ( without its )", *open_lists[-1][1:])
    return tuple(current)


def _tokens(text: str) -> Iterator[tuple[str, str, int, int]]:
    at, line, start_of_line = 0, 1, 0
    nul = text.find("\0")
    if nul >= 0:  # even in a comment: the compiler takes a C string
        raise SbplError("a NUL", text.count("\n", 0, nul) + 1, nul - text.rfind("\n", 0, nul))
    while at < len(text):
        column = at - start_of_line + 1
        match = _TOKEN.match(text, at)
        if match is None:
            raise SbplError(_complaint(text, at), line, column)
        kind, token = cast(str, match.lastgroup), match.group()
        at = match.end()
        if kind in ("raw", "string", "word") and at < len(text) and text[at] not in _ENDS_A_WORD:
            raise SbplError(f"{text[at]!r} right behind {token[:40]}", line, column)
        if kind != "space":
            yield kind, token, line, column
        line += token.count("\n")
        if "\n" in token:
            start_of_line = match.start() + token.rindex("\n") + 1


def _complaint(text: str, at: int) -> str:
    if text.startswith('#"', at):
        return "a raw string without its end"
    if text[at] != '"':
        return f"{text[at]!r} can't be here"
    inside = re.compile(r'(?:[^"\\]|\\[\\"])*').match(text, at + 1)
    assert inside is not None
    rest = text[inside.end() : inside.end() + 2]
    return "a string without its end" if len(rest) < 2 else f"the escape {rest} isn't one of ours"


def _atom(kind: str, token: str, line: int, column: int) -> Form:
    if kind == "raw":
        return String(token[2:-1], True, line, column)
    if kind == "string":
        return String(re.sub(r"\\(.)", r"\1", token[1:-1], flags=re.DOTALL), False, line, column)
    if token in ("#t", "#f"):
        return token == "#t"
    if _INTEGER.fullmatch(token):
        return int(token)
    if _SYMBOL.fullmatch(token):
        return Symbol(token, line, column)
    raise SbplError(f"{token} is no word of a profile", line, column)


def rules(text: str) -> tuple[Rule, ...]:
    """Return the rules of a profile; raises SbplError, also for any other form than them and (version 1)."""
    found = []
    for form in parse(text):
        if form == (Symbol("version"), 1) and not isinstance(cast(tuple[Form, ...], form)[1], bool):
            continue
        found.append(rule_of(form))
    return tuple(found)


def rule_of(form: Form) -> Rule:
    """Return a form as a rule; raises SbplError."""
    line = line_of(form)
    if not isinstance(form, tuple) or not form or not isinstance(form[0], Symbol):
        raise SbplError(f"no rule: {written(form)[:60]}", line, 1)
    action = form[0].name
    if action not in ("allow", "deny"):
        raise SbplError(f"({action} ...) is no rule", line, 1)
    operations: list[str] = []
    filters: list[Form] = []
    modifiers: list[Form] = []
    for part in form[1:]:
        if isinstance(part, Symbol) and not filters:
            operations.append(part.name)
        elif isinstance(part, tuple) and part:
            (modifiers if part[0] == Symbol("with") else filters).append(part)
        else:
            raise SbplError(f"{written(part)[:60]} can't be here in a rule", line_of(part) or line, 1)
    if not operations:
        raise SbplError(f"({action} ...) names no operation", line, 1)
    return Rule(cast(Literal["allow", "deny"], action), tuple(operations), tuple(filters), tuple(modifiers), line)


def line_of(form: Form) -> int:
    """Return the line on which a form begins, or 0 where it has nothing that knows."""
    if isinstance(form, Symbol | String):
        return form.line
    return next((line for part in form if (line := line_of(part))), 0) if isinstance(form, tuple) else 0


def written(form: Form) -> str:
    """Return a form as a profile has it, on one line, except for what strings contain."""
    match form:
        case bool():
            return "#t" if form else "#f"
        case int():
            return str(form)
        case Symbol(name=name):
            return name
        case String(text=text, is_raw=True):
            return f'#"{text}"'
        case String(text=text):
            return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
        case _:
            return f"({' '.join(written(part) for part in form)})"
