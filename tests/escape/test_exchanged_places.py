"""What commands of another sandbox may try while a task or a transaction begins: to exchange the directory it is about.

They can write to the directory above, so they can rename the workspace at any time.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import nsbox
from nsbox import Policy, Sandbox, SetupError, Task, UnavailableError
from nsbox._transaction import holder
from nsbox._transaction.holder import Holder

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


def exchange(one: Path, other: Path) -> None:
    """Give each of two directories the other's name, as a command of another sandbox can."""
    spare = one.with_name("spare")
    one.rename(spare)
    other.rename(one)
    spare.rename(other)


def untied(steps: Iterable[nsbox.Op], devices: object) -> tuple[tuple[nsbox.Op, ...], dict[nsbox.Op, int]]:
    """Stand in for tied() without its protection: device 0 is none that is asked for."""
    return tuple(steps), {op: 0 for op in steps if isinstance(op, nsbox.Bind)}


@pytest.mark.parametrize("protected", [True, False], ids=["", "control"])
def test_a_directory_while_a_task_begins(
    above: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    """What is exchanged between the mount of the overlays and the session's own root isn't written to on the host."""
    for name in ("shared", "plain"):
        (above / name).mkdir()
    shared, plain = above / "shared", above / "plain"
    within, same = Holder.within, Task._check_same

    def exchanging(*args: Any, **options: Any) -> Any:
        made = within(*args, **options)
        exchange(shared, plain)
        return made

    def restoring(*args: Any) -> None:
        exchange(shared, plain)
        same(*args)

    monkeypatch.setattr(Holder, "within", exchanging)
    monkeypatch.setattr(Task, "_check_same", restoring)
    policy = Policy.workspace(above / "project", write=[str(shared)])
    with Sandbox(policy, stock=0) as box:
        if protected:
            with pytest.raises(SetupError, match="something else is at this path by now") as caught:
                box.task(dir=tmp_path / "store")
            assert caught.value.errno == errno.ESTALE
        else:
            monkeypatch.setattr(holder, "tied", untied)
            monkeypatch.setattr(Holder, "freeze", lambda *_, **__: None)
            with box.task(dir=tmp_path / "store") as task:
                task.shell(f"echo 1 > {shared}/new")
    assert [(path / "new").exists() for path in (shared, plain)] == [False, not protected]


@pytest.mark.parametrize("protected", [True, False], ids=["", "control"])
def test_a_directory_during_a_transaction(
    box: Sandbox, above: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    """No command starts while another directory has the workspace's name; it goes on when all is as it was."""
    project, plain = above / "project", above / "plain"
    plain.mkdir()
    if not protected:
        monkeypatch.setattr(holder, "tied", untied)
    with box.transaction(str(project), dir=tmp_path / "store") as tx:
        assert tx.shell(f"echo 1 > {project}/first").returncode == 0
        exchange(project, plain)
        if protected:
            with pytest.raises(SetupError, match="something else is at this path by now") as caught:
                tx.shell(f"echo 1 > {project}/new")
            assert caught.value.errno == errno.ESTALE
        else:
            assert tx.shell(f"echo 1 > {project}/new").returncode == 0
        assert (project / "new").exists() is not protected  # the host's
        exchange(project, plain)
        assert tx.shell(f"cat {project}/first").stdout == "1\n"
    assert not (project / "first").exists()


def test_overlays_cover_what_shows_them(box: Sandbox, above: Path, tmp_path: Path) -> None:
    """A directory below the workspace, and a file in it, are the overlay's as well; what the policy hides stays so."""
    project = above / "project"
    (project / "deep").mkdir()
    (project / "deep" / "file").write_text("before")
    (project / "kept").write_text("before")
    policy = Policy.workspace(
        above, write=[str(project / "deep"), str(project / "deep" / "file")], deny=[str(project / "kept")]
    )
    with Sandbox(policy, stock=0) as other, other.transaction(str(project), dir=tmp_path / "store") as tx:
        done = tx.shell(f"cd {project}; echo 1 > deep/new; echo 1 > deep/file; cat deep/file; cat kept")
        assert done.stdout.endswith("1\n")
        assert done.returncode != 0
        assert not (project / "deep" / "new").exists()
        assert (project / "deep" / "file").read_text() == "before"
        assert {change.path for change in tx.diff()} == {"deep/new", "deep/file"}
