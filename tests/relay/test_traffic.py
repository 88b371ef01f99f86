"""What passes through the relay arrives, in what amount and however it ends; it costs others nothing, and is counted."""

from __future__ import annotations

import errno

from nsbox_relay import Ask, addresses


def test_who_reads_nothing_costs_no_time(ask: Ask) -> None:
    """The client has shut its end and reads nothing; the server has sent all and gone. The relay sleeps."""
    client = """
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
s.connect(("203.0.113.1", 9003))
s.sendall(b"x")
s.shutdown(socket.SHUT_WR)
time.sleep(1.5)
"""
    found = ask([addresses("203.0.113.1", 32, 9003)], client)
    assert found.ticks < 50, "hundredths of a second of processor time"


def test_the_end_of_each_connection_is_told(ask: Ask) -> None:
    """Also of one whose port the client uses again after a reset, and of those that end with the sandbox."""
    client = """
for _ in range(20):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("198.19.0.1", 33333))
    s.connect(("203.0.113.1", 5432))
    s.sendall(b"x")
    s.recv(9)
    s.close()
kept = [socket.create_connection(("203.0.113.1", 5432), 5) for _ in range(5)]
print("up")
sys.stdout.flush()
os.kill(os.getpid(), 9)
"""
    found = ask([addresses("203.0.113.1", 32, 5432)], client)
    assert found.lines() == ["up"]
    opened = [row for row in found.of("connect") if row[1] == "allowed"]
    assert len(opened) == len(found.of("close")) == 25


def test_resets(ask: Ask) -> None:
    """What was sent before a reset arrives before it, both ways; the event says whose reset it was."""
    client = """
def upload():
    with socket.create_connection(("203.0.113.1", 9004), 5) as s:
        try:
            while True:
                s.sendall(bytes(1 << 20))
        except OSError as error:
            sent = error.errno in (errno.ECONNRESET, errno.EPIPE)
        return sent, s.recv(99)

found = [upload() for _ in range(20)]
print(found.count((True, b"early")))
with socket.create_connection(("203.0.113.1", 9003), 5) as s:
    s.sendall(b"x")
    s.recv(10)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
"""
    found = ask([addresses("203.0.113.1", 32, 9003, 9004)], client)
    assert found.lines() == ["20"]
    told = {
        (e["port"], e["reason"], e["errno"] in (errno.ECONNRESET, errno.EPIPE))
        for e in found.events
        if e["kind"] == "close"
    }
    assert told == {(9004, "upstream", True), (9003, "", False)}


def test_all_that_comes_arrives(ask: Ask) -> None:
    """Megabytes both ways at once, whole and in order; half a connection shut, and a reader that is slow."""
    client = """
data = os.urandom(1 << 16) * 300
got = bytearray()
with socket.create_connection(("203.0.113.1", 5432), 20) as s:
    def read():
        time.sleep(0.3)
        while part := s.recv(100000):
            got.extend(part)
    reader = threading.Thread(target=read)
    reader.start()
    s.sendall(data)
    s.shutdown(socket.SHUT_WR)
    reader.join()
print(len(got) == len(data), bytes(got) == data)
"""
    found = ask([addresses("203.0.113.1", 32, 5432)], client)
    assert found.lines() == ["True True"]


def test_much_at_once_is_nobody_else_s(ask: Ask) -> None:
    """Of many megabytes on several connections none is another's, also while some are reset with bytes on their way."""
    client = """
import struct
size, right, lock = 12_000_000, [], threading.Lock()
def work(number):
    mine = bytes([number]) * size
    with socket.create_connection(("203.0.113.1", 5432), 20) as s:
        sender = threading.Thread(target=send, args=(s, mine))
        sender.start()
        got, is_mine = 0, True
        while got < (size if number % 2 else size // 3) and (part := s.recv(1 << 18)):
            got += len(part)
            is_mine = is_mine and part == mine[:len(part)]
            if number % 3 == 0:
                time.sleep(0.001)  # so that the relay has to keep some
        if number % 2 == 0:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sender.join()
    with lock:
        right.append(is_mine and (got == size or not number % 2))
def send(s, data):
    try:
        s.sendall(data)
    except OSError:
        pass
for _ in range(2):
    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(right == [True] * 12, ask("203.0.113.1", 5432))
"""
    found = ask([addresses("203.0.113.1", 32, 5432)], client)
    assert found.lines() == ["True b'203.0.113.1 hi'"]
    received = [event["received"] for event in found.events if event["kind"] == "close"]
    assert received.count(12_000_000) == 6


def test_many_connections(ask: Ask) -> None:
    """Hundreds at once, and no more than the limit; all gone at the end."""
    client = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
opened, failed = [], 0
for _ in range(310):
    try:
        opened.append(socket.create_connection(("203.0.113.1", 5432), 5))
    except ConnectionRefusedError:
        failed += 1
    except OSError as error:
        failed += error.errno == 113
for s in opened:
    s.sendall(b"x")
print(len(opened), failed, {s.recv(99) for s in opened})
"""
    found = ask([addresses("203.0.113.1", 32, 5432)], client, connections=300)
    assert found.lines() == ["300 10 {b'203.0.113.1 x'}"]
    assert [row[1] for row in found.of("connect")].count("refused limit") == 10
    assert found.descriptors in (-1, 7)


def test_a_limit_of_bytes(ask: Ask) -> None:
    """Beyond it the connection is reset."""
    client = 'print(ask("203.0.113.1", 5432, b"x" * 3_000_000), ask("203.0.113.1", 5432))'
    found = ask([addresses("203.0.113.1", 32, 5432)], client, bytes=2_000_000)
    assert str(errno.ECONNRESET) in found.lines()[0]
    assert "refused limit" in [row[1] for row in found.of("close")]


def test_a_limit_of_many_bytes(ask: Ask) -> None:
    """Beyond it the connection is reset, also while many megabytes are on their way; another one is then too."""
    client = """
def send(s, errors):
    try:
        s.sendall(bytes(60_000_000))
    except OSError as error:
        errors.append(error.errno)
def is_reset():
    errors = []  # of whichever call the kernel tells it
    with socket.create_connection(("203.0.113.1", 5432), 20) as s:
        sender = threading.Thread(target=send, args=(s, errors))
        sender.start()
        try:
            while s.recv(1 << 18):
                pass
        except OSError as error:
            errors.append(error.errno)
        sender.join()
    return errno.ECONNRESET in errors
print(is_reset(), is_reset())
"""
    found = ask([addresses("203.0.113.1", 32, 5432)], client, bytes=40_000_000)
    assert found.lines() == ["True True"]
    assert [row[1] for row in found.of("close")] == ["refused limit"] * 2
