"""Where the destinations of ops lead: through links that ops make, and through links in what they show of the host.

C resolves each destination inside the new root when the op is carried out (csrc/linux/root/dest.c). So does this, op by
op, over the mounts so far: a mask on a link's way is a mask where the link leads. How links change later isn't known.
"""

from __future__ import annotations

import errno
import os
import stat

from nsbox._base.checks import check_answer
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, replace
from nsbox._paths.resolution import Walk
from nsbox._plan import ops
from nsbox._plan.mounts import MountTable

if TYPE_CHECKING:
    from collections.abc import Iterable

_MADE = (ops.Symlink, ops.File)  # what is there already isn't followed
_NOTHING = ("", "")


def _look(path: str, is_source: bool) -> tuple[str, str] | None:
    """Return what is at a path of the host, as Destinations.entry() does; None: no such name."""
    try:
        mode = (os.stat if is_source else os.lstat)(path).st_mode
        if stat.S_ISLNK(mode):
            return "link", os.readlink(path)
    except OSError as error:
        check_answer(error)
        return None if error.errno == errno.ENOENT else _NOTHING
    return ("directory" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else ""), ""


def _sources(op: ops.Op | None) -> tuple[str, ...]:
    """Return the paths of the host that a mount shows, one over the other from the top."""
    if isinstance(op, ops.BindFd):
        return (f"/proc/self/fd/{op.fd}",)
    if isinstance(op, ops.Overlay):
        return (op.upper, *reversed(op.lower))
    if isinstance(op, ops.RoOverlay | ops.TmpOverlay):
        return tuple(reversed(op.lower))
    return (op.src,) if isinstance(op, ops.Bind | ops.RoBind | ops.DevBind | ops.Device) else ()


def is_missing(op: ops.Op) -> bool:
    """Return whether an op binds nothing, which is no error, since its source doesn't exist."""
    if not isinstance(op, ops.Bind | ops.RoBind | ops.DevBind) or not op.optional:
        return False
    return not (os.path.lexists if op.nofollow else os.path.exists)(op.src)


class Destinations:
    """Ops, each with the place that its destination leads to.

    steps: the ops, without those that are missing.
    table: what their primitives have mounted.
    looked: what each path of the host was that they led through.
    """

    def __init__(self, steps: Iterable[ops.Op], *, looks: bool = True) -> None:
        """Carry out ops in their order; raises PolicyError for a destination that leads through a loop of links.

        looks: look at the host. Otherwise only links that ops make are known.
        """
        self._looks = looks
        self.table = MountTable()
        self.looked: dict[tuple[str, bool], tuple[str, str] | None] = {}
        resolved = []
        for step in steps:
            if looks and is_missing(step):
                continue
            op = self._resolved(step)
            resolved.append(op)
            for primitive in op.primitives():
                self.table.add(primitive)
        self.steps = tuple(resolved)

    def _resolved(self, op: ops.Op) -> ops.Op:
        dest = getattr(op, "dest", None)
        if not isinstance(dest, str):
            return op
        parent, _, name = dest.rpartition("/")
        try:
            place = f"{self.place(parent).rstrip('/')}/{name}" if isinstance(op, _MADE) else self.place(dest)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise PolicyError("ops", f"{op.describe()}: its place is behind a loop of symlinks") from None
        return op if place == dest else replace(op, dest=place)

    def place(self, path: str) -> str:
        """Return where a path leads after the ops so far; raises OSError (ELOOP) for a loop."""
        walk = Walk(path, self.link)
        for _ in walk:
            pass
        return walk.at

    def link(self, path: str) -> str | None:
        """Return the target of a link; None for anything else. No link may be on the way to the path."""
        kind, target = self.entry(path)
        return target if kind == "link" else None

    def entry(self, path: str) -> tuple[str, str]:
        """Return what is at a path without links on the way: "file", "directory", "link" and its target, or ""."""
        node = self.table.node(path)
        if isinstance(node, ops.Symlink):
            return "link", node.target
        if isinstance(node, ops.File):
            return "file", ""
        mount = self.table.nearest(path)
        if mount.dest == path and isinstance(mount.op, ops.BindData):
            return "file", ""
        rest = path[len(mount.dest.rstrip("/")) :] if path != mount.dest else ""
        found = self._shown(_sources(mount.op), rest)
        if found is not None:
            return found
        is_made = not rest or isinstance(node, ops.Dir) or bool(self.table.inside(path))
        return ("directory", "") if is_made else _NOTHING

    def _shown(self, sources: tuple[str, ...], rest: str) -> tuple[str, str] | None:
        for source in sources if self._looks else ():
            key = f"{source.rstrip('/')}{rest}", not rest
            found = self.looked[key] = _look(*key)
            if found is not None:
                return found
        return None

    def is_current(self) -> bool:
        """Return whether the host's links on the way are what they were."""
        return all(_look(*key) == found for key, found in self.looked.items())


def resolved(steps: Iterable[ops.Op]) -> tuple[ops.Op, ...]:
    """Return ops with the places that links of their own lead to. The host's links aren't looked at: see above."""
    return Destinations(steps, looks=False).steps
