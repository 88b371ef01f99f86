"""What sandboxes have in common: the ports of their own loopback, the relay's time, the end of a command."""

from __future__ import annotations

from nsbox_relay import Ask, addresses, name


def test_listed_udp_ports_are_the_command_s_too(ask: Ask) -> None:
    """A command may bind a port that is listed for another host: on its loopback, and on all addresses."""
    client = """
def exchange(host):
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    own.bind((host, 5353))
    own.settimeout(3)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.sendto(b"mine", ("127.0.0.1", 5353))
    got = own.recv(99)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(3)
        s.connect(("a.example", 5353))
        s.send(b"x" * 50000)
        answer = s.recv(65535)
    own.close()
    return got, len(answer)

print(exchange("127.0.0.1"), exchange("0.0.0.0"))
"""
    found = ask([name("a.example", 5353, udp=True)], client)
    assert found.lines() == ["(b'mine', 50005) (b'mine', 50005)"]


def test_many_answers_to_one_question(ask: Ask) -> None:
    """Datagrams go both ways over one flow, in order; an empty one too."""
    client = """
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(3)
s.connect(("203.0.113.1", 5353))
for i in range(20):
    s.send(b"%d" % i)
s.send(b"")
print(b" ".join(s.recv(99) for i in range(21)))
"""
    found = ask([addresses("203.0.113.1", 32, 5353, udp=True)], client)
    assert found.lines() == ["b'" + " ".join(f"pong {i}" for i in range(20)) + " pong '"]
    assert [event["sent"] for event in found.events if event["kind"] == "close"] == [30]


def test_a_flood_beside(ask: Ask) -> None:
    """One sandbox sends SYNs without end; another is served all the while."""
    flood = """
say("wait", "ready")
stop = []
def flood():
    while not stop:
        for port in range(10000, 10050):
            s = socket.socket()
            s.setblocking(False)
            s.connect_ex(("203.0.113.1", port))
            s.close()
threads = [threading.Thread(target=flood) for _ in range(3)]
for thread in threads: thread.start()
say("note", "flood")
say("wait", "done")
stop.append(1)
for thread in threads: thread.join()
print("over")
"""
    client = """
say("note", "ready")
say("wait", "flood")
print({ask("203.0.113.1", 80, timeout=20) for _ in range(100)})
say("note", "done")
"""
    found = ask([addresses("203.0.113.1", 32, 80)], client, others=[flood])
    assert found.lines() == ["{b'203.0.113.1 hi'}"] and found.others == ["over\n"]


def test_what_is_sent_last(ask: Ask) -> None:
    """A command sends something and is gone: it arrives."""
    client = """
s = socket.create_connection(("203.0.113.1", 5432), 5)
s.sendall(b"x" * 100000)
os.kill(os.getpid(), 9)
"""
    found = ask([addresses("203.0.113.1", 32, 5432)], client)
    assert [(event["sent"], event["verdict"]) for event in found.events if event["kind"] == "close"] == [
        (100000, "allowed")
    ]
