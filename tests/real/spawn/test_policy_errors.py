"""Policies that can't be had: the right exception with the right words, before anything is started."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import nsbox
from nsbox import (
    Bind,
    BindFd,
    Dev,
    Dir,
    File,
    Mask,
    Op,
    Policy,
    PolicyError,
    Proc,
    RoBind,
    SetupError,
    Tmpfs,
)

ROOT = RoBind("/", "/")


def test_policy_of_a_wrong_type() -> None:
    """Something else than a Policy: TypeError that names the type."""
    with pytest.raises(TypeError, match="str"):
        nsbox.Popen(["true"], policy="workspace")


@pytest.mark.parametrize("kind", ["read", "write", "workspace"])
def test_source_that_vanishes(tmp_path: Path, workspace: Path, kind: str) -> None:
    """A path that is removed between policy and spawn: SetupError that names op, step and remedy."""
    extra = tmp_path / "extra"
    extra.mkdir()
    policy = Policy.workspace(extra) if kind == "workspace" else Policy.workspace(workspace, **{kind: [extra]})
    assert nsbox.run(["true"], policy=policy).returncode == 0
    extra.rmdir()
    with pytest.raises(SetupError) as caught:
        nsbox.run(["true"], policy=policy)
    error = caught.value
    assert isinstance(error, OSError)
    assert (error.errno, error.step) == (errno.ENOENT, "open source")
    assert str(extra) in error.op
    assert "doesn't exist" in error.hint
    assert all(part in str(error) for part in (error.op, error.step, error.hint, "No such file"))


def test_source_that_becomes_a_link(tmp_path: Path, workspace: Path) -> None:
    """A path of the policy that is replaced by a symlink before the spawn is not followed."""
    extra, secret = tmp_path / "extra", tmp_path / "secret"
    extra.mkdir()
    secret.mkdir()
    policy = Policy.workspace(workspace, write=[extra])
    extra.rmdir()
    extra.symlink_to(secret)
    with pytest.raises((PolicyError, SetupError)) as caught:
        nsbox.run(["touch", str(extra / "x")], policy=policy)
    assert "symlink" in str(caught.value)
    assert not list(secret.iterdir())


def test_source_that_comes_back(tmp_path: Path, workspace: Path) -> None:
    """After such an error the same policy works again when the path is back."""
    extra = tmp_path / "extra"
    extra.mkdir()
    policy = Policy.workspace(workspace, read=[extra])
    extra.rmdir()
    with pytest.raises(SetupError):
        nsbox.run(["true"], policy=policy)
    extra.mkdir()
    assert nsbox.run(["true"], policy=policy).returncode == 0


def test_optional_source() -> None:
    """optional=True lets a source be missing; another problem with it is still an error."""
    policy = Policy.layers(ROOT, Tmpfs("/mnt"), Bind("/no/such", "/mnt/x", optional=True))
    assert nsbox.run(["sh", "-c", "test ! -e /mnt/x"], policy=policy).returncode == 0
    with pytest.raises(SetupError) as caught:
        nsbox.run(["true"], policy=Policy.layers(ROOT, Tmpfs("/mnt"), Bind("/etc/passwd/x", "/mnt/x", optional=True)))
    assert caught.value.errno == errno.ENOTDIR


@pytest.mark.parametrize(
    "op",
    [Dir("/W/new/deep"), File("/W/new", b"x"), Tmpfs("/W/new"), RoBind("/etc", "/W/new"), Mask("/W/new")],
    ids=Op.describe,
)
def test_destination_that_the_host_lacks(workspace: Path, op: nsbox.Op) -> None:
    """A destination that would have to be made in a bound directory of the host: SetupError, and the host is untouched."""
    import dataclasses

    op = dataclasses.replace(op, dest=op.dest.replace("/W", str(workspace)))
    with pytest.raises(SetupError) as caught:
        nsbox.run(["true"], policy=Policy.layers(ROOT, Bind(str(workspace), str(workspace)), op))
    if isinstance(op, Mask):
        assert caught.value.errno == errno.ENOENT
    else:
        assert caught.value.step == "would change the host"
        assert "on the host first" in caught.value.hint
    assert caught.value.op == op.describe()
    assert list(workspace.iterdir()) == []


def test_file_over_a_file_of_the_host(workspace: Path) -> None:
    """File() doesn't overwrite a file of the host, nor does Chmod() change its mode."""
    target = workspace / "file"
    target.write_text("mine")
    target.chmod(0o640)
    base = (ROOT, Bind(str(workspace), str(workspace)))
    for op in (File(str(target), b"theirs"), nsbox.Chmod(str(target), 0o777), nsbox.Symlink("/etc", str(target))):
        with pytest.raises(SetupError):
            nsbox.run(["true"], policy=Policy.layers(*base, op))
    assert target.read_text() == "mine"
    assert target.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("kind", ["file on directory", "directory on file", "below a file"])
def test_mounts_of_another_kind(workspace: Path, kind: str) -> None:
    """A directory on a file and the like: SetupError, not a crash, with op and step."""
    (workspace / "file").touch()
    (workspace / "dir").mkdir()
    base = (ROOT, Bind(str(workspace), str(workspace)))
    source, dest = {
        "file on directory": ("/etc/passwd", "dir"),
        "directory on file": ("/etc", "file"),
        "below a file": ("/etc", "file/x"),
    }[kind]
    with pytest.raises(SetupError) as caught:
        nsbox.run(["true"], policy=Policy.layers(*base, RoBind(source, f"{workspace}/{dest}")))
    assert caught.value.errno in (errno.ENOTDIR, errno.EINVAL)
    assert caught.value.op and caught.value.step


def test_descriptor_that_is_closed() -> None:
    """BindFd and File from a closed descriptor: EBADF, before anything is made."""
    for op in (BindFd(700, "/mnt"), File("/mnt/x", 700)):
        with pytest.raises(OSError) as caught:
            nsbox.run(["true"], policy=Policy.layers(ROOT, Tmpfs("/mnt"), op))
        assert caught.value.errno == errno.EBADF


def test_descriptor_of_a_directory(workspace: Path) -> None:
    """BindFd binds what is open, also when its name leads elsewhere by now."""
    real = workspace / "real"
    real.mkdir()
    (real / "f").write_text("by descriptor")
    fd = os.open(real, os.O_PATH | os.O_DIRECTORY)
    try:
        real.rename(workspace / "moved")
        policy = Policy.layers(ROOT, Tmpfs("/mnt"), BindFd(fd, "/mnt/x"), Proc("/proc"), Dev("/dev"))
        done = nsbox.run(["cat", "/mnt/x/f"], policy=policy, capture_output=True)
        assert done.stdout == b"by descriptor"
    finally:
        os.close(fd)


def test_twenty_thousand_ops() -> None:
    """20,000 ops are carried out."""
    ops = [Dir(f"/mnt/{i // 1000}/{i}") for i in range(20_000)]
    policy = Policy.layers(ROOT, Tmpfs("/mnt"), *ops)
    done = nsbox.run(["sh", "-c", "ls -d /mnt/*/* | wc -l"], policy=policy, capture_output=True, text=True)
    assert done.stdout == "20000\n", done.stderr


def test_twenty_thousand_files(workspace: Path) -> None:
    """20,000 files with contents, which the last op then hides again."""
    policy = Policy.layers(ROOT, Tmpfs("/mnt"), *(File(f"/mnt/{i}", b"%d" % i) for i in range(20_000)))
    done = nsbox.run(["sh", "-c", "ls /mnt | wc -l; cat /mnt/19999"], policy=policy, capture_output=True, text=True)
    assert done.stdout.split() == ["20000", "19999"], done.stderr


def test_too_many_mounts(workspace: Path) -> None:
    """More mounts than the kernel allows: SetupError with ENOSPC; the host's mounts are the same (the fixture looks)."""
    limit = int(Path("/proc/sys/fs/mount-max").read_text())
    if limit > 200_000:
        pytest.skip(f"fs.mount-max is {limit}, too many to try")
    # Each layer of binds on "/mnt" copies all those below it: exponential, so a few ops exceed any limit.
    ops = [Tmpfs("/mnt"), *(RoBind("/proc", f"/mnt/{i}") for i in range(2))]
    policy = Policy.layers(ROOT, *ops, *(Tmpfs(f"/mnt/0/{i}") for i in range(2)))
    with pytest.raises(SetupError):
        nsbox.run(["true"], policy=policy)


def test_a_destination_as_long_as_paths_can_be() -> None:
    """A path of nearly 4096 bytes with components of 255, made step by step; one that is longer is a PolicyError."""
    deep = "/mnt" + ("/" + "d" * 200) * 20
    assert len(deep) > 4000
    policy = Policy.layers(ROOT, Tmpfs("/mnt"), Dir(deep))
    assert nsbox.run(["test", "-d", deep], policy=policy).returncode == 0
    with pytest.raises(PolicyError):
        Dir("/mnt" + "/x" * 2100)


def test_no_root_at_all() -> None:
    """A policy without a single op has an empty root, where no program is found."""
    with pytest.raises(FileNotFoundError):
        nsbox.run(["true"], policy=Policy.layers(), cwd="/")


def test_workdir_that_is_not_there() -> None:
    """The error has the policy's path as the policy has it, and says whose it is."""
    with pytest.raises(FileNotFoundError) as caught:
        nsbox.run(["true"], policy=Policy.layers(ROOT, workdir="/nope"))
    assert caught.value.filename == "/nope"
    assert caught.value.__notes__ == ["nsbox: it is the policy's workdir, where commands start: /nope"]


@pytest.mark.parametrize("cwd", ["/nope", b"/nope"])
def test_cwd_that_is_not_there(cwd: str | bytes) -> None:
    """As with subprocess, the error has the path as the caller named it."""
    with pytest.raises(FileNotFoundError) as caught:
        nsbox.run(["true"], policy=Policy.layers(ROOT), cwd=cwd)
    assert caught.value.filename == cwd
