"""The subcommands: what each is for, and a parser with its options, which is made when it is asked for.

Lean: making all parsers takes longer than starting a sandbox. `nsbox run` makes one, and imports what that one needs.
"""

from __future__ import annotations

import argparse
import math
from typing import Any, NamedTuple

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._cli.options import add_policy_options
from nsbox._cli.parser import Parser

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SHELLS = ("bash", "zsh", "fish")
# What `nsbox bench` measures, in this order; the functions are in bench/.
PARTS = (
    *("spawn", "overhead", "warm", "rate", "memory", "binds", "threads", "files", "transaction", "hardening"),
    *("import", "front", "network", "leaks", "grep", "calls", "python"),
)


class Command(NamedTuple):
    """A subcommand.

    group: the title under which `nsbox --help` has it.
    about: what it does, in a line.
    usage: what follows its name, once for each form.
    build: adds its options to a parser.
    """

    name: str
    group: str
    about: str
    usage: tuple[str, ...]
    build: Callable[[Parser], None]

    def parser(self) -> Parser:
        """Return its parser. What that makes of words has `call`, which runs the subcommand, and `parser`."""
        parser = Parser(self.name, self.usage)
        self.build(parser)
        parser.set_defaults(parser=parser)
        return parser


def seconds(text: str) -> float:
    """Return a time that an option gives; raises ArgumentTypeError."""
    number, factor = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1)
    try:
        value = float(number) * factor
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} isn't a number of seconds, such as 90, 0.5 or 2m")
    return value


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}  # as timeout(1) has them


def limit(text: str) -> float:
    """Return a time limit that an option gives; raises ArgumentTypeError."""
    value = seconds(text)
    if value == 0:
        raise argparse.ArgumentTypeError(f"{text!r} leaves no time; without this option there is no limit")
    return value


# ---- commands in sandboxes


def _run_options(parser: Parser, work: str) -> None:
    from nsbox._cli.run.network import add_options

    topic = parser.topic("The command")
    topic.add_argument(
        "--audit",
        metavar="FILE",
        help="append a JSON record of the command to this file; if that fails, the command isn't started",
    )
    topic.add_argument("-C", "--chdir", metavar="DIR", help="start the command in this directory")
    topic.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        help="print errors alone: neither what is lost here nor why the command may have failed",
    )
    topic.add_argument(
        "--timeout", type=limit, metavar="SECONDS", help="end the command after this time, with status 124"
    )
    topic.add_argument(
        "--grace",
        type=seconds,
        default=2.0,
        metavar="SECONDS",
        help="to end it, wait this long from SIGTERM to SIGKILL (default: 2); 0: SIGKILL at once",
    )
    topic = parser.topic("Changes to the workspace")
    topic.add_argument(
        "--transaction",
        action="store_true",
        help="change the workspace only if the command ends with status 0, and then all at once",
    )
    topic.add_argument(
        "--diff",
        action="store_true",
        help="at the end, show the changes to the workspace; without --transaction they aren't made",
    )
    add_policy_options(parser)
    add_options(parser)
    parser.set_defaults(call=_call_run, work=work, line=None)


def _run(parser: Parser) -> None:
    _run_options(parser, "run")
    parser.topic("The command").add_argument(
        "-c", dest="line", metavar="LINE", help="run a shell line: with bash if the sandbox has it, else with sh"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="the command, and its arguments")


def _shell(parser: Parser) -> None:
    _run_options(parser, "shell")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="arguments of the shell")


def _call_run(options: argparse.Namespace) -> int:
    from nsbox._cli.run import command

    return command.main(options)


def _python(parser: Parser) -> None:
    from nsbox._cli.python.options import add_options

    topic = parser.topic("The code")
    topic.add_argument("-C", "--chdir", metavar="DIR", help="start the code in this directory")
    topic.add_argument(
        "--timeout",
        type=seconds,
        metavar="SECONDS",
        help="end the code after this time, with status 124; at the prompt, interrupt each block",
    )
    add_options(parser)
    add_policy_options(parser)
    parser.set_defaults(call=_call_python)


def _call_python(options: argparse.Namespace) -> int:
    from nsbox._cli.python import command

    return command.main(options)


def _mcp(parser: Parser) -> None:
    from nsbox._cli.mcp import add_options

    topic = parser.topic("Tool calls")
    topic.add_argument("--timeout", type=limit, metavar="SECONDS", help="the longest that a call may take")
    topic.add_argument(
        "--grace",
        type=seconds,
        default=1.0,
        metavar="SECONDS",
        help="to end a command, wait this long from SIGTERM to SIGKILL (default: 1); 0: SIGKILL at once",
    )
    add_options(parser)
    add_policy_options(parser)
    parser.set_defaults(call=_call_mcp)


def _call_mcp(options: argparse.Namespace) -> int:
    from nsbox._cli import mcp

    return mcp.main(options)


# ---- policies


def _explain(parser: Parser) -> None:
    add_policy_options(parser)
    parser.set_defaults(call=_call_explain)


def _call_explain(options: argparse.Namespace) -> int:
    from nsbox._cli.policy import policy_of
    from nsbox._tools.explain import explain

    print(explain(policy_of(options)))
    return 0


def _check(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="*.toml, *.json, *.yaml or *.yml")
    topic = parser.topic("The file")
    topic.add_argument("--section", metavar="TABLE", help="the table to read, such as agents.sandbox")
    topic.add_argument("-w", "--workspace", metavar="DIR", help="the workspace, if the file doesn't name one")
    parser.set_defaults(call=_call_config, work="check")


def _init(parser: Parser) -> None:
    parser.add_argument("file", nargs="?", metavar="FILE", help="default: nsbox.toml, or as --format says")
    topic = parser.topic("The file")
    topic.add_argument("--format", choices=("toml", "json", "yaml"), help="default: as FILE's name says")
    topic.add_argument("-w", "--workspace", metavar="DIR", help="the directory to work in (default: FILE's)")
    parser.set_defaults(call=_call_config, work="init")


def _schema(parser: Parser) -> None:
    parser.set_defaults(call=_call_config, work="schema")


def _call_config(options: argparse.Namespace) -> int:
    from nsbox._cli import config

    return config.main(options)


# ---- this machine


def _doctor(parser: Parser) -> None:
    parser.add_argument(
        "symptom",
        nargs="*",
        metavar="SYMPTOM",
        help="an error's text, or a word for it such as docker: its cause, and what helps. -: read it from stdin",
    )
    topic = parser.topic("Output")
    topic.add_argument("--json", action="store_true", help="print JSON, for programs")
    topic.add_argument("--list", action="store_true", help="list the known symptoms")
    topic.add_argument(
        "--apparmor-profile",
        action="store_true",
        help="print a profile for /etc/apparmor.d that lets this interpreter make user namespaces",
    )
    parser.set_defaults(call=_call_doctor)


def _call_doctor(options: argparse.Namespace) -> int:
    from nsbox._cli.doctor import command

    return command.main(options)


def _bench(parser: Parser) -> None:
    topic = parser.topic("What is measured")
    topic.add_argument("--quick", action="store_true", help="few rounds: shows that it works; don't quote the figures")
    topic.add_argument(
        "--only", action="append", default=[], choices=PARTS, metavar="PART", help="only this part; may be repeated"
    )
    topic = parser.topic("Output")
    topic.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    topic.add_argument("--png", metavar="FILE", help="draw them (needs the extra: bench)")
    parser.set_defaults(call=_call_bench)


def _call_bench(options: argparse.Namespace) -> int:
    from nsbox._cli import bench

    return bench.main(options)


# ---- bubblewrap, and help


def _bwrap(parser: Parser) -> None:
    topic = parser.topic("nsbox's own")
    topic.add_argument("--install", metavar="DIR", help="make an executable bwrap in this directory")
    topic.add_argument("--completion", choices=SHELLS, metavar="SHELL", help="print completions for a shell")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND", help="the command, and its arguments")
    parser.set_defaults(call=_call_bwrap)


def _call_bwrap(options: argparse.Namespace) -> int:
    from nsbox._cli.bwrap import main

    return main(options.words)


def _help(parser: Parser) -> None:
    parser.add_argument("command", nargs="?", choices=tuple(COMMANDS), metavar="COMMAND", help="a subcommand")
    parser.set_defaults(call=_call_help, work="help")


def _man(parser: Parser) -> None:
    parser.add_argument("command", nargs="?", choices=tuple(COMMANDS), metavar="COMMAND", help="a subcommand")
    topic = parser.topic("Output")
    topic.add_argument("--write", metavar="DIR", help="write all pages into this directory, such as a man1")
    parser.set_defaults(call=_call_help, work="man")


def _completion(parser: Parser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    parser.set_defaults(call=_call_help, work="completion")


def _call_help(options: argparse.Namespace) -> int:
    from nsbox._cli.help import command

    return command.main(options)


_ROWS: tuple[tuple[str, str, str, tuple[str, ...], Any], ...] = (
    (
        "run",
        "Run something in a sandbox",
        "run a command in a sandbox",
        ("[OPTIONS] [--] COMMAND [ARGUMENTS]", "[OPTIONS] -c LINE [ARGUMENTS]"),
        _run,
    ),
    ("shell", "Run something in a sandbox", "run your shell in a sandbox", ("[OPTIONS] [-- ARGUMENTS]",), _shell),
    (
        "python",
        "Run something in a sandbox",
        "run Python code in a sandbox, or show a prompt for it",
        ("[OPTIONS] [FILE [ARGUMENTS]]", "[OPTIONS] -c CODE [ARGUMENTS]"),
        _python,
    ),
    (
        "mcp",
        "Run something in a sandbox",
        "serve an agent's tools to a client of the Model Context Protocol",
        ("[OPTIONS]",),
        _mcp,
    ),
    (
        "bwrap",
        "Run something in a sandbox",
        "do what bwrap does with these options",
        ("[OPTIONS OF BWRAP] [--] COMMAND [ARGUMENTS]", "--install DIR", "--completion SHELL"),
        _bwrap,
    ),
    ("explain", "Policies", "show what a policy means on this machine", ("[OPTIONS]",), _explain),
    ("init", "Policies", "write a configuration file to start from", ("[OPTIONS] [FILE]",), _init),
    ("check", "Policies", "check a configuration file, and show what it means", ("[OPTIONS] FILE",), _check),
    ("schema", "Policies", "print the JSON Schema of configuration files", ("",), _schema),
    (
        "doctor",
        "This machine",
        "try what sandboxes need, and say what would help; explain an error",
        ("[OPTIONS]", "[OPTIONS] SYMPTOM"),
        _doctor,
    ),
    ("bench", "This machine", "measure how fast sandboxes start here", ("[OPTIONS]",), _bench),
    ("help", "More", "show the help of a subcommand", ("[COMMAND]",), _help),
    ("man", "More", "print a manual page, or write all of them", ("[COMMAND]", "--write DIR"), _man),
    ("completion", "More", "print completions for bash, zsh or fish", ("SHELL",), _completion),
)

COMMANDS: Mapping[str, Command] = {row[0]: Command(*row) for row in _ROWS}
