"""Root's tasks map owners for a uid that the policy chooses. What permissions keep from it on the host stays closed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from nsbox_testing.ids import with_all_ids

from nsbox import Policy, Sandbox

pytestmark = pytest.mark.as_root("only root may map")


def fill(at: Path) -> None:
    at.mkdir()
    for name, mode in (("own", 0o600), ("group", 0o640), ("public", 0o644)):
        (at / name).write_text(f"the {name} file\n")
        (at / name).chmod(mode)
    for name, mode in (("closed", 0o700), ("unlisted", 0o711)):
        (at / name).mkdir()
        (at / name / "inner").write_text(f"in the {name} directory\n")
        (at / name).chmod(mode)


@pytest.fixture
def secrets() -> Iterator[Path]:
    """A directory below /usr, where no policy hides what only root may read."""
    at = Path("/usr/local/lib/nsbox-test-secrets")
    try:
        fill(at)
        yield at
    finally:
        shutil.rmtree(at, ignore_errors=True)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def seen(policy: Policy, store: Path, at: Path, *, user: int | None = None) -> str:
    """Return what commands of a task read below a directory, before and after a reset()."""
    script = f"cd {at}; cat own group closed/inner; ls unlisted; ln own link; mv own closed ..; cat link ../own"
    with Sandbox(policy, stock=0) as box, box.task(dir=store) as task:
        first = task.shell(script, user=user).stdout
        task.reset()
        return first + task.shell(script, user=user).stdout


@pytest.mark.parametrize("user", [None, 33, 4, 0])
def test_the_systems_private_files(secrets: Path, workspace: Path, store: Path, user: int | None) -> None:
    """In a Sandbox uid 33 can't read them, so it can't in a task. Controls: a public file, and without a uid chosen."""
    policy = with_all_ids(workspace, uid=33, gid=34)
    assert seen(policy, store, secrets, user=user) == ""
    with Sandbox(policy, stock=0) as box:
        if user != 0:
            assert box.run(f"cat {secrets}/own", shell=True, capture_output=True, user=user).stdout == b""
        with box.task(dir=store) as task:
            changed = task.shell(f"cd {secrets}; echo more >>public; touch new; cat public")
            assert (changed.returncode, changed.stdout) == (0, "the public file\nmore\n")
    assert "the own file" in seen(with_all_ids(workspace), store, secrets)


def test_by_another_name(secrets: Path, workspace: Path, store: Path, tmp_path: Path) -> None:
    """The policy may show them in read=, by a link too. Control: a public file."""
    link = tmp_path / "link"
    link.symlink_to(secrets)
    inner = tmp_path / "inner"
    inner.symlink_to(secrets / "closed")
    policy = with_all_ids(workspace, uid=33, gid=34, read=[secrets, link, inner])
    with Sandbox(policy, stock=0) as box, box.task(dir=store) as task:
        for name in ("own", "group", "closed/inner"):
            assert task.shell(f"cat {secrets}/{name} {link}/{name}").stdout == ""
        assert task.shell(f"cat {inner}/inner").stdout == ""
        assert task.shell(f"cat {link}/public").stdout == "the public file\n"


def test_too_many(secrets: Path, workspace: Path, store: Path) -> None:
    """Then the directory isn't mapped, so its permissions hold. Control: a public file."""
    for number in range(100):
        (secrets / f"own-{number}").write_text("secret")
        (secrets / f"own-{number}").chmod(0o600)
    with Sandbox(with_all_ids(workspace, uid=33, gid=34), stock=0) as box, box.task(dir=store) as task:
        assert task.shell(f"cd {secrets}; cat own own-*; touch new").stdout == ""
        assert task.shell(f"cat {secrets}/public").stdout == "the public file\n"
        assert task.shell(f"touch {secrets}/new").returncode == 1


def test_what_the_workspace_only_shows(workspace: Path, store: Path) -> None:
    """In a mapped workspace, what read= names keeps this uid out where its permissions do. Control: a public file."""
    fill(workspace / "shown")
    policy = with_all_ids(workspace, uid=33, gid=34, read=[workspace / "shown"])
    with Sandbox(policy, stock=0) as box, box.task(dir=store) as task:
        assert task.shell("cd shown; cat own group closed/inner; ls unlisted").stdout == ""
        assert task.shell("cat shown/public; echo made >made").stdout == "the public file\n"
        task.commit()
    assert (workspace / "made").stat().st_uid == os.geteuid()
    assert (workspace / "shown" / "own").read_text() == "the own file\n"
