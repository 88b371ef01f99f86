"""Workspaces on file systems that lack flags of renameat2(2): FUSE, NFS, 9p. A transaction's work isn't lost there."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from nsbox_testing import needs

import nsbox
from nsbox import Policy, Sandbox, UnavailableError
from nsbox._files import files

WORK = "echo 2 > a && rm b && mv c d && mkdir e && echo 5 > e/f && rmdir g"


def fill(at: Path) -> None:
    for name in ("a", "b", "c"):
        (at / name).write_text("1\n")
    (at / "g").mkdir()


def check(at: Path) -> None:
    assert sorted(os.listdir(at)) == ["a", "d", "e"]
    assert [(at / name).read_text() for name in ("a", "d", "e/f")] == ["2\n", "1\n", "5\n"]


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A directory on FUSE."""
    bindfs = needs.require("bindfs")
    for name in ("src", "mnt"):
        (tmp_path / name).mkdir()
    fill(tmp_path / "src")
    done = subprocess.run([bindfs, tmp_path / "src", tmp_path / "mnt"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{needs.reason('bindfs')}: {done.stderr}")
    try:
        yield tmp_path / "mnt"
    finally:
        subprocess.run(["fusermount", "-u", tmp_path / "mnt"], check=True)


def test_fuse(mounted: Path, tmp_path: Path) -> None:
    """A commit on FUSE brings all changes in."""
    (tmp_path / "state").mkdir(mode=0o700)
    try:
        with Sandbox(Policy.workspace(mounted)) as box, box.transaction(dir=tmp_path / "state") as tx:
            tx.shell(WORK, check=True)
            tx.commit()
    except UnavailableError as error:
        pytest.skip(str(error))
    check(tmp_path / "src")


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP])
def test_no_flags(tmp_path: Path, error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where the calls alone are imitated, by each errno that such file systems have for them."""
    rename = files.rename

    def without_flags(from_dir: int, name: str, to_dir: int, new: str, flags: int = 0) -> None:
        if flags:
            raise OSError(error, os.strerror(error), name)
        rename(from_dir, name, to_dir, new)

    monkeypatch.setattr(files, "rename", without_flags)
    ws = tmp_path / "ws"
    ws.mkdir()
    fill(ws)
    with Sandbox(Policy.workspace(ws)) as box, box.transaction(dir=tmp_path / "state") as tx:
        tx.shell(WORK, check=True)
        tx.commit()
    check(ws)


def test_commands(mounted: Path) -> None:
    """Commands read and write there, and what is hidden there is."""
    try:
        with Sandbox(Policy.workspace(mounted, deny=[mounted / "b*"])) as box:
            assert box.shell("cat a && echo 3 > new && ! cat b").returncode == 0
    except UnavailableError as error:
        pytest.skip(str(error))
    assert (mounted / "new").read_text() == "3\n"


AUTOMOUNTER = """
import ctypes, fcntl, os, signal, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
at = sys.argv[1].encode()
asked, end = os.pipe()
os.setpgid(0, 0)
libc.prctl(1, 9, 0, 0, 0)
options = f"fd={end},pgrp={os.getpgrp()},minproto=5,maxproto=5,direct".encode()
if libc.mount(b"test", at, b"autofs", 0, options):
    print("none", flush=True)
    sys.exit()
root = os.open(at, os.O_RDONLY | os.O_DIRECTORY)
print("ready", flush=True)
while packet := os.read(asked, 304):
    token = struct.unpack_from("iiI", packet)[2]
    libc.mount(b"test", at, b"tmpfs", 0, b"mode=755")
    with open(at + b"/f", "w") as file: file.write("auto")
    fcntl.ioctl(root, 0x9360, token)
"""


@pytest.fixture
def automount(tmp_path: Path) -> Iterator[Path]:
    """A directory that is mounted at its first use, by a small automounter."""
    if os.geteuid() != 0:
        pytest.skip("root mounts")
    at = tmp_path / "ws/auto"
    at.mkdir(parents=True)
    process = subprocess.Popen([sys.executable, "-c", AUTOMOUNTER, at], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "ready\n":
            pytest.skip("this kernel has no autofs")
        nsbox.probe(refresh=True)
        yield at
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        while os.path.ismount(at) and subprocess.run(["umount", "-l", at], stderr=subprocess.DEVNULL).returncode == 0:
            pass
        nsbox.probe(refresh=True)


@pytest.mark.parametrize("ids", ["single", "full"])
@pytest.mark.parametrize("what", ["in the workspace", "read", "workspace"])
def test_automount(automount: Path, tmp_path: Path, what: str, ids: Literal["single", "full"]) -> None:
    """What is mounted at its first use is there, whether it is named or lies in what is."""
    (tmp_path / "other").mkdir()
    at = {"workspace": automount, "read": tmp_path / "other"}.get(what, automount.parent)
    policy = Policy.workspace(at, read=[automount] if what == "read" else [], ids=ids)
    with Sandbox(policy) as box:
        for face in (policy, box):
            done = nsbox.run(["cat", automount / "f"], policy=face, capture_output=True, text=True)
            assert done.stdout == "auto", done.stderr
