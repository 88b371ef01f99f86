"""How the changes of a transaction come into a workspace: all or none, whatever ends it, and whatever is in the way."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from nsbox_testing.commits import AFTER, Case
from nsbox_testing.faults import THOROUGH
from nsbox_testing.trees import taken

from nsbox._files import copies, files
from nsbox._files.files import Tree
from nsbox._transaction import commit


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


@pytest.fixture(params=[True, False], ids=["exchange", "no-exchange"])
def exchange(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on file systems where two files can't change places."""
    if not request.param:
        monkeypatch.setattr(commit.Staging, "_try_exchange", lambda self: False)


@pytest.mark.usefixtures("exchange")
def test_all_sorts_of_changes(case: Case) -> None:
    """Files, directories and links come, go, change their types and modes; hard links stay such."""
    store = case.begin()
    case.commit(store)
    after = taken(case.real)
    assert set(after) == AFTER
    assert after["changed"][2] == (b"changed after\n", str(case.real / "changed"))
    assert after["kept/mode"][1] == 0o700
    assert after["tree/deep/deeper"][:2] == ("directory", 0o555)
    assert (case.real / "tree/hard").samefile(case.real / "tree/deep/file")
    assert after["tree/pipe"][0] == "fifo"
    assert after["link"][2] == "/nowhere"
    assert case.leftovers() == []


# ---- crashes


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for the device: it is processes that end here, not machines."""
    monkeypatch.setattr(files, "sync", lambda fd: None)
    monkeypatch.setattr(os, "fsync", lambda fd: None)


_CHANGING = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.link", "os.symlink", "os.utime", "open"}


def dies(after: int, work: Callable[[], None]) -> bool:
    """Do it in a copy of this process that ends without a word before its nth change to a file; say if it came to that."""
    pid = os.fork()
    if pid == 0:
        left = [after]

        def count(event: str, args: tuple[object, ...]) -> None:
            if event in _CHANGING and (event != "open" or int(str(args[2])) & (os.O_WRONLY | os.O_RDWR)):
                left[0] -= 1
                if left[0] < 0:
                    os._exit(42)

        def renaming(*args: object) -> None:
            count("os.rename", ())
            rename(*args)  # type: ignore[arg-type]

        try:
            rename, files.rename = files.rename, renaming
            sys.addaudithook(count)
            work()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, 42)
    return status == 42


@pytest.mark.usefixtures("exchange", "hasty")
def test_ends_at_any_moment(case: Case) -> None:
    """Whatever was done when it ended: after the next start all has changed, or nothing has. Each second, unless asked."""
    case.commit(case.begin())
    done = taken(case.real)
    seen = set()
    for n in range(0, 1000, 1 if THOROUGH else 2):
        case.renew()
        died = dies(n, lambda: case.commit(case.begin()))
        assert commit.recover(str(case.base)) == []
        found = taken(case.real)
        assert found in (case.before, done), f"half done after {n} changes"
        assert case.leftovers() == []
        seen.add(found == done)
        if not died:
            break
    assert seen == {True, False}
    assert not died
    assert n > 60


@pytest.mark.usefixtures("hasty")
def test_recovery_ends_at_any_moment_too(case: Case) -> None:
    """Recovery begins again until it is complete."""
    case.commit(case.begin())
    done = taken(case.real)
    counts = set()
    for n in range(20, 1000, 7):
        case.renew()
        if not dies(n, lambda: case.commit(case.begin())):
            break
        for again in range(1000):
            if not dies(again, lambda: assert_recovers(case)):
                break
        counts.add(again)
        assert taken(case.real) in (case.before, done), f"half done after {n} changes"
        assert case.leftovers() == []
    assert max(counts) > 5


def assert_recovers(case: Case) -> None:
    assert commit.recover(str(case.base)) == []


# ---- trees


def test_a_deep_tree(tmp_path: Path) -> None:
    """Far more levels than Python recurses, or paths may have, are copied and removed."""
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    fd = os.open(tmp_path / "from", os.O_RDONLY)
    for _ in range(800):  # 9 kB
        os.mkdir("d" * 10, dir_fd=fd)
        inner = os.open("d" * 10, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    with Tree(str(tmp_path)) as tree, Tree(str(tmp_path)) as target:
        copies.copy(tree, "from", target, "to/copy", {})
        assert tree.stat("to/copy" + "/dddddddddd" * 800) is not None
        for name in ("from", "to"):
            files.remove(tree, name)
    assert os.listdir(tmp_path) == []


def test_holes_stay_holes(tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 30)
        file.write(b"data")
    with Tree(str(tmp_path)) as tree:
        copies.copy(tree, "sparse", tree, "copy", {})
    found = os.stat(tmp_path / "copy")
    assert found.st_size == 1 << 40
    assert found.st_blocks * 512 < 1 << 20
    with open(tmp_path / "copy", "rb") as file:
        file.seek(1 << 30)
        assert file.read(4) == b"data"


def test_attributes_and_times(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("file")
    os.setxattr(tmp_path / "file", "user.mine", b"value")
    os.setxattr(tmp_path / "file", "user.overlay.origin", b"")
    os.utime(tmp_path / "file", ns=(1_000_000_001, 2_000_000_002))
    with Tree(str(tmp_path)) as tree:
        copies.copy(tree, "file", tree, "copy", {})
    assert os.listxattr(tmp_path / "copy") == ["user.mine"]
    assert os.stat(tmp_path / "copy").st_mtime_ns == 2_000_000_002


@pytest.mark.as_user("root may read everything")
def test_without_permissions(tmp_path: Path) -> None:
    """What its owner may not read is compared, copied and removed all the same, and keeps its mode."""
    (tmp_path / "closed" / "inner").mkdir(parents=True)
    (tmp_path / "closed" / "inner" / "file").write_text("file")
    for name in ("closed/inner/file", "closed/inner", "closed"):
        (tmp_path / name).chmod(0)
    (tmp_path / "to").mkdir()
    with Tree(str(tmp_path), forceful=True) as tree, Tree(str(tmp_path / "to"), forceful=True) as target:
        copies.copy(tree, "closed", target, "copy", {})
        assert (tmp_path / "closed").stat().st_mode & 0o777 == 0
        assert (tmp_path / "to" / "copy").stat().st_mode & 0o777 == 0
        with target.file("copy/inner/file") as fd:
            assert os.read(fd, 9) == b"file"
        for name in ("closed", "to"):
            files.remove(tree, name)
    assert os.listdir(tmp_path) == []
