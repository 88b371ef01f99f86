"""Directories of sockets: what a killed process left is removed by the next one, and nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsbox.integrations.jupyter import directories
from nsbox.integrations.jupyter.directories import KernelDirectory, sweep

_HOLDER = """
import sys
from nsbox.integrations.jupyter.directories import KernelDirectory
directory = KernelDirectory()
print(directory.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files, of this test alone."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@contextlib.contextmanager
def holder() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process, and its directory."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
    )
    with process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def _make_deep(path: Path) -> None:
    """Make directories whose path is longer than a path may be, and deeper than Python's recursion goes."""
    at = os.open(path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("deeper", dir_fd=at)
        below = os.open("deeper", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)


def test_what_a_killed_process_left() -> None:
    """It is removed at the next start, with whatever a kernel left there. The control: the kill removes nothing."""
    with holder() as (process, path):
        _make_deep(path / "sockets")
        (path / "sockets/s-1").write_text("")
        (path / "sockets/closed").mkdir()
        (path / "sockets/closed/x").write_text("")
        (path / "sockets/closed").chmod(0)
        kill(process)
    assert path.exists()
    directory = KernelDirectory()
    assert not path.exists()
    assert Path(directory.sockets).is_dir()
    directory.remove()
    directory.remove()
    assert not os.path.exists(directory.path)


def test_a_live_one_stays() -> None:
    """Another process's directory stays, as does one of this process. Once it has ended, its own is gone."""
    own = KernelDirectory()
    with holder() as (process, path):
        sweep()
        assert (path / "sockets").is_dir() and os.path.isdir(own.sockets)
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
        assert process.returncode == 0 and not path.exists()
    own.remove()


def test_a_long_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a socket's path would be too long, the directory is in /tmp. If that can't be, the error says what to do."""
    long = tmp_path / ("long" * 25)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with socket.socket(socket.AF_UNIX) as one, pytest.raises(OSError, match="too long"):
        one.bind(f"{long}/nsbox-kernel-12345678/sockets/s-1")  # the control
    directory = KernelDirectory()
    assert Path(directory.path).parent == Path("/tmp") and os.stat(directory.path).st_mode & 0o777 == 0o700
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(f"{directory.sockets}/s-1")
    directory.remove()
    assert not os.path.exists(directory.path)
    monkeypatch.setattr(directories, "_SHORT", "/no/such/directory")
    with pytest.raises(OSError, match="TMPDIR is too long for sockets: name a directory of at most 6"):
        KernelDirectory()


def test_a_forked_child_removes_nothing() -> None:
    """A child that ends as a program does leaves its parent's directory, whose lock it has, too."""
    directory = KernelDirectory()
    code = f"{_HOLDER.replace('sys.stdin.read()', '')}\nimport os\nif (pid := os.fork()) == 0: sys.exit()\n"
    code += "os.waitpid(pid, 0)\nprint(os.path.isdir(directory.sockets))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/", check=True)
    assert done.stdout.splitlines()[1] == "True", done.stderr
    directory.remove()


def test_no_link_is_followed(tmp_path: Path) -> None:
    """A link with such a name stays, and so does what it leads to; links inside are removed, not what they lead to."""
    outside = tmp_path / "outside"
    (outside / "sockets").mkdir(parents=True)
    (outside / "sockets/precious").write_text("kept")
    (tmp_path / "nsbox-kernel-link").symlink_to(outside)
    (tmp_path / "nsbox-kernel-file").write_text("kept")
    with holder() as (process, path):
        (path / "sockets/to").symlink_to(outside)
        os.rmdir(path / "connection")
        (path / "connection").symlink_to(outside)
        kill(process)
    sweep()
    assert not path.exists()
    assert (outside / "sockets/precious").read_text() == "kept"
    assert (tmp_path / "nsbox-kernel-link").is_symlink() and (tmp_path / "nsbox-kernel-file").exists()


@pytest.mark.as_root("only root can make another user's directory")
def test_another_users_stays(tmp_path: Path) -> None:
    """It isn't this user's to remove, even if this user is root. The control: root's own is removed."""
    for name, uid in (("other", 12345), ("own", 0)):
        (tmp_path / f"nsbox-kernel-{name}/sockets").mkdir(parents=True)
        os.chown(tmp_path / f"nsbox-kernel-{name}", uid, uid)
    sweep()
    assert (tmp_path / "nsbox-kernel-other/sockets").is_dir()
    assert not (tmp_path / "nsbox-kernel-own").exists()
