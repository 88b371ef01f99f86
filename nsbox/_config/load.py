"""Configuration files: TOML, JSON and YAML into a Policy.

_config.reading makes a policy of a text. This module finds the text, and has the names that other packages import.
"""

from __future__ import annotations

import os
import stat

from nsbox._base.checks import check_text
from nsbox._base.frozen import Frozen, frozen_by_name
from nsbox._config.errors import ConfigError, Problem
from nsbox._config.formats import LARGEST, check_format, format_of
from nsbox._config.keys import schema
from nsbox._config.reading import Reading
from nsbox._config.write import dump, dumps
from nsbox._paths.resolution import absolute
from nsbox._policy.policy import Policy

__all__ = ["Config", "ConfigError", "Problem", "dump", "dumps", "load", "loads", "schema"]


@frozen_by_name
class Config(Frozen):
    """What a configuration says.

    policy: what commands may do, whatever the mode.
    mode: "enabled" or "disabled", as for Sandbox().
    path: the file's, as an absolute path; None if the text came from elsewhere.
    """

    policy: Policy
    mode: str = "enabled"
    path: str | None = None


def load(
    path: str | os.PathLike[str], *, section: str | None = None, workspace: str | os.PathLike[str] | None = None
) -> Config:
    """Return what a configuration file says.

    Relative paths in it count from its directory. Commands can't write to the file, even if it is in a directory to
    which they can.

    path: a file whose name ends in .toml, .json, .yaml or .yml.
    section: the table to read, such as "agents.sandbox" or "tool.nsbox". In an array of tables, "agents[main].sandbox"
        is the one whose id or name is main, else the one with that index. "" is the whole file. Default: the table
        `sandbox` if there is one, else the whole file.
    workspace: the directory to work in, if the file names none. Default: none.

    Raises ConfigError (a PolicyError) with everything that is wrong in the file, PolicyError for an argument, OSError
    for a file that can't be read, and UnavailableError for YAML without PyYAML.
    """
    file = check_text("path", os.fspath(path))
    above, name = os.path.split(file)
    base = os.path.realpath(absolute(above or "."))
    format = format_of(file)
    text, names = _text_of(os.path.join(base, name), file)
    reading = Reading(file, base, section, workspace)
    reading.has_other_names = names > 1
    reading.way = absolute(file)
    reading.path = os.path.join(base, name)
    policy, mode = reading.policy(text, format)
    return Config(policy=policy, mode=mode, path=reading.path)


def loads(
    text: str,
    format: str,
    *,
    base: str | os.PathLike[str],
    section: str | None = None,
    workspace: str | os.PathLike[str] | None = None,
) -> Config:
    """Return what a text says, as load() does for a file.

    format: "toml", "json" or "yaml".
    base: the directory that relative paths count from.
    section, workspace: as for load().

    Raises what load() raises; a ConfigError names "<text>" as its source.
    """
    format = check_format(format)
    policy, mode = Reading("<text>", os.path.realpath(base), section, workspace).policy(text, format)
    return Config(policy=policy, mode=mode)


def _text_of(path: str, source: str) -> tuple[str, int]:
    """Return a file's text, and how many names the file has. source: the file as the caller named it."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(source, [Problem("", "isn't a regular file")])
        data = b""
        while len(data) <= LARGEST and (more := os.read(fd, LARGEST + 1 - len(data))):
            data += more
    finally:
        os.close(fd)
    if len(data) > LARGEST:
        raise ConfigError(source, [Problem("", f"is larger than {LARGEST} bytes")])
    try:
        return data.decode(), status.st_nlink
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(source, [Problem("", f"isn't UTF-8 (byte {error.start})", line)]) from None
