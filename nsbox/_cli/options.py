"""The options that make a policy: --ro, --deny, --limit and the like. All other options are in __init__.py."""

from __future__ import annotations

import argparse
import re
from typing import Any

from nsbox._base.errors import NsboxError, PolicyError
from nsbox._base.frozen import TYPE_CHECKING, replace
from nsbox._paths.resolution import current_directory
from nsbox._policy.limits import Limits
from nsbox._policy.policy import BACKENDS, REQUIRE, Policy, default_workspace
from nsbox._seccomp.filter import PROFILES

if TYPE_CHECKING:
    from nsbox._network.network import Network


def add_policy_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to a subcommand."""
    _add_files(parser)
    _add_environment(parser)
    _add_amounts(parser)
    _add_containment(parser)


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-p", "--policy", metavar="FILE", help="a configuration file, instead of the options below")
    parser.add_argument("--section", metavar="TABLE", help="the table of that file, such as agents.sandbox")
    parser.add_argument("-w", "--workspace", metavar="DIR", help="the directory to work in (default: the current one)")
    parser.add_argument("--read", action="append", default=[], metavar="PATH", help="also readable; may be repeated")
    parser.add_argument("--write", action="append", default=[], metavar="PATH", help="also writable; may be repeated")
    parser.add_argument(
        "--deny", action="append", default=[], metavar="PATH", help="hidden: a path or a pattern; may be repeated"
    )
    parser.add_argument("--strict", action="store_true", help="fail if a --deny names or matches nothing")
    parser.add_argument(
        "--home", metavar="HOME", help="private (default), private:NAME (kept), workspace, tmp, or a path"
    )
    parser.add_argument("--tools-bin", metavar="DIR", help="a directory of programs: read-only inside, first in PATH")
    parser.add_argument("--tmp-size", metavar="SIZE", help="the size of /tmp, such as 64M")
    parser.add_argument("--host", action="store_true", help="the whole file system, writable, and the host's network")
    parser.add_argument(
        "--network",
        choices=("none", "host", "public"),
        help="default: none, or host with --host. public: every public address",
    )
    parser.add_argument(
        "--allow-net",
        action="append",
        default=[],
        metavar="ENTRY",
        help="allow connections to it, such as api.example:443, '*.files.example' or 10.1.2.0/24:5432; with --policy, "
        "added to the file's list. May be repeated",
    )


def _add_environment(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="set a variable; without a value, to its value in this environment, if any. May be repeated",
    )
    parser.add_argument("--env-file", action="append", default=[], metavar="FILE", help="read NAME[=VALUE] lines")
    parser.add_argument(
        "--setenv", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), help="the same as --env NAME=VALUE"
    )
    parser.add_argument("--pass-env", action="append", default=[], metavar="NAME", help="the same as --env NAME")


def _add_amounts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--memory", metavar="SIZE", help="limit the address space of each process")
    parser.add_argument("--processes", type=int, metavar="N", help="limit processes and threads of the sandbox")
    parser.add_argument("--cpu-seconds", type=int, metavar="N", help="limit the processor time of each process")
    parser.add_argument("--file-size", metavar="SIZE", help="limit the size of each file that is written")
    parser.add_argument("--open-files", type=int, metavar="N", help="limit the open files of each process")
    parser.add_argument("--total-memory", metavar="SIZE", help="limit the memory of all processes together (cgroup)")
    parser.add_argument("--cpus", type=float, metavar="N", help="limit processors for all together, as 1.5 (cgroup)")


def _add_containment(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--best-effort",
        action="append",
        default=[],
        metavar="WISH",
        help="run even if this can't be had, such as limits.cpus",
    )
    parser.add_argument(
        "--backend",
        choices=("auto", *BACKENDS),
        help="what contains the command",
    )
    parser.add_argument(
        "--require",
        choices=tuple(REQUIRE),
        help="the least that has to be contained (default: filesystem)",
    )
    parser.add_argument("--seccomp", choices=PROFILES, help="which system calls are allowed (default: default)")
    parser.add_argument(
        "--nested", action="store_true", help="let the command make sandboxes of its own, as Chromium does"
    )
    parser.add_argument("--landlock", action="store_true", help="enforce file rules by Landlock too, behind the mounts")
    parser.add_argument(
        "--seatbelt",
        action="append",
        default=[],
        metavar="NAME",
        help="what the command may ask of macOS in addition to the usual, such as tls",
    )
    parser.add_argument("--device", action="append", default=[], metavar="PATH", help="a device node, such as /dev/kvm")
    parser.add_argument("--ids", choices=("single", "full", "auto"), help="which ids exist inside (default: single)")
    parser.add_argument("--uid", type=int, metavar="N", help="the command's user id inside")
    parser.add_argument("--gid", type=int, metavar="N", help="the command's group id inside")
    parser.add_argument("--hostname", metavar="NAME", help="the host name inside")
    parser.add_argument(
        "--keep-session",
        action="store_true",
        help="let the command have your terminal and session, and reach other processes in it",
    )


# The options of this module that go with --policy, as do all options that aren't about the policy.
OF_FILES = (
    "policy",
    "section",
    "workspace",
    "allow_net",
)


_OF_WORKSPACES = ("tmp_size", "hostname", "home", "tools_bin", "landlock", "strict", "device")


def _policy_of_file(options: argparse.Namespace, names: frozenset[str]) -> Policy:
    for name in sorted(names - {*OF_FILES}):
        value = getattr(options, name)
        if not (value is None or value is False or value == []):
            raise PolicyError(_option(name), "doesn't go with --policy: the file says it")
    try:
        policy = Policy.load(options.policy, section=options.section, workspace=options.workspace)
    except PolicyError as error:
        if error.field != "path":
            raise
        raise PolicyError("--policy", error.problem) from None
    except NsboxError:
        raise
    except OSError as error:
        raise PolicyError("--policy", f"{options.policy}: {error.strerror}") from None
    return policy.with_(network=_added(policy.network, options.allow_net)) if options.allow_net else policy


def _added(network: object, entries: list[str]) -> Network:
    """Return a file's network with more entries; raises PolicyError for "host", which includes everything."""
    if network == "host":
        raise PolicyError("--allow-net", "doesn't go with this file: its network is the host's, with everything in it")
    return _listed(entries, network)


def _listed(entries: list[str], more: object = None) -> Network:
    """Return the network list that --allow-net makes. more: the list that it adds to; any other value: none."""
    from nsbox._network.network import Network, entry_problem  # seldom needed

    for entry in entries:
        if problem := entry_problem(entry):
            raise PolicyError("--allow-net", problem)
    try:
        allow = tuple(entries)
        return replace(more, allow=(*more.allow, *allow)) if isinstance(more, Network) else Network(allow=allow)
    except PolicyError as error:
        raise PolicyError("--allow-net", error.problem) from None


def _network(options: argparse.Namespace) -> Network | str:
    """Return the network of a policy that is made from options alone."""
    if not options.allow_net:
        return options.network or "none"
    if options.network in ("none", "host"):
        raise PolicyError("--allow-net", f"doesn't go with --network {options.network}")
    return _listed(["*:*", *options.allow_net] if options.network == "public" else options.allow_net)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def option_names() -> frozenset[str]:
    """Return argparse's names of all options about the policy."""
    parser = argparse.ArgumentParser(add_help=False)
    add_policy_options(parser)
    return frozenset(vars(parser.parse_args([])))


def policy_of(options: argparse.Namespace) -> Policy:
    """Return the policy that the options ask for; raises PolicyError, whose field may be an option."""
    if options.policy is not None:
        return _policy_of_file(options, option_names())
    if options.section is not None:
        raise PolicyError("--section", "belongs to --policy FILE")
    amounts = ("memory", "processes", "cpu_seconds", "file_size", "open_files", "total_memory", "cpus")
    common: dict[str, Any] = {"limits": Limits(**{name: getattr(options, name) for name in amounts})}
    common["env"], common["pass_env"] = _environment(options)
    for name in ("uid", "gid", "best_effort", "seatbelt", "nested", "landlock"):
        common[name] = getattr(options, name)
    for name in ("seccomp", "backend", "require", "home", "tools_bin", "ids"):
        if getattr(options, name) is not None:
            common[name] = getattr(options, name)
    if options.keep_session:
        common["new_session"] = False
    if options.host:
        for name in ("workspace", "read", "write", "deny", "allow_net", *_OF_WORKSPACES):
            if getattr(options, name):
                raise PolicyError(_option(name), "doesn't go with --host")
        if options.network not in (None, "host"):
            raise PolicyError("--network", f"{options.network} doesn't go with --host")
        return Policy.host(**common)
    return default_workspace(
        options.workspace or current_directory(),
        read=options.read,
        write=options.write,
        deny=options.deny,
        network=_network(options),
        tmp_size=options.tmp_size,
        hostname=options.hostname,
        strict=options.strict,
        devices=options.device,
        **common,
    )


# ---- variables


def _environment(options: argparse.Namespace) -> tuple[dict[str, str], list[str]]:
    """Return variables with values, and names of the caller's. The last entry counts; files come before options."""
    env: dict[str, str] = {}
    passed: dict[str, None] = {}
    entries = [("--env-file", entry) for path in options.env_file for entry in _entries(path)]
    entries += [("--env", entry) for entry in options.env]
    for option, entry in entries:
        name, has_value, value = entry.partition("=")
        if not name:
            raise PolicyError(option, f"{entry!r} has no name before the '='")
        if has_value:
            passed.pop(name, None)
            env[name] = value
        else:
            env.pop(name, None)
            passed[name] = None
    return env | dict(options.setenv), [*passed, *options.pass_env]


def _entries(path: str) -> list[str]:
    """Return the lines of a file of variables, without empty lines and comments. Quotes belong to a value."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise PolicyError("--env-file", f"{path}: {error.strerror}") from None
    return [line.lstrip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


# ---- the words of errors

_ARGUMENT = re.compile(r"\b([a-z_]+)=(?:\"([^\"]*)\"|'([^']*)'|[\[{]([^\]}]*)[\]}]|(True))")
_FIELD = re.compile(r"([a-z_]+)(?:\.([a-z_]+))?(: )")


def in_options(text: str) -> str:
    """Return an error's text with the command's options instead of the policy's fields, if there is an option."""
    names = option_names()

    def as_option(argument: re.Match[str]) -> str:
        name, *values, is_true = argument.groups()
        if name not in names:
            return argument[0]
        if is_true:
            return _option(name)
        if values[2] is None:
            return f"{_option(name)} {values[0] if values[1] is None else values[1]}"
        items = [item.strip().strip("\"'") for item in values[2].split(",")]
        name = "allow_net" if name == "network" else name
        return " ".join(f"{_option(name)} {item or '...'}" for item in items)

    text = _ARGUMENT.sub(as_option, text)
    first = _FIELD.match(text)
    name = first[2] or first[1] if first else ""
    name = {"env": "env", "pass_env": "env", "devices": "device"}.get(name, name)
    return f"{_option(name)}: {text[first.end() :]}" if first and name in names else text
