"""The bar of nsbox bench: on a terminal's standard error alone, by rich or without, and gone at the end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
if {without}: sys.modules["rich"] = sys.modules["rich.console"] = sys.modules["rich.progress"] = None
from nsbox._cli.progress import Progress
with Progress(2) as progress:
    progress.show(0, "measuring: this")
    progress.note("a note")
print("seen", progress.is_seen)
"""


@pytest.mark.parametrize("without", [True, False], ids=["without-rich", "with-rich"])
def test_on_a_terminal(tmp_path: Path, without: bool) -> None:
    """How far it is, what is being done, and notes that stay."""
    pexpect = pytest.importorskip("pexpect")
    code = [sys.executable, ["-P", "-c", CODE.format(without=without)]]
    env = {"TERM": "xterm", "PATH": "/usr/bin:/bin", "COLUMNS": "80"}
    shown = pexpect.spawn(*code, cwd=str(tmp_path), env=env, encoding="utf-8", timeout=50, dimensions=(24, 80))
    shown.expect(pexpect.EOF)
    text = shown.before
    assert "0/2" in text and "measuring: this" in text and "a note" in text and text.rstrip().endswith("seen True")
    assert ("\x1b" in text) is not without


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_in_a_pipe(tmp_path: Path, term: str) -> None:
    """Only the notes."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", CODE.format(without=False)],
        cwd=tmp_path,
        env={"TERM": term},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("seen False\n", "a note\n")
