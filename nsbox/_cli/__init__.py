"""The nsbox command: its subcommands and their options. A subcommand's module is imported when it is called.

run.py is `nsbox run` and `nsbox shell`. It hands the command to direct.py or, for a pseudo-terminal, to bridge.py. That
forks a second process, monitor.py; link.py has the messages between the two. job.py handles the command as a shell's
job. keys.py and signals.py have the signals for it, network.py a log and ports of its network.

config.py is `nsbox check`, `init` and `schema`; doctor.py, mcp.py, python/ and bench/ are named as their subcommands.
options.py has the options that make a policy, messages.py what is printed on standard error, completion.py the shells'
completion.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from typing import Any

from nsbox._base.errors import NsboxError, PolicyError
from nsbox._cli.mcp import add_options as add_mcp_options
from nsbox._cli.messages import Parser, complain, flushed, unwritten
from nsbox._cli.network import add_options as add_network_options
from nsbox._cli.options import add_policy_options, policy_of
from nsbox._cli.python.options import add_options as add_python_options


def _run(options: argparse.Namespace) -> int:
    from nsbox._cli import run

    return run.main(options)


def _explain(options: argparse.Namespace) -> int:
    from nsbox._tools.explain import explain

    print(explain(policy_of(options)))
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from nsbox._cli import doctor

    return doctor.main(options)


def _bench(options: argparse.Namespace) -> int:
    from nsbox._cli import bench

    return bench.main(options)


def _python(options: argparse.Namespace) -> int:
    from nsbox._cli.python import command

    return command.main(options)


def _mcp(options: argparse.Namespace) -> int:
    from nsbox._cli import mcp

    return mcp.main(options)


def _config(options: argparse.Namespace) -> int:
    from nsbox._cli import config

    return config.main(options)


def _config_options(commands: Any) -> None:
    check = commands.add_parser("check", help="check a configuration file, and show what it means")
    check.add_argument("file", metavar="FILE", help="*.toml, *.json, *.yaml or *.yml")
    check.add_argument("--section", metavar="TABLE", help="the table to read, such as agents.sandbox")
    check.add_argument("-w", "--workspace", metavar="DIR", help="the workspace, if the file doesn't name one")
    check.set_defaults(call=_config, parser=check, work="check")
    init = commands.add_parser("init", help="write a configuration file to start from")
    init.add_argument("file", nargs="?", metavar="FILE", help="default: nsbox.toml, or as --format says")
    init.add_argument("--format", choices=("toml", "json", "yaml"), help="default: as FILE's name says")
    init.add_argument("-w", "--workspace", metavar="DIR", help="the directory to work in (default: FILE's)")
    init.set_defaults(call=_config, parser=init, work="init")
    schema = commands.add_parser("schema", help="print the JSON Schema of configuration files")
    schema.set_defaults(call=_config, parser=schema, work="schema")


def _bwrap(words: Sequence[str]) -> int:
    """Do what bwrap does. --install and --completion, with only their argument, are nsbox's own."""
    if list(words[:1]) == ["--install"]:
        from nsbox._bwrap.install import install

        if len(words) != 2:
            return complain(PolicyError("--install", "needs a directory"), 2)
        try:
            print(install(words[1]))
        except OSError as error:
            return complain(error, 1)
        return 0
    if list(words[:1]) == ["--completion"]:
        from nsbox._bwrap.help import completion

        if len(words) != 2 or words[1] not in ("bash", "zsh", "fish"):
            return complain(PolicyError("--completion", "needs bash, zsh or fish"), 2)
        print(completion(words[1]), end="")
        return 0
    from nsbox._bwrap import main as bwrap

    return bwrap(["nsbox bwrap", *words])


class _Version(argparse.Action):
    """Prints the version, which is looked up only now."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from nsbox import __version__

        print("nsbox", __version__)
        parser.exit()


class _Completion(argparse.Action):
    """Prints completions for a shell."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: object, shell: Any, *_: Any) -> None:
        from nsbox._cli.completion import completion

        print(completion(shell, parser), end="")
        parser.exit(flushed(0))


def _seconds(text: str) -> float:
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds, such as 90 or 0.5")
    return value


def _run_options(run: argparse.ArgumentParser, work: str) -> None:
    add_policy_options(run)
    run.add_argument("-C", "--chdir", metavar="DIR", help="start the command in this directory")
    run.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="end it after this time, with status 124")
    run.add_argument(
        "--grace",
        type=_seconds,
        default=2.0,
        metavar="SECONDS",
        help="to end it, wait this long from SIGTERM to SIGKILL (default: 2); 0: SIGKILL at once",
    )
    run.add_argument(
        "--transaction",
        action="store_true",
        help="change the workspace only if the command ends with status 0, and then all at once",
    )
    run.add_argument(
        "--diff",
        action="store_true",
        help="at the end, show the changes to the workspace; without --transaction they aren't made",
    )
    add_network_options(run)
    run.set_defaults(call=_run, parser=run, work=work, line=None)


def _python_options(python: argparse.ArgumentParser) -> None:
    add_policy_options(python)
    python.add_argument("-C", "--chdir", metavar="DIR", help="start the code in this directory")
    python.add_argument(
        "--timeout",
        type=_seconds,
        metavar="SECONDS",
        help="end it after this time, with status 124; at the prompt, each block",
    )
    add_python_options(python)
    python.set_defaults(call=_python, parser=python)


def _mcp_options(mcp: argparse.ArgumentParser) -> None:
    add_policy_options(mcp)
    mcp.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="the longest that a call may take")
    mcp.add_argument(
        "--grace",
        type=_seconds,
        default=1.0,
        metavar="SECONDS",
        help="to end a command, wait this long from SIGTERM to SIGKILL (default: 1); 0: SIGKILL at once",
    )
    add_mcp_options(mcp)
    mcp.set_defaults(call=_mcp, parser=mcp)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="nsbox", description="Run commands in sandboxes that this process makes by itself.")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version")
    parser.add_argument(
        "--completion", action=_Completion, choices=("bash", "zsh", "fish"), help="print completions for a shell"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run a command in a sandbox")
    _run_options(run, "run")
    run.add_argument("-c", dest="line", metavar="LINE", help="run a line of shell: by bash if it is there, else by sh")
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")
    shell = commands.add_parser("shell", help="run your shell in a sandbox")
    _run_options(shell, "shell")
    shell.add_argument("command", nargs=argparse.REMAINDER, metavar="-- ARGUMENT ...", help="arguments of the shell")
    _python_options(commands.add_parser("python", help="run Python code in a sandbox, or show a prompt for it"))
    _mcp_options(commands.add_parser("mcp", help="serve an agent's tools to a client of the Model Context Protocol"))
    explain = commands.add_parser("explain", help="show what a policy means on this machine")
    add_policy_options(explain)
    explain.set_defaults(call=_explain, parser=explain)
    bwrap = commands.add_parser("bwrap", add_help=False, help="do what bwrap does with these options; --install DIR")
    bwrap.add_argument("words", nargs=argparse.REMAINDER)
    bwrap.set_defaults(call=lambda options: _bwrap(options.words))
    _other_commands(commands)
    return parser


def _other_commands(commands: Any) -> None:
    doctor = commands.add_parser("doctor", help="try what sandboxes need on this machine, and say what would help")
    doctor.add_argument("--json", action="store_true", help="print JSON, for programs")
    doctor.add_argument(
        "--apparmor-profile",
        action="store_true",
        help="print a profile for /etc/apparmor.d that lets this interpreter make user namespaces",
    )
    doctor.set_defaults(call=_doctor, parser=doctor)
    _config_options(commands)
    bench = commands.add_parser("bench", help="measure spawn latency against subprocess and bwrap")
    bench.add_argument("--quick", action="store_true", help="few rounds: shows that it works; don't quote the figures")
    bench.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    bench.add_argument("--png", metavar="FILE", help="draw them (needs the extra: bench)")
    parts = "spawn, overhead, warm, rate, memory, binds, threads, files, transaction, hardening, import, front"
    choice = f"measure only this: {parts}, network, leaks or python; may be repeated"
    bench.add_argument("--only", action="append", default=[], metavar="PART", help=choice)
    bench.set_defaults(call=_bench, parser=bench)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the nsbox command with these arguments; return its exit status (2: the arguments or the policy are wrong).

    argv: the arguments without the program's name. Default: this process's.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return flushed(_called(words))
    except OSError as error:
        return unwritten(error) if error.filename is None else complain(error, 125)
    except SystemExit as exit_:  # argparse's, after --help or an error
        raise SystemExit(flushed(exit_.code if isinstance(exit_.code, int) else 0)) from None


def _called(words: list[str]) -> int:
    if words[:1] == ["bwrap"]:
        return _bwrap(words[1:])
    parser = _parser()
    options, unknown = parser.parse_known_args(words)
    if unknown:  # reported by the subcommand, so that its usage is shown
        getattr(options, "parser", parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        return int(options.call(options))
    except NsboxError as error:
        return complain(error, 2 if isinstance(error, ValueError) else 125)
    except FileNotFoundError as error:  # the current directory is gone
        return complain(error, 125)
