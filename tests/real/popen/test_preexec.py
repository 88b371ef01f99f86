"""preexec_fn: Python code in the command, confined already, before it executes; the plain Popen is the control."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from nsbox_testing.running import Face, in_fork, python

import nsbox
from nsbox import Limits, Policy

STATUS = "grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status"


def output(sub: Face, *command: str, **options: object) -> str:
    return sub.run(command, stdout=subprocess.PIPE, text=True, check=True, **options).stdout.strip()


def test_it_runs_in_the_command(sub: Face, workspace: Path) -> None:
    """It is called in the process that becomes the program, in its directory, with its streams and mask."""
    marks = str(workspace / "marks")

    def mark() -> None:
        with open(marks, "w") as file:
            file.write(f"{os.getpid()} {os.getcwd()} {os.umask(0o22):o}")
        os.write(1, b"from preexec_fn; ")

    said = output(sub, "sh", "-c", "echo $$", preexec_fn=mark, cwd=workspace, umask=0o27)
    words = Path(marks).read_text().split()
    assert said == f"from preexec_fn; {words[0]}"
    assert words[1:] == [str(workspace), "27"]
    assert words[0] == "2" or not sub.isolated


@pytest.mark.parametrize("kind", ["workspace", "host"])
def test_it_is_confined(policy: Policy, kind: str) -> None:
    """When it runs, there are no privileges left to lose, and nothing of the host to see."""
    chosen = policy if kind == "workspace" else Policy.host()
    seen = os.memfd_create("seen")

    def look() -> None:
        with open("/proc/self/status") as file:
            facts = dict(line.split(":\t", 1) for line in file if ":\t" in line)
        names = ("CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp")
        os.write(seen, " ".join(facts[name].strip() for name in names).encode())
        os.write(seen, b" visible" if kind == "workspace" and os.path.exists("/run") else b" absent")

    nsbox.run(["true"], policy=chosen, preexec_fn=look, check=True)
    # Uid 0 can make sandboxes under Policy.host(), by CAP_SETFCAP.
    kept = f"{1 << 31:016x}" if kind == "host" and os.geteuid() == 0 else "0" * 16
    assert os.pread(seen, 200, 0).decode().split() == [kept] * 3 + ["1", "2", "absent"]
    os.close(seen)


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_an_exception(sub: Face, error: type[BaseException]) -> None:
    """What it raises stops the start, whatever it is."""

    def fail() -> None:
        raise error("from preexec_fn")

    with pytest.raises(subprocess.SubprocessError, match=r"^Exception occurred in preexec_fn\.$"):
        sub.run(["true"], preexec_fn=fail)


def test_it_may_end_the_command(sub: Face) -> None:
    """os._exit() and a signal are the command's end: a status, no error."""
    assert sub.run(["true"], preexec_fn=lambda: os._exit(5)).returncode == 5
    assert sub.run(["true"], preexec_fn=lambda: os.kill(os.getpid(), signal.SIGKILL)).returncode == -signal.SIGKILL


def test_a_program_that_does_not_exist(sub: Face) -> None:
    """Errors of exec are reported as ever."""
    with pytest.raises(FileNotFoundError) as found:
        sub.run(["/no/such"], preexec_fn=lambda: None)
    assert found.value.filename == "/no/such"


def test_sessions(sub: Face) -> None:
    """os.setsid, the commonest of all, works also where the policy makes a session; without it the policy still does."""
    script = "import os; print(os.getsid(0) == os.getpid())"
    assert output(sub, *python(script), preexec_fn=os.setsid) == "True"
    expected = "True" if sub.policy is not None and sub.policy.new_session else "False"
    assert output(sub, *python(script), preexec_fn=lambda: None) == expected


def test_a_group_is_no_session(sub: Face) -> None:
    """A command that leads a group can't make a session any more: if the policy asks for one, that is an error."""
    script = "import os; print(os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid())"
    if sub.policy is None or not sub.policy.new_session:
        assert output(sub, *python(script), preexec_fn=os.setpgrp) == "True False"
        return
    with pytest.raises(nsbox.SetupError) as caught:
        sub.run([*python(script)], preexec_fn=os.setpgrp)
    assert caught.value.step == "setsid" and "new_session" in caught.value.hint


def test_descriptors(sub: Face) -> None:
    """It sees the caller's descriptors, and what it opens is closed, except pass_fds."""
    read, write = os.pipe()
    kept = os.dup(write)
    try:

        def use() -> None:
            os.write(write, b"seen")
            os.dup2(write, 77)

        script = "import os; print(sorted(int(fd) for fd in os.listdir('/proc/self/fd')))"
        listing = output(sub, *python(script), preexec_fn=use, pass_fds=[kept])
        assert os.read(read, 10) == b"seen"
        assert f", {kept}, " in listing.replace("]", ", ")
        assert len(listing.split()) == 5  # 0 to 2, the passed one, the listing's own
    finally:
        for fd in (read, write, kept):
            os.close(fd)


def test_environment(sub: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the environment is inherited, what it changes there counts."""
    monkeypatch.setenv("NSBOX_BEFORE", "1")
    inherits = sub.policy is None or sub.policy.inherit_env
    script = "import os; print(*(os.environ.get(n) for n in ('NSBOX_BEFORE', 'NSBOX_PUT')))"
    found = output(sub, *python(script), preexec_fn=lambda: os.putenv("NSBOX_PUT", "2"))
    assert found == ("1 2" if inherits else "None None")
    assert "NSBOX_PUT" not in os.environ


def test_environment_that_the_policy_adds_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it changes counts then too, except for the variables that the policy sets."""

    def put() -> None:
        os.putenv("NSBOX_PUT", "2")
        os.putenv("NSBOX_SET", "no")

    monkeypatch.setenv("NSBOX_BEFORE", "1")
    script = "import os; print(*(os.environ.get(n) for n in ('NSBOX_BEFORE', 'NSBOX_PUT', 'NSBOX_SET')))"
    policy = Policy.host(env={"NSBOX_SET": "3"})
    done = nsbox.run(python(script), policy=policy, preexec_fn=put, stdout=subprocess.PIPE, text=True)
    assert done.stdout == "1 2 3\n"


def test_limits(workspace: Path) -> None:
    """It may lower limits; those of the policy hold, whatever it does."""
    policy = Policy.workspace(workspace, limits=Limits(open_files=100, cpu_seconds=50))

    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        resource.setrlimit(resource.RLIMIT_CPU, (500, 500))

    done = nsbox.run(
        ["sh", "-c", "ulimit -n; ulimit -t"], policy=policy, preexec_fn=lower, stdout=subprocess.PIPE, text=True
    )
    assert done.stdout.split() == ["40", "50"]


def test_signal_mask(sub: Face) -> None:
    """Signals are as in the caller when it runs, and as it leaves them in the program."""
    script = "import signal; print(sorted(int(s) for s in signal.pthread_sigmask(0, [])))"

    def block() -> None:
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])

    assert output(sub, *python(script), preexec_fn=block) == f"[{int(signal.SIGUSR2)}]"


def test_the_caller_stays_as_it_is(sub: Face) -> None:
    """Hooks of os.register_at_fork() run as in a fork; afterwards garbage is collected as before, in the caller."""

    def hooks() -> list[object]:
        called: list[str] = []
        os.register_at_fork(
            before=lambda: called.append("before"),
            after_in_parent=lambda: called.append("parent"),
            after_in_child=lambda: called.append("child"),
        )
        read, write = os.pipe()
        sub.run(["true"], preexec_fn=lambda: os.write(write, ",".join(called).encode()), check=True)
        return [called, os.read(read, 100).decode(), gc.isenabled(), os.umask(0o22) == 0o22]

    os.umask(0o22)
    assert in_fork(hooks) == [["before", "parent"], "before,child", True, True]


def test_with_other_threads(policy: Policy) -> None:
    """Other threads of the caller go on, and are not in the command."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():  # asks for the GIL all the time
            bytes(100_000)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        counted = os.memfd_create("counted")
        for _ in range(5):
            nsbox.run(
                ["true"],
                policy=policy,
                preexec_fn=lambda: os.write(counted, b"%d" % threading.active_count()),
                check=True,
            )
        assert os.pread(counted, 10, 0) == b"11111"
        os.close(counted)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.as_root("other ids")
def test_other_ids(workspace: Path) -> None:
    """user=, group= and extra_groups= have been set when it runs."""
    workspace.chmod(0o777)
    seen = os.memfd_create("seen")
    policy = Policy.workspace(workspace, ids="full")
    nsbox.run(
        ["true"],
        policy=policy,
        cwd="/",
        user=1234,
        group=4321,
        extra_groups=[7],
        preexec_fn=lambda: os.write(seen, f"{os.getresuid()} {os.getresgid()} {os.getgroups()}".encode()),
        check=True,
    )
    assert os.pread(seen, 100, 0) == b"(1234, 1234, 1234) (4321, 4321, 4321) [7]"
    os.close(seen)


def test_output_after_a_failure(sub: Face) -> None:
    """Nothing that the caller has buffered is written twice: the command's copy of it is dropped."""
    script = (
        "import sys, subprocess, nsbox\n"
        "sys.stdout.write('once ')\n"
        f"run = {'subprocess.run' if not sub.contained else 'nsbox.run'}\n"
        "try: run(['true'], preexec_fn=lambda: 1 / 0)\n"
        "except subprocess.SubprocessError: print('failed')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("once failed\n", "")


REUSED = """
import os, sys
opened = []
# Before those of nsbox: it takes the numbers that are free in the command's process.
os.register_at_fork(after_in_child=lambda: opened.extend(os.open("/dev/null", os.O_RDONLY) for _ in range(30)))
import nsbox
ws, kept, way, closes = sys.argv[1:]

def look():
    if closes == "closes":
        os.close(opened[0])
    lost = [fd for fd in opened if not os.path.samefile(f"/proc/self/fd/{fd}", "/dev/null")]
    names = [os.readlink(f"/proc/self/fd/{fd}") for fd in map(int, os.listdir("/proc/self/fd")) if fd not in opened
             and os.path.lexists(f"/proc/self/fd/{fd}")]
    os.write(1, f"{len(lost)} {[n for n in names if n.startswith(('user:', 'mnt:'))]}".encode())

policy = nsbox.Policy.workspace(ws)
with nsbox.Sandbox(policy, stock=2 if way == "ready" else 0) as box:
    while way == "ready" and len(box._way._kept._ready) < 2:
        box._way._kept.make_ready()
    with box._way._kept.filling:  # until the thread that makes copies has none under way, whose namespaces are open
        pass
    given = {"alone": policy, "ready": box, "copy": box}.get(way)
    if given is not None:
        nsbox.run(["true"], policy=given, preexec_fn=look, check=True)
    else:
        with box.transaction(dir=kept) as tx:
            tx.run(["true"], preexec_fn=look, check=True)
"""


@pytest.mark.parametrize("way", ["alone", "ready", "copy", "transaction"])
def test_nothing_is_closed_twice(workspace: Path, tmp_path: Path, way: str) -> None:
    """What handlers of fork have opened in the command is still theirs, and no namespace of the set-up's is open."""

    def said(closes: str) -> subprocess.CompletedProcess[str]:
        args = (str(workspace), str(tmp_path / "kept"), way, closes)
        return subprocess.run([sys.executable, "-I", "-c", REUSED, *args], capture_output=True, text=True)

    done = said("")
    assert (done.stdout, done.stderr) == ("0 []", "")
    assert "0 []" not in said("closes").stdout  # the control: a descriptor that is missing is seen


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_death_signal_stays(sub: Face, number: int) -> None:
    """PR_SET_PDEATHSIG by preexec_fn is in force in the program; without it the program has what it had."""
    libc = ctypes.CDLL(None)
    code = "import ctypes\nnow = ctypes.c_int()\nctypes.CDLL(None).prctl(2, ctypes.byref(now))\nprint(now.value)"
    assert output(sub, *python(code), preexec_fn=lambda: libc.prctl(1, int(number))) == str(int(number))
    by_thread = sub.policy is not None and sub.policy.backend == "landlock"
    for options in ({}, {"preexec_fn": os.getpid}):
        assert output(sub, *python(code), **options) == ("9" if by_thread else "0")
