"""Whether a network list covers an entry of another list, quickly even for thousands of entries. Pure."""

from __future__ import annotations

from bisect import bisect_right

from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TypeAlias

    from nsbox._network.entries import Entry

    Key: TypeAlias = tuple[str, str, int, int, bool]


class Cover:
    """The entries of a list by their targets. Ports of entries with the same target are merged."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        ranges: dict[Key, list[tuple[int, int]]] = {}
        for entry in entries:
            key = (entry.kind, entry.name, entry.address, entry.bits, entry.is_udp)
            ranges.setdefault(key, []).append((entry.first, entry.last))
        self._ports = {key: _merged(ports) for key, ports in ranges.items()}

    def has(self, entry: Entry) -> bool:
        """Say if these entries name everything that the entry names, at all of its ports."""
        for key in _wider(entry):
            ports = self._ports.get(key, ())
            at = bisect_right(ports, (entry.first, 65536)) - 1
            if at >= 0 and entry.last <= ports[at][1]:
                return True
        return False


def _merged(ports: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges sorted, with those that overlap or touch joined."""
    ranges: list[tuple[int, int]] = []
    for first, last in sorted(ports):
        if ranges and first <= ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], max(last, ranges[-1][1]))
        else:
            ranges.append((first, last))
    return ranges


def _wider(entry: Entry) -> Iterator[Key]:
    """Yield the keys of all targets that include the entry's."""
    yield entry.kind, entry.name, entry.address, entry.bits, entry.is_udp
    if entry.kind == "addresses":
        for bits in range(entry.bits):
            yield entry.kind, "", entry.address >> (32 - bits) << (32 - bits), bits, entry.is_udp
    if entry.kind in ("name", "below"):
        labels = entry.name.split(".")
        for i in range(1, len(labels)):
            yield "below", ".".join(labels[i:]), 0, 32, entry.is_udp
        yield "any", "", 0, 32, entry.is_udp
