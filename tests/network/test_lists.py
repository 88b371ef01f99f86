"""policy.network as a list, on real sandboxes: each way to start a command, and what becomes of it.

Each test has a host and an internet of its own. The control of all is the first one: what isn't listed is there.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

Client = Callable[[str], list[str]]


def test_what_is_there(client: Client) -> None:
    """The control: with the host's network, names and addresses are what they are."""
    code = """
p = nsbox.Policy.workspace(ws, network="host")
print(run('print(ask("a.example", 80), ask("b.example", 80), ask("203.0.113.1", 5432), ask("10.1.2.3", 443))', p))
print(run('print(ask("127.0.0.1", 8000), ask("192.0.2.1", 8001))', p))
"""
    found = client(code)
    assert found[0] == "203.0.113.1 hi 203.0.113.1 hi 203.0.113.1 hi 10.1.2.3 hi"
    assert found[2] == "127.0.0.1 hi 192.0.2.1 hi"


def test_a_list(client: Client) -> None:
    """What is listed is reached, as it is outside; what isn't is unknown, refused, or unreachable."""
    code = """
p = policy("a.example:80", "*.a.example:80", "203.0.113.0/24:5432", "localhost:8000", "!b.example")
print(run('''
print(ask("a.example", 80), ask("c.a.example", 80), ask("203.0.113.1", 5432), ask("localhost", 8000))
print(ask("b.example", 80), ask("a.example", 5432), ask("203.0.113.1", 80), ask("10.1.2.3", 443), ask("8.8.8.8", 53))
print(ask("127.0.0.1", 8001), ask("192.0.2.1", 8001))
''', p))
"""
    found = client(code)
    assert found[0] == "203.0.113.1 hi 203.0.113.1 hi 203.0.113.1 hi 127.0.0.1 hi"
    assert found[1] == "-2 ECONNREFUSED EHOSTUNREACH EHOSTUNREACH EHOSTUNREACH"
    assert found[2] == "ECONNREFUSED EHOSTUNREACH"


def test_events(client: Client) -> None:
    """Popen.sandbox.network tells what was decided and why; on_network tells it at once."""
    code = """
heard = []
p = policy("a.example:80", "down.example:80")
code = 'ask("a.example", 80); ask("b.example", 80); ask("a.example", 5432); ask("down.example", 80)'
process = nsbox.Popen([sys.executable, "-S", "-c", ASK + code], policy=p, on_network=heard.append)
process.wait()
record = process.sandbox.network
for e in record.events:
    print(e.kind, e.name, e.port, e.verdict, e.reason, e.errno)
print(record.refused > 0, record.failed, record.sent, record.received, record.lost)
until = time.monotonic() + 10
while not all(e in heard for e in record.events) and time.monotonic() < until:
    time.sleep(0.01)
print(all(e in heard for e in record.events), {e.sandbox for e in heard} == {record.events[0].sandbox})
"""
    found = client(code)
    events = found[:-2]
    assert "connect a.example 80 allowed  0" in events
    assert "dns b.example 0 refused not-listed 0" in events
    assert f"connect a.example 5432 refused not-listed {errno.ECONNREFUSED}" in events
    assert f"connect down.example 80 failed upstream {errno.ECONNREFUSED}" in events
    assert "close a.example 80 allowed  0" in events
    assert found[-2:] == ["True 1 2 14 0", "True True"]


def test_each_way_to_start_one(client: Client) -> None:
    """A Sandbox and its stock, sessions, transactions, nested=True, kill_on_exit=False, call(): the list holds."""
    code = """
want = 'print(ask("a.example", 80), ask("b.example", 80), flush=True)'
command = [sys.executable, "-S", "-P", "-c", ASK + want]
p = policy("a.example:80")
with nsbox.Sandbox(p) as box:
    for i in range(6):
        process = box.Popen(command, stdout=subprocess.PIPE, text=True)
        print(process.communicate()[0].strip(), process.sandbox.network.allowed, process.sandbox.network.refused)
        if i >= 2:
            time.sleep(0.05)
    with box.session() as session:
        first = session.Popen(command, stdout=subprocess.PIPE, text=True)
        print(first.communicate()[0].strip())
        second = session.Popen(["true"])
        second.wait()
        print(first.sandbox.network.refused > 0, second.sandbox.network.refused)
    try:
        with box.transaction() as t:
            print(t.check_output(command, text=True).strip())
    except nsbox.UnavailableError as error:
        print("203.0.113.1 hi -2")  # no overlayfs for this user
print(nsbox.check_output(command, text=True, policy=p.with_(nested=True)).strip())
print(nsbox.check_output(command, text=True, policy=p.with_(kill_on_exit=False)).strip())
print(nsbox.call(command, policy=p))
"""
    found = client(code)
    assert [line.rpartition(" ")[0] for line in found[:6]] == ["203.0.113.1 hi -2 2"] * 6
    assert found[6:8] == ["203.0.113.1 hi -2", "True 0"]
    assert found[8:12] == ["203.0.113.1 hi -2"] * 4
    assert found[12:] == ["0"]


def test_update(client: Client) -> None:
    """A new list is in force at once for what runs: names, new connections and open ones."""
    code = """
want = '''
s = socket.create_connection(("a.example", 80))
def alive():
    try:
        s.sendall(b"x")
        return s.recv(100).decode()
    except OSError as error:
        return errno.errorcode[error.errno]
print(alive(), ask("c.a.example", 80), flush=True)
sys.stdin.readline()
print(alive() or "end", ask("a.example", 80), ask("c.a.example", 80), ask("203.0.113.1", 5432), flush=True)
sys.stdin.readline()
print(ask("c.a.example", 80), flush=True)
'''
with nsbox.Sandbox(policy("a.example:80")) as box:
    command = [sys.executable, "-S", "-P", "-u", "-c", ASK + want]
    process = box.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    print(process.stdout.readline(), end="")
    box.update(policy("c.a.example:80", "203.0.113.1:5432"))
    process.stdin.write("\\n")
    process.stdin.flush()
    print(process.stdout.readline(), end="")
    box.update(policy())
    print(process.communicate("\\n")[0], end="")
    print(box.run(["true"]).returncode)
"""
    found = client(code)
    assert found[0] == "203.0.113.1 x -2"
    assert found[1].split(" ", 1)[0] in ("ECONNRESET", "EPIPE", "end")
    assert found[1].split(" ", 1)[1] == "-2 203.0.113.1 hi 203.0.113.1 hi"
    assert found[2:] == ["-2", "0"]


def test_the_end_of_the_caller(client: Client) -> None:
    """What goes on when its caller has ended, was killed, or executes something else, is served; then the relay ends."""
    code = """
later = 'time.sleep(0.5); open("late-%s", "w").write(str(ask("a.example", 80)))'
start = f'''
import nsbox, os, subprocess, sys
ws = {ws!r}
p = nsbox.Policy.layers(
    nsbox.Bind("/", "/"), nsbox.Dev("/dev"), nsbox.Proc("/proc"), unshare={{"pid"}}, network=["a.example:80"],
    kill_on_exit=False, details=nsbox.Details(die_with_parent=False),
)
os.chdir(ws)
nsbox.Popen([sys.executable, "-S", "-P", "-c", {ASK!r} + {later!r} % sys.argv[1]], policy=p, stdin=subprocess.DEVNULL)
if sys.argv[1] == "exec":
    os.execv("/bin/true", ["true"])
os.kill(os.getpid(), 9) if sys.argv[1] == "kill" else os._exit(0)
'''
hows = ("exit", "exec", "kill")
for how in hows:
    done = subprocess.run([sys.executable, "-P", "-c", start, how], cwd=ws)
    assert done.returncode == (-9 if how == "kill" else 0)
until = time.monotonic() + 20
while time.monotonic() < until and len([n for n in os.listdir(ws) if n.startswith("late-")]) < 3:
    time.sleep(0.05)
time.sleep(0.1)
print(*(open(f"{ws}/late-{how}").read() for how in hows))
while time.monotonic() < until and relays():
    time.sleep(0.05)
print(relays())
"""
    assert client(code) == ["203.0.113.1 hi 203.0.113.1 hi 203.0.113.1 hi", "[]"]


def test_a_caller_that_is_killed_where_nobody_reaps(client: Client) -> None:
    """Pid 1 of the sandbox waits for ever then (a zombie that nobody reaps is in it); the relay doesn't."""
    code = """
start = f'''
import ctypes, os, subprocess, sys, time
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER: what loses its parent is ours
code = "import nsbox, sys, time; p = nsbox.Policy.workspace({ws!r}, network=['a.example:80']); "
code += "q = nsbox.Popen(['sleep', '1000'], policy=p); print(q.sandbox.init_pid, flush=True); time.sleep(1000)"
caller = subprocess.Popen([sys.executable, "-P", "-c", code], stdout=subprocess.PIPE, text=True)
print(caller.stdout.readline(), end="", flush=True)
caller.kill()
sys.stdin.readline()
'''
keeper = subprocess.Popen(
    [sys.executable, "-P", "-c", start], cwd=ws, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
)
init = int(keeper.stdout.readline())
until = time.monotonic() + 20
while time.monotonic() < until and relays():
    time.sleep(0.05)
print(relays())
print(open(f"/proc/{init}/stat").read().split(") ")[1][0])  # it is there, and waits
keeper.communicate("")
"""
    assert client(code) == ["[]", "S"]


def test_a_relay_that_is_killed(client: Client) -> None:
    """Nothing is reached any more, and what is started from then on has another relay."""
    code = """
want = 'print(ask("a.example", 80)); sys.stdout.flush(); sys.stdin.readline(); print(ask("a.example", 80, timeout=1))'
command = [sys.executable, "-S", "-P", "-c", ASK + want]
with nsbox.Sandbox(policy("a.example:80")) as box:
    process = box.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    print(process.stdout.readline(), end="")
    for pid in relays():
        os.kill(pid, signal.SIGKILL)
    print(process.communicate("\\n")[0], end="")
    print(box.run(command, input="\\n", stdout=subprocess.PIPE, text=True).stdout.splitlines())
"""
    found = client(code)
    assert found[0] == "203.0.113.1 hi"
    assert found[1] in ("TimeoutError", "-2", "-3", "EHOSTUNREACH", "ECONNREFUSED")
    assert found[2] == "['203.0.113.1 hi', '203.0.113.1 hi']"


def test_forks(client: Client) -> None:
    """A forked child has a relay of its own, and nothing of its parent's."""
    code = """
p = policy("a.example:80")
want = 'print(ask("a.example", 80))'
with nsbox.Sandbox(p) as box:
    command = [sys.executable, "-S", "-P", "-c", ASK + want]
    print(box.check_output(command, text=True), end="", flush=True)
    before = len(os.listdir("/proc/self/fd"))
    pid = os.fork()
    if pid == 0:
        print(box.check_output(command, text=True), end="")
        print(run(want, p), end="", flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
    print(box.check_output(command, text=True), end="")
    print(nsbox.check_output(command, policy=p, text=True), end="")
"""
    assert client(code) == ["203.0.113.1 hi"] * 5


def test_nothing_is_left(client: Client) -> None:
    """No descriptor, process or thread is left of a Sandbox that is closed."""
    code = """
import gc
def settled(look, want):
    until = time.monotonic() + 10
    while (found := look()) != want and time.monotonic() < until:
        time.sleep(0.02)
    return found
def tasks():
    return len(os.listdir("/proc/self/task"))
def sockets():
    nsbox.run(["true"], policy=policy())  # at whose end what has ended is let go
    found = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return [name for name in found if "socket" in name or "pidfd" in name]
def once():
    with nsbox.Sandbox(policy("a.example:80")) as box:
        box.run(["true"])
        with box.session() as session:
            session.run(["true"])
for _ in range(5):
    once()
gc.collect()
print(settled(relays, []), settled(tasks, 1), len(settled(sockets, [])))
"""
    assert client(code) == ["[] 1 0"]


def test_no_descriptor(client: Client) -> None:
    """Where no descriptor is free, the start fails by that, and nothing is lost; later all works."""
    code = """
import resource
p = policy("a.example:80")
nsbox.run(["true"], policy=policy())
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
failed = set()
for room in range(3, 40):
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + room, hard))
    try:
        nsbox.run(["true"], policy=p)
        print("works")
        break
    except OSError as error:
        failed.add(error.errno)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(failed == {errno.EMFILE})
print(run('print(ask("a.example", 80))', p), end="")
"""
    assert client(code) == ["works", "True", "203.0.113.1 hi"]


def test_hints(client: Client) -> None:
    """A tool's result says what the list refused, by name and by number, and what would help."""
    code = """
with nsbox.Sandbox(policy("a.example:80", "down.example:80")) as box:
    for host, port in (("b.example", 80), ("a.example", 22), ("down.example", 80), ("10.1.2.3", 443), ("169.254.169.254", 80), ("a.example", 80)):
        want = f"s = socket.create_connection(({host!r}, {port}), 5)"
        for hint in box.exec(sys.executable, ["-S", "-P", "-c", ASK + want]).why:
            print(hint.kind, hint.message)
"""
    found = client(code)
    assert found[0].startswith("network b.example isn't in network= (a.example:80")
    assert found[1] == "network a.example:22: only :80 is listed; add 'a.example:22'"
    assert found[2] == "network down.example:80 refused the connection; network= allows it"
    assert found[3:] == [
        "network 10.1.2.3:443 isn't in network= (a.example:80, down.example:80); add '10.1.2.3:443'",
        "network 169.254.169.254:80 isn't in network= (a.example:80, down.example:80)",
    ]


def test_more_connections_than_the_limit(client: Client) -> None:
    """Of 20,000 connections as many are open as the list says; the others are refused, and then there is room again."""
    code = """
want = '''
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (2000, 2000))
held, refused = [], 0
for _ in range(20000):
    s = socket.socket()
    try:
        s.connect(("203.0.113.1", 5432))
        held.append(s)
    except ConnectionRefusedError:
        refused += 1
        s.close()
print(len(held), refused)
held.clear()
until = time.monotonic() + 10
while (found := ask("203.0.113.1", 5432)) != "203.0.113.1 hi" and time.monotonic() < until:
    time.sleep(0.05)
print(found)
'''
network = nsbox.Network(allow=["203.0.113.1:5432"], connections=300)
p = nsbox.Policy.workspace(ws, network=network)
process = nsbox.Popen([sys.executable, "-S", "-P", "-c", ASK + want], policy=p, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
print(process.communicate()[0], end="")
print(process.sandbox.network.counts.get(("refused", "limit"), 0) + process.sandbox.network.lost > 19000)
"""
    assert client(code) == ["300 19700", "203.0.113.1 hi", "True"]
