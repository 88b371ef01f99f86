"""The contenders: subprocess.Popen, bwrap and nsbox. Layers are written once, and translated for the latter two."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from nsbox._base.errors import NsboxError
from nsbox._plan import ops
from nsbox._policy.policy import Policy
from nsbox._popen.popen import Popen

Start = Callable[..., "subprocess.Popen[Any]"]

TRUE = "/bin/true" if os.path.exists("/bin/true") else shutil.which("true") or "true"
_SYSTEM = ("/usr", "/etc", "/nix", "/bin", "/lib", "/lib64", "/sbin")


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to start a command. prefix: words before the command. absent: why it can't take part; "" if it can."""

    name: str
    popen: Start = subprocess.Popen
    prefix: tuple[str, ...] = ()
    absent: str = ""

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Return the started command; options are subprocess.Popen's."""
        return self.popen([*self.prefix, *command], **options)

    def spawn(self) -> float:
        """Return the seconds that /bin/true takes, from before Popen() until wait() has returned."""
        command = [*self.prefix, TRUE]
        begin = time.perf_counter()
        status = self.popen(command).wait()
        seconds = time.perf_counter() - begin
        if status:
            raise ChildProcessError(f"{self.name}: {TRUE} ended with status {status}")
        return seconds

    def tried(self) -> Contender:
        """Return self; marked as absent, with the reason, if a first run of /bin/true fails."""
        if self.absent:
            return self
        try:
            with self.start([TRUE], stderr=subprocess.PIPE) as process:
                text = process.communicate()[1].decode(errors="replace").strip()
        except (NsboxError, OSError) as error:
            return replace(self, absent=f"failed: {error}")
        if process.returncode:
            return replace(self, absent=f"failed: {text.splitlines()[-1] if text else f'status {process.returncode}'}")
        return self


@dataclass(frozen=True, slots=True)
class Layers:
    """What a sandbox consists of, for bwrap and nsbox alike. namespaces: those in addition to user, mount and pid."""

    plan_ops: tuple[ops.Op, ...]
    namespaces: frozenset[str] = frozenset()
    workdir: str | None = None
    is_session: bool = False

    def policy(self) -> Policy:
        """Return them as nsbox's policy."""
        return Policy.layers(*self.plan_ops, unshare=self.namespaces, workdir=self.workdir, new_session=self.is_session)

    def bwrap(self) -> tuple[str, ...]:
        """Return them as bwrap's arguments."""
        names = ("user", "pid", *sorted(self.namespaces))
        everything = self.namespaces == frozenset(_EVERYTHING)
        argv = ["--unshare-all"] if everything else [f"--unshare-{name}" for name in names]
        for op in self.plan_ops:
            argv += _words(op)
        if self.workdir is not None:
            argv += ["--chdir", self.workdir]
        if self.is_session:
            argv += ["--new-session", "--die-with-parent"]
        return (*argv, "--")


_OWN = ("cgroup", "ipc", "uts")
_EVERYTHING = (*_OWN, "net")


def _words(op: ops.Op) -> Iterator[str]:
    """Yield bwrap's option for an op."""
    match op:
        case ops.RoBind(src, dest):
            yield from ("--ro-bind", src, dest)
        case ops.DevBind(src, dest):
            yield from ("--dev-bind", src, dest)
        case ops.Bind(src, dest):
            yield from ("--bind", src, dest)
        case ops.Symlink(target, dest):
            yield from ("--symlink", target, dest)
        case ops.Proc(dest):
            yield from ("--proc", dest)
        case ops.Dev(dest):
            yield from ("--dev", dest)
        case ops.Tmpfs(dest):
            yield from ("--tmpfs", dest)
        case _:
            raise TypeError(f"no option of bwrap for {op!r}")


def _system() -> tuple[ops.Op, ...]:
    """Return this machine's system directories: bound read-only, or as links."""
    links = [ops.Symlink(os.readlink(path), path) for path in _SYSTEM if os.path.islink(path)]
    binds = [ops.RoBind(path, path) for path in _SYSTEM if os.path.isdir(path) and not os.path.islink(path)]
    return (*binds, *links)


def minimal() -> Layers:
    """Return the minimum: the host's whole file system, and only the namespaces user, mount and pid."""
    return Layers((ops.DevBind("/", "/"),))


def worker(workspace: str, *, has_network: bool = True, more: Sequence[ops.Op] = ()) -> Layers:
    """Return a worker's sandbox: read-only system, /proc, /dev, private /tmp, one writable directory, a new session."""
    return Layers(
        plan_ops=(
            *_system(),
            ops.Proc("/proc"),
            ops.Dev("/dev"),
            ops.Tmpfs("/tmp"),
            ops.Bind(workspace, workspace),
            *more,
        ),
        namespaces=frozenset(_OWN if has_network else _EVERYTHING),
        workdir=workspace,
        is_session=True,
    )


def plain() -> Contender:
    """Return the uncontained way."""
    return Contender("Popen")


def bwrap(name: str, layers: Layers) -> Contender:
    """Return bwrap, started by subprocess.Popen; absent where it isn't installed."""
    program = shutil.which("bwrap")
    if program is None:
        return Contender(name, absent="absent")
    return Contender(name, prefix=(program, *layers.bwrap()))


def nsbox(name: str, policy: Policy) -> Contender:
    """Return nsbox's Popen, with a policy that is made once."""
    return Contender(name, popen=partial(Popen, policy=policy))


def nsbox_default(name: str, workspace: str) -> Contender:
    """Return nsbox's Popen without a policy: each command gets a new Policy.workspace()."""
    return Contender(name, popen=partial(Popen, cwd=workspace))


def three(workspace: str, more: Sequence[ops.Op] = ()) -> list[Contender]:
    """Return Popen, bwrap and nsbox, the latter two with the worker's layers."""
    layers = worker(workspace, more=more)
    return [plain(), bwrap("bwrap", layers), nsbox("nsbox", layers.policy())]
