"""`nsbox check`, `nsbox init` and `nsbox schema`: check a configuration file, start one, describe its format."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap

from nsbox._base.errors import NsboxError, PolicyError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._config.formats import FORMATS, format_of, toml_value, write
from nsbox._config.keys import KEYS, Key, default, listed
from nsbox._config.load import Config, ConfigError, load, schema
from nsbox._config.paths import written
from nsbox._config.write import write_file
from nsbox._network.network import Network
from nsbox._paths.user_homes import check_workspace
from nsbox._policy.limits import Limits
from nsbox._policy.policy import Policy
from nsbox._policy.variables import LOCALE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsbox._policy.rules import PathRule


def _text(value: str) -> str:
    return value if value.isprintable() else repr(value)


# ---- check


def check(options: argparse.Namespace) -> int:
    """Print what a configuration file means; return 0. If it is wrong, return 1; each problem is a line on stderr."""
    try:
        config = load(options.file, section=options.section, workspace=options.workspace)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    except (NsboxError, OSError) as error:
        problem = error.strerror if isinstance(error, OSError) and not isinstance(error, NsboxError) else str(error)
        print(f"{_text(options.file)}: {problem}", file=sys.stderr)
        return 1
    print(f"{_text(options.file)}: ok")
    for name, values in _rows(config):
        for i, value in enumerate(values or ["-"]):
            print(f"  {'' if i else name:<12}{_text(value)}")
    return 0


def _hidden(policy: Policy) -> list[str]:
    from nsbox._lookup.matches import matches  # seldom needed

    try:
        paths = matches(policy)
    except PolicyError as error:
        return [*policy.deny, f"(no command can start: {error.problem})"]
    lines = []
    for path in policy.deny:
        if path in paths:
            count = len(paths[path])
            lines.append(f"{path} ({count} now)" if count else f"{path} (warning: matches nothing)")
        else:
            lines.append(path if os.path.lexists(path) else f"{path} (isn't there)")
    return lines


def _rows(config: Config) -> Iterator[tuple[str, list[str]]]:
    policy = config.policy
    yield "mode", [config.mode + (": NOTHING IS CONTAINED" if config.mode == "disabled" else "")]
    yield "starts in", [policy.workdir or "."]
    yield "writable", [*policy.write, "/tmp (its own)"]
    yield "readable", [*policy.read, "system directories"]
    yield "hidden", _hidden(policy)
    yield "network", _network(policy)
    yield "environment", [_environment(policy)]
    if policy.tools_bin is not None:
        yield "tools", [policy.tools_bin]
    if policy.paths:
        yield "paths", [_rule(policy, rule) for rule in policy.paths]
    if policy.limits != Limits():
        names = (
            (key.name, getattr(policy.limits, key.name)) for row in KEYS for key in row.keys if row.kind == "table"
        )
        yield "limits", [", ".join(f"{name} {value}" for name, value in names if value is not None)]
    yield "require", [policy.require]
    printed = {"workdir", "read", "write", "deny", "network", "pass_env", "env", "inherit_env", "home", "tools_bin"}
    for key in KEYS:
        if key.field in {"", "limits", "paths", "require"} | printed:
            continue
        value = getattr(policy, key.field)
        value = listed(value) if isinstance(value, tuple | frozenset) else value
        if value != default(key):
            yield key.name, [", ".join(value) if isinstance(value, list) else str(value)]


def _network(policy: Policy) -> list[str]:
    network = policy.network
    if isinstance(network, str):
        return [network]
    assert isinstance(network, Network)
    amounts = [f"private {'yes' if network.private else 'no'}", f"tls {network.tls}"]
    amounts += [f"{network.connections} connections"]
    amounts += [] if network.bytes is None else [f"{network.bytes} bytes"]
    return [*network.allow, *network.deny, f"({', '.join(amounts)})"]


def _environment(policy: Policy) -> str:
    """Return the names only: values may be secrets."""
    callers = dict.fromkeys("LC_*" if name in LOCALE else name for name in policy.taken_from_caller())
    inherited = f"{'all' if policy.inherit_env else ', '.join(callers)} of the caller's"
    names = ", ".join(dict(policy.env))
    return f"{inherited}; HOME: {policy.home}" + (f"; set: {names}" if names else "")


def _rule(policy: Policy, rule: PathRule) -> str:
    details = ["rw" if rule.root in policy.write else "ro", *rule.suffixes]
    details += [] if rule.max_file_bytes is None else [f"up to {rule.max_file_bytes} bytes"]
    return f"{rule.name}: {rule.root} ({', '.join(details)})"


# ---- init


def init(options: argparse.Namespace) -> int:
    """Write a configuration file to start from; return 0. Return 1 if there is one already, or it can't be written."""
    file = options.file or f"nsbox{FORMATS[options.format or 'toml'][0]}"
    format = format_of(file)
    if options.format not in (None, format):
        raise PolicyError("--format", f"is {options.format}, but {file!r} is a name for {format}")
    above = os.path.realpath(os.path.dirname(file) or ".")
    workspace = os.path.realpath(options.workspace or above)
    if options.workspace and not os.path.isdir(workspace):
        raise PolicyError("--workspace", f"{workspace} isn't a directory")
    check_workspace(workspace, ())
    try:
        write_file(file, starter(format, written(workspace, above)))
    except OSError as error:
        print(f"nsbox: {_text(file)}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"{_text(file)}: written; `nsbox check` shows what it means")
    return 0


def starter(format: str, workspace: str) -> str:
    """Return the text of a file with this workspace, and with all other keys as comments if the format has comments."""
    values = {"mode": "enabled", "workspace": workspace, "network": "none"}
    if format == "json":
        return write(values, format)
    lines = ["# What commands may read, write, reach and use up. A key in a comment shows its default, or an example."]
    lines += ["# Relative paths count from this file's directory; ~ and ${NAME} in paths are replaced."]
    for key in KEYS:
        if key.name != "require_os_sandbox":
            lines += ["", *_commented(key, format, values.get(key.name))]
    return "\n".join(lines) + "\n"


def _commented(key: Key, format: str, own: str | None) -> Iterator[str]:
    words = [word for word in key.words if isinstance(word, str)]
    about = key.about if all(word in key.about for word in words) else f"{key.about} ({', '.join(words)})"
    yield from textwrap.wrap(about, 110, initial_indent="# ", subsequent_indent="# ")
    if key.kind in ("map", "table", "tables"):
        yield from (f"# {line}" for line in _table(key, format))
    else:
        value = own if own is not None else default(key) if key.example is None else key.example
        yield f"{'' if own is not None else '# '}{_pair(key.name, value, format)}"


def _table(key: Key, format: str) -> Iterator[str]:
    pairs = [(item.name, item.example if default(item) is None else default(item)) for item in key.keys]
    pairs = pairs or [("NAME", "value")]
    heads = (key.name, "documents") if key.kind == "tables" else (key.name,)
    if format == "toml":
        yield f"[{'.'.join(heads)}]"
    else:
        yield from (f"{'  ' * depth}{name}:" for depth, name in enumerate(heads))
    indent = "" if format == "toml" else "  " * len(heads)
    yield from (indent + _pair(name, value, format) for name, value in pairs)


def _pair(name: str, value: object, format: str) -> str:
    if format == "toml":
        return f"{name} = {toml_value(value)}"
    return f"{name}: {json.dumps(value, ensure_ascii=False)}"


def print_schema(_: argparse.Namespace) -> int:
    """Print the JSON Schema of a configuration file."""
    print(json.dumps(schema(), indent=2))
    return 0


def main(options: argparse.Namespace) -> int:
    """Run the subcommand `options.work`; return its exit status."""
    return {"check": check, "init": init, "schema": print_schema}[options.work](options)
