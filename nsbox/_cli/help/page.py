"""A page about a subcommand, as a value: made of its parser and of prose.py; printed by text.py and roff.py."""

from __future__ import annotations

import argparse
from typing import Literal

from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._cli.commands import COMMANDS, Command
from nsbox._cli.help.prose import PROGRAM, PROSE, Prose
from nsbox._policy.losses import LEVELS, LOSSES
from nsbox._policy.policy import PRESETS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsbox._cli.parser import Parser

# What a shell offers for a word: files, directories, one of some words, variables, programs, or nothing.
Kind = Literal["file", "directory", "words", "variable", "program", ""]

_KINDS: dict[str, Kind] = {"FILE": "file", "PATH": "file", "DIR": "directory", "COMMAND": "program"}
_BY_NAME: dict[str, Kind] = {"env": "variable", "pass_env": "variable", "setenv": "variable"}
# Words for an option that takes others too.
_WORDS: dict[str, tuple[str, ...]] = {
    "home": ("private", "workspace", "tmp"),
    "degrade": (*LEVELS, *LOSSES),
    "seatbelt": PRESETS,
}


@frozen
class Argument(Frozen):
    """An option, or an operand.

    names: how the option is spelled; () for an operand.
    values: the names of the words that follow it; those of an operand are itself.
    about: what it does.
    kind, words: what a shell offers for the first of the values.
    is_rest: whether all that follows belongs to it.
    """

    names: tuple[str, ...]
    values: tuple[str, ...]
    about: str
    kind: Kind = ""
    words: tuple[str, ...] = ()
    is_rest: bool = False


@frozen
class Topic(Frozen):
    """Options that belong together."""

    title: str
    arguments: tuple[Argument, ...]


@frozen
class Page(Frozen):
    """All that is known of a subcommand, or of the program.

    name: the words that call it, such as "nsbox run".
    about: what it does, in a line.
    usages: its forms, with its name.
    operands: without those that aren't explained.
    topics: the options. The last topic has --help.
    commands: of the program: its subcommands.
    """

    name: str
    about: str
    usages: tuple[str, ...]
    operands: tuple[Argument, ...]
    topics: tuple[Topic, ...]
    prose: Prose
    commands: tuple[Command, ...] = ()

    def options(self) -> Iterator[Argument]:
        """Yield all options."""
        for topic in self.topics:
            yield from topic.arguments


def _argument(action: argparse.Action) -> Argument:
    words = tuple(str(choice) for choice in action.choices or ())
    takes_none = action.nargs == 0
    metavar = action.metavar if action.metavar is not None else "|".join(words) or action.dest.upper()
    values = metavar if isinstance(metavar, tuple) else (metavar,)
    words = words or _WORDS.get(action.dest, ())
    kind = "words" if words else _BY_NAME.get(action.dest) or _KINDS.get(values[0], "")
    return Argument(
        tuple(action.option_strings),
        () if takes_none else values,
        "show this help" if isinstance(action, argparse._HelpAction) else (action.help or "").replace("%%", "%"),
        "" if takes_none else kind,
        words,
        action.nargs == argparse.REMAINDER,
    )


def _of_bwrap() -> Iterator[Topic]:
    """Yield the options of bwrap, of which argparse knows nothing."""
    from nsbox._bwrap.options import options
    from nsbox._plan.capabilities import CAPABILITIES

    kinds: dict[str, Kind] = {"p": "file", "c": "words"}
    topics: dict[str, list[Argument]] = {}
    for option in options():
        place = option.places[:1]
        words = ("ALL", *CAPABILITIES) if place == "c" else ()
        one = Argument((option.name,), tuple(option.args), option.help, kinds.get(place, ""), words)
        topics.setdefault(f"bwrap's: {option.group}", []).append(one)
    for title, arguments in topics.items():
        yield Topic(title, tuple(arguments))


def page_of(parser: Parser) -> Page:
    """Return the page about a parser's subcommand."""
    topics = [
        Topic(title, tuple(_argument(action) for action in group._group_actions))
        for title, group in parser.topics.items()
    ]
    if parser.name == "bwrap":
        topics += _of_bwrap()
    else:
        rest = [action for action in parser._optionals._group_actions if action.help != argparse.SUPPRESS]
        topics.append(Topic("Other options", tuple(map(_argument, rest))))
    operands = tuple(_argument(action) for action in parser._positionals._group_actions if action.help)
    command = COMMANDS.get(parser.name)
    return Page(
        parser.prog,
        PROGRAM if command is None else command.about,
        tuple(line.rstrip() for line in parser.format_usage().splitlines()),
        operands,
        tuple(topics),
        PROSE[parser.name],
        () if command is not None else tuple(COMMANDS.values()),
    )


def pages() -> tuple[Page, ...]:
    """Return the page of the program, and those of all subcommands."""
    from nsbox._cli.help.start import program_parser

    return (page_of(program_parser()), *(page_of(command.parser()) for command in COMMANDS.values()))
