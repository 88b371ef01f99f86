"""A page as a manual page, for man(1): roff with the macros of man(7)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nsbox._cli.commands import COMMANDS
from nsbox._cli.help.page import Argument, Page

_CHARS = {"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "~": "\\(ti", "^": "\\(ha", '"': "\\(dq"}


def file_name(page: Page) -> str:
    """Return the name of a page's file, such as "nsbox-run.1"."""
    return f"{page.name.replace(' ', '-')}.1"


def roff(page: Page) -> str:
    """Return a page as the text of its file."""
    return "".join(f"{line}\n" for line in _lines(page))


def _escaped(text: str) -> str:
    """Return text that roff prints as it is, also at the start of a line."""
    text = "".join(_CHARS.get(char, char) for char in text)
    return f"\\&{text}" if text[:1] in (".", "'") else text


def _prose(text: str) -> str:
    """Return a text in which what stands between backquotes is bold."""
    parts = re.split("`([^`]*)`", text)
    return "".join(f"\\fB{_escaped(part)}\\fR" if i % 2 else _escaped(part) for i, part in enumerate(parts))


def _sentence(text: str) -> str:
    ends = text[-1:] in (".", ":", "?")
    return _prose(f"{text[:1].upper()}{text[1:]}" + ("" if ends else ".")) if text else ""


def _lines(page: Page) -> Iterator[str]:
    name = page.name.replace(" ", "-")
    yield '.\\" Made by `nsbox man` from the options of the command.'
    yield f'.TH {name.upper().replace("-", chr(92) + "-")} 1 "" nsbox "Manual of nsbox"'
    yield ".SH NAME"
    yield f"{_escaped(name)} \\- {_escaped(page.about)}"
    yield ".SH SYNOPSIS"
    for i, usage in enumerate(page.usages):
        if i:
            yield ".br"
        yield f"\\fB{_escaped(page.name)}\\fR{_escaped(usage.removeprefix(page.name))}"
    if page.prose.paragraphs:
        yield ".SH DESCRIPTION"
        for i, paragraph in enumerate(page.prose.paragraphs):
            if i:
                yield ".PP"
            yield _prose(paragraph)
    yield from _commands(page)
    if page.operands:
        yield ".SH ARGUMENTS"
        yield from _arguments(page.operands)
    yield ".SH OPTIONS"
    for topic in page.topics:
        yield f'.SS "{_escaped(topic.title)}"'
        yield from _arguments(topic.arguments)
    yield from _ends(page)


def _commands(page: Page) -> Iterator[str]:
    group = ""
    if page.commands:
        yield ".SH COMMANDS"
    for command in page.commands:
        if command.group != group:
            group = command.group
            yield f'.SS "{_escaped(group)}"'
        yield ".TP"
        yield f"\\fBnsbox\\-{command.name}\\fR(1)"
        yield _sentence(command.about)


def _arguments(arguments: tuple[Argument, ...]) -> Iterator[str]:
    for argument in arguments:
        names = ", ".join(f"\\fB{_escaped(name)}\\fR" for name in argument.names)
        values = " ".join(f"\\fI{_escaped(value)}\\fR" for value in argument.values)
        yield ".TP"
        yield f"{names} {values}".strip()
        yield _sentence(argument.about)
        unnamed = [word for word in argument.words if word not in "|".join(argument.values) + argument.about]
        if unnamed:
            yield f"One of: {_escaped(', '.join(argument.words))}."


def _ends(page: Page) -> Iterator[str]:
    if page.prose.statuses:
        yield ".SH EXIT STATUS"
        for status, meaning in page.prose.statuses:
            yield ".TP"
            yield f"\\fB{_escaped(status)}\\fR"
            yield _sentence(meaning)
    yield ".SH EXAMPLES"
    for line, about in page.prose.examples:
        yield ".TP"
        yield f"\\fB{_escaped(line)}\\fR"
        yield _sentence(about)
    yield ".SH ENVIRONMENT"
    yield ".TP"
    yield "\\fBNO_COLOR\\fR, \\fBFORCE_COLOR\\fR"
    yield "If set to anything, help is without colours; or has them also where it isn\\(aqt printed on a terminal."
    yield ".SH SEE ALSO"
    own = page.name.removeprefix("nsbox").strip()
    others = [name for name in COMMANDS if name != own] if not own else ["", *_BESIDE.get(own, ("help",))]
    yield ",\n".join(f".BR nsbox{f'{chr(92)}-{name}' if name else ''} (1)" for name in others).replace(" (1),", " (1),")


# The pages that a page points to, besides the program's own.
_BESIDE = {
    "run": ("shell", "python", "explain", "doctor"),
    "shell": ("run", "explain"),
    "python": ("run", "explain"),
    "mcp": ("run", "explain"),
    "bwrap": ("run",),
    "explain": ("run", "check", "doctor"),
    "init": ("check", "schema"),
    "check": ("init", "schema", "explain"),
    "schema": ("init", "check"),
    "doctor": ("explain", "run"),
    "bench": ("doctor",),
    "help": ("man",),
    "man": ("help", "completion"),
    "completion": ("man",),
}
