"""What stays hidden in mapped directories: files that their permissions keep from the commands' user.

In an idmapped overlay they would be the commands' own. So a mask lies on each, as on what the policy hides.
"""

from __future__ import annotations

import os

from nsbox._base.frozen import TYPE_CHECKING, replace
from nsbox._base.paths import innermost, is_below, is_inside
from nsbox._machine.private import closed_to_others
from nsbox._plan import ops

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsbox._core.idmaps import Swap
    from nsbox._task.layers import Layers

_MOST = 64  # masks for one directory, each a mount


def private_in(place: str, swap: Swap, layers: Layers) -> list[str] | None:
    """Return what the two users of a swap may not read as others; None: the directory itself, or too much in it.

    place: the directory, without links on the way. layers: the task's.
    """
    users = (swap.owner, swap.own)
    found = closed_to_others(place, {uid for uid, _ in users}, {gid for _, gid in users})
    if found is None or place in found or len(_masks(found, layers)) > _MOST:
        return None
    return found


def without_private(layers: Layers, private: Iterable[str]) -> Layers:
    """Return the same with a mask on each of these paths. private: as from private_in()."""
    masks = _masks(private, layers)
    if not masks:
        return layers
    after = 1 + max(i for i, op in enumerate(layers.steps) if isinstance(op, ops.Bind | ops.RoBind))
    return replace(layers, steps=(*layers.steps[:after], *masks, *layers.steps[after:]))


def _masks(private: Iterable[str], layers: Layers) -> list[ops.Op]:
    """Return a mask for each name under which commands would see one of these paths, unless it is hidden anyway."""
    hidden = [op.dest for op in layers.steps if isinstance(op, ops.Mask)]
    dests: set[str] = set()
    for op in layers.steps:
        if not isinstance(op, ops.Bind | ops.RoBind):
            continue
        real = op.src if op.nofollow else os.path.realpath(op.src)
        for path in private:
            if is_below(path, real):
                dests.add(os.path.normpath(f"{op.dest}/{os.path.relpath(path, real)}"))
            elif is_inside(real, path):
                dests.add(op.dest)
    return [ops.Mask(dest, optional=True) for dest in sorted(dests) if innermost(dest, hidden) is None]
