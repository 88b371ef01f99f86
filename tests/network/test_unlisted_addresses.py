"""Attempts on addresses that no entry lists, given by number: refused at once under every list, and always recorded."""

from __future__ import annotations

from collections.abc import Callable

Client = Callable[[str], list[str]]

PRELUDE = """
send = '''
def send(host, port, family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.settimeout(5)
        try:
            s.connect((host, port))
            s.send(b"ping")
            return s.recv(99).decode()
        except OSError as error:
            return errno.errorcode.get(error.errno, type(error).__name__)
'''
def shown(events):
    return sorted({f"{e.kind} {e.name or e.address}:{e.port} {e.verdict} {e.reason} {e.errno}" for e in events})
def started(code, policy, **options):
    command = [sys.executable, "-S", "-P", "-c", ASK + send + code]
    process = nsbox.Popen(command, policy=policy, stdout=subprocess.PIPE, text=True, **options)
    print(process.communicate()[0].strip())
    return process.sandbox.network
"""
TRIED = [
    "connect 10.1.2.3:443 refused not-listed 113",
    "connect 169.254.169.254:443 refused not-listed 113",
    "udp 10.1.2.3:123 refused not-listed 111",
]


def test_every_list(client: Client) -> None:
    """With names, addresses, both, with UDP, `localhost`, denials alone or nothing: the same errors, the same records.

    An IPv4 address in IPv6's spelling is one too. The control: a list that has the two addresses of it reaches them.
    """
    code = """
want = '''
print(ask("10.1.2.3", 443), ask("::ffff:169.254.169.254", 443, family=socket.AF_INET6), send("10.1.2.3", 123))
'''
for entries in ([], ["a.example:80"], ["203.0.113.0/24:80"], ["a.example:80", "10.1.2.4"], ["a.example:123/udp"],
                ["localhost:8000"], ["10.1.2.0/24:80"]):
    print(shown(started(want, nsbox.Policy.workspace(ws, network=entries)).refusals))
denials = nsbox.Network(deny=["203.0.113.1"])
print(shown(started(want, nsbox.Policy.workspace(ws, network=denials)).refusals))
record = started(want, policy("10.1.2.3", "169.254.169.254", "10.1.2.3:123/udp"))
print(shown(record.refusals), record.refused)
"""
    found = client(PRELUDE + code)
    assert found[:-2] == ["EHOSTUNREACH EHOSTUNREACH ECONNREFUSED", str(TRIED)] * 8
    assert found[-2:] == ["10.1.2.3 hi 169.254.169.254 hi pong ping", "[] 0"]


def test_a_socket_that_sends_nothing(client: Client) -> None:
    """Programs find out their own address by connect() of a UDP socket: it works, and is no attempt.

    A server at that address is the sandbox's own. The control: one datagram is an attempt.
    """
    code = """
want = '''
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(("8.8.8.8", 80))
own = s.getsockname()[0]
server = socket.create_server((own, 0))
with socket.create_connection(server.getsockname(), 5):
    print(own, server.accept()[1][0] == own)
if MORE:
    s.send(b"x")
'''
for more in (False, True):
    print(shown(started(want.replace("MORE", str(more)), policy("a.example:80")).events))
"""
    assert client(PRELUDE + code) == [
        "198.19.0.1 True",
        "[]",
        "198.19.0.1 True",
        "['udp 8.8.8.8:80 refused not-listed 111']",
    ]


def test_hints(client: Client) -> None:
    """A tool's result names the entry, for a line too that succeeds at last; never one for metadata. So does `nsbox run`."""
    code = """
line = f"{sys.executable} -S -P -c 'import socket; socket.create_connection((\\"%s\\", 443), 9)'"
with nsbox.Sandbox(policy("a.example:80")) as box, box.session() as session:
    for one in (box, session):
        go = "; echo 'dial tcp 10.1.2.3:443: connect: no route to host' >&2"
        for text in (line % "10.1.2.3", line % "10.1.2.3" + " || true", line % "10.1.2.3" + " 2>&1" + go, line % "169.254.169.254"):
            result = one.shell(text)
            print(result.returncode, *[hint.message for hint in result.why if hint.kind == "network"])
command = [sys.executable, "-P", "-m", "nsbox", "run", "--allow-net", "a.example:80", "--net-log", "../log", "--audit", "../audit"]
done = subprocess.run([*command, "--", "sh", "-c", line % "10.1.2.3"], cwd=ws, capture_output=True, text=True)
print(done.stderr.splitlines()[-1])
(row,) = map(json.loads, open(f"{ws}/../log"))
print(row["kind"], row["address"], row["port"], row["protocol"], row["verdict"], row["reason"])
(end,) = [r for r in map(json.loads, open(f"{ws}/../audit")) if r["event"] == "end"]
print([(r["address"], r["port"]) for r in end["network"]["refusals"]], end["network"]["refused"], end["network"]["complete"])
"""
    said = "10.1.2.3:443 isn't in network= (a.example:80); add '10.1.2.3:443'"
    metadata = "169.254.169.254:443 isn't in network= (a.example:80)"
    assert client(PRELUDE + code) == [
        *([f"1 {said}", f"0 {said}", f"0 {said}", f"1 {metadata}"] * 2),
        "nsbox: 10.1.2.3:443 isn't in --allow-net (a.example:80); add --allow-net 10.1.2.3:443",
        "connect 10.1.2.3 443 tcp refused not-listed",
        "[('10.1.2.3', 443)] 1 True",
    ]


def test_what_has_no_record(client: Client) -> None:
    """What the kernel refuses inside: IPv6, multicast, and a TCP socket bound to another's address. Each fails at once."""
    code = """
want = '''
def bound():
    with socket.socket() as s:
        s.settimeout(5)
        try:
            s.bind(("10.9.9.9", 0))
            s.connect(("10.1.2.3", 443))
        except OSError as error:
            return errno.errorcode[error.errno]
print(ask("2001:db8::1", 443, family=socket.AF_INET6), send("2001:db8::1", 443, socket.AF_INET6))
print(ask("224.0.0.1", 443), send("239.1.2.3", 5353), send("224.0.0.251", 5353), bound())
'''
print(started(want, policy("a.example:80")).events)
"""
    assert client(PRELUDE + code) == [
        "ENETUNREACH ENETUNREACH",
        "EHOSTUNREACH EHOSTUNREACH EHOSTUNREACH EINVAL",
        "()",
    ]
