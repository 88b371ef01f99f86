"""The backend of Landlock alone: the attempts that apply where nothing is mounted, with what is expected to differ.

Each is made twice: by a command behind Landlock, and as a control by one without any containment (passthrough).
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing.running import python

import nsbox
from nsbox import Policy

pytestmark = [
    pytest.mark.vm,
    pytest.mark.skipif(nsbox.probe().landlock_abi < 2, reason="needs Landlock of version 2 or later"),
]
ABI = nsbox.probe().landlock_abi
LACKED = {"attributes", "namespaces", "secrets"}
REFUSED = {errno.EPERM, errno.EACCES, errno.EXDEV, errno.ENOSYS, errno.EROFS}


@pytest.fixture
def policy(workspace: Path) -> Policy:
    """Not used; there are two of each of the others."""
    return Policy.workspace(workspace)


@pytest.fixture(params=["default", "off"])
def alone(request: pytest.FixtureRequest, workspace: Path) -> Policy:
    """A workspace behind Landlock alone; without the seccomp profile what stands in for namespaces is there all the same."""
    return Policy.workspace(workspace, backend="landlock", degrade=LACKED, seccomp=request.param)


@pytest.fixture
def free(workspace: Path) -> Policy:
    return Policy.workspace(workspace, backend="passthrough", require="nothing")


def harmful(path: str) -> str:
    """Return code that reports what comes of each way to change or read what is in a directory of the host."""
    return f"""
victim = {path!r}
secret = victim + "/secret"
def swap():
    os.rename(secret, victim + "/x"); os.rename(victim + "/x", secret)
def out():
    open("own", "w").close(); os.rename("own", victim + "/own"); os.rename(victim + "/own", "own")
def link_in():
    os.link(secret, "linked"); os.unlink("linked")
def truncating_open(mode=os.O_RDONLY): os.close(os.open(secret, mode | os.O_TRUNC))
def by_proc():
    fd = os.open(secret, os.O_PATH)
    os.close(os.open(f"/proc/self/fd/{{fd}}", os.O_RDWR))
def by_cwd():
    os.chdir(victim)
    try: os.close(os.open("secret", os.O_RDWR))
    finally: os.chdir({os.path.dirname(path)!r} + "/workspace")
def by_link():
    os.symlink(secret, "planted")
    try: os.close(os.open("planted", os.O_RDWR))
    finally: os.unlink("planted")
def made(f, remove):
    f(victim + "/new"); remove(victim + "/new")
report({{
    "read": attempt(lambda: open(secret).close()),
    "list": attempt(os.listdir, victim),
    "write": attempt(lambda: open(secret, "a").close()),
    "truncate": attempt(os.truncate, secret, 3),
    "open to truncate": attempt(truncating_open), "open for neither": attempt(truncating_open, 3),
    "by a descriptor of /proc": attempt(by_proc),
    "by the directory": attempt(by_cwd),
    "by a planted link": attempt(by_link),
    "rename": attempt(swap),
    "move out": attempt(out),
    "link in": attempt(link_in),
    "mkdir": attempt(made, os.mkdir, os.rmdir),
    "symlink": attempt(made, lambda p: os.symlink("x", p), os.unlink),
    "mkfifo": attempt(made, os.mkfifo, os.unlink),
    "make": attempt(made, lambda p: os.close(os.open(p, os.O_CREAT | os.O_WRONLY)), os.unlink),
}})
"""


def test_files_outside(attempt: Callable[..., Any], alone: Policy, victim: Path, untouched: None) -> None:
    """Nothing beside the workspace can be read, listed, written, emptied, moved, linked or made, in whichever way."""
    found = attempt(harmful(str(victim)), policy=alone)
    assert set(found.values()) <= REFUSED, found


def test_control_files_outside(attempt: Callable[..., Any], free: Policy, victim: Path) -> None:
    """Control: all of it works for a plain child."""
    found = attempt(harmful(str(victim)), policy=free)
    allowed = {errno.EXDEV}  # a hard link, where the directories are on two file systems
    assert set(found.values()) - allowed == {0}, found


def test_reading_is_not_writing(attempt: Callable[..., Any], workspace: Path, victim: Path, untouched: None) -> None:
    """What may be read can't be changed; by truncation neither, on kernels whose Landlock doesn't know that."""
    policy = Policy.workspace(workspace, backend="landlock", degrade=LACKED, read=[victim])
    found = attempt(harmful(str(victim)), policy=policy)
    assert (found.pop("read"), found.pop("list")) == (0, 0)
    assert set(found.values()) <= REFUSED, found


SOCKETS = """
import socket
def made(*kind): socket.socket(*kind).close()
def connect(address):
    with socket.socket(socket.AF_UNIX) as s: s.connect(address)
path, abstract, port = sys.argv[1], "\\0" + sys.argv[2], int(sys.argv[3])
def tcp(): socket.create_connection(("127.0.0.1", port), 10).close()
pair = socket.socketpair()
def datagrams():
    one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, two: one.sendto(b"x", path + ".datagrams")
report({
    "datagrams": attempt(datagrams),
    "unix": attempt(made, socket.AF_UNIX), "udp": attempt(made, socket.AF_INET, socket.SOCK_DGRAM),
    "tcp": attempt(tcp), "netlink": attempt(made, socket.AF_NETLINK, socket.SOCK_RAW, 0),
    "path": attempt(connect, path), "abstract": attempt(connect, abstract),
    "io_uring": syscall(425, 1, ctypes.create_string_buffer(120)),
})
"""


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[tuple[str, str, str]]:
    """Sockets of the host: one with a path, one with an abstract name, one of TCP."""
    path, name = str(tmp_path / "s"), f"nsbox-{os.getpid()}-{tmp_path.name}"
    with contextlib.ExitStack() as stack:
        one, two, three = (
            stack.enter_context(socket.socket(family)) for family in (socket.AF_UNIX, socket.AF_UNIX, socket.AF_INET)
        )
        datagrams = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        datagrams.bind(path + ".datagrams")
        one.bind(path)
        two.bind("\0" + name)
        three.bind(("127.0.0.1", 0))
        for each in (one, two, three):
            each.listen(8)
        yield path, name, str(three.getsockname()[1])


def test_sockets(attempt: Callable[..., Any], alone: Policy, listening: tuple[str, str, str]) -> None:
    """Without a network there are no sockets, whatever their family, and no other way to make some; pairs are."""
    found = attempt(SOCKETS, *listening, policy=alone)
    assert set(found.values()) <= {errno.EPERM, errno.ENOSYS}, found


def test_unix_sockets_with_a_network(
    attempt: Callable[..., Any], alone: Policy, listening: tuple[str, str, str]
) -> None:
    """With the host's network TCP works, and unix sockets still can't be made: a bus of the host would start programs."""
    found = attempt(SOCKETS, *listening, policy=alone.with_(network="host"))
    assert (found["tcp"], found["udp"]) == (0, 0)
    assert {found[name] for name in ("unix", "path", "abstract", "datagrams")} == {errno.EPERM}
    assert found["io_uring"] == errno.ENOSYS


def test_control_sockets(attempt: Callable[..., Any], free: Policy, listening: tuple[str, str, str]) -> None:
    """Control: a plain child connects to all of them."""
    found = attempt(SOCKETS, *listening, policy=free)
    del found["io_uring"]  # which machines switch off
    assert set(found.values()) == {0}, found


PASSED = """
import socket
number, port = map(int, sys.argv[1:])
report(attempt(socket.socket(fileno=number).connect, ("127.0.0.1", port)))
"""


def connect_passed(attempt: Callable[..., Any], policy: Policy, port: str) -> Any:
    """Return the errno of connecting a socket that was made outside and passed."""
    with socket.socket() as passed:
        return attempt(PASSED, str(passed.fileno()), port, policy=policy, pass_fds=[passed.fileno()])


@pytest.mark.skipif(ABI < 4, reason="needs Landlock of version 4 or later")
def test_a_socket_that_is_passed(attempt: Callable[..., Any], alone: Policy, listening: tuple[str, str, str]) -> None:
    """The filter has nothing against it, but without a network it can't be connected by TCP (Landlock)."""
    assert connect_passed(attempt, alone, listening[2]) == errno.EACCES


def test_control_a_socket_that_is_passed(
    attempt: Callable[..., Any], alone: Policy, listening: tuple[str, str, str]
) -> None:
    """Control: with the network it can. So it can in namespaces, where it goes on belonging to the host's."""
    assert connect_passed(attempt, alone.with_(network="host"), listening[2]) == 0
    if not nsbox.probe().userns_error:
        assert connect_passed(attempt, Policy.workspace(alone.workdir), listening[2]) == 0


OTHERS = """
pid = int(sys.argv[1])
def opened(name): os.close(os.open(f"/proc/{pid}/{name}", os.O_RDONLY))
local, remote = ctypes.create_string_buffer(8), ctypes.create_string_buffer(8)
class iovec(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
a, b = iovec(ctypes.addressof(local), 8), iovec(ctypes.addressof(remote), 8)
limit = (ctypes.c_ulong * 2)()
report({
    "environ": attempt(opened, "environ"), "mem": attempt(opened, "mem"),
    "fd": attempt(os.readlink, f"/proc/{pid}/fd/0"), "cwd": attempt(os.readlink, f"/proc/{pid}/cwd"),
    "root": attempt(os.listdir, f"/proc/{pid}/root/"),
    "ptrace": call("ptrace", 16, pid, 0, 0), "memory": call("process_vm_readv", pid, ctypes.byref(a), 1, ctypes.byref(b), 1, 0),
    "rlimits": call("prlimit", pid, 7, 0, limit),
    "signal": attempt(os.kill, pid, 0),
})
"""


@pytest.fixture
def neighbour() -> Iterator[int]:
    """A process of the same user, outside."""
    with subprocess.Popen(["sleep", "1000"], env={"SECRET": "x", "PATH": os.environ["PATH"]}) as process:
        yield process.pid
        process.kill()


def test_processes_outside(attempt: Callable[..., Any], alone: Policy, neighbour: int) -> None:
    """Memory, environment, descriptors and limits of other processes are closed; so are signals, from Linux 6.12 on."""
    found = attempt(OTHERS, str(neighbour), policy=alone)
    signalled = found.pop("signal")
    assert set(found.values()) <= {errno.EPERM, errno.EACCES, errno.ESRCH}, found
    assert signalled == (errno.EPERM if ABI >= 6 else 0)


def test_control_processes_outside(attempt: Callable[..., Any], free: Policy, neighbour: int) -> None:
    """Control: for a plain child of the same user most are open, as far as other rules of the machine allow."""
    found = attempt(OTHERS, str(neighbour), policy=free)
    for name in ("environ", "fd", "cwd", "root", "rlimits", "signal"):
        assert found[name] == 0, found


def test_ipc(attempt: Callable[..., Any], alone: Policy, free: Policy) -> None:
    """System V ipc and message queues of the host aren't there; a plain child has them."""
    code = """
found = [call("shmget", 0x6e73, 64, 0), call("mq_open", "/nsbox-none", 0), call("semget", 0x6e73, 1, 0), call("msgget", 0x6e73, 0)]
report(found)
"""
    assert set(attempt(code, policy=alone)) == {errno.ENOSYS}
    assert set(attempt(code, policy=free)) == {errno.ENOENT}


def test_user_namespaces_and_mounts(attempt: Callable[..., Any], alone: Policy, victim: Path, untouched: None) -> None:
    """A user namespace of the command's own, where it can be had at all, opens no file: nothing can be mounted in it."""
    code = f"""
made = call("unshare", 0x10000000 | 0x00020000)
report([made, call("mount", {str(victim)!r}, "/proc/self/cwd", "", 4096, ""), attempt(os.listdir, {str(victim)!r})])
"""
    made, mounted, listed = attempt(code, policy=alone)
    assert made == 0 or made in REFUSED
    assert mounted in REFUSED and listed == errno.EACCES


def test_a_planted_link(workspace: Path, victim: Path, untouched: None) -> None:
    """A link that an earlier command has put where a named directory was is an error, not a permission."""
    (workspace / "out").mkdir()
    policy = Policy.workspace(workspace, backend="landlock", degrade=LACKED, write=[workspace / "out"])
    nsbox.run(["true"], policy=policy)  # so that it is prepared
    (workspace / "out").rmdir()
    (workspace / "out").symlink_to(victim)
    with pytest.raises(nsbox.SetupError, match=f"allow {workspace}/out: Landlock") as caught:
        nsbox.run(["sh", "-c", f"echo gone > {victim}/secret"], policy=policy)
    assert caught.value.errno == errno.ELOOP


def test_terminals(alone: Policy, free: Policy) -> None:
    """Terminals of the same user are closed; a descriptor of one that was passed is not for typing."""
    master, slave = os.openpty()
    code = """
def sti(): fcntl.ioctl(0, 0x5412, b"x")
import fcntl
try: os.close(os.open(sys.argv[1], os.O_RDWR)); opened = 0
except OSError as e: opened = e.errno
print(opened)
"""
    try:
        for policy, expected in ((alone, errno.EACCES), (free, 0)):
            done = nsbox.run(
                python("import os, sys\n" + code, os.ttyname(slave)), policy=policy, stdout=subprocess.PIPE
            )
            assert int(done.stdout) == expected
    finally:
        os.close(master), os.close(slave)


def test_what_is_left_of_the_group_ends(workspace: Path) -> None:
    """What the command leaves in its process group is killed; what has left that goes on, as not_enforced says."""
    policy = Policy.workspace(workspace, backend="landlock", degrade=LACKED)
    code = """
import os, subprocess
one, two = (subprocess.Popen(["sleep", "1000"], stdout=2, start_new_session=new) for new in (False, True))
print(one.pid, two.pid, flush=True)
os._exit(0)
"""
    done = nsbox.run(python(code), policy=policy, stdout=subprocess.PIPE)
    one, two = map(int, done.stdout.split())
    try:
        assert ends(one, 30)
        assert not ends(two, 0)
    finally:
        os.kill(two, signal.SIGKILL)


def ends(pid: int, seconds: float) -> bool:
    """Say if a process that is none of ours ends within this time."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], seconds)[0])
    finally:
        os.close(fd)


def test_the_callers_end(workspace: Path) -> None:
    """A command that the main thread has started ends with the caller, however that dies."""
    code = f"""
import os, sys, nsbox
policy = nsbox.Policy.workspace({str(workspace)!r}, backend="landlock", degrade={LACKED!r})
p = nsbox.Popen(["sleep", "1000"], policy=policy)
print(p.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=workspace)
    assert ends(int(done.stdout), 30)


def test_attributes_can_be_changed(attempt: Callable[..., Any], alone: Policy, victim: Path) -> None:
    """What degrade says of attributes is true: Landlock doesn't stop chmod(2) outside. A control of the documentation."""
    assert attempt(f"report(attempt(os.chmod, {str(victim / 'secret')!r}, 0o600))", policy=alone) == 0
    assert (victim / "secret").stat().st_mode & 0o777 == 0o600


OWN_ELSEWHERE = """
report({name: attempt(os.listdir, name) for name in ("/tmp", "/dev/pts", "/run")} | {"terminal": attempt(lambda: os.close(os.open(sys.argv[1], os.O_RDONLY | os.O_NOCTTY)))})
"""


def test_all_is_readable(attempt: Callable[..., Any], workspace: Path) -> None:
    """With read=["/"] the host's /tmp, /dev and /run are readable too; that has a name, and nothing runs without it."""
    wish = Policy.workspace(workspace, read=["/"], backend="landlock", degrade={"attributes", "namespaces"})
    with pytest.raises(nsbox.UnavailableError, match=r"secrets: .*the host's /dev and /run can't be closed"):
        nsbox.run(["touch", "ran"], policy=wish)
    assert not (workspace / "ran").exists()
    wish = wish.with_(degrade=LACKED)
    master, slave = os.openpty()
    try:
        found = attempt(OWN_ELSEWHERE, os.ttyname(slave), policy=wish)
        assert set(found.values()) == {0}, "what the sentences say is true"
        if not nsbox.probe().userns_error:
            mounted_policy = Policy.workspace(workspace, read=["/"])
            mounted = attempt(OWN_ELSEWHERE, os.ttyname(slave), policy=mounted_policy, cwd=workspace)
            assert mounted["terminal"] == errno.ENOENT, "the control: /dev is the sandbox's own"
    finally:
        os.close(master), os.close(slave)
    with nsbox.Popen(["true"], policy=wish) as process:
        pass
    assert {"secrets", "tmp"} <= process.sandbox.lost
    assert any("tmp: there is no private /tmp: the host's can be read" in text for text in process.sandbox.not_enforced)


@pytest.mark.parametrize("network", ["none", "host"])
def test_without_a_profile(workspace: Path, network: Any) -> None:
    """Without a seccomp profile the object doesn't say that only flaws of the kernel are left."""
    policy = Policy.workspace(workspace, backend="landlock", degrade=LACKED, network=network, seccomp="off")
    with nsbox.Popen(["true"], policy=policy) as process:
        pass
    assert "system calls: all others" in process.sandbox.not_enforced
    assert any("AF_VSOCK" in text for text in process.sandbox.not_enforced) is (network == "host")


def test_unix_sockets_of_the_host_policy(attempt: Callable[..., Any], listening: tuple[str, str, str]) -> None:
    """Policy.host() leaves sockets open that are files, and says so; abstract ones as far as the kernel can't close them."""
    policy = Policy.host(backend="landlock", degrade={"processes"})
    found = attempt(SOCKETS, *listening, policy=policy)
    assert found["path"] == 0
    assert found["abstract"] == (errno.EPERM if ABI >= 6 else 0)
    with nsbox.Popen(["true"], policy=policy) as process:
        pass
    said = process.sandbox.not_enforced
    assert any(text.startswith("sockets: unix sockets in visible directories") for text in said)
    assert any("abstract unix sockets" in text for text in said) is (ABI < 6)
    assert any(text.startswith("kernel settings:") for text in said) is nsbox.probe().is_kernel_root


def test_no_privileges(attempt: Callable[..., Any], alone: Policy) -> None:
    """No capability, none to be gained, no supplementary groups for root, and one filter at least."""
    code = """
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
report([[status[n].strip() for n in ("CapInh", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs", "Seccomp")], os.getgroups()])
"""
    found, groups = attempt(code, policy=alone)
    assert found == ["0" * 16] * 4 + ["1", "2"]
    if os.geteuid() == 0:
        assert groups == []
