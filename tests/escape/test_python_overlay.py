"""What code in a branch with overlays may try: to see what is hidden below, to reach the host, or another branch.

The interpreter itself runs trusted code. It gets the overlays as mounts, and may mount: it must not see more for that.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing.branches import layers_of, run

from nsbox import Policy, Python, Sandbox

SECRETS = ("secret", "deep/er/secret", "hidden/in/it")
SETUP = """
import ctypes, mmap, os, socket, stat, struct
L = ctypes.CDLL(None, use_errno=True)
def tried(call, *args):
    try: return call(*args)
    except OSError as error: return error.errno
def did(ret):
    if ret < 0: raise OSError(ctypes.get_errno(), "")
    return ret
def seen():
    found = []
    for path, names, files in os.walk(".", followlinks=True):
        for name in files:
            try: text = open(os.path.join(path, name)).read()
            except OSError: continue
            if "the host's secret" in text: found.append(os.path.join(path, name))
    return sorted(found)
"""


@pytest.fixture
def filled(workspace: Path) -> Path:
    for name in (*SECRETS, "deep/er/plain"):
        path = workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("the host's secret" if name in SECRETS else "plain")
    return workspace


@pytest.fixture
def hiding(policy: Policy, filled: Path) -> Policy:
    return policy.with_(deny=[*policy.deny, *(str(filled / name) for name in ("secret", "deep/er/secret", "hidden"))])


@pytest.fixture
def py(hiding: Policy) -> Iterator[Python]:
    with Sandbox(hiding, stock=0) as box:
        yield box.python(overlay=True, setup=SETUP)


@pytest.fixture
def control(policy: Policy, filled: Path) -> Iterator[Python]:
    """The same, with nothing hidden."""
    with Sandbox(policy, stock=0) as box:
        yield box.python(overlay=True, setup=SETUP)


def value(py: Python, code: str) -> Any:
    result = py.run(code)
    assert result.returncode == 0, result
    return result.value


LOOKS = [
    "seen()",
    # Names that the whiteouts have, made and removed again.
    """
for name in ("secret", "deep/er/secret", "hidden"):
    tried(os.mkdir, name); tried(os.rmdir, name)
    tried(lambda: open(name, "w").close()); tried(os.unlink, name)
    tried(os.symlink, "x", name); tried(os.unlink, name)
    tried(os.mkdir, "spare"); tried(os.rename, "spare", name); tried(os.rename, name, "other")
seen()
""",
    # The directories around them, moved, copied, emptied and made again.
    """
import shutil
tried(os.rename, "deep", "moved"); tried(shutil.move, "deep", "moved")
tried(shutil.rmtree, "moved/er"); tried(os.makedirs, "deep/er"); tried(os.mkdir, "moved/er")
seen()
""",
    # Marks of overlayfs on what the branch has changed, which would lead to other files of the layer below.
    """
os.mkdir("new"); open("file", "w").close(); os.chmod("deep", 0o700)
for path in ("new", "file", "deep", "deep/er"):
    for name in ("redirect", "opaque", "origin", "metacopy", "impure", "whiteout", "whiteouts"):
        for value in (b"y", b"n", b"/secret", b"/hidden/in", b"hidden", b""):
            tried(os.setxattr, path, "user.overlay." + name, value)
            tried(os.setxattr, path, "user.overlay.overlay." + name, value)
        tried(os.removexattr, path, "user.overlay." + name)
for path in ("new", "deep", "deep/er"): tried(os.listdir, path)
seen() + [text for path in ("new", "file") if "secret" in (text := str(tried(lambda: open(path).read())))]
""",
    # The mount, lifted or seen past, here and in namespaces of its own.
    """
MNT_DETACH, NEWNS, NEWUSER = 2, 0x20000, 0x10000000
here = os.getcwd().encode()
def lift(): did(L.umount2(here, MNT_DETACH))
def remount(): did(L.mount(None, here, None, 32, b"lowerdir=/,xino=off"))
tried(lift); tried(remount)
found = seen()
if os.fork() == 0:
    text = ""
    try:
        did(L.unshare(NEWUSER | NEWNS))
        tried(lift); tried(remount)
        os.chdir("/"); os.chdir(here)
        text = "".join(seen())
    except OSError: pass
    open("/tmp/found", "w").write(text)
    os._exit(0)
os.wait()
found + [open("/tmp/found").read()] * bool(open("/tmp/found").read())
""",
    # Other ways to the directory: processes, descriptors, roots, handles.
    """
here = os.getcwd()
ways = [f"/proc/{name}/root{here}" for name in (*filter(str.isdigit, os.listdir("/proc")), "self")]
ways += [f"/proc/self/fd/{fd}" for fd in range(3, 1024) if tried(os.readlink, f"/proc/self/fd/{fd}") != 2]
ways += ["/0", "/scratch/upper0", "/proc/self/cwd/../0", "/proc/1/cwd"]
found = [way for way in ways for name in ("secret", "hidden/in/it", "0/secret") if tried(os.lstat, f"{way}/{name}") not in (2, 13, 20)]
handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
mount = ctypes.c_int()
if L.name_to_handle_at(-100, here.encode(), handle, ctypes.byref(mount), 0) == 0:
    fd = L.open_by_handle_at(os.open(here, os.O_RDONLY), handle, 0)
    if fd >= 0 and "secret" in os.listdir(fd): found.append("handle")
found
""",
]


@pytest.mark.vm
@pytest.mark.parametrize("code", LOOKS)
def test_what_is_hidden_stays_hidden(py: Python, filled: Path, code: str) -> None:
    """Whatever a branch does to its overlay, no way leads to the files that it lacks."""
    assert value(py, code) == []
    assert value(py, "seen()") == []  # nor for the next one
    assert all((filled / name).read_text() == "the host's secret" for name in SECRETS)


@pytest.mark.vm
def test_they_would_be_found(control: Python) -> None:
    """The control: where nothing is hidden, a look finds all."""
    assert value(control, "seen()") == sorted(f"./{name}" for name in SECRETS)
    assert value(control, LOOKS[-1]) != []


WRITES = """
old = os.open("old", os.O_RDWR)
with mmap.mmap(old, 3) as shared: shared[:] = b"MAP"
os.pwrite(old, b"!", 1)
os.link("old", "link"); open("link", "a").write("linked")
os.chmod("old", 0o777); os.utime("old", (1, 1)); tried(os.setxattr, "old", "user.x", b"1")
tried(os.truncate, "sub/file", 1); os.rename("sub/file", "moved"); os.rmdir("sub")
fd = tried(os.open, ".", os.O_TMPFILE | os.O_RDWR)
if fd > 2:
    try: os.link(f"/proc/self/fd/{fd}", "from-tmpfile", follow_symlinks=True)
    except OSError: pass
os.mkfifo("fifo"); socket.socket(socket.AF_UNIX).bind("socket")
flags = ctypes.c_int(0x10)
tried(lambda: did(L.ioctl(os.open("executed", os.O_RDONLY), 0x40086602, ctypes.byref(flags))))  # FS_IOC_SETFLAGS
tried(os.chown, ".", os.getuid(), os.getgid()); os.chmod(".", 0o777)
sorted(os.listdir())
"""


def test_nothing_reaches_the_workspace(policy: Policy, workspace: Path) -> None:
    """By no kind of write; the control is a branch without an overlay."""

    def state() -> Any:
        paths = [workspace, *sorted(workspace.rglob("*"))]
        return [
            (str(path), path.lstat().st_mode, path.lstat().st_mtime_ns, path.lstat().st_nlink, path.lstat().st_size)
            for path in paths
        ]

    (workspace / "sub").mkdir()
    for name in ("old", "sub/file", "executed"):
        (workspace / name).write_text(name)
    before = state()
    with Sandbox(policy, stock=0) as box:
        names = value(box.python(overlay=True, setup=SETUP), WRITES)
        assert {"old", "link", "moved", "fifo", "socket", "executed"} <= set(names) and "sub" not in names
        assert state() == before
        assert (workspace / "old").read_text() == "old" and os.listxattr(workspace / "old") == []
        assert value(box.python(setup=SETUP), WRITES) == names
        assert state() != before


def test_the_hosts_sockets_and_fifos(policy: Policy, workspace: Path) -> None:
    """Those in the workspace lead nowhere: what a process of the host offers there isn't a file of the branch's."""
    os.mkfifo(workspace / "fifo")
    server = socket.socket(socket.AF_UNIX)
    server.bind(os.path.relpath(workspace / "socket"))
    server.listen()
    held = os.open(workspace / "fifo", os.O_RDWR | os.O_NONBLOCK)
    code = """
s = socket.socket(socket.AF_UNIX)
[tried(lambda: os.write(os.open("fifo", os.O_WRONLY | os.O_NONBLOCK), b"x")), tried(s.connect, "socket")]
"""
    try:
        with Sandbox(policy, stock=0) as box:
            assert value(box.python(overlay=True, setup=SETUP), code) == [errno.ENXIO, errno.ECONNREFUSED]
            assert value(box.python(setup=SETUP), code) == [1, None]  # the control
            assert os.read(held, 10) == b"x"
    finally:
        os.close(held)
        server.close()


def test_branches_are_apart(policy: Policy, workspace: Path, tmp_path: Path) -> None:
    """Two that run at the same time share the files below, and nothing that one of them writes."""
    (workspace / "file").write_text("host")
    signs = tmp_path / "signs"
    signs.mkdir()
    code = f"""
import time
with open("file", "r+") as file:
    file.write(me); file.flush()
    mapped = mmap.mmap(file.fileno(), 4)
open("by-" + me, "w").close()
print(me, flush=True)
while not os.path.exists({str(signs / "go")!r}): time.sleep(0.01)
mapped[:4] = me.encode()
[bytes(mapped).decode(), open("file").read(), sorted(name for name in os.listdir() if name.startswith("by-"))]
"""
    found: dict[str, Any] = {}
    begun = threading.Barrier(2, action=(signs / "go").touch)
    with Sandbox(policy.with_(read=[*policy.read, str(signs)]), stock=0) as box:
        py = box.python(overlay=True, setup=SETUP, stock=2)

        def one(me: str) -> None:
            result = py.run(code, inputs={"me": me}, on_output=lambda _: begun.wait(60))
            found[me] = result.value if result.returncode == 0 else result

        threads = [threading.Thread(target=one, args=(me,)) for me in ("aaaa", "bbbb")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {me: [me, me, [f"by-{me}"]] for me in ("aaaa", "bbbb")}
    assert (workspace / "file").read_text() == "host"


INTERPRETER = """
MOVE_MOUNT, OPEN_TREE, FSPICK, FSCONFIG = 429, 428, 433, 431
MNT_DETACH, NEWNS = 2, 0x20000
def move(fd, at): did(L.syscall(MOVE_MOUNT, fd, b"", -100, at, 4))
def reconfigure(at):
    fs = did(L.syscall(FSPICK, -100, at, 0))
    did(L.syscall(FSCONFIG, fs, 1, b"lowerdir", b"/", 0))
    did(L.syscall(FSCONFIG, fs, 7, None, None, 0))
os.makedirs("/tmp/here")
did(L.unshare(NEWNS))
failed = []
above = [tried(os.listdir, os.open(way, os.O_RDONLY, dir_fd=sets[0][0])) for way in ("..", "../..", ".")]
move(sets[0][0], b"/tmp/here")
os.chdir("/tmp/here")
found = seen()
inside = sorted(os.listdir("."))
failed.append(tried(reconfigure, b"/tmp/here"))
failed.append(tried(lambda: did(L.mount(b"none", b"/tmp/here", None, 32, b"lowerdir=/"))))
os.chdir("/")
did(L.umount2(b"/tmp/here", MNT_DETACH))
locked = []
for name in hidden:
    locked.append(tried(lambda: did(L.umount2(name.encode(), MNT_DETACH))))
os.chdir(where)
result = [found, inside, above, all(isinstance(each, int) and each > 0 for each in failed), locked, seen()]
"""


def test_the_interpreter_sees_no_more(hiding: Policy, filled: Path) -> None:
    """It may mount what it gets for a branch. That shows nothing, and it can neither change it nor lift its own masks."""
    overlaid, layers = layers_of(hiding)
    hidden = [str(filled / name) for name in ("secret", "deep/er/secret", "hidden")]
    try:
        owners = layers.make()
        fds = [owner.fileno() for owner in owners]
        code = f"{SETUP}\nsets, hidden, where = {[fds]}, {hidden}, {str(filled)!r}\n{INTERPRETER}"
        found = run(hiding, code, pass_fds=fds, overlaid=overlaid)
    finally:
        layers.close()
    assert found == [[], ["deep"], [["deep"]] * 3, True, [errno.EINVAL] * 3, []]
