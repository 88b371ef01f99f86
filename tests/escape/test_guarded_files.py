"""A command that swaps names in a loop while this process reads and writes by them: it never wins."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import nsbox
from nsbox import Policy, Sandbox

SWAP = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
print("ready", flush=True)
while True:  # RENAME_EXCHANGE
    libc.renameat2(-100, b"dir", -100, b"link", 2)
    libc.renameat2(-100, b"file", -100, b"file-link", 2)
"""
ROUNDS = 400


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("ws/dir", "ws/hidden", "ws/ro", "outside"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text("mine" if name == "ws/dir" else "SECRET")
    (tmp_path / "ws/file").write_text("mine")
    (tmp_path / "secret").write_text("SECRET")
    return tmp_path


@contextlib.contextmanager
def swapping(box: Sandbox):
    """Have a command exchange a directory and a file with links, as fast as it can."""
    with box.Popen([sys.executable, "-I", "-c", SWAP], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        try:
            yield
        finally:
            process.kill()


def by_name(tree: Path) -> str:
    """What a check of the real path and an open by the same name come to."""
    path = tree / "ws/dir/file"
    with contextlib.suppress(OSError):
        if os.path.realpath(path).startswith(f"{tree}/ws/dir"):
            return path.read_text()
    return ""


@pytest.mark.parametrize("symlinks", ["refuse", "beneath"])
@pytest.mark.parametrize("target", ["../outside", "hidden"])
def test_reading(tree: Path, symlinks: str, target: str) -> None:
    """Neither what is outside nor what is hidden is ever read; a check by name is deceived."""
    (tree / "ws/link").symlink_to(target)
    (tree / "ws/file-link").symlink_to(f"{target}/file")
    policy = Policy.workspace(tree / "ws", deny=[tree / "ws/hidden"], symlinks=symlinks)
    seen, fooled = set(), set()
    with Sandbox(policy) as box, swapping(box):
        for _ in range(ROUNDS):
            for path in ("dir/file", "file"):
                try:
                    seen.add(box.read(path))
                except OSError as error:
                    seen.add(type(error).__name__)
            fooled.add(by_name(tree))
        for _ in range(1000 * ROUNDS):
            if "SECRET" in fooled:
                break
            fooled.add(by_name(tree))
    assert "SECRET" in fooled, "the control: checking by name first loses the race"
    assert "SECRET" not in seen
    assert {"mine", "AccessError"} <= seen


@pytest.mark.parametrize("symlinks", ["refuse", "beneath"])
@pytest.mark.parametrize("target", ["../outside", "hidden", "ro"])
def test_writing(tree: Path, symlinks: str, target: str) -> None:
    """Nothing outside, hidden or read-only is ever written, and no file is left lying about."""
    (tree / "ws/link").symlink_to(target)
    (tree / "ws/file-link").symlink_to(f"{target}/file")
    policy = Policy.workspace(tree / "ws", read=[tree / "ws/ro"], deny=[tree / "ws/hidden"], symlinks=symlinks)
    outcomes = set()
    with Sandbox(policy) as box, swapping(box):
        for i in range(ROUNDS):
            for path in ("dir/file", "file", f"dir/new-{i % 10}/file"):
                try:
                    box.write(path, "written")
                    outcomes.add("written")
                except OSError as error:
                    outcomes.add(type(error).__name__)
    assert {"written", "AccessError"} <= outcomes
    for name in ("outside", "ws/hidden", "ws/ro"):
        assert os.listdir(tree / name) == ["file"]
        assert (tree / name / "file").read_text() == "SECRET"
    assert not [name for _, _, names in os.walk(tree) for name in names if name.startswith(".nsbox")]


def test_lists_and_attachments(tree: Path) -> None:
    """The same for these."""
    (tree / "ws/link").symlink_to("../outside")
    (tree / "ws/file-link").symlink_to("../secret")
    (tree / "outside/only-outside").write_text("SECRET")
    with Sandbox(Policy.workspace(tree / "ws", deny=[tree / "ws/hidden"])) as box, swapping(box):
        for _ in range(ROUNDS // 4):
            with contextlib.suppress(OSError):
                assert not any("only-outside" in name for name in box.list_files())
            for path in ("dir/file", "file"):
                with contextlib.suppress(OSError):
                    assert [one.data for one in box.attach([path])] == [b"mine"]


def test_hidden_directories_stay_where_they_are(tree: Path) -> None:
    """A command can't move what is hidden, or what is on the way to it, to where this process would read it."""
    (tree / "ws/a").mkdir()
    (tree / "ws/hidden").rename(tree / "ws/a/hidden")
    policy = Policy.workspace(tree / "ws", deny=[tree / "ws/a/hidden"])
    with Sandbox(policy) as box:
        for name in ("mv a b", "mv a/hidden c", "mv a dir/"):
            assert box.shell(name).returncode != 0
        with pytest.raises(nsbox.AccessError):
            box.read("a/hidden/file")
    nsbox.run(["mv", "a", "b"], cwd=tree / "ws", policy=Policy.workspace(tree / "ws"), check=True)  # it could else


MODES = """
import os
print("ready", flush=True)
while True:
    for mode in (0, 0o755):
        for name in ("dir", "file"):
            os.chmod(name, mode)
"""


def test_permissions_that_change(tree: Path) -> None:
    """What is to be had now and then is had, or refused with the kernel's word for it; nothing is left."""
    seen = set()
    box = Sandbox(Policy.workspace(tree / "ws", deny=[tree / "ws/hidden"]))
    calls = (lambda: box.read("file"), lambda: box.write("dir/new", "x").path, lambda: ",".join(box.list_files("dir")))
    with box, box.Popen([sys.executable, "-I", "-c", MODES], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        try:
            for call in ROUNDS * calls:
                try:
                    seen.add(call() or "")
                except PermissionError as error:
                    seen.add(f"refused {error.filename}")
        finally:
            process.kill()
    (tree / "ws/dir").chmod(0o755)
    assert "mine" in seen
    refused = {one for one in seen if one.startswith("refused")}
    assert refused <= {"refused file", "refused dir/new", "refused dir"}
    assert bool(refused) == (os.geteuid() != 0)
    assert not [name for name in os.listdir(tree / "ws/dir") if name not in ("file", "new") and refused == set()]


def test_threads(tree: Path) -> None:
    """Many at once write one file: each sees one of the contents as a whole."""
    box = Sandbox(Policy.workspace(tree / "ws"))
    contents = [str(i) * 100_000 for i in range(4)]
    box.write("shared", contents[0])
    threads = [threading.Thread(target=lambda c=c: [box.write("shared", c) for _ in range(20)]) for c in contents]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert box.read("shared") in contents
    for thread in threads:
        thread.join()


def test_a_root_that_is_swapped(tree: Path) -> None:
    """The directory of an inner policy becomes a link, by a command of an outer one, before the first file is asked for."""
    outer, inner = Policy.workspace(tree / "ws"), Policy.workspace(tree / "ws/dir")
    with Sandbox(outer) as box:
        assert box.shell(f"mv dir moved && ln -s {tree}/outside dir").returncode == 0
    box = Sandbox(inner)
    for call in (
        lambda: box.read("file"),
        lambda: box.write("new", "x"),
        lambda: box.list_files(),
        lambda: box.resolve("file"),
    ):
        with pytest.raises(nsbox.AccessError, match="which has become a symlink"):
            call()
    assert not box.can_read("file")
    assert os.listdir(tree / "outside") == ["file"]
    assert (tree / "ws/dir/file").read_text() == "SECRET"  # the control: by name it is another file


def test_long_ways(tree: Path) -> None:
    """Neither long paths nor chains of links take long to be answered; here, a few thousand names at most are looked at."""
    box = Sandbox(Policy.workspace(tree / "ws"))
    with pytest.raises(nsbox.AccessError, match="has more than 4095 bytes"):
        box.can_read("a/" * 4000)
    assert box.can_read("a/" * 1900)
    for i in range(40):
        (tree / "ws" / f"l{i}").symlink_to("dir/../" * 500 + f"l{i + 1}")
    with pytest.raises(nsbox.AccessError, match="too many symlinks"):
        box.can_read("l0")
    line = f"{tree}/ws" + "/a" * 40_000 + ": Permission denied"
    assert box.exec("sh", ["-c", "cat >&2; exit 1"], input="\n".join([line] * 100)).returncode == 1
    box.close()


def test_where_openat2_is_refused(workspace: Path) -> None:
    """In a sandbox, whose profile refuses that call, files are opened part by part; links stand in the way all the same."""
    (workspace / "inner" / "d").mkdir(parents=True)
    (workspace / "inner" / "d" / "file").write_text("here")
    (workspace / "inner" / "up").symlink_to("..")
    (workspace / "inner" / "link").symlink_to("d/file")
    (workspace / "outer").write_text("not for the inner one")
    script = """
import nsbox
policy = nsbox.Policy.workspace("inner", backend="landlock", degrade={"attributes", "namespaces", "read", "secrets"})
box = nsbox.Sandbox(policy)
print(box.read("d/file"))
box.write("d/new", "made")
for name in ("link", "up/outer", "up/inner/d/file", "d/../up/outer"):
    try: print("read", box.read(name))
    except nsbox.AccessError: print("refused")
"""
    if nsbox.probe().landlock_abi < 2:
        pytest.skip("needs Landlock of version 2 or later")
    done = nsbox.run(
        [sys.executable, "-c", script],
        policy=Policy.workspace(workspace),
        cwd=workspace,
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == ["here", *4 * ["refused"]], done.stderr
    assert (workspace / "inner" / "d" / "new").read_text() == "made"
