"""The keys of a configuration file, as one table: parser, writer, starter file and JSON Schema are all made from it.

What a value comes to on this machine (which path it is, whether it exists) is _config.load's business.
"""

from __future__ import annotations

from nsbox._base.frozen import TYPE_CHECKING, Frozen, fields, frozen_by_name
from nsbox._policy.policy import BACKENDS, BEST_EFFORT, PRESETS, REQUIRE, Policy
from nsbox._seccomp.filter import PROFILES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any, Literal, TypeAlias

    Kind: TypeAlias = Literal[
        "text",
        "path",
        "home",
        "flag",
        "count",
        "number",
        "size",
        "word",
        "texts",
        "paths",
        "map",
        "table",
        "tables",
        "network",
        "entries",
    ]

MOST_ID = 2**32 - 2


@frozen_by_name
class Key(Frozen):
    """A key. kind: what its value is; about: one line for people; field: of Policy that it sets, "" if not one alone.

    default: what holds without it, where that isn't the field's. example: for a starter file, where there is no
    default. words: the values of a "word", or the items of "texts" (any, if empty), and what the field is then.
    must_exist: a path that has to be there. keys: of a "table", or of each of "tables". most: of a "count".
    """

    name: str
    kind: Kind
    about: str
    field: str = ""
    default: object = None
    example: object = None
    words: Mapping[str | bool, str] = {}
    must_exist: bool = True
    keys: tuple[Key, ...] = ()
    least: int = 1
    most: int = 2**63 - 1

    @property
    def or_else(self) -> str:
        """Say what a value may be besides one of the words."""
        return ", or a list of entries such as ['api.example:443']" if self.kind == "network" else ""


def _same(words: Iterable[str]) -> dict[str | bool, str]:
    return {word: word for word in words}


_SIZE = "a number of bytes, or a text such as '64M' (K, M, G, T: powers of 1024)"

LIMITS = (
    Key(name="memory", kind="size", example="2G", about="address space of each process"),
    Key(name="processes", kind="count", example=256, about="processes and threads of the whole sandbox"),
    Key(name="cpu_seconds", kind="count", example=600, about="processor time of each process"),
    Key(name="file_size", kind="size", example="1G", about="of any file written"),
    Key(name="open_files", kind="count", example=1024, about="descriptors of each process"),
    Key(name="core_size", kind="size", least=0, example=0, about="of a core dump; 0 for none"),
    Key(name="locked_memory", kind="size", least=0, example="8M", about="that a process may lock"),
    Key(name="message_queues", kind="size", least=0, example="1M", about="of POSIX message queues"),
    Key(name="pending_signals", kind="count", example=1024, about="signals and timers that wait"),
    Key(name="total_memory", kind="size", example="4G", about="of all processes together; needs a delegated cgroup"),
    Key(name="cpus", kind="number", example=1.5, about="processors' time of all together; needs a delegated cgroup"),
)

NETWORK = (
    Key(
        name="allow",
        kind="entries",
        example=["api.example:443", "*.files.example"],
        about="what may be connected to: NAME, *.NAME, IPv4[/n], localhost or *; then :PORT, or it is 443 (required)",
    ),
    Key(name="deny", kind="entries", default=(), about="entries that are denied although others allow them"),
    Key(name="private", kind="flag", default=False, about="names may have addresses of private networks"),
    Key(
        name="tls",
        kind="word",
        default="sni",
        words=_same(("sni", "sni-ech", "off")),
        about="whether the server's name in TLS is checked: sni, sni-ech (encrypted hellos pass), off",
    ),
    Key(name="connections", kind="count", default=256, most=10_000, about="at once, of a sandbox"),
    Key(name="bytes", kind="size", example="1G", about="of a sandbox, both ways together"),
)

RULES = (
    Key(name="root", kind="path", example="documents", about="the directory or file (required)"),
    Key(
        name="mode",
        kind="word",
        default="ro",
        words={"ro": "read", "rw": "write"},
        about="ro: readable, rw: writable too",
    ),
    Key(
        name="suffixes",
        kind="texts",
        default=(),
        about="ends of file names, such as '.md', that Sandbox.read() and its kin keep to; empty: any",
    ),
    Key(name="max_file_bytes", kind="size", example="10M", about="no larger files for Sandbox.read() and its kin"),
)

KEYS = (
    Key(
        name="mode",
        kind="word",
        default="enabled",
        words=_same(("enabled", "disabled")),
        about="disabled: commands run without any containment, in the same environment",
    ),
    Key(name="workspace", kind="path", example=".", about="the directory to work in, writable; commands start there"),
    Key(
        name="workdir",
        kind="path",
        field="workdir",
        example=".",
        must_exist=False,
        about="where commands start; by default the workspace, without one this file's directory",
    ),
    Key(name="readable", kind="paths", field="read", about="readable as well"),
    Key(name="writable_paths", kind="paths", field="write", about="writable as well"),
    Key(
        name="deny",
        kind="paths",
        field="deny",
        must_exist=False,
        about="hidden, such as a data directory or '**/*.pem'; needn't exist",
    ),
    Key(name="strict", kind="flag", field="strict", about="what deny names or matches has to be there"),
    Key(name="devices", kind="texts", field="devices", default=(), about="device nodes, such as '/dev/dri'"),
    Key(
        name="network",
        kind="network",
        field="network",
        words={"none": "none", "host": "host", "full": "host", "public": "public", False: "none", True: "host"},
        keys=NETWORK,
        about="none (false): only a loopback of its own; host (full, true): the host's; public: every public address; "
        "a list of what may be connected to, such as ['api.example:443']; a table: that list as allow, and more",
    ),
    Key(name="passthrough_env", kind="texts", field="pass_env", about="variables taken from the caller's environment"),
    Key(name="inherit_env", kind="flag", field="inherit_env", about="take the caller's whole environment"),
    Key(
        name="tools_bin",
        kind="path",
        field="tools_bin",
        example="tools/bin",
        about="programs; read-only, first in PATH",
    ),
    Key(
        name="shell_path",
        kind="text",  # a path in the sandbox, whose links are that's too
        field="shell_path",
        example="/bin/sh",
        about="the shell of shell(), an absolute path; by default bash where the sandbox has it, else /bin/sh",
    ),
    Key(
        name="home",
        kind="home",
        field="home",
        default="private",
        must_exist=False,
        about="HOME of commands: private, private:NAME (kept), workspace, tmp, or a path",
    ),
    Key(name="tmp_size", kind="size", field="tmp_size", example="256M", about=f"of the private /tmp: {_SIZE}"),
    Key(name="protected", kind="texts", field="protected", about="names of files that Sandbox.write() never writes"),
    Key(
        name="symlinks",
        kind="word",
        field="symlinks",
        words=_same(("refuse", "beneath")),
        about="what Sandbox.read() and its kin do with links: refuse, or follow those that stay beneath their root",
    ),
    Key(
        name="require",
        kind="word",
        field="require",
        words=_same(REQUIRE),
        about="the least to be enforced: isolated (namespaces), filesystem (Seatbelt, Landlock too), nothing",
    ),
    Key(
        name="require_os_sandbox",
        kind="word",
        example=True,
        words={True: "filesystem", False: "nothing"},
        about="another spelling of require: true is filesystem, false is nothing",
    ),
    Key(
        name="backend",
        kind="word",
        field="backend",
        words=_same(("auto", *BACKENDS)),
        about="what contains commands; auto: the best that can be used",
    ),
    Key(
        name="best_effort",
        kind="texts",
        field="best_effort",
        words=_same(BEST_EFFORT),
        about="wishes that may go unfulfilled",
    ),
    Key(
        name="seccomp",
        kind="word",
        field="seccomp",
        default="default",
        words=_same(PROFILES),
        about="the profile of system calls",
    ),
    Key(
        name="seatbelt",
        kind="texts",
        field="seatbelt",
        words=_same(PRESETS),
        about="what commands may ask of macOS besides what all may: tls, for programs that have it check certificates",
    ),
    Key(name="landlock", kind="flag", field="landlock", about="rules about files by Landlock too, behind the mounts"),
    Key(name="nested", kind="flag", field="nested", about="commands make sandboxes themselves"),
    Key(
        name="unshare",
        kind="texts",
        field="unshare",
        words=_same(("cgroup", "ipc", "time", "uts")),
        about="namespaces besides user, mount and pid",
    ),
    Key(name="ids", kind="word", field="ids", words=_same(("single", "full", "auto")), about="which ids are mapped"),
    Key(name="uid", kind="count", field="uid", example=1000, least=0, most=MOST_ID, about="the user id inside"),
    Key(name="gid", kind="count", field="gid", example=1000, least=0, most=MOST_ID, about="the group id inside"),
    Key(name="hostname", kind="text", field="hostname", example="sandbox", about="the host name inside"),
    Key(name="new_session", kind="flag", field="new_session", about="no controlling terminal to type into"),
    Key(name="kill_on_exit", kind="flag", field="kill_on_exit", about="what a command leaves running ends with it"),
    Key(name="env", kind="map", field="env", about="variables to set"),
    Key(name="limits", kind="table", field="limits", keys=LIMITS, about=f"what commands may use up; sizes: {_SIZE}"),
    Key(
        name="paths",
        kind="tables",
        field="paths",
        keys=RULES,
        about="paths with a name, and what is asked of files there",
    ),
)

_ALWAYS = ("mount", "pid", "user")


def listed(value: Iterable[str]) -> list[str]:
    """Return a field of several texts as a file has it: a set in order, without what goes without saying."""
    return sorted(set(value) - {*_ALWAYS}) if isinstance(value, frozenset) else list(value)


def default(key: Key) -> Any:
    """Return what holds where the key isn't given, as the file would say it; None: nothing that could be said."""
    found = {f.name: f.default for f in fields(Policy)}.get(key.field) if key.default is None else key.default
    if key.kind in ("map", "table", "tables"):
        return {}
    return listed(found) if isinstance(found, tuple | frozenset) else found


# ---- JSON Schema

_TYPES = dict.fromkeys(("text", "path", "home"), "string")
_TYPES |= {"flag": "boolean", "count": "integer", "number": "number"}


def _item(words: Iterable[str | bool]) -> dict[str, Any]:
    allowed = list(words)
    return {"enum": allowed} if allowed else {"type": "string", "minLength": 1}


def _of_keys(keys: Iterable[Key], required: tuple[str, ...] = ()) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "additionalProperties": False}
    found["properties"] = {key.name: _of_key(key) for key in keys}
    return found | ({"required": list(required)} if required else {})


def _of_key(key: Key) -> dict[str, Any]:
    found: dict[str, Any] = {"description": key.about}
    if (value := default(key)) is not None:
        found["default"] = value
    if key.kind == "word":
        return found | _item(key.words)
    if key.kind in ("texts", "paths", "entries"):
        least = {"minItems": 1} if key is NETWORK[0] else {}
        return found | {"type": "array", "items": _item(key.words)} | least
    if key.kind == "map":
        return found | {"type": "object", "propertyNames": {"minLength": 1}, "additionalProperties": {"type": "string"}}
    if key.kind == "network":
        return found | {"anyOf": [_item(key.words), _of_key(NETWORK[0]), _of_keys(key.keys, ("allow",))]}
    if key.kind == "table":
        return found | _of_keys(key.keys)
    if key.kind == "tables":
        rule = _of_keys(key.keys, ("root",))
        return found | {"type": "object", "propertyNames": {"minLength": 1}, "additionalProperties": rule}
    if key.kind == "size":
        text = {"type": "string", "pattern": r"^\s*[0-9]{1,19}[KMGT]?\s*$"}
        return found | {"anyOf": [{"type": "integer", "minimum": key.least, "maximum": key.most}, text]}
    found["type"] = _TYPES[key.kind]
    if key.kind == "count":
        found |= {"minimum": key.least, "maximum": key.most}
    elif key.kind == "number":
        found |= {"minimum": 0.01, "maximum": 1e6}
    else:
        found |= {"minLength": 1} if key.kind != "flag" else {}
    return found


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the table that a configuration file is, or has as `sandbox`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "nsbox",
        "description": "What commands may read, write, reach and use up.",
        **_of_keys(KEYS),
        "not": {"required": ["require", "require_os_sandbox"]},
    }
