"""Virtual environments that commands of a task or a transaction make: the next command finds their programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsbox import Policy, Sandbox

MAKE = "mkdir -p .venv/bin; touch .venv/pyvenv.cfg; ln -sf /usr/bin/true .venv/bin/mytool"
FIND = "command -v mytool"


@pytest.mark.parametrize("kind", ["task", "transaction"])
def test_a_venv_made_inside(policy: Policy, workspace: Path, kind: str) -> None:
    """It is in PATH from the next command on; once it is removed, it isn't."""
    with Sandbox(policy, stock=0) as box, getattr(box, kind)() as one:
        assert one.shell(FIND).returncode == 1
        one.shell(MAKE, check=True)
        tool = f"{workspace}/.venv/bin/mytool\n"
        assert one.shell(FIND).stdout == one.shell(FIND, env={"A": "1"}).stdout == tool
        assert one.exec("mytool").returncode == 0
        if kind == "task":
            assert one.shell(FIND, keep=True).stdout == tool
        assert box.shell(FIND).returncode == 1
        one.shell("rm -rf .venv; mkdir .venv", check=True)
        assert one.shell(FIND).returncode == 1


@pytest.mark.parametrize("kind", ["task", "transaction"])
@pytest.mark.parametrize(
    "line", ["rm -rf .venv", "rm -rf .venv; mkdir .venv", "rm -rf .venv; touch .venv", "rm .venv/pyvenv.cfg"]
)
def test_a_venv_removed_inside(policy: Policy, kind: str, line: str) -> None:
    """The host's isn't in PATH any more, though it is there."""
    with Sandbox(policy, stock=0) as box:
        box.shell(MAKE, check=True)
        with getattr(box, kind)() as one:
            assert one.shell(FIND).returncode == 0
            one.shell(line, check=True)
            assert one.shell("echo $PATH").stdout.count(".venv") == 0
        assert box.shell(FIND).returncode == 0
