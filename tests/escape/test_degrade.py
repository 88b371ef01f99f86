"""degrade where namespaces are refused: whatever it accepts, files outside and the network stay closed.

A caller behind a filter such as a container's, which refuses namespaces, runs an attack in sandboxes. Control: the attack
works for a plain child of that caller.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import nsbox
from nsbox._core.linux import syscalls
from nsbox._policy.losses import LEVELS, losses

pytestmark = pytest.mark.skipif(nsbox.probe().landlock_abi < 2, reason="needs Landlock of version 2 or later")

# unshare(2) and clone(2) with a flag of a namespace: EPERM; clone3(2): ENOSYS. So does Docker's profile.
FILTER = """
import ctypes, json, os, struct, subprocess, sys
def refuse(unshare, clone3, clone):
    libc = ctypes.CDLL(None, use_errno=True)
    rows = (
        (0x20, 0, 0, 0), (0x15, 5, 0, unshare), (0x15, 5, 0, clone3), (0x15, 0, 2, clone),
        (0x20, 0, 0, 16), (0x45, 1, 0, 0x7E020000),
        (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x50026),
    )
    code = b"".join(struct.pack("HBBI", *row) for row in rows)
    text = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxP", len(rows), ctypes.addressof(text))
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
"""
ATTACK = """
import json, os, socket, sys
def errno_of(f, *args):
    try: f(*args)
    except OSError as e: return e.errno
    return 0
def tcp(): socket.create_connection(("127.0.0.1", int(sys.argv[2])), 10).close()
def udp(): socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", int(sys.argv[2])))
open("ran", "w").close()
print(json.dumps({
    "read": errno_of(open, sys.argv[1]), "write": errno_of(open, sys.argv[1], "a"), "list": errno_of(os.listdir, os.path.dirname(sys.argv[1])),
    "tcp": errno_of(tcp), "udp": errno_of(udp), "unix": errno_of(socket.socket, socket.AF_UNIX), "denied": errno_of(open, ".env"),
}))
"""
CALLER = """
import nsbox
from nsbox import Policy
from nsbox._policy.losses import LEVELS, LOSSES
def told(policy):
    command = [sys.executable, "-I", "-S", "-c", ATTACK, *sys.argv[1:]]
    done = nsbox.run(command, policy=policy, stdout=subprocess.PIPE)
    return json.loads(done.stdout)
def refusal(policy):
    try: told(policy)
    except nsbox.UnavailableError as error: return str(error)
policy = Policy.workspace(".", deny=[".env"])
free = told(policy.with_(backend="passthrough", require="nothing"))
os.remove("ran")
every = policy.with_(degrade=LOSSES)
with nsbox.Popen(["true"], policy=every) as process: pass
lost = process.sandbox.lost
refusals = {name: refusal(every.with_(degrade={*LOSSES} - {name})) for name in LOSSES if name in lost}
alone = {word: refusal(policy.with_(degrade={word})) for word in (*LEVELS, *LOSSES)}
isolated = refusal(every.with_(require="isolated"))
ran = os.path.exists("ran")
print(json.dumps({
    "free": free, "backend": process.sandbox.backend, "lost": sorted(lost), "said": process.sandbox.not_enforced, "ran": ran,
    "refusals": refusals, "alone": alone, "isolated": isolated, "needed": told(policy.with_(degrade=lost)), "every": told(every),
}))
"""
OPEN = {"read", "write", "list", "tcp", "udp", "unix"}


def behind_filter(code: str, at: Path, *args: str) -> Any:
    """Run code in an interpreter for which namespaces are refused; return what it has printed, from JSON."""
    numbers = [syscalls()[1][name] for name in ("unshare", "clone3", "clone")]
    text = f"{FILTER}\nrefuse(*{numbers})\nATTACK = {ATTACK!r}\n{code}"
    done = subprocess.run([sys.executable, "-P", "-c", text, *args], cwd=at, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def found(workspace: Path, victim: Path) -> Any:
    (workspace / ".env").write_text("TOKEN=x")
    with socket.create_server(("127.0.0.1", 0)) as server:
        return behind_filter(CALLER, workspace, str(victim / "secret"), str(server.getsockname()[1]))


@pytest.mark.vm
def test_every_loss_keeps_files_and_network_closed(found: Any) -> None:
    """With all losses accepted, or those that are needed: nothing outside is read or written, and there are no sockets."""
    assert set(found["free"].values()) == {0}, "the control: a plain child can do all of it"
    assert found["backend"] == "landlock"
    for attack in (found["needed"], found["every"]):
        assert all(attack[name] for name in OPEN), attack
        assert attack["denied"] == 0, "deny is lost by its own name, and is so in fact"
    for name in found["lost"]:
        assert any(f" {name}: " in f" {text}" for text in found["said"]), name


@pytest.mark.vm
def test_each_loss_has_to_be_named(found: Any) -> None:
    """Without one of them, with a single word, or with require="isolated", nothing runs at all."""
    assert {"attributes", "deny", "home", "processes", "tmp"} <= set(found["lost"])
    assert all(f" {name}: " in text for name, text in found["refusals"].items())
    assert None not in found["alone"].values() and len(found["alone"]) > len(LEVELS)
    assert "landlock" not in found["isolated"].split("(remedy")[0] and "namespaces: " in found["isolated"]
    assert not found["ran"], "no command of these was started"


DOCTOR = """
command = [sys.executable, "-P", "-m", "nsbox"]
text = subprocess.run([*command, "doctor"], stdout=subprocess.PIPE, text=True).stdout
checks = json.loads(subprocess.run([*command, "doctor", "--json"], stdout=subprocess.PIPE).stdout)["checks"]
(check,) = [check for check in checks if check["name"] == "the default policy, degraded"]
python, options = check["remedy"].split(", or nsbox ")
import shlex, nsbox
from nsbox import Policy
policy = eval(python.replace("...", repr(sys.argv[1])))
bare = subprocess.run([*command, "run", "-w", sys.argv[1], "--", "true"], stderr=subprocess.PIPE)
run = [subprocess.run([*command, *shlex.split(options), "-w", sys.argv[1], "--", "true"]).returncode, nsbox.run(["true"], policy=policy).returncode]
print(json.dumps({"check": check, "run": run, "bare": bare.returncode, "text": text, "degrade": sorted(policy.degrade)}))
"""


def test_doctor_says_what_to_write(tmp_path: Path) -> None:
    """The line that it prints, as Python and as a command, is enough there; without it nothing runs."""
    (tmp_path / "empty").mkdir()
    found = behind_filter(DOCTOR, tmp_path, str(tmp_path / "empty"))
    assert found["check"]["state"] == "works" and not found["check"]["is_needed"]
    assert found["run"] == [0, 0]
    assert found["bare"] != 0, "the control"
    assert f"write: {found['check']['remedy'].split(', or ')[0]}" in found["text"]
    words = {"attributes", "namespaces", "secrets"} if os.geteuid() == 0 else {"attributes", "namespaces"}
    assert set(found["degrade"]) == losses(words)
