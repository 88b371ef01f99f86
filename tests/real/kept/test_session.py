"""Sessions: one sandbox for many commands, with all that they leave behind."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from nsbox_testing.running import in_fork, python

import nsbox
from nsbox import Policy, Sandbox, Session, UnavailableError
from nsbox._policy.losses import LOSSES


@pytest.fixture
def box(policy: Policy) -> Iterator[Sandbox]:
    with Sandbox(policy, stock=0) as made:
        yield made


@pytest.fixture
def s(box: Sandbox) -> Iterator[Session]:
    with box.session() as made:
        yield made


def said(s: Session, command: str) -> str:
    done = s.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return str(done.stdout)


# ---- what stays


@pytest.mark.vm
def test_what_one_leaves_the_next_finds(s: Session) -> None:
    """Files in /tmp, processes, the namespaces: all is the same for each."""
    said(s, "echo x > /tmp/x; sleep 1000 >/dev/null 2>&1 & echo $! > /tmp/pid")
    assert said(s, "cat /tmp/x; cat /proc/$(cat /tmp/pid)/comm") == "x\nsleep\n"
    names = "pid mnt net ipc uts user"
    assert len({said(s, f"cd /proc/self/ns; readlink {names}") for _ in range(3)}) == 1


@pytest.mark.vm
def test_a_server_is_reached_by_the_next(s: Session) -> None:
    """The network is the session's own: its loopback, and nothing else."""
    code = "import socket; s = socket.create_server(('127.0.0.1', 8000)); print('up', flush=True); s.accept()[0].send(b'hello')"
    ask = "import socket; print(socket.create_connection(('127.0.0.1', 8000)).recv(9))"
    with s.Popen(python(code), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout.readline() == "up\n"
        assert s.check_output(python(ask), text=True) == "b'hello'\n"
        assert server.wait() == 0


def test_the_next_session_finds_nothing(box: Sandbox) -> None:
    with box.session() as one, box.session() as other:
        said(one, "echo x > /tmp/x; sleep 1000 >/dev/null 2>&1 &")
        assert said(other, "ls -d /tmp/x 2>&1; ls /proc | grep -c '^[0-9]'").splitlines()[-1] in {"3", "4", "5"}
        assert "No such file" in said(other, "ls /tmp/x 2>&1; :")
    assert box.run(["ls", "/tmp/x"], stderr=-3).returncode != 0


def test_processes(s: Session) -> None:
    are_there = "for pid in $one $!; do until grep -qx sleep /proc/$pid/comm; do :; done; done"
    s.run(f"sleep 1000 & one=$!; sleep 1000 & {are_there}", check=True)
    with s.Popen(["cat"], stdin=subprocess.PIPE) as cat:
        names = sorted(process.name() for process in s.processes())
        assert names == ["cat", "sleep", "sleep"]
        assert cat.pid in {process.pid for process in s.processes()}
    s.close()
    assert s.processes() == []


# ---- each command as usual


def test_statuses_and_signals(s: Session) -> None:
    """Exit statuses, ends by a signal, signals sent, as of any child."""
    assert s.run("exit 3").returncode == 3
    assert s.run(["sh", "-c", "kill -SEGV $$"]).returncode == -signal.SIGSEGV
    with s.Popen(["sleep", "1000"]) as sleep:
        assert sleep.poll() is None
        sleep.terminate()
        assert sleep.wait(timeout=10) == -signal.SIGTERM
        sleep.kill()  # no error
    with s.Popen(["sh", "-c", "trap 'exit 7' USR1; echo up; read x"], stdin=-1, stdout=-1, text=True) as trap:
        assert trap.stdout.readline() == "up\n"
        trap.send_signal(signal.SIGUSR1)  # SIGINT may be ignored here, as in a shell's background
        assert trap.wait() == 7


def test_stdio(s: Session, tmp_path: Path) -> None:
    assert s.run(["cat"], input="in", capture_output=True, text=True).stdout == "in"
    done = s.run("echo out; echo err >&2", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.stdout == "out\nerr\n"
    assert s.run("readlink /proc/self/fd/0", stdin=subprocess.DEVNULL, capture_output=True).stdout == b"/dev/null\n"
    with open(tmp_path / "out", "w") as out:
        s.run("echo to a file", stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "to a file\n"
    assert len(s.run(["cat"], input=b"x" * 1_000_000, capture_output=True).stdout) == 1_000_000


LIST = "import os; print([int(fd) for fd in os.listdir('/proc/self/fd')])"


def test_descriptors(s: Session) -> None:
    """Only those that it was given, by their numbers."""
    reader, writer = os.pipe()
    try:
        assert s.check_output(python(LIST), text=True) == "[0, 1, 2, 3]\n"  # 3: of the list
        high = os.dup2(writer, 77, inheritable=False)
        for fd in (writer, high):
            s.run(["sh", "-c", f"echo {fd} >/proc/self/fd/{fd}"], pass_fds=[fd], check=True)
            assert os.read(reader, 99) == b"%d\n" % fd
        passed = s.check_output(python(LIST), text=True, pass_fds=[high, writer])
        assert str(high) in passed
        assert str(writer) in passed
        os.close(high)
    finally:
        os.close(reader)
        os.close(writer)


def test_places_and_variables(s: Session, workspace: Path) -> None:
    (workspace / "sub").mkdir()
    assert s.check_output(["pwd"], text=True).strip() == str(workspace)
    assert s.check_output(["pwd"], cwd=workspace / "sub", text=True).strip() == str(workspace / "sub")
    assert s.check_output(["env"], env={"A": "b"}) == b"A=b\n"
    assert "TMPDIR=/tmp\n" in s.check_output(["env"], text=True)
    assert s.check_output("umask", umask=0o77, text=True) == "0077\n"
    assert s.run("", executable="/bin/sh").returncode == 0


def test_what_cant_be_executed(s: Session, workspace: Path) -> None:
    """The standard library's errors, with its file names."""
    with pytest.raises(FileNotFoundError) as caught:
        s.run(["nonexistent"])
    assert caught.value.filename == "nonexistent"
    (workspace / "file").write_text("x")
    with pytest.raises(PermissionError):
        s.run([f"{workspace}/file"])
    with pytest.raises(FileNotFoundError) as caught:
        s.run(["true"], cwd=workspace / "missing")
    assert os.fspath(caught.value.filename) == str(workspace / "missing")
    assert s.run(["true"]).returncode == 0


def test_timeouts(s: Session) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        s.run("exec sleep 1000", timeout=0.1)
    with s.Popen(["sleep", "1000"]) as sleep:
        with pytest.raises(subprocess.TimeoutExpired):
            sleep.wait(timeout=0.05)
        sleep.kill()
    assert s.processes() == []


def test_usage(s: Session) -> None:
    with s.Popen(python("sum(range(3_000_000))")) as process:
        pass
    assert process.sandbox.usage.user > 0
    assert process.sandbox.usage.max_rss > 1 << 20
    assert process.sandbox.backend == "namespaces"


def test_asyncio(s: Session) -> None:
    async def work() -> tuple[int, bytes]:
        one = await s.create_subprocess_exec("sh", "-c", "echo hello; exit 5", stdout=subprocess.PIPE)
        out, _ = await one.communicate()
        two = await s.create_subprocess_shell("sleep 1000")
        two.kill()
        assert await two.wait() == -signal.SIGKILL
        return await one.wait(), out

    assert asyncio.run(work()) == (5, b"hello\n")


def test_whatever_takes_a_policy(s: Session) -> None:
    assert nsbox.check_output(["echo", "x"], policy=s) == b"x\n"
    nsbox.install()
    with nsbox.confined(s):
        subprocess.run("echo x > /tmp/from-a-library", shell=True, check=True)
    assert said(s, "cat /tmp/from-a-library") == "x\n"


def test_threads(s: Session) -> None:
    """All at once, each with its own status and output."""
    found: list[tuple[int, int, str]] = []

    def work(n: int) -> None:
        for _ in range(20):
            done = s.run(f"echo {n}; exit {n}", capture_output=True, text=True)
            found.append((n, done.returncode, done.stdout))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 160
    assert all(status == n and out == f"{n}\n" for n, status, out in found)


def test_more_than_there_is_room_for(s: Session) -> None:
    """So many at once; one more is refused, and there is room again when they have ended."""
    running = [s.Popen(["sleep", "1000"], stdin=-3, stdout=-3, stderr=-3) for _ in range(256 - 1)]
    with s.Popen(["sleep", "1000"]) as last:
        with pytest.raises(BlockingIOError):
            s.run(["true"])
        last.kill()
    for process in running:
        process.kill()
    assert {process.wait() for process in running} == {-9}
    assert s.run(["true"]).returncode == 0


@pytest.mark.parametrize("options", [{"preexec_fn": print}, {"close_fds": False}], ids=str)
def test_what_only_a_child_can_have(s: Session, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="can't be had in a session"):
        s.run(["true"], **options)


def test_pids(s: Session) -> None:
    """However short a command is."""
    for _ in range(200):
        with s.Popen(["true"]) as process:
            assert process.pid > 1


def test_default_timeouts_of_sockets(s: Session) -> None:
    socket.setdefaulttimeout(0.05)
    try:
        with s.Popen(["sleep", "1"]) as sleep:
            assert sleep.poll() is None
            assert sleep.wait() == 0
    finally:
        socket.setdefaulttimeout(None)


CLOSED = """
import os, sys, nsbox
box = nsbox.Sandbox(nsbox.Policy.workspace(sys.argv[1]), stock=0)
out = os.dup(1)
for fd in (0, 1, 2): os.close(fd)
secret = open("/etc/hostname")
with box.session() as s:
    r, w = os.pipe()
    s.run(["ls", "-l", "/proc/self/fd"], stdout=w)
    os.close(w)
    os.write(out, os.read(r, 9999))
"""


def test_closed_standard_descriptors(workspace: Path) -> None:
    """What is opened in their place is nothing of a command's."""
    command = [sys.executable, "-I", "-c", CLOSED, str(workspace)]
    said = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    assert "pipe:" in said
    assert "hostname" not in said
    assert "socket" not in said


def test_high_descriptors(workspace: Path) -> None:
    """Up to the limit, and crosswise."""
    with Sandbox(Policy.workspace(workspace, limits=nsbox.Limits(open_files=64))) as box, box.session() as s:
        reader, writer = os.pipe()
        try:
            high = os.dup2(writer, 63, inheritable=False)
            s.run(["sh", "-c", "echo x >/proc/self/fd/63"], pass_fds=[high], check=True)
            assert os.read(reader, 9) == b"x\n"
            s.run(
                ["sh", "-c", "echo out; echo err >&2"], stdout=writer, stderr=writer, pass_fds=range(3, 9), check=True
            )
            assert os.read(reader, 99) == b"out\nerr\n"
            os.close(high)
        finally:
            os.close(reader)
            os.close(writer)


STOP = """
import os, time
until = time.monotonic() + 20
while time.monotonic() < until:
    for pid in range(3, 60):
        if pid != os.getpid():
            try: os.kill(pid, 19)
            except OSError: pass
"""


def test_a_command_that_stops_all_others(workspace: Path) -> None:
    """It can keep the next from starting, and no more: pid 1 doesn't wait for it, and sees the end of the caller."""
    with Sandbox(Policy.workspace(workspace)) as box, box.session() as s:
        stopper = s.Popen(python(STOP))
        errors: list[BaseException] = []

        def start() -> None:
            try:
                for _ in range(200):
                    s.run(["true"])
            except (OSError, ValueError) as error:
                errors.append(error)

        thread = threading.Thread(target=start)
        thread.start()
        thread.join(0.5)
        s.close()  # returns
        thread.join(20)
        assert not thread.is_alive()
        assert stopper.wait(timeout=10) == -signal.SIGKILL


# ---- the end


def test_close(box: Sandbox) -> None:
    """Everything is gone when it returns, and a wait for the command ends."""
    s = box.session()
    running = s.Popen("sleep 1000 & sleep 1000")
    inside = [process.pid for process in s.processes()]
    s.close()
    assert running.wait(timeout=10) == -signal.SIGKILL
    for pid in inside:
        assert not os.path.exists(f"/proc/{pid}")
    for use in (lambda: s.run("true"), s._open_way):
        with pytest.raises(ValueError, match="the session is closed"):
            use()
    s.close()


def test_unclosed(box: Sandbox) -> None:
    s = box.session()
    with pytest.warns(ResourceWarning, match="unclosed <nsbox.Session"):
        del s
        gc.collect()


def test_its_pid_1_is_killed_from_outside(box: Sandbox) -> None:
    s = box.session()
    with s.Popen(["sleep", "1000"]) as sleep:
        os.kill(s._open_way().pid, signal.SIGKILL)
        assert sleep.wait(timeout=10) == -signal.SIGKILL
    until = time.monotonic() + 10
    while not s.has_ended and time.monotonic() < until:
        time.sleep(0.01)
    assert s.has_ended
    with pytest.raises(nsbox.SetupError, match="it has ended"):
        s.run("true")
    s.close()


LIVE = """
import sys, nsbox
s = nsbox.Sandbox(nsbox.Policy.workspace(sys.argv[1]), stock=0).session()
s.run("sleep 1000 & sleep 1000 &")
print(*[process.pid for process in s.processes()], s._open_way().pid, flush=True)
s.run("sleep 1000")
"""


def test_the_caller_is_killed(workspace: Path) -> None:
    """Then so is the session."""
    with subprocess.Popen([sys.executable, "-I", "-c", LIVE, str(workspace)], stdout=-1, text=True) as caller:
        pids = caller.stdout.readline().split()
        assert len(pids) == 3
        time.sleep(0.05)
        caller.kill()
    until = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{pid}") for pid in pids) and time.monotonic() < until:
        time.sleep(0.01)
    assert [pid for pid in pids if os.path.exists(f"/proc/{pid}")] == []


def test_a_thread_that_began_it_ends(box: Sandbox) -> None:
    made: list[Session] = []
    thread = threading.Thread(target=lambda: made.append(box.session()))
    thread.start()
    thread.join()
    with made[0] as s:
        assert said(s, "echo here") == "here\n"


def test_a_fork_has_none_of_it(s: Session) -> None:
    def child() -> None:
        with pytest.raises(ValueError, match="closed"):
            s.run("true")
        s.close()

    in_fork(child)
    assert said(s, "echo here") == "here\n"


def test_a_fork_doesnt_take_the_end(s: Session) -> None:
    """Of a command that is its parent's."""
    with s.Popen("read x; exit 7", stdin=subprocess.PIPE) as process:

        def child() -> None:
            assert process.poll() is not None  # as of a process that is no child

        in_fork(child)
        process.communicate(b"\n")
    assert process.returncode == 7


def test_refused(workspace: Path) -> None:
    with pytest.raises(UnavailableError, match="needs namespaces of its own"):
        Sandbox(Policy.workspace(workspace, backend="landlock", degrade=set(LOSSES))).session()
    with pytest.raises(UnavailableError, match="disabled"):
        Sandbox(Policy.workspace(workspace), mode="disabled").session()
    box = Sandbox(Policy.workspace(workspace))
    box.close()
    with pytest.raises(ValueError, match="closed"):
        box.session()


def test_limits_hold_for_all(workspace: Path) -> None:
    limits = nsbox.Limits(open_files=64, file_size=1000)
    with Sandbox(Policy.workspace(workspace, limits=limits)) as box, box.session() as s:
        assert said(s, "ulimit -n") == "64\n"
        done = s.run("head -c 2000 /dev/zero > big", capture_output=True)
        assert done.returncode != 0
    assert (workspace / "big").stat().st_size == 1000


@pytest.mark.parametrize(
    "change", [{"uid": 1234}, {"network": "host"}, {"seccomp": "hardened"}, {"nested": True}], ids=str
)
def test_other_policies(workspace: Path, change: dict[str, object]) -> None:
    with Sandbox(Policy.workspace(workspace, **change)) as box, box.session() as s:
        assert said(s, "echo x > x; id -u").strip() == str(change.get("uid", os.geteuid()))
    with Sandbox(Policy.host()) as box, box.session() as s:
        assert said(s, "echo here") == "here\n"
