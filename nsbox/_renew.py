"""Plans for many commands: what of a plan is made once, in a template, and what each command gets anew. Pure.

Anew is what a command can write to and nobody asked to keep (tmpfs, /dev), and what belongs to namespaces of its own
(/proc, pseudo-terminals, message queues, the host name). It covers the template's, whose mounts below it are lifted and
put down on the new one.
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
    """A plan in two parts. kept: what the template is made of. renewed: what each command gets anew.

    watched: for each op of the former, whether it is mounted on something of the host's, where somebody may replace it.
    """

    kept: tuple[Op, ...]
    renewed: tuple[Op, ...]
    watched: tuple[bool, ...]


def _no(what: str) -> UnavailableError:
    return UnavailableError(Reason(what))


def _dest(op: Any) -> str:
    return getattr(op, "dest", "")


def check(plan: Plan) -> None:
    """Raise UnavailableError, with the reason, for a plan that each command has to be set up for from the start."""
    if plan.backend != "namespaces" or plan.plain:
        raise _no(f"the {plan.backend} backend has nothing that could be kept")
    if not {"user", "mount", "pid"} <= plan.namespaces:
        raise _no("without user, mount and pid namespaces of its own nothing is kept")
    identity = plan.identity
    given = (identity.userns, identity.userns2, plan.pidns, plan.capabilities)
    if any(value is not None for value in given) or plan.limit_userns or plan.no_userns or plan.host_writes:
        raise _no("details: what they ask for belongs to one command")
    if not plan.die_with_parent:
        raise _no("details: what outlives the caller keeps nothing for it")


def last_maps(identity: Identity) -> tuple[str, str]:
    """Return the maps of the user namespace that each command has for itself, below the one that is kept.

    Where the plan has no second one, nothing changes in it: each id stays what it is.
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
    """Refuse ops that lie under later ones, or behind links of the plan's: what is where isn't what it looks like."""
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
    """Say if the root is the host's, or can't be written to."""
    on_root = [i for i, op in enumerate(ops) if isinstance(op, _MOUNTS) and op.dest == "/"]
    if on_root and isinstance(ops[on_root[-1]], _BINDS):
        return True
    return RemountRo("/") in ops[on_root[-1] if on_root else 0 :] and not any(
        isinstance(ops[i], _FRESH) and not _is_read_only(i, ops) for i in on_root
    )


def parts(ops: tuple[Op, ...]) -> Parts:
    """Take primitive ops apart; raises UnavailableError, with the reason, where nothing can be kept."""
    if len(ops) > _MOST_OPS:
        raise _no(f"more than {_MOST_OPS} ops, each of which would have to be looked at for each command")
    for op in ops:
        _check_op(op)
    ops = tuple(op for op in ops if not isinstance(op, Console))  # there is one for who has a terminal only
    _check_order(ops)
    if not _has_fixed_root(ops):
        raise _no("the root is writable; make it read-only (RemountRo('/')) if it needn't be")
    kept: list[Op] = []
    renewed: list[Op] = []
    over: dict[str, int] = {}  # destinations of what is fresh, with their places in renewed
    mounts: list[str] = []  # destinations of what is mounted on something fresh, by the template
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
    """Say if what the op is mounted on lies in a bind of the host's: so does the mount nearest above it."""
    at = _dest(ops[i])
    if not at:
        return False
    above = [op for op in ops[:i] if isinstance(op, _MOUNTS) and is_below(at, op.dest) and op.dest != at]
    same = [op for op in ops[:i] if isinstance(op, _MOUNTS) and op.dest == at]
    nearest = max(above, key=lambda op: len(op.dest), default=None)
    return isinstance(nearest, _BINDS) or any(isinstance(op, _BINDS) for op in same)


def _of_process(op: Op) -> Op:
    """Return what does the same to a process's own files, which aren't in the template: there it is another process."""
    path = "/proc/1/autogroup"
    if op != Mask(path, optional=True):
        raise _no(f"{op.describe()} is about one process")
    return RoBind(path, path, optional=True)  # it is masked for the sake of who could write to it


def _numbered(renewed: list[Op]) -> tuple[Op, ...]:
    """Give what is lifted its number, in the order in which that is done."""
    lifted = [path for op in renewed if isinstance(op, Over) for path in op.lifted]
    if len(lifted) > MOST_LIFTED:
        raise _no(f"more than {MOST_LIFTED} mounts on file systems that each command has anew")
    return tuple(replace(op, index=lifted.index(op.dest)) if isinstance(op, Lifted) else op for op in renewed)
