"""What commands make in seconds costs the caller who looks at it no more than a bounded amount of memory and time."""

from __future__ import annotations

import os
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

import nsbox
from nsbox import Policy, Sandbox
from nsbox._files import comparison, files
from nsbox._files.files import Tree
from nsbox._filetools import reading, walk
from nsbox._transaction import changes, patch
from nsbox._transaction import renames as renaming
from nsbox._transaction.changes import Comparison

COUNT = 3_000


def made(path: Path, count: int = COUNT) -> Path:
    path.mkdir()
    for i in range(count):
        os.close(os.open(path / f"a-name-of-some-length-{i:08}", os.O_CREAT | os.O_WRONLY, 0o600))
    return path


def peak(work: Callable[[], object]) -> int:
    """Return the most bytes that Python had while it did this."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_list_files_holds_no_names(policy: Policy, workspace: Path) -> None:
    """As soon as there are more files than asked for it says so; the names are never in memory together."""
    made(workspace / "many")
    box = Sandbox(policy)

    def look() -> None:
        with pytest.raises(ValueError, match="more than 10 such files"):
            box.list_files(".", max_files=10)

    look()  # imports
    listed = peak(lambda: os.listdir(workspace / "many"))  # the control: this is what it was
    assert peak(look) < listed / 4
    assert peak(lambda: box.list_files(".", "*/no-such-name", max_files=10)) < listed / 4  # of all names none fits


def test_list_files_of_too_many(policy: Policy, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All entries count, whether they fit or not, and in whichever directory they are."""
    monkeypatch.setattr(walk, "_MOST_ENTRIES", 50)
    made(workspace / "one", 24)
    made(workspace / "two", 24)
    box = Sandbox(policy)
    assert len(box.list_files(".")) == 48
    (workspace / "fifty-first").mkdir()
    with pytest.raises(ValueError, match="more than 50 entries"):
        box.list_files(".", "**/*.none")


def test_too_many_tools(workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of programs is counted while it is read."""
    made(tmp_path / "bin", 30)
    box = Sandbox(Policy.workspace(workspace, tools_bin=tmp_path / "bin"))
    assert box.tools() == []  # none can be executed
    monkeypatch.setattr(reading, "_MOST_TOOLS", 20)
    with pytest.raises(ValueError, match="more than 20 entries"):
        box.tools()


def test_diff_of_long_paths(policy: Policy, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files in deep directories count by their paths; the control: as many with short ones are fine."""
    monkeypatch.setattr(changes, "_MOST_PATHS", 100_000)
    with Sandbox(policy) as box:
        for deep, fits in [("d", True), ("/".join(["d" * 200] * 10), False)]:
            with box.transaction(dir=tmp_path / "kept") as tx:
                tx.shell(f"mkdir -p {deep}; cd {deep}; touch $(seq 100)", check=True)
                if fits:
                    assert len(tx.diff()) == 101
                    continue
                for look in (tx.diff, tx.patch, tx.commit):
                    with pytest.raises(OSError, match="paths have more than 100000 characters"):
                        look()


def test_diff_of_too_many(policy: Policy, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a transaction has changed counts, also what it has deleted, and is never listed without a bound."""
    monkeypatch.setattr(changes, "_MOST_ENTRIES", 100)
    made(workspace / "old", 60)
    with Sandbox(policy) as box:
        for command, fits in [("mkdir d; touch d/$(seq -s ' d/' 60)", True), ("rm -r old", True), ("touch x", True)]:
            with box.transaction(dir=tmp_path / "kept") as tx:
                tx.shell(command, check=True)
                assert bool(tx.diff()) == fits
        with box.transaction(dir=tmp_path / "kept") as tx:
            tx.shell("rm -r old; mkdir d; cd d; touch $(seq 60)", check=True)
            for look in (tx.diff, tx.patch, tx.commit):
                with pytest.raises(OSError, match="changed more than 100 files"):
                    look()
    assert os.listdir(workspace) == ["old"]


def test_names_stop_at_the_bound(tmp_path: Path) -> None:
    """No more than the bound is held, however many there are."""
    made(tmp_path / "many")
    with Tree(str(tmp_path)) as tree:
        assert len(tree.names("many")) == COUNT  # the control
        with pytest.raises(OSError, match="more names than the 100"):
            tree.names("many", 100)

        def look() -> None:
            with pytest.raises(OSError, match="more names"):
                tree.names("many", 100)

        look()  # what is imported or compiled at first use doesn't count
        assert peak(look) < peak(lambda: tree.names("many")) / 10


def test_removing_many_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory is emptied part by part."""
    monkeypatch.setattr(files, "_AT_ONCE", 7)
    for name in ("top", "top/inner"):
        made(tmp_path / name, 30)
    for i in range(20):
        (tmp_path / "top/inner" / f"d{i}").mkdir()
    with Tree(str(tmp_path)) as tree:
        files.remove(tree, "top")
    assert os.listdir(tmp_path) == []


# ---- processor time


def sparse(path: Path, size: int, *data: int) -> Path:
    with open(path, "wb") as file:
        file.truncate(size)
        for at in data:
            os.pwrite(file.fileno(), b"data", at)
    return path


def renames(tmp_path: Path, size: int, count: int) -> tuple[list[str], float]:
    """Return what a diff says of files of one hole, one of which is gone, and the processor time that it took."""
    upper, real = tmp_path / "upper", tmp_path / "real"
    for path in (upper, real):
        path.mkdir()
    sparse(real / "old", size)
    os.mknod(upper / "old", 0o020000, 0)
    for i in range(count):
        sparse(upper / f"new{i}", size, *([100] if i else []))
    with Tree(str(upper)) as one, Tree(str(real)) as other:
        began = time.process_time()
        compared = Comparison(one, other)
        told = compared.with_renames(compared.changes())
        return [str(change) for change in told if change.kind != "added"], time.process_time() - began


def test_holes_are_not_hashed(tmp_path: Path) -> None:
    """Files of holes are found again under another name, without their zeros being read."""
    told, spent = renames(tmp_path, renaming._MOST_HASHED, 30)
    assert told == ["R old -> new0"]
    with open(tmp_path / "upper" / "new1", "rb") as file:  # the control: the zeros of two take longer than all holes
        began = time.process_time()
        for _ in range(2):
            file.seek(0)
            while file.read(1 << 18):
                pass
    assert spent < (time.process_time() - began) * 15


def test_a_budget_for_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond so many bytes files stay "deleted" and "added"."""
    monkeypatch.setattr(renaming, "_MOST_HASHED_IN_ALL", 4 * comparison.LEAST)
    upper, real = tmp_path / "upper", tmp_path / "real"
    for path in (upper, real):
        path.mkdir()
    for i in range(6):
        (real / f"old{i}").write_bytes(b"%d" % i * 100)
        (upper / f"new{i}").write_bytes(b"%d" % i * 100)
        os.mknod(upper / f"old{i}", 0o020000, 0)
    with Tree(str(upper)) as one, Tree(str(real)) as other:
        compared = Comparison(one, other)
        raw = compared.changes()
        kinds = [change.kind for change in compared.with_renames(raw)]
        assert len(raw) == 12
        assert 0 < kinds.count("deleted") == kinds.count("added") < 6 or kinds.count("renamed") == 0
        monkeypatch.undo()
        compared = Comparison(one, other)
        assert [change.kind for change in compared.with_renames(compared.changes())] == ["renamed"] * 6


NAMES, LINKS = 30, 50


def with_attributes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Tree, Tree, list[str]]:
    """Return trees of one new file with many attributes and names, and a list of what is read of them from now on."""
    for top in ("upper", "real"):
        (tmp_path / top).mkdir()
    (tmp_path / "upper/file00").write_text("text")
    for i in range(NAMES):
        os.setxattr(tmp_path / "upper/file00", f"user.a{i}", b"x" * 100)
    for i in range(1, LINKS):
        os.link(tmp_path / "upper/file00", tmp_path / f"upper/file{i:02}")
    found: list[str] = []
    getxattr = os.getxattr

    def counted(file: int, name: str, **options: bool) -> bytes:
        found.append(name)
        return getxattr(file, name, **options)

    monkeypatch.setattr(os, "getxattr", counted)
    return Tree(str(tmp_path / "upper")), Tree(str(tmp_path / "real")), found


@pytest.mark.parametrize("is_guarded", [True, False])
def test_attributes_of_many_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_guarded: bool) -> None:
    """They are read once, held once and shown once, however many names a file has; the control: for each of them."""
    upper, real, read = with_attributes(tmp_path, monkeypatch)
    if not is_guarded:
        monkeypatch.setattr(Comparison, "_digests", lambda _, tree, path, found: tree.attributes(path, found))
    with upper, real:
        compared = Comparison(upper, real)
        told = compared.with_details(compared.changes())
        assert len(told) == LINKS
        assert all(change.attributes is told[0].attributes for change in told)
        own = [name for name in read if name.startswith("user.a")]
        assert len(own) == NAMES if is_guarded else len(own) > NAMES * LINKS
        one = patch.Patch(upper, real, 1 << 20, told)
        text = "".join(map(one.of, told))
        assert (text.count("attributes user.a"), text.count("hard link to file00")) == (1, LINKS - 1)
        assert text.count(", with its attributes") == LINKS - 1


def test_attributes_of_a_link_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they were on the file before, under one name, and are new under another."""
    upper, real, _ = with_attributes(tmp_path, monkeypatch)
    (tmp_path / "real/file00").write_text("before")
    for i in range(NAMES):
        os.setxattr(tmp_path / "real/file00", f"user.a{i}", b"x" * 100)
    with upper, real:
        compared = Comparison(upper, real)
        told = compared.with_details(compared.changes())
        assert (told[0].attributes, len(told[1].attributes)) == ((), NAMES)
        assert "attributes user.a0" in patch.Patch(upper, real, 1 << 20, told).of(told[1])


def test_too_many_attributes(policy: Policy, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All names count, of every file; the control: fewer are fine."""
    make = "import os\nfor i in range({}):\n open(str(i), 'w'); os.setxattr(str(i), f'user.a{{i}}', b'')"
    monkeypatch.setattr(changes, "_MOST_ATTRIBUTES", 2000)
    with Sandbox(policy) as box:
        for count, fits in [(20, True), (80, False)]:
            with box.transaction(dir=tmp_path / "kept") as tx:
                tx.run([sys.executable, "-I", "-S", "-c", make.format(count)], cwd=workspace, check=True)
                if fits:
                    assert len(tx.diff()) == count
                    continue
                for look in (tx.diff, tx.patch, tx.commit):
                    with pytest.raises(OSError, match="names have more than 2000 characters"):
                        look()
    assert os.listdir(workspace) == []


@pytest.mark.parametrize(
    ("size", "cost"), [(0, 0), (1, 1 << 12), (1 << 16, 1 << 16), ((1 << 16) + 1, (1 << 16) + (1 << 12))]
)
def test_small_files_cost_little(tmp_path: Path, size: int, cost: int) -> None:
    """So many thousand small ones leave no less for the contents of others than they are."""
    (tmp_path / "file").write_bytes(b"x" * size)
    with open(tmp_path / "file", "rb") as file:
        assert comparison.digest(file.fileno(), 1 << 30)[1] == cost
        assert comparison.digest(file.fileno(), cost)[0] is not None
        assert cost == 0 or comparison.digest(file.fileno(), cost - 1)[0] is None


def test_other_holes_are_the_same_file(tmp_path: Path) -> None:
    """A copy in which zeros are written out has the same digest; other places of the same data, or sizes, don't."""
    size = 10 * comparison.BLOCK
    first = sparse(tmp_path / "first", size, 5 * comparison.BLOCK)
    (tmp_path / "full").write_bytes(first.read_bytes())
    sparse(tmp_path / "moved", size, 6 * comparison.BLOCK)
    sparse(tmp_path / "longer", size + 1, 5 * comparison.BLOCK)

    def digest(name: str) -> bytes | None:
        fd = os.open(tmp_path / name, os.O_RDONLY)
        try:
            return comparison.digest(fd, 1 << 30)[0]
        finally:
            os.close(fd)

    assert digest("first") == digest("full") is not None
    assert len({digest(name) for name in ("first", "moved", "longer")}) == 3


def test_many_files_of_the_same_contents(tmp_path: Path) -> None:
    """A thousand times a thousand candidates for a rename aren't compared with each other."""
    gone = renaming._Gone()
    for i in range(10_000):
        gone.add(nsbox.Change("deleted", f"old/{i}", "file", 0o644))
    began = time.process_time()
    taken = [gone.take(nsbox.Change("added", f"new/{i + 7}x", "file", 0o644)) for i in range(10_000)]
    assert time.process_time() - began < 5  # by looking at all candidates for each: minutes
    assert [change.path for change in taken if change is not None] == [f"old/{i}" for i in range(10_000)]
    gone.add(nsbox.Change("deleted", "a/name", "file", 0o644))
    gone.add(nsbox.Change("deleted", "b/other", "file", 0o644))
    found = gone.take(nsbox.Change("added", "c/other", "file", 0o644))
    assert found is not None and found.path == "b/other"
    assert gone.take(nsbox.Change("added", "c/other", "file", 0o644)).path == "a/name"  # type: ignore[union-attr]
    assert gone.take(nsbox.Change("added", "c/other", "file", 0o644)) is None


def linked(tmp_path: Path, size: int, count: int, *, again: bool) -> tuple[Tree, Tree]:
    """Return two trees of files of one hole each, with written zeros now; again: by few files that have many names."""
    for top in ("upper", "real"):
        (tmp_path / top).mkdir()
        for i in range(count):
            path = tmp_path / top / f"file{i:04}"
            if i and (again or top == "upper"):
                os.link(tmp_path / top / "file0000", path)
            else:
                sparse(path, size)
    with open(tmp_path / "upper/file0000", "r+b") as file:
        file.write(bytes(size))
    return Tree(str(tmp_path / "upper")), Tree(str(tmp_path / "real"))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes have been read for comparing, each time."""
    found: list[int] = []
    pread = os.pread

    def counted(fd: int, count: int, at: int) -> bytes:
        found.append(count)
        return pread(fd, count, at)

    monkeypatch.setattr(os, "pread", counted)
    return found


def test_no_two_files_are_compared_twice(tmp_path: Path, read: list[int]) -> None:
    """A file with a thousand names is compared once with another that has as many; nothing of it is lost."""
    upper, real = linked(tmp_path, 1 << 20, 1000, again=True)
    with upper, real:
        assert Comparison(upper, real).changes() == []
        assert sum(read) == 2 << 20
        (tmp_path / "upper/file0500").unlink()
        (tmp_path / "upper/file0500").write_bytes(bytes((1 << 20) - 1) + b"x")
        assert [change.path for change in Comparison(upper, real).changes()] == ["file0500"]


def test_a_budget_for_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[int]) -> None:
    """One file of zeros under a thousand names, each against another hole: beyond a bound they count as modified."""
    upper, real = linked(tmp_path, 1 << 20, 1000, again=False)
    with upper, real:
        monkeypatch.setattr(changes, "_MOST_COMPARED", 10 << 20)
        found = Comparison(upper, real).changes()
        assert sum(read) <= 10 << 20
        assert [change.path for change in found] == [f"file{i:04}" for i in range(5, 1000)]
        assert {change.kind for change in found} == {"modified"}


def test_control_a_budget_for_contents(tmp_path: Path, read: list[int]) -> None:
    """The control: with the usual bound all of it is read, and nothing has changed."""
    upper, real = linked(tmp_path, 1 << 20, 100, again=False)
    with upper, real:
        assert Comparison(upper, real).changes() == []
        assert sum(read) == 200 << 20


def test_beyond_the_budget_for_contents(
    policy: Policy, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that counts as modified without being read is reported, and comes in as it is: no change is lost."""
    monkeypatch.setattr(changes, "_MOST_COMPARED", 0)
    for name in ("same", "other"):
        (workspace / name).write_text("text\n")
    with Sandbox(policy) as box, box.transaction(dir=tmp_path / "kept") as tx:
        tx.shell("touch same; echo TEXT > other", check=True)
        assert [str(change) for change in tx.diff()] == ["M other", "M same"]
        assert "+TEXT" in tx.patch()
        tx.commit()
    assert ((workspace / "same").read_text(), (workspace / "other").read_text()) == ("text\n", "TEXT\n")


def test_a_file_that_becomes_shorter(tmp_path: Path) -> None:
    """While it is compared: it isn't the same then, and nobody goes on through what isn't there."""
    size = 4 * comparison.BLOCK
    (tmp_path / "long").write_bytes(bytes(size))
    (tmp_path / "short").write_bytes(b"x")
    fds = [os.open(tmp_path / name, os.O_RDONLY) for name in ("long", "short")]
    try:
        assert comparison.same_contents(fds[0], fds[1], 1 << 30)[0] is False
        assert comparison.same_contents(fds[0], fds[0], 1 << 30)[0] is True  # the control
    finally:
        for fd in fds:
            os.close(fd)
