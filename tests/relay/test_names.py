"""Names: whose they are, and how they are looked up outside."""

from __future__ import annotations

from nsbox_relay import Ask, name

REVERSE = """
def reverse(address):
    host = ".".join(map(str, socket.inet_aton(address)[::-1])) + ".in-addr.arpa"
    labels = b"".join(bytes([len(part)]) + part.encode() for part in host.split("."))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(5)
        s.sendto(struct.pack(">6H", 7, 0x100, 1, 0, 0, 0) + labels + struct.pack(">BHH", 0, 12, 1), ("198.19.0.53", 53))
        answer = s.recv(999)
    return answer[3] & 15

def names():
    return sum(reverse(f"198.18.1.{i}") == 0 for i in range(20))
"""


def test_names_of_another_sandbox(ask: Ask) -> None:
    """What one has asked for, another can't learn; its own names, and those that the list spells out, it can."""
    client = (
        REVERSE
        + """
own = socket.gethostbyname("c.a.example")
spelled = socket.gethostbyname("two.example")
say("note", "asked")
print(reverse(own), reverse(spelled), names())
say("wait", "done")
"""
    )
    other = (
        REVERSE
        + """
say("wait", "asked")
before = names()
own = socket.gethostbyname("b.example")
print(before, reverse(own), names())
socket.gethostbyname("c.a.example")
print(names())
say("note", "done")
"""
    )
    rules = [name("*.example", 80), name("*.a.example", 80), name("two.example", 80)]
    found = ask(rules, client, others=[other])
    assert found.lines() == ["0 0 2"]
    assert found.others == ["1 0 2\n3\n"]


def test_search_domains_of_the_host(ask: Ask) -> None:
    """A listed name is looked up as it is written: not below the host's search domains. The host's own table counts."""
    client = """
print(ask("corp", 80), ask("dns.example", 80), ask("short", 80), ask("later", 80))
print(say("queries"))
"""
    rules = [name("corp", 80), name("dns.example", 80), name("short", 80), name("later", 80)]
    found = ask(rules, client)
    assert found.lines()[0] == "-2 b'203.0.113.1 hi' b'203.0.113.1 hi' -2"
    queries = found.lines()[1].split()
    assert {"corp", "dns.example"} <= set(queries)
    assert not [query for query in queries if query.endswith("search.example")]
    assert "short" not in queries


def test_a_name_that_does_not_exist_yet(ask: Ask) -> None:
    """It is asked for again, and isn't known until it is there; no client gets an address for it before."""
    client = REVERSE + 'print(ask("nosuch.example", 80), names(), ask("dns.example", 80), names())'
    found = ask([name("*.example", 80)], client)
    assert found.lines() == ["-2 0 b'203.0.113.1 hi' 1"]
