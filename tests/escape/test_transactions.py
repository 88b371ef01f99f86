"""What commands of a transaction may try: the real workspace, each other, and those who look at what they leave behind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing.running import python
from nsbox_testing.trees import taken

import nsbox
from nsbox import CommitError, Policy, RoBind, Sandbox, Tmpfs, Transaction
from tests.escape.test_kept import HIDE, LOOK


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def tx(policy: Policy, workspace: Path, store: Path) -> Iterator[Transaction]:
    (workspace / "file").write_text("before")
    with Sandbox(policy, stock=0) as box, box.transaction(dir=store) as made:
        yield made


def said(tx: Transaction, code: str, *args: str, **options: Any) -> str:
    done = tx.run(python(code, *args), capture_output=True, text=True, **options)
    assert done.stderr == ""
    return str(done.stdout)


TRY = """
import os, sys
for path in sys.argv[1:]:
    try: os.stat(path); print("there:", path)
    except OSError: pass
"""


def test_neither_store_nor_real_workspace_is_there(tx: Transaction, store: Path, workspace: Path) -> None:
    """Only the overlay is: its layers are no mounts, and the way to them is gone with the old root."""
    upper = tx._store.upper
    ways = [str(store), upper, f"/proc/1/root{upper}", f"/proc/self/root/..{upper}", f"/..{upper}", "/old"]
    assert said(tx, TRY, *ways) == ""
    with open("/proc/self/mountinfo") as mounts:
        assert str(workspace) not in mounts.read()  # nor is anything mounted here
    assert os.path.exists(upper)  # the control


MAKE = """
import os
found = []
def tried(name, call, *args):
    try: call(*args); found.append(name)
    except OSError: pass
tried("whiteout", os.mknod, "whiteout", 0o020000, 0)
tried("device", os.mknod, "device", 0o020666, os.makedev(1, 3))
tried("opaque", os.setxattr, ".", "user.overlay.opaque", b"y")
tried("redirect", os.setxattr, ".", "user.overlay.redirect", b"/etc")
tried("trusted", os.setxattr, ".", "trusted.overlay.opaque", b"y")
print(found)
"""


def test_overlayfs_s_own_marks_cant_be_made(tx: Transaction) -> None:
    """Nobody inside can say that something below is gone, or lies elsewhere, but by deleting it."""
    assert set(said(tx, MAKE).strip("[]'\n").split("', '")) <= {"", "opaque", "redirect"}
    found = {name for name in os.listxattr(tx._store.upper) if name.count("overlay") == 1}
    assert not found & {"user.overlay.opaque", "user.overlay.redirect"}
    assert [str(change) for change in tx.diff()] == []


def test_no_command_may_trace_another(workspace: Path, store: Path) -> None:
    """They share the user namespace that the mounts belong to, but each ends in one of its own."""
    policy = Policy.layers(RoBind("/", "/"), nsbox.Dev("/dev"), Tmpfs("/mnt"))  # with the host's procfs
    hide = python(HIDE, "/mnt")
    with (
        Sandbox(policy, stock=0) as box,
        box.transaction(workspace, dir=store) as tx,
        tx.Popen(hide, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other,
    ):
        assert other.stdout.readline() == "up\n"
        assert said(tx, LOOK, str(other.pid), "/mnt") == "[]\n"
        other.communicate("\n")


def test_a_symlink_leads_nowhere(tx: Transaction, workspace: Path, tmp_path: Path) -> None:
    """Comparing and committing read the link, not what it names; a directory under its name comes as a directory."""
    (tmp_path / "secret").write_text("secret")
    said(tx, f"import os; os.symlink('{tmp_path}/secret', 'link'); os.remove('file'); os.symlink('{tmp_path}', 'file')")
    assert "secret\n" not in tx.patch().replace(f"{tmp_path}/secret\n", "")
    tx.commit()
    assert os.readlink(workspace / "link") == f"{tmp_path}/secret"
    assert os.readlink(workspace / "file") == str(tmp_path)
    assert (tmp_path / "secret").read_text() == "secret"


TRAPS = """
import os, socket
os.mkfifo("fifo")
socket.socket(socket.AF_UNIX).bind("socket")
with open("sparse", "wb") as file: file.truncate(1 << 42)
os.mkdir("closed"); open("closed/file", "w").close(); os.chmod("closed", 0)
open(b"\\xff\\n", "w").close()
os.mkdir("deep"); os.chdir("deep")
for _ in range(150): os.mkdir("d" * 20); os.chdir("d" * 20)
"""


def test_traps_for_who_looks(tx: Transaction, workspace: Path, store: Path) -> None:
    """Pipes that nobody writes to, holes of terabytes, names and modes of all kinds: none holds up a look or a commit."""
    said(tx, TRAPS)
    assert {"fifo", "socket", "sparse", "closed/file"} <= {change.path for change in tx.diff()}
    assert "sparse" in tx.patch()
    tx.commit()
    names = {os.fsencode(name) for name in os.listdir(workspace)}
    assert names == {b"file", b"fifo", b"sparse", b"closed", b"\xff\n", b"deep"}  # the socket is dead
    assert (workspace / "sparse").stat().st_blocks < 1000
    (workspace / "closed").chmod(0o700)
    assert os.listdir(store) == ["lock"]


DEEP = """
import os
for _ in range(3000): os.mkdir("d" * 20); os.chdir("d" * 20)
"""


def test_deeper_than_any_path(tx: Transaction, workspace: Path, store: Path) -> None:
    """It is refused, and can be dropped."""
    said(tx, DEEP)
    with pytest.raises(OSError, match="File name too long"):
        tx.commit()
    tx.discard()
    assert os.listdir(workspace) == ["file"]
    assert os.listdir(store) == ["lock"]


def test_a_link_in_the_way_of_a_commit(tx: Transaction, workspace: Path, tmp_path: Path) -> None:
    """Another sandbox has put it there meanwhile: nothing is written where it leads to."""
    outside = tmp_path / "outside"
    outside.mkdir()
    said(tx, "import os; os.mkdir('new'); open('new/file', 'w').close()")
    (workspace / "new").symlink_to(outside)
    before = taken(workspace)
    with pytest.raises((CommitError, nsbox.ConflictError)):
        tx.commit()
    assert os.listdir(outside) == []
    assert taken(workspace) == before


def test_modes_come_as_they_are(tx: Transaction, workspace: Path) -> None:
    """Whatever a command may do to the workspace itself it may do by a commit too: no more, no less."""
    said(tx, "import os; open('tool', 'w').close(); os.chmod('tool', 0o755)")
    tx.commit()
    assert (workspace / "tool").stat().st_mode & 0o7777 == 0o755


MARK = """
import os, sys
how, path = sys.argv[1:]
if how == "device":
    os.mknod(path, 0o020644, 0)
else:
    os.setxattr(path, "user.overlay." + how, b"")
"""


@pytest.mark.parametrize(("how", "path"), [("metacopy", "d/file"), ("redirect", "d"), ("device", "d/hidden\n")])
def test_marks_of_overlayfs(policy: Policy, workspace: Path, store: Path, how: str, path: str) -> None:
    """A command that leaves some in the workspace blinds no later transaction: it doesn't begin, and says why."""
    (workspace / "d").mkdir()
    (workspace / "d/file").write_text("file\n")
    with Sandbox(policy, stock=0) as box:
        box.transaction(dir=store).discard()  # the control
        if how == "device":  # inside, nobody may
            os.mknod(workspace / path, 0o020644, 0)
        else:
            box.run(python(MARK, how, path), check=True)
        with pytest.raises(nsbox.UnavailableError, match=r"by its marks on them: .*remedy: setfattr -x") as caught:
            box.transaction(dir=store)
        assert ('"d/hidden\\n"' if how == "device" else path) in str(caught.value)
        assert "\n" not in str(caught.value)
        if how == "metacopy":  # the control: it would be blind
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr("nsbox.transaction.check_marks", lambda *_: None)
                with box.transaction(dir=store) as tx:
                    assert tx.run(["cat", path], stderr=subprocess.DEVNULL).returncode == 1
        if how == "device":
            os.unlink(workspace / path)
        else:
            os.removexattr(workspace / path, f"user.overlay.{how}")
        with box.transaction(dir=store) as tx:
            assert tx.run(["cat", "d/file"], capture_output=True).stdout == b"file\n"
    assert os.listdir(store) == ["lock"]


def test_marks_are_looked_for_with_a_bound(
    policy: Policy, workspace: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A workspace of many files isn't looked at as a whole: what is further down may stay unseen, but costs no time."""
    monkeypatch.setattr("nsbox._transaction.overlay._MOST_LOOKED_AT", 3)
    looked: list[str] = []
    monkeypatch.setattr("nsbox._transaction.overlay._is_marked", lambda _, entry: looked.append(entry.name))
    for path in ("a", "a/b", "a/b/c", "a/b/c/d"):
        (workspace / path).mkdir()
    with Sandbox(policy, stock=0) as box:
        box.transaction(dir=store).discard()
    assert looked == ["a", "b", "c"]
