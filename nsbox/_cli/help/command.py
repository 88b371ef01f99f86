"""`nsbox help`, `nsbox man` and `nsbox completion`."""

from __future__ import annotations

import argparse
import os

from nsbox._base.errors import PolicyError
from nsbox._cli.commands import COMMANDS


def main(options: argparse.Namespace) -> int:
    """Run the subcommand `options.work`; return its exit status."""
    return {"help": _help, "man": _man, "completion": _completion}[options.work](options)


def _help(options: argparse.Namespace) -> int:
    from nsbox._cli.help.start import program_parser

    parser = program_parser() if options.command is None else COMMANDS[options.command].parser()
    parser.print_help()
    return 0


def _man(options: argparse.Namespace) -> int:
    from nsbox._cli.help.page import pages
    from nsbox._cli.help.roff import file_name, roff

    if options.write is None:
        name = f"nsbox {options.command or ''}".rstrip()
        print(next(roff(page) for page in pages() if page.name == name), end="")
        return 0
    if options.command is not None:
        raise PolicyError("--write", f"writes all pages, not {options.command}'s alone")
    try:
        os.makedirs(options.write, exist_ok=True)
        for page in pages():
            with open(os.path.join(options.write, file_name(page)), "w", encoding="utf-8") as file:
                file.write(roff(page))
    except OSError as error:
        raise PolicyError("--write", f"{error.filename}: {error.strerror}") from None
    return 0


def _completion(options: argparse.Namespace) -> int:
    from nsbox._cli.completion.shells import completion

    print(completion(options.shell), end="")
    return 0
