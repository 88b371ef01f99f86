""".ci/pytest: a test that fails is run again; one that passes then is named, and one that fails again fails the run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from nsbox_testing.verdicts import LONG

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
NOTE = """\
import pytest
@pytest.fixture(autouse=True)
def note(tmp_path):
    with open("bases", "a") as file:
        print(tmp_path.parent, file=file)
"""


def again(directory: Path, **env: str) -> subprocess.CompletedProcess[str]:
    env |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = ["bash", SCRIPT, "pytest", "-q", "test_it.py"]
    return subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True)


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
    done = again(tmp_path, TMPDIR=str(scratch), NSBOX_UNSTABLE=str(told))
    assert done.returncode == status, done.stdout + done.stderr
    assert (told.read_text() if told.exists() else "") == unstable
    assert done.stdout.count("once more") == (3 if unstable else "bad" in source)
    assert list(scratch.glob("pytest-failed*")) == []


def test_directories_for_temporary_files(tmp_path: Path) -> None:
    """Each of the four runs has a new one, whose name is short, and it is removed."""
    (tmp_path / "test_it.py").write_text(NOTE + ONCE)
    base = tmp_path / "base"
    base.mkdir()
    done = again(tmp_path, NSBOX_TESTS_BASE=str(base))
    assert done.returncode == 0, done.stdout + done.stderr
    bases = {*(tmp_path / "bases").read_text().splitlines()}
    assert len(bases) == 4
    assert all(Path(path).parent == base and len(Path(path).name) == 4 for path in bases)
    deadline = time.monotonic() + LONG
    while os.listdir(base):  # it goes on when the script has ended
        assert time.monotonic() < deadline
        time.sleep(0.01)
