"""Network lists in branches of a warm interpreter: each has the list, a record of its own, and nothing else."""

from __future__ import annotations

from nsbox_client import Client

BEGIN = """
import gc, time
gc.disable()
def branch(py, code, **options):
    done = py.run(code, **options)
    return done.value if done.returncode == 0 else done
setup = ASK + "import signal"
"""


def test_a_list(client: Client) -> None:
    """What is on it can be reached, and nothing else; each record tells of its branch alone. Overlays change nothing."""
    code = """
want = '[ask("a.example", 80), ask("b.example", 80), ask("203.0.113.1", 80), ask("127.0.0.1", 8001)]'
with nsbox.Sandbox(policy("a.example:80")) as box:
    for overlay in (False, True):
        py = box.python(setup=setup, overlay=overlay)
        for _ in range(2):
            done = py.run(want)
            print(done.value, done.network.allowed, done.network.refused > 0)
        done = py.run("1")
        print(done.value, done.network.allowed, done.network.refused)
    print(len(relays()))
while relays(): time.sleep(0.01)
"""
    one = "['203.0.113.1 hi', -2, 'EHOSTUNREACH', 'ECONNREFUSED'] 2 True"
    assert client(BEGIN + code) == [one, one, "1 0 0", one, one, "1 0 0", "1"]


def test_none_and_the_hosts(client: Client) -> None:
    """The controls: without a list there is no network, and with the host's all of that is reached."""
    code = """
want = '[ask("a.example", 80), ask("b.example", 80), ask("127.0.0.1", 8001)]'
for network in ("none", "host"):
    with nsbox.Sandbox(policy().with_(network=network)) as box:
        print(branch(box.python(setup=setup), want))
"""
    assert client(BEGIN + code) == [
        "['ENETUNREACH', 'ENETUNREACH', 'ECONNREFUSED']",
        "['203.0.113.1 hi', '203.0.113.1 hi', '127.0.0.1 hi']",
    ]


def test_the_interpreter_has_no_network(client: Client) -> None:
    """Its imports and its setup reach nothing, whatever is on the list: only a branch is served."""
    code = """
more = setup + '\\nearly = [ask("a.example", 80), ask("203.0.113.1", 80)]'
with nsbox.Sandbox(policy("a.example:80")) as box:
    print(branch(box.python(setup=more), '[early, ask("a.example", 80)]'))
"""
    assert client(BEGIN + code) == ["[[-3, 'ENETUNREACH'], '203.0.113.1 hi']"]


def test_asked(client: Client) -> None:
    """on_connect is asked about what isn't listed, in each branch; its answer counts there."""
    code = """
asked = []
def on_connect(request):
    asked.append(str(request))
    return request.name != "b.example"
with nsbox.Sandbox(policy("c.a.example:80"), on_connect=on_connect) as box:
    py = box.python(setup=setup)
    for _ in range(2):
        print(branch(py, '[ask(name, 80) for name in ("a.example", "b.example", "c.a.example", "a.example")]'))
print(asked)
"""
    hi = "203.0.113.1 hi"
    told = str([hi, "ECONNREFUSED", hi, hi])
    assert client(BEGIN + code) == [told, told, str(["a.example:80", "b.example:80"] * 2)]


def test_another_list(client: Client) -> None:
    """It holds for branches that begin after the change, and for those that run; those that are parked are no exception."""
    code = """
import threading
run = '''
first = ask("a.example", 80)
print("begun", flush=True)
while ask("a.example", 80) == first: time.sleep(0.02)
[first, ask("a.example", 80), ask("b.example", 80)]
'''
with nsbox.Sandbox(policy("a.example:80")) as box:
    py = box.python(setup=setup, stock=2)
    begun, found = threading.Event(), []
    thread = threading.Thread(target=lambda: found.append(branch(py, run, on_output=lambda _: begun.set())))
    thread.start()
    begun.wait(60)
    box.update(policy("b.example:80"))
    thread.join()
    print(found[0], branch(py, '[ask("a.example", 80), ask("b.example", 80)]'))
"""
    assert client(BEGIN + code) == ["['203.0.113.1 hi', -2, '203.0.113.1 hi'] [-2, '203.0.113.1 hi']"]


def test_a_relay_that_was_killed(client: Client) -> None:
    """A parked branch that it served is dropped; the next one has a network again."""
    code = """
import signal
with nsbox.Sandbox(policy("a.example:80")) as box:
    py = box.python(setup=setup, stock=2)
    print(branch(py, 'ask("a.example", 80)'))
    (pid,) = relays()
    os.kill(pid, signal.SIGKILL)
    while pid in relays(): time.sleep(0.01)
    print(branch(py, 'ask("a.example", 80)'), len(relays()), relays() != [pid])
"""
    assert client(BEGIN + code) == ["203.0.113.1 hi", "203.0.113.1 hi 1 True"]


def test_published(client: Client) -> None:
    """A server in a branch is reached from the host as a command's is: at the port that was published."""
    code = """
import socket, threading
serve = '''
s = socket.create_server(("127.0.0.1", 3000))
print("up", flush=True)
c, _ = s.accept()
c.sendall(b"inside " + c.recv(100))
c.close()
'''
with nsbox.Sandbox(policy("a.example:80")) as box, box.publish(3000, 0) as published:
    py = box.python(setup=setup)
    up, found = threading.Event(), []
    thread = threading.Thread(target=lambda: found.append(py.run(serve, on_output=lambda _: up.set())))
    thread.start()
    up.wait(60)
    with socket.create_connection(published.address, 30) as s:
        s.sendall(b"hi")
        print(s.recv(100).decode())
    thread.join()
    print(found[0].returncode)
"""
    assert client(BEGIN + code) == ["inside hi", "0"]
