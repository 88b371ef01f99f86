"""Changing files: edits that are exact or don't happen, and what a call says that it has changed."""

from __future__ import annotations

import json
import os
import pickle
import socket
import tracemalloc
from pathlib import Path

import pytest
from nsbox_testing import needs

import nsbox
from nsbox import AccessError, EditError, Sandbox
from nsbox._filetools import edit as edits
from nsbox._filetools import writing


def test_edit(box: Sandbox, ws: Path) -> None:
    """Once, and the record has the diff."""
    (ws / "a.py").write_text("x = 1\ny = 2\n")
    change = box.edit("a.py", old="x = 1", new="x = 2")
    assert (ws / "a.py").read_text() == "x = 2\ny = 2\n"
    assert (change.path, change.kind, change.count) == ("a.py", "changed", 1)
    assert change.diff == "--- a.py\n+++ a.py\n@@ -1,2 +1,2 @@\n-x = 1\n+x = 2\n y = 2\n"
    assert json.loads(json.dumps(change.as_dict()))["diff"] == change.diff


def test_the_diff_is_one_that_patch_applies(box: Sandbox, ws: Path) -> None:
    """Also with several hunks, and without a newline at the end."""
    needs.require("patch")
    before = "".join(f"line {i}\n" for i in range(50)) + "end"
    (ws / "a").write_text(before)
    change = box.write("a", before.replace("line 3\n", "").replace("line 30\n", "more\nline 30\n") + "s\n")
    after = (ws / "a").read_text()
    (ws / "a").write_text(before)
    (ws / "diff").write_text(change.diff or "")
    box.run(["patch", "-p0", "--no-backup-if-mismatch", "-i", "diff"], check=True, capture_output=True)
    assert (ws / "a").read_text() == after


@pytest.mark.parametrize("count", [1, 3])
def test_counts(box: Sandbox, ws: Path, count: int) -> None:
    """Not once more, not once less: the error says where they are."""
    (ws / "a").write_text("x\ny\nx\n")
    with pytest.raises(EditError, match=r"a has this text 2 times \(lines 1, 3\), not .*: add lines") as caught:
        box.edit("a", "x", "z", count=count)
    assert caught.value.found == 2
    assert (ws / "a").read_text() == "x\ny\nx\n"
    assert box.edit("a", "x", "z", count=2).count == 2
    assert box.edit("a", "z", "x", count=None).count == 2
    assert (ws / "a").read_text() == "x\ny\nx\n"


def test_a_near_miss_that_is_there_often(box: Sandbox, ws: Path) -> None:
    """Each line is shown once, with its numbers, and so others have room."""
    (ws / "often").write_text("    retrun 1\n" * 12 + "return 2\n")
    with pytest.raises(EditError) as caught:
        box.edit("often", "return 1", "return 3")
    rows = str(caught.value).split("\n")[1:]
    assert rows == ["  1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ...:     retrun 1", "  13: return 2"]
    (ws / "often").write_text("RETURN 1\nx\nRETURN 1\n")
    with pytest.raises(EditError) as caught:
        box.edit("often", "return 1", "return 3")
    assert str(caught.value).endswith("differs only in upper and lower case begins at:\n  1, 3: RETURN 1")


def test_near_misses(box: Sandbox, ws: Path) -> None:
    """What is nearly the text is shown, and what differs is named."""
    (ws / "a").write_text("def first(self):\n    return 1\n\n\tif x:\n\t\tpass\n")
    cases = {
        "def frist(self):": "doesn't have this text. The closest lines to 'def frist(self):':\n  1: def first(self):",
        "    if x:\n        pass\n": ". A text that differs only in white space begins at:\n  4: ",
        "Return 1": ". A text that differs only in upper and lower case begins at",
        "return 1\r\n\r\n\tif x:": ": only the line ends differ. The file has LF",
        "nothing like it at all": "a doesn't have this text",
    }
    for old, said in cases.items():
        with pytest.raises(EditError) as caught:
            box.edit("a", old, "new")
        assert said in str(caught.value)
        assert caught.value.found == 0
    assert isinstance(caught.value, ValueError | nsbox.NsboxError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.filename, again.found) == (str(caught.value), "a", 0)


def test_errors_show_no_escapes(box: Sandbox, ws: Path) -> None:
    (ws / "a").write_text("value \x1b[31m= 1\n")
    with pytest.raises(EditError) as caught:
        box.edit("a", "value = 1", "x")
    assert "\x1b" not in str(caught.value)
    assert "\\033[31m" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "encoding", "old", "new", "after"),
    [
        (b"a\r\nb\r\n", "utf-8", "a\nb", "a\nc\nd", b"a\r\nc\r\nd\r\n"),
        (b"a\r\nb\r\n", "utf-8", "a", "1\n2", b"1\r\n2\r\nb\r\n"),
        (b"a\r\nb\nc", "utf-8", "b\nc", "d\ne", b"a\r\nd\ne"),
        (b"no end", "utf-8", "end", "stop", b"no stop"),
        (b"\xef\xbb\xbfa\n", "utf-8", "a", "b", b"\xef\xbb\xbfb\n"),
        (b"\xef\xbb\xbfa\n", "utf-8-sig", "a", "b", b"\xef\xbb\xbfb\n"),
        (b"\xe4\n", "latin-1", "ä", "ö", b"\xf6\n"),
        (b"\xfe\xff\0a\0\n", "utf-16", "a", "b", b"\xfe\xff\0b\0\n"),
        (b"\xff\xfea\0\n\0", "utf-16", "a", "b", b"\xff\xfeb\0\n\0"),
    ],
)
def test_what_is_kept(box: Sandbox, ws: Path, data: bytes, encoding: str, old: str, new: str, after: bytes) -> None:
    """Line ends, a missing newline at the end, a byte order mark, the encoding."""
    (ws / "a").write_bytes(data)
    box.edit("a", old, new, encoding=encoding)
    assert (ws / "a").read_bytes() == after


def test_mode_and_attributes_are_kept(box: Sandbox, ws: Path) -> None:
    """By edit() and by write(), as a new file has them."""
    (ws / "a").write_text("x\n")
    (ws / "a").chmod(0o750)
    try:
        os.setxattr(ws / "a", "user.note", b"kept")
    except OSError:
        pytest.skip("the file system has no user.* attributes")
    before = os.stat(ws / "a")
    box.edit("a", "x", "y")
    box.write("a", "z\n")
    after = os.stat(ws / "a")
    assert after.st_mode == before.st_mode
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert os.getxattr(ws / "a", "user.note") == b"kept"


def test_what_is_no_text(box: Sandbox, ws: Path) -> None:
    (ws / "a").write_bytes(b"a\xff\n")
    with pytest.raises(
        EditError, match=r"a isn't utf-8 text \(byte 0xff at 1\); if it has another encoding, name that"
    ):
        box.edit("a", "a", "b")
    (ws / "a").write_bytes(b"a\0\n")
    with pytest.raises(EditError, match="isn't text: it has NUL bytes"):
        box.edit("a", "a", "b")
    (ws / "a").write_bytes(b"+ADw-/b\n")
    with pytest.raises(EditError, match="would be written back differently"):
        box.edit("a", "b", "c", encoding="utf-7")
    with pytest.raises(LookupError):
        box.edit("a", "b", "c", encoding="no-such")


def test_what_is_no_file(box: Sandbox, ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links, FIFOs, sockets and directories: refused without being opened; a FIFO without a writer doesn't block."""
    os.mkfifo(ws / "fifo")
    with socket.socket(socket.AF_UNIX) as sock:
        monkeypatch.chdir(ws)
        sock.bind("socket")
        for path in ("fifo", "socket"):
            with pytest.raises(AccessError, match="is no regular file"):
                box.edit(path, "a", "b")
            with pytest.raises(AccessError, match="is no regular file"):
                box.append(path, "a")
    with pytest.raises(AccessError, match="link is a symlink"):
        box.edit("link", "a", "b")
    with pytest.raises(AccessError, match="link is a symlink"):
        box.append("link", "a")
    with pytest.raises(IsADirectoryError):
        box.edit("sub", "a", "b")
    with pytest.raises(FileNotFoundError):
        box.edit("missing", "a", "b")
    for path in ("hidden/file", "ro/file", "out/file", "SOUL.md", "sub/SOUL.md/x"):
        with pytest.raises(AccessError):
            box.edit(path, "a", "b")
        with pytest.raises(AccessError):
            box.append(path, "a")


def test_too_large(box: Sandbox, ws: Path) -> None:
    """2 GB, which are a hole: said at once."""
    with open(ws / "a", "wb") as file:
        file.truncate(2 << 30)
    with pytest.raises(EditError, match="a is too large to be edited: 67108864 bytes at most"):
        box.edit("a", "a", "b")


def test_too_much(box: Sandbox, ws: Path) -> None:
    """A text that would grow beyond the bound; and near misses among millions of lines, in bounded time and memory."""
    (ws / "a").write_bytes(b"x\n" * 1_000_000)
    with pytest.raises(EditError, match="a would have more than 67108864 characters"):
        box.edit("a", "x", "y" * 1000, count=None)
    (ws / "a").write_bytes(b"\n" * (60 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(EditError, match="a doesn't have this text"):
            box.edit("a", "something", "else")
        assert tracemalloc.get_traced_memory()[1] < 300 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("how", ["appended", "replaced", "same size", "removed", "link"])
def test_a_file_that_changes_meanwhile(box: Sandbox, ws: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came between isn't lost: the edit doesn't happen, and leaves nothing behind."""
    (ws / "a").write_text("x\n")
    (ws / "other").write_text("q\n")

    def between(*args: object) -> tuple[str, int]:
        changes = {
            "appended": lambda: (ws / "a").open("a").close() or (ws / "a").write_text("x\nmore\n"),
            "replaced": lambda: os.rename(ws / "other", ws / "a"),
            "same size": lambda: (ws / "a").write_text("y\n"),
            "removed": lambda: (ws / "a").unlink(),
            "link": lambda: ((ws / "a").unlink(), (ws / "a").symlink_to("/etc/passwd")),
        }
        changes[how]()
        return edits.replaced(*args)

    monkeypatch.setattr(writing, "replaced", between)
    with pytest.raises((EditError, AccessError), match=r"has changed meanwhile, and wasn't edited|is a symlink"):
        box.edit("a", "x", "z")
    kept = {"appended": "x\nmore\n", "replaced": "q\n", "same size": "y\n"}
    if how in kept:
        assert (ws / "a").read_text() == kept[how]
    assert not [name for name in os.listdir(ws) if name.startswith(".nsbox")]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"old": ""}, "old is empty"),
        ({"new": "x"}, "old and new are the same"),
        ({"count": 0}, "count is 0"),
        ({"count": True}, "count is True"),
    ],
)
def test_wrong_wishes(box: Sandbox, ws: Path, wrong: dict[str, object], error: str) -> None:
    (ws / "a").write_text("x\n")
    with pytest.raises(ValueError, match=error):
        box.edit("a", **({"old": "x", "new": "y"} | wrong))


# ---- write and append


def test_kinds(box: Sandbox, ws: Path) -> None:
    """What write() says that it did."""
    assert box.write("n/a", "x\n").as_dict() == {
        "path": "n/a",
        "kind": "created",
        "diff": "--- /dev/null\n+++ n/a\n@@ -0,0 +1 @@\n+x\n",
        "is_truncated": False,
        "count": 1,
    }
    assert (box.write("n/a", "x\n").kind, box.write("n/a", "x\n").diff) == ("unchanged", "")
    assert box.write("n/a", b"\0binary").diff is None
    assert box.write("n/b", "").diff == ""
    many = box.write("n/b", "".join(f"{i}\n" for i in range(100_000)))
    assert (many.kind, many.is_truncated) == ("changed", True)
    assert len(many.diff or "") < 21_000


def test_append(box: Sandbox, ws: Path) -> None:
    """In place: the file stays the same one. A file with several names isn't changed, since the others would be."""
    assert box.append("new/log", "one\n").kind == "created"
    inode = (ws / "new/log").stat().st_ino
    change = box.append("new/log", b"two\n")
    assert (change.kind, change.diff) == ("changed", "--- new/log\n+++ new/log\n@@ -0,0 +1 @@\n+two\n")
    assert (ws / "new/log").read_text() == "one\ntwo\n"
    assert (ws / "new/log").stat().st_ino == inode
    os.link(ws / "new/log", ws / "second")
    with pytest.raises(AccessError, match="has other names"):
        box.append("second", "three\n")
    with pytest.raises(FileNotFoundError):
        box.append("nowhere/log", "x", parents=False)
    with pytest.raises(TypeError):
        box.append("new/log", 5)  # type: ignore[arg-type]
