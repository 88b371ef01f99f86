"""What entries of a network list cover of another entry, quickly for thousands of them. Pure."""

from __future__ import annotations

from bisect import bisect_right

from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TypeAlias

    from nsbox._network.entries import Entry

    Key: TypeAlias = tuple[str, str, int, int, bool]


class Cover:
    """Entries by what they name; the ports of those that name the same are put together."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        given: dict[Key, list[tuple[int, int]]] = {}
        for entry in entries:
            key = (entry.kind, entry.name, entry.address, entry.bits, entry.is_udp)
            given.setdefault(key, []).append((entry.first, entry.last))
        self._ports = {key: _merged(ports) for key, ports in given.items()}

    def has(self, entry: Entry) -> bool:
        """Say if all that the entry names, at all of its ports, is named by entries of these."""
        for key in _wider(entry):
            ports = self._ports.get(key, ())
            at = bisect_right(ports, (entry.first, 65536)) - 1
            if at >= 0 and entry.last <= ports[at][1]:
                return True
        return False


def _merged(ports: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in order, those that meet as one."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ports):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


def _wider(entry: Entry) -> Iterator[Key]:
    """Yield whatever names the same as the entry, or that and more."""
    yield entry.kind, entry.name, entry.address, entry.bits, entry.is_udp
    if entry.kind == "addresses":
        for bits in range(entry.bits):
            yield entry.kind, "", entry.address >> (32 - bits) << (32 - bits), bits, entry.is_udp
    if entry.kind in ("name", "below"):
        labels = entry.name.split(".")
        for i in range(1, len(labels)):
            yield "below", ".".join(labels[i:]), 0, 32, entry.is_udp
        yield "any", "", 0, 32, entry.is_udp
