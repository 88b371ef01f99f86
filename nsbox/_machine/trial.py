"""What is found out by trying: an empty sandbox, and the system's own bubblewrap where none can be made."""

from __future__ import annotations

import contextlib
import errno
import os
import signal

from nsbox._backends import namespaces
from nsbox._base.frozen import TYPE_CHECKING, replace
from nsbox._base.poll import is_readable
from nsbox._core import abi, buffers, call
from nsbox._core.command import Command
from nsbox._core.request import request_for
from nsbox._plan.plan import Identity, Plan
from nsbox._policy.policy import Policy

if TYPE_CHECKING:
    from typing import Literal

    from nsbox._plan.host import Host

_REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSPC, errno.ENOSYS, errno.EINVAL)
_AT: dict[str, Literal["unshare", "map", "mount"]] = {
    **dict.fromkeys(("UNSHARE", "SECOND_USERNS"), "unshare"),
    **dict.fromkeys(("UID_MAP", "GID_MAP", "SETGROUPS"), "map"),
    **dict.fromkeys(("ROOT", "PIVOT"), "mount"),
}
_PATHS = ("/usr/bin/bwrap", "/bin/bwrap", "/usr/local/bin/bwrap")


def try_sandbox(host: Host) -> tuple[int, Literal["", "unshare", "map", "mount"]]:
    """Try to make an empty sandbox. Return the errno with which that is refused, or 0, and the step.

    If all is well, only the exec fails, since there is nothing in the sandbox to execute. The trial costs about a
    millisecond; there is no other way to find out what security modules and filters forbid.
    """
    if namespaces.missing(host):
        return 0, ""
    plan = namespaces.compile(Policy.layers(), host)
    nothing = Command(
        programs=[b"/"],
        argv=[b"/"],
        envp=buffers.Strings([]),
        cwd=None,
        flags=abi.constants.CLOSE_FDS,
        uid=plan.identity.uid,
        gid=plan.identity.gid,
    )
    result = call.spawn(request_for(plan, ()), nothing)
    for name, at in _AT.items():
        if result.step == getattr(abi.constants, f"STEP_{name}") and result.error in _REFUSALS:
            return result.error, at
    return 0, ""


def with_bwrap(host: Host) -> Host:
    """Return the host with the facts about bubblewrap. It is run: only this shows whether it may make sandboxes."""
    path = next((path for path in _PATHS if os.access(path, os.X_OK)), "")
    if not path or host.core_problem:
        return replace(host, bwrap=path)
    binds_fds = "--bind-fd" in _ask(path, "--help")[1]
    version = "".join(ch if ch.isdigit() else " " for ch in _ask(path, "--version")[1]).split()
    options = ("--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true")
    status, text = _ask(path, "--setenv", "PATH", "/usr/bin:/bin", *options)
    problem = "" if status == 0 else text.strip().rpartition("\n")[2] or f"it ended with the wait status {status}"
    numbers = tuple(map(int, version[:3]))
    return replace(host, bwrap=path, bwrap_version=numbers, bwrap_binds_fds=binds_fds, bwrap_problem=problem)


def _ask(path: str, *options: str) -> tuple[int, str]:
    """Run bwrap; return its wait status and what it printed. Not by subprocess, which may be confined() by now."""
    ids = Identity(os.geteuid(), os.getegid(), "", "", deny_setgroups=False)
    plan = Plan((), frozenset(), ids, plain=True, wrapper=(path,))
    output, end = os.pipe()
    try:
        command = Command(
            programs=[os.fsencode(path)],
            argv=[b"bwrap", *map(os.fsencode, options)],
            envp=buffers.Strings([]),
            cwd=None,
            flags=abi.constants.CLOSE_FDS | abi.constants.SETSID,
            stdio=(abi.constants.DEVNULL, end, end),
            uid=ids.uid,
            gid=ids.gid,
        )
        result = call.spawn(request_for(plan, ()), command)
        os.close(end)
        end = -1
        if result.error:
            return 0xFF00, os.strerror(result.error)
        text = b""
        while (in_time := is_readable(output, 20)) and (chunk := os.read(output, 4096)):
            text += chunk
        if not in_time:
            with contextlib.suppress(ProcessLookupError):
                os.kill(result.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # other code has reaped it: what it printed must suffice
            return os.waitpid(result.pid, 0)[1], text.decode(errors="replace")
        return 0, text.decode(errors="replace")
    finally:
        os.close(output)
        if end >= 0:
            os.close(end)
