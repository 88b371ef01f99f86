"""A network list: what its entries say, what is refused and with which words, and what a list covers of another."""

from __future__ import annotations

import pickle
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsbox import PolicyError
from nsbox._network.entries import Entry, parse
from nsbox._network.network import Network
from nsbox._relay.wire import blob


def one(text: str) -> Entry:
    """Return the one entry that a text is."""
    (entry,) = parse("network", text)
    return entry


@pytest.mark.parametrize(
    ("text", "kind", "target", "ports"),
    [
        ("api.example", "name", "api.example", (443, 443)),
        ("API.Example.:8080", "name", "api.example", (8080, 8080)),
        ("*.hub.example", "below", "hub.example", (443, 443)),
        ("*", "any", "", (443, 443)),
        ("*:*", "any", "", (1, 65535)),
        ("localhost:8000-8010", "localhost", "", (8000, 8010)),
        ("10.1.2.3:5432", "addresses", "10.1.2.3/32", (5432, 5432)),
        ("10.1.2.0/24:*", "addresses", "10.1.2.0/24", (1, 65535)),
        ("0.0.0.0/0", "addresses", "0.0.0.0/0", (443, 443)),
        ("bücher.example", "name", "xn--bcher-kva.example", (443, 443)),
        ("under_score.example:1", "name", "under_score.example", (1, 1)),
        ("host", "name", "host", (443, 443)),
    ],
)
def test_entries(text: str, kind: str, target: str, ports: tuple[int, int]) -> None:
    """What is named, and at which ports."""
    entry = one(text)
    named = (
        f"{'.'.join(map(str, entry.address.to_bytes(4, 'big')))}/{entry.bits}" if kind == "addresses" else entry.name
    )
    assert (entry.kind, named, (entry.first, entry.last)) == (kind, target, ports)
    assert not entry.is_udp and not entry.is_denied


def test_denials_and_udp() -> None:
    """What denies a host denies all of it, unless it says a port."""
    assert [(entry.is_udp, entry.first, entry.last) for entry in parse("network", "!gist.example")] == [
        (False, 1, 65535),
        (True, 1, 65535),
    ]
    assert [(entry.is_udp, entry.first) for entry in parse("network", "!gist.example:22")] == [(False, 22)]
    assert one("time.example:123/udp").is_udp


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "network='none'"),
        ("!", "network='none'"),
        ("https://api.example/v1", "'api.example'"),
        ("http://api.example", "'api.example:80'"),
        ("ssh://git@host.example/x", "'host.example:22'"),
        ("git@host.example:22", "'host.example:22'"),
        ("api.example/v1", "a path can't be allowed"),
        ("api.example:443/v1", "a path can't be allowed"),
        ("api.example:0", "1 to 65535"),
        ("api.example:65536", "1 to 65535"),
        ("api.example:20-10", "the smaller one first"),
        ("api.example:", "a number"),
        ("api.example:https", "a number"),
        ("api.example:\uff14\uff14\uff13", "a number"),
        (":443", "no host"),
        ("::1", "IPv6"),
        ("0x7f.1", "ends in a number"),
        ("0xc0a80001:80", "ends in a number"),
        ("example.0x1", "ends in a number"),
        ("example.1:80", "ends in a number"),
        ("01.2.3.4", "octal"),
        ("10.0.0.0/08", "octal"),
        ("[2001:db8::1]:443", "IPv6"),
        ("10.1.2.3/24", "'10.1.2.0/24'"),
        ("10.1.2", "isn't an IPv4 address"),
        ("10.1.2.256", "isn't an IPv4 address"),
        ("10.1.2.0/33", "isn't an IPv4 address"),
        ("127.0.0.1:8000", "localhost:PORT"),
        ("0.0.0.0:8000", "localhost:PORT"),
        ("0.0.0.0/8:80", "localhost:PORT"),
        ("198.18.0.0/16", "the sandbox's own"),
        ("*.com", "top-level"),
        ("a.*.example", "at the beginning"),
        ("*example.org", "at the beginning"),
        ("*.*.example", "at the beginning"),
        ("-a.example", "isn't a name of a host"),
        ("a..example", "isn't a name of a host"),
        ("a.example\n", "control character"),
        ("a b.example", "control character"),
        ("a\x00.example", "control character"),
        ("ß" * 300, "isn't a name of a host"),
        (f"{'a' * 64}.example", "isn't a name of a host"),
        ("time.example/udp", "needs a port"),
        ("time.example:*/udp", "single ports"),
        ("localhost:*", "single ports"),
        ("*:53/udp", "only with names and addresses"),
        (443, "must be a str"),
        (b"api.example", "must be a str"),
    ],
)
def test_refused_entries(text: object, said: str) -> None:
    """Each names the entry, and what to write instead."""
    with pytest.raises(PolicyError) as caught:
        parse("network", text)
    assert said in str(caught.value) and caught.value.field == "network"
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("a.example", "a.example:443"),
        ("a.example:*", "a.example:22"),
        ("*.example.org", "b.a.example.org"),
        ("*.example.org", "*.a.example.org"),
        ("*:*", "a.example:22"),
        ("*", "*.example.org"),
        ("10.0.0.0/8:1-9", "10.1.2.0/24:5"),
        ("localhost:1-9", "localhost:3"),
        ("a.example:1-9/udp", "a.example:5/udp"),
    ],
)
def test_what_covers(wide: str, narrow: str) -> None:
    """One way only, unless they are the same."""
    assert one(wide).covers(one(narrow))
    assert one(wide) == one(narrow) or not one(narrow).covers(one(wide)) or wide == "a.example"


@pytest.mark.parametrize(
    ("one_text", "other"),
    [
        ("a.example", "b.example"),
        ("a.example", "x.a.example"),
        ("*.a.example", "a.example"),
        ("*.a.example", "xa.example"),
        ("a.example:443", "a.example:443/udp"),
        ("*:*", "localhost:1"),
        ("*:*", "10.1.2.3:1"),
        ("10.1.2.0/24", "10.1.3.0/24"),
        ("10.1.2.0/24:1", "10.1.2.3:2"),
    ],
)
def test_what_does_not_cover(one_text: str, other: str) -> None:
    """Another name, network, port or protocol."""
    assert not one(one_text).covers(one(other))


def test_lists() -> None:
    """Values: equal, hashable, sent to other processes; what is denied is said once, in any spelling."""
    network = Network(allow=["a.example", "*.hub.example", "a.example"], deny=["gist.hub.example"])
    assert network.allow == ("a.example", "*.hub.example") and network.deny == ("!gist.hub.example",)
    assert pickle.loads(pickle.dumps(network)) == network and hash(network) == hash(pickle.loads(pickle.dumps(network)))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"allow": ["!a.example"]}, "allows nothing"),
        ({"allow": "a.example"}, "a sequence"),
        ({"allow": 3}, "a sequence"),
        ({"allow": [["a.example"]]}, "must be a str"),
        ({"allow": ["a.example"], "deny": [None]}, "must be a str"),
        ({"allow": [f"h{i}.example" for i in range(10_001)]}, "more than 10000"),
        ({"allow": ["a.example"], "tls": "mitm"}, "'sni'"),
        ({"allow": ["a.example"], "connections": 0}, "1 to 10000"),
        ({"allow": ["a.example"], "bytes": "lots"}, "isn't a size"),
        ({"allow": ["a.example"], "private": 1}, "True or False"),
        ({"allow": [f"h{i}.example:{1000 + i}/udp" for i in range(65)]}, "ports of UDP"),
    ],
)
def test_refused_lists(fields: dict[str, object], said: str) -> None:
    """Denials alone are never "all", and nothing is taken for something else."""
    with pytest.raises(PolicyError, match=r"^network"):
        Network(**fields)  # type: ignore[arg-type]
    with pytest.raises(PolicyError) as caught:
        Network(**fields)  # type: ignore[arg-type]
    assert said in str(caught.value)


def test_an_empty_list() -> None:
    """It allows nothing, whether it denies something or not; it covers no entry, and each list covers it."""
    empty, listed = Network(), Network(allow=["a.example"])
    assert empty == Network(allow=[]) == pickle.loads(pickle.dumps(empty)) and empty.entries == ()
    assert {entry.text for entry in Network(deny=["b.example"]).entries} == {"!b.example"}
    assert listed.covers(empty) == "" and empty.covers(empty) == "" and "isn't in" in empty.covers(listed)
    assert len(blob(empty)) == 40


def test_ten_thousand_entries() -> None:
    """As many as that are taken."""
    network = Network(allow=[f"h{i}.example" for i in range(10_000)])
    assert len(blob(network)) == 40 + 10_000 * 32 + sum(len(f"h{i}.example") for i in range(10_000))


@pytest.mark.parametrize(
    ("child", "said"),
    [
        ({"allow": ["a.example"], "deny": ["gist.hub.example"]}, ""),
        ({"allow": ["x.hub.example"], "deny": ["x.gist.hub.example"]}, "denies '!gist.hub.example'"),
        ({"allow": ["x.hub.example"], "deny": ["*"]}, ""),
        ({"allow": ["b.example"], "deny": ["gist.hub.example"]}, "'b.example' isn't in"),
        ({"allow": ["a.example"]}, "denies '!gist.hub.example'"),
        ({"allow": ["a.example"], "deny": ["gist.hub.example"], "private": True}, "private"),
        ({"allow": ["a.example"], "deny": ["gist.hub.example"], "tls": "off"}, "less strict"),
        ({"allow": ["a.example"], "deny": ["gist.hub.example"], "connections": 1000}, "connections"),
    ],
)
def test_what_a_list_covers(child: dict[str, object], said: str) -> None:
    """No more names, ports and addresses, nothing that is denied, and no laxer."""
    parent = Network(allow=["a.example", "*.hub.example"], deny=["gist.hub.example"])
    found = parent.covers(Network(**child))  # type: ignore[arg-type]
    assert said in found and bool(said) == bool(found)


@given(st.text(max_size=40))
def test_any_text(text: str) -> None:
    """Is an entry whose name a resolver can be asked for, or a PolicyError."""
    try:
        entries = parse("network", text)
    except PolicyError:
        return
    for entry in entries:
        assert entry.name.isascii() and entry.name == entry.name.lower() and 1 <= entry.first <= entry.last <= 65535
        assert entry.covers(entry)


def test_the_blob() -> None:
    """To the byte, as csrc/net/wire.h has it."""
    network = Network(
        allow=["a.example:80", "10.1.2.0/24:5432"], deny=["b.example:1"], private=True, tls="off", bytes=9
    )
    content = blob(network)
    assert struct.unpack_from("=8IQ", content) == (0x746E736E, 1, len(content), 3, 1, 2, 256, 0, 9)
    rules = [struct.unpack_from("=8I", content, 40 + 32 * i) for i in range(3)]
    assert rules == [
        (1, 0, 80, 80, 0, 32, 0, 9),
        (4, 0, 5432, 5432, 0x0A010200, 24, 0, 0),
        (1, 1, 1, 1, 0, 32, 9, 9),
    ]
    assert content[40 + 96 :] == b"a.exampleb.example"
    for listed, flags in ((network, 3), (Network(allow=["a.example"]), 2)):
        asked = blob(listed, asks=True)
        assert struct.unpack_from("=8IQ", asked)[4] == flags
        assert asked[:16] + asked[20:] == blob(listed)[:16] + blob(listed)[20:]
