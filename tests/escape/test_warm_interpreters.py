"""What a warm interpreter could do by what it imports and by its setup, which have more power than a branch.

Nothing that it says makes the caller touch another process. What it has is neither the host's settings nor privileges
that last. And its branches don't share what they must not: random numbers.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from nsbox import Policy, Sandbox, UnavailableError
from nsbox._layout.layout import may_be_kernel_root
from nsbox._lookup.host import host_for

PEERPIDFD = 77  # SO_PEERPIDFD, <asm-generic/socket.h>, Linux 6.5


def has_peer_pidfds() -> bool:
    one, other = socket.socketpair()
    with one, other:
        try:
            os.close(one.getsockopt(socket.SOL_SOCKET, PEERPIDFD))
        except OSError:
            return False
    return True


TELLS = """
import sys
children = sys.modules["_nsbox_guest.children"]
def tell(told, message, fds, old=children.tell):
    if "started" in message:
        {}
    return old(told, message, fds)
children.tell = tell
"""

CALLER = """
import os, subprocess, sys, nsbox
victim = subprocess.Popen(["sleep", "1000"])
with nsbox.Sandbox(nsbox.Policy.workspace(sys.argv[1])) as box:
    try:
        box.python(setup=sys.argv[2]).run("1", timeout=5)
    except nsbox.SetupError as error:
        print(error)
print(victim.poll())
victim.kill()
"""


@pytest.mark.skipif(not has_peer_pidfds(), reason="needs SO_PEERPIDFD (Linux 6.5)")
@pytest.mark.parametrize("which", [0, 1])
def test_the_caller_isnt_a_branch(workspace: Path, which: int) -> None:
    """An interpreter has a pidfd of its caller, and reports it as a branch, or as a branch's pid 1. No signal follows."""
    setup = TELLS.format(f"fds[{which}] = told.getsockopt(1, {PEERPIDFD})")
    argv = [sys.executable, "-c", CALLER, str(workspace), setup]
    found = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd="/")
    assert found.returncode == 0, found.stderr
    error, victim = found.stdout.splitlines()
    assert "none of the interpreter's" in error
    assert victim == "None"


@pytest.mark.skipif(not has_peer_pidfds(), reason="needs SO_PEERPIDFD (Linux 6.5)")
def test_control_a_branch_has_a_pidfd_of_its_caller(workspace: Path) -> None:
    """It comes with the socket, so no filter keeps it away. By itself it is of no use there."""
    code = f"""
import os, signal, socket
fd = max(int(name) for name in os.listdir("/proc/self/fd"))
pidfd = socket.socket(fileno=os.dup(fd)).getsockopt(1, {PEERPIDFD})
try:
    signal.pidfd_send_signal(pidfd, 0)
except OSError as error:
    number = error.errno
[os.readlink(f"/proc/self/fd/{{pidfd}}"), number]
"""
    with Sandbox(Policy.workspace(workspace)) as box:
        what, error = box.python().run(code).value
    assert "pidfd" in what
    assert error == 22


def test_a_branch_that_cant_be_reported_ends(workspace: Path) -> None:
    """If no more descriptors may be in flight, its caller learns its end, and doesn't wait for its beginning."""
    with Sandbox(Policy.workspace(workspace)) as box:
        py = box.python(setup=TELLS.format("return False"))
        with pytest.raises(OSError, match="time and again"):
            py.run("1")


NAMES = "import os, tempfile\nnames = tempfile._get_candidate_names()\nnext(names)\n"


def test_libraries_notice_that_they_were_forked(workspace: Path) -> None:
    """They compare pids: OpenSSL, which would else make the same keys in each branch, and tempfile."""
    setup = NAMES + "import ssl, sys\nrandom = ssl.RAND_bytes\nrandom(8)\ndel sys.modules['ssl']\npid = os.getpid()"
    with Sandbox(Policy.workspace(workspace)) as box:
        py = box.python(setup=setup)
        seen = [py.run("[random(16).hex(), next(names), pid]").value for _ in range(3)]
    assert len({row[0] for row in seen}) == len({row[1] for row in seen}) == 3
    assert seen[0][2] > 256  # of the processes that a branch makes, none has it soon


def test_control_the_same_pid(workspace: Path) -> None:
    """Where the pid says nothing, all branches go on with the interpreter's own numbers."""
    with Sandbox(Policy.workspace(workspace)) as box:
        py = box.python(setup="import os\nos.getpid = lambda: 2\n" + NAMES)
        assert len({py.run("next(names)").value for _ in range(3)}) == 1


def capabilities(workspace: Path, **options: bool) -> bytes:
    """Return what an interpreter's setup could give a program of the workspace, as it stands outside."""
    program = workspace / "program"
    shutil.copy("/bin/true", program)
    data = struct.pack("<5I", 0x02000001, 0xFFFFFFFF, 0, 0x1FF, 0)  # struct vfs_cap_data, <linux/capability.h>
    setup = f"""
import os
try:
    os.setxattr({str(program)!r}, "security.capability", {data!r})
    error = 0
except OSError as raised:
    error = raised.errno
"""
    with Sandbox(Policy.workspace(workspace, **options)) as box:  # type: ignore[arg-type]
        box.python(setup=setup).run("error", check=True)
    try:
        return os.getxattr(program, "security.capability")
    except OSError:
        return b""


def for_root(data: bytes) -> bool:
    """Say if these are capabilities outside of user namespaces, or in one that root has made."""
    return len(data) == 20 or (len(data) == 24 and struct.unpack("<6I", data)[5] == 0)


def test_no_file_capabilities(workspace: Path) -> None:
    """An ordinary user's count in that user's own user namespaces alone; in a workspace of root's there are none."""
    data = capabilities(workspace)
    assert not for_root(data)
    assert os.getuid() != 0 or data == b""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, whose workspace is given to other ids")
def test_control_file_capabilities(workspace: Path) -> None:
    """What nested=True gives up."""
    if not host_for(Policy.workspace(workspace)).kernel_id:
        pytest.skip("this machine has no ids to give root's commands")
    assert for_root(capabilities(workspace, nested=True))


SETTINGS = """
import ctypes, os
call = ctypes.CDLL(None, use_errno=True).syscall
def writable():
    context = call(430, b"proc", 1)  # fsopen
    call(431, context, 6, None, None, 0)  # fsconfig, FSCONFIG_CMD_CREATE
    proc = call(432, context, 1, 0)  # fsmount
    try:
        os.close(os.open("sys/kernel/core_pattern", os.O_WRONLY, dir_fd=proc))
    except OSError:
        return False
    return True
found = writable()
"""


@pytest.mark.parametrize("ids", ["single", "full"])
def test_the_hosts_settings(workspace: Path, ids: str) -> None:
    """An interpreter can mount a procfs. So it is never the kernel's uid 0, whatever the ids."""
    policy = Policy.workspace(workspace, ids=ids)  # type: ignore[arg-type]
    with Sandbox(policy) as box:
        py = box.python(setup=SETTINGS)
        if may_be_kernel_root(policy, host_for(policy)):
            with pytest.raises(UnavailableError, match="settings"):
                py.run("found")
        else:
            assert py.run("found").value is False


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_control_the_hosts_settings() -> None:
    """host() hides nothing, and says so: there it is uid 0, and could write."""
    if not may_be_kernel_root(Policy.host(), host_for(Policy.host())):
        pytest.skip("this uid 0 isn't the kernel's")
    with Sandbox(Policy.host()) as box:
        assert box.python(setup=SETTINGS).run("found").value is True


UNMOUNTED = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def steps():
    yield "unshare", libc.unshare(0x20000)
    yield "bind", libc.mount(b"/usr", b"/tmp", None, 0x1000 | 0x4000, None)
    os.chdir("/tmp")
    yield "pivot_root", libc.syscall(NUMBER, b".", b".")
    yield "umount2", libc.umount2(b".", 2)
reader, writer = os.pipe()
if not os.fork():  # a mount namespace of its own, so that the interpreter stays what it is
    failed = next((f"{name}: {os.strerror(ctypes.get_errno())}" for name, status in steps() if status < 0), "nothing")
    os.write(writer, failed.encode())
    os._exit(0)
os.wait()
problem = os.read(reader, 100).decode()
os.close(reader)
os.close(writer)
"""
NUMBERS = {"x86_64": 155, "aarch64": 41}  # of pivot_root(2)


@pytest.mark.parametrize("nested", [False, True])
def test_nothing_is_unmounted(workspace: Path, nested: bool) -> None:
    """What is mounted over hidden files stays there, so that they can't be renamed. Control: nested=True allows it."""
    setup = UNMOUNTED.replace("NUMBER", str(NUMBERS[os.uname().machine]))
    policy = Policy.workspace(workspace, nested=nested)
    with Sandbox(policy) as box:
        found = box.python(setup=setup).run("print(problem)")
    assert found.returncode == 0, found.stderr
    assert found.stdout == ("nothing\n" if nested else "pivot_root: Operation not permitted\n")


FORGED = """
import json, os, socket, struct
line = socket.socket(fileno=os.dup(max(int(name) for name in os.listdir("/proc/self/fd"))))
content = json.dumps(FRAME).encode()
line.sendall(struct.pack("<I", len(content)) + content)
"""


def test_code_that_says_it_never_began(workspace: Path) -> None:
    """What says that a branch couldn't begin is an error for the caller. Code that says it has no such power.

    Control: a forged result arrives, since the code could as well have had that value.
    """
    with Sandbox(Policy.workspace(workspace)) as box:
        py = box.python()
        failed = {"failed": {"what": "cwd", "errno": 2, "message": "no such directory"}}
        found = py.run(FORGED.replace("FRAME", repr(failed)) + "print(1)")
        assert (found.returncode, found.stdout) == (0, "1\n")
        forged = {"id": 1, "done": True, "has_value": True, "value": 7, "repr": "7", "type": "int"}
        assert py.run(FORGED.replace("FRAME", repr(forged))).value == 7
