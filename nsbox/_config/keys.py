"""The keys of a configuration file, as one table. Parser, writer, starter file and JSON Schema are all made from it.

What a value means on this machine (which path it is, whether that exists) is up to _config.reading.
"""

from __future__ import annotations

from nsbox._base.frozen import TYPE_CHECKING, Frozen, fields, frozen_by_name
from nsbox._policy.losses import LEVELS, LOSSES
from nsbox._policy.policy import BACKENDS, PRESETS, REQUIRE, Policy
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
    """A key.

    kind: the kind of its value.
    about: one line for people.
    field: the field of Policy that it sets; "" if it doesn't set exactly one.
    default: what holds without it, if that isn't the field's default.
    example: for a starter file, if there is no default.
    words: the possible values of a "word", or items of "texts" (empty: any), each with the field's value.
    must_exist: whether a path has to exist.
    keys: those of a "table", or of each of "tables".
    least, most: the range of a "count" or "size".
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
        """What else a value may be, besides one of the words; "" if it must be one of them."""
        return ", or a list of entries such as ['api.example:443']" if self.kind == "network" else ""


def _same(words: Iterable[str]) -> dict[str | bool, str]:
    return {word: word for word in words}


_SIZE = "a number of bytes, or a text such as '64M' (K, M, G, T: powers of 1024)"

LIMITS = (
    Key(name="memory", kind="size", example="2G", about="address space of each process"),
    Key(name="processes", kind="count", example=256, about="processes and threads of the whole sandbox"),
    Key(name="cpu_seconds", kind="count", example=600, about="processor time of each process"),
    Key(name="file_size", kind="size", example="1G", about="size of any file written"),
    Key(name="open_files", kind="count", example=1024, about="open descriptors of each process"),
    Key(name="core_size", kind="size", least=0, example=0, about="size of a core dump; 0 for none"),
    Key(name="locked_memory", kind="size", least=0, example="8M", about="memory that a process may lock"),
    Key(name="message_queues", kind="size", least=0, example="1M", about="size of POSIX message queues"),
    Key(name="pending_signals", kind="count", example=1024, about="pending signals and timers"),
    Key(
        name="total_memory",
        kind="size",
        example="4G",
        about="memory of all processes together; needs a delegated cgroup",
    ),
    Key(
        name="cpus",
        kind="number",
        example=1.5,
        about="processors' worth of time of all processes together; needs a delegated cgroup",
    ),
)

NETWORK = (
    Key(
        name="allow",
        kind="entries",
        example=["api.example:443", "*.files.example"],
        about="what commands may connect to: NAME, *.NAME, IPv4[/n], localhost or *; with :PORT, else 443 (required)",
    ),
    Key(name="deny", kind="entries", default=(), about="entries that are denied even if others allow them"),
    Key(name="private", kind="flag", default=False, about="names may have addresses in private networks"),
    Key(
        name="tls",
        kind="word",
        default="sni",
        words=_same(("sni", "sni-ech", "off")),
        about="whether the server's name in TLS is checked: sni, sni-ech (encrypted hellos pass), off",
    ),
    Key(name="connections", kind="count", default=256, most=10_000, about="connections of a sandbox at once"),
    Key(name="bytes", kind="size", example="1G", about="bytes that a sandbox may send and receive, together"),
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
        about="ends of file names, such as '.md', to which Sandbox.read() and the like are limited; empty: any",
    ),
    Key(name="max_file_bytes", kind="size", example="10M", about="largest file for Sandbox.read() and the like"),
)

KEYS = (
    Key(
        name="mode",
        kind="word",
        default="enabled",
        words=_same(("enabled", "disabled")),
        about="disabled: commands run uncontained, in the same environment",
    ),
    Key(name="workspace", kind="path", example=".", about="the directory to work in, writable; commands start there"),
    Key(
        name="workdir",
        kind="path",
        field="workdir",
        example=".",
        must_exist=False,
        about="where commands start; default: the workspace or, without one, this file's directory",
    ),
    Key(name="readable", kind="paths", field="read", about="paths that are also readable"),
    Key(name="writable_paths", kind="paths", field="write", about="paths that are also writable"),
    Key(
        name="deny",
        kind="paths",
        field="deny",
        must_exist=False,
        about="hidden paths, such as a data directory or '**/*.pem'; they needn't exist",
    ),
    Key(name="strict", kind="flag", field="strict", about="fail if an entry of deny names or matches nothing"),
    Key(name="devices", kind="texts", field="devices", default=(), about="device nodes, such as '/dev/dri'"),
    Key(
        name="network",
        kind="network",
        field="network",
        words={"none": "none", "host": "host", "full": "host", "public": "public", False: "none", True: "host"},
        keys=NETWORK,
        about="none (false): only a loopback of its own; host (full, true): the host's; public: every public address; "
        "a list: what commands may connect to, such as ['api.example:443']; a table: that list as allow, and more",
    ),
    Key(name="passthrough_env", kind="texts", field="pass_env", about="variables taken from the caller's environment"),
    Key(name="inherit_env", kind="flag", field="inherit_env", about="take the caller's whole environment"),
    Key(
        name="tools_bin",
        kind="path",
        field="tools_bin",
        example="tools/bin",
        about="a directory of programs: read-only, first in PATH",
    ),
    Key(
        name="shell_path",
        kind="text",  # a path in the sandbox, with links as they are there
        field="shell_path",
        example="/bin/sh",
        about="the shell of shell(), an absolute path; default: bash if the sandbox has it, else /bin/sh",
    ),
    Key(
        name="home",
        kind="home",
        field="home",
        default="private",
        must_exist=False,
        about="HOME of commands: private, private:NAME (kept), workspace, tmp, or a path",
    ),
    Key(name="tmp_size", kind="size", field="tmp_size", example="256M", about=f"size of the private /tmp: {_SIZE}"),
    Key(name="protected", kind="texts", field="protected", about="names of files that Sandbox.write() never writes"),
    Key(
        name="symlinks",
        kind="word",
        field="symlinks",
        words=_same(("refuse", "beneath")),
        about="what Sandbox.read() and the like do with links: refuse, or follow those that stay beneath their root",
    ),
    Key(
        name="require",
        kind="word",
        field="require",
        words=_same(REQUIRE),
        about="the weakest containment to accept: isolated (namespaces), filesystem (or Seatbelt, Landlock), nothing",
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
        about="what contains commands; auto: the best that this machine allows",
    ),
    Key(
        name="degrade",
        kind="texts",
        field="degrade",
        words=_same((*LEVELS, *LOSSES)),
        about="what may be lost where it can't be had: levels (namespaces, limits) or single losses",
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
        about="what commands may ask of macOS besides the usual: tls, for programs that let it check certificates, ...",
    ),
    Key(name="landlock", kind="flag", field="landlock", about="enforce file rules by Landlock too, behind the mounts"),
    Key(name="nested", kind="flag", field="nested", about="commands may make sandboxes of their own"),
    Key(
        name="unshare",
        kind="texts",
        field="unshare",
        words=_same(("cgroup", "ipc", "time", "uts")),
        about="more namespaces, in addition to user, mount and pid",
    ),
    Key(name="ids", kind="word", field="ids", words=_same(("single", "full", "auto")), about="which ids are mapped"),
    Key(name="uid", kind="count", field="uid", example=1000, least=0, most=MOST_ID, about="the user id inside"),
    Key(name="gid", kind="count", field="gid", example=1000, least=0, most=MOST_ID, about="the group id inside"),
    Key(name="hostname", kind="text", field="hostname", example="sandbox", about="the host name inside"),
    Key(name="new_session", kind="flag", field="new_session", about="a session of its own, without your terminal"),
    Key(name="kill_on_exit", kind="flag", field="kill_on_exit", about="end what a command leaves running with it"),
    Key(name="env", kind="map", field="env", about="variables to set"),
    Key(name="limits", kind="table", field="limits", keys=LIMITS, about=f"what commands may use up; sizes: {_SIZE}"),
    Key(
        name="paths",
        kind="tables",
        field="paths",
        keys=RULES,
        about="paths with a name, and rules for the files there",
    ),
)

_ALWAYS = ("mount", "pid", "user")


def listed(value: Iterable[str]) -> list[str]:
    """Return a field of several texts as a file has it: a set is sorted, without the namespaces that always exist."""
    return sorted(set(value) - {*_ALWAYS}) if isinstance(value, frozenset) else list(value)


def default(key: Key) -> Any:
    """Return what holds without the key, as a file would spell it; None if no file could."""
    value = {f.name: f.default for f in fields(Policy)}.get(key.field) if key.default is None else key.default
    if key.kind in ("map", "table", "tables"):
        return {}
    return listed(value) if isinstance(value, tuple | frozenset) else value


# ---- JSON Schema

_TYPES = dict.fromkeys(("text", "path", "home"), "string")
_TYPES |= {"flag": "boolean", "count": "integer", "number": "number"}


def _item(words: Iterable[str | bool]) -> dict[str, Any]:
    allowed = list(words)
    return {"enum": allowed} if allowed else {"type": "string", "minLength": 1}


def _of_keys(keys: Iterable[Key], required: tuple[str, ...] = ()) -> dict[str, Any]:
    table: dict[str, Any] = {"type": "object", "additionalProperties": False}
    table["properties"] = {key.name: _of_key(key) for key in keys}
    return table | ({"required": list(required)} if required else {})


def _of_key(key: Key) -> dict[str, Any]:
    rule: dict[str, Any] = {"description": key.about}
    if (value := default(key)) is not None:
        rule["default"] = value
    if key.kind == "word":
        return rule | _item(key.words)
    if key.kind in ("texts", "paths", "entries"):
        return rule | {"type": "array", "items": _item(key.words)}
    if key.kind == "map":
        return rule | {"type": "object", "propertyNames": {"minLength": 1}, "additionalProperties": {"type": "string"}}
    if key.kind == "network":
        return rule | {"anyOf": [_item(key.words), _of_key(NETWORK[0]), _of_keys(key.keys, ("allow",))]}
    if key.kind == "table":
        return rule | _of_keys(key.keys)
    if key.kind == "tables":
        inner = _of_keys(key.keys, ("root",))
        return rule | {"type": "object", "propertyNames": {"minLength": 1}, "additionalProperties": inner}
    if key.kind == "size":
        text = {"type": "string", "pattern": r"^\s*[0-9]{1,19}[KMGT]?\s*$"}
        return rule | {"anyOf": [{"type": "integer", "minimum": key.least, "maximum": key.most}, text]}
    rule["type"] = _TYPES[key.kind]
    if key.kind == "count":
        rule |= {"minimum": key.least, "maximum": key.most}
    elif key.kind == "number":
        rule |= {"minimum": 0.01, "maximum": 1e6}
    else:
        rule |= {"minLength": 1} if key.kind != "flag" else {}
    return rule


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a configuration file, or of the table `sandbox` in one."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "nsbox",
        "description": "What commands may read, write, reach and use up.",
        **_of_keys(KEYS),
        "not": {"required": ["require", "require_os_sandbox"]},
    }
