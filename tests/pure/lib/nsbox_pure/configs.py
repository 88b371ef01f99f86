"""What the tests of configuration files share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from nsbox import Policy
from nsbox._config.load import ConfigError, loads, schema

FORMATS = ("toml", "json", "yaml")
calm = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def needs(format: str) -> str:
    """Return the format, but skip the test if there is no parser for it."""
    if format == "yaml":
        pytest.importorskip("yaml")
    return format


def directories(path: Path) -> Path:
    """Make some directories in it, as a configuration would name them."""
    for name in ("work", "work/inner", "data", "more", "tools"):
        (path / name).mkdir()
    return path


def of(text: str, base: Path, format: str = "toml", **options: Any) -> Policy:
    """Return the policy that a text says."""
    return loads(text, needs(format), base=base, **options).policy


def problems(text: str, base: Path, format: str = "toml", **options: Any) -> list[str]:
    """Return what the error says of a text that is wrong: LINE: KEY: PROBLEM."""
    with pytest.raises(ConfigError) as caught:
        loads(text, needs(format), base=base, **options)
    assert caught.value.source == "<text>"
    return [line.removeprefix("<text>:").strip() for line in str(caught.value).split("\n")]


def check_schema(tree: object) -> None:
    """Fail for what doesn't fit the schema; where there is no validator, for nothing."""
    try:
        import jsonschema
    except ImportError:
        return
    jsonschema.Draft202012Validator(schema()).validate(tree)


EVERYTHING = """
mode = "disabled"
workspace = "work"
workdir = "work/inner"
readable = ["data"]
writable_paths = ["more"]
deny = ["work/secret"]
strict = true
devices = ["/dev/kvm"]
network = "host"
passthrough_env = ["GH_TOKEN"]
inherit_env = true
tools_bin = "tools"
shell_path = "/bin/dash"
home = "/tmp"
tmp_size = "64M"
protected = ["nsbox.toml"]
symlinks = "beneath"
require = "isolated"
backend = "namespaces"
degrade = ["limits.cpus"]
seatbelt = ["tls"]
seccomp = "hardened"
landlock = true
unshare = ["uts", "time"]
ids = "auto"
uid = 5
gid = 0
hostname = "box"
new_session = false
kill_on_exit = false

[env]
A = "1"
B = ""

[limits]
memory = "1G"
processes = 10
cpu_seconds = 60
file_size = 1000
open_files = 64
core_size = 0
locked_memory = "8M"
message_queues = 0
pending_signals = 300
total_memory = "2G"
cpus = 1

[paths.notes]
root = "work/inner"
mode = "rw"
suffixes = [".md"]
max_file_bytes = "1M"
"""
