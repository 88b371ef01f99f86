"""Tests that you don't trust, such as a model's: pytest runs them, each in a sandbox.

python examples/integrations/pytest_plugin.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = """
from pathlib import Path

def test_sum():
    assert sum([1, 2, 3]) == 6

def test_that_spies():
    Path("/etc/shadow").read_text()

def test_that_cheats():
    import os
    os._exit(0)
"""

with tempfile.TemporaryDirectory() as project:
    Path(project, "test_model.py").write_text(TESTS)
    options = ["--nsbox", "-q", "--tb=line", "-rA", "-p", "no:cacheprovider"]
    done = subprocess.run([sys.executable, "-m", "pytest", *options], cwd=project, capture_output=True, text=True)
    print("\n".join(line for line in done.stdout.splitlines() if line.startswith(("PASSED", "FAILED"))))
