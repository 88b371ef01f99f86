"""Another list for what is running: what it adds is there, and what it doesn't allow any more ends at once."""

from __future__ import annotations

import errno

import pytest
from nsbox_relay import Ask, addresses, localhost, name

REFUSED = str(errno.ECONNREFUSED)
UNLISTED = str(errno.EHOSTUNREACH)
BEGIN = """
def opened(host, port):
    s = socket.create_connection((host, port), 5)
    s.sendall(b"hi")
    s.recv(99)
    return s

def alive(s):
    try:
        s.sendall(b"more")
        return s.recv(99)
    except OSError as error:
        return errno.ECONNRESET if error.errno == errno.EPIPE else error.errno
"""


def test_what_is_open(ask: Ask) -> None:
    """A connection to what isn't listed any more is reset, at both ends; another goes on."""
    client = (
        BEGIN
        + """
gone, denied, kept, here = opened("a.example", 80), opened("b.example", 80), opened("a.example", 5432), opened("203.0.113.1", 80)
print(say("rules", "new"))
print(alive(gone), alive(denied), alive(kept), alive(here))
print(ask("a.example", 80), ask("b.example", 80), ask("a.example", 5432), ask("203.0.113.1", 80))
"""
    )
    old = [name("a.example", 80), name("*.example", 80), name("a.example", 5432), addresses("203.0.113.1", 32, 80)]
    new = [name("*.example", 80), name("a.example", 80, deny=True), name("b.example", 1, 65535, deny=True)]
    new += [name("a.example", 5432)]
    found = ask(old, client, lists={"new": new})
    reset = errno.ECONNRESET
    assert found.lines() == ["0", f"{reset} {reset} b'more' {reset}", f"{REFUSED} -2 b'203.0.113.1 hi' {UNLISTED}"]
    ended = [row for row in found.of("close") if row[1] != "allowed"]
    assert sorted(ended) == [
        ("203.0.113.1", "refused not-listed", 80),
        ("a.example", "refused denied", 80),
        ("b.example", "refused denied", 80),
    ]


def test_names(ask: Ask) -> None:
    """A name that isn't listed any more isn't known, at the next question; a new one is."""
    client = """
known = socket.gethostbyname("a.example")
print(ask("a.example", 80), ask("b.example", 80))
print(say("rules", "new"))
print(ask("a.example", 80), ask("b.example", 80), ask(known, 80))
"""
    found = ask([name("a.example", 80)], client, lists={"new": [name("b.example", 80)]})
    hi = "b'203.0.113.1 hi'"
    assert found.lines() == [f"{hi} -2", "0", f"-2 {hi} {REFUSED}"]


def test_networks_and_ports(ask: Ask) -> None:
    """Addresses come and go, and so do ports of localhost, and UDP."""
    client = (
        BEGIN
        + """
def send(host, port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(3)
        try:
            s.connect((host, port))
            s.send(b"ping")
            return s.recv(99)
        except OSError as error:
            return error.errno or type(error).__name__

def state():
    print(ask("203.0.113.1", 5432), ask("203.0.113.2", 22), ask("127.0.0.1", 8000), ask("127.0.0.1", 8001), send("203.0.113.1", 123))

for which in ("one", "two", "one", "both", "none"):
    print(which, say("rules", which))
    state()
"""
    )
    one = [addresses("203.0.113.1", 32, 5432), localhost(8000)]
    two = [addresses("203.0.113.2", 32, 22), localhost(8001), addresses("203.0.113.1", 32, 123, udp=True)]
    none = [name("x.example")]
    lists = {"one": one, "two": two, "both": one + two, "none": none}
    found = ask(none, client, lists=lists, on_host=[8000, 8001])
    hi, ssh, local = "b'203.0.113.1 hi'", "b'SSH-2.0-server\\r\\n203.0.113.2 hi'", "b'127.0.0.1 hi'"
    pong = "b'pong ping'"
    assert found.lines() == [
        "one 0",
        f"{hi} {UNLISTED} {local} {REFUSED} {REFUSED}",
        "two 0",
        f"{UNLISTED} {ssh} {REFUSED} {local} {pong}",
        "one 0",
        f"{hi} {UNLISTED} {local} {REFUSED} {REFUSED}",
        "both 0",
        f"{hi} {ssh} {local} {local} {pong}",
        "none 0",
        f"{UNLISTED} {UNLISTED} {REFUSED} {REFUSED} {REFUSED}",
    ]


def test_what_was_never_private(ask: Ask) -> None:
    """A list may take a name's addresses away: those of private networks, and one that it denies."""
    client = (
        BEGIN
        + """
lan, pub = opened("lan.example", 443), opened("a.example", 443)
print(say("rules", "new"), alive(lan), alive(pub))
"""
    )
    rules = [name("lan.example"), name("a.example")]
    new = {"rules": [*rules, addresses("203.0.113.1", 32, 1, 65535, deny=True)], "tls": 2}
    found = ask(rules, client, flags=1, tls=2, lists={"new": new})
    assert found.lines() == [f"0 {errno.ECONNRESET} {errno.ECONNRESET}"]
    assert [row[1] for row in found.of("close")] == ["refused address"] * 2


# A flow of datagrams to DEST, before and after the list is replaced.
FLOW = """
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(3)
s.connect(("DEST", 123))
s.send(b"one")
print(s.recv(99), say("rules", "new"))
try:
    s.send(b"two")
    print(s.recv(99))
except OSError as error:
    print(error.errno)
"""


def test_a_flow_of_datagrams(ask: Ask) -> None:
    """It ends with its entry."""
    client = FLOW.replace("DEST", "203.0.113.1")
    rules = [addresses("203.0.113.1", 32, 123, udp=True)]
    found = ask(rules, client, lists={"new": [addresses("203.0.113.1", 32, 124, udp=True)]})
    assert found.lines() == ["b'pong one' 0", REFUSED]
    assert ("203.0.113.1", "refused not-listed", 123) in found.of("close")


def test_a_flow_to_a_name_whose_address_is_allowed_no_more(ask: Ask) -> None:
    """The name is listed still, and the entry has gone by which it may have its address."""
    client = FLOW.replace("DEST", "lan.example")
    by_name = name("lan.example", 123, udp=True)
    found = ask([by_name, addresses("10.1.2.3", 32, 123, udp=True)], client, lists={"new": [by_name]})
    assert found.lines() == ["b'pong one' 0", str(errno.EHOSTUNREACH)]
    assert ("lan.example", "refused address", 123) in found.of("close")


def test_two_sandboxes(ask: Ask) -> None:
    """A new list is for each of them."""
    client = """
print(ask("203.0.113.1", 80), say("rules", "new"), ask("203.0.113.1", 80))
"""
    other = """
while ask("203.0.113.1", 80, timeout=2) != 113:
    time.sleep(0.05)
print("ended")
"""
    found = ask([addresses("203.0.113.1", 32, 80)], client, others=[other], lists={"new": [name("x.example")]})
    assert found.lines() == [f"b'203.0.113.1 hi' 0 {UNLISTED}"] and found.others == ["ended\n"]


@pytest.mark.parametrize("bad", [[(9, 0, 443, 443, 0, 32, "a.example")], [(1, 0, 0, 443, 0, 32, "a.example")]])
def test_a_list_that_is_none(ask: Ask, bad: list[tuple[object, ...]]) -> None:
    """It changes nothing, and the caller gets an error."""
    client = BEGIN + 's = opened("a.example", 80)\nprint(say("rules", "bad"))\nprint(alive(s), ask("a.example", 80))'
    found = ask([name("a.example", 80)], client, lists={"bad": bad})
    assert found.lines() == [f"-{errno.EINVAL} list", "b'more' b'203.0.113.1 hi'"]


def test_a_port_of_the_command_s_own(ask: Ask) -> None:
    """A new "localhost" port at which the command listens itself stays the command's."""
    client = """
own = socket.create_server(("127.0.0.1", 8000))
threading.Thread(target=lambda: own.accept()[0].sendall(b"mine"), daemon=True).start()
print(say("rules", "new"))
with socket.create_connection(("127.0.0.1", 8000)) as s:
    print(s.recv(9))
print(ask("127.0.0.1", 8001))
"""
    found = ask([name("x.example")], client, lists={"new": [localhost(8000), localhost(8001)]}, on_host=[8000, 8001])
    assert found.lines() == ["0", "b'mine'", "b'127.0.0.1 hi'"]
    assert ("127.0.0.1", "refused port-taken", 8000) in found.of("connect")


def test_from_and_to_asking(ask: Ask) -> None:
    """A new list may have the caller asked, and the next one not any more; what it allowed meanwhile ends."""
    client = (
        BEGIN
        + """
print(ask("b.example", 80), ask("203.0.113.1", 5432), say("rules", "asks"))
kept = opened("b.example", 80)
print(ask("b.example", 80), ask("203.0.113.1", 5432), alive(kept), say("rules", "silent"))
print(alive(kept), ask("b.example", 80), ask("203.0.113.1", 5432), ask("a.example", 80))
"""
    )
    rules = [name("a.example", 80)]
    lists = {"asks": {"rules": rules, "flags": 2}, "silent": rules}
    verdicts = {"b.example:80": 1, "203.0.113.1:5432": 1}
    found = ask(rules, client, lists=lists, verdicts=verdicts)
    hi = "b'203.0.113.1 hi'"
    assert found.lines() == [
        f"-2 {UNLISTED} 0",
        f"{hi} {hi} b'more' 0",
        f"{errno.ECONNRESET} -2 {UNLISTED} {hi}",
    ]


def test_while_the_caller_is_asked(ask: Ask) -> None:
    """A connection that waits for an answer goes on if the new list has it, and is refused if that denies it."""
    client = """
found = {}
threads = [threading.Thread(target=lambda h=h: found.setdefault(h, ask(h, 80, timeout=20))) for h in ("a.example", "b.example", "two.example")]
for thread in threads: thread.start()
say("asked", 3)
print(say("rules", "new"))
threads[0].join()
threads[1].join()
print(found)
print(say("rules", "silent"))
threads[2].join()
print(found["two.example"])
"""
    new = [name("a.example", 80), name("b.example", 80, deny=True)]
    lists = {"new": new, "silent": {"rules": new, "flags": 0}}
    found = ask([name("x.example", 80)], client, flags=2, lists=lists)
    assert found.lines()[0] == "0" and found.lines()[2:] == ["0", REFUSED]
    assert eval(found.lines()[1]) == {"a.example": b"203.0.113.1 hi", "b.example": errno.ECONNREFUSED}
