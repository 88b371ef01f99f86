"""What a network list's relay reports: its packets, and the log of a sandbox. Sentences: test_network_messages.py."""

from __future__ import annotations

import errno
import json
import pickle
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nsbox
from nsbox import NetworkEvent, NetworkRecord, NetworkRequest
from nsbox._base.frozen import fields
from nsbox._network import events as wire
from nsbox._network.log import MOST_EVENTS, NetworkLog
from nsbox._network.messages import messages, request
from nsbox._network.network import Network

NET = Network(allow=("packages.example:443", "*.hub.example", "db.corp:5432", "example.org", "!gist.hub.example"))


def packet(
    what: int = 2,
    verdict: int = 2,
    reason: int = 1,
    *,
    kind: int = wire.EVENT,
    protocol: int = 0,
    port: int = 443,
    family: int = 0,
    address: bytes = b"",
    name: bytes = b"evil.example",
    sni: bytes = b"",
) -> bytes:
    """Return an event as the relay sends it."""
    head = (kind, 0, 7, 9, 1_500_000_000)
    return wire.PACKET.pack(*head, what, verdict, reason, 0, protocol, port, family, 3, 10, 20, address, name, sni)


def event(verdict: str, reason: str = "", name: str = "evil.example", port: int = 443, **more: object) -> NetworkEvent:
    given = {"kind": "connect", "protocol": "tcp"} | more
    return NetworkEvent(1.0, 7, name=name, port=port, verdict=verdict, reason=reason, **given)  # type: ignore[arg-type]


def lookup(verdict: str, reason: str = "", name: str = "evil.example", **more: object) -> NetworkEvent:
    return event(verdict, reason, name, 0, kind="dns", protocol="", **more)


# ---- packets


def test_event() -> None:
    """An event is a frozen value that can be pickled, and says as JSON what it says as attributes."""
    made = wire.decode(packet())
    assert (made.time, made.sandbox, made.kind, made.name, made.port) == (1.5, 7, "connect", "evil.example", 443)
    assert (made.protocol, made.verdict, made.reason, made.sent, made.received, made.ms) == (
        *("tcp", "refused", "not-listed", 10, 20, 3),
    )
    assert pickle.loads(pickle.dumps(made)) == made
    line = made.to_json()
    assert "\n" not in line and line.isascii()
    assert json.loads(line) == made.as_dict()
    assert made.as_dict()["schema"] == "nsbox.network/1"
    assert set(made.as_dict()) == {
        *("schema", "time", "sandbox", "kind", "name", "port", "protocol", "address", "verdict", "reason", "errno"),
        *("sni", "sent", "received", "ms"),
    }
    with pytest.raises(AttributeError):
        made.name = "other"  # type: ignore[misc]


def test_lookup_and_udp() -> None:
    """A lookup has no protocol; a flow of datagrams is one of UDP."""
    assert wire.decode(packet(1, port=0)).protocol == ""
    assert wire.decode(packet(4, protocol=1, port=123)).protocol == "udp"
    assert wire.decode(packet(5)).kind == "publish"


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"\1\0",
        packet()[:-1],
        packet() + b"\0",
        packet(kind=wire.READY),
        packet(kind=77),
        packet(0),
        packet(6),
        packet(verdict=0),
        packet(verdict=1, kind=wire.ASK),
        packet(verdict=4),
        packet(reason=13),
        packet(protocol=2),
        packet(port=65536),
        packet(family=5),
    ],
)
def test_other_packets(given: bytes) -> None:
    """What isn't an event is a ValueError, and never half of one."""
    with pytest.raises(ValueError, match="the relay sent"):
        wire.decode(given)


@given(st.binary(max_size=700) | st.binary(min_size=wire.PACKET.size, max_size=wire.PACKET.size))
def test_any_packet(data: bytes) -> None:
    """Whatever comes, there is an event, whose JSON is one line in ASCII, or a ValueError."""
    try:
        made = wire.decode(data)
    except ValueError:
        return
    assert made.to_json().isascii() and made.to_json().isprintable()


@pytest.mark.parametrize("name", [b"a\x1b[2Jb", b"a\nb", b"a\xc3\xa9\x80", b"a\x7fb", b"\r\x08"])
def test_names_are_never_raw(name: bytes) -> None:
    """No name moves a cursor or ends a line, in none of the places in which one is shown."""
    made = wire.decode(packet(name=name, sni=name, reason=5))
    for text in (made.name, made.sni, made.to_json(), *messages(NET, [made]), str(request(NET, made))):
        assert text.isprintable() and text.isascii() and text


def test_names_end() -> None:
    """A name ends at the first NUL, and may take up the rest of its field."""
    assert wire.decode(packet(name=b"short.example\0rest")).name == "short.example"
    assert wire.decode(packet(name=b"x" * 255)).name == "x" * 255
    assert wire.decode(packet(name=b"")).name == ""


@given(st.binary(min_size=16, max_size=16) | st.lists(st.sampled_from([b"\0\0", b"\0\1"]), min_size=8, max_size=8))
def test_addresses(field: bytes | list[bytes]) -> None:
    """Addresses are written as everywhere."""
    raw = field if isinstance(field, bytes) else b"".join(field)
    assert wire.decode(packet(family=4, address=raw)).address == socket.inet_ntop(socket.AF_INET, raw[:4])
    shown = wire.decode(packet(family=6, address=raw)).address
    assert socket.inet_pton(socket.AF_INET6, shown) == raw
    if raw[:10] != bytes(10):  # glibc writes some of these in the old way
        assert shown == socket.inet_ntop(socket.AF_INET6, raw)


def test_head_and_step() -> None:
    """Each message has a head, an ASK with the number for the answer; a READY says at what it has failed."""
    assert wire.head(packet(kind=wire.ASK)) == wire.Head(wire.ASK, 0, 7, 9)
    with pytest.raises(ValueError, match="isn't a message"):
        wire.head(b"\1" * 10)
    assert wire.step(packet(kind=wire.READY, name=b"netlink")) == "netlink"


def test_request() -> None:
    """What a user is asked has a text, and says why."""
    made = request(NET, wire.decode(packet(kind=wire.ASK, verdict=0)))
    assert made == NetworkRequest("evil.example", "", 443, "tcp", made.why)
    assert str(made) == "evil.example:443"
    assert made.why.startswith("evil.example:443 isn't in network= (packages.example:443, ")
    assert "add" not in made.why
    other = request(NET, event("refused", "not-listed", "example.org", 22))
    assert other.why == "example.org:22: only :443 is listed"
    flow = request(NET, event("refused", "not-listed", "", 53, address="192.0.2.1", protocol="udp", kind="udp"))
    assert str(flow) == "192.0.2.1:53/udp"


# ---- the log


def test_log() -> None:
    """It counts by verdict and reason, and adds up what connections that have ended have carried."""
    log = NetworkLog()
    for one in (
        *(lookup("allowed"), event("allowed"), event("allowed", "asked")),
        *(event("refused", "not-listed"), event("refused", "sni"), event("refused", "not-listed")),
        event("failed", "upstream", errno=errno.ECONNREFUSED),
        event("allowed", kind="close", sent=100, received=2000),
        event("allowed", "upstream", kind="close", sent=1, received=2, errno=errno.ECONNRESET),
        event("refused", "limit", kind="close", sent=3, received=4),
    ):
        log.add(one)
    log.lose(2)
    record = log.record()
    assert (record.allowed, record.refused, record.failed) == (3, 4, 2)
    assert (record.sent, record.received, record.lost) == (104, 2006, 2)
    assert record.counts == {
        ("allowed", ""): 2,
        ("allowed", "asked"): 1,
        ("refused", "not-listed"): 2,
        ("refused", "sni"): 1,
        ("refused", "limit"): 1,
        ("failed", "upstream"): 2,
    }
    assert len(record.events) == 10
    assert pickle.loads(pickle.dumps(record)) == record
    assert hash(record) == hash(log.record())


def test_log_is_bounded() -> None:
    """It keeps the last thousand events, and goes on counting. A record doesn't change any more."""
    log = NetworkLog()
    early = log.record()
    for number in range(MOST_EVENTS + 7):
        log.add(event("refused", "not-listed", f"n{number}.example"))
    record = log.record()
    assert early == NetworkRecord() and early.counts == {}
    assert len(record.events) == MOST_EVENTS
    assert (record.events[0].name, record.events[-1].name) == ("n7.example", f"n{MOST_EVENTS + 6}.example")
    assert record.refused == MOST_EVENTS + 7


def names(events: tuple[NetworkEvent, ...]) -> list[str]:
    return [event.name for event in events]


def test_destinations() -> None:
    """Of many refused destinations a record has the first and the last hundred, each once, and says if that isn't all."""
    log = NetworkLog()
    for number in range(200):
        for _ in range(2):
            log.add(event("refused", "not-listed", f"n{number}.example"))
    every = [f"n{number}.example" for number in range(200)]
    assert names(log.record().refusals) == every and log.record().is_complete
    mark = log.mark()
    log.add(event("refused", "not-listed", "n0.example"))
    log.add(event("refused", "denied", "n0.example"))
    assert names(log.record().refusals) == every[:100] + every[101:] + ["n0.example"] and not log.record().is_complete
    assert names(log.record(mark).refusals) == ["n0.example"] * 2 and log.record(mark).is_complete
    assert log.record(log.mark()).refusals == ()


def test_granted() -> None:
    """What was allowed after a question is there from the answer on; its connection is the same destination."""
    log = NetworkLog()
    question = NetworkEvent(1.0, 7, "connect", "a.example", 443, "tcp", "", "refused", "not-listed")
    log.grant(question)
    (granted,) = log.record().granted
    assert (granted.name, granted.verdict, granted.reason) == ("a.example", "allowed", "asked")
    assert log.record().refusals == log.record().events == () and log.record().tally == ()
    mark = log.mark()
    assert log.record(mark).granted == ()
    log.add(event("allowed", "asked", "a.example", 443, address="192.0.2.1"))
    log.add(event("allowed", "", "b.example", 443))
    log.add(event("allowed", "unasked", "c.example", 0, kind="dns"))
    assert names(log.record(mark).granted) == names(log.record().granted) == ["a.example"]


@pytest.mark.parametrize("before", [0, 1, 5, MOST_EVENTS - 1, MOST_EVENTS, MOST_EVENTS + 5])
@pytest.mark.parametrize("after", [0, 1, MOST_EVENTS + 1])
def test_marks(before: int, after: int) -> None:
    """A record since a mark has what came later alone, as of one command in a session."""
    log = NetworkLog()
    for number in range(before):
        log.add(event("refused", "not-listed", f"b{number}", kind="close", sent=1))
    mark = log.mark()
    for number in range(after):
        log.add(event("refused", "denied" if number % 2 else "not-listed", f"a{number}", kind="close", sent=1))
    record = log.record(mark)
    assert [one.name for one in record.events] == [f"a{number}" for number in range(after)][-MOST_EVENTS:]
    assert (record.refused, record.sent) == (after, after)
    assert all(record.counts.values())


def test_log_of_many_threads() -> None:
    """Nothing is lost when several threads add to it while others look."""
    log = NetworkLog()

    def add() -> None:
        for _ in range(2000):
            log.add(event("refused", "not-listed"))
            log.record(log.mark())

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.record().refused == 8000


def test_containment_has_a_record() -> None:
    """Every command's containment has one, which is empty without a list."""
    (default,) = (field.default for field in fields(nsbox.Containment) if field.name == "network")
    assert default == NetworkRecord() and default.events == () and default.counts == {}
