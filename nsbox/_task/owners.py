"""Whose files become the commands' own in a task: overlays whose layers are idmapped mounts (Linux 5.19).

Root's commands have no capabilities, so another user's directory would be closed to them. In a mapped one, that user
and the commands' change places. On disk, all that commands make there belongs to that user.
"""

from __future__ import annotations

import os

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.paths import is_below, is_inside
from nsbox._core import linux
from nsbox._core.idmaps import Swap, swapped
from nsbox._layout.layout import with_matches
from nsbox._plan import ops
from nsbox._task.private import private_in, without_private
from nsbox._transaction.holder import Mapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsbox._plan.host import Host
    from nsbox._plan.plan import Plan
    from nsbox._policy.policy import Policy
    from nsbox._task.layers import Layers

Owner = tuple[int, int]
_ALL = 2**32 - 2
_CAP_SYS_ADMIN = 21
_KERNEL = (5, 19)  # since then, layers of overlayfs may be idmapped mounts


def owners(policy: Policy, host: Host, plan: Plan, layers: Layers, store: str) -> tuple[dict[str, Swap], Layers]:
    """Return the places that are mapped: for each, whose files become the commands' own. And the layers to use.

    That is so for what the policy names, or opens for writing, as in a Sandbox. If the policy chooses a uid among all
    ids, it is also so for the system's directories, but not for what it only lets commands read: there the permissions
    may be meant to keep this uid out. So what this uid can't read of the system on the host is hidden; a directory with
    too much of that isn't mapped. With all ids and no uid chosen, every file has its real owner.

    policy, host, plan: the task's. layers: what is overlaid. store: the task's own directory.
    """
    identity = plan.identity
    if not _may_map(host) or (identity.by_helper and not identity.change_ids):
        return {}, layers
    own = (identity.uid, identity.gid) if identity.by_helper else (host.euid, host.egid)
    named = with_matches(policy, host)
    read = [os.path.realpath(path) for path in named.read]
    found: dict[str, Swap] = {}
    private: list[str] = []
    for place in layers.places:
        status = os.stat(place)
        owner = status.st_uid, status.st_gid
        is_read = any(is_below(place, path) for path in read)
        is_open = place in layers.written or (not is_read if identity.by_helper else is_read)
        if owner == own or not is_open:
            continue
        swap = Swap(owner, own)
        if any(linux.refused_idmap(path, swapped(swap)) for path in (place, store)):
            continue
        if identity.by_helper:
            hidden = _hidden(place, swap, layers, read)
            if hidden is None:
                continue
            private += hidden
        found[place] = swap
    return found, without_private(layers, private)


def _hidden(place: str, swap: Swap, layers: Layers, read: Sequence[str]) -> list[str] | None:
    """Return what must be hidden if a place is mapped; None: it must not be mapped. read: what the policy shows."""
    if place not in layers.written:
        return private_in(place, swap, layers)
    hidden: list[str] = []
    for path in read:
        if is_inside(path, place) and os.path.lexists(path):
            private = private_in(path, swap, layers)
            hidden += [path] if private is None else private
    return hidden


def _may_map(host: Host) -> bool:
    whole = all(
        any(row.inside == 0 and row.count > _ALL for row in ranges) for ranges in (host.uid_ranges, host.gid_ranges)
    )
    has_power = host.euid == 0 and host.is_kernel_root and bool(host.capabilities >> _CAP_SYS_ADMIN & 1)
    return has_power and whole and host.kernel >= _KERNEL


def mapped(found: dict[str, Swap], store: str) -> tuple[Mapped | None, dict[str, str]]:
    """Return the idmapped mounts for these places, and for each place the directory where the store is mounted so.

    The directories are made if they aren't there. Overlayfs wants both of its directories on one mount.

    found: as from owners(). store: the task's own directory.
    """
    steps, swaps, seen = [], {}, {}
    numbers = {swap: number for number, swap in enumerate(dict.fromkeys(found.values()))}
    status = os.stat(store)
    for swap, number in numbers.items():
        at = f"{store}/mapped-{number}"
        os.makedirs(at, mode=0o700, exist_ok=True)
        steps.append(ops.Bind(store, at, nofollow=True))
        swaps[at] = (status.st_uid, status.st_gid), swap
    for place, swap in found.items():
        steps.append(ops.Bind(place, place, nofollow=True))
        swaps[place] = swap.owner, swap
        seen[place] = f"{store}/mapped-{numbers[swap]}"
    return (Mapped(tuple(steps), swaps) if found else None), seen
