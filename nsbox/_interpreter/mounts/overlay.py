"""Plans with throw-away overlays: which directories branches see one of, and how it gets among their mounts. Pure.

Each directory that the policy opens for writing is a place. The interpreter has it read-only. A branch gets an overlay
of it, made outside (layers.py), and attaches that over what the interpreter sees there. What else is mounted in a place
falls into one of these cases:
1. The policy hides it: the overlay itself lacks it, so nothing has to be mounted there.
2. It shows what is there anyway, to protect it from writes or from being moved: it is left out. Writes are dropped.
3. It shows something else, such as another user's files or a file with contents of its own: the branch lifts it before
   the overlay covers it, and puts it down on the overlay.
4. It is a file system that each branch gets fresh: that is mounted on the overlay.
"""

from __future__ import annotations

from nsbox._base.errors import Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen, replace
from nsbox._base.paths import innermost, is_below, is_inside
from nsbox._kept.split import MOST_LIFTED
from nsbox._plan import ops

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MOST_PLACES = 16  # overlays of a branch, whose descriptors come in one message
_KERNELS = ("/proc", "/sys", "/dev")  # no files of a disk
_LAST = (ops.RemountRo, ops.Chmod)  # they change what other ops have made
_NOTHING = 4096  # bytes, of a file system that nothing is written to


@frozen
class Place(Frozen):
    """A directory that branches see an overlay of.

    source: its path on the host.
    dest: its path in the sandbox.
    nofollow: whether a link in source is an error.
    hidden: what the policy hides in it, as paths relative to it.
    """

    source: str
    dest: str
    nofollow: bool = False
    hidden: tuple[str, ...] = ()


@frozen
class Overlaid(Frozen):
    """What becomes of a plan.

    steps: the interpreter's ops, in which what is writable on the host is read-only.
    places: what branches see an overlay of, parents first.
    others: the mounts in places that the branches lift, case 3.
    """

    steps: tuple[ops.Op, ...]
    places: tuple[Place, ...]
    others: tuple[str, ...]

    def renewed(self, steps: Iterable[ops.Op]) -> tuple[ops.Op, ...]:
        """Return a branch's ops, in which the overlays are the first of all mounts that were lifted.

        steps: what of the interpreter's ops each branch gets fresh (_kept.split).
        """
        steps = tuple(steps)
        dests = [place.dest for place in self.places]
        inside = [op for op in steps if any(is_inside(_dest(op), dest) for dest in dests)]
        before = [op for op in steps if op not in inside]
        last = [op for op in inside if isinstance(op, _LAST)]
        moved = [*self.others, *(path for op in inside if isinstance(op, ops.Over) for path in op.lifted)]
        covers = [
            ops.Over(ops.Tmpfs(dest, size=_NOTHING, mode=0), lifted)
            for dest in dests
            if not any(is_inside(dest, other) for other in dests)
            and (lifted := tuple(path for path in moved if is_inside(path, dest)))
        ]
        fresh = [replace(op, lifted=()) if isinstance(op, ops.Over) else op for op in inside if op not in last]
        put_down = [*fresh, *(ops.Lifted(0, path) for path in self.others), *(ops.Lifted(-1, dest) for dest in dests)]
        put_down.sort(key=lambda op: _dest(op).count("/"))  # in this order where two have the same depth
        return self._numbered((*before, *covers, *put_down, *last))

    def _numbered(self, steps: tuple[ops.Op, ...]) -> tuple[ops.Op, ...]:
        """Return ops whose lifted mounts have their numbers: first the overlays, then those that the ops lift."""
        overlays = {place.dest: number for number, place in enumerate(self.places)}
        lifted = [path for op in steps if isinstance(op, ops.Over) for path in op.lifted]
        numbers = {path: number for number, path in enumerate(lifted, len(overlays))}
        if len(overlays) + len(lifted) > MOST_LIFTED:
            raise UnavailableError(Reason(f"overlay=True: more than {MOST_LIFTED} mounts would have to be moved"))
        return tuple(
            replace(op, index=overlays[op.dest] if op.index < 0 else numbers[op.dest])
            if isinstance(op, ops.Lifted)
            else op
            for op in steps
        )


def _dest(op: ops.Op) -> str:
    return str(getattr(op.op if isinstance(op, ops.Over) else op, "dest", ""))


def _no(op: ops.Op, why: str) -> UnavailableError:
    return UnavailableError(Reason(f"overlay=True: {op.describe()} {why}"))


class _Walk:
    """Ops, one after the other, and what each place holds so far.

    shown: for each mount its place, or None, and the directory of the host that it shows there.
    """

    def __init__(self, owners: Mapping[str, object], directories: Iterable[str]) -> None:
        self._owners, self._directories = owners, frozenset(directories)
        self._shown: dict[str, tuple[str | None, str]] = {}
        self.places: dict[str, Place] = {}
        self.hidden: dict[str, list[str]] = {}
        self.others: list[str] = []

    def add(self, op: ops.Op, *, is_writable: bool) -> None:
        """Carry out a mount. is_writable: whether it opens a directory of the host for writing."""
        dest = _dest(op)
        above = innermost(dest, (path for path in self._shown if is_inside(dest, path)))
        place, source = (None, "") if above is None else self._shown[above]
        if isinstance(op, ops.Mask):
            self._hide(dest, place)
            return
        self.places.pop(dest, None)  # it is covered
        if isinstance(op, ops.Bind | ops.RoBind):
            is_there = above is not None and op.src == f"{source}{dest[len(above.rstrip('/')) :]}"
            if place is not None and is_there and self._owners.get(dest) == self._owners.get(place):
                self._shown[dest] = place, op.src
                return
            if is_writable:
                _check_source(op)
                self.places[dest] = Place(op.src, dest, op.nofollow)
                self._shown[dest] = dest, op.src.rstrip("/")
                return
        self._shown[dest] = None, ""
        if place is not None:
            self.others.append(dest)

    def _hide(self, dest: str, place: str | None) -> None:
        if dest in self.places:
            del self.places[dest]
            self._shown[dest] = None, ""
        elif place is not None:
            self.hidden.setdefault(place, []).append(dest[len(place.rstrip("/")) + 1 :])

    def is_directory(self, op: ops.Op) -> bool:
        """Return whether an op shows a directory of the host, writable."""
        return isinstance(op, ops.Bind | ops.DevBind) and op.src in self._directories


def _check_source(op: ops.Bind | ops.RoBind) -> None:
    if op.src == "/":
        raise _no(op, "shows the whole file system, which overlayfs can't lie on: name directories")
    if any(is_below(op.src, path) for path in _KERNELS):
        raise _no(op, "shows the kernel's files, writable: they can't be overlaid")


_MOUNTS = (
    *(ops.Bind, ops.RoBind, ops.DevBind, ops.Device, ops.BindData, ops.Mask),
    *(ops.Tmpfs, ops.Proc, ops.Devpts, ops.Mqueue, ops.Console),
)


def overlaid(steps: Sequence[ops.Op], owners: Mapping[str, object], directories: Iterable[str]) -> Overlaid:
    """Return what becomes of a plan's ops, as primitives; raises UnavailableError if that can't be right.

    owners: for destinations of binds, whose files are the command's own there.
    directories: those sources of binds that are directories.
    """
    walk = _Walk(owners, directories)
    closed = {op.dest for op in steps if isinstance(op, ops.RemountRo)}
    for op in steps:
        is_directory = walk.is_directory(op)
        if isinstance(op, ops.DevBind) and is_directory:
            raise _no(op, "shows devices, which an overlay doesn't have")
        if isinstance(op, ops.BindFd | ops.Overlay | ops.RoOverlay | ops.TmpOverlay):
            raise _no(op, "is mounted for one command alone")
        if isinstance(op, _MOUNTS):
            walk.add(op, is_writable=is_directory and isinstance(op, ops.Bind) and _dest(op) not in closed)
    ordered = sorted(walk.places.values(), key=lambda place: (place.dest.count("/"), place.dest))
    places = tuple(replace(place, hidden=tuple(dict.fromkeys(walk.hidden.get(place.dest, ())))) for place in ordered)
    if len(places) > MOST_PLACES:
        what = f"overlay=True: the policy opens {len(places)} directories for writing, and a branch has {MOST_PLACES}"
        raise UnavailableError(Reason(f"{what} overlays"))
    return Overlaid(
        steps=tuple(
            ops.RoBind(op.src, op.dest, op.optional, op.nofollow) if isinstance(op, ops.Bind) else op for op in steps
        ),
        places=places,
        others=_kept(walk.others, steps),
    )


def _kept(dests: Iterable[str], steps: Iterable[ops.Op]) -> tuple[str, ...]:
    """Return those of the mounts that the interpreter keeps: not those that each branch gets fresh, nor the places."""
    closed = {op.dest for op in steps if isinstance(op, ops.RemountRo)}
    fresh = {
        op.dest
        for op in steps
        if isinstance(op, ops.Proc | ops.Devpts | ops.Mqueue | ops.Console)
        or (isinstance(op, ops.Tmpfs) and op.dest not in closed)
    }
    return tuple(dict.fromkeys(dest for dest in dests if dest not in fresh))
