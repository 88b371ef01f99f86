"""What a list covers of another, against a model of its own: what a list allows, question by question."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nsbox_pure import calm
from nsbox_pure.hosts import workspace

from nsbox import Network, PolicyError
from nsbox._network.cover import Cover
from nsbox._network.entries import parse

# A small world: names below two domains, with addresses in two networks, of which one is private.
NAMES = ("a.x.example", "b.a.x.example", "x.example", "y.example", "ax.example")
ADDRESSES = ("203.0.113.7", "203.0.113.200", "10.1.2.3")
PORTS = (22, 80, 443)
QUESTIONS = [
    *product(NAMES, ADDRESSES, PORTS, ("tcp", "udp")),
    *product((None,), ADDRESSES, PORTS, ("tcp", "udp")),  # by number
    *product(("localhost",), (None,), PORTS, ("tcp",)),
]

TARGETS = (*NAMES, "*.x.example", "*.a.x.example", "*.example.org", "localhost", "*")
NETS = ("203.0.113.7", "203.0.113.0/25", "203.0.113.0/24", "10.1.2.3", "10.0.0.0/8", "0.0.0.0/0")
entries = st.builds(
    lambda target, ports, udp: f"{target}{ports}{'/udp' if udp and ports and target not in ('localhost', '*') else ''}",
    st.sampled_from((*TARGETS, *NETS)),
    st.sampled_from(("", ":22", ":80", ":443", ":60-80", ":443-450")),
    st.booleans(),
)
lists = st.builds(
    lambda allow, deny, private: Network(allow=tuple(allow), deny=tuple(deny), private=private),
    st.lists(entries, min_size=1, max_size=5),
    st.lists(entries, max_size=2),
    st.booleans(),
)


def number(address: str) -> int:
    parts = [int(part) for part in address.split(".")]
    return parts[0] << 24 | parts[1] << 16 | parts[2] << 8 | parts[3]


def names(text: str, question: tuple[Any, ...], *, is_denial: bool) -> tuple[bool, bool]:
    """Say if an entry names a question's host, and its address; read from the text, not by the code that is tested."""
    name, address, port, protocol = question
    text = text.removeprefix("!")
    is_udp, text = text.endswith("/udp"), text.removesuffix("/udp")
    target, colon, ports = text.partition(":")
    first, _, last = (ports if colon else "1-65535" if is_denial else "443").partition("-")
    both = is_denial and not colon and target != "localhost"
    if not int(first) <= port <= int(last or first) or (is_udp != (protocol == "udp") and not both):
        return False, False
    if target[0].isdigit():
        net, _, bits = target.partition("/")
        shift = 32 - int(bits or 32)
        return False, address is not None and number(address) >> shift == number(net) >> shift
    if target == "*":
        return name != "localhost", name != "localhost"
    if target.startswith("*."):
        return name is not None and name.endswith(target[1:]), False
    return name == target, False


def allows(network: Network, question: tuple[Any, ...]) -> bool:
    """Say what the documents say: an entry allows it, none denies it, and the address is public or listed."""
    name, address, _, _ = question
    allowed = [names(text, question, is_denial=False) for text in network.allow if not text.startswith("!")]
    denied = [names(text, question, is_denial=True) for text in network.deny]
    if any(by_name or by_address for by_name, by_address in denied):
        return False
    listed = [text for text in network.allow if text[0].isdigit()]
    is_listed = any(names(text, question, is_denial=False)[1] for text in listed)
    if name == "localhost":
        return any(by_name for by_name, _ in allowed)
    if address.startswith("10.") and not is_listed and (name is None or not network.private):
        return False
    return any(by_name or (name is None and by_address) for by_name, by_address in allowed)


@calm
@given(lists, lists)
def test_covered_lists_never_allow_more(parent: Network, child: Network) -> None:
    """Whatever a covered list allows, the other allows."""
    if parent.covers(child) == "":
        assert [q for q in QUESTIONS if allows(child, q) and not allows(parent, q)] == []


@calm
@given(lists, lists)
def test_children_never_get_more(parent: Network, wished: Network) -> None:
    """Nor does a child: it is made with the parent's denials, or refused."""
    try:
        made = workspace(network=parent).child(network=wished).network
    except PolicyError as error:
        assert error.field == "network"
        return
    assert isinstance(made, Network)
    assert [q for q in QUESTIONS if allows(made, q) and not allows(parent, q)] == []


@calm
@given(lists, st.data())
def test_a_part_is_granted(parent: Network, data: st.DataObject) -> None:
    """Some of the parent's own entries are less, whatever else it says."""
    few = data.draw(st.lists(st.sampled_from(parent.allow), min_size=1))
    made = workspace(network=parent).child(network=few).network
    assert isinstance(made, Network)
    assert [q for q in QUESTIONS if allows(made, q) and not allows(parent, q)] == []
    assert workspace(network=parent).child().network == parent
    assert workspace(network=parent).child(network="none").network == "none"


@calm
@given(entries, entries)
def test_one_entry_is_as_a_cover(ours: str, other: str) -> None:
    """The quick way says what the entries say."""
    for own, theirs in product(parse("network", ours), parse("network", other)):
        assert Cover([own]).has(theirs) == own.covers(theirs)


def test_ports_that_meet() -> None:
    """Two ranges that meet cover what goes over both; those with a gap don't."""
    (wide,) = parse("network", "a.example:5-15")
    low, high, far = (parse("network", f"a.example:{ports}")[0] for ports in ("1-10", "11-20", "12-20"))
    assert Cover([high, low]).has(wide)
    assert not Cover([low, far]).has(wide)
    assert not Cover([]).has(wide)


@pytest.mark.parametrize(
    ("parent", "child", "said"),
    [
        (["*.x.example"], ["x.example"], "'x.example'"),
        (["a.example"], ["a.example:80"], "'a.example:80'"),
        (["a.example:123/udp"], ["a.example:123"], "'a.example:123'"),
        (["10.1.0.0/16:*"], ["10.0.0.0/8:22"], "'10.0.0.0/8:22'"),
        (["*:*"], ["localhost:80"], "'localhost:80'"),
        (["*:*"], ["10.0.0.1:80"], "'10.0.0.1:80'"),
        (["a.example"], "public", "'*:*'"),
        (["a.example"], "host", "'host' is more than the parent's list"),
        (["a.example"], Network(allow=["a.example"], private=True), "private=True"),
        (["a.example"], Network(allow=["a.example"], tls="off"), "tls='off'"),
        (["a.example"], Network(allow=["a.example"], connections=257), "connections=257"),
        (Network(allow=["a.example"], bytes="1K"), Network(allow=["a.example"], bytes="2K"), "bytes=2048"),
        ("none", ["a.example"], "a list is more than the parent's 'none'"),
        ("none", "public", "a list is more than the parent's 'none'"),
    ],
)
def test_more_is_refused(parent: Any, child: Any, said: str) -> None:
    """Each kind of more, by its words."""
    with pytest.raises(PolicyError) as caught:
        workspace(network=parent).child(network=child)
    assert caught.value.field == "network" and said in caught.value.problem


def test_less_is_granted() -> None:
    """The host's network has all; a child keeps the parent's amounts, and what the parent denies."""
    assert workspace(network="host").child(network="public").network == Network(allow=("*:*",))
    assert workspace(network="host").child().network == "host"
    strict = Network(allow=["*.x.example", "!y.x.example"], deny=["z.x.example"], connections=9, bytes="1K", tls="off")
    made = workspace(network=strict).child(network=["a.x.example", "y.x.example"]).network
    assert isinstance(made, Network)
    assert made.deny == ("!y.x.example", "!z.x.example")
    assert (made.connections, made.bytes, made.tls) == (9, 1024, "off")
    own = workspace(network=strict).child(network=Network(allow=["a.x.example"], connections=3)).network
    assert isinstance(own, Network)
    assert (own.connections, own.bytes, own.tls, own.deny) == (3, 1024, "sni", made.deny)
