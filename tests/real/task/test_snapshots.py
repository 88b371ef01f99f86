"""Snapshots of tasks: all that commands have written comes back, down to what overlayfs notes, and nothing else."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from nsbox import PolicyError, Sandbox, Snapshot, Task
from nsbox._files import attributes


def sh(task: Task, command: str) -> str:
    done = task.shell(command)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.vm
def test_there_and_back(task: Task, shown: Path) -> None:
    """In the workspace, in what the policy shows, in /tmp and in the home."""
    sh(task, f"echo 1 > /tmp/a; echo 2 > ~/b; echo 3 > {shown}/text; rm -r {shown}/deep directory; echo 4 > file")
    look = f"cat /tmp/a ~/b {shown}/text file; ls . {shown} /tmp"
    before, changes = sh(task, look), [str(change) for change in task.diff()]
    snapshot = task.snapshot()
    assert isinstance(snapshot, Snapshot)
    assert snapshot.size > 0
    sh(task, f"rm -r /tmp/a ~/b {shown}/text file; mkdir -p directory {shown}/deep /tmp/more; touch more")
    for _ in range(2):
        task.reset(snapshot)
        assert sh(task, look) == before
        assert [str(change) for change in task.diff()] == changes
        sh(task, "rm file /tmp/a")


def test_only_snapshots(task: Task) -> None:
    with pytest.raises(TypeError, match="snapshot is a str, must be a Snapshot or None"):
        task.reset("before")  # type: ignore[arg-type]


def test_the_beginning(task: Task, filled: Path) -> None:
    sh(task, "rm -r directory; echo x > file; echo x > /tmp/x")
    task.reset()
    assert sh(task, "cat file directory/inner; cd /tmp; echo x*; ls -A ~") == "one\ninner\nx*\n"
    assert task.diff() == []
    sh(task, "echo new > file")
    task.diff()
    task.commit()
    assert (filled / "file").read_text() == "new\n"


@pytest.mark.vm
@pytest.mark.parametrize("mode", ["000", "111", "311", "500"])
def test_directories_that_commands_closed(task: Task, filled: Path, shown: Path, mode: str) -> None:
    """The session's own /tmp, the home, what the policy shows, and directories in them and in the workspace."""
    tops = f"/tmp ~ {shown}"  # from above: what comes later may lie in what comes first
    places = f"{tops} {filled}"
    close = f"for at in {shown} ~ /tmp; do chmod {mode} $at; done"
    look = f"for at in {tops}; do stat -c %a $at; chmod 755 $at; done; "
    look += f"for at in {places}; do stat -c %a $at/in; chmod 755 $at/in; cat $at/in/new; done"
    shown_mode = str(int(mode))
    expected = f"{shown_mode}\n" * 3 + f"{shown_mode}\n1\n" * 4

    def run(command: str) -> str:
        done = task.shell(command, cwd="/")  # the workspace may lie in what is closed
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    run(f"for at in {places}; do mkdir $at/in && echo 1 > $at/in/new && chmod {mode} $at/in; done; {close}")
    snapshot = task.snapshot()
    assert run(look) == expected
    run(f"for at in {places}; do rm -r $at/in; done; {close}")
    for _ in range(2):
        task.reset(snapshot)
        assert run(look) == expected
    snapshot.drop()
    assert snapshot.is_dropped


def test_what_runs_ends(task: Task) -> None:
    """A snapshot is about files, and taken at rest; reset() ends what runs."""
    snapshot = task.snapshot()
    running = task.Popen(["sleep", "1000"])
    with pytest.raises(ValueError, match="still run: sleep"):
        task.snapshot()
    task.reset(snapshot)
    assert running.wait() != 0
    assert "sleep" not in sh(task, "cat /proc/[0-9]*/comm")


MAKE = """
import os, socket
os.mkdir("kinds"); os.chdir("kinds")
open("one", "w").write("x" * 5000)
os.link("one", "other")
os.symlink("/etc/passwd", "link")
os.mkfifo("fifo", 0o640)
socket.socket(socket.AF_UNIX).bind("socket")
with open("sparse", "wb") as file: file.seek(100 << 20); file.write(b"end")
os.setxattr("one", "user.note", b"kept")
os.mkdir("closed"); open("closed/in", "w").write("in"); os.chmod("closed", 0); os.chmod("sparse", 0)
open("times", "w"); os.utime("times", (1, 2))
"""
LOOK = """
import os, stat
os.chdir("kinds"); os.chmod("closed", 0o700); os.chmod("sparse", 0o600)
print(os.stat("one").st_ino == os.stat("other").st_ino, os.readlink("link"), os.getxattr("one", "user.note"))
print(*(stat.filemode(os.lstat(name).st_mode) for name in ("fifo", "socket", "one")), os.stat("fifo").st_nlink)
print(os.stat("sparse").st_size, os.stat("sparse").st_blocks < 1000, open("sparse", "rb").read()[-3:])
print(open("closed/in").read(), os.stat("times").st_mtime)
"""


def test_all_kinds_of_files(task: Task) -> None:
    """Links, holes, attributes, modes and times; what nobody may read, too."""
    task.exec("python3", ["-c", MAKE], check=True)
    snapshot = task.snapshot()
    assert snapshot.size < 10 << 20
    sh(task, "chmod -R u+rwX kinds; rm -r kinds")
    task.reset(snapshot)
    assert task.exec("python3", ["-c", LOOK], check=True).stdout.splitlines() == [
        "True /etc/passwd b'kept'",
        "prw-r----- srwxr-xr-x -rw-r--r-- 1",
        "104857603 True b'end'",
        "in 2.0",
    ]


def test_replaced_directories(task: Task) -> None:
    """What overlayfs notes about a directory that hides the one below it is part of the copy."""
    sh(task, "rm -r directory; mkdir directory; echo new > directory/new")
    snapshot = task.snapshot()
    task.reset()
    task.reset(snapshot)
    assert sh(task, "ls directory") == "new\n"
    assert [str(change) for change in task.diff()] == ["D directory/inner", "A directory/new"]


def test_a_shell_goes_on_from_there(task: Task) -> None:
    task.shell("cd directory; export X=1", keep=True)
    snapshot = task.snapshot()
    task.shell("cd /tmp; export X=2", keep=True)
    task.reset(snapshot)
    assert task.shell("pwd; echo $X", keep=True).stdout == f"{task.workspace}/directory\n1\n"


def test_bounds(task: Task, store: Path) -> None:
    """A copy that would be too large isn't made, and leaves nothing."""
    sh(task, "head -c 3000000 /dev/zero > zeros")
    before = sorted(os.listdir(store)), sorted(os.listdir(task._store.path))  # type: ignore[union-attr]
    with pytest.raises(OSError, match="more than max_size"):
        task.snapshot(max_size="1M")
    with pytest.raises(PolicyError, match="max_size"):
        task.snapshot(max_size="much")
    assert (sorted(os.listdir(store)), sorted(os.listdir(task._store.path))) == before  # type: ignore[union-attr]
    assert task.snapshot(max_size="16M").size >= 3_000_000


def test_snapshots_end(task: Task, box: Sandbox, store: Path) -> None:
    """By drop(), and with their task; another task's is none of this one."""
    snapshot, other = task.snapshot(), task.snapshot()
    snapshot.drop()
    snapshot.drop()
    with pytest.raises(ValueError, match="was dropped"):
        task.reset(snapshot)
    with box.task(dir=store) as second, pytest.raises(ValueError, match="another task's"):
        second.reset(other)
    task.close()
    assert other.is_dropped
    other.drop()
    assert os.listdir(store) == ["lock"]


def test_copies_are_the_users_alone(task: Task) -> None:
    """What commands have made executable for everybody isn't so on this machine."""
    sh(task, "echo x > program; chmod 755 program")
    snapshot = task.snapshot()
    for path in (task._store.path, snapshot._path):  # type: ignore[union-attr]
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o700


def test_tops_without_permissions(task: Task, shown: Path, filled: Path) -> None:
    """A command may change the mode of a shown directory itself: it stays that, here and in snapshots."""
    sh(task, f"echo 1 > new; chmod 500 .; chmod 500 {shown}")
    snapshot = task.snapshot()
    look = f"stat -c %a {task.workspace} {shown}"
    for mode in ("500", "300", "0"):
        task.reset(snapshot)
        assert task.shell(look, cwd="/").stdout == "500\n500\n"
        sh(task, f"chmod {mode} .")
        assert [(change.path, change.mode & 0o700) for change in task.diff()] == [(".", int(mode, 8)), ("new", 0o600)]
        assert "+++ b/new" in task.patch()
        assert task.snapshot().size > 0
        assert task.shell(look, cwd="/").stdout == f"{mode}\n500\n"
    closed = task.snapshot()
    task.reset()
    assert task.diff() == []
    task.reset(closed)
    task.commit(expected=task.diff())
    assert stat.S_IMODE(filled.stat().st_mode) == 0
    filled.chmod(0o700)
    assert (filled / "new").read_text() == "1\n"


def test_attributes_count(task: Task) -> None:
    """Extended attributes take up room too: on tmpfs, a file can have thousands of 64 KiB each."""
    size = task.snapshot().size
    done = task.exec(
        "python3", ["-c", "import os; open('many', 'w'); os.setxattr('many', 'user.a', bytes(60000))"], cwd="/tmp"
    )
    if done.returncode:
        pytest.skip("tmpfs has no attributes of users before Linux 6.6")
    with pytest.raises(OSError, match="more than max_size") as caught:
        task.snapshot(max_size=size + 50000)
    assert caught.value.filename == "many"


def test_most_attributes(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """All values of one file are in memory at once, so there is a limit; the error names the file."""
    task.exec(
        "python3", ["-c", "import os\nfor i in range(2): os.setxattr('file', f'user.{i}', bytes(600))"], check=True
    )
    assert task.diff()[0].attributes == ("user.0", "user.1")
    monkeypatch.setattr(attributes, "_MOST", 1000)
    with pytest.raises(OSError, match="bytes of extended attributes") as caught:
        task.diff()
    assert (caught.value.errno, caught.value.filename) == (errno.E2BIG, "file")
