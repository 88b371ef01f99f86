"""What commands of a session may try: its pid 1, which starts them, and the socket on which that is asked to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from nsbox_testing.running import python

from nsbox import Policy, Sandbox, Session


@pytest.fixture
def s(policy: Policy) -> Iterator[Session]:
    with Sandbox(policy, stock=0) as box, box.session() as made:
        yield made


def said(s: Session, code: str, *args: str, **options: Any) -> str:
    done = s.run(python(code, *args), capture_output=True, text=True, **options)
    assert done.stderr == ""
    return str(done.stdout)


LOOK = """
import os
found = []
for name in ("mem", "environ", "maps", "exe", "root", "cwd", "fd/0", "fd/1", "ns/user"):
    try:
        if name in ("mem", "environ", "maps"): found.append(name if open(f"/proc/1/{name}", "rb").read(1) else "")
        else: os.readlink(f"/proc/1/{name}"); found.append(name)
    except OSError: pass
print(found)
"""


def test_pid_1_cant_be_looked_into(s: Session) -> None:
    """It isn't dumpable: its memory, image and descriptors are out of reach, the socket among them."""
    assert said(s, LOOK) == "[]\n"


KILL = """
import os, signal
for sig in range(1, 65):
    for pid in (1, -1):
        try: os.kill(pid, sig)
        except OSError: pass
print("still here")
"""


def test_pid_1_cant_be_killed(s: Session) -> None:
    """Nor stopped: signals from inside don't reach the init of a pid namespace that has no handler for them."""
    for sig in (9, 15, 19):
        s.run(python(f"import os; os.kill(1, {sig})"), capture_output=True)
    s.run(python(KILL), capture_output=True)
    assert said(s, "print('here')") == "here\n"


def test_as_confined_as_any_command(s: Session, policy: Policy) -> None:
    """No capability, no new privileges, the same filters, ids and namespaces of its own; also pid 1 itself."""
    code = """
print([line.split()[1] for line in open("/proc/self/status") if line.startswith(("Cap", "NoNewPrivs", "Seccomp:"))])
print([line.split()[1] for line in open("/proc/1/status") if line.startswith(("Cap", "NoNewPrivs", "Seccomp:"))])
"""
    one, other = said(s, code).splitlines()
    assert one == other == str(["0" * 16] * 5 + ["1", "2"])


def test_nothing_of_the_host(s: Session) -> None:
    code = """
import os
def gone(call, *args):
    try: call(*args)
    except OSError: return True
    return False
print(gone(os.listdir, "/var/log"), gone(open, "/etc/written", "w"), gone(os.listdir, "/proc/1/root/"))
"""
    assert said(s, code) == "True True True\n"
    assert os.path.isdir("/var/log")  # the control


def test_no_descriptor_of_another_command(s: Session) -> None:
    """What one is given the next doesn't have, nor what pid 1 has."""
    reader, writer = os.pipe()
    code = "import os; print(sorted(os.readlink(f'/proc/self/fd/{fd}').split(':')[0] for fd in os.listdir('/proc/self/fd')[:3]))"
    try:
        s.run(["true"], pass_fds=[writer], check=True)
        found = said(s, code, stdin=-3)
        assert found == "['/dev/null', 'pipe', 'pipe']\n"
    finally:
        os.close(writer)
        assert os.read(reader, 1) == b""  # nobody has kept the other end
        os.close(reader)


def test_orphans_of_a_command_stay_inside(s: Session) -> None:
    """They become pid 1's, and end with it."""
    double = (
        "import os\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n    import time; time.sleep(1000)\n"
        "  os._exit(0)\nos.wait()"
    )
    s.run(python(double), check=True)
    found = [process.pid for process in s.processes()]
    assert found
    s.close()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in found)
