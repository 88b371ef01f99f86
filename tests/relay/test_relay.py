"""The network list, enforced: what a program in a sandbox sees of names, addresses and ports, and what is reported of it.

Each test has a host and an internet of its own. The control is in each: what isn't listed is there, and is reached by
what is listed.
"""

from __future__ import annotations

import errno

import pytest
from nsbox_relay import Ask, addresses, localhost, name

HTTPS = [name("a.example"), name("b.example")]


def test_names(ask: Ask) -> None:
    """A listed name is connected to, at its ports; another name of the same server isn't known."""
    client = """
for host, port in (("a.example", 80), ("A.Example", 80), ("b.example", 80), ("c.a.example", 80), ("a.example", 5432)):
    print(ask(host, port))
"""
    found = ask([name("a.example", 80)], client)
    unknown = "-2"
    assert found.lines() == ["b'203.0.113.1 hi'"] * 2 + [unknown, unknown, str(errno.ECONNREFUSED)]
    assert ("b.example", "refused not-listed", 0) in found.of("dns")
    assert ("a.example", "refused not-listed", 5432) in found.of("connect")
    assert ("a.example", "allowed", 80) in found.of("close")
    assert found.relay == 0


def test_wildcards_and_denials(ask: Ask) -> None:
    """Names below one, without itself; what an entry denies wins."""
    rules = [name("*.example", 80), name("b.example", 1, 65535, deny=True), name("*.a.example", 80, deny=True)]
    client = 'print(*(ask(host, 80) for host in ("a.example", "b.example", "c.a.example", "example")), sep="\\n")'
    found = ask(rules, client)
    assert found.lines() == ["b'203.0.113.1 hi'", "-2", str(errno.ECONNREFUSED), "-2"]
    assert ("b.example", "refused denied", 0) in found.of("dns")
    assert ("c.a.example", "refused denied", 80) in found.of("connect")


def test_addresses(ask: Ask) -> None:
    """A network of addresses at a port, but not beyond its edge; all else is unreachable at once, and reported."""
    client = """
for host in ("203.0.113.1", "203.0.113.3", "203.0.112.255", "203.0.114.0", "8.8.8.8", "10.1.2.3", "169.254.169.254"):
    print(host, ask(host, 5432, timeout=2))
print(ask("203.0.113.1", 80))
"""
    found = ask([addresses("203.0.113.0", 24, 5432)], client)
    others = ("203.0.112.255", "203.0.114.0", "8.8.8.8", "10.1.2.3", "169.254.169.254")
    assert found.lines() == [
        "203.0.113.1 b'203.0.113.1 hi'",
        f"203.0.113.3 {errno.ECONNREFUSED}",
        *(f"{host} {errno.EHOSTUNREACH}" for host in others),
        str(errno.EHOSTUNREACH),
    ]
    assert [(host, "refused not-listed", 5432) for host in others] == found.of("connect")[2:-1]
    assert {event["errno"] for event in found.events if event["verdict"] == "refused"} == {errno.EHOSTUNREACH}


def test_what_a_server_does_is_what_a_client_sees(ask: Ask) -> None:
    """Refused, unreachable, reset, silent: connect(2) fails as it would outside, or takes as long."""
    hosts = ("down", "nowhere", "silent", "two")
    client = """
print(ask("down.example", 80), ask("nowhere.example", 80), ask("silent.example", 80, timeout=1), ask("a.example", 9001))
print(ask("two.example", 80))
"""
    found = ask([*(name(f"{host}.example", 80) for host in hosts), name("a.example", 9001)], client)
    assert found.lines() == [
        f"{errno.ECONNREFUSED} {errno.EHOSTUNREACH} TimeoutError {errno.ECONNRESET}",
        "b'203.0.113.1 hi'",
    ]
    failed = {event["name"]: event["errno"] for event in found.events if event["verdict"] == "failed"}
    assert failed == {
        "down.example": errno.ECONNREFUSED,
        "nowhere.example": errno.EHOSTUNREACH,
        "silent.example": errno.ECONNABORTED,  # by the client
    }


@pytest.mark.parametrize(
    ("host", "reason"),
    [("metadata", "address"), ("lan", "address"), ("rebound", "own-address"), ("own", "own-address")],
)
def test_addresses_that_no_name_may_have(ask: Ask, host: str, reason: str) -> None:
    """A name that leads to a private, a special or an own address isn't known, unless the address is listed too."""
    client = f'print(ask("{host}.example", 443))'
    found = ask([name(f"{host}.example")], client, on_host=[443])
    assert found.lines() == ["-2"] and found.of("dns")[0] == (f"{host}.example", f"refused {reason}", 0)
    addresses_of = {"metadata": "169.254.169.254", "lan": "10.1.2.3", "rebound": "127.0.0.1", "own": "192.0.2.1"}
    assert next(e["address"] for e in found.events if e["kind"] == "dns") == addresses_of[host]
    rules = [name(f"{host}.example"), addresses(addresses_of[host], 32, 443)]
    found = ask(rules, client, tls=2, on_host=[443])
    assert found.lines() == ["-2" if host == "rebound" else f"b'{addresses_of[host]} hi'"]


def test_what_a_prefix_has_of_this_host(ask: Ask) -> None:
    """A prefix leads to others of its network: to no address of the host's own, by number or by name, nor to loopback."""
    hosts = ("rebound", "own", "lan", "metadata")
    client = """
print(*(ask(f"{host}.example", 443) for host in %r))
print(ask("192.0.2.1", 443), ask("10.1.2.3", 443), ask("127.0.0.1", 443), ask("0.0.0.0", 443))
"""
    rules = [addresses("0.0.0.0", 0, 443), *(name(f"{host}.example") for host in hosts)]
    found = ask(rules, client % (hosts,), tls=2, on_host=[443])
    refused = errno.ECONNREFUSED
    assert found.lines() == [
        "-2 -2 b'10.1.2.3 hi' b'169.254.169.254 hi'",
        f"{errno.EHOSTUNREACH} b'10.1.2.3 hi' {refused} {refused}",
    ]
    assert ("192.0.2.1", "refused own-address", 443) in found.of("connect")
    rules = [addresses("192.0.2.0", 24, 443), addresses("192.0.2.1", 32, 8443)]
    found = ask(rules, "print(ask('192.0.2.1', 443), ask('192.0.2.1', 8443))", on_host=[443, 8443])
    assert found.lines() == [f"{errno.EHOSTUNREACH} b'192.0.2.1 hi'"]


def test_private_addresses_by_name(ask: Ask) -> None:
    """With private=True names may have those of private networks, and no others."""
    client = 'print(ask("lan.example", 443), ask("metadata.example", 443), ask("rebound.example", 443))'
    found = ask([name(f"{host}.example") for host in ("lan", "metadata", "rebound")], client, flags=1, tls=2)
    assert found.lines() == ["b'10.1.2.3 hi' -2 -2"]


def test_a_server_with_ipv6_alone(ask: Ask) -> None:
    """There is IPv4 inside, whatever the server has."""
    found = ask([name("six.example")], 'print(ask("six.example", 443))', tls=2)
    assert found.lines() == ["b'2001:db8::1 hi'"]


def test_ssh_and_what_a_server_says_first(ask: Ask) -> None:
    """At other ports than 443 a client may wait for its server."""
    found = ask([name("ssh.example", 22)], 'print(ask("ssh.example", 22))')
    assert found.lines() == ["b'SSH-2.0-server\\r\\n203.0.113.2 hi'"]


def test_more_servers_than_listeners(ask: Ask) -> None:
    """A hundred at once: each is reached, or refused; none is accepted and reset."""
    client = """
found = []
def one(port):
    found.append(ask("203.0.113.1", port))
threads = [threading.Thread(target=one, args=(port,)) for port in range(10000, 10100)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sorted(map(str, set(found))))
"""
    found = ask([addresses("203.0.113.1", 32, 10000, 10099)], client)
    assert set(eval(found.lines()[0])) <= {"b'203.0.113.1 hi'", str(errno.ECONNREFUSED)}
    assert "b'203.0.113.1 hi'" in found.lines()[0]


def test_one_s_own_port(ask: Ask) -> None:
    """A port of the host's that nobody listens at is refused, though TCP could connect it to itself."""
    found = ask(
        [localhost(port) for port in range(40000, 40030)], 'print({ask("127.0.0.1", p) for p in range(40000, 40030)})'
    )
    assert found.lines() == [f"{{{errno.ECONNREFUSED}}}"]


def test_addresses_that_are_no_name_s(ask: Ask) -> None:
    """With "*" too the invented addresses lead nowhere but to their names."""
    client = 'socket.gethostbyname("a.example")\nprint(ask("198.18.1.0", 80), ask("198.18.7.7", 80), ask("198.19.0.9", 80, timeout=1))'
    found = ask([name("*", 1, 65535)], client)
    assert found.lines()[0].startswith(f"b'203.0.113.1 hi' {errno.EHOSTUNREACH} ")


def test_localhost(ask: Ask) -> None:
    """A listed port of 127.0.0.1 is the host's; others are the sandbox's own, also for a server of the command's."""
    client = """
own = socket.create_server(("127.0.0.1", 9000))
threading.Thread(target=lambda: own.accept()[0].sendall(b"mine"), daemon=True).start()
print(ask("127.0.0.1", 8000), ask("localhost", 8000), ask("127.0.0.1", 8001), ask("127.0.0.2", 8000))
with socket.create_connection(("127.0.0.1", 9000)) as s:
    print(s.recv(9))
"""
    found = ask([localhost(8000), localhost(8010)], client, on_host=[8000, 8001])
    refused = errno.ECONNREFUSED
    assert found.lines() == [f"b'127.0.0.1 hi' b'127.0.0.1 hi' {refused} {refused}", "b'mine'"]


def test_datagrams(ask: Ask) -> None:
    """A listed UDP port is reached by name and by address; another is refused at once."""
    client = """
def send(host, port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(3)
        try:
            s.connect((host, port))
            s.send(b"ping")
            return s.recv(99)
        except OSError as error:
            return error.errno or type(error).__name__

print(send("a.example", 123), send("203.0.113.1", 123), send("a.example", 124), send("203.0.113.9", 123))
print(send("down.example", 123), send("nowhere.example", 123), send("198.51.100.7", 123))
"""
    rules = [name(f"{host}.example", 123, udp=True) for host in ("a", "down", "nowhere")]
    rules += [addresses(f"{net}.0", 24, 123, udp=True) for net in ("203.0.113", "198.51.100")]
    found = ask(rules, client)
    assert found.lines()[0].startswith(f"b'pong ping' b'pong ping' {errno.ECONNREFUSED} ")
    assert found.lines()[1] == f"{errno.ECONNREFUSED} {errno.EHOSTUNREACH} {errno.EHOSTUNREACH}"
    assert ("a.example", "allowed", 123) in found.of("datagram")
    told = {(e["name"], e["reason"], e["errno"]) for e in found.events if e["kind"] in ("datagram", "close")}
    assert told >= {
        ("a.example", "not-listed", errno.ECONNREFUSED),
        ("down.example", "upstream", errno.ECONNREFUSED),
        ("nowhere.example", "upstream", errno.EHOSTUNREACH),
        ("", "upstream", errno.EHOSTUNREACH),
    }


def test_questions(ask: Ask) -> None:
    """What a resolver may ask beyond addresses, by UDP and by TCP."""
    client = """
def question(host, kind, tcp=False, **head):
    labels = b"".join(bytes([len(part)]) + part.encode() for part in host.split("."))
    data = struct.pack(">6H", 7, 0x100, 1, 0, 0, 0) + labels + struct.pack(">BHH", 0, kind, 1)
    if tcp:
        with socket.create_connection(("198.19.0.53", 53), 5) as s:
            s.sendall(struct.pack(">H", len(data)) + data)
            return s.recv(999)[2:]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(5)
        s.sendto(data, ("198.19.0.53", 53))
        return s.recv(999)

for host, kind in (("a.example", 1), ("a.example", 28), ("a.example", 65), ("b.example", 1), ("localhost", 1)):
    for tcp in (False, True):
        answer = question(host, kind, tcp)
        print(host, kind, answer[3] & 15, answer[7], socket.inet_ntoa(answer[-4:]) if answer[7] else "-")
number = socket.inet_aton(socket.gethostbyname("a.example"))[::-1]
print(question(".".join(map(str, number)) + ".in-addr.arpa", 12)[-11:])
"""
    found = ask([name("a.example", 80)], client)
    rows = [row.split() for row in found.lines()[:-1]]
    assert [row[2:4] for row in rows[::2]] == [["0", "1"], ["0", "0"], ["0", "0"], ["3", "0"], ["0", "1"]]
    assert rows[::2] == rows[1::2] and rows[0][4].startswith("198.18.") and rows[8][4] == "127.0.0.1"
    assert found.lines()[-1] == "b'\\x01a\\x07example\\x00'"


def test_servers_inside(ask: Ask) -> None:
    """A port that the command listens at on all addresses is its own; nothing of a stranger's is answered in its name."""
    client = """
everywhere = socket.create_server(("0.0.0.0", 5432))
print(ask("a.example", 5432))
invented = socket.gethostbyname("b.example")
try:
    squatter = socket.create_server((invented, 5433))
    print("bound", ask("b.example", 5433, timeout=2))
except OSError as error:
    print(error.errno)
"""
    found = ask([name("a.example", 5432), name("b.example", 5432)], client)
    assert found.lines()[0] == str(errno.ECONNREFUSED)
    assert ("a.example", "refused port-taken", 5432) in found.of("connect")
    assert found.lines()[1] in (f"bound {errno.ECONNREFUSED}", str(errno.EADDRNOTAVAIL))


def test_no_way_around(ask: Ask) -> None:
    """Other resolvers, raw sockets, marks, multicast, sources: nothing gets out, and nothing hangs."""
    client = """
def attempt(call):
    try:
        return call()
    except OSError as error:
        return error.errno

def raw():
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)

def mark():
    socket.socket().setsockopt(socket.SOL_SOCKET, 36, 0x6e73)

def datagram(host):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(1)
    s.connect((host, 53))
    s.send(b"x")
    return s.recv(9)

def source():
    s = socket.socket()
    s.bind((socket.gethostbyname("a.example"), 0))
    s.settimeout(2)
    s.connect(("203.0.113.1", 5432))

print(attempt(raw), attempt(mark), attempt(lambda: datagram("8.8.8.8")), attempt(lambda: datagram("224.0.0.1")))
print(attempt(source) is None)
"""
    found = ask([name("a.example", 80)], client)
    perm = errno.EPERM
    assert found.lines() == [f"{perm} {perm} {errno.ECONNREFUSED} {errno.EHOSTUNREACH}", "False"]


def test_the_relay_confines_itself(ask: Ask) -> None:
    """It may do little itself, and ends when its caller and its sandbox have."""
    found = ask([name("a.example", 80)], 'print(ask("a.example", 80))')
    assert found.relay == 0
    assert "NoNewPrivs:\t1" in found.status and "Seccomp:\t2" in found.status


def test_a_list_that_is_none(ask: Ask) -> None:
    """It says so, and doesn't begin."""
    found = ask([(9, 0, 443, 443, 0, 32, "a.example")], "")
    assert found.ready["value"] == -errno.EINVAL and found.ready["name"] == "list" and found.relay == 1
