"""ConfigError: everything that is wrong with a configuration file, each problem with its place."""

from __future__ import annotations

from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen

if TYPE_CHECKING:
    from collections.abc import Sequence


def shown(text: str, most: int = 1000) -> str:
    """Return a text as one line without control characters, since it may come from the file's author."""
    text = text if len(text) <= most else f"{text[:most]}..."
    return text if text.isprintable() else repr(text)[1:-1]


@frozen
class Problem(Frozen):
    """One problem.

    key: its place, dotted, such as limits.memory; "" for the file as a whole.
    text: what is wrong.
    line: counted from 1; None if it isn't known.
    """

    key: str
    text: str
    line: int | None = None


class ConfigError(PolicyError):
    """A configuration is malformed or contradictory. Its str has a line SOURCE:LINE: KEY: PROBLEM for each problem.

    source: the file's path, or "<text>".
    problems: a tuple of every Problem found, at least one.
    field, problem: those of the first.
    """

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        """Hold the file's name and at least one problem."""
        super().__init__(problems[0].key or source, problems[0].text)
        self.source = source
        self.problems = tuple(problems)

    def __str__(self) -> str:
        lines = []
        for problem in self.problems:
            at = shown(self.source) if problem.line is None else f"{shown(self.source)}:{problem.line}"
            lines.append(": ".join(filter(None, (at, shown(problem.key, 200), shown(problem.text)))))
        return "\n".join(lines)

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, tuple[Problem, ...]], dict[str, object]]:
        return type(self), (self.source, self.problems), self.__dict__


ConfigError.__module__ = "nsbox"  # as the errors of _base/errors.py
