"""User namespaces for idmapped mounts: one for each owner and kernel id, kept for the next spawn."""

from __future__ import annotations

import os

from nsbox._base.frozen import Frozen, frozen
from nsbox._core import linux

_LAST_ID = 2**32 - 2
_MOST_NAMESPACES = 4
_namespaces: dict[tuple[int, int, int], linux.UserNamespace] = {}  # only a few, since each is a descriptor
os.register_at_fork(after_in_child=_namespaces.clear)


@frozen
class Swap(Frozen):
    """Two users, each with a uid and a gid, who change places in an idmapped mount: on disk owner, in it own."""

    owner: tuple[int, int]
    own: tuple[int, int]


def swapped(swap: Swap) -> linux.UserNamespace:
    """Return a user namespace whose maps have two users change places; raises OSError."""
    uids, gids = (_swap(*pair) for pair in zip(swap.owner, swap.own, strict=True))
    return linux.UserNamespace(uids, gids)


def _swap(one: int, other: int) -> str:
    """Return a map of all ids in which two change places."""
    rows, start = [], 0
    for end in (*sorted({one, other}), _LAST_ID + 1):
        if start < end:
            rows.append((start, start, end - start))
        if end <= _LAST_ID:
            rows.append((end, other if end == one else one, 1))
        start = end + 1
    return "".join(f"{inside} {outside} {count}\n" for inside, outside, count in rows)


def namespace_of(uid: int, gid: int, kernel_id: int) -> linux.UserNamespace:
    """Return a user namespace whose maps make files of this user and group the kernel id's; raises OSError."""
    key = uid, gid, kernel_id
    namespace = _namespaces.get(key)
    if namespace is None or not namespace.is_open():
        namespace = linux.UserNamespace(_map(uid, kernel_id), _map(gid, kernel_id))
        for oldest in list(_namespaces)[: 1 - _MOST_NAMESPACES]:  # in single steps, since there may be other threads
            _namespaces.pop(oldest, None)
        _namespaces[key] = namespace
    return namespace


def namespaces_of(
    owners: tuple[tuple[int, int], ...], kernel_id: int
) -> list[tuple[tuple[int, int], linux.UserNamespace]]:
    """Return each owner, a uid and a gid, with its namespace_of(); raises OSError."""
    return [((uid, gid), namespace_of(uid, gid, kernel_id)) for uid, gid in owners]


def _map(owner: int, kernel_id: int) -> str:
    """Return an id map in which the owner becomes the kernel id, and all other ids stay as they are.

    The sandbox doesn't know those others, and shows them as nobody. They are in the map because a file can't be written
    while an idmapped mount doesn't map its owner or its group (inode_permission). Otherwise, an owner couldn't even
    write to a file of his own in another group.
    """
    rows, start = [(owner, kernel_id, 1)], 0
    for end in (*sorted({owner, kernel_id}), _LAST_ID + 1):
        if start < end:
            rows.append((start, start, end - start))
        start = end + 1
    return "".join(f"{inside} {outside} {count}\n" for inside, outside, count in sorted(rows))
