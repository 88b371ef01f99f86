"""Plans for many commands: what of a plan is made once, in a template, and what is made for each command. Pure.

Each command gets a fresh copy of whatever it can write to and nobody asked to keep (tmpfs, /dev). It also gets its own
of everything that belongs to its namespaces (/proc, pseudo-terminals, message queues, the host name). A fresh file
system covers the template's. The mounts below that are lifted, and put down on the fresh one.
"""

from __future__ import annotations

from nsbox._base.errors import Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen, replace
from nsbox._base.paths import is_below
from nsbox._plan.ops import (
    Bind,
    BindData,
    BindFd,
    Chmod,
    Console,
    DevBind,
    Device,
    Devpts,
    Dir,
    File,
    Hostname,
    Lifted,
    Loopback,
    Mask,
    Mqueue,
    Op,
    Over,
    Overlay,
    Proc,
    RemountRo,
    RoBind,
    RoOverlay,
    Symlink,
    Tmpfs,
    TmpOverlay,
)

if TYPE_CHECKING:
    from typing import Any

    from nsbox._plan.plan import Identity, Plan

MOST_LIFTED = 48  # as abi.h has it
_MOST_OPS = 400
_BINDS = (Bind, RoBind, DevBind, Device)
_FRESH = (Tmpfs, Proc, Devpts, Mqueue)
_MOUNTS = (*_BINDS, *_FRESH, Mask, BindData)


@frozen
class Parts(Frozen):
    """A plan in two parts.

    kept: what the template is made of.
    renewed: what is made afresh for each command.
    watched: for each op of kept, whether its mount point is the host's, so that another process may replace it.
    """

    kept: tuple[Op, ...]
    renewed: tuple[Op, ...]
    watched: tuple[bool, ...]


def _no(what: str) -> UnavailableError:
    return UnavailableError(Reason(what))


def _dest(op: Any) -> str:
    return getattr(op, "dest", "")


def check(plan: Plan) -> None:
    """Raise UnavailableError, with the reason, for a plan of which nothing can be kept from one command to the next."""
    if plan.backend != "namespaces" or plan.plain:
        raise _no(f"the {plan.backend} backend has nothing that could be kept")
    if not {"user", "mount", "pid"} <= plan.namespaces:
        raise _no("without user, mount and pid namespaces of its own nothing is kept")
    identity = plan.identity
    details = (identity.userns, identity.userns2, plan.pidns, plan.capabilities)
    if any(value is not None for value in details) or plan.limit_userns or plan.no_userns or plan.host_writes:
        raise _no("details: what they ask for belongs to one command")
    if not plan.die_with_parent:
        raise _no("details: what outlives the caller keeps nothing for it")


def last_maps(identity: Identity) -> tuple[str, str]:
    """Return the id maps of the user namespace that each command has for itself, below the one that is kept.

    If the plan has no second user namespace, they map each id to itself.
    """
    if identity.uid_map2 is not None and identity.gid_map2 is not None:
        return identity.uid_map2, identity.gid_map2
    uids, gids = (
        "".join(f"{row.split()[0]} {row.split()[0]} {row.split()[2]}\n" for row in text.splitlines())
        for text in (identity.uid_map, identity.gid_map)
    )
    return uids, gids


def _check_op(op: Op) -> None:
    if isinstance(op, Overlay | RoOverlay | TmpOverlay):
        raise _no(f"{op.describe()}: an overlay is mounted for each command")
    if isinstance(op, BindFd) or (isinstance(op, File | BindData) and isinstance(op.data, int)):
        raise _no(f"{op.describe()}: a descriptor is looked at for each command")
    if isinstance(op, BindData) and not op.read_only:
        raise _no(f"{op.describe()}: a writable file of its own, outside of its own file systems")


def _check_order(ops: tuple[Op, ...]) -> None:
    """Refuse ops that later ones cover, or that lie behind the plan's own links: their paths would mislead."""
    links = [op.dest for op in ops if isinstance(op, Symlink)]
    mounts = [op for op in ops if isinstance(op, _MOUNTS)]
    for i, op in enumerate(mounts):
        for later in mounts[i + 1 :]:
            covered = is_below(op.dest, later.dest) and (op.dest != later.dest or isinstance(op, _FRESH))
            if covered:
                raise _no(f"{later.describe()} covers {op.describe()}")
    for step in ops:
        is_link = isinstance(step, Symlink)
        if any(is_below(_dest(step), link) and not (is_link and _dest(step) == link) for link in links):
            raise _no(f"{step.describe()} lies behind a link")
        above = [mount for mount in mounts if is_below(_dest(step), mount.dest)]
        nearest = max(above, key=lambda mount: len(mount.dest), default=None)
        if isinstance(step, Dir | File | Symlink | Chmod) and isinstance(nearest, _BINDS):
            raise _no(f"{step.describe()} lies in {nearest.describe()}, where a link could lead elsewhere")
        if isinstance(step, RemountRo) and step.dest != "/" and (nearest is None or nearest.dest != step.dest):
            raise _no(f"{step.describe()} is about no mount of the plan's")


def _is_read_only(i: int, ops: tuple[Op, ...]) -> bool:
    op = ops[i]
    return isinstance(op, Tmpfs) and RemountRo(op.dest) in ops[i:]


def _has_fixed_root(ops: tuple[Op, ...]) -> bool:
    """Return whether the root is the host's, or can't be written to."""
    on_root = [i for i, op in enumerate(ops) if isinstance(op, _MOUNTS) and op.dest == "/"]
    if on_root and isinstance(ops[on_root[-1]], _BINDS):
        return True
    return RemountRo("/") in ops[on_root[-1] if on_root else 0 :] and not any(
        isinstance(ops[i], _FRESH) and not _is_read_only(i, ops) for i in on_root
    )


def parts(ops: tuple[Op, ...]) -> Parts:
    """Split primitive ops into what is kept and what is renewed; raises UnavailableError if nothing can be kept.

    The checks leave only ops whose paths are what they look like: no later op covers one, and no link leads to one.
    Then each op, in order, falls into one of these cases:
    1. It is a fresh file system that can be written to: kept and renewed. The template has one, as a mount point, and
       each command's own covers it. `over` has its index in `renewed`.
    2. It changes such a file system itself (its mode, read-only), or sets up a namespace (the host name, the loopback
       device): renewed alone.
    3. Everything else is kept. What a fresh file system will cover also needs a renewed op. A mount is lifted, with the
       mounts on it, and put down on the fresh one. A directory, file, link or mode is made again.

    _numbered() then gives the lifted mounts their numbers: in the order of the file systems that cover them.
    """
    if len(ops) > _MOST_OPS:
        raise _no(f"more than {_MOST_OPS} ops, each of which would have to be looked at for each command")
    for op in ops:
        _check_op(op)
    ops = tuple(op for op in ops if not isinstance(op, Console))  # only a command with a terminal has one
    _check_order(ops)
    if not _has_fixed_root(ops):
        raise _no("the root is writable; make it read-only (RemountRo('/')) if it needn't be")
    kept: list[Op] = []
    renewed: list[Op] = []
    over: dict[str, int] = {}  # the fresh file systems: destination to index in renewed
    mounts: list[str] = []  # destinations of the template's mounts on fresh file systems
    for i, op in enumerate(ops):
        at = _dest(op)
        above = max((path for path in over if is_below(at, path)), key=len, default=None) if at else None
        is_on_mount = any(is_below(at, path) and is_below(path, above or "/") for path in mounts)
        if isinstance(op, Hostname | Loopback):
            renewed.append(op)
            continue
        if isinstance(op, _FRESH) and not _is_read_only(i, ops):
            kept.append(replace(op, cover=False, nests=False) if isinstance(op, Proc) else op)
            over[at] = len(renewed)
            renewed.append(Over(op) if isinstance(op, Tmpfs | Proc) else op)
            continue
        if above is not None and at == above and isinstance(op, RemountRo | Chmod):
            renewed.append(op)
            continue
        kept.append(op)
        if above is None or is_on_mount:
            continue
        if is_below(at, "/proc") and at.split("/")[2:3][0].isdigit():
            renewed.append(_of_process(op))
            continue
        if isinstance(op, BindData) and at.rpartition("/")[0] != above:
            raise _no(f"{op.describe()}: its mode is about the directories above it as well")
        if isinstance(op, _MOUNTS):
            place = over[above]
            covering = renewed[place]
            if not isinstance(covering, Over):
                raise _no(f"{op.describe()} lies in {covering.describe()}")
            renewed[place] = replace(covering, lifted=(*covering.lifted, at))
            renewed.append(Lifted(-1, at))
            mounts.append(at)
        elif isinstance(op, Dir | File | Symlink | Chmod):
            renewed.append(op)
    return Parts(tuple(kept), _numbered(renewed), tuple(_is_watched(i, kept) for i in range(len(kept))))


def _is_watched(i: int, ops: list[Op]) -> bool:
    """Return whether the op's mount point lies in a bind of the host's: the nearest mount above it is one."""
    at = _dest(ops[i])
    if not at:
        return False
    above = [op for op in ops[:i] if isinstance(op, _MOUNTS) and is_below(at, op.dest) and op.dest != at]
    same = [op for op in ops[:i] if isinstance(op, _MOUNTS) and op.dest == at]
    nearest = max(above, key=lambda op: len(op.dest), default=None)
    return isinstance(nearest, _BINDS) or any(isinstance(op, _BINDS) for op in same)


def _of_process(op: Op) -> Op:
    """Return an op that does the same to a process's own files. The template's are those of another process."""
    path = "/proc/1/autogroup"
    if op != Mask(path, optional=True):
        raise _no(f"{op.describe()} is about one process")
    return RoBind(path, path, optional=True)  # masked so that commands can't write to it; read-only does that too


def _numbered(renewed: list[Op]) -> tuple[Op, ...]:
    """Return the ops with a number for each lifted mount, in the order in which they are lifted."""
    lifted = [path for op in renewed if isinstance(op, Over) for path in op.lifted]
    if len(lifted) > MOST_LIFTED:
        raise _no(f"more than {MOST_LIFTED} mounts on file systems that are made for each command")
    return tuple(replace(op, index=lifted.index(op.dest)) if isinstance(op, Lifted) else op for op in renewed)
