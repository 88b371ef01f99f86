"""What commands of a task may try: the host's files, the uppers, what is hidden, and those who copy what they wrote."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from nsbox_testing.running import python
from nsbox_testing.trees import taken

import nsbox
from nsbox import AccessError, CommitError, Policy, Sandbox, Task, UnavailableError


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    path = tmp_path / "shown"
    (path / "private").mkdir(parents=True)
    (path / "text").write_text("the host's")
    (path / "private" / "secret").write_text("secret")
    return path


@pytest.fixture
def wide(policy: Policy, shown: Path) -> Policy:
    """The policies of the fixture, with and without seccomp, that show a directory and hide something in it."""
    return policy.with_(read=[*policy.read, str(shown)], deny=[*policy.deny, str(shown / "private" / "secret")])


@pytest.fixture
def task(wide: Policy, workspace: Path, store: Path) -> Iterator[Task]:
    (workspace / "file").write_text("before")
    with Sandbox(wide, stock=0) as box, box.task(dir=store) as made:
        yield made


def said(task: Task, code: str, *args: str) -> str:
    done = task.run(python(code, *args), capture_output=True, text=True)
    assert done.stderr == ""
    return str(done.stdout)


TRY = """
import os, sys
for path in sys.argv[1:]:
    try: os.stat(path); print("there:", path)
    except OSError: pass
"""


def test_the_uppers_arent_there(task: Task, store: Path) -> None:
    """Neither by their path nor by the old root, and no mount shows them."""
    assert task._store is not None
    upper = task._store.upper
    ways = [str(store), upper, f"/proc/1/root{upper}", f"/proc/self/root/..{upper}", f"/..{upper}", "/old"]
    assert said(task, TRY, *ways) == ""
    assert os.path.exists(upper)  # the control


UNCOVER = """
import ctypes, os, sys
shown, found = sys.argv[1], []
libc = ctypes.CDLL(None, use_errno=True)
def tried(name, call, *args):
    try: call(*args); found.append(name)
    except OSError: pass
def exchanged(one, other):
    if libc.renameat2(-100, one.encode(), -100, other.encode(), 2): raise OSError
def unshared():
    if libc.unshare(0x10000000): raise OSError
tried("read", open, f"{shown}/private/secret")
tried("unlink", os.unlink, f"{shown}/private/secret")
tried("rename", os.rename, f"{shown}/private/secret", f"{shown}/seen")
tried("link", os.link, f"{shown}/private/secret", f"{shown}/private/seen")
tried("move", os.rename, f"{shown}/private", f"{shown}/moved")
os.mkdir(f"{shown}/new")
tried("exchange", exchanged, f"{shown}/private", f"{shown}/new")
tried("over", os.rename, f"{shown}/new", f"{shown}/private")
tried("userns", unshared)
print(found)
"""


def test_what_is_hidden_stays_so(task: Task, shown: Path) -> None:
    """In directories that commands can write to now: names of mount points are fixed, and lower directories don't move.

    That holds for the next session too, which hides by the same paths.
    """
    assert said(task, UNCOVER, str(shown)) == "[]\n"
    look = f"cat {shown}/private/secret {shown}/*/* {shown}/* | grep -c secret"
    assert task.shell(look).stdout == "0\n"
    task.reset(task.snapshot())
    assert task.shell(look).stdout == "0\n"
    assert task.shell(f"echo mine > {shown}/private/beside && cat {shown}/private/beside").stdout == "mine\n"
    with pytest.raises((AccessError, PermissionError)):
        task.read(str(shown / "private" / "secret"))


def test_without_that_it_would_be_seen(workspace: Path, shown: Path, store: Path) -> None:
    """The control: a directory that isn't hidden."""
    with Sandbox(Policy.workspace(workspace, read=[shown]), stock=0) as box, box.task(dir=store) as task:
        assert task.shell(f"cat {shown}/private/secret").stdout == "secret"


MAKE = """
import os
found = []
def tried(name, call, *args):
    try: call(*args); found.append(name)
    except OSError: pass
tried("device", os.mknod, "device", 0o020666, os.makedev(1, 3))
tried("disk", os.mknod, "disk", 0o060666, os.makedev(8, 0))
tried("trusted", os.setxattr, ".", "trusted.overlay.opaque", b"y")
tried("whiteout", os.mknod, "whiteout", 0o020000, 0)
for name, value in (("opaque", b"y"), ("redirect", b"/etc"), ("metacopy", b"")):
    tried(name, os.setxattr, ".", f"user.overlay.{name}", value)
print(found)
"""


def test_overlayfs_s_own_marks_cant_be_made(task: Task) -> None:
    """Nor devices; and a copy of what commands wrote has none either."""
    assert set(said(task, MAKE).strip("[]'\n").split("', '")) <= {"", "opaque", "redirect", "metacopy"}
    snapshot = task.snapshot()
    task.reset(snapshot)
    assert task._store is not None
    for top in (task._store.path, snapshot._path):
        for directory, _, names in os.walk(top):
            for name in names:
                assert not stat.S_ISBLK(os.lstat(os.path.join(directory, name)).st_mode)
                assert os.lstat(os.path.join(directory, name)).st_rdev == 0
    marks = {name for name in os.listxattr(task._store.upper) if name.count("overlay") == 1}
    assert not marks & {"user.overlay.opaque", "user.overlay.redirect", "user.overlay.metacopy"}


def test_marks_that_were_there_before(wide: Policy, workspace: Path, store: Path) -> None:
    """A command outside of tasks could leave them; overlayfs would hide files."""
    (workspace / "marked").mkdir()
    os.setxattr(workspace / "marked", "user.overlay.opaque", b"y")
    with Sandbox(wide, stock=0) as box, pytest.raises(UnavailableError, match="its marks on them: marked"):
        box.task(dir=store)


def test_links_lead_nobody_out(task: Task, victim: Path, workspace: Path) -> None:
    """Those who copy, commit or remove follow none."""
    before = taken(victim)
    task.shell(f"ln -s {victim} out; ln -s {victim}/secret deep; ln -s {victim} /tmp/out; echo x > new", check=True)
    snapshot = task.snapshot()
    task.shell(f"rm out /tmp/out; mkdir out /tmp/out; echo x > out/secret; ln -s {victim} ~/out", check=True)
    task.reset(snapshot)
    task.diff()
    task.commit()
    assert os.readlink(workspace / "out") == str(victim)
    assert taken(victim) == before


HOLD = """
import socket, sys
file = open("held", "w")
there = socket.socket(socket.AF_UNIX); there.connect(sys.argv[1])
socket.send_fds(there, [b"x"], [file.fileno()])
"""


def test_a_descriptor_that_was_passed_on(workspace: Path, store: Path, tmp_path: Path) -> None:
    """A process outside that holds a file open could write while that is copied or committed."""
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(meeting / "socket"))
        server.listen()
        policy = Policy.workspace(workspace, read=[meeting / "socket"])
        with Sandbox(policy, stock=0) as box, box.task(dir=store) as task:
            task.exec("python3", ["-c", HOLD, str(meeting / "socket")], check=True)
            accepted, _ = server.accept()
            with accepted:
                _, fds, _, _ = socket.recv_fds(accepted, 1, 1)
                with os.fdopen(fds[0], "w") as held:
                    held.write("later")
                    with pytest.raises(OSError, match="open for writing"):
                        task.snapshot()
                    with pytest.raises(CommitError, match="open for writing"):
                        task.commit()
                task.snapshot()
                task.commit()
    assert (workspace / "held").read_text() == "later"


def test_set_user_id_files_are_out_of_reach(workspace: Path, store: Path) -> None:
    """What commands write lies on the host, where another user could execute it."""
    policy = Policy.workspace(workspace, seccomp=nsbox.Filter(allow=["chmod", "fchmod", "fchmodat"]))
    with Sandbox(policy, stock=0) as box, box.task(dir=store) as task:
        task.shell("cp /bin/true program; chmod 4755 program", check=True)
        assert task._store is not None
        assert os.lstat(f"{task._store.upper}/program").st_mode & stat.S_ISUID  # the control
        assert stat.S_IMODE(os.stat(task._store.path).st_mode) == 0o700
        task.commit()
    assert not os.lstat(workspace / "program").st_mode & stat.S_ISUID


PLANT = """
import os, sys
os.symlink(sys.argv[1], "/tmp/link")
os.mkdir("/tmp/dir"); os.symlink(sys.argv[1], "/tmp/dir/up")
os.mkfifo("/tmp/fifo")
"""


def test_file_tools_arent_led_out(task: Task, victim: Path) -> None:
    """By links, in any directory of the task, absolute paths and FIFOs."""
    before = taken(victim)
    said(task, PLANT, str(victim))
    for path in ("/tmp/link/secret", "/tmp/dir/up/secret", "/tmp/../../secret", "/proc/1/root/etc/passwd", "/tmp/fifo"):
        with pytest.raises((AccessError, OSError)):
            task.read(path)
        with pytest.raises((AccessError, OSError)):
            task.write(path, "x")
    task.write("/etc/nsbox-test", "x")
    assert task.read("/etc/nsbox-test") == "x"  # the control
    assert not os.path.lexists("/etc/nsbox-test")
    assert taken(victim) == before


def test_no_user_namespaces(task: Task) -> None:
    """In one, mount points could be left behind; no policy of a task allows them, not even without seccomp."""
    code = "import ctypes; print(ctypes.CDLL(None).unshare(0x10000000))"
    assert said(task, code) == "-1\n"
    plain = Policy.workspace(task.workspace, nested=True)
    done = nsbox.run(python(code), policy=plain, capture_output=True, text=True)
    assert done.stdout == "0\n"  # the control


DEEP = """
import os
for _ in range(3000):
    os.mkdir("d" * 200); os.chdir("d" * 200)
"""


def test_deep_trees(task: Task) -> None:
    """Their paths, all together, would be quadratic: a snapshot refuses them, and the end removes them."""
    said(task, DEEP)
    with pytest.raises(OSError, match="too long"):
        task.snapshot()
    assert task._store is not None
    path = task._store.path
    assert [name for name in os.listdir(path) if name.startswith("snapshot")] == []
    task.close()
    assert not os.path.exists(path)


def test_sockets_and_fifos_of_shown_directories(workspace: Path, shown: Path, store: Path) -> None:
    """Outside of tasks one in a visible directory can be connected to, or written to; an overlay's lead nowhere."""
    os.mkfifo(shown / "fifo")
    connect = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(shown / "socket"))
        server.listen()
        policy = Policy.workspace(workspace, read=[shown])
        with Sandbox(policy, stock=0) as box, box.task(dir=store) as task:
            done = task.run(python(connect, str(shown / "socket")), capture_output=True, text=True)
            assert "ConnectionRefusedError" in done.stderr
            reader = os.open(shown / "fifo", os.O_RDONLY | os.O_NONBLOCK)
            try:
                task.shell(f"timeout 1 sh -c 'echo x > {shown}/fifo'")
                assert os.read(reader, 1) == b""
                box.shell(f"echo x > {shown}/fifo", check=True)  # the control
                assert os.read(reader, 1) == b"x"
            finally:
                os.close(reader)
            assert box.run(python(connect, str(shown / "socket"))).returncode == 0  # the control


def test_a_descriptor_from_before_a_reset(workspace: Path, store: Path, tmp_path: Path) -> None:
    """A process outside that still has one writes to what is gone."""
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(meeting / "socket"))
        server.listen()
        policy = Policy.workspace(workspace, read=[meeting / "socket"])
        with Sandbox(policy, stock=0) as box, box.task(dir=store) as task:
            task.shell("echo before > held", check=True)
            snapshot = task.snapshot()
            task.exec("python3", ["-c", HOLD, str(meeting / "socket")], check=True)
            accepted, _ = server.accept()
            with accepted:
                _, fds, _, _ = socket.recv_fds(accepted, 1, 1)
                with os.fdopen(fds[0], "w") as held:
                    task.reset(snapshot)
                    held.write("later")
                assert task.shell("cat held").stdout == "before\n"
                assert [str(change) for change in task.diff()] == ["A held"]
                task.commit()
    assert (workspace / "held").read_text() == "before\n"
