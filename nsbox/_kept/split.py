"""Plans for many commands: what of a plan is made once, in a template, and what is made for each command. Pure.

Each command gets a fresh copy of whatever it can write to and nobody asked to keep (tmpfs, /dev). It also gets its own
of everything that belongs to its namespaces (/proc, pseudo-terminals, message queues, the host name). A fresh file
system covers the template's. The mounts below that are lifted, and put down on the fresh one.
"""

from __future__ import annotations

from nsbox._base.errors import Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen, replace
from nsbox._base.paths import innermost, is_below
from nsbox._plan import ops
from nsbox._plan.mounts import BINDS, Mount, MountTable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsbox._plan.plan import Identity, Plan

MOST_LIFTED = 48  # as abi.h has it
_MOST_OPS = 400
_FRESH = (ops.Tmpfs, ops.Proc, ops.Devpts, ops.Mqueue)
_NODES = (ops.Dir, ops.File, ops.Symlink, ops.Chmod)
_NO_OTHERS = (ops.Lifted, ops.RemountRo, ops.Hostname, ops.Loopback, *_NODES)  # they mount nothing new


@frozen
class Parts(Frozen):
    """A plan in two parts.

    kept: what the template is made of.
    renewed: what is made afresh for each command.
    watched: for each op of kept, whether its mount point is the host's, so that another process may replace it.
    fresh: for each op of kept, whether each command has another mount at its place.
    """

    kept: tuple[ops.Op, ...]
    renewed: tuple[ops.Op, ...]
    watched: tuple[bool, ...]
    fresh: tuple[bool, ...]


def _no(what: str) -> UnavailableError:
    return UnavailableError(Reason(what))


def _dest(op: ops.Op) -> str:
    return getattr(op, "dest", "")


def check(plan: Plan) -> None:
    """Raise UnavailableError, with the reason, if no part of a plan can be kept from one command to the next."""
    if plan.backend != "namespaces" or plan.plain:
        raise _no(f"the {plan.backend} backend has nothing that could be kept")
    if not {"user", "mount", "pid"} <= plan.namespaces:
        raise _no("without user, mount and pid namespaces of its own nothing is kept")
    identity = plan.identity
    details = (identity.userns, identity.userns2, plan.pidns, plan.capabilities)
    if any(value is not None for value in details) or plan.limit_userns or plan.no_userns or plan.host_writes:
        raise _no("details: what they ask for belongs to one command")
    if not plan.die_with_parent:
        raise _no("details: a sandbox that outlives the caller can't be kept for it")


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


def _check_op(op: ops.Op) -> None:
    if isinstance(op, ops.Overlay | ops.RoOverlay | ops.TmpOverlay):
        raise _no(f"{op.describe()}: an overlay is mounted for each command")
    if isinstance(op, ops.BindFd) or (isinstance(op, ops.File | ops.BindData) and isinstance(op.data, int)):
        raise _no(f"{op.describe()}: a descriptor is looked at for each command")
    if isinstance(op, ops.BindData) and not op.read_only:
        raise _no(f"{op.describe()}: a writable file of its own, outside of its own file systems")


def _bind(stack: Iterable[Mount]) -> ops.Op | None:
    """Return the first of these mounts that shows files of the host."""
    return next((mount.op for mount in stack if isinstance(mount.op, BINDS)), None)


def _check_order(steps: tuple[ops.Op, ...], table: MountTable) -> None:
    """Refuse ops that later ones cover, or that lie behind the plan's own links: their paths would mislead."""
    for covered, mount in table.covered():
        if covered.op and mount.op and (covered.dest != mount.dest or isinstance(covered.op, _FRESH)):
            raise _no(f"{mount.op.describe()} covers {covered.op.describe()}")
    links = [op.dest for op in steps if isinstance(op, ops.Symlink)]
    for step in steps:
        dest = _dest(step)
        is_link = isinstance(step, ops.Symlink)
        if any(is_below(dest, link) and not (is_link and dest == link) for link in links):
            raise _no(f"{step.describe()} lies behind a link")
        bind = _bind(table.stack(table.nearest(dest).dest)) if isinstance(step, _NODES) else None
        if bind is not None:
            raise _no(f"{step.describe()} lies in {bind.describe()}, where a link could lead elsewhere")
        if isinstance(step, ops.RemountRo) and dest != "/" and table.top(dest) is None:
            raise _no(f"{step.describe()} is about no mount of the plan's")


def _has_fixed_root(table: MountTable) -> bool:
    """Return whether the root is the host's, or can't be written to."""
    root = table.nearest("/")
    if isinstance(root.op, BINDS):
        return True
    return root.is_read_only and (root.op is None or isinstance(root.op, ops.Tmpfs))


class _Split:
    """Two growing lists of ops, and what they have mounted so far.

    table: the mounts of the ops so far. final: those of all ops.
    lifted: for each fresh file system, by its place, the places of the mounts that go along onto each command's own.
    """

    def __init__(self, final: MountTable) -> None:
        self.final, self.table = final, MountTable()
        self.kept: list[tuple[ops.Op, bool]] = []
        self.renewed: list[ops.Op] = []
        self.lifted: dict[str, list[str]] = {}

    def _is_fresh(self, op: ops.Op) -> bool:
        """Return whether it is a file system that commands can write to."""
        return isinstance(op, _FRESH) and not (isinstance(op, ops.Tmpfs) and self.final.is_read_only(op.dest))

    def add(self, op: ops.Op) -> None:
        """Put the next op where it belongs."""
        dest = _dest(op)
        fresh = innermost(dest, self.lifted) if dest else None
        if isinstance(op, ops.Hostname | ops.Loopback):
            self.renewed.append(op)
        elif isinstance(op, _FRESH) and self._is_fresh(op):
            self._keep(replace(op, cover=False, nests=False) if isinstance(op, ops.Proc) else op)
            self.renewed.append(op)
            self.lifted[dest] = []
        elif dest == fresh and isinstance(op, ops.RemountRo | ops.Chmod):
            self.renewed.append(op)
        else:
            self._keep(op)
            if fresh is not None and not any(is_below(dest, path) for path in self.lifted[fresh]):
                self._renew(op, dest, fresh)

    def _keep(self, op: ops.Op) -> None:
        self.kept.append((op, self._is_watched(_dest(op))))
        self.table.add(op)

    def _is_watched(self, dest: str) -> bool:
        """Return whether a mount point lies in a bind of the host's: the nearest mount above it, or there, is one."""
        stacks = (self.table.stack(dest), self.table.stack(self.table.above(dest)) if dest != "/" else ())
        return bool(dest) and any(_bind(stack) is not None for stack in stacks)

    def _renew(self, op: ops.Op, dest: str, fresh: str) -> None:
        """Do for a command's own file system what a kept op does right on the template's."""
        if is_below(dest, "/proc") and dest.split("/")[2:3][0].isdigit():
            self.renewed.append(_of_process(op))
        elif isinstance(op, ops.BindData) and dest.rpartition("/")[0] != fresh:
            raise _no(f"{op.describe()}: its mode counts for the directories above it too")
        elif isinstance(op, _NODES):
            self.renewed.append(op)
        elif not isinstance(op, ops.RemountRo):
            covering = self.final.nearest(fresh).op
            if not isinstance(covering, ops.Tmpfs | ops.Proc):
                raise _no(f"{op.describe()} lies in {covering.describe() if covering else fresh}")
            beneath = self.table.above(fresh)
            if fresh not in self.lifted.get(beneath, [fresh]):  # the one beneath would have covered it by then
                raise _no(f"{op.describe()} lies in {covering.describe()}, in a file system made for each command")
            self.lifted[fresh].append(dest)
            self.renewed.append(ops.Lifted(0, dest))

    def parts(self) -> Parts:
        """Return both lists. The lifted mounts get their numbers: in the order in which they are lifted."""
        numbers = {path: number for number, path in enumerate(path for paths in self.lifted.values() for path in paths)}
        if len(numbers) > MOST_LIFTED:
            raise _no(f"more than {MOST_LIFTED} mounts on file systems that are made for each command")
        renewed = (
            replace(op, index=numbers[op.dest])
            if isinstance(op, ops.Lifted)
            else ops.Over(op, tuple(self.lifted[op.dest]))
            if isinstance(op, ops.Tmpfs | ops.Proc)
            else op
            for op in self.renewed
        )
        others = {_dest(op) for op in self.renewed if not isinstance(op, _NO_OTHERS)}
        return Parts(
            kept=tuple(op for op, _ in self.kept),
            renewed=tuple(renewed),
            watched=tuple(watched for _, watched in self.kept),
            fresh=tuple(_dest(op) in others for op, _ in self.kept),
        )


def parts(steps: tuple[ops.Op, ...]) -> Parts:
    """Split primitive ops into what is kept and what is renewed; raises UnavailableError if nothing can be kept.

    The checks leave only ops whose paths are what they look like: no later op covers one, and no link leads to one.
    Then each op, in order, falls into one of these cases:
    1. It is a fresh file system that can be written to: kept and renewed. The template has one, as a mount point, and
       each command's own covers it.
    2. It changes such a file system itself (its mode, read-only), or sets up a namespace (the host name, the loopback
       device): renewed alone.
    3. Everything else is kept. What lies right on a fresh file system, which will be covered, is renewed as well. A
       mount is lifted, with the mounts on it, and put down on the fresh one. A directory, file, link or mode is made
       again.
    """
    if len(steps) > _MOST_OPS:
        raise _no(f"more than {_MOST_OPS} ops, all of which would have to be checked for each command")
    for op in steps:
        _check_op(op)
    steps = tuple(op for op in steps if not isinstance(op, ops.Console))  # only a command with a terminal has one
    final = MountTable(steps)
    _check_order(steps, final)
    if not _has_fixed_root(final):
        raise _no("the root is writable; make it read-only (RemountRo('/')) if it needn't be")
    split = _Split(final)
    for op in steps:
        split.add(op)
    return split.parts()


def _of_process(op: ops.Op) -> ops.Op:
    """Return an op that does the same to a process's own files. The template's are those of another process."""
    path = "/proc/1/autogroup"
    if op != ops.Mask(path, optional=True):
        raise _no(f"{op.describe()} is about one process")
    return ops.RoBind(path, path, optional=True)  # masked so that commands can't write to it; read-only does that too
