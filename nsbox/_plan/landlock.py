"""Landlock rulesets: what the ops of a plan allow, expressed again by the places of files (landlock(7)). Pure.

Rights add up on the way from a file to the root: a rule can't take away what one above it gives. So a ruleset is never
stricter than the mounts, which hide and protect single paths. Its use is for files of the host that a command reaches
in another way than through the mounts.
"""

from __future__ import annotations

from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen, replace
from nsbox._plan.ops import (
    Bind,
    BindData,
    BindFd,
    Console,
    Dev,
    DevBind,
    Device,
    Devpts,
    Mask,
    Mqueue,
    Op,
    Overlay,
    Proc,
    RemountRo,
    RoBind,
    RoOverlay,
    Tmpfs,
    TmpOverlay,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Literal

# <linux/landlock.h>
_READ = 1 | 4 | 8  # execute, read files, list directories
_RIGHTS = {1: (1 << 13) - 1, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}  # by the version of the ABI that added them
_TCP = 1 | 2  # bind, connect
_SCOPES = 1 | 2  # abstract unix sockets, signals

FILES_ABI = 2  # with version 1 files can't be moved between directories
TRUNCATE_ABI = 3
TCP_ABI = 4
SCOPES_ABI = 6

_WRITABLE = (Bind, DevBind, Device, Tmpfs, Dev, Devpts, Proc, Mqueue, Overlay, TmpOverlay, Console)
_READABLE = (RoBind, RoOverlay, Mask)


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


def _writable(ops: Iterable[Op]) -> dict[str, bool]:
    """Return the paths where the ops let a command write, and whether each may be missing."""
    writable: dict[str, bool] = {"/": False}
    for op in ops:
        match op:
            case RemountRo(dest=dest):
                writable.pop(dest, None)
                continue
            case BindFd(dest=dest, read_only=read_only) | BindData(dest=dest, read_only=read_only):
                optional, writes = False, not read_only
            case _ if isinstance(op, (*_WRITABLE, *_READABLE)):
                dest, writes = op.dest, isinstance(op, _WRITABLE)
                optional = isinstance(op, Console) or getattr(op, "optional", False)
            case _:
                continue
        if not optional:  # what was there before is covered
            writable = {
                path: may_lack for path, may_lack in writable.items() if path != dest and not _is_inside(path, [dest])
            }
        if writes:
            writable[dest] = optional
    return writable


def _is_inside(path: str, others: Iterable[str]) -> bool:
    return any(path != other and (other == "/" or path.startswith(other + "/")) for other in others)


def scopes(abi: int) -> Ruleset | None:
    """Return a ruleset of scopes alone, which don't slow down open(2); None if the kernel has none.

    Scopes forbid signals to processes outside, and connections to their abstract unix sockets.
    """
    return Ruleset(scoped=_SCOPES) if abi >= SCOPES_ABI else None


def _read_only(ops: Iterable[Op]) -> list[str]:
    """Return where the ops bind something of the host read-only. It may be a FIFO, or contain one."""
    return [op.dest for op in ops if isinstance(op, RoBind) or (isinstance(op, BindFd) and op.read_only)]


def ruleset(ops: Iterable[Op], abi: int, *, closed: Iterable[str] = ()) -> Ruleset:
    """Return the ruleset for these ops.

    abi: the kernel's version of Landlock, at least FILES_ABI.
    closed: file systems of the sandbox's own in which programs needn't make files. If something is bound read-only
        below one, it gets no right to write: that would extend to the bind, and to FIFOs of the host in it.
    """
    everything = _all_rights(abi)
    ops = tuple(ops)
    shown = _read_only(ops)
    left_out = {path for path in closed if any(_is_inside(dest, [path]) for dest in shown)}
    writable = {path: may_lack for path, may_lack in _writable(ops).items() if path not in left_out}
    paths = [LandlockRule("/", everything if "/" in writable else _READ)]
    paths += [LandlockRule(p, everything, optional) for p, optional in writable.items() if not _is_inside(p, writable)]
    unique = {rule.path: rule for rule in paths}
    scoped = _SCOPES if abi >= SCOPES_ABI else 0
    return Ruleset(files=everything, scoped=scoped, paths=tuple(unique.values()))


def reached(ops: Iterable[Op], rules: Ruleset) -> tuple[str, ...]:
    """Return the writable paths whose rights extend to something of the host that is bound read-only below them."""
    shown = _read_only(ops)
    places = [rule.path for rule in rules.paths if rule.rights == rules.files]
    return tuple(path for path in places if any(_is_inside(dest, [path]) for dest in shown))


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
