"""Lifetime: a sandbox ends with its command, waiting ends with the sandbox, and nothing outlives the caller."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from nsbox_testing.running import Orphans, in_fork, python

import nsbox
from nsbox import Policy

DAEMON = """
import os, sys
read, write = os.pipe()
if os.fork() == 0:  # a daemon: other parent, session, group
    os.setsid()
    if os.fork() == 0:
        {setup}
        os.write(1, b"ready")
        os.close(1)
        os.write(write, b"x")
        while True: os.pause() if hasattr(os, "pause") else __import__("signal").pause()
    os.close(write)
    os.read(read, 1)  # it has, or a pipe that the caller has closed has killed it
    os._exit(0)
os.close(write)
os.wait()
sys.exit({status})
"""
"""A command that ends at once and leaves a daemon behind; what the daemon has done is done when the command has ended."""


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# ---- the end of the command is the end of all


@pytest.mark.parametrize("how", ["wait", "wait with timeout", "poll", "communicate", "context", "run"])
def test_daemons_end_with_the_command(chosen: Policy, workspace: Path, how: str) -> None:
    """A daemonized grandchild that holds a lock and a pipe is gone when waiting ends: both are free, at once."""
    lock = workspace / "lock"
    lock.touch()
    setup = f"import fcntl; f = open({str(lock)!r}); fcntl.flock(f, fcntl.LOCK_EX)"
    command = python(DAEMON.format(setup=setup, status=3))
    read, write = os.pipe()
    os.set_blocking(read, False)
    options = {"policy": chosen, "pass_fds": [write], "stdout": subprocess.PIPE, "cwd": workspace}
    try:
        if how == "run":
            status = nsbox.run(command, **options).returncode
        else:
            with nsbox.Popen(command, **options) as p:
                os.close(os.dup(write))
                if how == "wait":
                    assert p.stdout.read() == b"ready"
                    p.wait()
                elif how == "wait with timeout":
                    p.wait(timeout=30)
                elif how == "communicate":
                    p.communicate()
                elif how == "poll":
                    while p.poll() is None:
                        pass
            status = p.returncode
        os.close(write)
        assert os.read(read, 1) == b""  # the end of the pipe, not EAGAIN: nobody else has it open
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(read)
    assert status == 3


def test_communicate_is_not_held_up_by_an_orphan(chosen: Policy) -> None:
    """An orphan that keeps stdout open doesn't keep communicate(): it dies with the command. (A plain one would hang.)"""
    code = "import os, signal, sys\nif os.fork() == 0: signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()\nprint('out')"
    assert nsbox.run(python(code), policy=chosen, stdout=subprocess.PIPE, timeout=30).stdout == b"out\n"


def test_many_background_processes(chosen: Policy) -> None:
    """Fifty processes that ignore all signals are gone after wait()."""
    code = """
import os, signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
for _ in range(50):
    if os.fork() == 0:
        os.setsid()
        while True: signal.pause()
"""
    with nsbox.Popen(python(code), policy=chosen) as p:
        init = p.sandbox.init_pid
    assert p.returncode == 0
    assert not children(init)


@pytest.mark.as_root("other ids need CAP_SETUID")
def test_others_that_pid_1_can_not_kill(workspace: Path, orphans: Orphans) -> None:
    """Processes of another uid, which disobey pid 1 and keep it busy with SIGCHLD, end all the same, and wait() does."""
    code = """
import os, signal, time
orphan = os.fork()
if orphan == 0:
    if os.fork() == 0:
        while True: signal.pause()
    os._exit(0)
os.waitpid(orphan, 0)
orphan = max(int(name) for name in os.listdir("/proc") if name.isdigit())
if os.fork() == 0:
    os.setsid()
    while True:
        for number in (signal.SIGSTOP, signal.SIGCONT):
            os.kill(orphan, number)
            time.sleep(0.001)
"""
    for policy in (Policy.host(), Policy.workspace(workspace, ids="full")):
        with nsbox.Popen(["/usr/bin/python3", "-I", "-S", "-c", code], policy=policy, user=1234, cwd="/") as p:
            init = p.sandbox.init_pid
            assert p.wait(timeout=60) == 0
        assert not children(init)
    assert orphans.reap() is not None


def test_kill_ends_all(chosen: Policy) -> None:
    """kill() on the command ends what it has started."""
    read, write = os.pipe()
    code = f"import os, signal\nif os.fork() == 0: os.write({write}, b'x'); signal.pause()\nsignal.pause()"
    with nsbox.Popen(python(code), policy=chosen, pass_fds=[write]) as p:
        os.close(write)
        assert os.read(read, 1) == b"x"
        p.kill()
        p.wait()
        assert os.read(read, 1) == b""
    os.close(read)
    assert p.returncode == -signal.SIGKILL


def test_status_of_the_command_not_of_its_children(chosen: Policy) -> None:
    """The status is the command's own, whatever happens to its children when it ends."""
    assert (
        nsbox.run(python(DAEMON.format(setup="pass", status=42)), policy=chosen, stdout=subprocess.PIPE).returncode
        == 42
    )


def children(pid: int) -> str:
    """Return the pids of a process's children; none if it has gone itself."""
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_poll_is_none_while_anything_is_left(chosen: Policy) -> None:
    """poll() gives the status no sooner than all processes but pid 1, which is about to end, are gone."""
    for _ in range(20):
        p = nsbox.Popen(python(DAEMON.format(setup="pass", status=1)), policy=chosen, stdout=subprocess.DEVNULL)
        init = p.sandbox.init_pid
        while p.poll() is None:
            pass
        assert not children(init), "poll() gave a status while something ran"


def test_orphans_are_reaped_inside(chosen: Policy) -> None:
    """A thousand orphans leave no zombies in the sandbox while it lives."""
    code = """
import os
for _ in range(1000):
    pid = os.fork()
    if pid == 0:
        if os.fork() == 0: os._exit(0)
        os._exit(0)
    os.waitpid(pid, 0)
for _ in range(10000):  # the last ones may be just about to end
    left = [n for n in os.listdir("/proc") if n.isdigit() and int(n) > 2]
    if not left: break
print(len(left))
"""
    assert nsbox.run(python(code), policy=chosen, stdout=subprocess.PIPE).stdout == b"0\n"


def test_exec_of_the_command_changes_nothing(chosen: Policy) -> None:
    """A command that executes another program stays pid 2 and keeps its sandbox."""
    done = nsbox.run(
        ["sh", "-c", "exec sh -c 'exec sh -c \"echo \\$\\$; exit 9\"'"], policy=chosen, stdout=subprocess.PIPE
    )
    assert (done.stdout, done.returncode) == (b"2\n", 9)


def test_threads_of_the_command(chosen: Policy) -> None:
    """A command whose main thread has ended lives as long as its other threads."""
    code = """
import ctypes, os, threading
def work():
    os.read(0, 1)
    os.write(1, b"done")
    os._exit(6)
threading.Thread(target=work).start()
ctypes.CDLL(None).pthread_exit(0)
"""
    pipe = subprocess.PIPE
    with nsbox.Popen(python(code), policy=chosen, stdin=pipe, stdout=pipe) as p:
        assert p.communicate(b"x") == (b"done", None)
    assert p.returncode == 6


# ---- pid 1


def test_death_of_pid_1_ends_all(chosen: Policy) -> None:
    """Pid 1 killed from outside takes the command with it."""
    with nsbox.Popen(["cat"], stdin=subprocess.PIPE, policy=chosen) as p:
        os.kill(p.sandbox.init_pid, signal.SIGKILL)
        assert p.wait(timeout=30) == -signal.SIGKILL


def test_stopped_pid_1_does_not_keep_the_caller(chosen: Policy) -> None:
    """SIGSTOP to pid 1 from outside: it can still be ended by kill()."""
    with nsbox.Popen(["cat"], stdin=subprocess.PIPE, policy=chosen) as p:
        os.kill(p.sandbox.init_pid, signal.SIGSTOP)
        p.kill()
        os.waitid(os.P_PID, p.pid, os.WEXITED | os.WNOWAIT)
        assert p.poll() is None  # the sandbox is still there
        p.kill()  # now meant for what is left of it
        assert p.wait(timeout=30) == -signal.SIGKILL


def test_stop_of_the_whole_sandbox(chosen: Policy) -> None:
    """kill(-1, SIGSTOP) from inside stops neither pid 1 nor the end."""
    code = """
import os, signal
if os.fork() == 0: signal.pause()
os.write(1, b"x")
os.kill(-1, signal.SIGSTOP)
os.kill(os.getpid(), signal.SIGSTOP)
os._exit(4)
"""
    with nsbox.Popen(python(code), stdout=subprocess.PIPE, policy=chosen) as p:
        assert p.stdout.read(1) == b"x"
        assert os.waitid(os.P_PID, p.pid, os.WSTOPPED).si_status == signal.SIGSTOP
        p.send_signal(signal.SIGCONT)
        assert p.wait() == 4


def test_kill_all_from_inside(chosen: Policy) -> None:
    """kill(-1, SIGKILL) from inside hits the sandbox's own processes only."""
    with nsbox.Popen(["cat"], stdin=subprocess.PIPE, policy=chosen) as neighbour:
        code = "import os, signal\nif os.fork() == 0: signal.pause()\nos.kill(-1, signal.SIGKILL); os._exit(8)"
        assert nsbox.run(python(code), policy=chosen).returncode == 8
        assert neighbour.poll() is None


# ---- the caller

STAY = "import os, signal\nif os.fork() == 0: os.setsid()\nelse: os.write(1, b'x')\nsignal.pause()"
"""A command with a child in another session; it writes a byte when all is there."""


def start_in_fork(policy: Policy, then: Callable[[], object] = signal.pause) -> tuple[int, int]:
    """Start a command from a fork that does something else then; return its pid, and a pipe that ends with the sandbox."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            p = nsbox.Popen(python(STAY), policy=policy, stdin=subprocess.DEVNULL, stdout=write, cwd="/")
            os.close(write)
            then()
            p.kill()
        finally:
            os._exit(1)
    os.close(write)
    assert os.read(read, 1) == b"x"
    return pid, read


def ended(read: int) -> bool:
    """Wait for the end of the pipe."""
    with open(read, "rb", buffering=0) as pipe:
        return pipe.read() == b""


@pytest.mark.parametrize("end", ["SIGKILL", "SIGTERM", "SIGSTOP and SIGKILL"])
def test_end_of_the_caller_ends_all(chosen: Policy, orphans: Orphans, end: str) -> None:
    """When the caller is gone, in whichever way, the command and all its children die."""
    caller, pipe = start_in_fork(chosen)
    for name in end.split(" and "):
        os.kill(caller, getattr(signal, name))
    assert ended(pipe)
    assert caller in orphans.reap()


def test_exit_of_the_caller_ends_all(chosen: Policy, orphans: Orphans) -> None:
    """When the caller just exits, without a word to its Popen, all end."""
    read, write = os.pipe()
    _, pipe = start_in_fork(chosen, then=lambda: os.read(read, 1) and os._exit(0))
    assert not select.select([pipe], [], [], 0)[0]
    os.write(write, b"x")
    assert ended(pipe)
    orphans.reap()
    os.close(read)
    os.close(write)


def test_exec_of_the_caller_keeps_the_sandbox(chosen: Policy, orphans: Orphans) -> None:
    """A caller that executes another program is the same process: the sandbox lives on until that one ends."""
    read, write = os.pipe()
    out_read, out_write = os.pipe()

    def execute() -> None:
        os.dup2(read, 0)
        os.dup2(out_write, 1)
        os.execvp("cat", ["cat"])

    caller, pipe = start_in_fork(chosen, then=execute)
    os.write(write, b"executed")
    assert os.read(out_read, 8) == b"executed"
    assert not select.select([pipe], [], [], 0)[0]
    os.kill(caller, signal.SIGKILL)
    assert ended(pipe)
    orphans.reap()
    for fd in (read, write, out_read, out_write):
        os.close(fd)


def test_child_of_a_subreaper(chosen: Policy) -> None:
    """A caller that is a subreaper gets pid 1 as its child, and reaps it: no zombies pile up, none is seen by waitpid(-1)."""

    def run() -> list[bool]:
        import ctypes

        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        for _ in range(10):
            assert nsbox.run(["true"], policy=chosen, cwd="/").returncode == 0
        with nsbox.Popen(["cat"], stdin=subprocess.PIPE, policy=chosen, cwd="/") as p:
            is_child = psutil.Process(p.sandbox.init_pid).ppid() == os.getpid()
        left = [child.status() for child in psutil.Process().children(recursive=True)]
        return [is_child, left == []]

    assert in_fork(run) == [True, True]


def test_pid_1_as_caller(policy: Policy, workspace: Path) -> None:
    """A caller that is pid 1 of a container without an init: no zombies pile up."""
    script = """
import os, nsbox, psutil
assert os.getpid() == 1
for _ in range(5):
    assert nsbox.run(["true"], policy=nsbox.Policy.host(), cwd="/").returncode == 0
print([c.status() for c in psutil.Process(1).children()])
"""
    import sys

    command = ["unshare", "-Urpf", "--mount-proc", "--kill-child", sys.executable, "-I", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True)
    if "unshare: " in done.stderr and "unshare failed" in done.stderr:
        pytest.skip(f"no container can be made here: {done.stderr}")
    assert done.stdout == "[]\n", done.stderr


def test_sixteen_sandboxes_at_once(chosen: Policy) -> None:
    """Sandboxes live side by side and end in any order."""
    those = [nsbox.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, policy=chosen) for _ in range(16)]
    assert len({p.sandbox.init_pid for p in those}) == 16
    for number in (7, 3, 15, 0, 8, 1, 14, 2, 13, 4, 12, 5, 11, 6, 10, 9):
        with those[number] as p:
            assert p.communicate(b"%d" % number)[0] == b"%d" % number
    assert [p.returncode for p in those] == [0] * 16


def test_waiting_thread_and_killing_thread(chosen: Policy) -> None:
    """One thread waits, another one kills."""
    with nsbox.Popen(["cat"], stdin=subprocess.PIPE, policy=chosen) as p:
        killer = threading.Thread(target=p.kill)
        killer.start()
        assert p.wait(timeout=30) == -signal.SIGKILL
        killer.join()
