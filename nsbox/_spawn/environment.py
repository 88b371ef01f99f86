"""The environment of a command without env=: built, or the caller's; and where programs are looked for in it.

Lean: `_layout.user` (0.16 ms) is imported for a command with an id of its own.
"""

from __future__ import annotations

import os
from itertools import repeat

from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._base.paths import is_below
from nsbox._core import buffers
from nsbox._layout.layout import project
from nsbox._policy.variables import CERTIFICATES, PROXIES, VENVS, search_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from nsbox._plan.host import Host
    from nsbox._plan.plan import Plan
    from nsbox._policy.policy import Policy

    Exists = Callable[[str], bool]

_MOST_KEPT = 64  # built environments of one policy
_f_ok = repeat(os.F_OK)


@frozen
class Search(Frozen):
    """What a built PATH is made of. The caller's own directories are in it if they are shown, and not hidden."""

    tools: tuple[str, ...]
    venvs: tuple[str, ...]  # where the workspace may get one
    own: tuple[str, ...]  # the machine's profiles, and those of the interpreter that runs nsbox
    shown: tuple[str, ...]  # what the sandbox has of this machine
    hidden: tuple[str, ...]


@frozen
class Built(Frozen):
    """A built environment, and the directories of its PATH."""

    strings: buffers.Strings
    directories: list[str]


class Environment:
    """The environments of one policy's commands. Threads may share it."""

    __slots__ = ("_built", "_left_out", "_marks", "_plan", "_policy", "_search", "_taken", "_values")

    def __init__(self, policy: Policy, host: Host, plan: Plan) -> None:
        self._policy, self._plan = policy, plan
        self._search = search = _search(policy, host, plan)
        self._marks = tuple(map(_mark_of, search.venvs))
        # The caller's variables on which a built environment depends.
        self._taken = tuple(map(os.fsencode, (*policy.taken_from_caller(), "PATH", "VIRTUAL_ENV", "HOME")))
        # Variables of certificates have their real paths, and are left out if the sandbox doesn't show these.
        self._values = dict(host.certificates)
        if policy.base == "workspace" and policy.uid not in (None, host.euid) and "USER" not in policy.pass_env:
            from nsbox._layout.user import user_of

            self._values["USER"] = user_of(policy, host)
        is_built = policy.base == "workspace" and not policy.inherit_env
        self._left_out = {*CERTIFICATES} - self._values.keys() - {*policy.pass_env} if is_built else set()
        if policy.network not in ("none", "host"):  # a list says what can be reached, and a proxy would be another way
            self._left_out |= {*PROXIES} - {*policy.pass_env}
        # By the workspace's venvs that exist, and by the caller's values.
        self._built: dict[tuple[tuple[bool, ...], tuple[bytes | None, ...]], Built] = {}

    def of(
        self, env: Mapping[Any, Any] | None, exists: Exists | None = None
    ) -> tuple[buffers.Strings, Callable[[], list[str]]]:
        """Return a command's environment, and a function that lists the directories of its PATH.

        env: Popen's. exists: says if the command will see a file. Default: None, for those that this machine has.
        """
        if env is not None:
            return buffers.Strings(encode_environment(env)), lambda: os.get_exec_path(env)
        policy = self._policy
        if not policy.inherit_env:
            built = self._of_now(exists)
            return built.strings, lambda: built.directories
        if not policy.env and not self._left_out:
            return _inherited(), self.directories
        return buffers.Strings(encode_environment(self.variables(_copy(os.environ)))), self.directories

    def directories(self) -> list[str]:
        """Return the directories in which a program without a slash is looked for."""
        if self._policy.inherit_env:
            return os.get_exec_path(self.variables(_copy(os.environ)))
        return self._of_now().directories

    def variables(self, caller: Mapping[str, str], exists: Exists | None = None) -> dict[str, str]:
        """Return the environment that the policy builds from the caller's, or adds to it. exists: as for of()."""
        policy, plan, search = self._policy, self._plan, self._search
        home = caller.get("HOME", plan.home) if plan.backend == "passthrough" else plan.home
        active = caller.get("VIRTUAL_ENV", "").rstrip("/")
        # nsbox's own virtual environment isn't the project's, unless it is in the caller's PATH.
        is_other = bool(active) and f"{active}/bin" not in search.own
        venvs = [active] if is_other and any(is_below(active, path) for path in search.shown) else []
        venvs += [path for path, is_there in zip(search.venvs, self._are_there(exists), strict=True) if is_there]
        first = (*search.tools, *(f"{path}/bin" for path in venvs))
        path = search_path(first, caller.get("PATH"), search.own, search.shown, search.hidden)
        caller = {name: value for name, value in caller.items() if name not in self._left_out} | self._values
        return policy.environment(caller, path, plan.tmpdir, home)

    def _are_there(self, exists: Exists | None) -> tuple[bool, ...]:
        """Return for each directory that may be one of the workspace's venvs whether it is one."""
        return tuple(map(os.access, self._marks, _f_ok) if exists is None else map(exists, self._marks))

    def _of_now(self, exists: Exists | None = None) -> Built:
        """Return the built environment for the caller's values now; it is built once for the same values."""
        callers = _kept_by(os.environ)
        if callers is None:
            callers = {os.fsencode(name): os.fsencode(value) for name, value in _copy(os.environ).items()}
        key = self._are_there(exists), tuple(map(callers.get, self._taken))
        built = self._built.get(key)
        if built is None:
            values = zip(self._taken, key[1], strict=True)
            caller = {os.fsdecode(name): os.fsdecode(value) for name, value in values if value is not None}
            env = self.variables(caller, exists)
            built = Built(buffers.Strings(encode_environment(env)), os.get_exec_path(env))
            if len(self._built) < _MOST_KEPT:
                self._built[key] = built
        return built


def _search(policy: Policy, host: Host, plan: Plan) -> Search:
    tools = (policy.tools_bin,) if policy.tools_bin else ()
    own = (*host.profiles, *host.programs)
    if policy.base != "workspace":
        return Search(tools, (), own, ("/",) if policy.base == "host" else (), ())
    shown = (*policy.write, *policy.read, *(path for path, _ in host.directories), *host.prefixes, plan.home)
    shown = ("/",) if plan.backend == "passthrough" else shown
    root = project(policy)
    venvs = () if root is None else tuple(f"{root}/{name}" for name in VENVS)
    return Search(tools, venvs, own, shown, policy.deny)


def _mark_of(venv: str) -> str:
    """Return the file that makes a directory a virtual environment."""
    return f"{venv}/pyvenv.cfg"


def encode_environment(env: Mapping[Any, Any]) -> list[bytes]:
    """Return an environment as execve(2) expects it; raises ValueError as the standard library does."""
    pairs = []
    for key, value in env.items():
        name = os.fsencode(key)
        if b"=" in name:
            raise ValueError("illegal environment variable name")
        pairs.append(null_free(name + b"=" + os.fsencode(value)))
    return pairs


def null_free(text: bytes) -> bytes:
    """Return text; raises ValueError as the standard library does if it has a NUL byte."""
    if b"\0" in text:
        raise ValueError("embedded null byte")
    return text


def set_by(policy: Policy) -> dict[bytes, bytes] | None:
    """Return what a policy sets in the environment that commands inherit; None if they don't inherit it."""
    if not policy.inherit_env:
        return None
    return {os.fsencode(name): os.fsencode(value) for name, value in dict(policy.env).items()}


# ---- the caller's


def _kept_by(environ: object) -> dict[bytes, bytes] | None:
    """Return the dictionary inside os.environ; None if there is none, since its documentation doesn't promise one."""
    data = getattr(environ, "_data", None) if type(environ) is type(os.environb) else None
    return data if type(data) is dict else None


_last: tuple[dict[bytes, bytes], buffers.Strings] | None = None  # inherited: it seldom changes between two spawns


def _inherited() -> buffers.Strings:
    """Return this process's environment as Python knows it.

    In other threads, setenv(3) reallocates the C library's environment, even while it is being read. Inside os.environ
    is a dictionary of bytes, which were checked when they were set. It can be copied in one step that no thread
    interrupts.
    """
    global _last
    data = _kept_by(os.environb)
    if data is None:
        return buffers.Strings(encode_environment(_copy(os.environb)))
    last = _last
    if last is None or last[0] != data:
        copy = data.copy()
        _last = last = (copy, buffers.Strings([name + b"=" + value for name, value in copy.items()]))
    return last[1]


def _copy(environ: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a copy of os.environ, which other threads may change meanwhile."""
    return {name: value for name in environ if (value := environ.get(name)) is not None}
