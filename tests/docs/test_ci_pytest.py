""".ci/pytest: a test that fails is run again; one that passes then is named, and one that fails again fails the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci/pytest"
GOOD = "def test_good(): pass\n"
ONCE = """\
import pathlib
def test_once():
    mark = pathlib.Path(__file__).with_name("mark")
    if not mark.exists():
        mark.write_text("")
        assert not "late"
"""


@pytest.mark.parametrize(
    ("source", "status", "unstable"),
    [
        (GOOD, 0, ""),
        (GOOD + ONCE, 0, "UNSTABLE: test_it.py::test_once\n"),
        (GOOD + ONCE + "def test_bad(): assert not 'wrong'\n", 1, ""),
        ("".join(ONCE.replace("once", f"once{n}").replace("mark\"", f"mark{n}\"") for n in range(4)), 1, ""),
        ("import nothing_like_this\n", 2, ""),
    ],
    ids=["good", "once", "bad", "too many", "broken"],
)  # fmt: skip
def test_again(source: str, status: int, unstable: str, tmp_path: Path) -> None:
    """Its status is pytest's, unless all of the few tests that failed pass three times. It leaves nothing."""
    (tmp_path / "test_it.py").write_text(source)
    scratch, told = tmp_path / "scratch", tmp_path / "unstable"
    scratch.mkdir()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {"PATH": path, "TMPDIR": str(scratch), "NSBOX_UNSTABLE": str(told), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(["bash", SCRIPT, "-q", "test_it.py"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    assert (told.read_text() if told.exists() else "") == unstable
    assert done.stdout.count("once more") == (3 if unstable else "bad" in source)
    assert list(scratch.glob("pytest-failed*")) == []
