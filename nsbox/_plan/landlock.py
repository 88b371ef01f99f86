"""Landlock rulesets: what the ops of a plan allow, expressed again by the places of files (landlock(7)). Pure.

Rights add up on the way from a file to the root: a rule can't take away what one above it gives. So a ruleset is never
stricter than the mounts, which hide and protect single paths. Its use is for files of the host that a command reaches
in another way than through the mounts.
"""

from __future__ import annotations

from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen, replace
from nsbox._base.paths import is_inside
from nsbox._plan import ops

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Literal

    from nsbox._plan.mounts import MountTable

# <linux/landlock.h>
_READ = 1 | 4 | 8  # execute, read files, list directories
_RIGHTS = {1: (1 << 13) - 1, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}  # by the version of the ABI that added them
_TCP = 1 | 2  # bind, connect
_SCOPES = 1 | 2  # abstract unix sockets, signals

FILES_ABI = 2  # with version 1 files can't be moved between directories
TRUNCATE_ABI = 3
TCP_ABI = 4
SCOPES_ABI = 6


@frozen
class LandlockRule(Frozen):
    """What may be done below a path.

    rights: bits of landlock(7).
    optional: the path may be missing.
    nofollow: a symlink anywhere in it is an error.
    """

    path: str
    rights: int
    optional: bool = False
    nofollow: bool = False


@frozen
class Ruleset(Frozen):
    """A Landlock ruleset.

    files: the rights about files that only its rules give; 0: it isn't about files.
    net: the rights about TCP, which no rule gives.
    scoped: the scopes, LANDLOCK_SCOPE_*.
    paths: its rules.
    """

    files: int = 0
    net: int = 0
    scoped: int = 0
    paths: tuple[LandlockRule, ...] = ()


def _all_rights(abi: int) -> int:
    return sum(rights for since, rights in _RIGHTS.items() if since <= abi)


def _writable(table: MountTable) -> dict[str, bool]:
    """Return the places of mounts that a command can write to, and whether each may be missing."""
    writable: dict[str, bool] = {}
    for dest in table:
        # A device can be written to through a read-only mount.
        mounts = (
            mount for mount in table.candidates(dest) if not mount.is_read_only or isinstance(mount.op, ops.Device)
        )
        mount = next(mounts, None)
        if mount is not None:
            writable[dest] = mount.is_optional
    return writable


def scopes(abi: int) -> Ruleset | None:
    """Return a ruleset of scopes alone, which don't slow down open(2); None if the kernel has none.

    Scopes forbid signals to processes outside, and connections to their abstract unix sockets.
    """
    return Ruleset(scoped=_SCOPES) if abi >= SCOPES_ABI else None


def _read_only(steps: Iterable[ops.Op]) -> list[str]:
    """Return where the ops bind something of the host read-only. It may be a FIFO, or contain one."""
    return [op.dest for op in steps if isinstance(op, ops.RoBind) or (isinstance(op, ops.BindFd) and op.read_only)]


def ruleset(steps: Iterable[ops.Op], abi: int, *, closed: Iterable[str] = ()) -> Ruleset:
    """Return the ruleset for these ops.

    abi: the kernel's version of Landlock, at least FILES_ABI.
    closed: file systems of the sandbox's own in which programs needn't make files. If something is bound read-only
        below one, it gets no right to write: that would extend to the bind, and to FIFOs of the host in it.
    """
    from nsbox._plan.mounts import MountTable  # scopes, which are all that most commands have, don't need it

    everything = _all_rights(abi)
    steps = tuple(steps)
    shown = _read_only(steps)
    left_out = {path for path in closed if any(is_inside(dest, path) for dest in shown)}
    places = _writable(MountTable(steps, optional=True))
    writable = {path: may_lack for path, may_lack in places.items() if path not in left_out}
    paths = [LandlockRule("/", everything if "/" in writable else _READ)]
    paths += [
        LandlockRule(path, everything, optional)
        for path, optional in writable.items()
        if not any(is_inside(path, other) for other in writable)
    ]
    unique = {rule.path: rule for rule in paths}
    scoped = _SCOPES if abi >= SCOPES_ABI else 0
    return Ruleset(files=everything, scoped=scoped, paths=tuple(unique.values()))


def reached(steps: Iterable[ops.Op], rules: Ruleset) -> tuple[str, ...]:
    """Return the writable paths whose rights extend to something of the host that is bound read-only below them."""
    shown = _read_only(steps)
    places = [rule.path for rule in rules.paths if rule.rights == rules.files]
    return tuple(path for path in places if any(is_inside(dest, path) for dest in shown))


def without_tcp(allowed: Ruleset, abi: int) -> Ruleset:
    """Return the ruleset without the right to bind and connect TCP sockets, even those that were passed.

    Not for a command with a net namespace of its own, in which loopback must work: a rule names ports, not addresses.
    """
    return replace(allowed, net=_TCP) if abi >= TCP_ABI else allowed


def paths_alone(rights: Mapping[str, Literal["read", "write"]], named: Iterable[str], abi: int) -> Ruleset:
    """Return the ruleset that gives rights to these paths of the host, and to nothing else.

    rights: the right for each path.
    named: those paths that the policy names. They must exist, and not be reached by a link.
    abi: the kernel's version of Landlock.
    """
    everything = _all_rights(abi)
    named = frozenset(named)
    rules = tuple(
        LandlockRule(
            path, everything if right == "write" else _READ, optional=path not in named, nofollow=path in named
        )
        for path, right in rights.items()
    )
    return Ruleset(files=everything, scoped=_SCOPES if abi >= SCOPES_ABI else 0, paths=rules)
