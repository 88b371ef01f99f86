"""The parser of a subcommand: options in topics, errors in the words of the command line. help/ prints its help."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from typing import IO, Any, NoReturn

from nsbox._base.display import printable

# argparse's own colours and guesses, of Python 3.14 and later: the ones here are the same with each Python.
_OWN: dict[str, Any] = {"color": False, "suggest_on_error": False} if sys.version_info >= (3, 14) else {}

# What argparse says of a value, and what is said instead.
_WORDS = (
    (re.compile(r"expected one argument"), "needs a value"),
    (re.compile(r"expected (\d+) arguments"), r"needs \1 values"),
    (re.compile(r"invalid int value: (.*)"), r"\1 isn't a whole number"),
    (re.compile(r"invalid float value: (.*)"), r"\1 isn't a number"),
    (re.compile(r"ignored explicit argument (.*)"), r"accepts no value, but got \1"),
    (re.compile(r"the following arguments are required: (.*)"), r"needs \1"),
)

_PATHS = ("DIR", "FILE", "PATH", "TABLE")  # metavars of options that name something


class Parser(argparse.ArgumentParser):
    """Parses the words after the name of a subcommand. Its errors are one line; --help has the usage."""

    def __init__(self, name: str = "", usage: Sequence[str] = ()) -> None:
        """name: the subcommand's; "" for the program itself. usage: what follows the name, once for each form."""
        super().__init__(prog=f"nsbox {name}".rstrip(), **_OWN)
        self.name = name
        self.usages = tuple(usage)
        self.topics: dict[str, argparse._ArgumentGroup] = {}

    def topic(self, title: str) -> argparse._ArgumentGroup:
        """Return the group of options with this title, which help shows together."""
        if title not in self.topics:
            self.topics[title] = self.add_argument_group(title)
        return self.topics[title]

    def format_help(self) -> str:
        """Return the help as plain text."""
        from nsbox._cli.help.page import page_of
        from nsbox._cli.help.text import text

        return text(page_of(self))

    def format_usage(self) -> str:
        """Return the forms of the command line, a line each."""
        return "".join(f"{self.prog} {usage}".rstrip() + "\n" for usage in self.usages)

    def print_help(self, file: IO[str] | None = None) -> None:  # type: ignore[override]
        """Print the help, in colour if it goes to a terminal."""
        from nsbox._cli.help.page import page_of
        from nsbox._cli.help.style import style_for
        from nsbox._cli.help.text import text

        stream = sys.stdout if file is None else file
        if stream is not None:
            stream.write(text(page_of(self), style_for(stream)))

    def error(self, message: str) -> NoReturn:
        """Print the message in the words of the command line, and exit with status 2."""
        self.exit(2, f"{self.prog}: {printable(_worded(message))}; see {self.prog} --help\n")

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Report words that mean nothing here, and the option that may have been meant; exit with status 2."""
        word = next((word for word in unknown if word.startswith("-")), unknown[0])
        if not word.startswith("-"):
            self.error(f"unexpected argument: {word}")
        options = [name[2:] for action in self._actions for name in action.option_strings if name.startswith("--")]
        self.error(f"no such option: {word}{meant(word.partition('=')[0].lstrip('-'), options, '--')}")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Return the value of an argument; raises ArgumentError for an empty path: an unset variable of a script."""
        if not arg_string and action.option_strings and action.metavar in _PATHS:
            raise argparse.ArgumentError(action, "is empty")
        return super()._get_value(action, arg_string)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise ArgumentError for a value that is no choice, with the choices and the nearest of them."""
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            problem = f"{str(value)!r} isn't one of {', '.join(choices)}{meant(str(value), choices)}"
            raise argparse.ArgumentError(action, problem)


def _worded(message: str) -> str:
    message = message.removeprefix("argument ")
    for pattern, words in _WORDS:
        message = pattern.sub(words, message)
    return message


def meant(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return a question that names the nearest of the known words, after a prefix; "" if none is near."""
    import difflib  # for errors alone

    nearest = difflib.get_close_matches(word, list(known), 1, 0.6)
    return f"; did you mean {prefix}{nearest[0]}?" if nearest else ""
