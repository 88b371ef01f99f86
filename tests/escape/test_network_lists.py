"""What a command behind a network list may try to reach that isn't on it: by number, by name, by TLS, by other sockets.

Each test has a host and an internet of its own (tests/network/host.py). Its control is the same attempt with the host's
network, or with power over a net namespace: there it succeeds.
"""

from __future__ import annotations

import ast
import json

import pytest
from nsbox_client import Client

# Servers on the host's own addresses, and names that lead to them: what no list but `localhost:PORT` may open.
OWN = """
import socket
def serve(address, port, family=socket.AF_INET):
    server = socket.create_server((address, port), family=family, backlog=64, dualstack_ipv6=family == socket.AF_INET6)
    def answer():
        while True:
            c, _ = server.accept()
            c.sendall(b"the host's")
            c.close()
    threading.Thread(target=answer, daemon=True).start()
serve("::", 8002, socket.AF_INET6)
with open(ws + "/../hosts", "a") as file:
    file.write('''
127.0.0.1 rebound.x.example
192.0.2.1 own.x.example
::ffff:127.0.0.1 mapped.x.example
::1 six-loop.x.example
:: any-six.x.example
0.0.0.0 any.x.example
127.1.2.3 far.x.example
203.0.113.3 mixed.x.example
127.0.0.1 mixed.x.example
2001:db8:1::1 own-six.x.example
64:ff9b::7f00:1 translated.x.example
2002:7f00:1::1 six-to-four.x.example
169.254.169.254 metadata.x.example
10.1.2.3 lan.x.example
::ffff:169.254.169.254 mapped-metadata.x.example
64:ff9b::a9fe:a9fe translated-metadata.x.example
''')
NAMES = ["rebound", "own", "mapped", "six-loop", "any-six", "any", "far", "mixed", "own-six"]
MORE = ["translated", "six-to-four"]
"""


@pytest.mark.vm
def test_numbers_beyond_the_list(client: Client) -> None:
    """Another port, the address past a prefix, the host's own, loopback, metadata, private networks; IPv6 and mapped ones."""
    code = """
want = '''
tries = [("203.0.113.1", 5432), ("203.0.113.1", 10001), ("10.1.2.3", 443), ("169.254.169.254", 443), ("192.0.2.1", 8001),
         ("127.0.0.1", 8000), ("127.0.0.1", 8001), ("0.0.0.0", 8001), ("203.0.113.1", 80)]
print(*(ask(host, port, timeout=3) for host, port in tries), sep=",")
six = [("2001:db8::1", 443), ("::ffff:203.0.113.1", 5432), ("::ffff:127.0.0.1", 8001), ("2001:db8:1::1", 8001)]
print(*(ask(host, port, family=socket.AF_INET6, timeout=3) for host, port in six), sep=",")
'''
print(run(want, nsbox.Policy.workspace(ws, network="host")), end="")
for seccomp in ("default", "off"):
    print(run(want, policy("203.0.113.0/31:80", "a.example:80", "localhost:9000", seccomp=seccomp)), end="")
"""
    found = client(code)
    free = found[0].split(",")
    assert [" " in answer for answer in free] == [True] * 9 and [" " in a for a in found[1].split(",")][:3] == [
        True
    ] * 3
    for numbers, six in (found[2:4], found[4:6]):
        assert [" " in answer for answer in numbers.split(",")] == [False] * 8 + [True], numbers
        assert " " not in six, six


@pytest.mark.vm
def test_names_of_the_host_itself(client: Client) -> None:
    """A listed name that leads to loopback or to the host's own address, however it is written: not by any list but
    `localhost`, nor by one that has all addresses."""
    code = (
        OWN
        + """
want = '''
print(json.dumps({name: ask(name + ".x.example", 8002, family=0, timeout=3) for name in %r}))
print(ask("192.0.2.1", 8002), ask("127.0.0.1", 8002))
'''
print(run(want % NAMES, nsbox.Policy.workspace(ws, network="host")), end="")
wide = [f"{name}.x.example:8002" for name in NAMES + MORE]
for allow in (["*.x.example:8002"], ["0.0.0.0/0:8002", *wide], ["0.0.0.0/1:8002", "128.0.0.0/1:*", *wide]):
    listed = nsbox.Network(allow=allow, private=True, tls="off")
    print(run(want % (NAMES + MORE), nsbox.Policy.workspace(ws, network=listed)), end="")
asked = []
p = nsbox.Policy.workspace(ws)
command = [sys.executable, "-S", "-P", "-c", ASK + want % (NAMES + MORE)]
print(nsbox.check_output(command, text=True, policy=p, on_connect=lambda request: asked.append(request) or True), end="")
print(run(want % ["a"], policy("localhost:8002")), end="")
"""
    )
    found = client(code)
    host = "the host's"
    assert set(json.loads(found[0]).values()) == {host} and found[1] == f"{host} {host}"
    for names, numbers in (found[2:4], found[4:6], found[6:8], found[8:10]):
        assert host not in names + numbers, (names, numbers)
    assert found[-1].endswith(host)


def test_names_of_special_addresses(client: Client) -> None:
    """Metadata, private networks: neither by name, nor by a name beside one that is listed, nor with on_connect."""
    code = (
        OWN
        + """
hosts = ["metadata", "lan", "mapped-metadata", "translated-metadata"]
want = f'''
print(*(ask(name + ".x.example", 443, family=0, timeout=3) for name in {hosts}), ask("169.254.169.254", 443), sep=",")
'''
print(run(want, nsbox.Policy.workspace(ws, network="host")), end="")
for network in (["*.x.example:443"], "public"):
    print(run(want, nsbox.Policy.workspace(ws, network=nsbox.Network(
        allow=network if network != "public" else ["*:*"], tls="off"))), end="")
asked = []
command = [sys.executable, "-S", "-P", "-c", ASK + want]
p = policy("a.example:80", "!lan.x.example")
print(nsbox.check_output(command, text=True, policy=p, on_connect=lambda request: asked.append(request) or True), end="")
print([request.name or request.address for request in asked])
"""
    )
    found = client(code)
    free = found[0].split(",")
    assert free[0] == free[4] == "169.254.169.254 hi" and free[1] == "10.1.2.3 hi"
    for answers in found[1:4]:
        assert " hi" not in answers, answers
    asked = ast.literal_eval(found[4])
    assert "lan.x.example" not in asked and "169.254.169.254" not in asked and "metadata.x.example" in asked


def test_questions_that_would_tell_something(client: Client) -> None:
    """No name that isn't listed leaves the host as a question, whatever its type; nor is another name server reached."""
    code = r"""
want = r'''
def query(name, kind, to="198.19.0.53", tcp=False):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    question = bytes([1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]) + labels + bytes([0, 0, kind, 0, 1])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM) as s:
            s.settimeout(3)
            s.connect((to, 53))
            s.sendall((len(question).to_bytes(2, "big") if tcp else b"") + question)
            return s.recv(2000)[5 if tcp else 3] & 15
    except OSError as error:
        return errno.errorcode.get(error.errno, "timeout")
codes = [query(f"secret{kind}.tunnel.example", kind, tcp=tcp) for kind in (1, 28, 16, 15, 33, 65, 255) for tcp in (0, 1)]
print(set(codes), query("secret.dns.example", 1), query("secret.203.0.113.1", 1), query("dns.example", 1))
print(query("secret.other.example", 1, to="203.0.113.53"), query("x.example", 1, "8.8.8.8"), query("x", 1, "8.8.8.8", True))
print(ask("secret.looked.up.example", 443), ask("dns.example", 80))
'''
def queries():
    return sorted(name for name in set(open("/run/queries").read().split()) if "secret" in name or name == "dns.example")
print(run(want, policy("dns.example:80", "203.0.113.53:80")), queries())
free = run('print(ask("secret.looked.up.example", 443))', nsbox.Policy.workspace(ws, network="host"))
print(free.strip(), queries())
"""
    found = client(code)
    assert found[0] == "{3} 3 3 0"
    assert " 0" not in found[1] and found[1].split()[1:] == ["ECONNREFUSED", "EHOSTUNREACH"]
    assert found[2] == "-2 203.0.113.1 hi"
    assert found[3].strip() == "['dns.example']"
    assert found[4] == "-2 ['dns.example', 'secret.looked.up.example']"


# What would lead around the list, or change what it stands on: each is what it was refused with, or "done".
AROUND = """
import ctypes, fcntl, struct, subprocess
libc = ctypes.CDLL(None, use_errno=True)
def tried(call):
    try:
        call()
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
def option(level, number, value):
    s = socket.socket()
    s.setsockopt(level, number, value)
    s.close()
def netlink(kind, body, flags=0x605):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as s:
        s.settimeout(5)
        s.bind((0, 0))
        s.send(struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body)
        error = -struct.unpack_from("=i", s.recv(4096), 16)[0]
        if error:
            raise OSError(error, "")
def write(path, text):
    with open(path, "r+") as file:
        file.write(text)
def mounted_again():
    code = "mount -t proc proc /proc && echo 1 > /proc/sys/net/ipv4/ip_forward"
    if subprocess.run(["unshare", "-Urmpf", "sh", "-c", code], capture_output=True).returncode:
        raise OSError(errno.EPERM, "")
route = struct.pack("=8BI", 2, 32, 0, 0, 254, 4, 253, 1, 0) + struct.pack("=HH4s", 8, 1, bytes([203, 0, 113, 9]))
route += struct.pack("=HHI", 8, 4, 1)
rule = struct.pack("=8BI", 2, 0, 0, 0, 255, 0, 0, 1, 0) + struct.pack("=HHI", 8, 6, 1)
TRIES = {
    "raw": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 6),
    "raw six": lambda: socket.socket(socket.AF_INET6, socket.SOCK_RAW, 58),
    "packet": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0),
    "mark": lambda: option(socket.SOL_SOCKET, 36, 0x6E73),
    "transparent": lambda: option(socket.IPPROTO_IP, 19, 1),
    "netns": lambda: os.close(os.open("/proc/1/ns/net", os.O_RDONLY)),
    "route": lambda: netlink(24, route),
    "rule": lambda: netlink(32, rule),
    "rule away": lambda: netlink(33, rule, 5),
    "lo down": lambda: netlink(16, struct.pack("=BxHiII", 0, 0, 1, 0, 1), 5),
    "sysctl": lambda: write("/proc/sys/net/ipv4/ip_forward", "1"),
    "sysctl by a new proc": mounted_again,
}
print(json.dumps({name: tried(call) for name, call in TRIES.items()}))
"""
POWER = {"raw", "raw six", "mark", "transparent", "netns", "route", "rule", "lo down", "sysctl"}


@pytest.mark.vm
def test_sockets_and_settings_that_lead_around(client: Client) -> None:
    """Raw and packet sockets, marks, routes, rules, sysctls: refused, by default, with nested=True, and in a user namespace
    that the command makes inside. The control has power over a net namespace of its own."""
    code = f"AROUND = {AROUND!r}\n" + (
        """
command = [sys.executable, "-S", "-P", "-c", ASK + AROUND]
print(subprocess.run(["unshare", "-Urnm", "sh", "-c", 'ip link set lo up; exec "$@"', "sh", *command], capture_output=True, text=True).stdout, end="")
for wishes in ({}, {"seccomp": "off"}, {"nested": True}):
    print(run(AROUND, policy("a.example:80", **wishes)), end="")
inner = ["unshare", "-Ur", *command]
print(nsbox.run(inner, policy=policy("a.example:80", nested=True), stdout=subprocess.PIPE, text=True).stdout, end="")
print(run('print(ask("a.example", 80), ask("a.example", 5432))', policy("a.example:80", nested=True)), end="")
"""
    )
    found = client(code)
    power = json.loads(found[0])
    assert {name for name, said in power.items() if said == "done"} >= POWER - {"netns", "sysctl"}, power
    assert len(found) >= 5
    for said in found[1:-1]:  # the last of them only where root may make a user namespace inside
        done = {name for name, answer in json.loads(said).items() if answer == "done"}
        assert not done & (POWER | {"packet", "rule away", "sysctl by a new proc"}), said
    assert found[-1] == "203.0.113.1 hi ECONNREFUSED"


@pytest.mark.vm
def test_invented_addresses(client: Client) -> None:
    """A server of the command's on an invented address, a connection from one, one to itself, the name server's port."""
    code = r"""
want = r'''
print(ask("a.example", 80))
address = socket.gethostbyname("a.example")
def tried(call):
    try:
        return call()
    except OSError as error:
        return errno.errorcode.get(error.errno, "timeout")
def source():
    with socket.socket() as s:
        s.settimeout(2)
        s.bind((address, 0))
        s.connect(("127.0.0.1" if len(sys.argv) > 1 else "203.0.113.1", 5432))
def itself():
    with socket.socket() as s:
        s.settimeout(2)
        s.bind((address, 81))
        s.connect((address, 81))
def name_server():
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        for to in ("198.19.0.53", "0.0.0.0"):
            with socket.socket(socket.AF_INET, kind) as s:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                s.bind((to, 53))
print(tried(source), tried(itself), tried(name_server))
squat = socket.create_server((address, 82))
squat.settimeout(1)
print(ask("a.example", 82, timeout=2))
print(tried(squat.accept))
print(ask("198.18.200.1", 80), ask("198.19.0.1", 80), ask("198.18.0.1", 80))
multicast = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
print(tried(lambda: multicast.sendto(b"x", ("239.1.2.3", 5353))), tried(lambda: multicast.sendto(b"x", ("255.255.255.255", 9))))
'''
print(run(want, policy("a.example:80-82")), end="")
control = 's = socket.create_server(("127.0.0.2", 82)); print(ask("127.0.0.2", 82, timeout=0.2))'
print(run(control, policy("a.example:80-82")), end="")
"""
    found = client(code)
    assert found[0] == "203.0.113.1 hi"
    source, itself, server = found[1].split()
    assert source in ("EINVAL", "ENETUNREACH", "timeout") and itself != "None" and server == "EADDRINUSE"
    assert " " not in found[2] and found[3] == "timeout"  # nobody came: what is there is the relay's, or nothing
    assert " " not in found[4].replace(" ", "", 2)
    assert found[5].split()[0] == "EHOSTUNREACH" and found[5].split()[1] != "1"
    assert found[6] == "TimeoutError"  # the control: elsewhere such a server is connected to


TLS = r"""
def hello(name, *more):
    context = ssl.create_default_context()
    context.check_hostname = name is not None
    out = ssl.MemoryBIO()
    try:
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError:
        return out.read()
def extended(record, extra):
    # The same hello with one extension more, at the end.
    at = 5 + 4 + 34
    at += 1 + record[at]
    at += 2 + int.from_bytes(record[at:at + 2], "big")
    at += 1 + record[at]
    all_ = record[at + 2:] + extra
    body = record[9:at] + len(all_).to_bytes(2, "big") + all_
    body = b"\x01" + len(body).to_bytes(3, "big") + body
    return record[:3] + len(body).to_bytes(2, "big") + body
def names(*given):
    listed = b"".join(b"\0" + len(one).to_bytes(2, "big") + one for one in given)
    listed = len(listed).to_bytes(2, "big") + listed
    return b"\0\0" + len(listed).to_bytes(2, "big") + listed
ours, theirs, none = hello("a.example"), hello("b.example"), hello(None)
TRIES = {
    "ours": ours, "theirs": theirs, "none": none, "two": extended(ours, names(b"b.example")), "list": extended(none, names(b"a.example", b"b.example")),
    "nul": extended(none, names(b"a.example\0b.example")), "dot": extended(none, names(b"a.example.")),
    "ech": extended(ours, b"\xfe\x0d\0\x04abcd"), "plain": b"GET / HTTP/1.1\r\nHost: b.example\r\n\r\n",
    "both": ours + theirs, "joined": ours[:5] + theirs[5:], "alert": b"\x15\x03\x01\0\x02\x01\0" + theirs, "short": ours[:40],
}
def passes(data):
    try:
        with socket.create_connection(("a.example", 443), 5) as s:
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
            got = b""
            while part := s.recv(1 << 16):
                got += part
            return data[-30:] in got
    except OSError:
        return False
print(json.dumps({name: passes(data) for name, data in TRIES.items()}))
"""


def test_other_servers_at_the_same_address(client: Client) -> None:
    """TLS that names another server, none, two, or hides it doesn't come as far as the server; with tls="off" all does."""
    code = f"TLS = {TLS!r}\n" + (
        """
for tls in ("off", "sni"):
    network = nsbox.Network(allow=["a.example"], tls=tls)
    print(run(TLS, nsbox.Policy.workspace(ws, network=network)), end="")
"""
    )
    found = client(code)
    off, on = (json.loads(line) for line in found)
    assert set(off.values()) == {True}
    assert {name for name, passed in on.items() if passed} == {"ours"}


# Datagrams, and what isn't TCP: each is the error that it got, "timeout", or what has come back.
DATAGRAMS = """
def option(s, *settings):
    for setting in settings:
        s.setsockopt(*setting)
BROADCAST, ROUTE = (socket.SOL_SOCKET, socket.SO_BROADCAST, 1), (socket.IPPROTO_IP, socket.IP_OPTIONS, bytes([131, 7, 4]))
def send(to, size=4, port=9000, options=(), family=socket.AF_INET, kind=socket.SOCK_DGRAM, protocol=0):
    try:
        with socket.socket(family, kind, protocol) as s:
            s.settimeout(1)
            option(s, *options)
            s.sendto(b"ping".ljust(size, b"."), (to, port))
            return s.recv(9)[:4].decode(errors="replace")
    except OSError as error:
        return errno.errorcode.get(error.errno, "timeout")
echo = b"\\\\x08\\\\0\\\\xf7\\\\xfe\\\\0\\\\0\\\\0\\\\1"
TRIES = {
    "own": lambda: send("192.0.2.1"), "loopback": lambda: send("127.0.0.1"), "any": lambda: send("0.0.0.0"),
    "mapped": lambda: send("::ffff:192.0.2.1", family=socket.AF_INET6),
    "broadcast": lambda: send("192.0.2.255", options=[BROADCAST]), "all ones": lambda: send("255.255.255.255", options=[BROADCAST]),
    "fragments": lambda: send("192.0.2.1", 9000), "large": lambda: send("192.0.2.1", 65000),
    "other": lambda: send("10.1.2.3", port=123), "link-local": lambda: send("169.254.169.254"),
    "source route": lambda: send("192.0.2.1", options=[(*ROUTE[:2], ROUTE[2] + socket.inet_aton("203.0.113.1") + b"\\\\0")]),
    "echo": lambda: send("192.0.2.1", protocol=socket.IPPROTO_ICMP),
    "raw": lambda: send("192.0.2.1", kind=socket.SOCK_RAW, protocol=socket.IPPROTO_UDP),
    "lite": lambda: send("192.0.2.1", protocol=136), "six": lambda: send("2001:db8:1::1", family=socket.AF_INET6),
}
print(json.dumps({name: call() for name, call in TRIES.items()}))
"""


@pytest.mark.vm
def test_datagrams_beyond_the_list(client: Client) -> None:
    """To the host's own addresses, loopback, broadcast, link-local, in fragments, by ICMP: a server of the host gets none
    under lists of names, of addresses, with UDP, and empty ones. The control: with the host's network it gets them."""
    code = f"DATAGRAMS = {DATAGRAMS!r}\n" + (
        """
import socket
came = set()
def serve(address, family):
    server = socket.socket(family, socket.SOCK_DGRAM)
    server.bind((address, 9000))
    def answer():
        while True:
            data, client = server.recvfrom(65536)
            came.add(len(data))
            server.sendto(b"pong", client)
    threading.Thread(target=answer, daemon=True).start()
serve("0.0.0.0", socket.AF_INET)
serve("2001:db8:1::1", socket.AF_INET6)
for network in ("host", ["a.example:80"], ["203.0.113.0/24:80", "a.example:80"], ["a.example:123/udp"], []):
    came.clear()
    print(run(DATAGRAMS, nsbox.Policy.workspace(ws, network=network)), end="")
    print(sorted(came))
"""
    )
    found = client(code)
    free = json.loads(found[0])
    assert {name for name, said in free.items() if said == "pong"} >= {
        "own",
        "loopback",
        "mapped",
        "fragments",
        "six",
        "other",
    }
    assert {4, 9000, 65000} <= set(json.loads(found[1]))
    for said, came in zip(found[2::2], found[3::2], strict=True):
        assert came == "[]" and "pong" not in json.loads(said).values(), (said, came)
    assert len(found) == 10


@pytest.mark.vm
def test_a_flood_of_attempts_by_number(client: Client) -> None:
    """20,000 attempts, each on another address or port: the record is bounded, its first attempt stays, and another command
    of the same relay is served meanwhile. The control: a few attempts are all there, and the record says so."""
    code = """
few = 'print(ask("10.1.2.3", 443), ask("203.0.113.9", 22), flush=True)'
flood = few + '''
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range(10000):
    with socket.socket() as s:
        s.setblocking(False)
        s.connect_ex((f"10.{i % 200}.7.7", 1 + i))
    u.sendto(b"x", (f"10.{i % 200}.8.8", 1 + i))
print(ask("198.51.100.77", 7), flush=True)
'''
with nsbox.Sandbox(policy("a.example:80")) as box:
    for code in (few, flood):
        command = [sys.executable, "-S", "-P", "-c", ASK + code]
        process = box.Popen(command, stdout=subprocess.PIPE, text=True)
        process.stdout.readline()
        print(box.check_output([sys.executable, "-S", "-P", "-c", ASK + 'print(ask("a.example", 80))'], text=True), end="")
        process.communicate()
        record = process.sandbox.network
        kept = [(e.address, e.port) for e in record.refusals]
        print(kept[:2] == [("10.1.2.3", 443), ("203.0.113.9", 22)], len(kept) <= 200, len(record.events) <= 1000)
        print(len(kept), record.refused + record.lost, record.lost, record.is_complete, record.allowed)
    print(len(relays()))
"""
    found = client(code)
    assert found[:3] == ["203.0.113.1 hi", "True True True", "2 2 0 True 0"]
    assert found[3:5] == ["203.0.113.1 hi", "True True True"]
    kept, refused, _, is_complete, allowed = found[5].split()
    assert (int(kept), is_complete, allowed) == (200, "False", "0") and int(refused) > 10000
    assert found[6] == "1"
