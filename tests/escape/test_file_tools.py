"""Commands that swap names while file tools change files, and sessions that lay traps for them: they never win."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsbox import AccessError, Bind, Dev, Policy, Proc, RoBind, Sandbox, Session, Tmpfs

SWAP = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
os.chdir(sys.argv[1])
print("ready", flush=True)
while True:  # RENAME_EXCHANGE
    libc.renameat2(-100, b"dir", -100, b"link", 2)
    libc.renameat2(-100, b"file", -100, b"file-link", 2)
"""
ROUNDS = 200 if int(os.environ.get("NSBOX_THOROUGH", "0")) else 100


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("ws/dir", "ws/hidden", "ws/ro", "outside"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text("mine\n" if name == "ws/dir" else "SECRET\n")
    (tmp_path / "ws/file").write_text("mine\n")
    return tmp_path


@contextlib.contextmanager
def swapping(box: Sandbox | Session, where: str) -> Iterator[None]:
    """Have a command exchange a directory and a file with links, as fast as it can."""
    with box.Popen([sys.executable, "-I", "-c", SWAP, where], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield
        finally:
            process.kill()


def changes(tools: Any, top: str, i: int) -> list[Callable[[], object]]:
    """Calls that change what is at the names that are being swapped."""
    return [
        lambda: tools.append(f"{top}/dir/file", "x\n"),
        lambda: tools.edit(f"{top}/file", "\n", "\nx\n", count=None),
        lambda: tools.write(f"{top}/dir/new", "new\n"),
        lambda: tools.mkdir(f"{top}/dir/made-{i % 5}/in"),
        lambda: tools.copy(f"{top}/dir/file", f"{top}/copy", overwrite=True),
        lambda: tools.copy(f"{top}/file", f"{top}/dir/copy", overwrite=True),
        lambda: tools.move(f"{top}/dir/new", f"{top}/moved", overwrite=True),
        lambda: tools.move(f"{top}/moved", f"{top}/dir/back", overwrite=True),
        lambda: tools.delete(f"{top}/dir/back"),
        lambda: tools.delete(f"{top}/dir/made-{i % 5}", recursive=True),
    ]


def outcomes(tools: Any, top: str) -> set[str]:
    seen = set()
    for i in range(ROUNDS):
        for call in changes(tools, top, i):
            try:
                call()
                seen.add("changed")
            except (OSError, ValueError) as error:
                seen.add(type(error).__name__)
    return seen


def by_name(top: Path) -> bool:
    """Say if a check of the real path, and then a change by the same name, come to a change outside."""
    with contextlib.suppress(OSError):
        if os.path.realpath(top / "dir").startswith(f"{top}/dir"):
            (top / "dir/by-name").touch()
    return (top.parent / "outside/by-name").exists()


@pytest.mark.parametrize("symlinks", ["refuse", "beneath"])
@pytest.mark.parametrize("target", ["../outside", "hidden", "ro"])
def test_changes(tree: Path, symlinks: str, target: str) -> None:
    """Nothing outside, hidden or read-only is ever made, changed, moved or removed; a check by name is deceived."""
    (tree / "ws/link").symlink_to(target)
    (tree / "ws/file-link").symlink_to(f"{target}/file")
    policy = Policy.workspace(tree / "ws", read=[tree / "ws/ro"], deny=[tree / "ws/hidden"], symlinks=symlinks)
    with Sandbox(policy, stock=0) as box, swapping(box, "."):
        seen = outcomes(box, ".")
        if target == "../outside":
            assert any(by_name(tree / "ws") for _ in range(1000 * ROUNDS)), (
                "the control: checking by name loses the race"
            )
            (tree / "outside/by-name").unlink()
    assert {"changed", "AccessError"} <= seen
    for name in ("outside", "ws/hidden", "ws/ro"):
        assert os.listdir(tree / name) == ["file"]
        assert (tree / name / "file").read_text() == "SECRET\n"
    made = [path for path in (tree / "ws").rglob("*") if path.is_file() and not path.is_symlink()]
    leaks = [path for path in made if "SECRET" in path.read_text() and path.parent.name not in ("hidden", "ro")]
    assert target == "ro" or not leaks, "what is read-only may be copied"
    assert not [name for _, _, names in os.walk(tree) for name in names if name.startswith(".nsbox")]


@pytest.mark.parametrize("symlinks", ["refuse", "beneath"])
@pytest.mark.parametrize("target", ["outside", "etc"])
def test_changes_in_a_sessions_tmp(tree: Path, symlinks: str, target: str) -> None:
    """The same in what is the session's own, where names lead to this machine's files for one who follows them."""
    target = {"outside": str(tree / "outside"), "etc": "../etc"}[target]
    with Sandbox(Policy.workspace(tree / "ws", symlinks=symlinks), stock=0) as box, box.session() as s:
        make = f"mkdir /tmp/dir; echo mine > /tmp/dir/file; echo mine > /tmp/file; ln -s {target} /tmp/link; ln -s {target}/passwd /tmp/file-link"
        s.run(make, check=True)
        before = os.stat("/etc").st_mtime_ns
        with swapping(s, "/tmp"):
            seen = outcomes(s, "/tmp")
        assert {"changed", "AccessError"} <= seen
        for name in s.list_files("/tmp"):
            assert "root:" not in s.read(f"/tmp/{name}")
            assert "SECRET" not in s.read(f"/tmp/{name}")
        assert not [name for name in s.list_files("/tmp") if ".nsbox" in name]
    assert os.listdir(tree / "outside") == ["file"]
    assert os.stat("/etc").st_mtime_ns == before


def test_a_mounts_place_that_is_moved_away(tree: Path) -> None:
    """A place in memory below a directory that commands can rename: another directory of that name isn't it."""
    at = "/mnt/dir/own"
    policy = Policy.layers(
        *(RoBind("/", "/"), Dev("/dev"), Proc("/proc"), Bind(str(tree / "ws"), "/mnt"), Tmpfs(at)),
    )
    (tree / "ws/dir/own").mkdir()
    with Sandbox(policy, stock=0) as box, box.session() as s:
        s.write(f"{at}/a", "own")
        assert s.read(f"{at}/a") == "own"
        done = s.run("mv /mnt/dir /mnt/moved && mkdir -p /mnt/dir/own && echo trap > /mnt/dir/own/a")
        assert done.returncode == 0, "the control: the way to it can be moved"
        with pytest.raises(AccessError, match="was moved away"):
            s.read(f"{at}/a")
        with pytest.raises(AccessError, match="was moved away"):
            s.write(f"{at}/b", "x")
    assert os.listdir(tree / "ws/dir/own") == ["a"]


def test_the_root_of_a_session_stays_the_callers(tree: Path) -> None:
    """No command of a session gets at the descriptors that tools use, nor at the socket by which names are made."""
    code = "import os; print(sorted(os.listdir('/proc/self/fd')), os.path.exists('/proc/1/fd/0') and os.listdir('/proc/1/fd'))"
    with Sandbox(Policy.workspace(tree / "ws"), stock=0) as box, box.session() as s:
        before = sorted(os.listdir("/proc/self/fd"))
        s.write("/tmp/a", "x")
        assert sorted(os.listdir("/proc/self/fd")) == before, "this process keeps no root open between two calls"
        done = s.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
        assert done.returncode != 0 or done.stdout.strip() == "['0', '1', '2', '3'] False", done


CLOSE = (
    "mkdir -p d/a/b d/ro; touch d/a/b/f d/ro/f; ln -s {0} d/a/link; ln -s {0} d/link; chmod 0 d/a/b d/a; chmod 555 d/ro"
)


@pytest.mark.parametrize("where", ["workspace", "session"])
def test_closed_directories_are_deleted(where: str, tmp_path: Path) -> None:
    """Whatever modes a command has given its directories. Links aren't followed: what they lead to keeps its mode.

    Control: to another program of this user they are closed.
    """
    (ws := tmp_path / "ws").mkdir()
    (victim := tmp_path / "victim").mkdir(mode=0o500)
    with contextlib.ExitStack() as stack:
        tools: Any = stack.enter_context(Sandbox(Policy.workspace(ws)))
        if where == "session":
            tools = stack.enter_context(tools.session())
        top = str(ws) if where == "workspace" else "/tmp"
        for name in ("d", "d/a", "d/ro"):  # the one that is named, too
            assert tools.shell(f"cd {top} && {CLOSE.format(victim)}; chmod 0 {name}").returncode == 0
            if where == "workspace" and os.geteuid():
                with pytest.raises(PermissionError):
                    shutil.rmtree(ws / "d")
            assert tools.delete(f"{top}/d", recursive=True).count >= 6
            assert tools.shell(f"ls {top}/d").returncode
    assert stat.S_IMODE(victim.stat().st_mode) == 0o500


def test_modes_after_a_refusal(tmp_path: Path) -> None:
    """If something in a closed directory may not be deleted, nothing is, and all have their modes again."""
    (ws := tmp_path / "ws").mkdir()
    with Sandbox(Policy.workspace(ws, protected=["keep"])) as box:
        box.shell("mkdir -p d/a/b; touch d/f d/a/b/keep; chmod 0 d/a/b; chmod 100 d/a", check=True)
        with pytest.raises(AccessError, match="protected"):
            box.delete("d", recursive=True)
        said = box.shell("stat -c %a d d/a; ls d; chmod 700 d/a; stat -c %a d/a/b").stdout.split()
    assert said == ["755", "100", "a", "f", "0"]
    (ws / "d/a/b").chmod(0o700)


def test_a_directory_that_is_exchanged_while_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was opened by force has its mode again, and no other gets that mode. Control: they were exchanged."""
    (ws := tmp_path / "ws").mkdir()
    (closed := ws / "d/closed").mkdir(parents=True)
    (other := ws / "d/other").mkdir(mode=0o700)
    (closed / "keep").touch()  # it may not be deleted, so nothing is
    closed.chmod(0o077)
    chmod, changed = os.chmod, []

    def exchanging(path: Any, mode: int) -> None:
        chmod(path, mode)
        if not changed:
            changed.append(os.stat(closed).st_ino)
            closed.rename(ws / "d/third")
            other.rename(closed)
            (ws / "d/third").rename(other)

    with Sandbox(Policy.workspace(ws, protected=["keep"])) as box:
        monkeypatch.setattr("os.chmod", exchanging)
        with pytest.raises(AccessError, match="protected"):
            box.delete("d", recursive=True)
        monkeypatch.undo()
    assert changed == [os.stat(other).st_ino]
    assert [stat.S_IMODE(each.stat().st_mode) for each in (closed, other)] == [0o700, 0o077]
