"""The nsbox command. A subcommand's module is imported when it is called.

commands.py has the subcommands; parser.py parses their words, with the options about the policy of options.py, from
which policy.py makes one. run/ is `nsbox run` and `nsbox shell`; config.py is `nsbox check`, `init` and `schema`;
bwrap.py, mcp.py, python/, doctor/ and bench/ are named as their subcommands. help/ has what is printed about them,
as help and manual pages, and the first steps; completion/ has the shells' completion. messages.py is for standard
error, progress.py for a bar there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from nsbox._base.errors import NsboxError
from nsbox._cli.messages import complain, flushed, unwritten
from nsbox._logs import logger


def main(argv: Sequence[str] | None = None) -> int:
    """Run the nsbox command with these arguments; return its exit status (2: the arguments or the policy are wrong).

    argv: the arguments without the program's name. Default: this process's.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    logger.show_warnings()
    try:
        return flushed(_called(words))
    except OSError as error:
        return unwritten(error) if error.filename is None else complain(error, 125)
    except SystemExit as exit_:  # argparse's, after --help or an error
        raise SystemExit(flushed(exit_.code if isinstance(exit_.code, int) else 0)) from None


def _called(words: list[str]) -> int:
    if words[:1] == ["bwrap"]:
        from nsbox._cli.bwrap import main as bwrap

        return bwrap(words[1:])
    from nsbox._cli.commands import COMMANDS

    command = COMMANDS.get(words[0]) if words else None
    if command is None:
        from nsbox._cli.help.start import start

        return start(words)
    parser = command.parser()
    options, unknown = parser.parse_known_args(words[1:])
    if unknown:
        parser.refuse(unknown)
    try:
        return int(options.call(options))
    except NsboxError as error:
        return complain(error, 2 if isinstance(error, ValueError) else 125)
    except FileNotFoundError as error:  # the current directory is gone
        return complain(error, 125)
