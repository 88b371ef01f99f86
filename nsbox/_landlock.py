"""Landlock rulesets: what the ops of a plan allow, said a second time by where files are (landlock(7)). Pure.

Rights only add up on the way from a file to the root: a rule can't take away what one above it gives. So a ruleset is
never stricter than the mounts, which hide and protect single paths; it holds where something of the host is reached in
another way than through them.
"""

from __future__ import annotations

from collections.abc import Iterable

from nsbox._plan import (
    Bind,
    BindData,
    BindFd,
    Console,
    Dev,
    DevBind,
    Devpts,
    Mqueue,
    Op,
    Overlay,
    PathRule,
    Proc,
    RemountRo,
    Ruleset,
    Tmpfs,
    TmpOverlay,
)

# <linux/landlock.h>
_READ = 1 | 4 | 8  # execute, read files, list directories
_RIGHTS = {1: (1 << 13) - 1, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}  # by the ABI that brought them
_SCOPES = 1 | 2  # abstract unix sockets, signals

FILES_ABI = 2  # before it files couldn't be moved between directories
SCOPES_ABI = 6

_WRITABLE = (Bind, DevBind, Tmpfs, Dev, Devpts, Proc, Mqueue, Overlay, TmpOverlay, Console)


def _all_rights(abi: int) -> int:
    return sum(rights for since, rights in _RIGHTS.items() if since <= abi)


def _writable(ops: Iterable[Op]) -> dict[str, bool]:
    """Return where the ops let a command write, and whether what is there may be missing."""
    found: dict[str, bool] = {"/": False}
    for op in ops:
        match op:
            case Bind(dest=dest) | DevBind(dest=dest):
                found[dest] = op.optional
            case BindFd(dest=dest, read_only=read_only) | BindData(dest=dest, read_only=read_only):
                if not read_only:
                    found[dest] = False
            case RemountRo(dest=dest):
                found.pop(dest, None)
            case _ if isinstance(op, _WRITABLE):
                found[op.dest] = isinstance(op, Console)
    return found


def _is_inside(path: str, others: Iterable[str]) -> bool:
    return any(path != other and (other == "/" or path.startswith(other + "/")) for other in others)


def scopes(abi: int) -> Ruleset | None:
    """Return what costs nothing at each open: no signals to outside, and no abstract unix sockets made there."""
    return Ruleset(scoped=_SCOPES) if abi >= SCOPES_ABI else None


def ruleset(ops: Iterable[Op], abi: int) -> Ruleset:
    """Return the ruleset for these ops on a kernel with this ABI, at least FILES_ABI."""
    everything = _all_rights(abi)
    writable = _writable(ops)
    paths = [PathRule("/", everything if "/" in writable else _READ)]
    paths += [PathRule(p, everything, optional) for p, optional in writable.items() if not _is_inside(p, writable)]
    unique = {rule.path: rule for rule in paths}
    scoped = _SCOPES if abi >= SCOPES_ABI else 0
    return Ruleset(files=everything, scoped=scoped, paths=tuple(unique.values()))
