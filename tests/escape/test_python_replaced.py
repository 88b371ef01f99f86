"""A warm interpreter outlives what its mounts lie on: files that are hidden or protected, and that others replace."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nsbox import Policy, Python, Sandbox
from nsbox._interpreter.mounts.stamps import Stamps

READ = """
def tried(name, mode):
    try:
        with open(name, mode) as file: return file.read() if mode == "r" else file.write("x")
    except OSError as error: return error.errno
[tried("secret", "r"), tried("deep/er/secret", "r"), tried("later", "r"), tried("fixed/file", "a")]
"""
KEPT = [errno.EACCES, errno.EACCES, errno.ENOENT, errno.EROFS]


def replace_files(at: Path) -> None:
    """As editors save: a new file gets the name of the old one."""
    for name in ("secret", "deep/er/secret", "fixed/file"):
        (at / "new").write_text("the host's secret")
        os.replace(at / "new", at / name)


def replace_directories(at: Path) -> None:
    """What is mounted in a directory goes with it, and another one has the name."""
    for name in ("deep", "fixed"):
        (at / name).rename(at / f"old-{name}")
    (at / "deep/er").mkdir(parents=True)
    (at / "deep/er/secret").write_text("the host's secret")
    (at / "fixed").mkdir()
    (at / "fixed/file").write_text("fixed")


def make_it(at: Path) -> None:
    """A name that is denied, and that no file had."""
    (at / "later").write_text("the host's secret")


def remove_and_make(at: Path) -> None:
    """A file goes, and comes again."""
    for name in ("secret", "deep/er/secret"):
        (at / name).unlink()
        (at / name).write_text("the host's secret")


@pytest.fixture
def filled(workspace: Path) -> Path:
    for name in ("secret", "deep/er/secret", "fixed/file"):
        path = workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("before")
    return workspace


@pytest.fixture
def hiding(policy: Policy, filled: Path) -> Policy:
    deny = (str(filled / name) for name in ("secret", "deep/er/secret", "later"))
    return policy.with_(deny=[*policy.deny, *deny], read=[*policy.read, str(filled / "fixed")])


def value(py: Python) -> Any:
    result = py.run(READ)
    assert result.returncode == 0, result
    return result.value


@pytest.mark.vm
@pytest.mark.parametrize("stock", [0, 2])
@pytest.mark.parametrize("replace", [replace_files, replace_directories, make_it, remove_and_make])
def test_what_is_replaced(hiding: Policy, filled: Path, replace: Callable[[Path], None], stock: int) -> None:
    """The next branch sees what a new sandbox shows, even if it was parked before."""
    with Sandbox(hiding, stock=0) as box:
        py = box.python(stock=stock)
        assert value(py) == KEPT
        replace(filled)
        for _ in range(2):
            found = value(py)
            assert "the host's secret" not in found
            assert found[:2] == KEPT[:2] and found[3] == KEPT[3]


def test_without_a_look(hiding: Policy, filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the kernel takes away what is mounted on a file that is replaced, in branches too."""
    monkeypatch.setattr(Stamps, "differ", lambda *_: False)
    with Sandbox(hiding, stock=0) as box:
        py = box.python()
        assert value(py) == KEPT
        replace_files(filled)
        make_it(filled)
        assert value(py)[:3] == ["the host's secret"] * 3


def test_with_overlays(hiding: Policy, filled: Path) -> None:
    """An overlay lacks the names, whatever has them."""
    with Sandbox(hiding, stock=0) as box:
        py = box.python(overlay=True, stock=1)
        assert value(py)[:3] == [errno.ENOENT] * 3
        for replace in (replace_files, make_it, remove_and_make, replace_directories):
            replace(filled)
            for _ in range(2):
                assert value(py)[:3] == [errno.ENOENT] * 3
