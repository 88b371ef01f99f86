"""Root file systems: what build() makes of this machine, and that commands in one reach nothing else.

What a command must not reach is tried by a real command, with a control that reaches it where the protection is missing.
"""

from __future__ import annotations

import errno
import os
import pwd
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing.roots import PYTHON, TOOLS, py, sh, stdlib
from nsbox_testing.trees import taken

import nsbox
from nsbox import Bind, Details, Policy, PolicyError, Sandbox, Tmpfs, rootfs
from nsbox._backends import compile_policy

pytest.importorskip("elftools")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A root with a few tools and Python, which no test changes."""
    path = tmp_path_factory.mktemp("root") / "base"
    return rootfs.build(path, [*TOOLS, PYTHON], files=stdlib(), mount_points=["/usr/local/node"])


@pytest.fixture
def small(tmp_path: Path) -> str:
    """A root with a shell, for the test alone."""
    return rootfs.build(tmp_path / "small", ["sh", "cat"])


@pytest.fixture
def policy(root: str, workspace: Path) -> Policy:
    return rootfs.policy(root, workspace=workspace)


@contextmanager
def serving(family: int, address: Any) -> Iterator[Any]:
    """A server that answers each connection with what was sent, in capitals."""
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.bind(address)
        server.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, suppress(OSError):  # who only connects is gone by then
                    connection.sendall(connection.recv(100).upper())

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


# ---- what a command sees


@pytest.mark.vm
def test_users_of_the_host(small: str, workspace: Path) -> None:
    """/etc/passwd is the sandbox's own; control: this machine's names its users."""
    policy = rootfs.policy(small, workspace=workspace)
    others = {user.pw_name for user in pwd.getpwall()} - {"root", "nobody", "sandbox"}
    seen = sh(policy, "cat /etc/passwd")
    assert [line.split(":")[0] for line in seen.splitlines()] == ["root", "sandbox", "nobody"]
    if others:
        assert any(name in sh(None, "cat /etc/passwd") for name in others)


def test_files_of_the_host(policy: Policy, tmp_path: Path) -> None:
    """A file of the host isn't there, by no path; control: it can be read outside."""
    secret = tmp_path / "secret"
    secret.write_text("SECRET")
    script = f"cat {secret}; cat /workspace/../secret; cat /proc/self/root{secret}; cat /proc/1/root{secret}; ls {Path.home()}"
    assert "SECRET" in sh(None, script)
    assert "SECRET" not in sh(policy, script)
    assert sorted(set(sh(policy, "ls -A /").split()) - {"bin", "sbin", "lib", "lib32", "lib64", "libx32"}) == [
        *(".nsbox-rootfs.json", "agent", "dev", "etc", "proc", "root", "run", "tmp", "usr", "var", "workspace")
    ]


def test_processes_of_the_host(policy: Policy) -> None:
    """Only pid 1 and the command's own processes are seen; control: outside this process is."""
    if "ps" in TOOLS:
        assert len(sh(policy, "ps aux").splitlines()) < 5
        assert len(sh(None, "ps -e").splitlines()) > 2
    list_them = "report([int(name) for name in os.listdir('/proc') if name.isdigit()])"
    assert py(policy, list_them) == [1, 2]
    assert os.getpid() in py(None, list_them)


def test_network(policy: Policy, root: str, workspace: Path) -> None:
    """A server of this machine isn't reached, and there is only lo; controls: outside, and with the host's network."""
    code = "report([attempt(reach, socket.AF_INET, ('127.0.0.1', int(sys.argv[1]))), [n for _, n in socket.if_nameindex()]])"
    with serving(socket.AF_INET, ("127.0.0.1", 0)) as (_, port):
        assert py(policy, code, str(port)) == [errno.ECONNREFUSED, ["lo"]]
        assert py(policy, "report(attempt(reach, socket.AF_INET, ('192.0.2.1', 80)))") == errno.ENETUNREACH
        assert py(None, code, str(port))[0] == 0
        assert py(rootfs.policy(root, workspace=workspace, network="host"), code, str(port))[0] == 0


def test_name_servers(root: str, workspace: Path) -> None:
    """With the host's network its resolv.conf is seen, otherwise the root's own; /dev/null is what it was."""
    script = "cat /etc/resolv.conf; echo x > /dev/null && echo fine"
    host = rootfs.policy(root, workspace=workspace, network="host")
    if os.path.isfile("/etc/resolv.conf"):
        assert sh(host, script) == Path("/etc/resolv.conf").read_text() + "fine\n"
    assert sh(rootfs.policy(root, workspace=workspace), script).startswith("# Without a network")


def test_abstract_sockets(root: str, workspace: Path) -> None:
    """Without network abstract unix sockets aren't reached, with it by Landlock's scopes; control: without these."""
    host = rootfs.policy(root, workspace=workspace, network="host")
    code = "report(attempt(reach, socket.AF_UNIX, '\\0' + sys.argv[1]))"
    name = f"nsbox-test-{os.getpid()}"
    with serving(socket.AF_UNIX, f"\0{name}"):
        assert py(None, code, name) == 0
        assert py(rootfs.policy(root, workspace=workspace), code, name) == errno.ECONNREFUSED
        assert py(rootfs.policy(root, workspace=workspace, network="host", landlock=False), code, name) == 0
        if nsbox.probe().landlock_abi >= 6:
            assert py(host, code, name) == errno.EPERM


def test_landlock_is_demanded_if_wished_for(root: str, workspace: Path) -> None:
    """With the host's network a kernel without Landlock is accepted, and each value says so; by landlock=True it isn't."""
    old = replace(nsbox.probe(), landlock_abi=0)
    policy = rootfs.policy(root, workspace=workspace, network="host")
    assert policy.degrade == {"landlock"}
    plan = compile_policy(policy, old)
    assert plan.lost == {"landlock"} and any(line.startswith("landlock: ") for line in plan.not_enforced)
    with pytest.raises(nsbox.UnavailableError, match="landlock: "):
        compile_policy(rootfs.policy(root, workspace=workspace, network="host", landlock=True), old)
    assert not rootfs.policy(root, workspace=workspace).degrade


def test_other_sandboxes(root: str, tmp_path: Path) -> None:
    """Two at once: neither sees the other's workspace, /tmp or processes; control: both workspaces seen from outside."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    (one / "file").write_text("ONE")
    first = rootfs.policy(root, workspace=one)
    command = ["/bin/sh", "-c", "echo ONE > /tmp/file; echo ready; read line; cat file"]
    with nsbox.Popen(command, policy=first, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        script = f"cat {one}/file /tmp/file /workspace/../one/file /proc/*/root/tmp/file /proc/*/cwd/file; ls /proc"
        seen = sh(rootfs.policy(root, workspace=two), script)
        assert "ONE" not in seen and str(process.pid) not in seen.split()
        assert "ONE" in sh(None, f"cat {one}/file")
        process.stdin.write("\n")
        process.stdin.close()
        assert process.stdout.read() == "ONE"


def test_environment(policy: Policy, root: str, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the caller's environment is there; what is asked for is; control: a plain child has it."""
    for name in ("SUPER_SECRET", "USER", "TERM", "LANG"):
        monkeypatch.setenv(name, "should-not-leak")
    assert "SUPER_SECRET=should-not-leak" in sh(None, "env")
    assert set(sh(policy, "env").splitlines()) == {
        "PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
        *("HOME=/workspace", "PWD=/workspace", "TMPDIR=/tmp", "USER=sandbox", "LANG=C.UTF-8", "TERM=dumb"),
    }
    assert "should-not-leak" not in sh(policy, "cat /proc/*/environ")
    chosen = rootfs.policy(root, workspace=workspace, env={"KEY": "value", "LANG": "C"})
    assert {"KEY=value", "LANG=C"} <= {*sh(chosen, "env").splitlines()}
    passed = rootfs.policy(root, workspace=workspace, pass_env=["TERM"])
    assert "TERM=should-not-leak" in sh(passed, "env")


def test_who_the_command_is(policy: Policy, root: str, workspace: Path) -> None:
    """User 1000, "sandbox", in its workspace, on a host of its own name; what it writes belongs to the caller."""
    who = "id -un; id -u; id -g; pwd; echo x > made; cat /proc/sys/kernel/hostname"
    assert sh(policy, who).split() == ["sandbox", "1000", "1000", "/workspace", "sandbox"]
    assert (workspace / "made").stat().st_uid == os.geteuid()
    other = rootfs.policy(root, workspace=workspace, uid=0, gid=0, hostname="other")
    assert sh(other, who).split() == ["root", "0", "0", "/workspace", "other"]


# ---- what it can write to

WRITABLE = """
found = []
for directory, names, _ in os.walk("/"):
    names[:] = [name for name in names if directory != "/proc" or not name.isdigit()]
    path = os.path.join(directory, "nsbox-test")
    if attempt(lambda: os.close(os.open(path, os.O_CREAT | os.O_WRONLY))) == 0:
        os.unlink(path)
        found.append(directory)
report(sorted(found))
"""


@pytest.mark.parametrize("uid", [0, 1000])
def test_where_it_can_write(root: str, workspace: Path, tmp_path: Path, uid: int) -> None:
    """Of all directories there are: /workspace, /tmp, /dev/shm; control: with a writable bind, all of the root."""
    agent = tmp_path / "agent"
    agent.mkdir()
    made = rootfs.policy(root, workspace=workspace, agent=agent, uid=uid, gid=uid)
    assert py(made, WRITABLE) == ["/dev/shm", "/tmp", "/workspace"]
    before = taken(Path(root))
    control = made.with_(ops=tuple(Bind(op.src, "/") if op == made.ops[0] else op for op in made.ops))  # type: ignore[attr-defined]
    found = py(control, WRITABLE)
    assert {"/", "/usr", "/etc"} <= {*found} and not {"/agent", "/dev", "/run"} & {*found}
    assert taken(Path(root)) == before


def test_files_are_not_changed(policy: Policy, root: str) -> None:
    """Files of the root, by contents, mode or name, and settings of the kernel; nothing of the root has changed."""
    before = taken(Path(root))
    code = """
attempts = [attempt(os.chmod, p, 0o777) for p in ("/bin/sh", "/etc/passwd", "/")]
attempts += [attempt(open, p, "a") for p in ("/etc/passwd", "/usr/bin/env")]
attempts += [attempt(os.rename, "/usr", "/x"), attempt(os.unlink, "/etc/passwd"), attempt(os.utime, "/etc/passwd")]
report([sorted(set(attempts)), attempt(open, "/proc/sys/kernel/hostname", "w")])
"""
    found, setting = py(policy, code)
    assert set(found) <= {errno.EROFS, errno.EACCES} and setting in (errno.EROFS, errno.EACCES)
    assert taken(Path(root)) == before


def test_size_of_tmp(root: str, workspace: Path) -> None:
    """tmp_size bounds /tmp and /dev/shm; control: without it more goes in."""
    code = "report([attempt(lambda: open(f'{d}/big', 'wb').write(bytes(4 << 20))) for d in ('/tmp', '/dev/shm')])"
    assert py(rootfs.policy(root, workspace=workspace, tmp_size="1M"), code) == [errno.ENOSPC] * 2
    assert py(rootfs.policy(root, workspace=workspace), code) == [0, 0]


def test_agent_and_runtime(root: str, workspace: Path, tmp_path: Path) -> None:
    """Both are there, can't be changed, and a runtime's programs come first; control: the workspace's files can be."""
    agent, node = tmp_path / "agent", tmp_path / "node"
    agent.mkdir()
    (node / "bin").mkdir(parents=True)
    (agent / "CLAUDE.md").write_text("be kind\n")
    (node / "bin" / "env").write_text("#!/bin/sh\necho of the runtime\n")
    (node / "bin" / "env").chmod(0o755)
    made = rootfs.policy(root, workspace=workspace, agent=agent, runtime={"/usr/local/node": node})
    script = "cat /agent/CLAUDE.md; env; for d in /agent /usr/local/node/bin /workspace; do echo x > $d/made; done"
    done = nsbox.run(["sh", "-c", script], policy=made, stdout=-1, stderr=subprocess.STDOUT, text=True)
    assert done.stdout.splitlines()[:2] == ["be kind", "of the runtime"]
    assert done.stdout.count("Read-only file system") == 2
    assert [path.exists() for path in (agent / "made", node / "bin/made", workspace / "made")] == [False, False, True]


# ---- ways out


def test_bridge(root: str, workspace: Path, tmp_path: Path) -> None:
    """The socket answers, and it can't be changed; others of this machine aren't there, nor this one unless asked for."""
    code = """
def ask():
    with socket.socket(socket.AF_UNIX) as s:
        s.connect("/run/bridge.sock")
        s.sendall(b"hello")
        return s.recv(100).decode()
report([ask(), attempt(os.chmod, "/run/bridge.sock", 0o777), attempt(os.unlink, "/run/bridge.sock"),
        os.listdir("/run"), attempt(reach, socket.AF_UNIX, sys.argv[1])])
"""
    own, other = str(tmp_path / "bridge"), str(tmp_path / "other")
    with serving(socket.AF_UNIX, own), serving(socket.AF_UNIX, other):
        mode = os.stat(own).st_mode
        made = rootfs.policy(root, workspace=workspace, bridge=own)
        answer, *refused, there, elsewhere = py(made, code, other)
        assert answer == "HELLO" and there == ["bridge.sock"] and elsewhere == errno.ENOENT
        assert set(refused) <= {errno.EROFS, errno.EBUSY} and os.stat(own).st_mode == mode
        without = rootfs.policy(root, workspace=workspace)
        missing = "report(attempt(reach, socket.AF_UNIX, '/run/bridge.sock'))"
        assert py(without, missing) == errno.ENOENT
        assert py(None, "report(attempt(reach, socket.AF_UNIX, sys.argv[1]))", other) == 0


def test_signals(root: str, tmp_path: Path) -> None:
    """kill(-1), and the pid that another sandbox has outside, hit nobody there; control: outside the pid is known."""
    works = [tmp_path / "one", tmp_path / "two"]
    for work in works:
        work.mkdir()
    first, second = (rootfs.policy(root, workspace=work) for work in works)
    with nsbox.Popen(["cat"], policy=first, stdin=-1, stdout=-1) as process:
        code = "report([attempt(os.kill, int(pid), int(number)) for pid in sys.argv[2:] for number in [sys.argv[1]]])"
        pids = [str(process.pid), str(os.getpid())]
        assert py(None, code, "0", *pids) == [0, 0]
        assert py(second, code, "9", *pids) == [errno.ESRCH] * 2
        killer = [PYTHON, "-I", "-S", "-c", "import os; os.kill(-1, 9)"]
        nsbox.run(killer, policy=second, stderr=nsbox.DEVNULL)
        assert process.communicate(b"still here")[0] == b"still here"
        assert process.returncode == 0


MOUNTS = """
call = lambda name, *a: (ctypes.get_errno() if getattr(libc, name)(*a) < 0 else 0)
report([call("mount", b"none", b"/tmp", b"tmpfs", 0, None), call("umount2", b"/proc/keys", 2),
        call("umount2", b"/tmp", 2), call("mount", None, b"/", None, ctypes.c_ulong(32 | 4096), None),
        call("chroot", b"/tmp"), call("unshare", 0x10000000)])
"""


@pytest.mark.parametrize("uid", [0, 1000])
@pytest.mark.parametrize("seccomp", ["default", "off"])
def test_mounts(root: str, workspace: Path, seccomp: Any, uid: int) -> None:
    """Nothing can be mounted, unmounted or made writable, with or without the filter; control: with a capability."""
    made = rootfs.policy(root, workspace=workspace, seccomp=seccomp, uid=uid, gid=uid)
    found = py(made, MOUNTS)
    assert set(found[:5]) <= {errno.EPERM, errno.EINVAL, errno.ENOSYS}, found
    assert seccomp == "off" or found[5] in (errno.EPERM, errno.ENOSYS)
    if seccomp == "off":
        control = made.with_(details=Details(capabilities=("CAP_SYS_ADMIN",)), ops=(*made.ops, Tmpfs("/tmp")))
        assert py(control, MOUNTS)[0] == 0


def test_secrets_of_proc(policy: Policy, root: str, workspace: Path) -> None:
    """What procfs says of the machine, keys and pid 1's niceness are hidden, for uid 0 as well."""
    code = """
names = ("kcore", "keys", "key-users", "timer_list", "slabinfo", "sysrq-trigger")
report([n for n in names if os.path.exists("/proc/" + n) and 0 == attempt(lambda: open("/proc/" + n, "rb").read(1))])
"""
    for made in (policy, rootfs.policy(root, workspace=workspace, uid=0, gid=0)):
        assert py(made, code) == []
    assert py(
        policy, "report([attempt(open, '/proc/1/autogroup', 'w'), attempt(open, '/proc/sysrq-trigger', 'w')])"
    ) in (
        [[a, b] for a in (errno.EACCES, errno.EROFS, errno.ENOENT) for b in (errno.EACCES, errno.EROFS, errno.ENOENT)]
    )
    shown = policy.with_(ops=tuple(op for op in policy.ops if getattr(op, "dest", "") != "/proc/keys"))
    if os.path.exists("/proc/keys"):
        assert py(shown, "report(attempt(open, '/proc/keys'))") == 0


@pytest.mark.as_root("only uid 0 owns device nodes")
def test_device_nodes(root: str, workspace: Path) -> None:
    """The host's device nodes work, and their modes can't be changed."""
    code = "report([attempt(os.chmod, f'/dev/{n}', 0o600) for n in ('null', 'zero')] + [len(open('/dev/zero', 'rb').read(3))])"
    before = os.stat("/dev/null").st_mode
    assert py(rootfs.policy(root, workspace=workspace, uid=0, gid=0), code) == [errno.EROFS, errno.EROFS, 3]
    assert os.stat("/dev/null").st_mode == before


def test_what_was_noted_is_hidden(policy: Policy) -> None:
    """The manifest, with paths of the host, can't be read inside."""
    assert py(policy, "report(attempt(open, '/.nsbox-rootfs.json'))") == errno.EACCES


def test_a_workspace_that_has_become_a_link(root: str, tmp_path: Path) -> None:
    """A link that replaces the workspace isn't followed."""
    work, other = tmp_path / "work", tmp_path / "other"
    work.mkdir()
    other.mkdir()
    made = rootfs.policy(root, workspace=work)
    assert sh(made, "echo fine") == "fine\n"
    work.rmdir()
    work.symlink_to(other)
    with pytest.raises(OSError):
        nsbox.run(["/bin/sh", "-c", "echo > planted"], policy=made)
    assert list(other.iterdir()) == []


# ---- policies


def test_many_commands(policy: Policy) -> None:
    """A Sandbox keeps it: the next command is started from what is kept, with a /tmp of its own."""
    with Sandbox(policy) as box:
        for _ in range(3):
            process = box.Popen(["/bin/sh", "-c", "ls /tmp /dev/shm; echo x > /tmp/x; echo x > /dev/shm/x"], stdout=-1)
            assert process.communicate()[0].split() == [b"/dev/shm:", b"/tmp:"]
            assert process.sandbox is not None and process.sandbox.is_warm, box.why_cold


def test_session(policy: Policy) -> None:
    """Commands of a session share the /tmp."""
    with Sandbox(policy) as box, box.session() as session:
        session.run(["/bin/sh", "-c", "echo kept > /tmp/file"], check=True)
        assert session.check_output(["cat", "/tmp/file"]) == b"kept\n"


def test_wishes(root: str, workspace: Path) -> None:
    """Wishes of any policy are taken; core dumps are off unless asked for, as in a workspace."""
    made = rootfs.policy(
        root, workspace=workspace, limits=nsbox.Limits(open_files=20), pass_env=["X"], kill_on_exit=True
    )
    code = "import resource; report([resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_CORE)])"
    assert py(made, code) == [[20, 20], [1, 1]]  # at which the kernel dumps nothing
    assert (made.seccomp, made.network, made.new_session, made.inherit_env) == ("default", "none", True, False)
    assert rootfs.policy(root, workspace=workspace, limits=nsbox.Limits(core_size=5)).limits.core_size == 5


def test_bad_policies(small: str, workspace: Path, tmp_path: Path) -> None:
    """Each argument that makes no sense is named, with what is wrong with it."""
    inner = workspace / "inner"
    inner.mkdir()
    (tmp_path / "file").write_text("")
    cases: list[tuple[str, str, dict[str, Any]]] = [
        ("dest", "No such file", {"dest": tmp_path / "none"}),
        ("dest", "/proc can't be mounted: .*build", {"dest": tmp_path}),
        ("dest", "whole file system", {"dest": "/"}),
        ("workspace", "No such file", {"workspace": tmp_path / "none"}),
        ("workspace", "is no directory", {"workspace": tmp_path / "file"}),
        ("workspace", "contains .*small", {"workspace": tmp_path}),
        ("workspace", "contains .*agent and runtime", {"agent": inner}),
        ("workspace", "contains .*agent and runtime", {"runtime": {"/opt": inner}, "dest": small}),
        ("workspace", "running Python", {"workspace": sys.prefix}),
        ("bridge", "is no unix socket", {"bridge": tmp_path / "file"}),
        ("runtime", r"mount_points=\['/opt/x'\]", {"runtime": {"/opt/x": tmp_path}}),
        ("runtime", "lies in /workspace", {"runtime": {"/workspace/x": tmp_path}}),
        ("runtime", "lies in /proc", {"runtime": {"/proc/x": tmp_path}}),
        ("runtime", "relative", {"runtime": {"x": tmp_path}}),
        ("network", "restricted", {"network": "restricted"}),
        ("nested", "doesn't go", {"nested": True}),
        ("unshare", "can't be chosen", {"unshare": ["ipc"]}),
        ("tmp_size", "isn't a size", {"tmp_size": "much"}),
        ("env", "is a str", {"env": "A=B"}),
        ("uid", "isn't an id", {"uid": -1}),
        ("nonsense", "is unknown", {"nonsense": 1}),
    ]
    for field, message, given in cases:
        arguments = {"dest": small, "workspace": workspace} | given
        with pytest.raises(PolicyError, match=message) as caught:
            rootfs.policy(arguments.pop("dest"), **arguments)
        assert caught.value.field == field, given


def test_a_mount_point_behind_a_link(small: str, workspace: Path, tmp_path: Path) -> None:
    """A runtime's path has to be the real one."""
    if not os.path.islink("/lib"):
        pytest.skip("this machine's /lib is no link")
    with pytest.raises(PolicyError, match="a link: name the path that it leads to"):
        rootfs.policy(small, workspace=workspace, runtime={"/lib": tmp_path / "small"})


def test_programs_work(policy: Policy) -> None:
    """Each program starts, finds its libraries, and Python its compiled modules."""
    assert sh(policy, "ls /workspace; id -u; env true").startswith("1000")
    assert py(policy, "import hashlib, zlib, select; report(hashlib.sha256(b'').hexdigest()[:4])") == "e3b0"
