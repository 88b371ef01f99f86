"""Attempts on processes: pid 1, the caller, neighbours; descriptors and programs of the set-up."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from nsbox_testing.running import python

import nsbox
from nsbox import Policy

REFUSED = {errno.EPERM, errno.EACCES, errno.ESRCH, errno.ENOENT, errno.ENOSYS, errno.EINVAL, errno.EROFS}


def test_overwriting_the_runtimes_program(attempt: Callable[..., Any], workspace: Path) -> None:
    """CVE-2019-5736: pid 1's program, or the one that executed us, can't be opened for writing through /proc."""
    code = """
found = {}
for path in ("/proc/1/exe", "/proc/self/exe", "/proc/2/exe"):
    found[path] = attempt(lambda: os.close(os.open(path, os.O_WRONLY)))
report(found)
"""
    found = attempt(code)
    assert all(number in REFUSED | {errno.ETXTBSY} for number in found.values()), found


def test_running_the_runtimes_program(attempt: Callable[..., Any]) -> None:
    """A script with #!/proc/self/exe executes itself or its shell, never pid 1's image."""
    code = """
open("/tmp/x", "w").write("#!/proc/1/exe\\n"); os.chmod("/tmp/x", 0o755)
import subprocess
try: report(subprocess.run(["/tmp/x"]).returncode)
except OSError as e: report([e.errno])
"""
    assert attempt(code)[0] in REFUSED


def test_leaked_descriptors(attempt: Callable[..., Any]) -> None:
    """CVE-2024-21626: no descriptor above 2 is open, so none leads to the host; /proc/self/fd/N neither."""
    code = """
report([sorted(int(n) for n in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + n)),
        [n for n in range(3, 1024) if attempt(os.fstat, n) == 0]])
"""
    listed, opened = attempt(code)
    assert set(listed) <= {0, 1, 2} or listed == [0, 1, 2, 3]
    assert opened == []


@pytest.mark.parametrize("kind", ["workspace", "host"])
def test_processes_outside(attempt: Callable[..., Any], policy: Policy, kind: str) -> None:
    """Pids of the host mean nothing inside: no signal, no ptrace, no pidfd reaches the caller or its children."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as neighbour:
        pids = [pid for pid in (os.getpid(), os.getppid(), neighbour.pid) if pid > 2]  # as there are inside
        code = """
import signal
report([[attempt(os.kill, pid, 0), call("ptrace", 16, pid, 0, 0), attempt(lambda: os.close(os.pidfd_open(pid)))] for pid in map(int, sys.argv[1:])])
"""
        found = attempt(code, *map(str, pids), policy=policy if kind == "workspace" else Policy.host())
        assert all(number == errno.ESRCH for row in found for number in row), found
        assert neighbour.poll() is None
        neighbour.stdin.close()


def test_neighbouring_sandbox(attempt: Callable[..., Any], policy: Policy, tmp_path: Path) -> None:
    """One sandbox can't see, signal or reach another one of the same user."""
    other = tmp_path / "other"
    other.mkdir()
    with nsbox.Popen(["cat"], stdin=subprocess.PIPE, policy=Policy.workspace(other)) as neighbour:
        code = "report([sorted(int(n) for n in os.listdir('/proc') if n.isdigit()), os.path.exists(sys.argv[1])])"
        pids, reachable = attempt(code, str(other))
        assert pids == [1, 2]
        assert not reachable
        assert neighbour.poll() is None


def test_signals_to_everybody(attempt: Callable[..., Any]) -> None:
    """kill(-1), kill(0) and killpg reach the sandbox's own processes only."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as neighbour:
        code = """
import signal
for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP, signal.SIGHUP):
    for pid in (-1, 0) if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGHUP) else (-1,):
        try: os.kill(pid, number)
        except ProcessLookupError: pass
report("alive")
"""
        assert attempt(code) == "alive"
        assert neighbour.poll() is None
        neighbour.stdin.close()


def test_children_of_the_caller(policy: Policy) -> None:
    """clone() with CLONE_PARENT, which would give the caller a child of the sandbox's, is refused."""
    code = """
import ctypes, platform
libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 56, "aarch64": 220}[platform.machine()]
pid = libc.syscall(number, 0x8000 | 17, 0, 0, 0, 0)
import os
if pid == 0: os._exit(0)
os.write(1, b"%d %d" % (pid, ctypes.get_errno()))
"""
    before = {child.pid for child in psutil.Process().children()}
    with nsbox.Popen(python(code), stdout=subprocess.PIPE, policy=policy) as p:
        pid, number = map(int, p.stdout.read().split())
    assert (pid, number) == (-1, errno.EPERM)
    assert {child.pid for child in psutil.Process().children()} == before


def test_tracing_by_the_caller(policy: Policy) -> None:
    """PTRACE_TRACEME would make the caller the tracer of a command that then stops for ever: it is refused."""
    code = "import ctypes, os, signal; os._exit(3 if ctypes.CDLL(None).ptrace(0, 0, 0, 0) == -1 else 4)"
    with nsbox.Popen(python(code), policy=policy) as p:
        assert p.wait(timeout=30) == 3


def test_pid_1_by_all_means(attempt: Callable[..., Any], policy: Policy) -> None:
    """Nothing of pid 1 can be read, changed or borrowed from inside, by any user. (Its limits can: that only ends the sandbox.)"""
    code = """
def write(path, data): os.write(os.open(path, os.O_WRONLY), data)
report({
    "pidfd_getfd": syscall(438, os.pidfd_open(1), 0, 0), "mem": attempt(os.open, "/proc/1/mem", os.O_RDWR),
    "uid_map": attempt(write, "/proc/1/uid_map", b"0 0 1"), "attr": attempt(write, "/proc/1/attr/current", b"x"),
    "comm": attempt(write, "/proc/1/comm", b"x"), "setns": attempt(os.open, "/proc/1/ns/pid", os.O_RDONLY),
    "root": attempt(os.chdir, "/proc/1/root"), "cwd": attempt(os.chdir, "/proc/1/cwd"), "task": attempt(os.chdir, "/proc/1/task/1/root"),
    "map_files": attempt(os.listdir, "/proc/1/map_files"),
})
"""
    for chosen in (policy, policy.with_(uid=0, gid=0), policy.with_(uid=1000, gid=1000), Policy.host()):
        found = attempt(code, policy=chosen)
        assert all(number in REFUSED for number in found.values()), found


def test_scheduling_of_pid_1(policy: Policy) -> None:
    """A command that makes pid 1 as slow as it can and then floods the processor still ends at once when it ends."""
    code = """
import os
for f, *args in ((os.sched_setscheduler, 1, os.SCHED_IDLE, os.sched_param(0)), (os.setpriority, os.PRIO_PROCESS, 1, 19), (os.sched_setaffinity, 1, {min(os.sched_getaffinity(0))})):
    try: f(*args)
    except OSError: pass
for _ in range(8):
    if os.fork() == 0:
        while True: pass
"""
    assert nsbox.run(python(code), policy=policy, timeout=50).returncode == 0


def test_nested_namespaces_end_too(policy: Policy) -> None:
    """Processes in pid namespaces made inside die with the sandbox."""
    read, write = os.pipe()
    script = "unshare -Urpf --mount-proc sh -c 'tail -f /dev/null & tail -f /dev/null & wait' & echo x; exit 0"
    try:
        done = nsbox.run(
            ["sh", "-c", script],
            policy=policy.with_(uid=1000, gid=1000),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[write],
        )
        assert done.returncode == 0
        os.close(write)
        assert os.read(read, 1) == b""
    finally:
        os.close(read)


def test_core_dumps_are_not_written(policy: Policy, workspace: Path) -> None:
    """A crash ends as one; whatever the host's core_pattern is, its helper doesn't get to run the sandbox's program."""
    done = nsbox.run(["sh", "-c", "ulimit -c 0; kill -SEGV $$"], policy=policy)
    assert done.returncode == -signal.SIGSEGV


def test_keyrings(attempt: Callable[..., Any]) -> None:
    """The caller's session keyring can't be read or changed (CVE-2024-42318)."""
    code = """
keyctl, add_key, request_key = {"x86_64": (250, 248, 249), "aarch64": (219, 217, 218)}[os.uname().machine]
report([syscall(keyctl, 0, -3 & 0xFFFFFFFF, 0), syscall(keyctl, 18), syscall(add_key, "user", "x", "y", 1, -3 & 0xFFFFFFFF), syscall(request_key, "user", "x", 0, 0)])
"""
    assert set(attempt(code)) <= {errno.ENOSYS, errno.EPERM}


def test_ipc_objects_of_the_host(attempt: Callable[..., Any]) -> None:
    """System V shared memory, semaphores and queues of the host can't be seen, nor those of the sandbox from the host."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    key = 0x6E730000 + os.getpid() % 0xFFFF
    ident = libc.shmget(key, 4096, 0o1600 | 0o600)  # IPC_CREAT
    assert ident >= 0
    try:
        code = """
key = int(sys.argv[1])
made = libc.shmget(key + 1, 4096, 0o1600 | 0o600)
report([call("shmget", key, 0, 0), made >= 0, open("/proc/sysvipc/shm").read().count("\\n")])
"""
        seen, made, lines = attempt(code, str(key))
        assert seen == errno.ENOENT
        assert made and lines == 2
        assert libc.shmget(key + 1, 0, 0) == -1
    finally:
        libc.shmctl(ident, 0, None)  # IPC_RMID
