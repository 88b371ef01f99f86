"""ConfigError: what is wrong with a configuration file, all of it, each with its place."""

from __future__ import annotations

from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen

if TYPE_CHECKING:
    from collections.abc import Sequence


def shown(text: str, most: int = 1000) -> str:
    """Return a text as one line without control characters: it may come from whoever wrote the file."""
    text = text if len(text) <= most else f"{text[:most]}..."
    return text if text.isprintable() else repr(text)[1:-1]


@frozen
class Problem(Frozen):
    """One thing that is wrong. key: dotted, "" for the file as a whole; line: from 1 up, None where it isn't known."""

    key: str
    text: str
    line: int | None = None


class ConfigError(PolicyError):
    """A configuration is malformed or contradictory. `source`: its path, or "<text>"; `problems`: all that was found.

    `field` and `problem` are the first one's. As a str, one line for each: SOURCE:LINE: KEY: PROBLEM.
    """

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        """Take the file's name and at least one problem."""
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
