"""An empty list: nothing is reached, as without a network, and all that a command tries is recorded."""

from __future__ import annotations

from collections.abc import Callable

Client = Callable[[str], list[str]]

PRELUDE = """
want = '''
answers = [ask("a.example", 80), ask("203.0.113.1", 5432)]
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    try:
        s.sendto(b"hi", ("203.0.113.2", 123))
    except OSError:
        pass  # without a route
print(answers)
'''
def empty(**wishes):
    return nsbox.Policy.workspace(ws, network=[], **wishes)
def shown(events):
    return sorted({f"{e.kind} {e.name or e.address}:{e.port} {e.verdict} {e.reason}" for e in events})
def started(policy, **options):
    command = [sys.executable, "-S", "-P", "-c", ASK + want]
    process = nsbox.Popen(command, policy=policy, stdout=subprocess.PIPE, text=True, **options)
    print(process.communicate()[0].strip())
    return process.sandbox.network
"""
TRIED = [
    "connect 203.0.113.1:5432 refused not-listed",
    "dns a.example:0 refused not-listed",
    "udp 203.0.113.2:123 refused not-listed",
]


def test_all_refused_and_recorded(client: Client) -> None:
    """A name, an address and a datagram: each is refused, and each is in the record. The control: a list allows them."""
    code = """
network = started(empty())
print(shown(network.refusals), network.allowed, network.is_complete)
network = started(policy("a.example:80", "203.0.113.1:5432", "203.0.113.2:123/udp"))
print(shown(network.refusals), network.refused)
"""
    assert client(PRELUDE + code) == [
        "[-2, 'EHOSTUNREACH']",
        f"{TRIED} 0 True",
        "['203.0.113.1 hi', '203.0.113.1 hi']",
        "[] 0",
    ]


def test_no_network_records_nothing(client: Client) -> None:
    """The control: with network="none" the kernel refuses, and no relay hears of it."""
    code = """
network = started(policy())
print(shown(network.events), network.refused)
"""
    assert client(PRELUDE + code) == ["['ENETUNREACH', 'ENETUNREACH']", "[] 0"]


def test_hearers_and_hints(client: Client) -> None:
    """on_network hears of each refusal; a tool's result, in a session too, says what would allow it."""
    code = """
heard = []
started(empty(), on_network=heard.append)
with nsbox.Sandbox(empty()) as box, box.session() as session:
    line = f"{sys.executable} -S -P -c 'import socket; socket.getaddrinfo(\\"a.example\\", 80)'"
    for one in (box, session):
        result = one.shell(line)
        print(shown(result.network.refusals), *[hint.message for hint in result.why if hint.kind == "network"])
end = time.monotonic() + 30
while len(heard) < 3 and time.monotonic() < end:
    time.sleep(0.01)
print(shown(heard))
"""
    refused = "['dns a.example:0 refused not-listed']"
    hint = "a.example isn't allowed, since network= lists nothing; add 'a.example:443', or with another port than 443"
    assert client(PRELUDE + code) == ["[-2, 'EHOSTUNREACH']", f"{refused} {hint}", f"{refused} {hint}", str(TRIED)]


def test_audit(client: Client) -> None:
    """The record of the end has each of them."""
    code = """
log = os.path.join(os.path.dirname(ws), "audit.jsonl")
nsbox.audit.to_file(log, required=True)
started(empty())
(end,) = [r for r in map(json.loads, open(log)) if r["event"] == "end"]
print(sorted(f"{r['kind']} {r['name'] or r['address']}:{r['port']}" for r in end["network"]["refusals"]))
print(end["network"]["refused"] >= 3, end["network"]["allowed"], end["network"]["complete"])
"""
    assert client(PRELUDE + code) == [
        "[-2, 'EHOSTUNREACH']",
        "['connect 203.0.113.1:5432', 'dns a.example:0', 'udp 203.0.113.2:123']",
        "True 0 True",
    ]


def test_updated(client: Client) -> None:
    """A sandbox that runs gets an empty list, and another one after it: what reaches out follows the list."""
    code = """
with nsbox.Sandbox(empty()) as box, box.session() as session:
    for entries in ([], ["203.0.113.1:5432"], ["a.example:80"], []):
        box.update(nsbox.Policy.workspace(ws, network=entries))
        done = session.shell(f"{sys.executable} -S -P - <<'EOF'\\n{ASK}\\nprint(ask('203.0.113.1', 5432))\\nEOF")
        print(done.stdout.strip(), shown(done.network.refusals))
"""
    recorded = "EHOSTUNREACH ['connect 203.0.113.1:5432 refused not-listed']"
    assert client(PRELUDE + code) == [recorded, "203.0.113.1 hi []", recorded, recorded]


def test_hints_follow_the_list(client: Client) -> None:
    """A session's hint names the list that is in force now, not the one that the session began with."""
    code = """
line = f"{sys.executable} -S -P - <<'EOF'\\n{ASK}\\nsys.exit(ask('a.example', 80) == -2)\\nEOF"
with nsbox.Sandbox(policy("a.example:80")) as box:
    with box.session() as session:
        print(*session.shell(line).why)
        box.update(empty())
        print(*session.shell(line).why)
"""
    found = client(PRELUDE + code)
    told = "a.example isn't allowed, since network= lists nothing; add 'a.example:443', or with another port than 443"
    assert found == ["", told]


RUN = """
def nsbox_run(*options):
    command = [sys.executable, "-P", "-m", "nsbox", "run", "--net-log", "../log", *options]
    command += ["--", sys.executable, "-S", "-P", "-c", ASK + want + "sys.exit(answers[0] == -2)"]
    done = subprocess.run(command, cwd=ws, capture_output=True, text=True)
    print(done.returncode, done.stdout.strip(), done.stderr.replace("\\n", "|"))
    rows = [json.loads(line) for line in open(f"{ws}/../log")]
    print(sorted({f"{e['kind']} {e['name'] or e['address']}:{e['port']} {e['verdict']} {e['reason']}" for e in rows}))
"""


def test_the_log_of_the_command_line(client: Client) -> None:
    """--net-log without a list: nothing is reached, the log has it all, and a failed command says what to add.

    The same with --network none and a file that says so. The control: with a list, the log has what was reached.
    """
    code = """
with open(f"{ws}/p.toml", "w") as file:
    file.write('workspace = "."\\nnetwork = "none"\\n')
for options in ((), ("--network", "none"), ("--policy", "p.toml")):
    nsbox_run(*options)
nsbox_run("--allow-net", "a.example:80")
"""
    found = client(PRELUDE + RUN + code)
    for at in (0, 2, 4):
        assert found[at].startswith("1 [-2, 'EHOSTUNREACH'] nsbox: ") and found[at + 1] == str(TRIED), found
        assert "since --allow-net lists nothing; add --allow-net " in found[at], found
    assert found[6].startswith("0 ['203.0.113.1 hi', 'EHOSTUNREACH']"), found
    assert "connect a.example:80 allowed " in found[7], found


def test_lookups_before_a_question_are_not_allowed(client: Client) -> None:
    """With on_connect and no list, a lookup is no permission: it counts as none. The control: a yes counts as one."""
    code = """
want = 'print(ask("a.example", 80))'
for answer in (False, True):
    network = started(policy(), on_connect=lambda request: answer)
    print(network.allowed, network.refused, network.failed, sorted(network.counts))
"""
    assert client(PRELUDE + code) == [
        "ECONNREFUSED",
        "0 1 0 [('allowed', 'unasked'), ('refused', 'asked')]",
        "203.0.113.1 hi",
        "1 0 0 [('allowed', 'asked'), ('allowed', 'unasked')]",
    ]
