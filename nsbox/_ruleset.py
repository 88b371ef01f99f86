"""A Landlock ruleset of a plan: data. What the ops of a plan come to in these terms is _landlock's business."""

from __future__ import annotations

from nsbox._base.frozen import Frozen, frozen


@frozen
class PathRule(Frozen):
    """What may be done below a path: rights of landlock(7). optional: it may be missing. nofollow: by no symlink."""

    path: str
    rights: int
    optional: bool = False
    nofollow: bool = False


@frozen
class Ruleset(Frozen):
    """A Landlock ruleset. files: the rights that only its rules give; 0: it isn't about files. net: those about TCP."""

    files: int = 0
    net: int = 0
    scoped: int = 0
    paths: tuple[PathRule, ...] = ()
