"""The nsbox command: its subcommands and their options. Each subcommand's work is imported when it is called."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from nsbox._errors import NsboxError, PolicyError
from nsbox._names import printable
from nsbox._policy import Policy, default_workspace
from nsbox._wished_limits import Limits


def _policy_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-p", "--policy", metavar="FILE", help="a configuration file, in the place of what follows")
    parser.add_argument("--section", metavar="TABLE", help="the table of that file, such as agents.sandbox")
    parser.add_argument("-w", "--workspace", metavar="DIR", help="the directory to work in (default: the current one)")
    parser.add_argument("--read", action="append", default=[], metavar="PATH", help="readable as well; may be repeated")
    parser.add_argument(
        "--write", action="append", default=[], metavar="PATH", help="writable as well; may be repeated"
    )
    parser.add_argument("--deny", action="append", default=[], metavar="PATH", help="hidden; may be repeated")
    parser.add_argument("--network", choices=("none", "host"), help="default: none, with --host: host")
    parser.add_argument("--setenv", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    parser.add_argument("--pass-env", action="append", default=[], metavar="NAME", help="taken from this environment")
    parser.add_argument("--tmp-size", metavar="SIZE", help="of /tmp, such as 64M")
    parser.add_argument("--memory", metavar="SIZE", help="address space of each process")
    parser.add_argument("--processes", type=int, metavar="N")
    parser.add_argument("--cpu-seconds", type=int, metavar="N")
    parser.add_argument("--file-size", metavar="SIZE")
    parser.add_argument("--open-files", type=int, metavar="N")
    parser.add_argument("--total-memory", metavar="SIZE", help="of all processes together, by a cgroup")
    parser.add_argument("--cpus", type=float, metavar="N", help="processors' time of all together, by a cgroup")
    parser.add_argument(
        "--best-effort", action="append", default=[], metavar="WISH", help="may go unfulfilled, such as limits.cpus"
    )
    parser.add_argument(
        "--backend",
        choices=("auto", "namespaces", "bwrap", "seatbelt", "landlock", "passthrough"),
        help="what contains the command",
    )
    parser.add_argument(
        "--require",
        choices=("isolated", "filesystem", "nothing"),
        help="what has to be contained at least (default: filesystem)",
    )
    parser.add_argument(
        "--seccomp", choices=("default", "hardened", "off"), help="which system calls there are (default: default)"
    )
    parser.add_argument(
        "--seatbelt",
        action="append",
        default=[],
        metavar="NAME",
        help="what commands may ask of macOS besides what all may, such as tls",
    )
    parser.add_argument("--home", metavar="HOME", help="private (default), private:NAME (kept), workspace, tmp, a path")
    parser.add_argument("--ids", choices=("single", "full", "auto"), help="which ids exist inside (default: single)")
    parser.add_argument("--uid", type=int, metavar="N", help="the command's user id, inside")
    parser.add_argument("--gid", type=int, metavar="N", help="the command's group id, inside")
    parser.add_argument("--hostname", metavar="NAME", help="the host name, inside")
    parser.add_argument(
        "--keep-session",
        action="store_true",
        help="no session of its own: job control works, and the command can reach the terminal",
    )
    parser.add_argument("--host", action="store_true", help="the whole file system, writable, and the host's network")


_NOT_OF_FILES = ("policy", "section", "workspace", "chdir", "command", "call", "parser")


def _policy_of_file(options: argparse.Namespace) -> Policy:
    for name, value in vars(options).items():
        if name not in _NOT_OF_FILES and not (value is None or value is False or value == []):
            raise PolicyError(f"--{name.replace('_', '-')}", "doesn't go with --policy: the file says it")
    try:
        return Policy.load(options.policy, section=options.section, workspace=options.workspace)
    except NsboxError:
        raise
    except OSError as error:
        raise PolicyError("--policy", f"{options.policy}: {error.strerror}") from None


def _policy(options: argparse.Namespace) -> Policy:
    if options.policy is not None:
        return _policy_of_file(options)
    if options.section is not None:
        raise PolicyError("--section", "belongs to --policy FILE")
    limits = Limits(
        memory=options.memory,
        processes=options.processes,
        cpu_seconds=options.cpu_seconds,
        file_size=options.file_size,
        open_files=options.open_files,
        total_memory=options.total_memory,
        cpus=options.cpus,
    )
    common: dict[str, Any] = {"limits": limits, "env": dict(options.setenv), "pass_env": options.pass_env}
    common |= {"uid": options.uid, "gid": options.gid, "best_effort": options.best_effort}
    common["seatbelt"] = options.seatbelt
    words = ("seccomp", "backend", "require", "home", "ids")
    common |= {name: value for name in words if (value := getattr(options, name)) is not None}
    if options.keep_session:
        common["new_session"] = False
    if options.host:
        for name in ("workspace", "read", "write", "deny", "tmp_size", "hostname"):
            if getattr(options, name):
                raise PolicyError(f"--{name.replace('_', '-')}", "doesn't go with --host")
        if options.network == "none":
            raise PolicyError("--network", "none doesn't go with --host")
        return Policy.host(**common)
    return default_workspace(
        options.workspace or os.getcwd(),
        read=options.read,
        write=options.write,
        deny=options.deny,
        network=options.network or "none",
        tmp_size=options.tmp_size,
        hostname=options.hostname,
        **common,
    )


def _run(options: argparse.Namespace) -> int:
    """Run the command; the exit status is its own, 128+N after signal N.

    127: there is no such program; 126: it can't be executed; 125: the sandbox can't be made; 2: the options are wrong.
    """
    from nsbox._popen import Popen

    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        options.parser.error("no command")
    policy = _policy(options)
    try:
        process = Popen(command, policy=policy, cwd=options.chdir)
    except OSError as error:
        if isinstance(error, NsboxError) or error.filename != command[0]:
            return _complain(error, 125)
        return _complain(error, 127 if isinstance(error, FileNotFoundError) else 126)
    with process:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, lambda sig, frame: process.send_signal(sig))
        status = process.wait()
    return 128 - status if status < 0 else status


def _explain(options: argparse.Namespace) -> int:
    from nsbox._explain import explain

    print(explain(_policy(options)))
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from nsbox._cli import doctor

    return doctor.main(options)


def _bench(options: argparse.Namespace) -> int:
    from nsbox._cli import bench

    return bench.main(options)


def _config(options: argparse.Namespace) -> int:
    from nsbox._cli import config

    return config.main(options)


def _config_options(commands: Any) -> None:
    check = commands.add_parser("check", help="tell what a configuration file comes to")
    check.add_argument("file", metavar="FILE", help="*.toml, *.json, *.yaml or *.yml")
    check.add_argument("--section", metavar="TABLE", help="the table to read, such as agents.sandbox")
    check.add_argument("-w", "--workspace", metavar="DIR", help="the workspace, if the file names none")
    check.set_defaults(call=_config, parser=check, work="check")
    init = commands.add_parser("init", help="write a configuration file to begin with")
    init.add_argument("file", nargs="?", metavar="FILE", help="default: nsbox.toml, or by --format")
    init.add_argument("--format", choices=("toml", "json", "yaml"), help="default: by FILE's name")
    init.add_argument("-w", "--workspace", metavar="DIR", help="the directory to work in (default: FILE's)")
    init.set_defaults(call=_config, parser=init, work="init")
    schema = commands.add_parser("schema", help="print the JSON Schema of configuration files")
    schema.set_defaults(call=_config, parser=schema, work="schema")


def _bwrap(words: Sequence[str]) -> int:
    """Do what bwrap does; --install and --completion, alone with their argument, are nsbox's own."""
    if list(words[:1]) == ["--install"]:
        from nsbox._bwrap.install import install

        if len(words) != 2:
            return _complain(PolicyError("--install", "takes a directory"), 2)
        try:
            print(install(words[1]))
        except OSError as error:
            return _complain(error, 1)
        return 0
    if list(words[:1]) == ["--completion"]:
        from nsbox._bwrap_help import completion

        if len(words) != 2 or words[1] not in ("bash", "zsh", "fish"):
            return _complain(PolicyError("--completion", "takes bash, zsh or fish"), 2)
        print(completion(words[1]), end="")
        return 0
    from nsbox._bwrap import main as bwrap

    return bwrap(["nsbox bwrap", *words])


def _complain(error: BaseException, status: int) -> int:
    notes = getattr(error, "__notes__", [])
    print("nsbox:", printable("; ".join([str(error), *notes])), file=sys.stderr)
    return status


class _Version(argparse.Action):
    """Looks the version up only when it's asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from nsbox import __version__

        print("nsbox", __version__)
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nsbox", description="Run commands in sandboxes made by this process alone.")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run a command in a sandbox", description=_run.__doc__)
    _policy_options(run)
    run.add_argument("-C", "--chdir", metavar="DIR", help="where the command starts")
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")
    run.set_defaults(call=_run, parser=run)
    explain = commands.add_parser("explain", help="show what a policy comes to on this machine")
    _policy_options(explain)
    explain.set_defaults(call=_explain, parser=explain)
    bwrap = commands.add_parser("bwrap", add_help=False, help="do what bwrap does with these options; --install DIR")
    bwrap.add_argument("words", nargs=argparse.REMAINDER)
    bwrap.set_defaults(call=lambda options: _bwrap(options.words))
    doctor = commands.add_parser("doctor", help="try what sandboxes need on this machine, and say what helps")
    doctor.add_argument("--json", action="store_true", help="for programs")
    doctor.add_argument(
        "--apparmor-profile",
        action="store_true",
        help="print a profile for /etc/apparmor.d that lets this interpreter make user namespaces",
    )
    doctor.set_defaults(call=_doctor, parser=doctor)
    _config_options(commands)
    bench = commands.add_parser("bench", help="measure spawn latency against subprocess and bwrap")
    bench.add_argument("--quick", action="store_true", help="few rounds: to see that it works, not to quote")
    bench.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    bench.add_argument("--png", metavar="FILE", help="draw them (needs the extra: bench)")
    parts = "spawn, overhead, warm, rate, memory, binds, threads, files, transaction, hardening, import, front, leaks"
    bench.add_argument("--only", action="append", default=[], metavar="PART", help=f"of {parts}; may be repeated")
    bench.set_defaults(call=_bench, parser=bench)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the nsbox command with these arguments; return its exit status (2: the arguments or the policy are wrong)."""
    if (sys.argv[1:] if argv is None else argv)[:1] == ["bwrap"]:
        return _bwrap((sys.argv[1:] if argv is None else argv)[1:])
    parser = _parser()
    options, unknown = parser.parse_known_args(argv)
    if unknown:  # said by the subcommand, whose usage helps
        getattr(options, "parser", parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        return int(options.call(options))
    except NsboxError as error:
        return _complain(error, 2 if isinstance(error, ValueError) else 125)
