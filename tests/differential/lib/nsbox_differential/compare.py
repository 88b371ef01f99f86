"""Where two sandboxes differ that should be the same, in words. nsbox's own ways with mounts are normalised here."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from nsbox._plan.ops import DEVICES
from nsbox_differential.tree import Snapshot
from nsbox_differential.view import Mount, View, visible

_DATA_ROOT = re.compile(r"/bindfile\w{6}//deleted|/data\d+")


def _what(m: Mount, host_devices: frozenset[str]) -> tuple[str, str, str]:
    """Return what a mount shows, without what differs from run to run."""
    if m.device in host_devices:
        return m.type, m.root, m.device
    root = "data" if m.type == "tmpfs" and _DATA_ROOT.fullmatch(m.root) else m.root
    return m.type, "/" if root == "/newroot" else root, "new"


def _is_cover(m: Mount) -> bool:
    return m.type == "proc" and m.root != "/" and m.point.endswith(m.root) and "ro" in m.flags


def _without_extra_covers(mine: list[Mount], theirs: list[Mount]) -> list[Mount]:
    """nsbox makes all kernel settings read-only for the kernel's uid 0; bwrap what access(2) calls writable."""
    there = Counter(m.point for m in theirs if _is_cover(m))
    kept = []
    for m in mine:
        if _is_cover(m) and not there[m.point]:
            continue
        there[m.point] -= _is_cover(m)
        kept.append(m)
    return kept


def _expected_flags(theirs: Mount, nodes: frozenset[str]) -> frozenset[str]:
    """Return the flags that nsbox's mount must have where bwrap's is this one. nodes: what --dev has mounted."""
    if theirs.type == "mqueue":
        return theirs.flags | {"nosuid", "nodev", "noexec"}
    if theirs.point in nodes and theirs.root.strip("/") in DEVICES and "nodev" not in theirs.flags:
        return theirs.flags - {"rw"} | {"ro"}
    return theirs.flags


def mount_differences(mine: View, theirs: View, host_mounts: Sequence[Mount]) -> Iterator[str]:
    """Yield what is wrong with nsbox's mount table, by bwrap's."""
    devices = frozenset(m.device for m in host_mounts)
    devs = [os.path.dirname(m.point) for m in theirs.mounts if m.type == "devpts" and m.device not in devices]
    nodes = frozenset(f"{dev.rstrip('/')}/{name}" for dev in devs for name in DEVICES)
    ours = _without_extra_covers(mine.mounts, theirs.mounts)
    for m in mine.mounts:
        if m.tags:
            yield f"{m.point}: propagation {m.tags}, must be private"
        if "nosuid" not in m.flags:
            yield f"{m.point}: not nosuid, covered or not"
    seen, expected = visible(ours), visible(theirs.mounts)
    for point in sorted({*seen, *expected}):
        if point not in seen or point not in expected:
            yield f"{point}: a mount of {'nsbox' if point in seen else 'bwrap'} alone: {seen.get(point) or expected[point]}"
            continue
        a, b = seen[point], expected[point]
        if _what(a, devices) != _what(b, devices):
            yield f"{point}: {_what(a, devices)}, in bwrap {_what(b, devices)}"
        if a.flags != _expected_flags(b, nodes):
            yield f"{point}: flags {sorted(a.flags)}, in bwrap {sorted(b.flags)}"
        if a.super_flags[0] != b.super_flags[0]:
            yield f"{point}: file system {a.super_flags[0]}, in bwrap {b.super_flags[0]}"
    yield from _covered_differences(ours, theirs.mounts, devices)


def _covered_differences(mine: Sequence[Mount], theirs: Sequence[Mount], devices: frozenset[str]) -> Iterator[str]:
    """Yield what is wrong with all mounts, also those that no path leads to: as many, and no less locked up."""
    flags: dict[tuple[str, ...], list[frozenset[str]]] = {}
    for m in theirs:
        flags.setdefault((m.point, *_what(m, devices)), []).append(m.flags & {"ro", "nosuid", "nodev", "noexec"})
    count = Counter((m.point, *_what(m, devices)) for m in mine)
    for key in sorted({*flags, *count}):
        if count[key] != len(flags.get(key, ())):
            yield f"{key}: {count[key]} mounts with the covered ones, in bwrap {len(flags.get(key, ()))}"
    for m in mine:
        least = flags.get((m.point, *_what(m, devices)))
        if least and not frozenset.intersection(*least) <= m.flags:
            yield f"{m.point}: flags {sorted(m.flags)}, at least {sorted(frozenset.intersection(*least))} wanted"


def fact_differences(mine: View, theirs: View) -> Iterator[str]:
    """Yield what the probe found different: types, modes, owners, contents, and what it could do."""
    for key in sorted({*mine.facts, *theirs.facts}):
        a, b = mine.facts.get(key, "nothing"), theirs.facts.get(key, "nothing")
        if a != b:
            yield f"{' '.join(key)!r}: {a}, in bwrap {b}"


def tree_differences(mine: Snapshot, theirs: Snapshot) -> Iterator[str]:
    """Yield what has become different of the two copies."""
    for name in sorted({*mine, *theirs}):
        if mine.get(name) != theirs.get(name):
            yield f"{name!r}: {mine.get(name)}, in bwrap {theirs.get(name)}"
