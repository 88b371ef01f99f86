"""Branches: what a fork of a warm interpreter is by the time its code runs, and what is left of it at its end."""

from __future__ import annotations

import glob
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing.branches import LOOK, interpreter, run

from nsbox import Limits, Policy


def test_processes(policy: Policy) -> None:
    """A branch is pid 2 of a pid namespace of its own, leads a session, and sees pid 1 and itself alone."""
    code = "result = branch(lambda: [os.getpid(), os.getsid(0), os.getppid(), processes()])"
    assert run(policy, LOOK + code) == [2, 2, 0, [1, 2]]


def test_children_are_in_it(policy: Policy) -> None:
    """What a branch starts is in its pid namespace; orphans go to its pid 1."""
    code = """
    import subprocess
    def child():
        ids = subprocess.run(["sh", "-c", "echo $$ $PPID"], capture_output=True, text=True).stdout.split()
        read, write = os.pipe()
        if os.fork() == 0:
            if os.fork() == 0:
                os.read(read, 1)
                os.write(write, b"%d" % os.getppid())
                os._exit(0)
            os._exit(0)
        os.wait()
        return ids
    result = branch(child)
    """
    first, parent = run(policy, code)
    assert parent == "2"
    assert int(first) > 2


def test_privileges(policy: Policy) -> None:
    """No capability in any set, no new privileges, filters; the ids are the policy's."""
    code = "result = branch(lambda: [status(), os.getresuid(), os.getresgid(), os.getgroups()])"
    found, uids, gids, groups = run(policy, LOOK + code)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(found[name], 16) == 0, name
    assert (found["NoNewPrivs"], found["Seccomp"]) == ("1", "2")
    assert uids == [os.getuid()] * 3
    assert gids == [os.getgid()] * 3
    assert set(groups) <= {os.getgid(), 65534}


def test_filters_are_the_policys(workspace: Path) -> None:
    """The interpreter may make namespaces; a branch has the policy's filters on top, as many as one of its commands."""
    code = """
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    def unshare():
        return [libc.unshare(0x10000000), ctypes.get_errno()]
    child = os.fork()
    if child == 0:
        os._exit(unshare()[0] + 1)
    result = [os.waitpid(child, 0)[1] >> 8, branch(unshare)]
    """
    assert run(Policy.workspace(workspace), code) == [1, [-1, 1]]
    assert run(Policy.workspace(workspace, seccomp="hardened"), code) == [1, [-1, 1]]


@pytest.mark.parametrize(("uid", "gid"), [(0, 0), (1234, 5678)])
def test_ids_that_the_policy_wishes(workspace: Path, uid: int, gid: int) -> None:
    """A branch has the uid and gid of the policy; files that it makes are the caller's."""
    code = f"""
    def make():
        os.chdir({str(workspace)!r})
        open("made", "x").close()
        made = os.stat("made")
        return [os.getresuid(), os.getresgid(), made.st_uid, made.st_gid]
    result = branch(make)
    """
    found = run(Policy.workspace(workspace, uid=uid, gid=gid), code)
    assert found == [[uid] * 3, [gid] * 3, uid, gid]
    made = (workspace / "made").stat()
    assert (made.st_uid, made.st_gid) == (os.getuid(), os.getgid())


def test_all_ids(workspace: Path) -> None:
    """With ids="full" a branch has them all, and the policy's uid."""
    code = 'result = branch(lambda: [os.getuid(), open("/proc/self/uid_map").read().split()])'
    uid, rows = run(Policy.workspace(workspace, ids="full"), code)
    assert uid == os.getuid()
    assert sum(map(int, rows[2::3])) > 1000


def test_limits(workspace: Path) -> None:
    """A branch has the policy's limits; processor time counts from its own beginning."""
    policy = Policy.workspace(workspace, limits=Limits(cpu_seconds=7, open_files=99, file_size="1M", memory="4G"))
    code = """
    import resource
    names = ("CPU", "NOFILE", "FSIZE", "AS", "CORE")
    limits = lambda: [resource.getrlimit(getattr(resource, "RLIMIT_" + name)) for name in names]
    result = [branch(limits), limits()[0]]
    """
    inside, own = run(policy, code)
    assert inside == [[7, 12], [99, 99], [1 << 20, 1 << 20], [4 << 30, 4 << 30], [1, 1]]
    assert own == [-1, -1]


def test_processes_are_counted_for_each_branch(workspace: Path) -> None:
    """A limit on processes is each branch's own: what others run doesn't count."""
    policy = Policy.workspace(workspace, uid=1000, limits=Limits(processes=20))
    code = """
    def fill():
        n = 0
        try:
            while n < 100:
                if os.fork() == 0:
                    __import__("signal").pause()
                n += 1
        except BlockingIOError:
            pass
        return n
    read, write = os.pipe()
    def hold():
        n = fill()
        os.write(write, b"x")
        __import__("signal").sigwait({12})
        return n
    __import__("signal").pthread_sigmask(0, {12})
    first = Running(driver, hold)
    os.read(read, 1)
    second = branch(fill)
    os.kill(first.pid, 12)
    result = [first.wait()["value"], second]
    """
    first, second = run(policy, code)
    assert first == second
    assert 0 < first < 20


def test_fresh_places(policy: Policy) -> None:
    """What one branch and the interpreter leave in /tmp, /dev/shm and the rest isn't there for the next one."""
    code = """
    places = ("/tmp", "/dev/shm", "/var/tmp", "/dev", os.path.expanduser("~"))
    places = [place for place in places if os.path.realpath(place) == place]  # /var/tmp may be a link to /tmp
    def leave():
        made = []
        for place in places:
            try:
                open(f"{place}/left", "x").close()
                made.append(place)
            except OSError:
                pass
        return made
    def seen():
        return [place for place in places if os.path.exists(f"{place}/left")]
    mine = leave()
    result = [mine, branch(seen), branch(leave), branch(seen), seen()]
    """
    mine, first, made, later, still = run(policy, code)
    assert {"/tmp", "/dev/shm"} <= set(made)
    assert first == later == []
    assert still == mine != []


def test_current_directory_is_not_a_covered_one(policy: Policy) -> None:
    """An interpreter whose directory is in a place that each branch has fresh doesn't take a branch there."""
    code = """
    os.mkdir("/tmp/own")
    os.chdir("/tmp/own")
    result = branch(os.getcwd)
    """
    assert run(policy, code) == "/"


def test_terminals(policy: Policy) -> None:
    """A branch has pseudo-terminals of its own, numbered from 0, and they work."""
    code = """
    held = os.openpty()
    def terminal():
        first, second = os.openpty()
        os.write(second, b"through")
        return [os.ttyname(second), os.read(first, 7).decode(), sorted(os.listdir("/dev/pts"))]
    result = [os.ttyname(held[1]), branch(terminal)]
    """
    assert run(policy, code) == ["/dev/pts/0", ["/dev/pts/0", "through", ["0", "ptmx"]]]


def test_ipc_uts_and_cgroup(policy: Policy) -> None:
    """Namespaces of all kinds differ from the interpreter's, and from another branch's."""
    code = """
    kinds = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
    spaces = lambda: [os.readlink(f"/proc/self/ns/{kind}") for kind in kinds]
    read, write = os.pipe()
    begun, begin = os.pipe()
    one = Running(driver, lambda: [os.write(begin, b"x") and os.read(read, 1), spaces()][1])
    os.read(begun, 1)  # it has its own before another has and gives back some, whose numbers are used again
    two = branch(spaces)
    os.write(write, b"x")
    result = [spaces(), one.wait()["value"], two]
    """
    own, one, two = run(policy, code)
    for three in zip(own, one, two, strict=True):
        assert len(set(three)) == 3


def test_no_network(policy: Policy) -> None:
    """With network="none" there is lo alone; it is up, on all ports."""
    code = """
    import socket
    def net():
        with socket.create_server(("127.0.0.1", 80)) as server:
            with socket.create_connection(server.getsockname()) as client:
                client.sendall(b"x")
                with server.accept()[0] as peer:
                    return [peer.recv(1).decode(), [name for _, name in socket.if_nameindex()]]
    result = branch(net)
    """
    assert run(policy, code) == ["x", ["lo"]]


def test_network_of_the_host(workspace: Path) -> None:
    """With network="host" a branch connects to what the host has."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"""
        import socket
        def connect():
            with socket.create_connection(("127.0.0.1", {server.getsockname()[1]})) as client:
                return client.recv(2).decode()
        result = branch(connect)
        """
        with interpreter(Policy.workspace(workspace, network="host"), code) as process:
            with server.accept()[0] as peer:
                peer.sendall(b"ok")
            output, errors = process.communicate(timeout=60)
    assert (output, errors) == ('"ok"\n', "")


def test_policys_places(workspace: Path, tmp_path: Path) -> None:
    """The workspace is the host's own; what is read-only or masked for the policy's commands is for a branch."""
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown/file").write_text("shown")
    (workspace / "secret").write_text("secret")
    policy = Policy.workspace(workspace, read=[tmp_path / "shown"], deny=[workspace / "secret"])
    code = (
        LOOK
        + f"""
work, shown = {str(workspace)!r}, {str(tmp_path / "shown")!r}
def places():
    open(work + "/made", "w").write("made")
    return [open(shown + "/file").read(), tries(lambda: open(shown + "/new", "w")),
            tries(lambda: open(work + "/secret")), tries(lambda: open("/etc/shadow")), tries(lambda: open("/usr/new", "w"))]
result = branch(places)
"""
    )
    assert run(policy, code) == ["shown", 30, 13, 13, 30]
    assert (workspace / "made").read_text() == "made"


def test_settings_in_proc(policy: Policy) -> None:
    """The fresh /proc is covered as the policy says: kernel settings are read-only, keys can't be read."""
    code = """
    writable = lambda path: os.access(path, os.W_OK)
    def proc():
        flags = os.statvfs("/proc/sys").f_flag & os.ST_RDONLY
        return [flags, tries(lambda: open("/proc/keys")), tries(lambda: open("/proc/key-users")),
                tries(lambda: open("/proc/1/autogroup", "w")), tries(lambda: open("/proc/sys/kernel/hostname", "w"))]
    result = branch(proc)
    """
    import textwrap

    read_only, keys, users, autogroup, hostname = run(policy, LOOK + textwrap.dedent(code))
    assert read_only == 1
    assert {keys, users} <= {13, 2}
    assert autogroup in (30, 13, 2)
    assert hostname in (30, 13)


def test_landlock(workspace: Path) -> None:
    """A branch is behind the policy's Landlock rules: it may still read, write and start what the policy shows."""
    code = (
        LOOK
        + f"""
import subprocess
os.symlink("/etc", {str(workspace)!r} + "/link")
def files():
    open({str(workspace)!r} + "/made", "w").close()
    made = 13 if os.path.islink("/var/tmp") else tries(lambda: os.mkfifo("/var/tmp/fifo"))  # it may lead to /tmp
    return [subprocess.run(["true"]).returncode, made, len(os.listdir("/etc")) > 3]
result = branch(files)
"""
    )
    assert run(Policy.workspace(workspace, landlock=True), code) == [0, 13, True]


def test_nested(workspace: Path) -> None:
    """Under nested=True a branch may make namespaces of its own, as a command may."""
    code = """
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    result = branch(lambda: libc.unshare(0x10000000 | 0x00020000))
    """
    assert run(Policy.workspace(workspace, nested=True), code) == 0


@pytest.mark.parametrize(
    "policy",
    [lambda _: Policy.host(), lambda path: Policy.workspace(path, network="host", nested=True)],
    ids=["host", "nested"],
)
def test_other_policies(policy: Any, workspace: Path) -> None:
    """Branches of other policies have a pid namespace and no power over the interpreter's either."""
    code = LOOK + "result = branch(lambda: [os.getpid(), processes(), status()['NoNewPrivs']])"
    assert run(policy(workspace), code) == [2, [1, 2], "1"]


# ---- the end


def test_descendants_end_with_it(policy: Policy) -> None:
    """When a branch ends, so does what it has started, and pid 1 says when all is gone, and what it has used."""
    code = """
    import struct
    read, write = os.pipe()
    def leave():
        for _ in range(20):
            if os.fork() == 0:
                os.setsid()
                while True:
                    __import__("signal").pause()
        return 1
    held = Running(driver, leave)
    os.close(write)
    held.wait()
    said = struct.unpack("=Qqqq", held.last)
    result = [os.read(read, 1) == b"", said[0], said[3] > 0]
    """
    assert run(policy, code) == [True, 2, True]


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_branches_end_with_the_interpreter(policy: Policy, how: str) -> None:
    """When the interpreter ends, whatever the reason, no branch goes on."""
    code = f"""
    import signal, sys
    held = [Running(driver, signal.pause) for _ in range(3)]
    print("ready", flush=True)
    if {how!r} == "kill":
        os.kill(os.getpid(), 9)
    os._exit(3)
    """
    with interpreter(policy, code) as process:
        output, _ = process.communicate(timeout=60)
    assert output == "ready\n"
    assert process.returncode == (3 if how == "exit" else 247)


def test_end_by_its_init(policy: Policy) -> None:
    """The init obeys the signals by which the caller ends a sandbox."""
    code = """
    import signal
    held = Running(driver, signal.pause)
    signal.pidfd_send_signal(held.b.init_pidfd, 16)
    held.wait()
    result = os.WTERMSIG(held.status)
    """
    assert run(policy, code) == 9


def test_many_at_once(policy: Policy) -> None:
    """Two hundred branches live at the same time, each for itself."""
    code = """
    import resource
    read, write = os.pipe()
    before = branch(lambda: len(os.listdir("/tmp")))
    def live(i):
        open("/tmp/mine", "x").close()
        os.read(read, 1)
        return [i, os.getpid(), len(os.listdir("/tmp")) - before]
    held = [Running(driver, lambda i=i: live(i)) for i in range(200)]
    os.write(write, b"x" * 200)
    result = [one.wait()["value"] for one in held]
    """
    assert run(policy, code) == [[i, 2, 1] for i in range(200)]


def interpreters() -> list[str]:
    """Return programs of CPython 3.9 to 3.13, as far as this machine has them, one of each."""
    found = {f"{sys.version_info[1]}": sys.executable}
    for pattern in ("/usr/bin/python3.*", "/usr/local/bin/python3.*", "~/.pyenv/versions/*/bin/python3.*"):
        for path in sorted(glob.glob(os.path.expanduser(pattern))):
            minor = path.rpartition(".")[2]
            if minor.isdigit() and int(minor) >= 9:
                found.setdefault(minor, path)
    return list(found.values())


@pytest.mark.parametrize("python", interpreters())
def test_other_interpreters(workspace: Path, python: str) -> None:
    """The library needs no C library, so any CPython loads it."""
    prefix = Path(os.path.realpath(python)).parents[1]
    policy = Policy.workspace(workspace, read=[] if str(prefix) == "/usr" else [prefix])
    code = "import sys; result = branch(lambda: [os.getpid(), sys.version_info[1]])"
    minor = sys.version_info[1] if python == sys.executable else int(python.rpartition(".")[2])
    assert run(policy, code, python=[python]) == [2, minor]
