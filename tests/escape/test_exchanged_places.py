"""What commands of another sandbox may try while a task or a transaction begins: to exchange the directory it is about.

They can write to the directory above, so they can rename the workspace at any time.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import nsbox
from nsbox import Policy, Sandbox, SetupError, UnavailableError

EXCHANGE = """
import ctypes, sys
libc = ctypes.CDLL(None)
one, other = (name.encode() for name in sys.argv[1:])
while True:
    libc.renameat2(-100, one, -100, other, 2)
"""
SECONDS = 2.0
ATTEMPTS = 40


@pytest.fixture
def above(tmp_path: Path) -> Path:
    """The directory that other commands can write to, with a workspace in it, and a link to a secret beside that."""
    path, secret = tmp_path / "above", tmp_path / "secret"
    (path / "project").mkdir(parents=True)
    (path / "project" / "key").write_text("the project's")
    secret.mkdir()
    (secret / "key").write_text("SECRET")
    (path / "link").symlink_to(secret)
    (path / "exchange.py").write_text(EXCHANGE)
    return path


@pytest.fixture
def box(above: Path) -> Iterator[Sandbox]:
    with Sandbox(Policy.workspace(above), stock=0) as made:
        yield made


def attempts() -> Iterator[int]:
    """Yield numbers, for some seconds at most."""
    until = time.monotonic() + SECONDS
    for number in range(ATTEMPTS):
        if time.monotonic() > until:
            return
        yield number


def test_layers_behind_links(above: Path, tmp_path: Path) -> None:
    """Neither the lower directory of an overlay nor the others are found through a link. The control follows it."""
    for name in ("upper", "work", "real"):
        (tmp_path / name).mkdir()
    (tmp_path / "there").symlink_to(tmp_path / "real")
    lower, upper, work = f"{above}/link", f"{tmp_path}/upper", f"{tmp_path}/work"
    root = nsbox.RoBind("/usr", "/usr"), *(nsbox.Symlink(f"usr/{name}", f"/{name}") for name in ("lib", "lib64", "bin"))

    def read(*paths: str, nofollow: bool) -> str:
        overlay = nsbox.Overlay(paths[:1], "/o", *paths[1:], nofollow=nofollow)
        done = nsbox.run(
            ["/usr/bin/cat", "/o/key"], policy=Policy.layers(*root, overlay), capture_output=True, text=True
        )
        return str(done.stdout)

    assert read(lower, upper, work, nofollow=False) == "SECRET"
    assert read(f"{above}/project", upper, work, nofollow=True) == "the project's"
    for paths in (
        (lower, upper, work),
        (f"{above}/project", f"{tmp_path}/there", work),
        (f"{above}/project", upper, f"{tmp_path}/there"),
    ):
        with pytest.raises(SetupError) as caught:
            read(*paths, nofollow=True)
        assert caught.value.errno == errno.ELOOP


def test_a_link_while_it_begins(box: Sandbox, above: Path, tmp_path: Path) -> None:
    """A task and a transaction of a workspace that is a link from time to time never show where that leads."""
    project = above / "project"
    with box.session() as session:
        job = session.background(f"python3 {above}/exchange.py {above}/project {above}/link")
        try:
            for number in attempts():
                begin = (box.task, box.transaction)[number % 2]
                try:
                    with begin(str(project), dir=tmp_path / "store") as made:
                        assert "SECRET" not in made.shell("cat key").stdout
                except (UnavailableError, OSError, nsbox.PolicyError):
                    continue
        finally:
            job.kill()
