"""What the code in a branch may try: against the interpreter, its pid 1, other branches, and what the policy mounts.

A control is the same attack by a plain fork of the interpreter, or by a process of the branch's own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing.branches import run

from nsbox import Policy, probe

TOOLS = """
import ctypes, errno, signal, socket
libc = ctypes.CDLL(None, use_errno=True)

def call(name, *args):
    ctypes.set_errno(0)
    ret = getattr(libc, name)(*args)
    return 0 if ret >= 0 else ctypes.get_errno()

def tries(function):
    try:
        function()
    except OSError as error:
        return error.errno
    return 0

def plain(function):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, json.dumps(function()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as file:
        text = file.read()
    os.waitpid(pid, 0)
    return json.loads(text)

def attach(pid):
    ret = call("ptrace", 16, pid, None, None)  # PTRACE_ATTACH
    if ret == 0:
        os.waitpid(pid, 0x40000000)
        call("ptrace", 17, pid, None, None)
    return ret

NEWNS, NEWUSER = 0x20000, 0x10000000
"""


def attacked(policy: Policy, code: str, **options: Any) -> Any:
    return run(policy, TOOLS + code, **options)


@pytest.fixture(params=["default", "off"])
def seccomp(request: pytest.FixtureRequest) -> Any:
    """No wall leans on the filters: what they refuse by default is refused without them too."""
    return request.param


@pytest.fixture
def policy(workspace: Path, seccomp: Any) -> Policy:
    return Policy.workspace(workspace, seccomp=seccomp)


@pytest.fixture
def nested(workspace: Path, seccomp: Any) -> Policy:
    """A policy whose filters refuse little: what stops an attack is something else."""
    return Policy.workspace(workspace, nested=True, seccomp=seccomp)


def test_the_interpreter_has_no_pid(policy: Policy) -> None:
    """No pid that a branch can name is the interpreter's, or another branch's. A plain fork reaches both."""
    code = """
other = Running(driver, signal.pause)
def reached():
    return [pid for pid in range(3, 5000) if tries(lambda: os.kill(pid, 0)) == 0 and pid != os.getpid()]
mine = [os.getpid(), other.pid]
result = [branch(reached), set(mine) - {1, 2} <= set(plain(reached)), branch(os.getppid)]
os.kill(other.pid, 9)
other.wait()
"""
    assert attacked(policy, code) == [[], True, 0]


def test_signals_to_all_stay_inside(policy: Policy) -> None:
    """kill(-1) reaches what is in the branch alone."""
    code = """
read, write = os.pipe()
other = Running(driver, lambda: len(os.read(read, 1)))
def kill_all():
    child = os.fork()
    if child == 0:
        signal.pause()
    os.kill(-1, 9)
    return os.waitpid(child, 0)[1]
killed = branch(kill_all)
os.write(write, b"x")
result = [killed, other.wait()["value"]]
"""
    assert attacked(policy, code) == [9, 1]


LOOK = """
def looked(pid):
    found = []
    for name in ("mem", "environ", "maps", "auxv", "exe", "root", "cwd", "fd/0", "fd/1", "ns/user", "ns/mnt", "ns/pid"):
        try:
            if name in ("mem", "environ", "maps", "auxv"):
                with open(f"/proc/{pid}/{name}", "rb") as file:
                    name == "mem" or file.read(1)
            else:
                os.readlink(f"/proc/{pid}/{name}")
            found.append(name)
        except OSError:
            pass
    return found

def child():
    pid = os.fork()
    if pid == 0:
        signal.pause()
    return pid
"""


def test_pid_1_cant_be_looked_into(policy: Policy) -> None:
    """It isn't dumpable: its descriptors, one of which leads to the interpreter, are out of reach. A child's are not."""
    code = LOOK + "result = branch(lambda: [looked(1), len(looked(child())), attach(1)])"
    seen, control, attached = attacked(policy, code)
    assert seen == []
    assert control == 12
    assert attached == 1


def test_pid_1_cant_be_ended(policy: Policy) -> None:
    """Nor stopped, nor asked to end all: signals from inside don't count."""
    code = """
def kill():
    for number in range(1, 65):
        tries(lambda: os.kill(1, number))
        if number not in (32, 33):
            call("sigqueue", 1, number, ctypes.c_void_p(0))
    return "still here"
result = branch(kill)
"""
    assert attacked(policy, code) == "still here"


def test_no_descriptor_is_the_interpreters(policy: Policy) -> None:
    """Of the descriptors that make branches none is left in one: no pidfd, no namespace, no pipe of a pid 1's.

    Nor is one of what was walked through to mount.
    """
    code = """
def held():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # that of the list itself
            pass
    return found
own = held()
read, write = os.pipe()
os.close(read)
result = [branch(held), own, branch(lambda: len(held()) - len(own))]
"""
    inside, own, more = attacked(policy, code)
    interpreters = {name for name, what in own.items() if what.startswith(("anon_inode:[pidfd]", "pidfd:", "pid:"))}
    assert len(interpreters) == 2
    assert [what for what in inside.values() if what.startswith(("anon_inode", "pidfd", "pid:", "mnt:", "user:"))] == []
    # The image goes too. The test's own pipe, and that of its answer, are there.
    assert more == 2 - len(interpreters) - 1


def test_namespaces_of_the_interpreter(nested: Policy) -> None:
    """A descriptor of one of its namespaces doesn't let a branch in, should one leak. A plain fork gets in."""
    code = """
kinds = {"mnt": 0x20000, "uts": 0x4000000, "ipc": 0x8000000, "net": 0x40000000, "pid": 0x20000000, "user": 0x10000000}
held = {kind: os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in kinds}
def join():
    return {kind: call("setns", fd, kinds[kind]) for kind, fd in held.items()}
def join_with_power():
    assert call("unshare", NEWUSER) == 0
    return join()
result = [branch(join), branch(join_with_power), plain(join)]
"""
    inside, powerful, control = attacked(nested, code)
    assert set(inside.values()) == {1}
    assert set(powerful.values()) == {1}
    own = ("mnt", "uts", "net", "pid")  # over the others it has no power itself
    assert [control[kind] for kind in own] == [0] * 4


def test_owner_of_the_mounts(nested: Policy) -> None:
    """The user namespace that owns a branch's mounts can't be asked for: it is above the branch's (ioctl_ns(2))."""
    code = """
import fcntl
def owner(name):
    return tries(lambda: fcntl.ioctl(os.open(f"/proc/self/ns/{name}", os.O_RDONLY), 0xB701))
result = [branch(lambda: [owner("mnt"), owner("net"), tries(lambda: fcntl.ioctl(
    os.open("/proc/self/ns/user", os.O_RDONLY), 0xB702))]), plain(lambda: owner("mnt"))]
"""
    assert attacked(nested, code) == [[1, 1, 1], 0]


def test_mounts_need_capabilities(nested: Policy) -> None:
    """A branch as it is can't mount, unmount or change a mount. The interpreter can."""
    code = """
def mounts():
    return [call("mount", b"x", b"/tmp", b"tmpfs", 0, None), call("umount2", b"/tmp", 2),
            call("mount", None, b"/usr", None, 4096 | 32, None), call("chroot", b"/tmp"),
            call("pivot_root", b"/tmp", b"/tmp") if hasattr(libc, "pivot_root") else 1]
result = [branch(mounts), plain(lambda: call("mount", b"x", b"/tmp", b"tmpfs", 0, None))]
"""
    inside, control = attacked(nested, code)
    assert inside == [1] * 5
    assert control == 0


LIFT = """
def lift():
    results = {
        "mask": call("umount2", secret, 2),
        "fresh": call("umount2", b"/tmp", 2),
        "proc": call("umount2", b"/proc", 2),
        "keys": call("umount2", b"/proc/keys", 2),
        "dev": call("umount2", b"/dev", 2),
        "rw": call("mount", None, shown, None, 4096 | 32, None),
        "usr": call("mount", None, b"/usr", None, 4096 | 32, None),
        "root": call("mount", None, b"/", None, 4096 | 32, None),
    }
    results["secret"] = tries(lambda: open(secret).read())
    results["new"] = tries(lambda: open(shown + b"/new", "w"))
    return results
def with_power():
    uid, gid = os.getuid(), os.getgid()
    assert call("unshare", NEWUSER | NEWNS) == 0
    mounted = call("mount", b"x", work, b"tmpfs", 0, None)
    unmounted = call("umount2", work, 2)
    return [mounted, unmounted, lift()]
"""


@pytest.mark.parametrize("who", ["branch", "interpreter"])
def test_what_the_policy_mounts_stays(workspace: Path, tmp_path: Path, seccomp: Any, who: str) -> None:
    """With all capabilities over its own mounts, a branch lifts no mask, no read-only bind, and nothing that is fresh.

    Nor does the interpreter. Both can unmount what they have mounted themselves.
    """
    (tmp_path / "shown").mkdir()
    (workspace / "secret").write_text("secret")
    denied = [workspace / "secret"]
    policy = Policy.workspace(workspace, nested=True, read=[tmp_path / "shown"], deny=denied, seccomp=seccomp)
    names = (workspace / "secret", tmp_path / "shown", workspace)
    code = "secret, shown, work = {!r}, {!r}, {!r}\n".format(*(os.fsencode(path) for path in names)) + LIFT
    code += "result = branch(with_power)" if who == "branch" else "result = plain(with_power)"
    mounted, unmounted, results = attacked(policy, code)
    assert (mounted, unmounted) == (0, 0)
    assert {name: error for name, error in results.items() if error == 0} == {}


def test_interpreter_as_it_is(workspace: Path, tmp_path: Path, seccomp: Any) -> None:
    """With the capabilities that it has, without another namespace, the interpreter lifts nothing either."""
    (tmp_path / "shown").mkdir()
    (workspace / "secret").write_text("secret")
    policy = Policy.workspace(workspace, read=[tmp_path / "shown"], deny=[workspace / "secret"], seccomp=seccomp)
    names = (workspace / "secret", tmp_path / "shown", workspace)
    code = "secret, shown, work = {!r}, {!r}, {!r}\n".format(*(os.fsencode(path) for path in names)) + LIFT
    code += """
def own():
    return [call("mount", b"x", work, b"tmpfs", 0, None), call("umount2", work, 2), lift()]
result = plain(own)
"""
    mounted, unmounted, results = attacked(policy, code)
    assert (mounted, unmounted) == (0, 0)
    assert {name: error for name, error in results.items() if error == 0} == {}


def test_other_branches_have_no_common_places(policy: Policy) -> None:
    """System V's shared memory, POSIX's, abstract sockets, files in /tmp: none is another branch's. A fork sees them."""
    code = """
read, write = os.pipe()
ready, tell = os.pipe()
def shared():
    return [call("shmget", 0x1234, 4096, 0), tries(lambda: open("/dev/shm/mine")), tries(lambda: open("/tmp/mine")),
            tries(lambda: socket.socket(socket.AF_UNIX).connect("\\0mine"))]
def keep():
    call("shmget", 0x1234, 4096, 0o1666)
    open("/dev/shm/mine", "w").close()
    open("/tmp/mine", "w").close()
    server = socket.socket(socket.AF_UNIX)
    server.bind("\\0mine")
    server.listen()
    os.write(tell, b"x")
    os.read(read, 1)
    return plain(shared)
other = Running(driver, keep)
os.read(ready, 1)
found = branch(shared)
os.write(write, b"x")
result = [found, other.wait()["value"]]
"""
    found, control = attacked(policy, code)
    assert found == [2, 2, 2, 111]
    assert control == [0, 0, 0, 0]


@pytest.mark.skipif(probe().landlock_abi < 6, reason="needs Landlock of version 6 or later")
def test_abstract_sockets_on_the_hosts_network(workspace: Path, seccomp: Any) -> None:
    """Where branches share the host's network, Landlock keeps them from each other's abstract sockets."""
    name = f"nsbox-test-{os.getpid()}"
    code = f"""
read, write = os.pipe()
ready, tell = os.pipe()
def connect():
    return tries(lambda: socket.socket(socket.AF_UNIX).connect("\\0{name}"))
def keep():
    server = socket.socket(socket.AF_UNIX)
    server.bind("\\0{name}")
    server.listen()
    os.write(tell, b"x")
    os.read(read, 1)
    return connect()
other = Running(driver, keep)
os.read(ready, 1)
found = branch(connect)
os.write(write, b"x")
result = [found, other.wait()["value"]]
"""
    assert attacked(Policy.workspace(workspace, network="host", seccomp=seccomp), code) == [1, 0]


FORKS = (
    LOOK
    + """
def forked(confined):
    read, write = os.pipe()
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        if confined and driver.library.nsbox_branch_fork() != 0:
            os._exit(1)
        server = socket.socket(socket.AF_UNIX)
        server.bind("\\0victim%d" % confined)
        server.listen()
        os.write(tell, b"x")
        os.read(read, 1)
        os._exit(7)
    os.read(ready, 1)
    return pid, write

def attack(victim, confined):
    if driver.library.nsbox_branch_fork() != 0:
        return "no fork"
    return [tries(lambda: os.kill(victim, 18)), attach(victim), len(looked(victim)),
            tries(lambda: socket.socket(socket.AF_UNIX).connect("\\0victim%d" % confined))]

def forks():
    found = []
    for confined in (True, False):
        victim, line = forked(confined)
        found.append(plain(lambda: attack(victim, confined)) if confined else plain(
            lambda: [tries(lambda: os.kill(victim, 18)), attach(victim), len(looked(victim)),
                     tries(lambda: socket.socket(socket.AF_UNIX).connect("\\0victim%d" % confined))]))
        os.write(line, b"x")
        found.append(os.waitpid(victim, 0)[1] >> 8)
    return found
"""
)


@pytest.mark.skipif(probe().landlock_abi < 6, reason="needs Landlock of version 6 or later")
def test_forks_of_a_branch(policy: Policy) -> None:
    """Forks of one branch can't signal, trace, look into or connect to each other. Those that aren't confined can."""
    found, status, control, other = attacked(policy, FORKS + "result = branch(forks)")
    assert (found, status) == ([1, 1, 0, 1], 7)
    assert (control, other) == ([0, 0, 12, 0], 7)


def test_set_user_id_programs(nested: Policy) -> None:
    """No program gives a branch what it has given up, whoever owns it."""
    code = """
import subprocess
def status():
    text = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True).stdout
    return [line.split()[1] for line in text.splitlines() if line.startswith(("CapPrm", "CapEff", "NoNewPrivs"))]
result = [branch(status), plain(status)]
"""
    inside, control = attacked(nested, code)
    expected = f"{1 << 31 if os.getuid() == 0 else 0:016x}"
    assert inside == [expected, expected, "1"]
    assert int(control[0], 16) > 1 << 21
