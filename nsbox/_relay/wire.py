"""A network list as bytes for the relay, laid out as in csrc/net/wire.h. Pure."""

from __future__ import annotations

from struct import Struct

from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    from nsbox._network.entries import Entry
    from nsbox._network.network import Network

_MAGIC, _VERSION = 0x746E736E, 1
_HEAD, _RULE = Struct("=8IQ"), Struct("=8I")
_KINDS = {"name": 1, "below": 2, "any": 3, "addresses": 4, "localhost": 5}
_DENY, _UDP = 1, 2
_PRIVATE, _ASKS = 1, 2
_TLS = {"sni": 0, "sni-ech": 1, "off": 2}


def blob(network: Network, *, asks: bool = False) -> bytes:
    """Return the list as bytes. asks: the relay is to ask its caller about what no entry decides."""
    names, rules = bytearray(), bytearray()
    for entry in network.entries:
        rules += _rule(entry, len(names))
        names += entry.name.encode("ascii")
    size = _HEAD.size + len(rules) + len(names)
    flags = (_PRIVATE if network.private else 0) | (_ASKS if asks else 0)
    amounts = (_TLS[network.tls], network.connections, 0, int(network.bytes or 0))
    return _HEAD.pack(_MAGIC, _VERSION, size, len(network.entries), flags, *amounts) + bytes(rules + names)


def _rule(entry: Entry, at: int) -> bytes:
    flags = (_DENY if entry.is_denied else 0) | (_UDP if entry.is_udp else 0)
    named = (at, len(entry.name)) if entry.name else (0, 0)
    return _RULE.pack(_KINDS[entry.kind], flags, entry.first, entry.last, entry.address, entry.bits, *named)
