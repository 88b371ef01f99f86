"""What the relay of a network list reports: packets, laid out as in csrc/net/wire.h, become frozen values. Pure."""

from __future__ import annotations

from struct import Struct

from nsbox._base.display import printable
from nsbox._base.frozen import TYPE_CHECKING, Frozen, fields, frozen

if TYPE_CHECKING:
    from typing import Literal

    Kind = Literal["dns", "connect", "close", "udp", "publish"]
    Protocol = Literal["tcp", "udp", ""]
    Verdict = Literal["allowed", "refused", "failed"]
    Reason = Literal[
        "",
        "not-listed",
        "denied",
        "address",
        "own-address",
        "sni",
        "no-tls",
        "ech",
        "port-taken",
        "limit",
        "asked",
        "upstream",
        "unasked",
    ]

SCHEMA = "nsbox.network/1"
READY, EVENT, ASK = 1, 2, 3  # what the relay says
HEAD = Struct("=IiQQ")  # nsbox_net_message
PACKET = Struct("=IiQQQIIIiIIIIQQ16s256s256s")  # nsbox_net_event
KINDS: dict[int, Kind] = {1: "dns", 2: "connect", 3: "close", 4: "udp", 5: "publish"}
VERDICTS: dict[int, Verdict] = {1: "allowed", 2: "refused", 3: "failed"}
_UNDECIDED: dict[int, Verdict] = {0: "refused"}
REASONS: dict[int, Reason] = {
    0: "",
    1: "not-listed",
    2: "denied",
    3: "address",
    4: "own-address",
    5: "sni",
    6: "no-tls",
    7: "ech",
    8: "port-taken",
    9: "limit",
    10: "asked",
    11: "upstream",
    12: "unasked",
}
_PROTOCOLS: tuple[Protocol, Protocol] = ("tcp", "udp")
_MOST_PORT = 65535


@frozen
class Head(Frozen):
    """The beginning of each message from the relay.

    kind: READY, EVENT or ASK.
    value: for READY 0 or -errno; for EVENT how many events could not be delivered so far.
    sandbox: the relay's number for it.
    id: for ASK, the number that the answer must have.
    """

    kind: int
    value: int
    sandbox: int
    id: int


@frozen
class NetworkEvent(Frozen):
    """One thing that a command under a network list has done or tried, and what was decided.

    time: when, in seconds since 1970.
    sandbox: the relay's number for it.
    kind: "dns" (a name was looked up), "connect", "close" (a connection or a flow has ended), "udp" (a flow began), or
        "publish" (a client outside connected to a published port).
    name: the host's; "" if it was reached by its address.
    port: the host's; 0 for a lookup.
    protocol: "tcp" or "udp"; "" for a lookup.
    address: of the host outside, if known; else "".
    verdict: "allowed", "refused" (by the policy), or "failed" (for another reason).
    reason: why; "" if there is nothing to say.
    errno: of a refusal, what the command gets; of a failure, what this host got; or 0.
    sni: in a "close", the server's name in the client's TLS hello, if one was read.
    sent, received: bytes, from the command's point of view.
    ms: how long it took, in milliseconds.
    """

    time: float
    sandbox: int
    kind: Kind
    name: str = ""
    port: int = 0
    protocol: Protocol = ""
    address: str = ""
    verdict: Verdict = "allowed"
    reason: Reason = ""
    errno: int = 0
    sni: str = ""
    sent: int = 0
    received: int = 0
    ms: int = 0

    def as_dict(self) -> dict[str, object]:
        """Return the event as values that JSON has; `schema` changes when the meaning of a key does."""
        return {"schema": SCHEMA} | {field.name: getattr(self, field.name) for field in fields(self)}

    def to_json(self) -> str:
        """Return as_dict() as JSON: one line of ASCII, without a line end."""
        import json

        return json.dumps(self.as_dict())


@frozen
class NetworkRequest(Frozen):
    """What on_connect decides about: a connection, or a flow, for which the list has no entry.

    name: the host's; "" if it is to be reached by its address.
    address: the host's; "" if there is a name, which is only resolved after a yes.
    port: the host's.
    protocol: "tcp" or "udp".
    why: a sentence that says why you are asked.
    """

    name: str
    address: str
    port: int
    protocol: Protocol
    why: str = ""

    def __str__(self) -> str:
        return f"{self.name or self.address}:{self.port}{'/udp' if self.protocol == 'udp' else ''}"


def head(packet: bytes) -> Head:
    """Return the beginning of a message; raises ValueError."""
    if len(packet) < HEAD.size:
        raise ValueError(f"the relay sent {len(packet)} bytes, which isn't a message")
    return Head(*HEAD.unpack_from(packet))


def decode(packet: bytes) -> NetworkEvent:
    """Return the event of an EVENT or an ASK, which is "refused" until answered. Raises ValueError for any other."""
    if len(packet) != PACKET.size or head(packet).kind not in (EVENT, ASK):
        raise ValueError(f"the relay sent {len(packet)} bytes that aren't an event")
    verdicts = VERDICTS if head(packet).kind == EVENT else _UNDECIDED
    _, _, sandbox, _, time, *rest = PACKET.unpack(packet)
    what, verdict, reason, errno, protocol, port, family, ms, sent, received, address, name, sni = rest
    if not (what in KINDS and verdict in verdicts and reason in REASONS and protocol < 2 and port <= _MOST_PORT):
        raise ValueError(f"the relay sent an event of unknown values: {rest[:6]}")
    return NetworkEvent(
        time / 1e9,
        sandbox,
        KINDS[what],
        _text(name),
        port,
        "" if KINDS[what] == "dns" else _PROTOCOLS[protocol],
        _address(family, address),
        verdicts[verdict],
        REASONS[reason],
        errno,
        _text(sni),
        sent,
        received,
        ms,
    )


def step(packet: bytes) -> str:
    """Return the step at which setting up a sandbox's network has failed, according to a READY."""
    return _text(packet[PACKET.size - 512 : PACKET.size - 256])


def _text(field: bytes) -> str:
    """Return a name, made printable. The relay only lets host names through, but that isn't relied on here."""
    return printable(field.partition(b"\0")[0].decode("ascii", "backslashreplace"))


def _address(family: int, field: bytes) -> str:
    if family == 0:
        return ""
    if family == 4:
        return ".".join(map(str, field[:4]))
    if family == 6:
        return _six(field)
    raise ValueError(f"the relay sent an address of family {family}")


def _six(field: bytes) -> str:
    """Return an IPv6 address as RFC 5952 has it."""
    groups = [int.from_bytes(field[at : at + 2], "big") for at in range(0, 16, 2)]
    if groups[:6] == [0, 0, 0, 0, 0, 0xFFFF]:
        return "::ffff:" + ".".join(map(str, field[12:]))
    best, size = 0, 1  # the first of the longest runs of zeros, of two at least
    for at in range(8):
        end = at
        while end < 8 and groups[end] == 0:
            end += 1
        if end - at > size:
            best, size = at, end - at
    texts = [f"{group:x}" for group in groups]
    return ":".join(texts) if size == 1 else f"{':'.join(texts[:best])}::{':'.join(texts[best + size :])}"
