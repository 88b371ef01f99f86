"""What a sandbox used up, why it ended, which processes are in it, and what kill_on_exit=False changes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from nsbox_testing.leftovers import status
from nsbox_testing.running import in_fork, python
from nsbox_testing.verdicts import LONG

import nsbox
from nsbox import Limits, Policy, Usage
from nsbox._core import orphans
from nsbox._lifetime import kills

MEGABYTE = 1 << 20
BURN = """
import os, time
def burn(seconds):
    while time.process_time() < seconds: pass
"""


def used(process: nsbox.Popen) -> Usage:
    usage = process.sandbox.usage
    assert usage is not None
    return usage


# ---- usage


def test_none_before_the_end(chosen: Policy) -> None:
    """There is no usage while the command runs, and there is when it has been waited for."""
    with nsbox.Popen(["cat"], policy=chosen, stdin=subprocess.PIPE) as p:
        assert p.sandbox.usage is None
        assert p.poll() is None and p.sandbox.usage is None
    assert used(p).cause == "exit"
    assert used(p) == p.sandbox.usage


def test_what_the_command_used(chosen: Policy) -> None:
    """Processor time and memory of the command itself."""
    p = nsbox.Popen(python(BURN + f"x = b'x' * {300 * MEGABYTE}; burn(0.3)"), policy=chosen)
    p.wait()
    usage = used(p)
    assert usage.is_complete
    assert usage.user + usage.system >= 0.3
    assert usage.wall >= 0.3
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # which the kernel counts as the command's too
    assert 300 * MEGABYTE < usage.max_rss <= max(500 * MEGABYTE, own)


@pytest.mark.parametrize("ends", ["by itself", "with the sandbox", "waited for"])
def test_what_others_used(chosen: Policy, ends: str) -> None:
    """What the command's children used counts, whichever process reaps them: the command, or the init when they are orphans."""
    code = (
        BURN
        + f"""
ready, tell = os.pipe()
if os.fork() == 0:
    os.setsid()
    x = b'x' * {200 * MEGABYTE}
    burn(0.3)
    if {ends!r} == "with the sandbox":
        os.write(tell, b"x")
        time.sleep(1000)
    os._exit(0)
os.close(tell)
if {ends!r} == "waited for": os.wait()
else: os.read(ready, 1)  # until it has said so, or has ended
"""
    )
    p = nsbox.Popen(python(code), policy=chosen)
    p.wait()
    usage = used(p)
    assert usage.is_complete
    assert usage.user + usage.system >= 0.3
    assert usage.max_rss > 200 * MEGABYTE


def test_one_that_goes_late(chosen: Policy) -> None:
    """However long a killed process takes until it has gone, it counts. Here it does as its tracer outside likes."""
    if chosen.base == "host" and os.geteuid() == 0:
        pytest.skip("processes may have other ids, and then pid 1 doesn't wait for long")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    code = BURN + "pid = os.fork()\nif pid == 0: time.sleep(1000)\nprint(flush=True)\nos.read(0, 1)\n"
    p = nsbox.Popen(python(code), policy=chosen, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert p.stdin is not None and p.stdout is not None
    p.stdout.readline()
    orphan = int(Path(f"/proc/{p.pid}/task/{p.pid}/children").read_text())
    if libc.ptrace(0x4206, orphan, 0, 0) < 0:  # PTRACE_SEIZE
        p.kill()
        p.wait()
        pytest.skip(f"no process may be traced here: {os.strerror(ctypes.get_errno())}")
    p.stdin.close()
    while status(orphan)["State"][0] != "Z":
        time.sleep(0.01)
    time.sleep(0.5)  # at least as long as the init waits for processes that it may be unable to kill
    os.waitpid(orphan, 0x40000000)  # __WALL: from here on, the init can reap it
    p.wait()
    assert used(p).is_complete
    p.stdout.close()


@pytest.mark.parametrize("chosen", ["counted", "hidden", "filter", "processes"])
def test_children_that_nobody_reaps(policy: Policy, chosen: str) -> None:
    """Linux counts nothing of a child whose parent ignores SIGCHLD: a judge has to refuse processes.

    What usage says of it is in docs/howto/judge.md. Control: a parent that doesn't ignore it.
    """
    code = (
        BURN
        + f"""
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN if {chosen != "counted"} else signal.SIG_DFL)
try:
    pid = os.fork()
except OSError:
    os._exit(3)
if pid == 0:
    burn(0.5)
    os._exit(0)
try: os.wait()
except OSError: pass
"""
    )
    if chosen == "filter":
        policy = policy.with_(seccomp=nsbox.Filter(rules=[nsbox.Rule(["fork", "vfork", "clone", "clone3"], 11)]))
    elif chosen == "processes":
        policy = policy.with_(limits=Limits(processes=1))
    p = nsbox.Popen(python(code), policy=policy)
    assert p.wait() == (3 if chosen in ("filter", "processes") else 0)
    usage = used(p)
    assert (usage.user + usage.system >= 0.5 * 0.95) is (chosen == "counted")
    assert usage.is_complete


def test_little_is_used_by_little(chosen: Policy) -> None:
    """The control of the others: /bin/true uses next to nothing."""
    p = nsbox.Popen(["true"], policy=chosen)
    p.wait()
    assert used(p).user + used(p).system < 0.2


def test_threads_of_wait(chosen: Policy) -> None:
    """Several threads that wait see the same usage, once."""
    p = nsbox.Popen(["cat"], policy=chosen, stdin=subprocess.PIPE)
    found: list[Usage | None] = []
    threads = [threading.Thread(target=lambda: (p.wait(), found.append(p.sandbox.usage))) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert p.stdin is not None
    p.stdin.close()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1 and found[0] is not None


def test_somebody_else_reaps(chosen: Policy) -> None:
    """When the command's rusage is lost, the rest is still told, as incomplete; its status isn't known, so not 0."""
    p = nsbox.Popen(["sh", "-c", "exit 3"], policy=chosen)
    os.waitpid(p.pid, 0)
    assert p.wait() == 255  # subprocess.Popen says 0
    assert not used(p).is_complete
    assert used(p).cause == "unknown"


def test_init_killed(chosen: Policy) -> None:
    """If the sandbox's init is killed, nobody knows what the others used."""
    p = nsbox.Popen(["cat"], policy=chosen, stdin=subprocess.PIPE)
    os.kill(p.sandbox.init_pid, signal.SIGKILL)
    assert p.wait() == -9
    assert not used(p).is_complete
    assert used(p).cause == "signal"
    assert p.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        p.stdin.close()


SPINS = """
import os, time
for _ in range(2):
    if os.fork() == 0:
        if os.fork() == 0: os.setsid()  # one of them is an orphan when its parent ends
        while time.process_time() < 0.2: pass
        os.write(1, b"x")
        while True: time.sleep(1)
while True: time.sleep(1)
"""


@pytest.mark.parametrize("how", ["kill", "terminate", "SIGKILL to the command", "SIGKILL to pid 1"])
def test_a_kill_counts_what_others_used(chosen: Policy, how: str) -> None:
    """After a kill, children and orphans count; if nobody is left who knows, it says so. Never a silent gap.

    On a machine under load pid 1 may be too late, too: then it isn't complete either.
    """
    p = nsbox.Popen(python(SPINS), policy=chosen, stdout=subprocess.PIPE)
    assert p.stdout is not None
    assert b"".join(p.stdout.read(1) for _ in range(4)) == b"xxxx"  # four processes have used 0.2 s each
    if how == "SIGKILL to pid 1":
        os.kill(p.sandbox.init_pid, signal.SIGKILL)
    elif how == "SIGKILL to the command":
        os.kill(p.pid, signal.SIGKILL)
    else:
        getattr(p, how)()
    p.communicate()
    usage = used(p)
    counts_all = usage.user + usage.system >= 4 * 0.2 * 0.95
    assert counts_all or not usage.is_complete
    if how == "SIGKILL to pid 1":
        assert not usage.is_complete and not counts_all


def test_a_slow_pid_1_has_time_to_report(chosen: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill doesn't end pid 1 while it still counts what others used. The control: it does once pid 1 is late."""
    killed: list[int] = []
    monkeypatch.setattr(nsbox.Popen, "_kill_init", lambda self: killed.append(self.pid))
    monkeypatch.setattr(kills, "_ALONE", LONG)
    p = nsbox.Popen(python(SPINS), policy=chosen, stdout=subprocess.PIPE)
    assert p.stdout is not None
    assert b"".join(p.stdout.read(1) for _ in range(4)) == b"xxxx"
    os.kill(p.sandbox.init_pid, signal.SIGSTOP)
    p.kill()
    for _ in range(20):  # each a step of the kill, some after the command was reaped
        with pytest.raises(subprocess.TimeoutExpired):
            p.wait(timeout=0.03)
    assert not killed
    monkeypatch.setattr(kills, "_ALONE", 0)
    for _ in range(20):
        with pytest.raises(subprocess.TimeoutExpired):
            p.wait(timeout=0.03)
    assert killed
    os.kill(p.sandbox.init_pid, signal.SIGCONT)
    p.communicate()
    assert used(p).user + used(p).system >= 4 * 0.2 * 0.95 or not used(p).is_complete


# ---- cause


@pytest.mark.parametrize(
    ("code", "limits", "cause", "status"),
    [
        ("pass", Limits(), "exit", 0),
        ("raise SystemExit(137)", Limits(), "exit", 137),
        ("import os; os.kill(os.getpid(), 15)", Limits(), "signal", -15),
        ("import os; os.kill(os.getpid(), 24)", Limits(), "signal", -24),
        ("while True: pass", Limits(cpu_seconds=1), "limit", -24),
        (
            "import signal; signal.signal(25, signal.SIG_DFL); open('/tmp/x', 'wb').write(bytes(9999))",
            Limits(file_size=100),
            "signal",  # nothing tells it from the next one
            -25,
        ),
        # A command's own signals: no limit was reached.
        ("import os, signal; signal.signal(25, 0); os.kill(os.getpid(), 25)", Limits(file_size="1G"), "signal", -25),
        ("import os; os.kill(os.getpid(), 24)", Limits(cpu_seconds=100), "signal", -24),
        ("import os; os.kill(os.getpid(), 9)", Limits(cpu_seconds=100), "signal", -9),
    ],
)
def test_cause(policy: Policy, code: str, limits: Limits, cause: str, status: int) -> None:
    """Why a command ended: by itself, by a signal, by one of its limits."""
    p = nsbox.Popen(python(code), policy=policy.with_(limits=limits))
    assert p.wait() == status
    assert used(p).cause == cause


@pytest.mark.parametrize("method", ["wait", "communicate"])
def test_timeout_is_the_cause(chosen: Policy, method: str) -> None:
    """A command killed after TimeoutExpired ended by the timeout; one that ends by itself after it didn't."""
    for killed in (True, False):
        read, write = os.pipe()
        with nsbox.Popen(["cat"], policy=chosen, stdin=read, stdout=subprocess.PIPE) as p:
            os.close(read)
            with pytest.raises(subprocess.TimeoutExpired):
                getattr(p, method)(timeout=0.01)
            if killed:
                p.kill()
            os.close(write)
            p.communicate()
        assert used(p).cause == ("timeout" if killed else "exit")


def test_a_signal_of_its_own_is_no_timeout(chosen: Policy) -> None:
    """After a TimeoutExpired too: only the signal that was sent then is the timeout's."""
    read, write = os.pipe()
    code = "import os, sys; sys.stdin.read(); os.kill(os.getpid(), 11)"
    with nsbox.Popen(python(code), policy=chosen, stdin=read) as p:
        os.close(read)
        with pytest.raises(subprocess.TimeoutExpired):
            p.wait(timeout=0.01)
        os.close(write)
    assert (p.returncode, used(p).cause) == (-11, "signal")


# ---- processes


def test_processes(chosen: Policy) -> None:
    """All that runs in the sandbox, orphans and processes of other sessions too; not the init, not the caller's others."""
    code = """
import os, sys
for n in range(3):
    if os.fork() == 0:
        if n: os.setsid()
        if n == 2 and os.fork(): os._exit(0)
        print(n, flush=True)
        sys.stdin.read()
        os._exit(0)
sys.stdin.read()
"""
    other = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    with nsbox.Popen(python(code), policy=chosen, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as p:
        assert p.stdout is not None
        assert sorted(p.stdout.readline() for _ in range(3)) == ["0\n", "1\n", "2\n"]
        found = [process for process in p.sandbox.processes() if process.status() != psutil.STATUS_ZOMBIE]
        assert len(found) == 4
        assert found[0].pid == p.pid
        assert {process.name() for process in found} == {found[0].name()}
        assert {p.sandbox.init_pid, os.getpid(), other.pid}.isdisjoint(process.pid for process in found)
    assert p.sandbox.processes() == []
    other.communicate()


def test_processes_needs_psutil(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without psutil the message says what to install."""
    monkeypatch.setitem(sys.modules, "psutil", None)
    with (
        nsbox.Popen(["cat"], policy=policy, stdin=subprocess.PIPE) as p,
        pytest.raises(ImportError, match="pip install psutil"),
    ):
        p.sandbox.processes()


# ---- kill_on_exit

KEEPS_THE_PIPE = """
import os, sys
print("early", flush=True)
if os.fork() == 0:
    os.setsid()
    sys.stdin.read()
    print("late", flush=True)
"""


def test_background_ends_with_the_command(chosen: Policy) -> None:
    """communicate() returns though a grandchild keeps the pipe open: it has ended with the command."""
    read, write = os.pipe()  # never written to: the grandchild would wait for ever
    try:
        with nsbox.Popen(python(KEEPS_THE_PIPE), policy=chosen, stdin=read, stdout=subprocess.PIPE) as p:
            assert p.communicate(timeout=60)[0] == b"early\n"
            assert p.returncode == 0
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.parametrize("how", ["option", "policy"])
def test_background_goes_on(chosen: Policy, how: str) -> None:
    """With kill_on_exit=False it goes on: wait() returns before, communicate() at the end of the pipe. As the stdlib's."""
    options: dict[str, bool] = {"kill_on_exit": False} if how == "option" else {}
    policy = chosen if how == "option" else chosen.with_(kill_on_exit=False)
    p = nsbox.Popen(
        python(KEEPS_THE_PIPE), policy=policy, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
    )
    init = os.pidfd_open(p.sandbox.init_pid)
    assert p.wait(timeout=60) == 0
    assert not used(p).is_complete
    (left,) = p.sandbox.processes()
    assert left.is_running()
    assert p.communicate("", timeout=60)[0] == "early\nlate\n"
    # When nothing runs in it any more, the sandbox ends by itself.
    assert psutil.wait_procs([left], timeout=60)[1] == []
    assert select.select([init], [], [], 60)[0]
    os.close(init)
    orphans.leftovers.sweep()  # or the end of the next sandbox


def test_an_option_wins_over_the_policy(chosen: Policy) -> None:
    """kill_on_exit=True for one command under a policy that says False."""
    read, write = os.pipe()
    try:
        policy = chosen.with_(kill_on_exit=False)
        with nsbox.Popen(
            python(KEEPS_THE_PIPE), policy=policy, stdin=read, stdout=subprocess.PIPE, kill_on_exit=True
        ) as p:
            assert p.communicate(timeout=60)[0] == b"early\n"
    finally:
        os.close(read)
        os.close(write)


STOPPER = """
import psutil, os, signal
def inits():  # the caller's: other runs of these tests may be going on
    alive = (p for p in psutil.Process(os.getppid()).children(True) if p.status() != psutil.STATUS_ZOMBIE)
    return {p.pid for p in alive if p.name() == "nsbox-init"}
before = inits()
print("ready", flush=True)
input()
while not (found := inits() - before): pass  # it may not have got its name yet
(new,) = found
os.kill(new, signal.SIGSTOP)
while psutil.Process(new).status() != psutil.STATUS_STOPPED: pass
print(new, flush=True)
"""


@pytest.mark.parametrize("stays", [False, True])
def test_reaped_before_pid_1_has_looked(chosen: Policy, stays: bool) -> None:
    """A command that ends and is reaped before pid 1 has opened a pidfd of it: the accounts, and what is to stay, aren't lost.

    preexec_fn runs while pid 1 waits for the end of the set-up; there another process stops it.
    """
    command = [sys.executable, "-c", STOPPER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as stopper:
        assert stopper.stdin is not None and stopper.stdout is not None
        assert stopper.stdout.readline() == b"ready\n"
        asks, answers = stopper.stdin.fileno(), stopper.stdout.fileno()
        p = nsbox.Popen(
            python("import os, signal\nif os.fork() == 0: signal.pause()"),
            policy=chosen,
            kill_on_exit=not stays,
            preexec_fn=lambda: os.write(asks, b"\n") and os.read(answers, 1),
        )
        init = p.sandbox.init_pid
        if stays:
            assert p.wait() == 0
        else:
            while not p.sandbox.reaped:
                assert p.poll() is None
        os.kill(init, signal.SIGCONT)
        assert p.wait() == 0
        if stays:
            end = os.pidfd_open(init)
            (left,) = p.sandbox.processes()
            assert not select.select([end], [], [], 0.1)[0] and left.is_running()
            os.kill(init, signal.SIGKILL)
            select.select([end], [], [])
            os.close(end)
            orphans.leftovers.sweep()
        else:
            assert used(p).is_complete


def test_it_ends_with_the_caller(chosen: Policy) -> None:
    """What goes on after the command doesn't go on after the caller."""
    read, write = os.pipe()
    alive, tell = os.pipe()

    def start() -> int:
        os.close(write)
        os.close(alive)
        p = nsbox.Popen(python(KEEPS_THE_PIPE), policy=chosen, stdin=read, stdout=tell, kill_on_exit=False)
        status: int = p.wait()
        return status

    assert in_fork(start) == 0
    os.close(tell)
    with open(alive, "rb") as file:
        assert file.read() == b"early\n"  # ends: nobody holds the other end
    os.close(read)
    os.close(write)


def test_inits_of_a_subreaper(chosen: Policy) -> None:
    """A caller that is a subreaper reaps the inits of such sandboxes too, when they have ended; and no others."""

    def run() -> list[bool]:
        import ctypes

        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        policy = chosen.with_(kill_on_exit=False)
        ends = []
        for _ in range(5):
            with nsbox.Popen(["true"], policy=policy, cwd="/") as p:
                ends.append(os.pidfd_open(p.sandbox.init_pid))
        with nsbox.Popen(
            python(KEEPS_THE_PIPE), policy=policy, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as living:
            assert living.wait() == 0
            for end in ends:
                assert select.select([end], [], [], 60)[0]
                os.close(end)
            nsbox.run(["true"], policy=chosen, cwd="/")
            left = [child.pid for child in psutil.Process().children()]
            return [left == [living.sandbox.init_pid], not orphans.orphans.piling_up]

    assert in_fork(run) == [True, True]


def test_it_is_said(policy: Policy) -> None:
    """explain() tells which it is."""
    assert "when the command ends or the caller dies" in nsbox.explain(policy)
    assert "when the command ends" not in nsbox.explain(policy.with_(kill_on_exit=False))


def test_wrong_values(policy: Policy) -> None:
    """kill_on_exit is a bool."""
    with pytest.raises(nsbox.PolicyError, match="kill_on_exit"):
        policy.with_(kill_on_exit=1)
    for value in ("no", 0, 1, 1.0):
        with pytest.raises(nsbox.PolicyError, match="kill_on_exit"):
            nsbox.Popen(["true"], policy=policy, kill_on_exit=value)  # type: ignore[arg-type]


def test_whose_memory(chosen: Policy) -> None:
    """The kernel counts a command's memory from before its exec. So a small one shows the caller's, and says so."""
    for code, is_own in (("true", False), (f"python3 -c 'x = bytearray({600 * MEGABYTE})'", True)):
        p = nsbox.Popen(["sh", "-c", code], policy=chosen)
        assert p.wait() == 0
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        assert used(p).is_rss_own is is_own is (used(p).max_rss > peak)
        assert used(p).as_dict()["rss_own"] is is_own


def test_memory_in_a_session(policy: Policy) -> None:
    """A session's commands are started by its small pid 1: their memory is their own."""
    with nsbox.Sandbox(policy) as box, box.session() as session:
        usage = session.shell("true").usage
        assert usage is not None and usage.is_rss_own
        assert usage.max_rss < resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
