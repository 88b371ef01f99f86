"""A workspace policy as the text of a configuration file, and files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os

from nsbox._base.checks import check_text
from nsbox._base.display import type_phrase
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._config.formats import check_format, format_of, write
from nsbox._config.keys import KEYS, LIMITS, NETWORK, RULES, Key, default, listed
from nsbox._config.paths import written
from nsbox._paths.user_homes import exposure
from nsbox._policy.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from nsbox._network.network import Network


def dumps(policy: Policy, format: str, *, mode: str = "enabled", base: str | os.PathLike[str] | None = None) -> str:
    """Return the text of a configuration file for a workspace policy; loads() reads it back.

    It has mode, network, and whatever else isn't the default.

    policy: one that Policy.workspace() or a configuration file made.
    format: "toml", "json" or "yaml".
    mode: "enabled" or "disabled". Default: "enabled".
    base: the directory for the file; paths below it become relative. Default: all paths are absolute.

    Raises TypeError, UnavailableError for YAML without PyYAML, and PolicyError for what no file can express: a policy
    that isn't a workspace's, a Filter, no workdir.
    """
    check_format(format)
    if mode not in ("enabled", "disabled"):
        raise PolicyError("mode", f"{mode!r} is unknown, must be one of enabled, disabled")
    if not isinstance(policy, Policy):
        raise TypeError(f"policy is {type_phrase(policy)}, must be nsbox.Policy")
    if policy.base != "workspace":
        raise PolicyError("base", f"is {policy.base!r}; only a workspace policy can be written to a file")
    if not isinstance(policy.seccomp, str):
        raise PolicyError("seccomp", "is a Filter, which can't be written to a file; a profile can")
    if policy.workdir is None:
        raise PolicyError("workdir", "is None, which can't be written to a file; say where commands start")
    above = None if base is None else os.path.realpath(base)
    return write(_tree(policy, mode, lambda path: written(path, above)), format)


def dump(policy: Policy, path: str | os.PathLike[str], *, mode: str = "enabled", replace: bool = False) -> None:
    """Write a configuration file for a workspace policy, whole or not at all.

    policy, mode: as for dumps().
    path: where to write it. The end of its name, such as .toml, says the format.
    replace: True replaces a file that is there. Default: False.

    Raises what dumps() raises, FileExistsError, and OSError.
    """
    file = check_text("path", os.fspath(path))
    base = os.path.dirname(file) or "."
    write_file(file, dumps(policy, format_of(file), mode=mode, base=base), replace=replace)


def write_file(path: str, text: str, *, replace: bool = False) -> None:
    """Write a file that others see whole or not at all; raises OSError, and FileExistsError if there is one."""
    above, name = os.path.split(path)
    directory = os.open(above or ".", getattr(os, "O_PATH", 0) | os.O_DIRECTORY | os.O_CLOEXEC)  # O_PATH is Linux's
    temporary = f".nsbox-{os.urandom(8).hex()}"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=directory)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(fd)
            if replace:
                os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
            else:
                _name_it(directory, temporary, name)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=directory)
    except FileExistsError:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
    finally:
        os.close(directory)


def _name_it(directory: int, temporary: str, name: str) -> None:
    try:
        os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        from nsbox._files.files import NOREPLACE, rename  # a file system without hard links

        rename(directory, temporary, directory, name, NOREPLACE)


# ---- the tree


def _size(value: int) -> int | str:
    """Return a size as a person would write it."""
    for unit, bits in (("T", 40), ("G", 30), ("M", 20), ("K", 10)):
        if value and not value & ((1 << bits) - 1):
            return f"{value >> bits}{unit}"
    return value


def _entry(key: Key, value: Any, path: Callable[[str], str]) -> Any:
    """Return a field's value as a file spells it; None if it has no entry."""
    if value is None:
        return None
    if key.kind == "paths":
        return [path(item) for item in value]
    if key.kind == "home" and not value.startswith("/"):
        return value
    if key.kind in ("path", "home", "size"):
        return _size(value) if key.kind == "size" else path(value)
    if key.kind == "table":
        return _without_none((limit.name, _entry(limit, getattr(value, limit.name), path)) for limit in LIMITS)
    if key.kind == "tables":
        return {}
    if key.kind == "network":
        return value if isinstance(value, str) else _network(value)
    return dict(value) if key.kind == "map" else listed(value) if key.kind in ("texts", "entries") else value


def _network(value: Network) -> Any:
    """Return a network list as a file spells it: as a word, a list, or a table of what isn't the default."""
    entries = {key.name: _entry(key, getattr(value, key.name), str) for key in NETWORK}
    more = {key.name: entries[key.name] for key in NETWORK[1:] if entries[key.name] not in (None, default(key))}
    if not more:
        return "public" if value.allow == ("*:*",) else entries["allow"]
    return {"allow": entries["allow"]} | more


def _without_none(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in pairs if value is not None}


def _rest(all: tuple[str, ...], first: list[str], last: list[str]) -> list[str]:
    """Return the paths that a file has to list to have all of them in this order.

    first, last: those that come first and last without being listed.
    """
    rest = [path for path in all if path not in first and path not in last]
    return rest if tuple(dict.fromkeys((*first, *rest, *last))) == all else list(all[len(first) :])


def _tree(policy: Policy, mode: str, path: Callable[[str], str]) -> dict[str, Any]:
    workspace = next(iter(policy.write), None)
    if workspace != policy.workdir:
        workspace = None
    # A file has to name a home, or a directory of keys, once more: Policy.workspace().
    first = [] if workspace is None or exposure(workspace) is not None else [workspace]
    roots = {field: [r.root for r in policy.paths if r.root in getattr(policy, field)] for field in ("read", "write")}
    tools = [policy.tools_bin] if policy.tools_bin in policy.read else []
    fields = {key.name: getattr(policy, key.field) for key in KEYS if key.field}
    fields |= {
        "writable_paths": _rest(policy.write, first, roots["write"]),
        "readable": _rest(policy.read, [], [*roots["read"], *filter(None, tools)]),
    }
    standard = {key.name: default(key) for key in KEYS} | {"workdir": path(workspace) if workspace else None}
    tree: dict[str, Any] = {"mode": mode} | ({"workspace": path(workspace)} if workspace else {})
    for key in KEYS:
        entry = _entry(key, fields.get(key.name), path)
        if entry is not None and (entry != standard[key.name] or key.name == "network"):
            tree[key.name] = entry
    rules = {rule.name: {"mode": "rw" if rule.root in policy.write else "ro"} for rule in policy.paths}
    for rule in policy.paths:
        entries = {key.name: _entry(key, getattr(rule, key.name), path) for key in RULES if key.name != "mode"}
        rules[rule.name] |= {name: value for name, value in entries.items() if value not in (None, [])}
    return tree | ({"paths": rules} if rules else {})
