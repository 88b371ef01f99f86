"""Directories that have gone: another one is never taken instead, where a command might do harm in it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import nsbox
from nsbox import AccessError, Policy, Sandbox


@pytest.fixture
def lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory has been removed."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(tmp_path)
    os.chdir(gone)
    gone.rmdir()
    yield gone
    os.chdir("/")


@pytest.mark.parametrize("how", ["removed", "moved away", "replaced by a file"])
def test_of_a_kept_shell(policy: Policy, workspace: Path, how: str) -> None:
    """`rm -rf ./*` in a directory that has gone mustn't empty the workspace."""
    (workspace / "precious").write_text("x")
    (workspace / "build").mkdir()
    with Sandbox(policy, stock=0) as box, box.session() as s:
        s.shell("cd build", keep=True, check=True)
        if how == "moved away":
            (workspace / "build").rename(workspace / "other")
        else:
            (workspace / "build").rmdir()
        if how == "replaced by a file":
            (workspace / "build").write_text("")
        for _ in range(2):
            with pytest.raises(AccessError, match="build is where the last command") as caught:
                s.shell("rm -rf ./*", keep=True)
            assert caught.value.filename == str(workspace / "build")
        with pytest.raises(AccessError):
            s.shell("rm -rf ./*", keep=True, cwd=None)
        assert (workspace / "precious").exists()
        assert s.shell("pwd", keep=True, cwd=".").stdout == f"{workspace}\n"
        assert s.shell("pwd", keep=True).stdout == f"{workspace}\n"


def test_of_a_tool(policy: Policy, workspace: Path) -> None:
    with Sandbox(policy, stock=0) as box, box.session() as s:
        for keeper in (box, s):
            with pytest.raises(AccessError, match="nowhere"):
                keeper.shell("rm -rf ./*", cwd="nowhere")


def test_a_policy_has_another_one(policy: Policy, workspace: Path, lost: Path) -> None:
    """Commands start in the policy's own."""
    with Sandbox(policy, stock=0) as box, box.session() as s:
        assert box.shell("pwd").stdout == s.shell("pwd").stdout == f"{workspace}\n"
        assert box.run(["pwd"], stdout=-1).stdout == s.run(["pwd"], stdout=-1).stdout == os.fsencode(f"{workspace}\n")
    for backend in ("auto", "landlock", "passthrough"):
        chosen = policy.with_(backend=backend, require="nothing")
        assert nsbox.run(["pwd"], policy=chosen, stdout=-1).stdout == os.fsencode(f"{workspace}\n")


@pytest.mark.parametrize(
    "use",
    [
        lambda: nsbox.run(["pwd"]),
        lambda: Policy.workspace("."),
        lambda: Policy.workspace("/usr", read=["sub"]),
        lambda: Policy.load("policy.toml"),
        lambda: nsbox.run(["rm", "-rf", "x"], policy=Policy.host()),
        lambda: nsbox.run(["pwd"], policy=Policy.host(), cwd="sub"),
    ],
)
def test_none_is_said_with_its_name(lost: Path, use: Callable[[], Any]) -> None:
    with pytest.raises(FileNotFoundError, match="the current directory has been removed") as caught:
        use()
    assert caught.value.filename == str(lost)


def test_the_command_line(workspace: Path, lost: Path) -> None:
    words = [sys.executable, "-P", "-m", "nsbox", "run"]
    done = subprocess.run([*words, "-w", str(workspace), "--", "pwd"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{workspace}\n")
    done = subprocess.run([*words, "--", "pwd"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (125, "", 1)
    assert "the current directory has been removed" in done.stderr
    assert str(lost) in done.stderr


# ---- beside a workspace in /tmp


@pytest.mark.parametrize("below", ["ws", "deep/er/ws"])
def test_nothing_beside_a_workspace_in_tmp_vanishes(tmp_path: Path, below: str) -> None:
    """What is written there is refused, with a hint; it would be gone with the command."""
    if not str(tmp_path).startswith("/tmp/"):
        pytest.skip("needs a directory below /tmp")
    place = tmp_path / below
    place.mkdir(parents=True)
    (tmp_path / "lib").mkdir()
    top = "/".join(str(tmp_path).split("/")[:3])
    policy = Policy.workspace(place, read=[tmp_path / "lib"])
    with Sandbox(policy, stock=0) as box, box.session() as s:
        for keeper in (box, s):
            for line in ("echo x > ../result.txt", "mkdir ../new", f"mv {top} {top}x", f"touch {tmp_path}/lib/x"):
                result = keeper.shell(line)
                assert result.returncode
                assert "Read-only" in result.stderr or "busy" in result.stderr
            result = keeper.shell("echo x > ../result.txt")
            assert [hint.kind for hint in result.why] == ["outside"]
            assert f"writable: {place}" in result.why[0].message
            assert keeper.shell("echo x > /tmp/own; echo x > mine; cat /tmp/own mine").stdout == "x\nx\n"
        process = box.Popen(["true"])
        process.wait()
        assert process.sandbox.is_warm
    assert sorted(path.name for path in place.iterdir()) == ["mine"]
