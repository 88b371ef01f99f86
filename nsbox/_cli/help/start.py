"""A command line without a subcommand: the first steps, `nsbox --help`, or the nearest name to one that isn't known."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from nsbox._base.display import printable
from nsbox._cli.commands import COMMANDS, SHELLS
from nsbox._cli.help.style import style_for
from nsbox._cli.messages import flushed, say
from nsbox._cli.parser import Parser, meant

_STEPS = (
    ("nsbox doctor", "says whether sandboxes work on this machine, and what helps if not"),
    ("nsbox shell", "starts a shell in a sandbox: it can change only this directory, and has no network"),
    ("nsbox run -- COMMAND", "runs one command like that"),
)


class _Version(argparse.Action):
    """Prints the version, which is looked up only now."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from nsbox import __version__

        print("nsbox", __version__)
        parser.exit()


class _Completion(argparse.Action):
    """Prints completions for a shell."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: object, shell: Any, *_: Any) -> None:
        from nsbox._cli.completion.shells import completion

        print(completion(shell), end="")
        parser.exit(flushed(0))


def program_parser() -> Parser:
    """Return a parser for options that stand before any subcommand."""
    parser = Parser(usage=("COMMAND ...", "--version"))
    parser.add_argument("-V", "--version", action=_Version, nargs=0, help="show the version")
    parser.add_argument("--completion", action=_Completion, choices=SHELLS, help=argparse.SUPPRESS)  # its old name
    return parser


def start(words: Sequence[str]) -> int:
    """Answer words that don't begin with a subcommand; return the exit status, 2 unless --help or the like is asked."""
    if not words:
        _show_steps()
        return 2
    if not words[0].startswith("-"):
        name = words[0]
        say(f"no such command: {printable(name)}{meant(name, COMMANDS)}; see nsbox --help")
        return 2
    parser = program_parser()
    _, unknown = parser.parse_known_args(words)
    if not unknown or unknown[0] == "--":
        parser.error("needs a command, such as run")
    parser.refuse(unknown)


def _show_steps() -> None:
    """Say on stderr what to try first: whoever gave no command has no use for it on stdout, and scripts neither."""
    stream = sys.stderr
    if stream is None:
        return
    style = style_for(stream)
    width = max(len(line) for line, _ in _STEPS)
    lines = ["nsbox runs commands in sandboxes. Try:", ""]
    for line, about in _STEPS:
        lines.append(f"  {style.paint('name', line)}{' ' * (width - len(line))}  {about}")
    lines += ["", "nsbox --help lists all commands."]
    print(*lines, sep="\n", file=stream)
