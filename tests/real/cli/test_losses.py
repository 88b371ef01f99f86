"""`nsbox run` says what a command goes without: a line on standard error for each loss that --degrade accepts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from nsbox_testing.terminals import bash

import nsbox
from nsbox import Policy

COMMAND = [sys.executable, "-P", "-m", "nsbox"]
# What Landlock can't do for an ordinary user or for root.
ACCEPTED = ("attributes", "home", "ids", "processes", "secrets", "tmp")
LANDLOCK = ["--backend", "landlock", "--degrade", ",".join(ACCEPTED)]

pytestmark = pytest.mark.skipif(nsbox.probe().landlock_abi < 2, reason="needs Landlock of version 2 or later")


def run(workspace: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], cwd=workspace, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def lost(workspace: Path) -> frozenset[str]:
    """What the same command loses, as its own record says."""
    policy = Policy.workspace(workspace, backend="landlock", degrade=ACCEPTED)
    with nsbox.Popen(["true"], policy=policy) as process:
        process.wait()
    assert process.sandbox is not None and process.sandbox.lost
    return process.sandbox.lost


@pytest.mark.parametrize("work", [["run"], ["run", "--timeout", "50"]])
def test_each_loss_is_told(workspace: Path, work: list[str]) -> None:
    """Standard error has a line for each, before the command's own; standard output has the command's alone."""
    done = run(workspace, *work, *LANDLOCK, "sh", "-c", "echo out; echo err >&2; exit 3")
    *lines, last = done.stderr.splitlines()
    assert (done.returncode, done.stdout, last) == (3, "out\n", "err")
    assert [line.split(" (")[0] for line in lines] == [f"nsbox: lost here: {name}" for name in sorted(lost(workspace))]
    assert all(line.endswith(")") for line in lines)


def test_what_is_accepted_in_vain(workspace: Path) -> None:
    """Where nothing has to be lost, nothing is told. Control: the same words where it has to."""
    done = run(workspace, "run", "--degrade", ",".join(ACCEPTED), "true")
    assert (done.returncode, done.stderr) == (0, "")
    assert run(workspace, "run", *LANDLOCK, "true").stderr != ""


def test_quiet(workspace: Path) -> None:
    """--quiet leaves out losses. It leaves out no error, nor the warning that nothing is contained."""
    done = run(workspace, "run", "--quiet", *LANDLOCK, "true")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = run(workspace, "run", "-q", "--backend", "landlock", "true")
    assert done.returncode == 125 and done.stderr.startswith("nsbox: ")
    done = run(workspace, "run", "-q", "--backend", "passthrough", "--require", "nothing", "true")
    assert done.returncode == 0 and done.stderr.count("\n") == 1 and "without any containment" in done.stderr


def test_nothing_contained(workspace: Path) -> None:
    """Without any containment one line says so, instead of all that is lost."""
    done = run(workspace, "run", "--backend", "passthrough", "--require", "nothing", "true")
    assert done.returncode == 0 and done.stderr.count("\n") == 1 and "without any containment" in done.stderr


def test_policy_file(workspace: Path, tmp_path: Path) -> None:
    """A file's `degrade` is told of as the option is."""
    words = ", ".join(f'"{name}"' for name in ACCEPTED)
    (tmp_path / "box.toml").write_text(f'workspace = "workspace"\nbackend = "landlock"\ndegrade = [{words}]\n')
    done = run(workspace, "run", "--policy", str(tmp_path / "box.toml"), "true")
    assert done.stderr.count("nsbox: lost here: ") == len(lost(workspace))


def test_terminal(workspace: Path) -> None:
    """At a terminal the lines come before the command's output, each at the left margin."""
    with bash(workspace) as screen:
        screen.line(f"{' '.join(COMMAND)} run {' '.join(LANDLOCK)} echo o''ut")
        text = screen.until("\nout\n")
    assert text.count("\nnsbox: lost here: ") == len(lost(workspace))
