"""Which directories a task overlays, and what becomes of the ops that show them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nsbox import (
    Bind,
    BindFd,
    DevBind,
    Device,
    Mask,
    Op,
    Overlay,
    PolicyError,
    RoBind,
    Tmpfs,
    UnavailableError,
)
from nsbox._task import layers as module
from nsbox._task.layers import Layers, layers


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Directories, a file, and a link to a directory."""
    for name in ("work/kept", "work/more", "lib/deep", "other"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file").write_text("x")
    os.symlink("lib", tmp_path / "link")
    return tmp_path


def of(tree: Path, *steps: Op, workspace: str = "work", base: str = "store") -> Layers:
    return layers(steps, str(tree / workspace), str(tree / base))


def named(tree: Path, paths: tuple[str, ...]) -> list[str]:
    return [os.path.relpath(path, tree) for path in paths]


def test_one_overlay_shows_what_lies_below(tree: Path) -> None:
    """Outermost directories, by where links lead; the workspace has its own."""
    at = str(tree)
    found = of(
        tree,
        RoBind(f"{at}/link", "/a"),
        RoBind(f"{at}/lib/deep", "/b"),
        Bind(f"{at}/work", f"{at}/work"),
        Bind(f"{at}/other", "/c"),
        workspace="work/more",
    )
    assert named(tree, found.places) == ["lib", "other", "work", "work/more"]
    assert named(tree, found.written) == ["other", "work", "work/more"]
    assert [type(step) for step in found.steps] == [Bind] * 4


def test_what_becomes_of_ops(tree: Path) -> None:
    """Read-only directories are opened; files, and what is protected in a writable directory, are read-only."""
    at = str(tree)
    steps = (
        RoBind(f"{at}/lib", f"{at}/lib", nofollow=True),
        Bind(f"{at}/work", f"{at}/work"),
        RoBind(f"{at}/work/kept", f"{at}/work/kept"),
        Bind(f"{at}/work/more", f"{at}/work/more", optional=True),
        Bind(f"{at}/file", "/file"),
        RoBind(f"{at}/missing", "/missing", optional=True),
        RoBind("/proc", "/host-proc"),
        Mask(f"{at}/lib/deep"),
        Tmpfs("/tmp"),
        Device("/dev/null", "/dev/null"),
    )
    assert of(tree, *steps).steps == (
        Bind(f"{at}/lib", f"{at}/lib", nofollow=True),
        *steps[1:4],
        RoBind(f"{at}/file", "/file"),
        *steps[5:],
    )


def test_what_lets_commands_write_to_the_host(tree: Path) -> None:
    at = str(tree)
    work = Bind(f"{at}/work", f"{at}/work")
    for op in (
        Overlay((f"{at}/lib",), "/x", f"{at}/other", f"{at}/work/more"),
        BindFd(0, "/x"),
        DevBind(f"{at}/lib", "/x"),
        Bind("/proc", "/x"),
        RoBind("/", "/x"),
    ):
        with pytest.raises(UnavailableError):
            of(tree, work, op)


def test_the_workspace_and_the_store(tree: Path) -> None:
    at = str(tree)
    with pytest.raises(PolicyError, match="isn't in a directory that the policy opens for writing"):
        of(tree, RoBind(f"{at}/work", f"{at}/work"))
    with pytest.raises(PolicyError, match="which the task overlays"):
        of(tree, RoBind(f"{at}/lib", "/lib"), Bind(f"{at}/work", f"{at}/work"), base="lib/store")


def test_directories_with_mounts(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay read-only, but for what the policy shows in them; nothing may be mounted where commands can write."""
    at = str(tree)
    points = [(f"{at}/{name}", "ext4", [""]) for name in ("lib/x", "elsewhere")]
    monkeypatch.setattr(module, "mounts", lambda: iter(points))
    steps = (RoBind(f"{at}/lib", "/a"), RoBind(f"{at}/lib/deep", "/b"), Bind(f"{at}/work", f"{at}/work"))
    found = of(tree, *steps)
    assert named(tree, found.places) == ["work", "lib/deep"]
    assert named(tree, found.closed) == ["lib"]
    assert found.steps == (steps[0], Bind(f"{at}/lib/deep", "/b"), steps[2])
    assert found.mounts([("/u0", "/w0"), ("/u1", "/w1")], "/store") == (
        Overlay((f"{at}/work",), f"{at}/work", "/u0", "/w0", nofollow=True),
        Overlay((f"{at}/lib/deep",), f"{at}/lib/deep", "/u1", "/w1", nofollow=True),
        Mask("/store"),
    )
    points.append((f"{at}/work/kept", "ext4", [""]))
    with pytest.raises(UnavailableError, match=r"is mounted in .*work, which a task overlays"):
        of(tree, *steps)
