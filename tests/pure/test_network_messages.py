"""The sentences that come of what a network list's relay reports."""

from __future__ import annotations

import errno
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsbox import NetworkEvent
from nsbox._network import events as wire
from nsbox._network.messages import messages
from nsbox._network.network import Network
from nsbox._tools.verdicts import Hint, network_hints

NET = Network(allow=("packages.example:443", "*.hub.example", "db.corp:5432", "example.org", "!gist.hub.example"))


def event(verdict: str, reason: str = "", name: str = "evil.example", port: int = 443, **more: object) -> NetworkEvent:
    given = {"kind": "connect", "protocol": "tcp"} | more
    return NetworkEvent(1.0, 7, name=name, port=port, verdict=verdict, reason=reason, **given)  # type: ignore[arg-type]


def lookup(verdict: str, reason: str = "", name: str = "evil.example", **more: object) -> NetworkEvent:
    return event(verdict, reason, name, 0, kind="dns", protocol="", **more)


def said(*events: NetworkEvent, network: Network = NET, words: str = "network=") -> str:
    """Return the one sentence that these are."""
    (text,) = messages(network, events, words)
    return text


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            event("refused", "not-listed", "evil.example", 8443),
            "evil.example:8443 isn't in network= (packages.example:443, *.hub.example:443, db.corp:5432, "
            "example.org:443); add 'evil.example:8443'",
        ),
        (
            lookup("refused", "not-listed"),
            "evil.example isn't in network= (packages.example:443, *.hub.example:443, db.corp:5432, "
            "example.org:443); add 'evil.example:443', or with another port than 443",
        ),
        (
            event("refused", "not-listed", "", 53, address="192.0.2.1", protocol="udp", kind="udp"),
            "192.0.2.1:53/udp isn't in network= (packages.example:443, *.hub.example:443, db.corp:5432, "
            "example.org:443); add '192.0.2.1:53/udp'",
        ),
        (
            event("refused", "not-listed", "", 80, address="169.254.169.254"),
            "169.254.169.254:80 isn't in network= (packages.example:443, *.hub.example:443, db.corp:5432, example.org:443)",
        ),
        (
            event("refused", "not-listed", "example.org", 22),
            "example.org:22: only :443 is listed; add 'example.org:22'",
        ),
        (
            event("refused", "not-listed", "a.b.hub.example", 80),
            "a.b.hub.example:80: only :443 is listed; add 'a.b.hub.example:80'",
        ),
        (
            lookup("refused", "denied", "gist.hub.example"),
            "gist.hub.example is denied by '!gist.hub.example' in network=, which wins over what allows it",
        ),
        (
            lookup("refused", "address", "db.corp", address="10.1.2.3"),
            "db.corp is 10.1.2.3, not a public address: add '10.1.2.3:5432' or private=True",
        ),
        (
            event("refused", "address", "db.corp", 5432, address="172.20.0.9"),
            "db.corp is 172.20.0.9, not a public address: add '172.20.0.9:5432' or private=True",
        ),
        (
            event("refused", "address", "example.org", address="169.254.1.1"),
            "example.org is 169.254.1.1, not a public address, and no name may have it",
        ),
        (
            event("refused", "address", "example.org", address="fd00::1"),
            "example.org is fd00::1, not a public address: private=True",
        ),
        (
            event("refused", "address", "example.org", address="fe80::1"),
            "example.org is fe80::1, not a public address, and no name may have it",
        ),
        (
            event("refused", "address", "example.org", address="127.0.0.1"),
            "example.org is 127.0.0.1, not a public address: 'localhost:443' is the host's own 127.0.0.1",
        ),
        (
            event("refused", "address", "", 80, address="169.254.1.1"),
            "169.254.1.1:80 isn't public: only an entry of its own allows it",
        ),
        (
            event("refused", "address", "", 80, address="10.0.0.1"),
            "10.0.0.1:80 isn't public: add '10.0.0.1:80'",
        ),
        (
            lookup("refused", "address", "db.corp"),
            "db.corp has no public address: add one of its own as an entry, or private=True if it is one of a private "
            "network",
        ),
        (
            event("refused", "own-address", "example.org", address="192.0.2.9"),
            "example.org is 192.0.2.9, this host itself: 'localhost:443' is a server at its 127.0.0.1; or "
            "add '192.0.2.9:443'",
        ),
        (
            lookup("refused", "own-address", "example.org"),
            "example.org has an address of this host itself: 'localhost:443' is a server at its 127.0.0.1",
        ),
        (
            event("refused", "sni", "packages.example", sni="mirror.example", kind="close"),
            "packages.example was asked for mirror.example (TLS name): add 'mirror.example:443' and connect to that "
            "name, or tls='off'",
        ),
        (
            event("refused", "sni", "packages.example", sni="x.hub.example", kind="close"),
            "packages.example was asked for x.hub.example (TLS name): connect to x.hub.example by its name, or tls='off'",
        ),
        (
            event("refused", "sni", "packages.example", kind="close"),
            "packages.example:443 was asked for no name (TLS): name the server in the client, or tls='off'",
        ),
        (
            event("refused", "no-tls", "packages.example", kind="close"),
            "packages.example:443: the client sent no TLS hello, which this port is for; tls='off' lets it pass",
        ),
        (
            event("refused", "ech", "packages.example", kind="close"),
            "packages.example:443: the client's TLS hello is encrypted (ECH); tls='sni-ech' lets it pass",
        ),
        (
            event("refused", "port-taken", "db.corp", 5432),
            "db.corp:5432 can't be reached while a server inside listens on port 5432 of all addresses: bind it to "
            "127.0.0.1",
        ),
        (
            event("refused", "limit", "db.corp", 5432),
            "db.corp:5432: a limit of the sandbox's network was reached: connections=256",
        ),
        (
            lookup("refused", "limit", "db.corp"),
            "db.corp: too many names were looked up, at once or in all",
        ),
        (
            event("refused", "limit", "db.corp", 53, kind="udp", protocol="udp"),
            "db.corp:53/udp: too many UDP flows at once",
        ),
        (
            event("refused", "asked"),
            "evil.example:443 was asked for and refused (on_connect); add 'evil.example:443' to allow it without asking",
        ),
        (
            event("refused", "asked", "", 80),
            "an address:80 was asked for and refused (on_connect); add its address and port to allow it without asking",
        ),
        (
            event("failed", "upstream", "db.corp", 5432, errno=errno.ECONNREFUSED),
            "db.corp:5432 refused the connection; network= allows it",
        ),
        (
            event("failed", "upstream", "db.corp", 5432, errno=errno.EHOSTUNREACH),
            "db.corp:5432 can't be reached from this host (No route to host); network= allows it",
        ),
        (
            event("failed", "upstream", "db.corp", 5432, errno=errno.ETIMEDOUT),
            "db.corp:5432 didn't answer in time; network= allows it",
        ),
        (
            event("allowed", "upstream", "db.corp", 5432, errno=errno.ECONNRESET, kind="close"),
            "db.corp:5432: the server ended the connection (Connection reset by peer); network= allows it",
        ),
        (
            event("failed", "", "db.corp", 5432, errno=errno.ECONNABORTED, address="192.0.2.1"),
            "db.corp:5432 hadn't answered when the command gave up; network= allows it",
        ),
        (
            event("failed", "", "evil.example", errno=errno.ECONNABORTED),
            "evil.example:443: neither this host's resolver nor on_connect had answered when the command gave up",
        ),
        (
            lookup("failed", "upstream", "nowhere.hub.example"),
            "nowhere.hub.example can't be resolved on this host either: the name doesn't exist, or its name server "
            "doesn't answer; network= allows it",
        ),
        (
            lookup("failed", "upstream", "nowhere.hub.example", errno=errno.ENOENT),
            "nowhere.hub.example can't be resolved on this host either: the name doesn't exist; network= allows it",
        ),
        (
            lookup("failed", "upstream", "slow.hub.example", errno=errno.ETIMEDOUT),
            "slow.hub.example: this host's name server failed, or didn't answer; network= allows it",
        ),
    ],
)
def test_sentences(given: NetworkEvent, text: str) -> None:
    """Each kind of trouble says what it was, whose fault it is, and what would help."""
    assert said(given) == text


@pytest.mark.parametrize(
    "address", ["10.9.9.9", "172.16.0.1", "172.31.255.1", "192.168.0.1", "100.64.0.1", "100.127.1.1"]
)
def test_private_addresses(address: str) -> None:
    """Which of them private=True is for; the addresses beside them are no private network's."""
    assert "private=True" in said(lookup("refused", "address", "db.corp", address=address))
    other = {
        "10.": "11.",
        "172.16": "172.15",
        "172.31": "172.32",
        "192.168": "192.169",
        "100.64": "100.63",
        "100.127": "100.128",
    }
    (beside,) = (address.replace(old, new, 1) for old, new in other.items() if address.startswith(old))
    assert "private=True" not in said(lookup("refused", "address", "db.corp", address=beside))


@pytest.mark.parametrize("address", ["169.254.169.254", "fe80::1", "224.0.0.1", "0.0.0.0", "127.0.0.1", "::1"])
def test_no_hint_opens_metadata(address: str) -> None:
    """No hint tells its reader, who may be a model, to open a cloud's metadata or the host's loopback by address."""
    for one in (
        lookup("refused", "address", "db.corp", address=address),
        event("refused", "address", address=address),
    ):
        assert "add" not in said(one).replace("address", "") and "private" not in said(one)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (event("refused", "not-listed", "evil.example", 22), "add --allow-net evil.example:22"),
        (event("refused", "not-listed", "evil.example", 22), "evil.example:22 isn't in --allow-net ("),
        (
            lookup("refused", "address", "db.corp", address="10.1.2.3"),
            "add --allow-net 10.1.2.3:5432 or private=True in a ",
        ),
        (lookup("refused", "denied", "gist.hub.example"), "'!gist.hub.example' in --allow-net"),
        (event("refused", "ech"), "tls='sni-ech' in a configuration file"),
        (event("failed", "upstream", errno=errno.ECONNREFUSED), "; --allow-net allows it"),
    ],
)
def test_words_of_the_command_line(given: NetworkEvent, text: str) -> None:
    """A message on the command line names its options."""
    found = said(given, words="--allow-net")
    assert text in found and "network=" not in found


def test_entries_that_are_told_are_entries() -> None:
    """What a sentence says to add would have been enough."""
    for one in (
        event("refused", "not-listed", "evil.example", 8443),
        lookup("refused", "not-listed"),
        event("refused", "not-listed", "t.example", 123, kind="udp", protocol="udp"),
        event("refused", "not-listed", "", 80, address="192.0.2.1"),
        event("refused", "address", "db.corp", 5432, address="10.1.2.3"),
        event("refused", "sni", "packages.example", sni="mirror.example"),
    ):
        entries = re.findall(r"'([^']+:\d+(?:/udp)?)'", said(one))
        assert entries
        Network(allow=(*NET.allow, *entries))


def test_many_of_a_kind() -> None:
    """Many events of a kind are one sentence, which names the first few; the same event twice is named once."""
    many = [lookup("refused", "not-listed", f"n{number % 20}.example") for number in range(1000)]
    text = said(*many)
    assert text.startswith(
        "n0.example, n1.example, n2.example, n3.example, n4.example and 15 more aren't in network= ("
    )
    assert text.count("'n") == 5 and len(text) < 400
    two = said(event("refused", "not-listed", "a.example"), event("refused", "not-listed", "b.example"))
    assert two.startswith("a.example:443 and b.example:443 aren't in network=")
    assert two.endswith("; add 'a.example:443', 'b.example:443'")


def test_few_sentences() -> None:
    """There are at most six, and what was refused comes before what failed."""
    rest = [event("failed", "upstream", f"f{number}.example", errno=number) for number in range(1, 30)]
    first = event("refused", "port-taken")
    found = messages(NET, [*rest, first])
    assert len(found) == 6 and "port 443" in found[0]


def test_what_worked_later() -> None:
    """A server that was down and answered later is no reason; a name that was refused stays one."""
    down, up = (
        event("failed", "upstream", "db.corp", 5432, errno=errno.ECONNREFUSED),
        event("allowed", "", "db.corp", 5432),
    )
    assert messages(NET, [down, up]) == ()
    assert len(messages(NET, [up, down])) == 1
    assert len(messages(NET, [down, event("allowed", "", "db.corp", 5433)])) == 1
    assert len(messages(NET, [event("refused", "asked"), event("allowed", "asked")])) == 1


def test_a_list_that_has_changed() -> None:
    """What was refused, and would be allowed by now, isn't said to be missing in the list."""
    again = "packages.example wasn't in network= when the command tried, and is now: try again"
    assert said(lookup("refused", "not-listed", "packages.example")) == again
    assert said(event("refused", "not-listed", "packages.example")) == again.replace(" wasn't", ":443 wasn't")
    assert "only :443 is listed" in said(event("refused", "not-listed", "packages.example", 80))


def test_no_trouble() -> None:
    """What was allowed, what ended in order, and what a client outside did at a published port, isn't told."""
    quiet = [
        *(lookup("allowed"), event("allowed"), event("allowed", "asked"), event("allowed", kind="close", sent=5)),
        event("failed", "upstream", "", 3000, kind="publish", errno=errno.ECONNREFUSED),
        event("allowed", "upstream", "", 3000, kind="close", errno=errno.ECONNRESET),  # its end
    ]
    assert messages(NET, quiet) == ()
    assert messages(NET, []) == ()


def test_long_lists_are_cut() -> None:
    """Of a list of many entries the first few are shown, and no denials."""
    network = Network(allow=tuple(f"n{number}.example" for number in range(100)), deny=("bad.example",))
    text = said(event("refused", "not-listed"), network=network)
    assert "(n0.example:443, n1.example:443, n2.example:443, n3.example:443, ...)" in text


def test_ports_of_a_public_list() -> None:
    """Under "*" with some ports, another port is what is missing."""
    network = Network(allow=("*", "*:80", "!bad.example", "10.1.0.0/16:8000-8010"))
    text = said(event("refused", "not-listed", "any.example", 22), network=network)
    assert text == "any.example:22: only :443 and :80 are listed; add 'any.example:22'"
    inside = event("refused", "not-listed", "", 22, address="10.1.7.7")
    assert said(inside, network=network) == "10.1.7.7:22: only :443, :80 and :8000-8010 are listed; add '10.1.7.7:22'"


def test_hints() -> None:
    """They are hints of the kind "network"."""
    (hint,) = network_hints(NET, [event("refused", "not-listed")])
    assert isinstance(hint, Hint) and hint.kind == "network" and "evil.example:443" in str(hint)


@given(
    st.lists(
        st.builds(
            NetworkEvent,
            st.just(1.0),
            st.just(7),
            st.sampled_from(["dns", "connect", "close", "udp", "publish"]),
            st.sampled_from(["", "db.corp", "x.hub.example", "a.example", "gist.hub.example"]),
            st.sampled_from([0, 22, 443, 5432]),
            st.sampled_from(["", "tcp", "udp"]),
            st.sampled_from(["", "10.1.2.3", "192.0.2.1", "127.0.0.1", "fd00::1", "::1", "::ffff:10.0.0.1"]),
            st.sampled_from(["allowed", "refused", "failed"]),
            st.sampled_from(list(wire.REASONS.values())),
            st.sampled_from([0, 2, 111, 113, 9999]),
            st.sampled_from(["", "mirror.example"]),
        ),
        max_size=30,
    ),
    st.sampled_from(["network=", "--allow-net"]),
)
def test_any_events(events: list[NetworkEvent], words: str) -> None:
    """Whatever combination comes, a few sentences of some length come out."""
    found = messages(NET, events, words)
    assert len(found) <= 6
    assert all(0 < len(text) < 1000 and "  " not in text for text in found)
    assert all("network=" not in text for text in found) or words == "network="
