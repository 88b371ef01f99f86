"""Names: directories made, files moved, copied and removed, by the rules for both ends."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from nsbox import AccessError, PathRule, Policy, Sandbox
from nsbox._filetools import names


def everything(top: Path) -> dict[str, str]:
    """The files below a directory, with their contents."""
    return {
        str(path.relative_to(top)): path.read_text()
        for path in sorted(top.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def test_mkdir(box: Sandbox, ws: Path) -> None:
    assert box.mkdir("a/b/c").kind == "created"
    assert (ws / "a/b/c").is_dir()
    assert box.mkdir("a/b/c").kind == "unchanged"
    with pytest.raises(FileExistsError):
        box.mkdir("sub/file")
    with pytest.raises(FileNotFoundError):
        box.mkdir("x/y", parents=False)
    for path in ("ro/x", "hidden/x", "out/x", "/etc/x", "SOUL.md", "SOUL.md/x"):
        with pytest.raises(AccessError):
            box.mkdir(path)
    assert not (ws.parent / "outside/x").exists()


def test_delete(box: Sandbox, ws: Path) -> None:
    """A file; a link, not what it leads to; an empty directory; with recursive=True all of it, and the count."""
    assert box.delete("sub/file").as_dict()["kind"] == "deleted"
    assert not (ws / "sub/file").exists()
    box.delete("out")
    assert not os.path.lexists(ws / "out")
    assert (ws.parent / "outside/file").exists()
    box.delete("sub")
    box.write("d/e/f", "x")
    (ws / "d/e/to-outside").symlink_to(ws.parent / "outside")
    os.mkfifo(ws / "d/fifo")
    with pytest.raises(OSError, match="the directory isn't empty; recursive=True") as caught:
        box.delete("d")
    assert caught.value.errno == errno.ENOTEMPTY
    assert box.delete("d", recursive=True).count == 5
    assert not (ws / "d").exists()
    assert (ws.parent / "outside/file").exists()
    with pytest.raises(FileNotFoundError):
        box.delete("d")
    with pytest.raises(NotADirectoryError):
        box.write("g", "") and box.delete("g/")


@pytest.mark.parametrize(
    "path", [".", "ro", "ro/file", "hidden", "hidden/file", "out/file", "/etc/passwd", "../outside"]
)
def test_what_is_not_deleted(box: Sandbox, ws: Path, path: str) -> None:
    """Mount points, read-only, hidden, and what is outside."""
    before = everything(ws.parent)
    with pytest.raises((AccessError, IsADirectoryError)):
        box.delete(path, recursive=True)
    assert everything(ws.parent) == before


@pytest.mark.parametrize("what", ["protected", "hidden", "read-only", "pattern"])
@pytest.mark.parametrize("how", ["delete", "move"])
def test_a_directory_with_what_must_stay(ws: Path, what: str, how: str) -> None:
    """It stays as a whole: nothing in it is removed first, and nothing hidden is moved to where it isn't."""
    for name in ("d/a", "d/deep/secret", "d/deep/SOUL.md", "d/z"):
        (ws / name).parent.mkdir(parents=True, exist_ok=True)
        (ws / name).write_text("x")
    policy = {
        "protected": Policy.workspace(ws, protected=["soul.md"]),
        "hidden": Policy.workspace(ws, deny=[ws / "d/deep/secret"]),
        "read-only": Policy.workspace(ws, read=[ws / "d/deep"]),
        "pattern": Policy.workspace(ws, deny=["**/secret"]),
    }[what]
    before = everything(ws)
    with Sandbox(policy, stock=0) as box, pytest.raises(AccessError):
        box.delete("d", recursive=True) if how == "delete" else box.move("d", "e")
    assert everything(ws) == before


def test_bounds_of_a_delete(box: Sandbox, ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many entries, or too deep: said before anything is removed."""
    for i in range(30):
        box.write(f"d/{i}", "")
    monkeypatch.setattr(names, "_MOST_ENTRIES", 20)
    with pytest.raises(AccessError, match="d has more than 20 entries; use a command for so many"):
        box.delete("d", recursive=True)
    monkeypatch.setattr(names, "_DEEPEST", 3)
    box.mkdir("e/1/2/3/4/5/6")
    with pytest.raises(AccessError, match="e is deeper than 3 directories"):
        box.delete("e", recursive=True)
    assert len(os.listdir(ws / "d")) == 30


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_a_mount_of_the_host(box: Sandbox, ws: Path) -> None:
    """What is mounted below a directory isn't entered."""
    (ws / "d/m").mkdir(parents=True)
    import subprocess

    subprocess.run(["mount", "-t", "tmpfs", "none", ws / "d/m"], check=True)
    try:
        (ws / "d/m/file").write_text("x")
        with pytest.raises(AccessError, match="d has a mount point in it: m"):
            box.delete("d", recursive=True)
        assert (ws / "d/m/file").read_text() == "x"
    finally:
        subprocess.run(["umount", ws / "d/m"], check=True)


def test_move(box: Sandbox, ws: Path) -> None:
    """Files and directories; the inode stays; what is there already stays, unless overwrite."""
    inode = (ws / "sub/file").stat().st_ino
    change = box.move("sub/file", "new/dir/name")
    assert (change.path, change.kind, change.count) == ("new/dir/name", "moved", 1)
    assert (ws / "new/dir/name").stat().st_ino == inode
    assert box.move("new", "other").count == 3
    box.write("there", "kept\n")
    with pytest.raises(FileExistsError, match="exists; overwrite=True"):
        box.move("other/dir/name", "there")
    assert (ws / "there").read_text() == "kept\n"
    box.move("other/dir/name", "there", overwrite=True)
    assert (ws / "there").stat().st_ino == inode
    with pytest.raises(IsADirectoryError):
        box.move("there", "other", overwrite=True)
    for overwrite in (False, True):  # which would be no way to do it
        for method in (box.move, box.copy):
            with pytest.raises(IsADirectoryError, match="is a directory; name the new path in it: 'other'"):
                method("there", "other", overwrite=overwrite)
        with pytest.raises(NotADirectoryError, match=r"exists and is no directory; delete\(\) it first: 'there'"):
            box.move("other", "there", overwrite=overwrite)
    box.mkdir("full/more")
    with pytest.raises(FileExistsError, match="overwrite=True replaces an empty directory"):
        box.move("other", "full")
    with pytest.raises(OSError, match="not empty"):
        box.move("other", "full", overwrite=True)
    box.move("other", "full/more", overwrite=True)
    box.move("full/more", "other")
    with pytest.raises(IsADirectoryError):
        box.move("there", "other/")
    with pytest.raises(AccessError, match="lies in other, or is the same"):
        box.move("other", "other/dir/in-itself")
    with pytest.raises(FileNotFoundError):
        box.move("missing", "x")


def test_copy(box: Sandbox, ws: Path) -> None:
    """Contents, mode; what is there already stays, unless overwrite; from what is read-only, too."""
    (ws / "sub/file").chmod(0o750)
    assert box.copy("sub/file", "a/b").as_dict()["path"] == "a/b"
    assert (ws / "a/b").read_text() == "ws/sub\n"
    assert stat.S_IMODE((ws / "a/b").stat().st_mode) == 0o750
    with pytest.raises(FileExistsError):
        box.copy("ro/file", "a/b")
    box.copy("ro/file", "a/b", overwrite=True)
    assert (ws / "a/b").read_text() == "ws/ro\n"
    with pytest.raises(IsADirectoryError):
        box.copy("sub", "c")
    with open(ws / "huge", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(AccessError, match="huge is too large to be copied: 1073741824 bytes at most"):
        box.copy("huge", "c")
    assert not [name for name in os.listdir(ws) if name.startswith(".nsbox")]


def test_a_copy_is_never_more_open(box: Sandbox, ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for a moment."""
    (ws / "sub/file").chmod(0o600)
    modes, plain = [], os.fchmod

    def noted(fd: int, mode: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(fd).st_mode))
        plain(fd, mode)

    monkeypatch.setattr(os, "fchmod", noted)
    box.copy("sub/file", "copy")
    assert modes == [0o600]


@pytest.mark.parametrize(
    ("source", "destination"),
    [
        ("hidden/file", "a"),
        ("out/file", "a"),
        ("link", "a"),
        ("out", "a"),
        ("/etc/passwd", "a"),
        ("sub/file", "ro/a"),
        ("sub/file", "hidden/a"),
        ("sub/file", "out/a"),
        ("sub/file", "/tmp/a"),
        ("sub/file", "SOUL.md"),
        ("sub/file", "soul.MD/a"),
    ],
)
@pytest.mark.parametrize("how", ["move", "copy"])
def test_both_ends_are_checked(box: Sandbox, ws: Path, source: str, destination: str, how: str) -> None:
    """Links, hidden, read-only, protected, outside: of the one and of the other."""
    before = everything(ws.parent)
    with pytest.raises(AccessError):
        getattr(box, how)(source, destination)
    assert everything(ws.parent) == before
    assert not os.path.lexists(ws / "a")


def test_a_read_only_source_is_not_moved(box: Sandbox, ws: Path) -> None:
    with pytest.raises(AccessError):
        box.move("ro/file", "a")
    assert (ws / "ro/file").exists()


def test_rules_of_the_target(ws: Path) -> None:
    """Suffixes and sizes, of a directory's contents too."""
    (ws / "notes").mkdir()
    rule = PathRule("notes", str(ws / "notes"), suffixes=(".md",), max_file_bytes=10)
    with Sandbox(Policy.workspace(ws, write=[ws / "notes"], paths=[rule]), stock=0) as box:
        box.write("a.md", "x" * 11)
        box.write("d/b.txt", "x")
        box.write("ok/c.md", "x")
        for source, destination in (("a.md", "notes/a.md"), ("d/b.txt", "notes/b.txt"), ("d", "notes/d")):
            with pytest.raises(AccessError):
                box.move(source, destination)
        for source, destination in (("a.md", "notes/a.md"), ("d/b.txt", "notes/b.txt")):
            with pytest.raises(AccessError):
                box.copy(source, destination)
        box.move("ok", "notes/ok")
        with pytest.raises(AccessError):
            box.append("notes/ok/c.md", "x" * 10)
        with pytest.raises(AccessError):
            box.edit("notes/ok/c.md", "x", "x" * 11)
        box.append("notes/ok/c.md", "x" * 9)
    assert os.listdir(ws / "notes") == ["ok"]


def test_file_systems_without_noreplace(box: Sandbox, ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and directories are moved there too, and nothing is replaced."""

    def refused(*_: object) -> None:
        raise OSError(errno.EINVAL, "no such flag")

    monkeypatch.setattr("nsbox._filetools.ground.rename", refused)
    box.move("sub/file", "sub/other")
    box.move("sub", "new")
    assert (ws / "new/other").read_text() == "ws/sub\n"
    box.mkdir("full/x")
    with pytest.raises(FileExistsError):
        box.move("new", "full")
