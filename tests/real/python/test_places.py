"""Where a policy's commands can write, by its mounts: what a warm interpreter must not load from there."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsbox import Bind, Dev, Policy, Proc, RoBind, Tmpfs
from nsbox._interpreter.environments.places import Places
from nsbox._plan.ops import Op
from nsbox._tools.view import view


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory with directories in it."""
    path = tmp_path / "tree"
    (path / "a" / "b" / "c").mkdir(parents=True)
    (path / "other").mkdir()
    (path / "a" / "b" / "file").touch()
    return path


def places(*ops: Op) -> Places:
    return Places(view(Policy.layers(RoBind("/", "/"), Dev("/dev"), Proc("/proc"), *ops)))


def test_a_writable_directory(tree: Path) -> None:
    """All in it is open, also what doesn't exist; nothing beside it is."""
    a, other = f"{tree}/a", f"{tree}/other"
    found = places(Bind(a, a))
    assert found.opening(a) == found.opening(f"{a}/b/file") == found.opening(f"{a}/nowhere/x") == a
    assert found.opening(other) == found.opening("/usr/bin") == found.opening(f"{tree}/nowhere") == ""
    assert found.opening(str(tree)) == "" and found.opening_in(str(tree)) == a


def test_a_read_only_one_in_it(tree: Path) -> None:
    """It is closed if its name is fixed: nothing above it can be replaced."""
    a, b, c = f"{tree}/a", f"{tree}/a/b", f"{tree}/a/b/c"
    assert places(Bind(a, a), RoBind(b, b)).opening(f"{b}/file") == ""
    assert places(Bind(a, a), RoBind(c, c)).opening(c) == a  # a command may give b another name
    assert places(Bind(a, a), Bind(b, b), RoBind(c, c)).opening(c) == ""


def test_a_file(tree: Path) -> None:
    """A single file can be open in a directory that isn't."""
    file = f"{tree}/a/b/file"
    found = places(Bind(file, file))
    assert found.opening(file) == found.opening_in(f"{tree}/a") == file
    assert found.opening(f"{tree}/a/b/c") == ""


def test_links(tree: Path) -> None:
    """A link that can be replaced counts, wherever it leads; a link that can't be leads to what counts."""
    a, other = tree / "a", tree / "other"
    (a / "out").symlink_to("/usr/bin")
    (other / "in").symlink_to(a / "b")
    (other / "out").symlink_to("/usr/bin")
    (other / "through").symlink_to(a / "out" / "env")
    (other / "loop").symlink_to(other / "loop")
    found = places(Bind(str(a), str(a)))
    for name in (a / "out", other / "in", other / "through"):
        assert found.opening(str(name)) == str(a)
    assert found.opening(f"{other}/out/env") == ""
    assert found.opening(f"{other}/loop") == f"{other}/loop"


def test_other_names(tree: Path) -> None:
    """What is read-only under one name, and writable under another, is open under both."""
    a, b, other = f"{tree}/a", f"{tree}/a/b", f"{tree}/other"
    assert places(Bind(b, other)).opening(f"{b}/file") == b
    assert places(Bind(b, other)).opening(f"{a}/x") == ""
    assert places(Bind(a, a), RoBind(b, other)).opening(f"{other}/file") == other
    assert places(Bind(a, a), RoBind(b, b), RoBind(b, other)).opening(f"{other}/file") == ""


def test_file_systems_in_memory(tree: Path) -> None:
    """Each command has its own, so no other command writes to it."""
    assert places(Tmpfs(f"{tree}/a")).opening(f"{tree}/a/x") == ""


def test_a_workspace(tree: Path) -> None:
    """The workspace is open, except for what read= closes; the system, /tmp and a fresh home aren't."""
    (tree / ".venv").mkdir()
    policy = Policy.workspace(tree, read=[tree / ".venv", tree / "a" / "b" / "c"])
    found = Places(view(policy))
    assert found.opening(f"{tree}/x") == str(tree)
    for path in (f"{tree}/.venv", f"{tree}/.venv/lib/x", f"{tree}/a/b/c", "/usr/lib", "/tmp/x"):
        assert found.opening(path) == "", path


def test_a_kept_home(tree: Path) -> None:
    """Commands write to a home that is kept, and later ones find that there."""
    seen = view(Policy.workspace(tree, home="private:test-places"))
    (kept,) = [mount.dest for mount in seen.mounts() if mount.is_own and mount.source is not None]
    assert Places(seen).opening(f"{kept}/lib") == kept
