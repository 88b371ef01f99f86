"""A program that PyInstaller has frozen: nsbox's hook brings what it imports late."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from nsbox_testing import needs

PROGRAM = """
import nsbox
print(nsbox.run(["echo", "run"], capture_output=True, text=True).stdout, end="")
with nsbox.Sandbox(nsbox.Policy.workspace(".")) as box:
    print(box.shell("[[ a == a ]] && echo shell; ls /root").stdout, end="")
    with box.session() as session:
        print(session.shell("echo session").stdout, end="")
    try:
        box.Popen(["no-such-program"])
    except FileNotFoundError:
        print("missing")
listed = nsbox.Policy.workspace(".", network=["a.example"])
print(nsbox.run(["cat", "/etc/resolv.conf"], policy=listed, capture_output=True, text=True).stdout.split()[1])
with nsbox.Sandbox(nsbox.Policy.workspace(".")) as box, box.python(python="/usr/bin/python3") as py:
    print(py.run("print(6 * 7)").stdout, end="")
print(nsbox.explain(nsbox.Policy.workspace(".")).split()[0])
"""
# What the environment of a program with nsbox wouldn't have. To look into them takes most of the time.
EXCLUDED = ("gevent", "psutil", "pygments", "rich", "setuptools", "tkinter", "yaml", "zope")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the program. PyInstaller looks for what it imports once: it keeps that beside it."""
    path = tmp_path_factory.mktemp("frozen")
    (path / "app.py").write_text(PROGRAM)
    return path


@needs.module("PyInstaller")
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["--onedir", "--onefile"])
def test_frozen(source: Path, tmp_path: Path, kind: str) -> None:
    """One command, a Sandbox, a session, an error, Python: as not frozen."""
    (tmp_path / "work").mkdir()
    command = [sys.executable, "-m", "PyInstaller", kind, "--distpath", tmp_path / "dist", "--log-level", "ERROR"]
    without = [f"--exclude-module={name}" for name in EXCLUDED]
    subprocess.run([*command, *without, "app.py"], cwd=source, check=True, capture_output=True)
    app = tmp_path / "dist/app" if kind == "--onefile" else tmp_path / "dist/app/app"
    done = subprocess.run([app], cwd=tmp_path / "work", capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("run\nshell\nsession\nmissing\n198.19.0.53\n42\nbackend\n", "")
