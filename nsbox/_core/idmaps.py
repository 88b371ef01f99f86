"""User namespaces by which files are idmapped: one for each owner and kernel id, kept for the next spawn."""

from __future__ import annotations

import os

from nsbox._core import linux

_LAST_ID = 2**32 - 2
_MOST_NAMESPACES = 4
_namespaces: dict[tuple[int, int, int], linux.UserNamespace] = {}  # a few: each is a descriptor
os.register_at_fork(after_in_child=_namespaces.clear)


def namespace_of(uid: int, gid: int, kernel_id: int) -> linux.UserNamespace:
    """Return the mapping in which files of this user and group are the kernel id's; raises OSError."""
    key = uid, gid, kernel_id
    found = _namespaces.get(key)
    if found is None or not found.is_open():
        found = linux.UserNamespace(_map(uid, kernel_id), _map(gid, kernel_id))
        for oldest in list(_namespaces)[: 1 - _MOST_NAMESPACES]:  # in single steps, among threads
            _namespaces.pop(oldest, None)
        _namespaces[key] = found
    return found


def namespaces_of(
    owners: tuple[tuple[int, int], ...], kernel_id: int
) -> list[tuple[tuple[int, int], linux.UserNamespace]]:
    """Return several owners with their mappings; raises OSError."""
    return [((uid, gid), namespace_of(uid, gid, kernel_id)) for uid, gid in owners]


def _map(owner: int, kernel_id: int) -> str:
    """Return a map in which the owner is the kernel id, and all others are themselves.

    The sandbox knows none of these, and shows them as nobody. They are in it, since files that an idmapped mount has
    no owner or group for can't be written (inode_permission): the owner's in another group neither.
    """
    rows, start = [(owner, kernel_id, 1)], 0
    for end in (*sorted({owner, kernel_id}), _LAST_ID + 1):
        if start < end:
            rows.append((start, start, end - start))
        start = end + 1
    return "".join(f"{inside} {outside} {count}\n" for inside, outside, count in sorted(rows))
