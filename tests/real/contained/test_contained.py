"""Containment as seen from inside: namespaces, identity, privileges, limits, environment, terminal."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing import warm
from nsbox_testing.running import python

import nsbox
from nsbox import Policy

STATUS = "status = dict(line.rstrip('\\n').split(':\\t', 1) for line in open('/proc/self/status') if ':\\t' in line)\n"
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")


# ---- namespaces and processes


def namespaces(inside: Callable[..., Any], policy: Policy) -> set[str]:
    """Return the names of the namespaces that a command doesn't share with us."""
    found = inside("report({n: os.readlink('/proc/self/ns/' + n) for n in os.listdir('/proc/self/ns')})", policy=policy)
    return {name for name in NAMESPACES if found[name] != os.readlink(f"/proc/self/ns/{name}")}


def test_workspace_namespaces(inside: Callable[..., Any], policy: Policy) -> None:
    """A workspace has all namespaces of its own."""
    assert namespaces(inside, policy) == set(NAMESPACES)
    assert namespaces(inside, policy.with_(network="host")) == set(NAMESPACES) - {"net"}


def test_host_namespaces(inside: Callable[..., Any]) -> None:
    """A host policy has only those without which nothing could be contained."""
    assert namespaces(inside, Policy.host()) == {"user", "mnt", "pid"}


def test_time_namespace(inside: Callable[..., Any], policy: Policy) -> None:
    """unshare may name the time namespace."""
    wanted = policy.with_(unshare=policy.unshare | {"time"})
    there = inside("report(os.readlink('/proc/self/ns/time'))", policy=wanted)
    assert there != os.readlink("/proc/self/ns/time")


@pytest.mark.parametrize("kind", ["workspace", "host"])
def test_two_processes_only(inside: Callable[..., Any], policy: Policy, kind: str) -> None:
    """The command is pid 2; pid 1 is nsbox-init; there is nobody else, and no parent."""
    code = """
pids = sorted(int(n) for n in os.listdir("/proc") if n.isdigit())
report([pids, os.getpid(), os.getppid(), open("/proc/1/comm").read(), open("/proc/1/cmdline").read()])
"""
    chosen = policy if kind == "workspace" else Policy.host()
    assert inside(code, policy=chosen) == [[1, 2], 2, 0, "nsbox-init\n", "nsbox-init\0"]


def test_init_pid_is_told(policy: Policy) -> None:
    """sandbox.init_pid is pid 1 of the sandbox as this process numbers it, and no child of ours."""
    with nsbox.Popen(["cat"], stdin=subprocess.PIPE, policy=policy) as p:
        status = ""
        while "Name:\tnsbox-init\n" not in status:  # its exec gives it the name some microseconds after its own memory
            status = Path(f"/proc/{p.sandbox.init_pid}/status").read_text()
        assert f"NSpid:\t{p.sandbox.init_pid}\t1\n" in status
        assert f"PPid:\t{os.getpid()}\n" not in status


# ---- privileges


@pytest.mark.parametrize("kind", ["workspace", "host", "uid 0", "uid 1234", "network host"])
def test_no_privileges(inside: Callable[..., Any], policy: Policy, kind: str) -> None:
    """Every capability set is empty, the bounding set too, and no new privileges can be had; whatever the uid.

    Except for CAP_SETFCAP of uid 0 under Policy.host(), by which it can make sandboxes.
    """
    chosen = {
        "workspace": policy,
        "host": Policy.host(),
        "uid 0": policy.with_(uid=0, gid=0),
        "uid 1234": policy.with_(uid=1234, gid=1234),
        "network host": policy.with_(network="host"),
    }[kind]
    status = inside(STATUS + "report(status)", policy=chosen)
    one = f"{1 << 31:016x}" if kind == "host" and os.geteuid() == 0 else "0" * 16
    sets = [status[f"Cap{name}"] for name in ("Inh", "Amb", "Prm", "Eff", "Bnd")]
    assert sets == ["0" * 16] * 2 + [one] * 3
    assert status["NoNewPrivs"] == "1"


def test_no_privileges_by_exec(inside: Callable[..., Any], policy: Policy) -> None:
    """A program executed by uid 0 of the sandbox has none either, nor has one that is setuid."""
    code = """
import subprocess
def caps(*command):
    out = subprocess.run([*command, "cat", "/proc/self/status"], stdout=subprocess.PIPE, text=True).stdout
    return sorted(line.split()[1] for line in out.splitlines() if line.startswith("Cap"))
report([caps(), caps("sh", "-c", 'exec "$@"', "sh")])
"""
    assert inside(code, policy=policy.with_(uid=0, gid=0)) == [["0" * 16] * 5] * 2


def test_setuid_programs_give_nothing(inside: Callable[..., Any], policy: Policy, workspace: Path) -> None:
    """A setuid program in the workspace runs with the caller's id: the mount is nosuid."""
    tool = workspace / "id"
    tool.write_bytes(Path("/usr/bin/id").read_bytes())
    tool.chmod(0o6755)
    code = "import subprocess; report(subprocess.run(['./id', '-u'], stdout=subprocess.PIPE, text=True).stdout.strip())"
    assert inside(code, policy=policy.with_(uid=1234, gid=1234)) == "1234"
    mounts = inside("report(open('/proc/self/mountinfo').read())").splitlines()
    assert all("nosuid" in line.split()[5] for line in mounts)


def test_same_inside_a_nested_user_namespace(inside: Callable[..., Any], policy: Policy) -> None:
    """A user namespace made inside gives capabilities there only; no_new_privs stays. (Uid 0 without CAP_SETFCAP can make none.)"""
    code = STATUS + "report([status['CapBnd'] != '0' * 16, status['NoNewPrivs']])"
    done = nsbox.run(
        ["unshare", "-Ur", *python("import json\ndef report(x): print(json.dumps(x))\n" + code)],
        policy=policy.with_(uid=1234, gid=1234, nested=True),
        capture_output=True,
        text=True,
    )
    assert done.stdout == '[true, "1"]\n', done.stderr


# ---- who the command is


def test_ids_by_default(inside: Callable[..., Any], policy: Policy) -> None:
    """By default the command has the caller's ids, and no groups that it could use."""
    assert inside("report([os.getresuid(), os.getresgid()])") == [[os.geteuid()] * 3, [os.getegid()] * 3]


@pytest.mark.parametrize("wish", [(0, 0), (1234, 4321), (2**32 - 2, 0), (0, 5)])
def test_wished_ids(inside: Callable[..., Any], policy: Policy, workspace: Path, wish: tuple[int, int]) -> None:
    """uid= and gid= are what the command sees of itself and its files; on the host the files are the caller's."""
    uid, gid = wish
    code = """
open("made", "w").close()
st = os.stat("made")
report([os.getresuid(), os.getresgid(), st.st_uid, st.st_gid, os.stat("/tmp").st_uid, os.stat(".").st_uid])
"""
    assert inside(code, policy=policy.with_(uid=uid, gid=gid)) == [[uid] * 3, [gid] * 3, uid, gid, uid, uid]
    assert (workspace / "made").stat().st_uid == os.geteuid()
    assert (workspace / "made").stat().st_gid == os.getegid()


def test_id_maps(inside: Callable[..., Any], policy: Policy) -> None:
    """A single id is mapped and setgroups is off: no other user of the host can be impersonated."""
    code = "report([open('/proc/self/' + n).read().split() for n in ('uid_map', 'gid_map', 'setgroups')])"
    uid_map, gid_map, setgroups = inside(code, policy=policy.with_(uid=7, gid=8))
    assert (uid_map[0], uid_map[2], gid_map[0], gid_map[2]) == ("7", "1", "8", "1")
    assert setgroups == ["deny"]


@pytest.mark.as_root("maps of more than one id need CAP_SETUID")
def test_full_ids(inside: Callable[..., Any], policy: Policy) -> None:
    """ids="full": all ids of the caller's namespace are mapped; no capability comes with that."""
    code = (
        STATUS
        + "report([open('/proc/self/uid_map').read().split()[2], os.stat('/etc/passwd').st_uid, status['CapBnd'], os.getuid()])"
    )
    assert inside(code, policy=policy.with_(ids="full")) == ["4294967295", 0, "0" * 16, 0]
    assert inside(code, policy=policy.with_(ids="full", uid=0, gid=0)) == ["4294967295", 0, "0" * 16, 0]
    done = nsbox.run(["id", "-u"], policy=Policy.host(uid=1234, gid=99), cwd="/", stdout=subprocess.PIPE)
    assert done.stdout == b"1234\n"


@pytest.mark.as_user("root may")
def test_full_ids_refused(policy: Policy) -> None:
    """ids="full" without the capabilities for it is UnavailableError with a remedy."""
    host = nsbox.probe()
    if host.map_programs and host.subuids and host.subgids:
        pytest.skip("this user has subordinate ids; test_full_ids.py shows what it gets")
    with pytest.raises(nsbox.UnavailableError, match="ids='full'") as caught:
        nsbox.run(["true"], policy=policy.with_(ids="full"))
    assert caught.value.reasons[0].remedy


def test_hostname(inside: Callable[..., Any], policy: Policy) -> None:
    """hostname= is the sandbox's; the host's stays."""
    before = os.uname().nodename
    assert inside("report(os.uname().nodename)", policy=policy.with_(hostname="box-7")) == "box-7"
    assert inside("report(os.uname().nodename)") == before
    assert os.uname().nodename == before


# ---- network


def test_no_network_but_loopback(inside: Callable[..., Any], policy: Policy) -> None:
    """There is one interface, lo, and no route to anywhere."""
    code = """
import socket
def attempt(family, address):
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        try: s.connect(address)
        except OSError as e: return e.errno
        return 0
lines = open("/proc/net/dev").read().splitlines()[2:]
report([[line.split(":")[0].strip() for line in lines], attempt(socket.AF_INET, ("192.0.2.1", 9))])
"""
    interfaces, error = inside(code)
    assert "lo" in interfaces
    assert all(
        name == "lo" or name.endswith("0") for name in interfaces
    )  # some kernels add tunl0, sit0 to each namespace
    assert error == 101  # ENETUNREACH


def test_loopback_works(inside: Callable[..., Any]) -> None:
    """127.0.0.1 can be bound and connected to."""
    code = """
import socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
other, _ = server.accept()
client.sendall(b"ping")
report(other.recv(4).decode())
"""
    assert inside(code) == "ping"


def test_loopback_is_not_the_hosts(inside: Callable[..., Any], policy: Policy) -> None:
    """A service on the host's 127.0.0.1, or an abstract socket of the host, can't be reached; with network="host" the service can."""
    import socket

    name = f"\0nsbox-test-{os.getpid()}"
    code = f"""
import socket
def attempt(family, address):
    with socket.socket(family) as s:
        try: s.connect(address)
        except OSError as e: return e.errno
        return 0
report([attempt(socket.AF_INET, ("127.0.0.1", int(sys.argv[1]))), attempt(socket.AF_UNIX, {name!r})])
"""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(name)
        abstract.listen()
        port = str(server.getsockname()[1])
        assert inside(code, port) == [111, 111]  # ECONNREFUSED
        scoped = nsbox.probe().landlock_abi >= 6  # else they can be reached
        assert inside(code, port, policy=policy.with_(network="host")) == [0, 1 if scoped else 0]


# ---- session and terminal


def test_new_session(inside: Callable[..., Any], policy: Policy) -> None:
    """The command leads a session of its own by default; not if the policy says so."""
    code = "report([os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()])"
    assert inside(code) == [True, True]
    assert inside(code, policy=policy.with_(new_session=False)) == [False, False]


TERMINAL = """
import fcntl, termios
def attempt(f):
    try: f()
    except OSError as e: return e.errno
    return 0
report([attempt(lambda: os.open("/dev/tty", os.O_RDWR)), attempt(lambda: fcntl.ioctl(0, termios.TIOCSTI, b"x")),
        attempt(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)), os.isatty(0)])
"""


def test_no_terminal(policy: Policy) -> None:
    """A command on the caller's terminal can't open it as its own, nor put input into it (CVE-2017-5226)."""
    prelude = "import json, os\ndef report(x): os.write(1, json.dumps(x).encode())\n"
    read, write = os.pipe()
    pid, terminal = pty.fork()
    if pid == 0:  # this process has a controlling terminal, on 0 to 2
        try:
            nsbox.run(python(prelude + TERMINAL), policy=policy, stdout=write)
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as file:
        answer = file.read()
    os.waitpid(pid, 0)
    os.close(terminal)
    opened, injected, adopted, is_terminal = __import__("json").loads(answer)
    assert opened == 6  # ENXIO: no controlling terminal
    assert injected in (1, 5)  # EPERM, or EIO where dev.tty.legacy_tiocsti is 0
    assert adopted == 1
    assert is_terminal


def test_pseudo_terminals_work_inside(inside: Callable[..., Any], policy: Policy) -> None:
    """openpty() works inside, with a devpts instance of the sandbox's own: numbers start at 0."""
    code = """
import pty
a, b = pty.openpty()
os.write(a, b"typed\\n")
report([os.ttyname(b), os.read(b, 10).decode(), sorted(os.listdir("/dev/pts")), os.path.exists("/dev/ptmx")])
"""
    for chosen in (policy, policy.with_(uid=0, gid=0), policy.with_(uid=1234, gid=1234)):
        assert inside(code, policy=chosen) == ["/dev/pts/0", "typed\n", ["0", "ptmx"], True]


def test_console_is_the_commands_terminal(inside: Callable[..., Any], policy: Policy) -> None:
    """When stdout is a terminal, it is /dev/console inside, so that ttyname() works."""
    ours, theirs = pty.openpty()
    try:
        with nsbox.Popen(
            python("import os; print(os.ttyname(1))"), stdout=theirs, stdin=subprocess.DEVNULL, policy=policy
        ) as p:
            line = os.read(ours, 100)
        assert p.returncode == 0
        assert line.strip() == b"/dev/console"
    finally:
        os.close(ours)
        os.close(theirs)


# ---- what comes with a process


def test_semaphores_work_inside(inside: Callable[..., Any]) -> None:
    """/dev/shm works: multiprocessing's semaphores and shared memory."""
    code = """
import multiprocessing.synchronize, multiprocessing.shared_memory
context = multiprocessing.get_context("fork")
lock = context.Lock()
with lock: held = not lock.acquire(block=False)
memory = multiprocessing.shared_memory.SharedMemory(create=True, size=4096)
memory.buf[0] = 7
other = multiprocessing.shared_memory.SharedMemory(name=memory.name)
seen = other.buf[0]
other.close(); memory.close(); memory.unlink()
report([held, seen])
"""
    assert inside(code) == [True, 7]


def test_describes_itself(policy: Policy) -> None:
    """Popen.sandbox names the backend, the plan, and what does and doesn't hold."""
    with nsbox.Popen(["true"], policy=policy) as p:
        assert p.sandbox.backend == "namespaces"
        assert p.sandbox.plan.ops
        assert any("no capabilities" in line for line in p.sandbox.enforced)
        assert p.sandbox.not_enforced == p.sandbox.plan.not_enforced


def test_default_policy_is_the_workspace_of_cwd(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without policy= it is Policy.workspace() of cwd=, or of the current directory."""
    (tmp_path / "outside").write_text("x")
    code = f"import os; print(os.getcwd(), os.path.exists({str(tmp_path / 'outside')!r})); open('made', 'w')"
    done = nsbox.run(python(code), cwd=workspace, stdout=subprocess.PIPE, text=True)
    assert done.stdout == f"{workspace} False\n"
    (workspace / "made").unlink()
    monkeypatch.chdir(workspace)
    assert nsbox.run(python(code), stdout=subprocess.PIPE, text=True).stdout == f"{workspace} False\n"
    assert (workspace / "made").exists()


@pytest.mark.parametrize("on_one", [False, True], ids=["all processors", "one processor"])
def test_affinity(inside: Callable[..., Any], policy: Policy, on_one: bool) -> None:
    """The command and pid 1, which is moved away from the mediator's processor for a moment, have the caller's.

    Pid 1 of a copy that is ready keeps the one that the caller had when the copy was made.
    """
    code = "report([next(l for l in open(f'/proc/{pid}/status') if l.startswith('Cpus_allowed:')) for pid in (1, 2)])"
    before = os.sched_getaffinity(0)
    try:
        if on_one:
            os.sched_setaffinity(0, {max(before)})
        own = next(
            line for line in Path("/proc/self/status").read_text().splitlines(True) if line[:13] == "Cpus_allowed:"
        )
        for wanted in (policy, policy.with_(network="host")):
            of_init, of_command = inside(code, policy=wanted)
            assert of_command == own
            assert of_init == own or warm.WAY == "ready"
    finally:
        os.sched_setaffinity(0, before)
