"""What the command says on a machine or in an installation that can't do something: one line, with what to do.

A wrong Python, no compiler: tests/docs/test_install.py. Old releases of pip, users without a home: .ci/installs. Each
test here has the same without what is wrong, as its control.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from nsbox_testing import needs

import nsbox

COMMAND = [sys.executable, "-P", "-m", "nsbox"]
OTHER_MACHINE = 243  # EM_RISCV: elf(5)


def run(command: list[str], at: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=at, capture_output=True, text=True, stdin=subprocess.DEVNULL, env={**os.environ, **env}
    )


def copied(to: Path) -> Path:
    """Copy the installed package; return the file of its C core."""
    shutil.copytree(Path(nsbox.__file__).parent, to / "nsbox", ignore=shutil.ignore_patterns("__pycache__"))
    (core,) = (to / "nsbox").glob("_nsbox*.so")
    return core


def without(core: Path) -> None:
    core.unlink()


def for_another_machine(core: Path) -> None:
    data = bytearray(core.read_bytes())
    data[18:20] = OTHER_MACHINE.to_bytes(2, sys.byteorder)  # e_machine
    core.write_bytes(data)


@needs.copied_installation()
@pytest.mark.parametrize("spoil", [without, for_another_machine])
def test_core(tmp_path: Path, workspace: Path, spoil: object) -> None:
    """A core that is missing, or was built for another processor: install again, and nothing else is named."""
    assert callable(spoil)
    core = copied(tmp_path / "copy")
    words = {"PYTHONPATH": str(core.parents[1])}
    command = [*COMMAND, "run", "sh", "-c", "echo ran | tee made"]
    assert run(command, workspace, **words).stdout == "ran\n"
    (workspace / "made").unlink()
    spoil(core)
    done = run(command, workspace, **words)
    assert (done.returncode, done.stdout, os.listdir(workspace)) == (125, "", [])
    start = "nsbox: this machine can't do it: the C core is missing ("
    end = ") (remedy: pip install --force-reinstall nsbox, with the Python that runs it)\n"
    assert done.stderr.startswith(start) and done.stderr.endswith(end) and done.stderr.count("\n") == 1


def in_namespaces(script: str, *words: str | Path) -> list[str]:
    """A command in a user and a mount namespace of its own, after a shell's line that is done there."""
    return ["unshare", "-Urm", "sh", "-c", f'{script} && exec "$@"', "sh", *map(str, words)]


@needs.programs("unshare")
def test_no_user_namespaces(workspace: Path) -> None:
    """Where no user namespace can be made the line names the setting and its remedy; nothing runs with less.

    The setting is that of a user namespace of the test's own.
    """
    words = (*COMMAND, "run", "--require", "isolated", "sh", "-c", "echo ran | tee made")
    assert run(in_namespaces("true", *words), workspace).stdout == "ran\n"
    (workspace / "made").unlink()
    done = run(in_namespaces("echo 0 > /proc/sys/user/max_user_namespaces", *words), workspace)
    assert (done.returncode, done.stdout, os.listdir(workspace)) == (125, "", []) and done.stderr.count("\n") == 1
    assert "user.max_user_namespaces is 0 (remedy: sysctl user.max_user_namespaces=15000)" in done.stderr


@needs.programs("unshare", "mount")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "true"], None),
        (["doctor", "home"], None),
        (["run", "--home", "private:kept", "true"], "set XDG_STATE_HOME to a directory of this user's"),
        (["run", "--transaction", "true"], "set XDG_STATE_HOME to a directory of yours"),
    ],
)
def test_read_only_home(workspace: Path, tmp_path: Path, words: list[str], told: str | None) -> None:
    """What needs nothing there works; for what is kept there, the line says where else. Control: a writable home."""
    home = tmp_path / "me"
    home.mkdir()
    env = {"HOME": str(home), "XDG_STATE_HOME": ""}
    mount = f"mount --bind {home} {home} && mount -o remount,bind,ro {home}"
    done = run(in_namespaces(mount, *COMMAND, *words), workspace, **env)
    if told is None:
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode == 125 and told in done.stderr and "Read-only file system" in done.stderr
        assert done.stderr.count("\n") == 1
    assert os.listdir(home) == []
    done = run(in_namespaces("true", *COMMAND, *words), workspace, **env)
    assert (done.returncode, done.stderr) == (0, "")
