"""What no entry of a network list decides: the caller is asked, and the connection waits for its word.

The control is in each test: what the caller allows is reached, and so is what an entry lists.
"""

from __future__ import annotations

import errno

import pytest
from nsbox_relay import Answer, Ask, addresses, localhost, name

ASKS = 2
REFUSED = str(errno.ECONNREFUSED)
UNREACHABLE = str(errno.EHOSTUNREACH)


def asked(found: Answer) -> list[str]:
    """Return what the caller was asked about, in order."""
    return [f"{e['name'] or e['address']}:{e['port']}" for e in found.events if e["message"] == 3]


def test_yes_and_no(ask: Ask) -> None:
    """A yes is a connection, for that port alone; a no is a refusal. What an entry lists isn't asked about."""
    client = """
for host, port in (("a.example", 80), ("b.example", 80), ("b.example", 5432), ("ssh.example", 22)):
    print(ask(host, port))
"""
    verdicts = {"b.example:80": 1, "b.example:5432": 0, "ssh.example:22": 0}
    found = ask([name("a.example", 80)], client, flags=ASKS, verdicts=verdicts)
    assert found.lines() == ["b'203.0.113.1 hi'", "b'203.0.113.1 hi'", REFUSED, REFUSED]
    assert asked(found) == list(verdicts)
    assert found.of("connect") == [
        ("a.example", "allowed", 80),
        ("b.example", "allowed asked", 80),
        ("b.example", "refused asked", 5432),
        ("ssh.example", "refused asked", 22),
    ]


def test_without_the_flag_nobody_is_asked(ask: Ask) -> None:
    """The control: the same list, and names that aren't listed aren't known."""
    found = ask(
        [name("a.example", 80)], 'print(ask("b.example", 80), ask("a.example", 81))', verdicts={"b.example:80": 1}
    )
    assert found.lines() == [f"-2 {REFUSED}"] and not asked(found)


def test_addresses(ask: Ask) -> None:
    """An address that the command names itself is asked about too, and has its answer for itself."""
    client = """
for host in ("203.0.113.1", "203.0.113.2", "203.0.113.1"):
    print(ask(host, 5432, timeout=5))
"""
    verdicts = {"203.0.113.1:5432": 1, "203.0.113.2:5432": 0}
    found = ask([name("a.example", 80)], client, flags=ASKS, verdicts=verdicts)
    assert found.lines() == ["b'203.0.113.1 hi'", UNREACHABLE, "b'203.0.113.1 hi'"]
    assert asked(found) == list(verdicts)


@pytest.mark.parametrize("verdict", [1, 0])
def test_asked_once(ask: Ask, verdict: int) -> None:
    """Connections to one destination wait for one answer, and it holds for later ones."""
    client = """
found = []
threads = [threading.Thread(target=lambda: found.append(ask("b.example", 80))) for _ in range(20)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print({str(one) for one in found}, ask("b.example", 80))
"""
    found = ask([name("a.example", 80)], client, flags=ASKS, verdicts={"b.example:80": verdict})
    got = "b'203.0.113.1 hi'" if verdict else REFUSED
    assert found.lines() == [f'{{"{got}"}} {got}' if verdict else f"{{'{got}'}} {got}"]
    assert asked(found) == ["b.example:80"] and len(found.of("connect")) == 21


def test_each_sandbox_is_asked_for(ask: Ask) -> None:
    """A yes in one sandbox says nothing about another."""
    client = 'print(ask("b.example", 80))'
    found = ask([name("a.example", 80)], client, others=[client], flags=ASKS, verdicts={"b.example:80": 1})
    assert found.lines() == ["b'203.0.113.1 hi'"] and found.others == ["b'203.0.113.1 hi'\n"]
    assert asked(found) == ["b.example:80"] * 2
    assert {event["sandbox"] for event in found.events if event["message"] == 3} == {7, 8}


def test_silence(ask: Ask) -> None:
    """A caller that says nothing, and goes: what waits is refused at once, and so is all that comes later."""
    client = """
found = []
waits = [threading.Thread(target=lambda h=h: found.append(ask(h, 80, timeout=20))) for h in ("b.example", "a.example", "a.example")]
for thread in waits: thread.start()
say("asked", 2)
assert not found
started = time.monotonic()
say("close")
for thread in waits: thread.join()
print(found, ask("ssh.example", 22), ask("d.example", 80), time.monotonic() - started < 5)
"""
    found = ask([name("d.example", 80)], client, flags=ASKS)
    assert found.lines() == [f"[{REFUSED}, {REFUSED}, {REFUSED}] {REFUSED} -2 True"]
    assert found.relay == 0


def test_a_late_and_a_strange_answer(ask: Ask) -> None:
    """An answer for a question that was never asked changes nothing; the first answer to one holds."""
    client = """
found = []
wait = threading.Thread(target=lambda: found.append(ask("b.example", 80, timeout=20)))
wait.start()
say("asked", 1)
say("verdict", 77, 1)
say("verdict", 0, 1)
say("verdict", 1, 2)
wait.join()
say("verdict", 1, 1)
print(found, ask("b.example", 80), ask("a.example", 80))
"""
    found = ask([name("a.example", 80)], client, flags=ASKS)
    assert found.lines() == [f"[{REFUSED}] {REFUSED} b'203.0.113.1 hi'"]


def test_what_is_never_asked(ask: Ask) -> None:
    """What an entry denies; addresses of the host, of private networks, of nobody; the sandbox's own loopback."""
    client = """
print(ask("b.example", 80), ask("a.example", 22), ask("203.0.113.2", 22))
for host in ("10.1.2.3", "169.254.169.254", "192.0.2.1", "198.18.9.9", "127.0.0.1", "127.0.0.2"):
    print(host, ask(host, 443, timeout=3))
"""
    rules = [
        name("a.example", 80),
        name("b.example", 1, 65535, deny=True),
        name("a.example", 22, deny=True),
        addresses("203.0.113.2", 32, 22, deny=True),
        localhost(9999),
    ]
    found = ask(rules, client, flags=ASKS, on_host=[443])
    assert found.lines()[0] == f"-2 {REFUSED} {UNREACHABLE}"
    assert [row.split()[1] for row in found.lines()[1:]] == [UNREACHABLE] * 4 + [REFUSED] * 2
    assert not asked(found)


@pytest.mark.parametrize(("host", "reason"), [("metadata", "address"), ("lan", "address"), ("rebound", "own-address")])
def test_a_yes_is_no_more_than_an_entry(ask: Ask, host: str, reason: str) -> None:
    """A name that leads to a private, a special or an own address is refused after a yes too."""
    verdicts = {f"{host}.example:443": 1, "a.example:443": 1}
    client = f'print(ask("{host}.example", 443), ask("a.example", 443))'
    found = ask([name("x.example", 80)], client, flags=ASKS, tls=2, verdicts=verdicts, on_host=[443])
    assert found.lines() == [f"{UNREACHABLE} b'203.0.113.1 hi'"]
    assert (f"{host}.example", f"refused {reason}", 443) in found.of("connect")


def test_tls_names_after_a_yes(ask: Ask) -> None:
    """The client has to ask the server for the name that was allowed."""
    client = """
own, other = hello("a.example"), hello("b.example")
for data in (own, other):
    got = ask("a.example", 443, data)
    print(got[:7].hex() if got[:1] == b"\\x15" else len(got) - len(data) in (0, 12))
"""
    found = ask([name("x.example", 80)], client, flags=ASKS, verdicts={"a.example:443": 1})
    assert found.lines() == ["True", "15030100020270"]


def test_nothing_leaves_the_host_before_a_yes(ask: Ask) -> None:
    """A name that isn't listed has an address at once, whether it exists or not; it is looked up after a yes."""
    client = """
print(socket.gethostbyname("dns.example")[:7], socket.gethostbyname("no.such.example")[:7])
print(ask("later.example", 80), say("queries"))
print(ask("dns.example", 80), ask("no.such.example", 80))
print(say("queries"))
"""
    verdicts = {"dns.example:80": 1, "no.such.example:80": 1, "later.example:80": 0}
    found = ask([name("x.example", 80)], client, flags=ASKS, verdicts=verdicts)
    assert found.lines()[:2] == ["198.18. 198.18.", f"{REFUSED} -"]
    assert found.lines()[2] == f"b'203.0.113.1 hi' {UNREACHABLE}"
    assert "dns.example" in found.lines()[3] and "later.example" not in found.lines()[3]


def test_a_client_that_gave_up(ask: Ask) -> None:
    """Its socket is closed before the answer comes: no harm, and the next connection is let in without a question."""
    client = """
s = socket.socket()
s.setblocking(False)
s.connect_ex((socket.gethostbyname("b.example"), 80))
say("asked", 1)
s.close()
say("verdict", 1, 1)
print(ask("b.example", 80))
"""
    found = ask([name("x.example", 80)], client, flags=ASKS)
    assert found.lines() == ["b'203.0.113.1 hi'"] and asked(found) == ["b.example:80"]


def test_no_more_than_64_at_a_time(ask: Ask) -> None:
    """Questions beyond that are refused, and may be asked later."""
    client = """
held = []
for port in range(10000, 10080):
    s = socket.socket()
    s.setblocking(False)
    s.connect_ex(("203.0.113.1", port))
    held.append(s)
say("asked", 64)
late = ask("203.0.113.1", 10090, timeout=3)
for number in range(1, 65):
    say("verdict", number, 0)
print(late, ask("203.0.113.1", 10091, timeout=3))
"""
    found = ask([name("x.example", 80)], client, flags=ASKS, verdicts={"203.0.113.1:10091": 1})
    assert found.lines() == [f"{REFUSED} b'203.0.113.1 hi'"]
    assert len(asked(found)) == 65
    assert ("203.0.113.1", "refused limit", 10090) in found.of("connect")
