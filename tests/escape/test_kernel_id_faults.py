"""What must not make root of a command: failures, exchanged workspaces, callers that fork."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import nsbox
from nsbox import Policy
from nsbox._core import abi

ROOT = pytest.mark.as_root("others' commands are the user's")

OWNER = 12345  # nobody's, neither


def ids(pid: int) -> tuple[set[int], set[int]]:
    """Return the kernel's uids and gids of a process."""
    rows = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {*map(int, rows["Uid"].split())}, {*map(int, rows["Gid"].split())}


def kernel_id(policy: Policy) -> int:
    """Return the uid that a command has outside."""
    with nsbox.Popen(["cat"], policy=policy, stdin=nsbox.PIPE) as process:
        ((uid,), _) = ids(process.pid)
        assert process.sandbox.plan.kernel_id == uid
        return uid


@ROOT
def test_a_failure_that_passes(workspace: Path) -> None:
    """Without a free descriptor nothing is found out, and nothing started; when there is one again all is as ever."""
    policy = Policy.workspace(workspace, hostname="first")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    nsbox.explain(Policy.workspace(workspace))  # what is imported late is
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(OSError):
            nsbox.run(["true"], policy=policy)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert kernel_id(policy) >= 0x70000000


@ROOT
def test_a_file_system_of_a_user(tmp_path: Path) -> None:
    """What a user may mount there, FUSE, makes no root of a command: it doesn't start until that is gone."""
    code = """
import ctypes, os, sys, nsbox
libc = ctypes.CDLL(None, use_errno=True)
place = sys.argv[1]
policy = nsbox.Policy.workspace(place)
fd = os.open("/dev/fuse", os.O_RDWR)
data = b"fd=%d,rootmode=40000,user_id=1000,group_id=1000" % fd
assert libc.mount(b"other", os.fsencode(place + "/in ü"), b"fuse.other", 6, data) == 0, ctypes.get_errno()
try:
    nsbox.run(["true"], policy=policy)
except nsbox.UnavailableError as error:
    print(f"{place}/in ü" in str(error) and "ids='full'" in str(error))
os.close(fd)
assert libc.umount2(os.fsencode(place + "/in ü"), 2) == 0
with nsbox.Popen(["true"], policy=policy) as process: pass
print(process.sandbox.plan.kernel_id >= 0x70000000)
"""
    if not os.path.exists("/dev/fuse"):
        pytest.skip("no /dev/fuse here")
    (tmp_path / "in ü").mkdir()
    command = ["unshare", "-m", sys.executable, "-P", "-c", code, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "True"], done.stderr


@ROOT
def test_what_a_transaction_says(workspace: Path) -> None:
    """Its commands have the caller's ids, and say so."""
    box = nsbox.Sandbox(Policy.workspace(workspace))
    with box, box.transaction() as tx, tx.Popen(["cat"], stdin=nsbox.PIPE) as process:
        assert ids(process.pid) == ({0}, {0})
        assert process.sandbox.plan.kernel_id == 0
        assert any("a transaction keeps its changes" in text for text in process.sandbox.not_enforced)


@ROOT
@pytest.mark.parametrize(("number", "name"), [(5, "CAP_KILL"), (8, "CAP_SETPCAP"), (21, "CAP_SYS_ADMIN")])
def test_a_caller_without_a_capability(workspace: Path, number: int, name: str) -> None:
    """What it needs for the ids, and to end what has them, is asked for; without it the ids are the caller's."""
    code = "import sys, nsbox; print(nsbox.explain(nsbox.Policy.workspace(sys.argv[1])))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, workspace],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: ctypes.CDLL(None).prctl(24, number, 0, 0, 0),  # PR_CAPBSET_DROP
    )
    assert f"the command is the caller's uid 0: the caller lacks {name}" in done.stdout, done.stderr


@ROOT
def test_no_ids_change_while_the_caller_forks(workspace: Path) -> None:
    """A child would stay as dumpable as the memory is just then: a spawn of another thread waits, or is an error."""
    from nsbox._core import linux

    policy = Policy.workspace(workspace)
    nsbox.run(["true"], policy=policy, check=True)
    assert linux.lib.nsbox_hold_ids() == 0
    try:
        with pytest.raises(OSError) as raised:
            nsbox.run(["true"], policy=policy)
    finally:
        linux.lib.nsbox_release_ids()
    assert raised.value.errno == errno.EBUSY
    nsbox.run(["true"], policy=policy, check=True)


@ROOT
@pytest.mark.parametrize("way", ["cold", "session"])
def test_pipes_of_others(policy: Policy, way: str) -> None:
    """A pipe that another user has made keeps its mode: a command that may write to it can't read it."""
    reader, writer = os.pipe()
    os.fchown(writer, OWNER, OWNER)
    with nsbox.Sandbox(policy) as box, box.session() if way == "session" else box as place:
        place.run(["true"], stderr=writer, check=True)
    assert os.fstat(writer).st_mode & 0o777 == 0o600
    os.close(reader)
    os.close(writer)


@ROOT
@pytest.mark.parametrize("nested", [False, True])
def test_user_namespaces_without_a_profile(workspace: Path, nested: bool) -> None:
    """In one of its own it could give files of root's workspace capabilities: there is none unless it is asked for."""
    policy = Policy.workspace(workspace, seccomp="off", uid=1000, gid=1000, nested=nested)
    done = nsbox.run(["unshare", "-U", "true"], policy=policy, capture_output=True)
    assert (done.returncode == 0) == nested


@ROOT
def test_a_path_in_a_system_directory(policy: Policy) -> None:
    """Named by `read`, its owner's files are the command's own there too."""
    directory = Path("/opt/nsbox-named")
    directory.mkdir()
    try:
        (directory / "key").write_text("secret")
        (directory / "key").chmod(0o600)
        command = ["cat", directory / "key"]
        done = nsbox.run(command, policy=Policy.workspace(policy.write[0], read=[directory]), capture_output=True)
        assert done.stdout == b"secret"
        assert nsbox.run(command, policy=policy, capture_output=True).stdout == b""  # the control
    finally:
        (directory / "key").unlink(missing_ok=True)
        directory.rmdir()


@ROOT
def test_a_caller_in_a_user_namespace(workspace: Path) -> None:
    """It has no ids to give: commands have its own, and explain() says why."""
    code = (
        "import sys, nsbox\n"
        "policy = nsbox.Policy.workspace(sys.argv[1])\n"
        "print(nsbox.run(['true'], policy=policy).returncode, nsbox.explain(policy))"
    )
    command = ["unshare", "-Ur", sys.executable, "-P", "-c", code, workspace]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("0 "), done.stderr
    assert "the caller is in a user namespace" in done.stdout


AS_PID_1 = """
import ctypes, os, sys, threading
import nsbox
policy = nsbox.Policy.workspace(sys.argv[1])
nsbox.run(["true"], policy=policy, check=True)
def fork():
    assert ctypes.CDLL(None).unshare(0x20000000) == 0  # CLONE_NEWPID
    if os.fork() == 0:
        print(os.getpid(), nsbox.run(["true"], policy=policy).returncode, flush=True)
        os._exit(0)
    os.wait()
thread = threading.Thread(target=fork)
thread.start()
thread.join()
"""


@ROOT
def test_a_child_with_its_parents_number(workspace: Path) -> None:
    """Pid 1 of a container forks in a thread, into a pid namespace: the child holds no ids for its parent."""
    command = ["unshare", "-pf", "--mount-proc", sys.executable, "-P", "-c", AS_PID_1, workspace]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "1 0\n", done.stderr


@ROOT
def test_ids_that_somebody_holds(workspace: Path) -> None:
    """A start waits as long as a busy machine lets another thread wait, such as one that forks."""
    policy = Policy.workspace(workspace)
    nsbox.run(["true"], policy=policy, check=True)
    with ThreadPoolExecutor(1) as pool:
        assert abi.lib.nsbox_hold_ids() == 0
        try:
            start = pool.submit(nsbox.run, ["true"], policy=policy)
            time.sleep(0.5)
            assert not start.done()
        finally:
            abi.lib.nsbox_release_ids()
        assert start.result().returncode == 0


AT_THE_END = """
import keyword, sys
from nsbox._core import linux as _core_linux
sys.alive = keyword, _core_linux  # their names become None, those of the last imported first
keyword.mapping = _core_linux.UserNamespace("0 1000000 1", "0 1000000 1")
assert keyword.mapping.is_open()
"""


@ROOT
def test_a_mapping_at_the_interpreters_end() -> None:
    """A mapping that is collected after the modules' names have gone says nothing."""
    done = subprocess.run([sys.executable, "-P", "-c", AT_THE_END], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
