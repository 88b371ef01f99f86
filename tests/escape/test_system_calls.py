"""System calls that the profiles refuse, made for real, each with its control: without the profile it works.

What the kernel itself refuses here to everybody (an old kernel, a sysctl) can't be shown, and is skipped by name.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import resource
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import nsbox
from nsbox import Filter, Policy, Rule

pytestmark = pytest.mark.vm
X86 = platform.machine() == "x86_64"
CONTROL_ONLY_AS_USER = {"unshare a user namespace", "clone into a user namespace"}  # as root they need the ids' helper

# Everything is tried in a child of its own: some attempts change the process that makes them.
TRY = """
import ctypes, errno, fcntl, json, mmap, os, socket, struct, sys, tempfile
libc = ctypes.CDLL(None, use_errno=True)
X86 = os.uname().machine == "x86_64"
def call(x86, arm, *args):
    pointers = [ctypes.c_char_p(a) if isinstance(a, bytes) else ctypes.c_ulong(a) if isinstance(a, int) else a for a in args]
    ret = libc.syscall(ctypes.c_long(x86 if X86 else arm), *pointers)
    return ctypes.get_errno() if ret < 0 else 0
def of(function, *args):
    try: function(*args)
    except OSError as error: return error.errno
    return 0
def buffer(n): return ctypes.create_string_buffer(n)
def clone(flags):
    pid = libc.syscall(ctypes.c_long(56 if X86 else 220), ctypes.c_ulong(flags | 17), 0, 0, 0, 0)
    if pid == 0: os._exit(0)
    if pid < 0: return ctypes.get_errno()
    os.waitpid(pid, 0)
    return 0
def tty(request, argument):
    master, slave = os.openpty()
    os.setsid()
    fcntl.ioctl(slave, 0x540E, 0)  # TIOCSCTTY
    return of(fcntl.ioctl, slave, request, argument)
def handle():
    data, mount = buffer(136), ctypes.c_int()
    ctypes.memmove(data, struct.pack("=I", 128), 4)
    return call(303, 264, -100 & 0xFFFFFFFF, b"/usr", data, ctypes.byref(mount), 0)
def stolen():
    pid = os.fork()
    if pid == 0:
        os.read(r, 1); os._exit(0)
    pidfd = os.pidfd_open(pid)
    got = call(438, 438, pidfd, 0, 0)
    os.write(w, b"x"); os.waitpid(pid, 0)
    return got
def traced():
    pid = os.fork()
    if pid == 0:
        os.read(r, 1); os._exit(0)
    got = call(101, 117, 0x4206, pid, 0, 0)  # PTRACE_SEIZE
    os.write(w, b"x"); os.waitpid(pid, 0)
    return got
def peeked():
    data = buffer(b"secret")
    local = struct.pack("=QQ", ctypes.addressof(buffer(8)), 4); there = struct.pack("=QQ", ctypes.addressof(data), 4)
    return call(310, 270, os.getpid(), local, 1, there, 1, 0)
def int80():
    code = mmap.mmap(-1, 4096, prot=7)
    code.write(bytes.fromhex("53b814000000cd805bc3"))  # push rbx; mov eax, 20 (getpid); int 0x80; pop rbx; ret
    ret = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
    return -ret if ret < 0 else 0
def tempname():
    return tempfile.TemporaryFile(mode="w", dir="/tmp")
r, w = os.pipe()
ATTEMPTS = {
    "unshare a user namespace": lambda: call(272, 97, 0x10000000),
    "clone into a user namespace": lambda: clone(0x10000000),
    "io_uring": lambda: call(425, 425, 4, buffer(120)),
    "userfaultfd": lambda: call(323, 282, 1),  # UFFD_USER_MODE_ONLY
    "bpf": lambda: call(321, 280, 0, struct.pack("=IIII", 2, 4, 4, 1) + bytes(100), 116),
    "perf_event_open": lambda: call(298, 241, struct.pack("=IIQQQQQ", 1, 64, 0, 0, 0, 0, 0x60) + bytes(16), 0, -1 & 0xFFFFFFFFFFFFFFFF, -1 & 0xFFFFFFFFFFFFFFFF, 0),
    "name_to_handle_at": handle,
    "kcmp": lambda: call(312, 272, os.getpid(), os.getpid(), 0, r, r),
    "pidfd_getfd": stolen,
    "mbind": lambda: call(237, 235, 0, 0, 0, 0, 0, 0),
    "set_mempolicy": lambda: call(238, 237, 0, 0, 0),
    "AF_ALG": lambda: of(socket.socket, 38, socket.SOCK_SEQPACKET),
    "AF_VSOCK": lambda: of(socket.socket, 40, socket.SOCK_STREAM),
    "AF_NETLINK, generic": lambda: of(socket.socket, 16, socket.SOCK_RAW, 16),
    "AF_PACKET": lambda: of(socket.socket, 17, socket.SOCK_RAW),
    "UDP-Lite": lambda: of(socket.socket, 2, socket.SOCK_DGRAM, 136),
    "MPTCP": lambda: of(socket.socket, 2, socket.SOCK_STREAM, 262),
    "TIOCSTI": lambda: tty(0x5412, b"x"),
    "TIOCSTI with high bits": lambda: (lambda m, s: call(16, 29, s, 0x5412 | 1 << 32, b"x"))(*pty()),
    "TIOCSETD": lambda: tty(0x5423, struct.pack("=i", 0)),
    "personality": lambda: call(135, 92, 0x0400000),  # READ_IMPLIES_EXEC
    "modify_ldt": lambda: call(154, 9999, 0, buffer(64), 64) if X86 else 9999,
    "int 0x80": lambda: int80() if X86 else 9999,
    "ustat": lambda: call(136, 9999, os.stat("/usr").st_dev, buffer(64)) if X86 else 9999,
    "sysfs": lambda: call(139, 9999, 3) if X86 else 9999,
    "F_SETLEASE": lambda: (lambda f: of(fcntl.fcntl, f, 1024, 1))(tempname()),
    "PTRACE_TRACEME": lambda: call(101, 117, 0, 0, 0, 0),
    "keyctl": lambda: call(250, 219, 0, -3 & 0xFFFFFFFF, 0),
    "clone3": lambda: {22: 0}.get(error := call(435, 435, buffer(64), 8), error),  # EINVAL, too small, is its own answer
    "ptrace": traced,
    "process_vm_readv": peeked,
    "flock": lambda: (lambda f: of(fcntl.flock, f, 2))(tempname()),
    "F_SETLK": lambda: (lambda f: of(fcntl.lockf, f, 2))(tempname()),
    "mincore": lambda: call(27, 232, 0, 0, 0),
    "vmsplice": lambda: call(278, 75, w, struct.pack("=QQ", ctypes.addressof(buffer(8)), 4), 1, 0),
    "getpid": lambda: call(39, 172),
    "AF_UNIX": lambda: of(socket.socketpair),
    "TCP": lambda: of(socket.socket),
    "UDP, IPv6": lambda: of(socket.socket, socket.AF_INET6, socket.SOCK_DGRAM),
    "interfaces": lambda: of(socket.if_nameindex),
    "threads": lambda: __import__("concurrent.futures").futures.ThreadPoolExecutor().submit(int).result(),
}
def pty():
    master, slave = os.openpty()
    os.setsid()
    fcntl.ioctl(slave, 0x540E, 0)
    return master, slave
found = {}
for name, attempt in ATTEMPTS.items():
    answer, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try: os.write(told, str(attempt()).encode())
        finally: os._exit(0)
    os.close(told)
    found[name] = os.read(answer, 64).decode()
    os.close(answer)
    os.waitpid(pid, 0)
os.write(1, json.dumps(found).encode())
"""

EPERM, ENOSYS = errno.EPERM, errno.ENOSYS
DEFAULT = {
    **dict.fromkeys(("unshare a user namespace", "clone into a user namespace", "userfaultfd", "bpf"), EPERM),
    **dict.fromkeys(("perf_event_open", "name_to_handle_at", "kcmp", "pidfd_getfd", "mbind", "set_mempolicy"), EPERM),
    **dict.fromkeys(("TIOCSTI", "TIOCSTI with high bits", "TIOCSETD", "personality"), EPERM),
    **dict.fromkeys(("AF_ALG", "AF_VSOCK"), errno.EAFNOSUPPORT),
    **dict.fromkeys(("AF_NETLINK, generic", "UDP-Lite", "MPTCP"), errno.EPROTONOSUPPORT),
    "io_uring": ENOSYS,
    **(dict.fromkeys(("modify_ldt", "ustat", "sysfs"), EPERM) | {"int 0x80": ENOSYS} if X86 else {}),
}
HARDENED = dict.fromkeys(("ptrace", "process_vm_readv", "mincore", "vmsplice", "F_SETLK"), EPERM) | {"flock": ENOSYS}
ALWAYS = {"F_SETLEASE": EPERM, "PTRACE_TRACEME": EPERM, "keyctl": ENOSYS, "clone3": ENOSYS}
ALLOWED = ("getpid", "AF_UNIX", "TCP", "UDP, IPv6", "interfaces", "threads")


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What came of each attempt, by profile; "plain": on a child that isn't contained."""
    place = tmp_path_factory.mktemp("calls")
    place.chmod(0o755)
    command = [sys.executable, "-c", TRY]
    found = {"plain": json.loads(subprocess.run(command, check=True, capture_output=True, cwd=place).stdout)}
    for chosen in ("off", "default", "hardened"):
        policy = Policy.workspace(place, seccomp=chosen)
        found[chosen] = json.loads(nsbox.run(command, policy=policy, check=True, capture_output=True).stdout)
    return found


@pytest.mark.parametrize("what", DEFAULT)
def test_refused_by_default(tried: dict[str, Any], what: str) -> None:
    """Refused in the default profile and in the hardened one."""
    assert tried["default"][what] == tried["hardened"][what] == str(DEFAULT[what])


@pytest.mark.parametrize("what", HARDENED)
def test_refused_when_hardened(tried: dict[str, Any], what: str) -> None:
    """Refused in the hardened profile only."""
    assert tried["hardened"][what] == str(HARDENED[what])
    assert tried["default"][what] != str(HARDENED[what])


@pytest.mark.parametrize("what", ALWAYS)
def test_always_refused(tried: dict[str, Any], what: str) -> None:
    """Refused whatever the policy says."""
    assert tried["off"][what] == tried["default"][what] == tried["hardened"][what] == str(ALWAYS[what])


@pytest.mark.parametrize("what", ALLOWED)
def test_still_there(tried: dict[str, Any], what: str) -> None:
    """What programs need works in each profile."""
    assert {tried[chosen][what] for chosen in ("off", "default", "hardened")} == {"0"}


@pytest.mark.parametrize("what", [*DEFAULT, *HARDENED])
def test_control_works_without_the_profile(tried: dict[str, Any], what: str) -> None:
    """Control: without the profile, in a sandbox that is the same otherwise, each attempt does what it wants."""
    if tried["plain"][what] != "0":
        pytest.skip(f"this machine refuses it to everybody: {tried['plain'][what]}")
    if what in CONTROL_ONLY_AS_USER and os.geteuid() == 0:
        pytest.skip("as root, user namespaces inside are refused whatever the profile")
    needs = {"bpf": "CAP_BPF", "perf_event_open": "CAP_PERFMON", "AF_PACKET": "CAP_NET_RAW", "TIOCSTI": "CAP_SYS_ADMIN"}
    if tried["off"][what] != "0" and os.geteuid() == 0 and what.split(" with")[0] in needs:
        pytest.skip(f"without the profile it takes {needs[what.split(' with')[0]]}, which no sandbox has")
    assert tried["off"][what] == "0"


@pytest.mark.parametrize("what", ALWAYS)
def test_control_a_plain_child_may(tried: dict[str, Any], what: str) -> None:
    """Control: what is always refused works on a child that isn't contained."""
    assert tried["plain"][what] == "0"


# ---- Filter, for real


def status(policy: Policy, script: str) -> tuple[int, str]:
    done = nsbox.run([sys.executable, "-c", script], policy=policy, capture_output=True, text=True)
    return done.returncode, done.stdout.strip() or done.stderr.strip().rpartition("\n")[2]


def test_own_rules(workspace: Path) -> None:
    """A rule of the policy's own is in force from the program's first instruction, and not for the set-up."""
    script = "import os, socket\nfor f in (socket.socket, os.getcwd):\n    try: print(f() and 'ok', end=' ')\n    except OSError as e: print(e.errno, end=' ')"
    rules = (
        Rule("socket", errno.EACCES),
        Rule(("unshare", "setns", "chdir", "fchdir", "prlimit64", "capset", "openat2")),
    )
    policy = Policy.workspace(workspace, seccomp=Filter(rules=rules))
    assert status(policy, script) == (0, f"{errno.EACCES} ok")
    assert status(policy.with_(seccomp="default"), script) == (0, "ok ok")


def test_a_rule_against_exec(workspace: Path) -> None:
    """A filter that refuses execve lets nothing start; the error is the exec's."""
    policy = Policy.workspace(workspace, seccomp=Filter(rules=(Rule("execve", errno.EACCES),)))
    with pytest.raises(PermissionError) as caught:
        nsbox.run(["/bin/true"], policy=policy)
    assert not isinstance(caught.value, nsbox.NsboxError)


def test_a_misspelled_call(workspace: Path) -> None:
    """A name that nobody knows is an error, not a rule that never holds."""
    policy = Policy.workspace(workspace, seccomp=Filter(rules=(Rule("opennat"),)))
    with pytest.raises(nsbox.PolicyError, match="opennat"):
        nsbox.run(["/bin/true"], policy=policy)


def test_ready_programs(workspace: Path) -> None:
    """A program made elsewhere is installed as it is; one that the kernel refuses is an error of the set-up."""
    number = 41 if X86 else 198
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | 77), (0x06, 0, 0, 0x7FFF0000)]
    program = b"".join(struct.pack("=HBBI", *row) for row in code)
    policy = Policy.workspace(workspace, seccomp=Filter(programs=(program,)))
    assert status(policy, "import socket\ntry: socket.socket()\nexcept OSError as e: print(e.errno)") == (0, "77")
    with pytest.raises(nsbox.SetupError) as caught:
        nsbox.run(["/bin/true"], policy=Policy.workspace(workspace, seccomp=Filter(programs=(program[:8],))))
    assert (caught.value.step, caught.value.errno) == ("install the seccomp filter", errno.EINVAL)


@pytest.mark.parametrize("action", [0x80000000, 0, 0x30000])  # kill the process, the thread; SIGSYS
def test_a_program_that_kills_at_the_exec(workspace: Path, action: int) -> None:
    """The command dies in a copy of the caller's memory: the caller lives on, and nothing of it is dumped."""
    number = 59 if X86 else 221
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, action), (0x06, 0, 0, 0x7FFF0000)]
    program = b"".join(struct.pack("=HBBI", *row) for row in code)
    policy = Policy.workspace(workspace, seccomp=Filter(programs=(program,)))
    core = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (core[1], core[1]))
    try:
        with pytest.raises((nsbox.SetupError, OSError)):
            nsbox.run(["/bin/true"], policy=policy).check_returncode()
    except subprocess.CalledProcessError as error:
        assert error.returncode == -signal.SIGSYS
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, core)
    assert os.listdir(workspace) == []


def test_no_user_namespace_before_the_program(workspace: Path) -> None:
    """A preexec_fn, which runs before the policy's own rules are in force, can't make one either."""

    def unshare() -> None:
        refused = ctypes.CDLL(None, use_errno=True).unshare(0x10000000) < 0 and ctypes.get_errno() == errno.EPERM
        os.write(1, b"refused" if refused else b"allowed")

    policy = Policy.workspace(workspace)
    done = nsbox.run(["/bin/true"], policy=policy, preexec_fn=unshare, stdout=subprocess.PIPE)
    assert done.stdout == b"refused"


def test_allowed_again(workspace: Path) -> None:
    """allow lifts a profile's rule."""
    script = "import ctypes; print(ctypes.CDLL(None).personality(0x0400000) >= 0)"
    policy = Policy.workspace(workspace)
    assert status(policy, script) == (0, "False")
    assert status(policy.with_(seccomp=Filter(allow=("personality",))), script) == (0, "True")


def test_filters_in_force(workspace: Path) -> None:
    """The kernel says so: mode 2, as many filters as the plan has, and no new privileges."""
    script = (
        "print([line.split()[1] for line in open('/proc/self/status') if line.startswith(('NoNewPrivs', 'Seccomp'))])"
    )
    for chosen in ("off", "default", "hardened", Filter(rules=(Rule("acct"),))):
        policy = Policy.workspace(workspace, seccomp=chosen)
        with nsbox.Popen([sys.executable, "-c", script], policy=policy, stdout=-1, text=True) as p:
            assert p.stdout is not None
            said = p.stdout.read().strip()
        assert said == f"['1', '2', '{len(p.sandbox.plan.programs)}']"
