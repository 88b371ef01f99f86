"""From the options about the policy to a Policy, and from a policy's errors back to the options."""

from __future__ import annotations

import argparse
import os
import re
from typing import Any

from nsbox._base.display import shown
from nsbox._base.errors import NsboxError, PolicyError
from nsbox._base.frozen import TYPE_CHECKING, replace
from nsbox._cli.options import add_policy_options
from nsbox._cli.parser import Parser
from nsbox._paths.resolution import current_directory
from nsbox._policy.limits import Limits
from nsbox._policy.policy import Policy, default_workspace

if TYPE_CHECKING:
    from nsbox._network.network import Network

# The options about the policy that go with --policy, as do all options that aren't about the policy.
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
            raise PolicyError(option(name), "doesn't go with --policy: the file says it")
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


def _check_directory(directory: str, policy: Policy) -> None:
    """Raise PolicyError if a file's policy has another workspace than this directory of --workspace."""
    (first, *_) = (*policy.write, None)
    if first is not None and os.path.realpath(first) != os.path.realpath(directory):
        raise PolicyError(
            "--workspace", f"the file of --policy names another one, {shown(first)}: leave one of the two out"
        )


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


def option(name: str) -> str:
    """Return how an option is spelled, from argparse's name of it."""
    return f"--{name.replace('_', '-')}"


def option_names() -> frozenset[str]:
    """Return argparse's names of all options about the policy."""
    parser = Parser()
    add_policy_options(parser)
    return frozenset(vars(parser.parse_args([])))


def policy_of(options: argparse.Namespace, *, is_fallback: bool = False) -> Policy:
    """Return the policy that the options ask for; raises PolicyError, whose field may be an option.

    is_fallback: options.workspace only counts if the file of --policy names none; else it may not name another one.
    """
    if options.policy is not None:
        policy = _policy_of_file(options, option_names())
        if options.workspace is not None and not is_fallback:
            _check_directory(options.workspace, policy)
        return policy
    if options.section is not None:
        raise PolicyError("--section", "belongs to --policy FILE")
    common: dict[str, Any] = {"limits": _limits(options)}
    common["env"], common["pass_env"] = _environment(options)
    for name in ("uid", "gid", "degrade", "seatbelt", "nested", "landlock"):
        common[name] = getattr(options, name)
    for name in ("seccomp", "backend", "require", "home", "tools_bin", "ids"):
        if getattr(options, name) is not None:
            common[name] = getattr(options, name)
    if options.keep_session:
        common["new_session"] = False
    if options.host:
        for name in ("workspace", "read_only", "read", "write", "deny", "allow_net", *_OF_WORKSPACES):
            if getattr(options, name):
                raise PolicyError(option(name), "doesn't go with --host")
        if options.network not in (None, "host"):
            raise PolicyError("--network", f"{options.network} doesn't go with --host")
        return Policy.host(**common)
    return default_workspace(
        current_directory() if options.workspace is None else options.workspace,
        read=options.read,
        write=options.write,
        deny=options.deny,
        read_only=options.read_only,
        network=_network(options),
        tmp_size=options.tmp_size,
        hostname=options.hostname,
        strict=options.strict,
        devices=options.device,
        **common,
    )


def _limits(options: argparse.Namespace) -> Limits:
    names = ("memory", "processes", "cpu_seconds", "file_size", "open_files", "total_memory", "cpus")
    amounts: dict[str, Any] = {name: value for name in names if (value := getattr(options, name)) is not None}
    return Limits.sensible(**amounts) if options.sensible_limits else Limits(**amounts)


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
    for option, names in (("--setenv", dict(options.setenv)), ("--pass-env", options.pass_env)):
        for name in names:
            if not name or "=" in name:
                raise PolicyError(option, f"{name!r} isn't the name of a variable")
    return env | dict(options.setenv), [*passed, *options.pass_env]


def _entries(path: str) -> list[str]:
    """Return the lines of a file of variables, without empty lines and comments. Quotes belong to a value."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise PolicyError("--env-file", f"{shown(path)}: {error.strerror}") from None
    return [line.lstrip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


# ---- the words of errors

_ARGUMENT = re.compile(
    r"\b(?:limits\.)?([a-z_]+)=(?:\"([^\"]*)\"|'([^']*)'|[\[{]([^\]}]*)[\]}]|(\d+(?:\.\d+)?)|(True))"
)
_FIELD = re.compile(r"([a-z_]+)(?:\.([a-z_]+))?(: )")


def in_options(text: str) -> str:
    """Return an error's text with the command's options instead of the policy's fields, if there is an option."""
    names = option_names()

    def as_option(argument: re.Match[str]) -> str:
        name, *values, is_true = argument.groups()
        if name not in names:
            return argument[0]
        if is_true:
            return option(name)
        if values[2] is None:
            return f"{option(name)} {next(value for value in (values[0], values[1], values[3]) if value is not None)}"
        items = [item.strip().strip("\"'") for item in values[2].split(",")]
        if name == "degrade":
            return f"{option(name)} {','.join(items)}"
        name = "allow_net" if name == "network" else name
        return " ".join(f"{option(name)} {item or '...'}" for item in items)

    text = _ARGUMENT.sub(as_option, text)
    first = _FIELD.match(text)
    name = first[2] or first[1] if first else ""
    name = {"env": "env", "pass_env": "env", "devices": "device"}.get(name, name)
    return f"{option(name)}: {text[first.end() :]}" if first and name in names else text


def record_of(options: argparse.Namespace) -> None:
    """Let each start and end have a record in the file of --audit, if there is one."""
    if options.audit is not None:
        from nsbox import audit  # for this option alone

        try:
            audit.to_file(options.audit, required=True)
        except OSError as error:
            raise PolicyError("--audit", f"{shown(options.audit)}: {error.strerror or error}") from None
