"""What a command behind a network list may try against the relay and its caller: their sockets, their descriptors, their time.

Each test has a host and an internet of its own (tests/network/host.py), and a control in it.
"""

from __future__ import annotations

import threading

from nsbox_client import Client

from nsbox import NetworkEvent
from nsbox._relay.process import Observer

OWN_SOCKETS = """
def own():
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")]
    return sorted(link for link in links if "socket" in link or "net:" in link or "pidfd" in link)
"""


def test_what_is_inherited(client: Client) -> None:
    """No socket to the relay, no namespace: with close_fds=False, preexec_fn, in sessions; nor in the caller's forks."""
    code = f"OWN_SOCKETS = {OWN_SOCKETS!r}\n" + (
        """
exec(OWN_SOCKETS)
import gc
command = [sys.executable, "-S", "-P", "-c", "import os\\n" + OWN_SOCKETS + "print(own())"]
for network in (["a.example:80"], []):
    with nsbox.Sandbox(policy(*network)) as box:
        for options in ({}, {"close_fds": False}, {"preexec_fn": int}, {"preexec_fn": int, "close_fds": False}):
            print(box.run(command, stdout=subprocess.PIPE, text=True, **options).stdout, end="")
        with box.session() as session:
            print(session.run(command, stdout=subprocess.PIPE, text=True).stdout, end="")
gc.collect()
nsbox.run(["true"], policy=policy("a.example:80"))  # without a Sandbox: no thread of its stock is at work
sockets = {link for link in own() if "socket" in link}
pid = os.fork()
if pid == 0:
    print(bool(sockets), sockets & set(own()), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
before = relays()
print(nsbox.check_output([*command[:-1], ASK + 'print(ask("a.example", 80))'], text=True, policy=policy("a.example:80")), end="")
print(relays() == before)
"""
    )
    found = client(code)
    assert found[:10] == ["[]"] * 10
    assert found[10] == "True set()"
    assert found[11:] == ["203.0.113.1 hi", "True"]  # a fork doesn't end what is the parent's


def test_processes_of_the_host(client: Client) -> None:
    """The relay isn't among the processes that a command sees, and can't be signalled by a number."""
    code = """
want = '''
seen = [open(f"/proc/{pid}/comm").read().strip() for pid in os.listdir("/proc") if pid.isdigit()]
print("nsbox-net" in seen)
done = set()
for pid in range(2, 3000):
    if pid != os.getpid():
        try:
            os.kill(pid, 9)
            done.add(pid)
        except OSError as error:
            done.add(errno.errorcode[error.errno])
print(done, ask("a.example", 80))
'''
with nsbox.Sandbox(policy("a.example:80")) as box:
    print(box.run([sys.executable, "-S", "-P", "-c", ASK + want], stdout=subprocess.PIPE, text=True).stdout, end="")
    print(len(relays()))
"""
    assert client(code) == ["False", "{'ESRCH'} 203.0.113.1 hi", "1"]


def test_a_new_list_is_the_whole_truth(client: Client) -> None:
    """While lists follow each other, nothing is reached that neither has; when update() has returned, nothing of the old one."""
    code = """
want = '''
for line in sys.stdin:
    print(ask("203.0.113.1", 80), ask("203.0.113.1", 5432), ask("203.0.113.1", 10001), ask("b.example", 80), flush=True)
'''
first, second = ("203.0.113.1:80", "a.example:80"), ("203.0.113.1:5432", "c.a.example:80")
with nsbox.Sandbox(policy(*first)) as box:
    command = [sys.executable, "-S", "-P", "-u", "-c", ASK + want]
    process = box.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    def said():
        process.stdin.write("\\n")
        process.stdin.flush()
        return process.stdout.readline().strip()
    print(said())
    for i in range(10):
        box.update(policy(*(second, first)[i % 2]))
        print(said())
    try:
        box.update(nsbox.Policy.workspace(ws, network=["nonsense::"]))
    except nsbox.PolicyError:
        print("refused", said())
    box.update(nsbox.Policy.workspace(ws, network="host"))  # what runs keeps its list
    print(said())
    box.update(policy())
    print(said())
    process.stdin.close()
    process.wait()
"""
    found = client(code)
    hi, no = "203.0.113.1 hi", "EHOSTUNREACH"
    first, second = f"{hi} {no} {no} -2", f"{no} {hi} {no} -2"
    assert found[:11] == [first, *(second, first) * 5]
    assert found[11] == f"refused {first}" and found[12] == first
    assert found[13] == f"{no} {no} {no} -2"


def test_an_update_that_fails(client: Client) -> None:
    """The list from before is in force then, also if the new one was already."""
    code = """
from nsbox._relay import process as _relay_process
want = 'for line in sys.stdin: print(ask("203.0.113.1", 80), ask("203.0.113.1", 5432), flush=True)'
with nsbox.Sandbox(policy("203.0.113.1:80")) as box:
    process = box.Popen([sys.executable, "-S", "-P", "-u", "-c", ASK + want], stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE, text=True)
    def said():
        process.stdin.write("\\n")
        process.stdin.flush()
        return process.stdout.readline().strip()
    print(said())
    change, failures = _relay_process.Process.change, [nsbox.SetupError(errno.ENOMEM, "network list")]
    def failing(self, content):
        change(self, content)
        if failures:
            raise failures.pop()
    _relay_process.Process.change = failing
    try:
        box.update(policy("203.0.113.1:5432"))
    except nsbox.SetupError:
        print("failed", box.policy.network.allow)
    print(said())
    box.update(policy("203.0.113.1:5432"))
    print(said())
    process.stdin.close()
    process.wait()
"""
    first, second = "203.0.113.1 hi EHOSTUNREACH", "EHOSTUNREACH 203.0.113.1 hi"
    assert client(code) == [first, "failed ('203.0.113.1:80',)", first, second]


def test_more_events_than_anybody_hears() -> None:
    """A command that makes events by the thousand doesn't fill its caller's memory, while on_network is slow."""
    held, heard = threading.Event(), []

    def slow(event: NetworkEvent) -> None:
        held.wait()
        heard.append(event)

    observer = Observer(slow)
    event = NetworkEvent(0, 1, "dns", "x.example", verdict="refused", reason="not-listed")
    taken = [observer.put(event) for _ in range(10_050)]
    assert taken[:10_000] == [True] * 10_000 and taken.count(False) >= 49
    held.set()
    observer.flush()
    assert len(heard) == taken.count(True)
    assert observer.put(event)
    observer.flush()
    observer.put(None)
    assert len(heard) == taken.count(True) + 1


def test_descriptors_of_the_relay(client: Client) -> None:
    """A command that uses up all of them keeps no other sandbox of the same relay from being made and served."""
    code = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
network = nsbox.Network(allow=["a.example:80", "203.0.113.1:10000-10099"], connections=10000)
greedy = '''
import resource
opened, failed = [], 0
for i in range(400):
    s = socket.socket()
    s.settimeout(5)
    try:
        s.connect(("203.0.113.1", 10000 + i % 100))
        opened.append(s)
    except OSError as error:
        failed += 1
        s.close()
print(len(opened), failed, flush=True)
sys.stdin.readline()
'''
with nsbox.Sandbox(nsbox.Policy.workspace(ws, network=network)) as box:
    start = lambda code: box.Popen([sys.executable, "-S", "-P", "-c", ASK + code], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True)
    first = start(greedy)
    opened, failed = map(int, first.stdout.readline().split())
    print(opened > 100, failed > 0)
    print(box.run(["echo", "made"], stdout=subprocess.PIPE, text=True).stdout, end="")
    other = start('sys.stdin.readline(); print(ask("b.example", 80), flush=True); sys.stdin.readline(); print(ask("a.example", 80))')
    other.stdin.write("\\n")
    other.stdin.flush()
    print(other.stdout.readline(), end="")
    first.communicate("\\n")
    print(other.communicate("\\n")[0], end="")
"""
    assert client(code) == ["True True", "made", "-2", "203.0.113.1 hi"]


def test_what_publishing_opens(client: Client) -> None:
    """A published port leads in, for the host: a command reaches nothing by it, and no other sandbox's server."""
    code = """
import socket
server = '''
s = socket.create_server(("127.0.0.1", 3000))
print("up", flush=True)
while True:
    c, _ = s.accept()
    c.sendall(b"inside")
    c.close()
'''
def dial(address):
    with socket.create_connection(address, 5) as s:
        return s.recv(100).decode()
with nsbox.Sandbox(policy("a.example:80")) as box, nsbox.Sandbox(policy("b.example:80")) as other:
    process = box.Popen([sys.executable, "-S", "-P", "-c", ASK + server], stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    published = box.publish(3000, 3999)
    print(dial(published.address))
    want = f'print(ask("127.0.0.1", 3999), ask("192.0.2.1", 3999), ask("127.0.0.1", 3000), ask("127.0.0.1", 8000))'
    for each in (box, other):
        print(each.check_output([sys.executable, "-S", "-P", "-c", ASK + want], text=True), end="")
    process.kill()
    process.wait()
"""
    refused = "ECONNREFUSED EHOSTUNREACH ECONNREFUSED ECONNREFUSED"
    assert client(code) == ["inside", refused, refused]


def test_a_socket_whose_place_is_exchanged(client: Client) -> None:
    """close() removes the socket that it has made, and nothing where a command's link leads."""
    code = """
os.mkdir(ws + "/run")
os.mkdir(ws + "/../home")
open(ws + "/../home/socket", "w").write("the user's")
with nsbox.Sandbox(policy()) as box:
    kept = box.publish(3000, ws + "/run/socket")
    box.run(["sh", "-c", "mv run gone; ln -s ../home run"], cwd=ws)
    kept.close()
    print(open(ws + "/../home/socket").read(), os.listdir(ws + "/gone"))
    box.run(["sh", "-c", "rm run; mkdir run"], cwd=ws)
    kept = box.publish(3000, ws + "/run/socket")
    box.run(["sh", "-c", "mv run/socket run/moved; echo mine > run/socket"], cwd=ws)
    kept.close()
    print(sorted(os.listdir(ws + "/run")))
"""
    assert client(code) == ["the user's []", "['moved', 'socket']"]


def test_who_is_never_asked(client: Client) -> None:
    """on_connect isn't asked about what an entry denies, nor about addresses that no yes would open."""
    code = """
asked = []
def yes(request):
    asked.append(request.name or request.address)
    return "always"
want = '''
print(ask("b.example", 80), ask("203.0.113.2", 22), ask("192.0.2.1", 8001), ask("127.0.0.1", 8000), ask("10.1.2.3", 443),
      ask("169.254.169.254", 443), ask("224.0.0.1", 80), ask("198.18.77.1", 80), ask("rebound.example", 8000), sep=",")
print(ask("c.a.example", 80), ask("203.0.113.1", 5432))
'''
p = policy("a.example:80", "!b.example", "!203.0.113.2")
command = [sys.executable, "-S", "-P", "-c", ASK + want]
print(nsbox.check_output(command, text=True, policy=p, on_connect=yes), end="")
print(sorted(set(asked)))
"""
    found = client(code)
    assert " " not in found[0], found[0]
    assert found[1] == "203.0.113.1 hi 203.0.113.1 hi"  # the control
    assert found[2] == "['203.0.113.1', 'c.a.example', 'rebound.example']"


def test_connections_that_are_passed_on(client: Client) -> None:
    """Left open, and said so: a command can hand a connection to one of another sandbox. It ends with its own sandbox."""
    code = """
giver = '''
s = socket.create_connection(("a.example", 80))
with socket.socket(socket.AF_UNIX) as to:
    to.bind("place")
    to.listen()
    print("up", flush=True)
    other, _ = to.accept()
    socket.send_fds(other, [b"x"], [s.fileno()])
    other.recv(1)
'''
taker = '''
with socket.socket(socket.AF_UNIX) as at:
    at.connect("place")
    _, fds, _, _ = socket.recv_fds(at, 1, 1)
    s = socket.socket(fileno=fds[0])
    s.settimeout(5)
    s.sendall(b"hi")
    print(s.recv(99), ask("a.example", 80), flush=True)
    at.sendall(b"x")
    try:
        print(s.recv(99))
    except OSError as error:
        print(errno.errorcode[error.errno])
'''
start = lambda code, *network: nsbox.Popen([sys.executable, "-S", "-P", "-c", ASK + code], policy=policy(*network), cwd=ws,
                                           stdout=subprocess.PIPE, text=True)
first = start(giver, "a.example:80")
first.stdout.readline()
second = start(taker, "b.example:80")
print(second.stdout.readline(), end="")
first.wait()
print(second.communicate()[0], end="")
"""
    found = client(code)
    assert found[0] == "b'203.0.113.1 hi' -2" and found[1] in ("b''", "ECONNRESET")
