"""Ports of servers in a sandbox, published: a client outside connects to a socket of the host's, and is served inside."""

from __future__ import annotations

import errno

import pytest
from nsbox_relay import Ask, localhost, name

NONE = [name("x.example")]
RESET = str(errno.ECONNRESET)
# A server inside that says its number before what comes.
SERVE = """
def serve(port, host="127.0.0.1", greeting="one "):
    server = socket.create_server((host, port), backlog=512)
    def answer(client):
        got = b""
        while part := client.recv(65536):
            got += part
        client.sendall(greeting.encode() + got)
        client.close()
    def accept():
        while True:
            threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()
    threading.Thread(target=accept, daemon=True).start()
    return server

def until(what, *words):
    # A message that has no answer: what it leads to comes soon.
    while (said := say(*words)) != what:
        time.sleep(0.02)
    return said
"""


@pytest.mark.parametrize("kind", ["tcp", "unix"])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", ""])
def test_a_server_inside(ask: Ask, kind: str, host: str) -> None:
    """It is reached by a TCP or a unix socket outside, and half of a connection may be shut."""
    client = (
        SERVE
        + f"""
server = serve(8000, {host!r})
print(say("publish", 5, 8000, "{kind}"), say("dial", 5, "hello"), say("dial", 5, "again"))
"""
    )
    found = ask(NONE, client)
    assert found.lines() == ["ok one hello one again"]
    assert [row[1:] for row in found.of("publish")] == [("allowed", 8000)] * 2
    ends = [event for event in found.events if event["kind"] == "close"]
    assert [(event["id"], event["sent"], event["received"]) for event in ends] == [(5, 9, 5)] * 2
    assert [event["address"] for event in ends] == ["127.0.0.1" if kind == "tcp" else ""] * 2


def test_nobody_listens(ask: Ask) -> None:
    """The client outside is reset; and served as soon as a server listens. The control is in it: another port isn't."""
    client = (
        SERVE
        + """
other = serve(8001)
say("publish", 5, 8000)
first = say("dial", 5)
server = serve(8000)
print(first, say("dial", 5))
"""
    )
    found = ask(NONE, client)
    assert found.lines() == [f"{RESET} one hi"]
    assert [row[1:] for row in found.of("publish")] == [("failed", 8000), ("allowed", 8000)]


def test_no_more(ask: Ask) -> None:
    """What isn't published any more is closed; what is open stays. A socket that nobody can connect to is refused."""
    client = (
        SERVE
        + """
server = serve(8000)
say("publish", 5, 8000)
say("publish", 6, 8000, "none")
print(say("dial", 5))
got = []
say("unpublish", 5)
print(until(str(errno.ECONNREFUSED), "dial", 5))
"""
    )
    found = ask(NONE, client)
    assert found.lines() == ["one hi", str(errno.ECONNREFUSED)]
    refused = [event for event in found.events if event["id"] == 6]
    assert [(event["kind"], event["verdict"], event["errno"]) for event in refused] == [
        ("publish", "failed", errno.EINVAL)
    ]


def test_the_newest_sandbox_that_listens(ask: Ask) -> None:
    """Without a sandbox: the newest that has such a server; the one before it once that has none; and each by its number."""
    client = (
        SERVE
        + """
old = serve(8000)
say("publish", 5, 8000, "tcp", 0)
say("publish", 7, 8000, "tcp", 7)
say("publish", 8, 8000, "tcp", 8)
print(until("two hi", "dial", 5), say("dial", 7), say("dial", 8), say("dial", 8, "end"))
print(until("one hi", "dial", 5), until(str(errno.ECONNREFUSED), "dial", 8), say("dial", 7))
"""
    )
    other = """
server = socket.create_server(("127.0.0.1", 8000))
got = b""
while got != b"end":
    client, _ = server.accept()
    got = client.recv(99)
    client.sendall(b"two " + got)
    client.close()
"""
    found = ask(NONE, client, others=[other])
    assert found.lines() == ["two hi one hi two hi two end", f"one hi {errno.ECONNREFUSED} one hi"]


def test_the_end_of_the_sandbox(ask: Ask) -> None:
    """Its connections end, at once; what it has sent before arrives."""
    client = """
server = socket.create_server(("127.0.0.1", 8000))
say("publish", 5, 8000)
say("hold", 5)
inside, _ = server.accept()
inside.sendall(b"x" * 300000)
sys.stdout.flush()
os.kill(os.getpid(), 9)
"""
    found = ask(NONE, client)
    assert found.ends == ["300000"]
    assert [row[1] for row in found.of("close")] == ["allowed"] and found.relay == 0


def test_the_limit(ask: Ask) -> None:
    """Published connections count to those of the sandbox."""
    client = (
        SERVE
        + """
server = serve(8000)
say("publish", 5, 8000)
say("hold", 5, 10)
while True:
    last = say("dial", 5)
    if last == str(errno.ECONNRESET):
        break
print(last)
os.kill(os.getpid(), 9)
"""
    )
    found = ask(NONE, client, connections=10)
    assert "refused limit" in [row[1] for row in found.of("publish")]
    assert [row[1] for row in found.of("publish")][:10] == ["allowed"] * 10


def test_a_port_that_is_the_host_s(ask: Ask) -> None:
    """A published port that is a listed one of localhost leads to nobody: not through the sandbox to the host."""
    client = """
say("publish", 5, 8000)
print(ask("127.0.0.1", 8000), say("dial", 5))
"""
    found = ask([localhost(8000)], client, on_host=[8000])
    assert found.lines() == [f"b'127.0.0.1 hi' {RESET}"]


def test_all_that_comes_arrives(ask: Ask) -> None:
    """Megabytes, whole; many clients, more than there are spare sockets."""
    client = """
server = socket.create_server(("127.0.0.1", 8000), backlog=512)
def answer(client):
    client.recv(9)
    client.sendall(b"x" * 5_000_000)
    client.close()
def accept():
    while True:
        threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()
threading.Thread(target=accept, daemon=True).start()
say("publish", 5, 8000)
print({say("dial", 5) for _ in range(30)})
"""
    found = ask(NONE, client)
    assert found.lines() == ["{'5000000'}"]
