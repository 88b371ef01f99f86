"""A page as text for a terminal: a heading in each topic, options beside what they do, examples at the end."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator

from nsbox._cli.help.page import Argument, Page
from nsbox._cli.help.style import PLAIN, Style

_BESIDE = 26  # the column of what options do
_LEAST, _MOST = 50, 100


def text(page: Page, style: Style = PLAIN) -> str:
    """Return a page as lines as wide as the terminal, at most 100 characters."""
    width = max(_LEAST, min(_MOST, shutil.get_terminal_size().columns - 1))
    return "\n".join(_lines(page, style, width)) + "\n"


def _lines(page: Page, style: Style, width: int) -> Iterator[str]:
    yield sentence(page.about)
    yield ""
    for i, usage in enumerate(page.usages):
        yield f"{'      ' if i else style.paint('heading', 'Usage:')} {usage}"
    for paragraph in page.prose.paragraphs:
        yield ""
        yield from textwrap.wrap(paragraph, width)
    yield from _commands(page, style, width)
    if page.operands:
        yield from _topic("Arguments", page.operands, style, width)
    for topic in page.topics:
        yield from _topic(topic.title, topic.arguments, style, width)
    if page.prose.statuses:
        yield ""
        yield style.paint("heading", "Exit status:")
        for status, meaning in page.prose.statuses:
            yield from _beside(status, style.paint("value", status), meaning, width, column=10)
    yield ""
    yield style.paint("heading", "Examples:")
    for line, about in page.prose.examples:
        yield f"  {style.paint('name', line)}"
        yield from textwrap.wrap(about, width, initial_indent="      ", subsequent_indent="      ")
    if page.commands:
        yield ""
        yield f"'{page.name} help COMMAND' has more on each."


def sentence(words: str) -> str:
    """Return a phrase as a sentence."""
    return f"{words[:1].upper()}{words[1:]}."


def _commands(page: Page, style: Style, width: int) -> Iterator[str]:
    group = ""
    for command in page.commands:
        if command.group != group:
            group = command.group
            yield ""
            yield style.paint("heading", f"{group}:")
        yield from _beside(command.name, style.paint("name", command.name), command.about, width, column=14)


def _topic(title: str, arguments: tuple[Argument, ...], style: Style, width: int) -> Iterator[str]:
    yield ""
    yield style.paint("heading", f"{title}:")
    for argument in arguments:
        names, values = ", ".join(argument.names), " ".join(argument.values)
        plain = f"{names} {values}".strip()
        # A long name stands beside the others' long names, below their short ones.
        indent = "    " if names.startswith("--") else ""
        painted = f"{style.paint('name', names)} {style.paint('value', values)}".strip()
        yield from _beside(indent + plain, indent + painted, _about(argument), width)


def _about(argument: Argument) -> str:
    """Return what an argument does, with its words if its value doesn't name them."""
    words = [word for word in argument.words if word not in "|".join(argument.values) and word not in argument.about]
    return argument.about + (f": {', '.join(argument.words)}" if words and len(argument.words) < 20 else "")


def _beside(plain: str, painted: str, about: str, width: int, column: int = _BESIDE) -> Iterator[str]:
    """Yield lines with what it is on the left, and what it does on the right or, if there is no room, below."""
    rows = textwrap.wrap(about, width - column) or [""]
    if len(plain) + 4 > column:
        yield f"  {painted}"
        painted, plain = "", ""
        first = " " * column + rows[0]
    else:
        first = f"  {painted}{' ' * (column - 2 - len(plain))}{rows[0]}"
    yield first.rstrip()
    for row in rows[1:]:
        yield " " * column + row
