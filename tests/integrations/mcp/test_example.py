"""The example does what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/integrations/mcp_client.py"


def test_example(tmp_path: Path) -> None:
    """A whole conversation, with the mistakes of a model in it; nothing is left of its directory."""
    done = subprocess.run(
        [sys.executable, EXAMPLE], cwd=tmp_path, env={**os.environ}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 6
    assert lines[1] == "python: 3.0"
    assert lines[2].startswith("shell: cat: ") and "No such file or directory" in lines[2]
    assert lines[3] == "read_lines: /etc/shadow is in no directory that the policy names"
    assert lines[5] == "shell: return float(sum(numbers)) / len(numbers)"
