"""What bubblewrap says when a step of the set-up fails, which its clients match; and what nsbox can add to it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TypeAlias

from nsbox._bwrap.asked import Asked
from nsbox._core import command
from nsbox._core.abi import constants as c
from nsbox._plan import ops
from nsbox._plan.host import Host
from nsbox._spawn.failure import exception
from nsbox._spawn.start import Start

# Steps that the machine's configuration may forbid.
_OF_THE_MACHINE = {
    getattr(c, f"STEP_{name}") for name in ("UNSHARE", "UID_MAP", "GID_MAP", "SETGROUPS", "SECOND_USERNS", "ROOT", "FS")
}
_MOUNTED: dict[type[ops.Op], str] = {ops.Proc: "proc", ops.Tmpfs: "tmpfs", ops.Mqueue: "mqueue"}
_PLACED = (
    *(ops.Bind, ops.RoBind, ops.DevBind, ops.BindFd, ops.BindData, ops.File, ops.Dir, ops.Symlink),
    *(ops.Proc, ops.Tmpfs, ops.Mqueue, ops.Overlay, ops.RoOverlay, ops.TmpOverlay),
)
_Placed: TypeAlias = (
    ops.Bind
    | ops.RoBind
    | ops.DevBind
    | ops.BindFd
    | ops.BindData
    | ops.File
    | ops.Dir
    | ops.Symlink
    | ops.Proc
    | ops.Tmpfs
    | ops.Mqueue
    | ops.Overlay
    | ops.RoOverlay
    | ops.TmpOverlay
)


def failure(result: command.Result, options: Asked, start: Start) -> str:
    """Return the message after "bwrap: "."""
    step, why = result.step, os.strerror(result.error)
    if step == c.STEP_EXEC:
        return f"execvp {options.command[0]}: {why}"
    if step == c.STEP_CHDIR:
        return f"Can't chdir to {options.chdir}: {why}"
    if step == c.STEP_LIMIT_USERNS and result.error == errno.EEXIST:
        return "creation of new user namespaces was not disabled as requested"
    if step == c.STEP_SECCOMP:
        return f"prctl(PR_SET_SECCOMP): {why}"
    if step == c.STEP_JOIN:
        return f"Joining specified {'pid' if options.userns is None else 'user'} namespace failed: {why}"
    ops = start.prepared.ops
    op = ops[result.op] if 0 <= result.op < len(ops) else None
    message = _about(op, step, why, result) if op is not None else ""
    error = exception(result, start, _host())
    hint = getattr(error, "hint", "") if step in _OF_THE_MACHINE else ""
    text = message or _beginning(result, why) or str(error)
    return f"{text} ({hint})" if hint and hint not in text else text


def _host() -> Host:
    from nsbox._machine.probe import probe

    return probe()


def _beginning(result: command.Result, why: str) -> str:
    if result.step == c.STEP_UNSHARE:
        return f"Creating new namespace failed: {why}"
    if result.step in (c.STEP_UID_MAP, c.STEP_GID_MAP):
        return f"setting up {'uid' if result.step == c.STEP_UID_MAP else 'gid'} map: {why}"
    return ""


def _about(op: ops.Op, step: int, why: str, result: command.Result) -> str:
    there = result.detail.decode(errors="surrogateescape")
    if isinstance(op, ops.Symlink) and result.error == errno.EEXIST:
        other = f"existing destination is {there}" if there else "destination exists and is not a symlink"
        return f"Can't make symlink at {op.dest}: {other}"
    if step == c.STEP_SOURCE and isinstance(op, ops.Bind | ops.RoBind | ops.DevBind):
        return f"Can't find source path {op.src}: {why}"
    if isinstance(op, _PLACED):
        is_below_file = result.error == errno.ENOTDIR and (step == c.STEP_DEST or isinstance(op, ops.Symlink))
        if (step == c.STEP_CREATE and there) or is_below_file:
            return f"Can't mkdir parents for {op.dest}: {why}"
        if step == c.STEP_CREATE or (step == c.STEP_ATTACH and result.error in (errno.EINVAL, errno.ENOTDIR)):
            return _not_made(op, step, why)
    name = next((name for kind, name in _SAID if isinstance(op, kind)), None)
    return f"{name(op)}: {why}" if name else ""


def _not_made(op: _Placed, step: int, why: str) -> str:
    """Return a message: there is no place to put it, or (STEP_ATTACH) what is there is of the wrong kind."""
    if isinstance(op, ops.Symlink):
        return f"Can't make symlink at {op.dest}: {why}"
    if isinstance(op, ops.File):
        return f"Can't create file {op.dest}: {why}"
    source = (
        op.src if isinstance(op, ops.Bind | ops.RoBind | ops.DevBind) else op.fd if isinstance(op, ops.BindFd) else "/"
    )
    is_file = isinstance(op, ops.BindData) or not os.path.isdir(source)
    if step == c.STEP_CREATE:
        return f"Can't create file at {op.dest}: {why}" if is_file else f"Can't mkdir {op.dest}: {why}"
    if isinstance(op, ops.Bind | ops.RoBind | ops.DevBind):  # the words of 0.12, whose tests we pass
        return f"Can't bind mount {op.src} on {op.dest}: the destination is not a {'file' if is_file else 'directory'}"
    if is_file:
        return f"Can't create file at {op.dest}: {os.strerror(errno.EISDIR)}"
    return f"Can't mkdir {op.dest}: {os.strerror(errno.ENOTDIR)}"


_SAID: tuple[tuple[type[ops.Op] | tuple[type[ops.Op], ...], Callable[..., str]], ...] = (
    ((ops.Bind, ops.RoBind, ops.DevBind), lambda op: f"Can't bind mount {op.src} on {op.dest}"),
    (ops.BindFd, lambda op: f"Can't bind mount fd {op.fd} on {op.dest}"),
    (tuple(_MOUNTED), lambda op: f"Can't mount {_MOUNTED[type(op)]} on {op.dest}"),
    ((ops.Overlay, ops.RoOverlay, ops.TmpOverlay), lambda op: f"Can't make overlay mount on {op.dest}"),
    (ops.RemountRo, lambda op: f"Can't remount readonly on {op.dest}"),
    (ops.Dir, lambda op: f"Can't mkdir {op.dest}"),
    ((ops.File, ops.BindData), lambda op: f"Can't create file {op.dest}"),
    (ops.Symlink, lambda op: f"Can't make symlink at {op.dest}"),
    (ops.Chmod, lambda op: f"Can't chmod {'0' if op.mode else ''}{op.mode:o} {op.dest}"),
    (ops.Hostname, lambda op: f"Can't set hostname to {op.name}"),
)
