"""What stands where nsbox expects the standard library's: fakes of tests at first use."""

from __future__ import annotations

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
