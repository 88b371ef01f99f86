"""Network lists as on macOS, on Linux: the proxy that is started for a Sandbox, and what its commands get to know of it.

The stand-in for libsandbox confines nothing: that only the proxy can be reached is the profile's, and the kernel's to keep.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from nsbox_seatbelt import pretend

HEAD = """
import json, os, signal, socket, subprocess, sys, threading, time
import nsbox
from nsbox import Policy
from nsbox._base.frozen import replace
from nsbox._machine import probe as _probe
work = sys.argv[1]
def serve():
    server = socket.create_server(("127.0.0.1", 0))
    def accept():
        while True:
            s, _ = server.accept()
            s.recv(65536)
            s.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\nConnection: close\\r\\n\\r\\nhi")
            s.close()
    threading.Thread(target=accept, daemon=True).start()
    return server.getsockname()[1]
port, other = serve(), serve()
FETCH = '''
import sys, urllib.error, urllib.request
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=10).read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode().strip())
    except OSError as error:
        print(error)
'''
def fetch(*urls):
    return [sys.executable, "-I", "-c", FETCH, *urls]
def url(port, name="localhost"):
    return f"http://{name}:{port}/"
def way(name):
    _probe._known[(os.geteuid(), os.getegid())] = replace(nsbox.probe(), seatbelt_ways=(name,))
def proxies():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if "(nsbox-proxy)" in (text := open(f"/proc/{pid}/stat").read()) and ") Z" not in text:
                if open(f"/proc/{pid}/cmdline").read() == nsbox._relay.proxy.PROGRAM + chr(0):
                    found.append(int(pid))
        except OSError:
            pass
    return found
"""


@pytest.fixture
def mac(site: Path, tmp_path: Path) -> Any:
    """Run code, after HEAD, as on a Mac; returns the lines that it prints. It must not fail."""
    work, temporary = (tmp_path / "work").resolve(), (tmp_path / "T").resolve()
    work.mkdir()
    temporary.mkdir()

    def run(code: str) -> list[str]:
        env = os.environ | {
            "TMPDIR": str(temporary),
            "NSBOX_STUB_LOG": str(tmp_path / "calls"),
            "http_proxy": "http://x:1",
        }
        done = pretend.run(site, HEAD + code, str(work), env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    return run


def profiles(tmp_path: Path) -> list[str]:
    """Return the profiles that libsandbox was asked to compile."""
    rows = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    return [row["args"][0] for row in rows if row["call"] in ("compile_string", "init_with_parameters", "init")]


def test_a_command(mac: Any, tmp_path: Path) -> None:
    """It finds the proxy by its variables alone; the profile opens that port; what happens is recorded."""
    found = mac("""
box = nsbox.Sandbox(Policy.workspace(work, network=[f"localhost:{port}"]))
p = box.Popen(fetch(url(port), url(other), url(80, "unlisted.invalid")), stdout=-1, text=True)
print(p.communicate()[0], end="")
for event in p.sandbox.network.events:
    print(event.kind, event.name, event.verdict, event.reason)
print(box.check_output(["env"], text=True).count("127.0.0.1:%d" % box._relay.process.port))
print(box._relay.process.port)
box.close()
""")
    assert (
        found[0] == "hi" and found[1].startswith("403 nsbox: localhost:") and found[2].startswith("403 nsbox: unlisted")
    )
    events = found[3:7]
    events.remove("close localhost allowed ")  # whenever the proxy notices that
    assert events == [
        "connect localhost allowed ",
        "connect localhost refused not-listed",
        "connect unlisted.invalid refused not-listed",
    ]
    assert found[7] == "6"
    made = profiles(tmp_path)
    assert made and all(f'(allow network-outbound (remote ip "localhost:{found[8]}"))' in text for text in made)
    assert not any("localhost:0" in text for text in made)


@pytest.mark.parametrize("way", ["helper", "sandbox-exec"])
def test_other_ways(mac: Any, way: str) -> None:
    """However the profile comes into force, its port is the proxy's."""
    found = mac(f"""
from nsbox._spawn import seatbelt
way({way!r})
seen = []
def spy(place, *rest, _real=getattr(seatbelt, "_instructions" if {way!r} == "helper" else "_by_program")):
    seen.append((place.port, f'localhost:{{place.port}}"'.encode() in place.profile))
    return _real(place, *rest)
setattr(seatbelt, "_instructions" if {way!r} == "helper" else "_by_program", spy)
with nsbox.Sandbox(Policy.workspace(work, network=[f"localhost:{{port}}"])) as box:
    try:
        print(box.check_output(fetch(url(port)), text=True).strip())
    except Exception as error:
        print(error)
    print(seen == [(box._relay.process.port, True)])
""")
    assert found[-1] == "True"
    assert found[0] == "hi" or way == "sandbox-exec"


def test_lists(mac: Any) -> None:
    """Another list ends what it doesn't allow; equal lists share a proxy; a sandbox's secret ends with it."""
    found = mac("""
import gc
one, two = Policy.workspace(work, network=[f"localhost:{port}"]), Policy.workspace(work, network=[f"localhost:{other}"])
with nsbox.Sandbox(one) as box:
    print(box.check_output(fetch(url(port), url(other)), text=True).split()[::4])
    box.update(two)
    print(box.check_output(fetch(url(port), url(other)), text=True).split()[0], len(proxies()))
    p = box.Popen(["env"], stdout=-1, text=True)
    its = dict(line.split("=", 1) for line in p.communicate()[0].splitlines())["http_proxy"]
    ours = lambda: subprocess.run(fetch(url(other)), env={"http_proxy": its}, capture_output=True, text=True).stdout[:3].strip()
    print(ours())
    del p
    gc.collect()
    box.run(["true"])
    print(ours())
print([nsbox.check_output(fetch(url(port)), text=True, policy=one).strip() for _ in range(2)], len(proxies()) <= 2)
""")
    assert found[0].startswith("['hi', ") and found[1] == "403 1"
    assert found[2:] == ["hi", "407", "['hi', 'hi'] True"]


def test_asks(mac: Any) -> None:
    """on_connect is asked about a name that no entry decides."""
    found = mac("""
asked = []
def on_connect(request):
    asked.append(str(request))
    return request.name == "b.invalid"
with nsbox.Sandbox(Policy.workspace(work), on_connect=on_connect) as box:
    print(box.check_output(fetch(url(80, "a.invalid"), url(80, "b.invalid"), url(port)), text=True), end="")
print(asked)
""")
    assert [line[:3] for line in found[:3]] == ["403", "502", "403"]
    assert found[3] == "['a.invalid:80', 'b.invalid:80']"


def test_the_proxys_end(mac: Any) -> None:
    """A proxy that is gone is no way out, and the next command gets another; it ends with the caller."""
    found = mac("""
with nsbox.Sandbox(Policy.workspace(work, network=[f"localhost:{port}"])) as box:
    print(box.check_output(fetch(url(port)), text=True).strip())
    p = box.Popen(["sh", "-c", 'read x; exec "$@"', "-", *fetch(url(port))], stdin=-1, stdout=-1, text=True)
    (pid,) = proxies()
    os.kill(pid, signal.SIGKILL)
    while proxies():
        time.sleep(0.01)
    print(p.communicate("\\n")[0].strip())
    print(box.check_output(fetch(url(port)), text=True).strip(), proxies() != [pid])
    try:
        box.publish(3000)
    except nsbox.UnavailableError as error:
        print(error)
    (pid,) = proxies()
del box, p
import gc; gc.collect()
for _ in range(500):
    if not proxies(): break
    time.sleep(0.01)
print(proxies())
""")
    assert found[0] == "hi" and "refused" in found[1] and found[2] == "hi True"
    assert "publish: a command on macOS can't have a server" in found[3]
    assert found[4] == "[]"


def test_a_program_that_is_missing(mac: Any) -> None:
    """There is no command without its proxy."""
    found = mac("""
import nsbox._relay.proxy
nsbox._relay.proxy.Process.__init__.__defaults__ = ("/nonexistent/nsbox-proxy",)
try:
    nsbox.run(["touch", work + "/made"], policy=Policy.workspace(work, network=["a.example"]))
except nsbox.SetupError as error:
    print(error)
print(os.listdir(work))
""")
    assert "start nsbox-proxy: No such file" in found[0] and "install that again" in found[0]
    assert found[1] == "[]"
