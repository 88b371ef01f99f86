"""User namespaces for idmapped mounts: one for each owner and kernel id, kept for the next spawn."""

from __future__ import annotations

import os

from nsbox._core import linux

_LAST_ID = 2**32 - 2
_MOST_NAMESPACES = 4
_namespaces: dict[tuple[int, int, int], linux.UserNamespace] = {}  # only a few, since each is a descriptor
os.register_at_fork(after_in_child=_namespaces.clear)


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
