"""The fields of Policy by name and type, for type checkers and editors. Nothing imports this when a program runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias, TypedDict

from nsbox._network.network import Network
from nsbox._plan.ops import Op
from nsbox._policy.details import Details
from nsbox._policy.limits import Limits
from nsbox._policy.rules import PathRule
from nsbox._seccomp.filter import Filter

Path: TypeAlias = str | os.PathLike[str]


class Amounts(TypedDict, total=False):
    """The fields of Limits."""

    memory: int | str | None
    processes: int | None
    cpu_seconds: int | None
    file_size: int | str | None
    open_files: int | None
    core_size: int | str | None
    locked_memory: int | str | None
    message_queues: int | str | None
    pending_signals: int | None
    total_memory: int | str | None
    cpus: float | None


class Layered(TypedDict, total=False):
    """The fields of Policy that layers() takes by name, besides unshare."""

    workdir: Path | None
    network: Literal["none", "host", "public"] | list[str] | tuple[str, ...] | Network
    tmp_size: int | str | None
    limits: Limits
    ids: Literal["single", "full", "auto"]
    uid: int | None
    gid: int | None
    hostname: str | None
    home: Path | None
    env: Iterable[tuple[str, str]] | Mapping[str, str]
    pass_env: Iterable[str]
    inherit_env: bool
    new_session: bool
    seccomp: Literal["default", "hardened", "off"] | Filter
    landlock: bool
    backend: Literal["auto", "namespaces", "bwrap", "seatbelt", "landlock", "passthrough"]
    require: Literal["isolated", "filesystem", "nothing"]
    degrade: Iterable[str]
    nested: bool
    kill_on_exit: bool
    details: Details
    tools_bin: Path | None
    shell_path: Path | None
    paths: Iterable[PathRule]
    protected: Iterable[str]
    symlinks: Literal["refuse", "beneath"]
    seatbelt: Iterable[str]


class Wishes(Layered, total=False):
    """The fields that workspace() and host() take by name."""

    unshare: Iterable[str]
    devices: Iterable[Path]
    strict: bool


class Changes(Wishes, total=False):
    """The fields that with_() takes."""

    base: Literal["workspace", "host", "layers"]
    write: Iterable[Path]
    read: Iterable[Path]
    deny: Iterable[Path]
    ops: Iterable[Op]
