"""TLS through the relay: whom a client's hello names, whole or in pieces, and what passes without one."""

from __future__ import annotations

import errno

import pytest
from nsbox_relay import Ask, name

RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")


def test_names_of_tls_servers(ask: Ask) -> None:
    """Two names share an address: the client must mean the one that it has looked up."""
    client = """
own, other, none = hello("a.example"), hello("b.example"), hello(None)
for data in (own, other, none, b"GET / HTTP/1.1\\r\\n", own[:9]):
    got = ask("a.example", 443, data)
    print(got if isinstance(got, int) else got[:7].hex() if got[:1] == b"\\x15" else len(got) - len(data))
"""
    found = ask([name("a.example")], client)
    alert = "15030100020270"
    reset = str(errno.ECONNRESET)
    assert found.lines()[1:4] == [alert, alert, reset]
    assert int(found.lines()[0]) in (0, len("203.0.113.1 ")), "whole, and the server's own word"
    ended = [row[1] for row in found.of("close")]
    assert ended == ["allowed", "refused sni", "refused sni", "refused no-tls", "refused no-tls"]
    assert [event["sni"] for event in found.events if event["kind"] == "close"][:2] == ["a.example", "b.example"]


def test_a_hello_byte_by_byte(ask: Ask) -> None:
    """Whatever it is cut into, it is read whole, and nothing of it goes on before."""
    client = """
with socket.create_connection(("a.example", 443), 5) as s:
    data = hello("a.example")
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for i in range(len(data)):
        s.send(data[i : i + 1])
    s.shutdown(socket.SHUT_WR)
    got = b""
    while part := s.recv(65536):
        got += part
print(len(got) - len(data) in (0, 12))
"""
    found = ask([name("a.example")], client)
    assert found.lines() == ["True"]


@pytest.mark.parametrize(
    ("more", "gets"),
    [
        ('hello("a.example")', "passed"),
        ('b"\\x14\\3\\3\\0\\1\\1" + hello("a.example")', "passed"),
        ('hello("b.example")', "refused"),
        ('b"\\x14\\3\\3\\0\\1\\1" + hello("b.example")', "refused"),
        ('b"\\x17\\3\\3\\0\\2ab" + hello("b.example")', "refused"),
    ],
)
def test_a_second_hello(ask: Ask, more: str, gets: str) -> None:
    """A server that wants another hello gets one for the same name, or none; early data may come between."""
    answer = (b"\x16\3\3\0\x58\2\0\0\x54\3\3" + RETRY + bytes(50)).hex()
    client = f"""
first = hello("a.example")
with socket.create_connection(("a.example", 443), 5) as s:
    s.sendall(first)
    got = b""
    while len(got) < 93:
        got += s.recv(93 - len(got))
    print(got[11:15].hex())
    s.sendall({more})
    try:
        s.shutdown(socket.SHUT_WR)
        rest = b""
        while part := s.recv(65536):
            rest += part
        print("passed" if rest == b"all" else "refused")
    except OSError:
        print("refused")
"""
    found = ask([name("a.example")], client, answers=answer)
    assert found.lines() == ["cf21ad74", gets]


def test_two_hellos_at_once(ask: Ask) -> None:
    """Nobody can send a second hello before the server has asked for one; nor put two into one record."""
    client = """
one, two = hello("a.example"), hello("b.example")
for data in (one + two, one + bytes((23, 3, 3, 0, 2, 0, 0)) + two):
    print(ask("a.example", 443, data))
"""
    found = ask([name("a.example")], client)
    assert [row[1] for row in found.of("close")] == ["refused sni", "refused sni"]


def test_a_client_that_only_listens(ask: Ask) -> None:
    """At another port than 443 a client may send nothing, and shut its end at once."""
    found = ask([name("ssh.example", 22)], 'print(ask("ssh.example", 22, b""))')
    assert found.lines() == ["b'SSH-2.0-server\\r\\n'"]
    assert found.of("close") == [("ssh.example", "allowed", 22)]


def test_tls_off(ask: Ask) -> None:
    """Without the check anything goes at port 443."""
    found = ask([name("a.example")], 'print(ask("a.example", 443))', tls=2)
    assert found.lines() == ["b'203.0.113.1 hi'"]
