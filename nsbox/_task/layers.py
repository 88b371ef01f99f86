"""Which directories of a plan are overlaid in a task, and what becomes of the ops that show them.

The overlays lie where the directories are, in a mount namespace of the task's own. The plan's binds find them there. So
a bind of a bind's subdirectory shows the same overlay, and what the plan masks, hides or protects stays as it is.
"""

from __future__ import annotations

import os
import stat

from nsbox._base.errors import PolicyError, Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._base.paths import innermost, is_below, is_inside
from nsbox._files.mounts import mounts
from nsbox._plan import ops

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

_KERNELS = ("/proc", "/sys", "/dev")  # no files of a disk
_MOST = 100  # overlays of a task


@frozen
class Layers(Frozen):
    """What a task overlays.

    places: the directories, without links, from the root down: an overlay each. The workspace is one of them.
    closed: directories that the policy shows, and that stay read-only, since something is mounted in them on the host.
    written: those of the places that the policy opens for writing, or that lie in such a directory.
    steps: the plan's ops, in which binds of overlaid directories are writable, and binds of single files read-only.
    """

    places: tuple[str, ...]
    closed: tuple[str, ...]
    written: tuple[str, ...]
    steps: tuple[ops.Op, ...]

    def mounts(
        self, stores: Sequence[tuple[str, str]], base: str, seen: Mapping[str, str] | None = None
    ) -> tuple[ops.Op, ...]:
        """Return the ops that make the overlays: parents first.

        stores: the upper and the work directory of each place.
        base: the directory of all stores, which commands don't see.
        seen: for mapped places, the directory where the store is mounted with the same mapping.
        """
        rows = []
        for place, pair in zip(self.places, stores, strict=True):
            within = (seen or {}).get(place)
            upper, work = pair if within is None else (f"{within}/{os.path.basename(path)}" for path in pair)
            rows.append(ops.Overlay((place,), place, upper, work, nofollow=True))
        return (*rows, ops.Mask(base))


def layers(steps: Iterable[ops.Op], workspace: str, base: str) -> Layers:
    """Return what is overlaid, for the ops of a plan as primitives.

    workspace: a directory that has an overlay of its own.
    base: the directory of all stores. Overlayfs can't keep changes in the directory that they are about.

    Raises UnavailableError for what would let commands write to the host, and PolicyError.
    """
    steps = tuple(steps)
    binds = {op: path for op in steps if (path := _source(op)) is not None}
    sources = {op.src: path for op, path in binds.items() if isinstance(op, ops.Bind | ops.RoBind)}
    written = sorted({sources[op.src] for op in steps if isinstance(op, ops.Bind) and op.src in sources})
    if not any(is_below(workspace, path) for path in written):
        raise PolicyError("workspace", f"{workspace} isn't in a directory that the policy opens for writing")
    closed = _closed({*sources.values(), workspace}, written)
    places = _outermost({*sources.values(), workspace} - closed, workspace)
    if len(places) > _MOST:
        raise UnavailableError(Reason(f"the policy shows {len(places)} directories, and a task overlays {_MOST}"))
    around = next((place for place in places if is_below(base, place)), None)
    if around is not None:
        raise PolicyError("dir", f"{base} lies in {around}, which the task overlays; give a directory outside of it")
    return Layers(
        places=places,
        closed=tuple(sorted(closed)),
        written=tuple(place for place in places if any(is_below(place, path) for path in written)),
        steps=tuple(_step(op, sources, written, closed) for op in steps),
    )


def _source(op: ops.Op) -> str | None:
    """Return the directory that a bind shows, without links, if it can be overlaid. Raises UnavailableError."""
    if isinstance(op, ops.Overlay) or (isinstance(op, ops.BindFd) and not op.read_only):
        raise _no(op, "writes to the host, by a way that a task can't overlay")
    if not isinstance(op, ops.Bind | ops.RoBind | ops.DevBind):
        return None
    try:
        is_directory = stat.S_ISDIR(os.stat(op.src).st_mode)
    except OSError:  # whether that is an error is up to the op
        return None
    if not is_directory:
        return None
    real = op.src if op.nofollow else os.path.realpath(op.src)  # with nofollow, a link is an error when it is mounted
    if real == "/":
        raise _no(op, "shows the whole file system, which overlayfs can't lie on: name directories")
    is_kernels = any(is_below(real, path) for path in _KERNELS)
    if isinstance(op, ops.DevBind) or (is_kernels and isinstance(op, ops.Bind)):
        raise _no(op, "shows devices, or the kernel's files, writable: a task can't overlay them")
    return None if is_kernels else real


def _no(op: ops.Op, why: str) -> UnavailableError:
    return UnavailableError(Reason(f"{op.describe()} {why}"))


def _closed(paths: Collection[str], written: Sequence[str]) -> set[str]:
    """Return the directories that can't be overlaid, because something is mounted in them.

    In a user namespace, overlayfs refuses them (EINVAL): it would show what lies beneath mounts that are locked there
    (mount_namespaces(7)). Raises UnavailableError for one that commands could write to, on the host.
    """
    closed: set[str] = set()
    for point in {point for point, _, _ in mounts()}:
        around = {path for path in paths if is_inside(point, path)}
        open_ones = sorted(path for path in around if any(is_below(path, other) for other in written))
        if open_ones:
            raise UnavailableError(Reason(f"{point} is mounted in {open_ones[0]}, which a task overlays", "unmount it"))
        closed |= around
    return closed


def _outermost(paths: Iterable[str], workspace: str) -> tuple[str, ...]:
    """Return the paths that lie in no other one, and the workspace; parents first."""
    kept: list[str] = []
    for path in sorted(paths, key=lambda path: (path.count("/"), path)):
        if innermost(path, kept) is None or path == workspace:
            kept.append(path)
    return tuple(kept)


def _step(op: ops.Op, sources: dict[str, str], written: Sequence[str], closed: Collection[str]) -> ops.Op:
    """Return what a task has in an op's stead.

    A read-only bind in a directory that the policy opens for writing protects something there, and stays.
    """
    if isinstance(op, ops.RoBind) and (path := sources.get(op.src)) is not None:
        if path in closed or any(is_below(path, other) for other in written):
            return op
        return ops.Bind(op.src, op.dest, op.optional, op.nofollow)
    if isinstance(op, ops.Bind) and op.src not in sources:  # a file, or nothing
        return ops.RoBind(op.src, op.dest, op.optional, op.nofollow)
    return op
