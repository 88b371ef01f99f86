"""Callers behind filters of their own, and callers that aren't dumpable: the same each time, and the true cause."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nsbox._core.linux import syscalls

PRELUDE = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def refuse(number, error):
    rows = ((0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | error), (0x06, 0, 0, 0x7fff0000))
    code = b"".join(struct.pack("HBBI", *row) for row in rows)
    text = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxP", len(rows), ctypes.addressof(text))
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
import nsbox
"""


def outside(code: str, at: Path) -> str:
    """Run code in a fresh interpreter, and return what it has printed."""
    done = subprocess.run([sys.executable, "-P", "-c", PRELUDE + code], cwd=at, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


ALL_FACES = """
seen = set()
policies = [nsbox.Policy.workspace(".", backend="namespaces"), nsbox.Policy.host(backend="namespaces")]
policies.append(nsbox.Policy.layers(nsbox.RoBind("/", "/"), nsbox.Proc("/proc"), nsbox.Dev("/dev"), nsbox.File("/dev/x", b"1"), nsbox.File("/dev/x", b"2")))
for policy in policies:
    seen |= {nsbox.run(["true"], policy=policy).returncode for _ in range(3)}
with nsbox.Sandbox(policies[0]) as box:
    seen |= {box.run(["true"]).returncode, box.shell("echo 1 > f; cat f /etc/passwd /bin/true > /dev/null").returncode}
    box.write("g", "2")
    seen.add(box.read("g"))
    try:
        with box.session() as session: seen.add(session.shell("true").returncode)
    except nsbox.UnavailableError as error: assert "refuses memfd_create(2)" in str(error), error
print(seen, box.why_cold)
"""


@pytest.mark.parametrize("error", [1, 38], ids=["EPERM", "ENOSYS"])
@pytest.mark.parametrize("call", ["openat2", "memfd_create"])
def test_there_is_another_way(workspace: Path, call: str, error: int) -> None:
    """Without openat2(2) or memfd_create(2), sandboxes of all kinds are made in another way that is as safe."""
    assert outside(f"refuse({syscalls()[1][call]}, {error})\n{ALL_FACES}", workspace).strip() in (
        "{0, '2'}",
        "{'2', 0}",
    )


NEEDED = (
    "mount_setattr",
    "move_mount",
    "open_tree",
    "fsopen",
    "fsmount",
    "fsconfig",
    "setns",
    "execveat",
    "pivot_root",
)
REFUSED = """
for _ in range(3):
    try: nsbox.run(["true"], policy=nsbox.Policy.workspace(".", backend="namespaces"))
    except nsbox.UnavailableError as error: print(error)
"""


@pytest.mark.parametrize("error", [1, 38], ids=["EPERM", "ENOSYS"])
@pytest.mark.parametrize("call", NEEDED)
def test_true_cause(workspace: Path, call: str, error: int) -> None:
    """A call that nothing can take the place of is named, with what to do, each time."""
    told = outside(f"refuse({syscalls()[1][call]}, {error})\n{REFUSED}", workspace).splitlines()
    name = "EPERM" if error == 1 else "ENOSYS"
    assert len(told) == 3 and len({*told}) == 1
    assert f"a seccomp filter of this process refuses {call}(2) ({name})" in told[0] and "remedy: allow" in told[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root keeps its maps")
def test_not_dumpable(workspace: Path) -> None:
    """An ordinary user's process that isn't dumpable gets another backend, or the cause: the same each time."""
    code = """
libc.prctl(4, 0, 0, 0, 0)
seen = set()
for _ in range(40):
    try:
        with nsbox.Popen(["true"], policy=nsbox.Policy.workspace(".")) as p: pass
        seen.add(f"{p.sandbox.backend} {p.returncode}")
    except nsbox.UnavailableError as error: seen.add("dumpable" if "isn't dumpable" in str(error) else str(error))
print(sorted(seen))
"""
    told = outside(code, workspace).strip()
    assert told in ("['bwrap 0']", "['dumpable']", "['landlock 0']")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_seteuid_and_back(workspace: Path) -> None:
    """Root that was another user for a moment isn't dumpable: no spawn fails."""
    code = f"os.seteuid(65534); os.seteuid(0)\n{ALL_FACES}"
    assert outside(code, workspace).strip() in ("{0, '2'}", "{'2', 0}")


PLANTED = """
import subprocess
os.makedirs("ws/d")
open("secret", "w").write("KEY")
policy = nsbox.Policy.workspace("ws", read=["ws/d"], backend="namespaces")
subprocess.run("rmdir ws/d; ln -s .. ws/d", shell=True, check=True)
if NUMBER: refuse(NUMBER, 38)
def tried(ops):
    try: return nsbox.run(["/usr/bin/find", "/t", "-type", "f"], policy=nsbox.Policy.layers(*ops), capture_output=True, text=True).stdout.split()
    except nsbox.SetupError as error: return "refused"
try: nsbox.run("cat d/secret", shell=True, policy=policy); print("ran")
except nsbox.NsboxError as error: print("refused")
R, S, F, T = nsbox.RoBind, nsbox.Symlink, nsbox.File, nsbox.Tmpfs
ops = [R("/usr", "/usr"), *(S(f"usr/{n}", f"/{n}") for n in ("bin", "lib", "lib64")), T("/t"), nsbox.Dir("/t/d/e")]
for target in ("/t/d", "t/d", "../../../t/d", "/t/./d/../d/e/..", "//t//d//", "/t/d/e/../../../../t/d"):
    print(tried([*ops, S(target, "/l"), F("/l/f", b"1")]))
print(tried([*ops, S("/l2", "/l"), S("t/d", "/l2"), F("/l/f", b"1")]), tried([*ops, S("l2", "/l"), S("l", "/l2"), F("/l/f", b"1")]))
for name, target in {"abs": "/etc/nsbox-out", "up": "../../../../../nsbox-out", "loop": "loop", "far": "/t/d"}.items():
    os.symlink(target, f"ws/{name}")
    ops2 = [*ops, nsbox.Bind(os.path.abspath("ws"), "/w")]
    print(name, tried([*ops2, nsbox.Dir(f"/w/{name}")]), tried([*ops2, F(f"/w/{name}/f", b"1")]))
print(sorted(os.listdir("ws")), os.path.exists("/etc/nsbox-out"))
"""


@pytest.mark.parametrize("call", ["openat2", ""])
def test_planted_links(workspace: Path, call: str) -> None:
    """Without openat2(2), as with it, links lead to where they do inside, and none leads out of the sandbox's root."""
    number = syscalls()[1][call] if call else 0
    told = outside(PLANTED.replace("NUMBER", str(number)), workspace).splitlines()
    assert told[0] == "refused"
    assert told[1:7] == ["['/t/d/f']"] * 6
    assert told[7] == "['/t/d/f'] refused"
    assert told[8:12] == ["abs refused refused", "up refused refused", "loop refused refused", "far [] ['/t/d/f']"]
    assert told[12] == "['abs', 'd', 'far', 'loop', 'up'] False"
