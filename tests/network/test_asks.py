"""on_connect and published ports: what the relay asks of its caller, and what it makes reachable for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Client = Callable[[str], list[str]]


def test_asked(client: Client) -> None:
    """Each name and port is asked about once in a sandbox; what an entry decides isn't; what is refused stays so."""
    code = """
asked = []
def on_connect(request):
    asked.append(str(request))
    return request.name != "b.example"
want = '''
for host, port in (("a.example", 80), ("c.a.example", 80), ("c.a.example", 80), ("b.example", 80), ("b.example", 80)):
    print(ask(host, port))
print(ask("203.0.113.1", 5432), ask("down.example", 80), ask("metadata.example", 80), ask("10.1.2.3", 443))
'''
with nsbox.Sandbox(policy("a.example:80", "!down.example"), on_connect=on_connect) as box:
    print(box.check_output([sys.executable, "-S", "-P", "-c", ASK + want], text=True), end="")
print(asked)
"""
    found = client(code)
    hi = "203.0.113.1 hi"
    assert found[:5] == [hi, hi, hi, "ECONNREFUSED", "ECONNREFUSED"]
    assert found[5].startswith(f"{hi} -2 ") and found[5].split(" ", 3)[3] not in (hi, "169.254.169.254 hi 10.1.2.3 hi")
    assert "10.1.2.3 hi" not in found[5] and "169.254.169.254 hi" not in found[5]
    assert found[6].startswith("['c.a.example:80', 'b.example:80', '203.0.113.1:5432', 'metadata.example:80'")


def test_answers(client: Client) -> None:
    """No list at all; "always" and "never" are for each sandbox; what is no answer, raises, or is a coroutine."""
    code = """
import asyncio
want = 'print(ask("a.example", 80), ask("203.0.113.1", 5432))'
command = [sys.executable, "-S", "-P", "-c", ASK + want]
def tried(on_connect):
    with nsbox.Sandbox(policy(), on_connect=on_connect) as box:
        return [box.check_output(command, text=True).strip() for _ in range(2)]
told = set()
threading.excepthook = lambda args: told.add(args.exc_type.__name__)
asked = []
print(tried(lambda request: asked.append(request) or "always"), len(asked))
print(tried(lambda request: asked.append(request) or "never"), len(asked))
print(tried(lambda request: True), tried(lambda request: "yes"))
print(tried(lambda request: 1 / 0))
async def slowly(request):
    await asyncio.sleep(0.01)
    return request.port == 80
print(tried(slowly))
async def main():
    process = await nsbox.asyncio.create_subprocess_exec(
        *command, policy=policy(), on_connect=slowly, stdout=subprocess.PIPE
    )
    return (await process.communicate())[0].decode().strip()
import nsbox.asyncio
print(asyncio.run(main()))
print(nsbox.check_output(command, policy=policy(), on_connect=lambda request: True, text=True), end="")
print(sorted(told))
"""
    both, first = "203.0.113.1 hi 203.0.113.1 hi", "203.0.113.1 hi EHOSTUNREACH"
    none = "ECONNREFUSED EHOSTUNREACH"
    found = client(code)
    assert found.pop() == "['TypeError', 'ZeroDivisionError']"
    assert found[0] == f"{[both, both]} 2"
    assert found[1] == f"{[none, none]} 4"
    assert found[2] == f"{[both, both]} {[none, none]}"
    assert found[3:] == [f"{[none, none]}", f"{[first, first]}", first, both]


def test_example(client: Client) -> None:
    """examples/asking.py asks about each host once, keeps the answers, and lets nothing through without one."""
    path = Path(__file__).parents[2] / "examples" / "asking.py"
    if not path.exists():
        pytest.skip("the tests were copied without the examples")
    code = f"""
answers = os.path.join(os.path.dirname(ws), "answers.json")
want = 'print(ask("a.example", 80), ask("b.example", 80), ask("a.example", 80), ask("203.0.113.1", 5432))'
command = [sys.executable, "-W", "error", {str(path)!r}, answers, sys.executable, "-S", "-P", "-c", ASK + want]
for said in ("y\\nn\\ny\\n", "", None):
    if said is None:
        os.unlink(answers)
    done = subprocess.run(command, input=said or "", cwd=ws, capture_output=True, text=True)
    print(done.stdout.strip(), done.returncode)
    print(done.stderr.split("\\n"))
command[4] = ws + "/answers.json"
done = subprocess.run(command, input="y", cwd=ws, capture_output=True, text=True)
print(done.returncode, done.stdout, "in the workspace" in done.stderr)
"""
    hi, ends = "203.0.113.1 hi", ("a.example:80: allowed", "b.example:80: refused", "203.0.113.1:5432: allowed")
    found = client(code)
    assert found[0] == found[2] == f"{hi} ECONNREFUSED {hi} {hi} 0"
    assert found[1] == str([f"connect to {end.rpartition(':')[0]}? [y/n] {end}" for end in ends] + [""])
    assert found[3] == str([*ends, ""])
    assert found[4] == "ECONNREFUSED ECONNREFUSED ECONNREFUSED EHOSTUNREACH 0"
    assert found[6] == "2  True"


def test_published(client: Client) -> None:
    """A server in a command or a session is reached from the host, at the port that is reported, until it is closed."""
    code = """
import socket
server = '''
s = socket.create_server(("127.0.0.1", 3000))
print("up", flush=True)
while True:
    c, _ = s.accept()
    c.sendall(b"inside " + c.recv(100))
    c.close()
'''
command = [sys.executable, "-S", "-P", "-c", ASK + server]
def reached(address):
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(5)
        try:
            s.connect(address)
            s.sendall(b"hi")
            return s.recv(100).decode() or "end"
        except OSError as error:
            return errno.errorcode[error.errno]
for network in ((), ("a.example:80",)):
    with nsbox.Sandbox(policy(*network)) as box:
        with box.publish(3000) as published:
            print(published.address, reached(published.address))
            process = box.Popen(command, stdout=subprocess.PIPE, text=True)
            process.stdout.readline()
            print(reached(published.address), reached(published.address))
            other = box.publish(3000)
            unix = box.publish(3000, ws + "/socket")
            print(other.address != published.address, reached(other.address), reached(unix.address), oct(os.stat(unix.address).st_mode))
        print(reached(published.address), reached(other.address))
        process.kill()
        process.wait()
    print(reached(other.address), os.path.exists(ws + "/socket"))
    with nsbox.Sandbox(policy(*network)) as box, box.session() as session:
        process = session.Popen(command, stdout=subprocess.PIPE, text=True)
        process.stdout.readline()
        published = session.publish(3000, 0)
        print(reached(published.address), reached(box.publish(3000).address))
    print(reached(published.address))
    try:
        nsbox.Sandbox(policy()).publish(0)
    except nsbox.PolicyError as error:
        print(error)
"""
    found = client(code)
    one = [
        "('127.0.0.1', 3000) ECONNRESET",
        "inside hi inside hi",
        "True inside hi inside hi 0o140600",
        "ECONNREFUSED inside hi",
        "ECONNREFUSED False",
        "inside hi inside hi",
        "ECONNREFUSED",
        "publish: 0 isn't a port from 1 to 65535",
    ]
    assert found == one * 2


def test_the_command_line(client: Client) -> None:
    """--allow-net, --net-log and --publish do what they say."""
    code = """
import socket
nsbox_ = [os.path.join(os.path.dirname(sys.executable), "nsbox"), "run", "--allow-net", "a.example:80"]
want = 'print(ask("a.example", 80), ask("b.example", 80))'
log = ws + "/../log"
done = subprocess.run([*nsbox_, "--net-log", log, "--", sys.executable, "-S", "-P", "-c", ASK + want], cwd=ws,
                      capture_output=True, text=True)
print(done.stdout.strip(), done.stderr.strip(), done.returncode)
events = [json.loads(line) for line in open(log)]
print({event["schema"] for event in events}, {event["verdict"] for event in events}, events[-1]["kind"])
server = 's = socket.create_server(("", 3000)); c, _ = s.accept(); c.sendall(b"inside"); c.close()'
child = subprocess.Popen([*nsbox_, "--publish", "0:3000", "--", sys.executable, "-S", "-P", "-c", ASK + server], cwd=ws,
                         stderr=subprocess.PIPE, text=True)
line = child.stderr.readline().strip()
print(line.rpartition(":")[0])
for _ in range(200):
    try:
        with socket.create_connection(("127.0.0.1", int(line.rpartition(":")[2]))) as s:
            if text := s.recv(100):
                print(text.decode())
                break
    except OSError:
        pass
    time.sleep(0.05)
print(child.wait())
"""
    found = client(code)
    assert found[0] == "203.0.113.1 hi -2  0"
    assert found[1].startswith("{'nsbox.network/1'}") and "'refused'" in found[1] and "'allowed'" in found[1]
    assert found[2:] == ["nsbox: port 3000 is at 127.0.0.1", "inside", "0"]


def test_gevent(client: Client) -> None:
    """After gevent's patches the relay is heard by greenlets, and others go on meanwhile."""
    pytest.importorskip("gevent")
    code = """
from gevent import monkey
monkey.patch_all()
import gevent
asked, heard, ticks = [], [], []
def on_connect(request):
    gevent.sleep(0.05)
    asked.append(str(request))
    return request.port == 80
def tick():
    while True:
        ticks.append(1)
        gevent.sleep(0.005)
gevent.spawn(tick)
want = 'print(ask("a.example", 80), ask("c.a.example", 81))'
command = [sys.executable, "-S", "-P", "-c", ASK + want]
with nsbox.Sandbox(policy("b.example:80"), on_connect=on_connect, on_network=heard.append) as box:
    process = box.Popen(command, stdout=subprocess.PIPE, text=True)
    print(process.communicate()[0].strip(), process.sandbox.network.refused > 0)
gevent.sleep(0.05)
print(sorted(asked), len(heard) > 3, len(ticks) > 10)
"""
    found = client("import gevent.monkey; gevent.monkey.patch_all()\n" + code)
    assert found == ["203.0.113.1 hi ECONNREFUSED True", "['a.example:80', 'c.a.example:81'] True True"]
