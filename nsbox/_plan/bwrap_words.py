"""Ops and plans as options of bubblewrap's command line."""

from __future__ import annotations

from nsbox._base.errors import PolicyError, Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._plan import ops
from nsbox._plan.capabilities import CAPABILITIES
from nsbox._plan.plan import UNCHANGED, Plan

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    Kind = Literal["directory", "file", "missing"]


def command_line(plan: Plan, put: Callable[[bytes | int], int] | None = None) -> list[str]:
    """Return a plan as options of bwrap, without the program's name and the command; see Plan.to_bwrap()."""

    def own(data: bytes | int) -> int:
        if not isinstance(data, int):
            raise PolicyError("ops", "has contents, which bwrap reads from descriptors: say put=")
        return data

    def unknown(path: str) -> Kind:
        raise PolicyError("ops", f"mask {path}: bwrap hides files and directories in different ways")

    put = put or own
    words = [*_namespaces(plan), *arguments(plan.ops, unknown, put)]
    for program in plan.programs:
        if program.code:
            words += ["--add-seccomp-fd", str(put(program.code))]
    return words


def _namespaces(plan: Plan) -> list[str]:
    """Return the options whose order doesn't matter."""
    identity = plan.identity
    if plan.network is not None:
        raise PolicyError("network", "is a list, which bwrap doesn't have")
    if "time" in plan.namespaces:
        raise PolicyError("unshare", "has time, a namespace that bwrap doesn't make")
    hidden = {"mount", *({"user"} if identity.by_helper else ())}  # root with all its ids needs no user namespace
    words = [f"--unshare-{name}" for name in sorted(plan.namespaces - hidden)]
    for name, fd in (("--userns", identity.userns), ("--userns2", identity.userns2), ("--pidns", plan.pidns)):
        words += [name, str(fd)] if fd is not None else []
    for name, number in (("--uid", identity.uid), ("--gid", identity.gid)):
        words += [name, str(number)] if number != UNCHANGED else []  # in a joined namespace
    words += ["--cap-drop", "ALL"]
    permitted = plan.capabilities.permitted if plan.capabilities else 0
    for number, name in enumerate(CAPABILITIES):
        words += ["--cap-add", name] if permitted >> number & 1 else []
    words += ["--new-session"] if plan.new_session else []
    words += ["--die-with-parent"] if plan.die_with_parent else []
    words += ["--disable-userns"] if plan.limit_userns else []
    return [*words, "--assert-userns-disabled"] if plan.no_userns and not plan.limit_userns else words


def arguments(
    plan_ops: tuple[ops.Op, ...], kind: Callable[[str], Kind], put: Callable[[bytes | int], int]
) -> list[str]:
    """Return the ops as arguments.

    kind: returns what is at a path.
    put: returns a descriptor from which bwrap can read contents.
    """
    words: list[str] = []
    for op in plan_ops:
        words += _words(op, kind, put)
    return words


def _words(op: ops.Op, kind: Callable[[str], Kind], put: Callable[[bytes | int], int]) -> list[str]:
    match op:
        case ops.Bind() | ops.RoBind() | ops.DevBind():
            name = {ops.Bind: "--bind", ops.RoBind: "--ro-bind", ops.DevBind: "--dev-bind"}[type(op)]
            return [f"{name}-try" if op.optional else name, op.src, op.dest]
        case ops.BindFd():
            return ["--ro-bind-fd" if op.read_only else "--bind-fd", str(put(op.fd)), op.dest]
        case ops.Tmpfs():
            size = ["--size", str(op.size)] if op.size else []
            return ["--perms", f"{op.mode:04o}", *size, "--tmpfs", op.dest]
        case ops.File():
            return ["--perms", f"{op.mode:04o}", "--file", str(put(op.data)), op.dest]
        case ops.BindData():
            name = "--ro-bind-data" if op.read_only else "--bind-data"
            return ["--perms", f"{op.mode:04o}", name, str(put(op.data)), op.dest]
        case ops.Dir():
            return ["--perms", f"{op.mode:04o}", "--dir", op.dest]
        case ops.Chmod():
            return ["--chmod", f"{op.mode:04o}", op.dest]
        case ops.Symlink():
            return ["--symlink", op.target, op.dest]
        case ops.Mask():
            return _mask(op, kind(op.dest))
        case ops.Hostname():
            return ["--hostname", op.name]
        case ops.Loopback():  # comes with the namespace
            return []
        case ops.Dev() if op.size:
            at = op.dest.rstrip("/")
            shm = ["--perms", "1777", "--size", str(op.size), "--tmpfs", f"{at}/shm"]
            return ["--dev", op.dest, *shm, "--remount-ro", op.dest]
        case ops.Overlay() | ops.RoOverlay() | ops.TmpOverlay():
            return _overlay(op)
        case ops.Proc() if op.cover:
            # bwrap itself covers settings that it could write to as uid 0 of its user namespace
            return ["--proc", op.dest, "--ro-bind", "/proc/sys", f"{op.dest.rstrip('/')}/sys"]
        case ops.Proc() | ops.Dev() | ops.Mqueue() | ops.RemountRo():
            return [f"--{op.row()[0]}", op.dest]
        case _:
            raise TypeError(f"no argument for {op!r}")


def _overlay(op: ops.Overlay | ops.RoOverlay | ops.TmpOverlay) -> list[str]:
    layers = [word for path in op.lower for word in ("--overlay-src", path)]
    if isinstance(op, ops.Overlay):
        return [*layers, "--overlay", op.upper, op.work, op.dest]
    return [*layers, "--ro-overlay" if isinstance(op, ops.RoOverlay) else "--tmp-overlay", op.dest]


def _mask(op: ops.Mask, kind: Kind) -> list[str]:
    """Return options that hide a directory behind an empty one, or a file behind a device that nodev keeps closed."""
    if kind == "missing":
        if not op.optional:
            raise UnavailableError(Reason(f"{op.describe()}: there is nothing to hide"))
        return []
    if kind == "file":
        return ["--ro-bind", "/dev/null", op.dest]
    return ["--perms", "0000", "--tmpfs", op.dest, "--remount-ro", op.dest]
