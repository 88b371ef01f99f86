"""What lies where once ops are carried out: which mount covers which, and which one a path is on. Pure.

All that nsbox assumes about the kernel's mounts are these rules. tests/differential/test_mounts.py compares them with
what /proc/self/mountinfo, statvfs() and open() say in real sandboxes:
1. A mount hides what its mount point had before, with everything below, other mounts included (mount(2): the previous
   contents "become invisible"). None of it comes back, because no op unmounts.
2. The last of several mounts on one place is what a path leads to (mount(2), "stacked" mounts; path_resolution(7)).
3. A path is on the innermost mount at or above it, by whole names.
4. A mount is read-only by a flag of its own (mount_setattr(2), MOUNT_ATTR_RDONLY). RemountRo sets it for what is seen
   at its place at that moment. Mounts in it, and those that come later, keep their own.
5. The first mount is the root, an empty tmpfs, until one on "/" covers it (pivot_root(2) then makes that the root).
6. Directories, files and links that ops make hide no mount. They vanish when a mount covers the place.

Paths are compared by name. A destination behind a symlink is another place (dest.c resolves it), which a table can't
know: the caller refuses such ops, or resolves them first (_paths/destinations.py). What a recursive bind brings along
isn't known either.
"""

from __future__ import annotations

from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen, replace
from nsbox._base.paths import is_inside
from nsbox._plan import ops

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BINDS = (ops.Bind, ops.RoBind, ops.DevBind, ops.BindFd, ops.Device)  # they show files of the host
_OVERLAYS = (ops.Overlay, ops.RoOverlay, ops.TmpOverlay)
_FRESH = (ops.Tmpfs, ops.Proc, ops.Dev, ops.Devpts, ops.Mqueue)
_MOUNTS = (*BINDS, *_OVERLAYS, *_FRESH, ops.Console, ops.BindData, ops.Mask)
_NODES = (ops.Dir, ops.File, ops.Symlink, ops.Chmod)
_READ_ONLY = (ops.RoBind, ops.RoOverlay, ops.Device, ops.Mask)


@frozen
class Mount(Frozen):
    """A mount.

    dest: its place.
    op: what mounts it; None: the root that there is from the start.
    number: how many of the table's came before it.
    is_read_only: whether its own flag says so.
    is_optional: whether it may be missing; then it doesn't surely cover anything.
    """

    dest: str
    op: ops.Op | None
    number: int
    is_read_only: bool = False
    is_optional: bool = False


def _is_read_only(op: ops.Op) -> bool:
    return isinstance(op, _READ_ONLY) or (isinstance(op, ops.BindFd | ops.BindData) and op.read_only)


def _is_optional(op: ops.Op) -> bool:
    return isinstance(op, ops.Console) or bool(getattr(op, "optional", False))


class MountTable:
    """The mounts that a path can lead to, and what ops have made beside them.

    Iterating over it yields their places, in the order in which what is seen at each was put there.
    """

    def __init__(self, steps: Iterable[ops.Op] = (), *, optional: bool = False) -> None:
        """Carry out ops in their order.

        optional: count an op that may be skipped as a mount that may be missing. False: all ops are carried out.
        """
        self._has_optional = optional
        self._count = 0
        self._stacks: dict[str, list[Mount]] = {"/": [Mount("/", None, 0)]}  # [] where a node is, without a mount
        self._nodes: dict[str, ops.Op] = {}
        self._coverings: list[tuple[Mount, Mount]] = []
        for step in steps:
            self.add(step)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stacks)

    def add(self, step: ops.Op) -> None:
        """Carry out one more op."""
        if isinstance(step, _MOUNTS):
            self._mount(step.dest, step)
        elif isinstance(step, ops.RemountRo):
            candidates = self.candidates(step.dest)
            stack = self._stacks.get(step.dest, [])
            stack[len(stack) - len(candidates) :] = [replace(mount, is_read_only=True) for mount in candidates[::-1]]
        elif isinstance(step, _NODES) and not self._is_hosts(step):
            self._nodes[step.dest] = step
            self._stacks.setdefault(step.dest, [])

    def _is_hosts(self, node: ops.Op) -> bool:
        """Return whether an op lies in a bind, where it only finds what it would make. A link has its target anyway."""
        return not isinstance(node, ops.Symlink) and isinstance(self.nearest(getattr(node, "dest", "/")).op, BINDS)

    def _mount(self, dest: str, op: ops.Op) -> None:
        self._count += 1
        mount = Mount(dest, op, self._count, _is_read_only(op), self._has_optional and _is_optional(op))
        if mount.is_optional:
            self._stacks.setdefault(dest, []).append(mount)
            return
        for path in [path for path in self._stacks if is_inside(path, dest)]:
            self._coverings += ((covered, mount) for covered in self._stacks.pop(path))
            self._nodes.pop(path, None)
        stack = self._stacks.pop(dest, [])
        self._nodes.pop(dest, None)
        self._coverings += ((covered, mount) for covered in stack)
        self._stacks[dest] = [*stack, mount]

    def node(self, dest: str) -> ops.Op | None:
        """Return the op that last made something at a place, if no mount covers that."""
        return None if self._stacks.get(dest) else self._nodes.get(dest)

    def stack(self, dest: str) -> tuple[Mount, ...]:
        """Return the mounts on one place, the last on top; none if another covers the place from above."""
        return tuple(self._stacks.get(dest, ()))

    def top(self, dest: str) -> Mount | None:
        """Return the mount that is seen at a place."""
        return self._stacks[dest][-1] if self._stacks.get(dest) else None

    def candidates(self, dest: str) -> tuple[Mount, ...]:
        """Return the mounts that may be the one seen at a place: from the last down to one that isn't optional."""
        mounts: list[Mount] = []
        for mount in reversed(self.stack(dest)):
            mounts.append(mount)
            if not mount.is_optional:
                break
        return tuple(mounts)

    def above(self, path: str) -> str:
        """Return the place of the innermost mount that is strictly above a path; for "/", that is "/"."""
        while path != "/":
            path = path.rpartition("/")[0] or "/"
            if self._stacks.get(path):
                break
        return path

    def nearest(self, path: str) -> Mount:
        """Return the mount that a path is on."""
        return self.top(path) or self._stacks[self.above(path)][-1]

    def is_read_only(self, path: str) -> bool:
        """Return whether the mount that a path is on is read-only."""
        return self.nearest(path).is_read_only

    def below(self, path: str) -> list[str]:
        """Return the places of mounts strictly below a path."""
        return [dest for dest, stack in self._stacks.items() if stack and is_inside(dest, path)]

    def inside(self, path: str) -> list[str]:
        """Return the places strictly below a path at which there is a mount, or what an op has made."""
        return [dest for dest in self._stacks if is_inside(dest, path)]

    def covered(self) -> list[tuple[Mount, Mount]]:
        """Return each mount that another covers, with that one; in the order of those that are covered.

        A mount on top of another covers that one as well; so does one further above that comes later.
        """
        return sorted(self._coverings, key=lambda pair: pair[0].number)
