"""What stands where nsbox expects the standard library's: fakes of tests at first use; and handlers that raise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(tmp_path: Path, code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


FAKES = {
    "class": "class Fake:\n    def __init__(self, *args, **options): self.args = args[0]",
    "subclass": "class Fake(subprocess.Popen):\n    def __init__(self, args, **options): self.args, self._child_created = args, False",
    "mock": "import unittest.mock\nFake = unittest.mock.Mock(side_effect=lambda args: unittest.mock.Mock(args=args))",
    "function": "def Fake(args, **options): return type('Answer', (), {'args': args})",
}


@pytest.mark.parametrize("fake", FAKES)
@pytest.mark.parametrize("imported", ["import subprocess, nsbox", "import nsbox, subprocess"])
def test_a_fake_at_first_use(tmp_path: Path, fake: str, imported: str) -> None:
    """It stays where it is, in a block too, and nsbox.Popen is a subclass of the real one."""
    code = f"""{imported}
{FAKES[fake]}
real, subprocess.Popen = subprocess.Popen, Fake
with nsbox.confined(nsbox.Policy.workspace(".")):
    print(subprocess.Popen(["x"]).args)
assert nsbox.run(["true"]).returncode == 0
assert subprocess.Popen is Fake
subprocess.Popen = real
assert issubclass(nsbox.Popen, real)
with nsbox.confined(nsbox.Policy.workspace(".")):
    assert subprocess.run(["ls", "/root"], capture_output=True).returncode
    assert subprocess.Popen is not real
"""
    assert run(tmp_path, code) == "['x']\n"


def test_a_handler_that_raises(tmp_path: Path) -> None:
    """At any moment of a Sandbox's spawns: their descriptors are closed."""
    code = """
import gc, logging, os, random, signal, sys
import nsbox
logging.disable()  # a status can get lost
class Raised(Exception): pass
def handler(*_): raise Raised
def descriptors():
    gc.collect()
    found = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")]
    return sum("pidfd" in one or "user:" in one or "mnt:" in one for one in found)
signal.signal(signal.SIGALRM, handler)
sys.unraisablehook = lambda *_: None
box = nsbox.Sandbox(nsbox.Policy.workspace("."), stock=1).start()
for _ in range(int(sys.argv[1])):
    signal.setitimer(signal.ITIMER_REAL, random.random() * 0.008 + 0.0002)
    try:
        box.run(["true"])
    except Raised:
        pass
    finally:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Raised:
            pass
box.close()
box.__exit__(None, None, None)
del box
nsbox.run(["true"])  # what subprocess keeps of those that nobody has waited for
print(descriptors() <= 8)
"""
    rounds = "600" if int(os.environ.get("NSBOX_THOROUGH", "0")) else "250"
    assert run(tmp_path, code.replace("sys.argv[1]", rounds)) == "True\n"
