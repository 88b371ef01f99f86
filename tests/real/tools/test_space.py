"""Hints about full file systems: they say what was seen, and /tmp is named only if it can't have been anything else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nsbox import Limits, Policy, Sandbox
from nsbox._tools import space
from nsbox._tools.view import view

IN_TMP = "/tmp is in memory, and has 50 MiB (tmp_size); files belong in the workspace"
PERHAPS = f"the disks that it can write to have room, so perhaps /tmp was full: it {IN_TMP.removeprefix('/tmp ')}"


@pytest.fixture
def policy(workspace: Path) -> Policy:
    return Policy.workspace(workspace, tmp_size="50M")


def said(policy: Policy, text: str, store: str | None = None) -> list[str]:
    found = space.full(view(policy), text, str(policy.workdir), store)
    return [hint.message for hint in found]


@pytest.mark.parametrize(
    ("text", "is_full", "hints"),
    [
        ("cp: error writing '{at}/x': No space left on device", True, ["disk"]),
        ("cp: error writing '{at}/x': No space left on device", False, []),
        ("OSError: [Errno 28] No space left on device: 'file'", True, ["disk"]),
        ("cp: error writing '/tmp/x': No space left on device", True, [IN_TMP]),
        ("cp: error writing '/tmp/x': No space left on device", False, [IN_TMP]),
        ("cp: error writing '/tmp/x' and {at}/y: No space left on device", True, ["disk", IN_TMP]),
        ("head: error writing 'standard output': No space left on device", True, ["disk"]),
        ("head: error writing 'standard output': No space left on device", False, [PERHAPS]),
        ("/tmp/x: No such file", True, []),
    ],
)
def test_what_is_said(
    policy: Policy, workspace: Path, monkeypatch: pytest.MonkeyPatch, text: str, is_full: bool, hints: list[str]
) -> None:
    """By the path that the message names; without one, by what commands can write to."""
    (workspace / "file").touch()
    monkeypatch.setattr(space, "LITTLE", (1 << 62) if is_full else 0)
    found = said(policy, text.format(at=workspace))
    assert len(found) == len(hints)
    for one, hint in zip(found, hints, strict=True):
        if hint == "disk":
            assert one.startswith(f"the file system of {workspace} is full: ") and one.endswith("make room there")
        else:
            assert one == hint


def test_what_is_kept_elsewhere(policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a task and a transaction it is the store that counts, except for /tmp."""
    monkeypatch.setattr(space, "LITTLE", 1 << 62)
    (one,) = said(policy, "cp: error writing 'x/y': No space left on device", str(tmp_path))
    assert one.startswith(f"the file system of {tmp_path}, which keeps what commands write, is full: ")
    assert said(policy, "cp: error writing '/tmp/y': No space left on device", str(tmp_path)) == [IN_TMP]
    monkeypatch.setattr(space, "LITTLE", 0)
    assert said(policy, "cp: error writing 'x/y': No space left on device", str(tmp_path)) == []


def test_devices_and_links(policy: Policy, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no room by its nature isn't full, and a link in the workspace isn't what it leads to."""
    (workspace / "link").symlink_to("/tmp")
    monkeypatch.setattr(space, "LITTLE", 0)
    assert said(policy, "echo: write error: '/dev/full': No space left on device") == []
    assert said(policy, f"echo: write error: '{workspace}/link/x': No space left on device") == [IN_TMP]


FULL = """
os.makedirs(f"{at}/work"); os.makedirs(f"{at}/small")
for name in ("work", "small"):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2M", "none", f"{at}/{name}"], check=True)
os.mkdir(f"{at}/small/store", 0o700)
with nsbox.Sandbox(nsbox.Policy.workspace(f"{at}/work", tmp_size="50M")) as box:
    with box.task(dir=f"{at}/small/store") as task:
        print(*task.shell("head -c 4000000 /dev/zero > big").why)
        print(*task.shell("head -c 4000000 /dev/zero > big; true").why)
    with box.transaction(dir=f"{at}/small/store") as transaction:
        print(*transaction.shell("head -c 4000000 /dev/zero > big").why)
    with box.session() as session:
        print(*session.shell("head -c 4000000 /dev/zero > big").why)
        print(*session.shell("head -c 4000000 /dev/zero > big; true").why)
"""


def test_full_file_systems(tmp_path: Path) -> None:
    """A full workspace, and a full store of a task and a transaction; also if the line goes on."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("needs unshare (util-linux)")
    options = ["-m"] if os.geteuid() == 0 else ["-U", "-r", "-m"]
    if subprocess.run([unshare, *options, "mount", "-t", "tmpfs", "none", tmp_path], capture_output=True).returncode:
        pytest.skip("needs a user namespace in which it may mount")
    code = "import os, sys, subprocess, nsbox\nat = sys.argv[1]\n" + FULL
    done = subprocess.run(
        [unshare, *options, sys.executable, "-P", "-c", code, tmp_path], capture_output=True, text=True
    )
    if "has no user.* attributes" in done.stderr:
        pytest.skip("tmpfs has no user.* attributes before Linux 6.6")
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert [line.split(" is full: ")[0].replace(str(tmp_path), "") for line in lines] == [
        *[f"the file system of /small/store/{Path(lines[0].split(',')[0]).name}, which keeps what commands write,"] * 2,
        f"the file system of /small/store/{Path(lines[2].split(',')[0]).name}, which keeps what commands write,",
        *["the file system of /work"] * 2,
    ]


def test_a_limit_is_named_once(policy: Policy) -> None:
    """In the units that people write, whether the line ends with it or goes on."""
    with Sandbox(policy.with_(limits=Limits(file_size="2M"))) as box:
        for line in ("head -c 3M /dev/zero > big", "head -c 3M /dev/zero > big; true"):
            told = [hint.message for hint in box.shell(line).why if hint.kind == "limit"]
            assert len(told) == 1 and "limits.file_size=2 MiB" in told[0]
