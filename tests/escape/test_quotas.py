"""What the kernel counts by user is not used up by one command: queued signals, message queues, descriptors in flight.

Control: without the workspace's limits the same command takes all there is, and what the user's programs ask for fails.
"""

from __future__ import annotations

import array
import ctypes
import os
import platform
import resource
import socket
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import nsbox
from nsbox import Limits, Policy
from nsbox._backends import compile_policy
from nsbox._machine.probe import probe

libc = ctypes.CDLL(None, use_errno=True)
MQ_OPEN, MQ_UNLINK = (240, 241) if platform.machine() == "x86_64" else (180, 181)
QUEUE = struct.pack("8q", 0, 10, 8192, 0, 0, 0, 0, 0)
FEW = 2000  # of the caller's own, for the control: nothing of the machine is used up


def timer() -> bool:
    made = ctypes.c_void_p()
    if libc.timer_create(0, None, ctypes.byref(made)) < 0:
        return False
    libc.timer_delete(made)
    return True


def queue() -> bool:
    name = b"nsbox-test-%d" % os.getpid()
    fd = libc.syscall(ctypes.c_long(MQ_OPEN), name, 0x42, 0o600, ctypes.create_string_buffer(QUEUE))
    if fd >= 0:
        os.close(fd)
        libc.syscall(ctypes.c_long(MQ_UNLINK), name)
    return bool(fd >= 0)


def rights() -> bool:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))])
        except OSError:
            return False
    return True


START = f"""
import array, ctypes, os, resource, signal, socket, struct, sys
libc, queue, MQ_OPEN, n = ctypes.CDLL(None), {QUEUE!r}, {MQ_OPEN}, 0
def raised(what):
    soft, hard = resource.getrlimit(what)
    resource.setrlimit(what, (hard, hard))
"""
TAKE: dict[str, tuple[Callable[[], bool], int, str]] = {
    "signals": (
        timer,
        resource.RLIMIT_SIGPENDING,
        """
        raised(resource.RLIMIT_SIGPENDING)
        signal.pthread_sigmask(0, range(34, 65))
        libc.sigqueue.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
        while libc.sigqueue(os.getpid(), 40, 0) == 0: n += 1
        """,
    ),
    "queues": (
        queue,
        resource.RLIMIT_MSGQUEUE,
        """
        raised(resource.RLIMIT_MSGQUEUE)
        while libc.syscall(ctypes.c_long(MQ_OPEN), b"q%d" % n, 0x42, 0o600, queue) >= 0: n += 1
        """,
    ),
    "descriptors": (
        rights,
        resource.RLIMIT_NOFILE,
        """
        raised(resource.RLIMIT_NOFILE)
        keep = []
        try:
            while n < 100000:
                a, b = socket.socketpair()
                keep.append((a, b))
                for _ in range(4):
                    a.sendmsg([b"x"], [(1, 1, array.array("i", [0] * 200))])
                    n += 200
        except OSError: pass
        """,
    ),
}
LIMITS = {resource.RLIMIT_SIGPENDING: FEW, resource.RLIMIT_MSGQUEUE: 819200, resource.RLIMIT_NOFILE: 4096}


def while_taken(policy: Policy, what: str) -> tuple[int, bool]:
    """Return how many a command has taken, and whether this process still gets one meanwhile."""
    ask, _, take = TAKE[what]
    code = START + textwrap.dedent(take) + "print(n, flush=True)\nsys.stdin.read()\n"
    command = [sys.executable, "-I", "-S", "-c", code]
    with nsbox.Popen(command, policy=policy, stdin=-1, stdout=-1, text=True) as taker:
        assert taker.stdout is not None
        taken = int(taker.stdout.readline())
        return taken, ask()


# In a process of its own, whose limits are what they are on a usual machine, or lower.
TEST = f"""
import resource, sys
sys.path[:0] = {[str(Path(__file__).parent)]!r}
import test_quotas as t
what, ws, wishes = sys.argv[1], sys.argv[2], eval(sys.argv[3], {{"Limits": t.Limits}})
limit = t.TAKE[what][1]
resource.setrlimit(limit, (min(1024, t.LIMITS[limit]) if what == "descriptors" else t.LIMITS[limit], t.LIMITS[limit]))
assert t.TAKE[what][0](), "used up already"
policy = t.Policy.workspace(ws, **wishes)
print(*t.while_taken(policy, what))
"""


def tried(workspace: Path, what: str, wishes: str) -> tuple[int, bool]:
    done = subprocess.run(
        [sys.executable, "-P", "-c", TEST, what, str(workspace), wishes], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    taken, works = done.stdout.split()
    return int(taken), works == "True"


@pytest.mark.parametrize(
    ("what", "wishes"),
    [
        ("signals", "{}"),
        ("queues", "{}"),
        ("signals", "{'seccomp': 'off'}"),
        ("queues", "{'seccomp': 'off'}"),
        ("descriptors", "{'seccomp': 'hardened'}"),
        ("descriptors", "{'limits': Limits(open_files=300)}"),
    ],
)
def test_the_users_programs_go_on(workspace: Path, what: str, wishes: str) -> None:
    """A command that takes all that it can get leaves enough for the user's other programs."""
    taken, works = tried(workspace, what, wishes)
    assert taken > 1
    assert works


MANY = {"signals": f"Limits(pending_signals={10 * FEW})", "queues": "Limits(message_queues='1G')"}


@pytest.mark.parametrize(
    ("what", "limits"),
    [
        *MANY.items(),
        pytest.param("descriptors", "None", marks=pytest.mark.as_user("CAP_SYS_RESOURCE sends more than the limit")),
    ],
)
def test_control_all_can_be_taken(workspace: Path, what: str, limits: str) -> None:
    """Control: with the caller's own limits, and its ids, a command uses up what the user may have."""
    ids = "full" if os.geteuid() == 0 else "single"
    assert not tried(workspace, what, f"{{'limits': {limits} or Limits(), 'ids': {ids!r}}}")[1]


@pytest.mark.as_root("others' commands count as the user's")
@pytest.mark.parametrize(("what", "limits"), MANY.items(), ids=MANY)
def test_root_loses_nothing(workspace: Path, what: str, limits: str) -> None:
    """A root caller's command counts as another user's."""
    taken, works = tried(workspace, what, f"{{'limits': {limits}}}")
    assert taken > 1
    assert works


QUEUE_UP = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
pid = int(sys.argv[1]) or os.getpid()
if sys.argv[2:]:
    import resource
    try: resource.prlimit(pid, resource.RLIMIT_SIGPENDING, (1200, 1200))
    except OSError: pass
for number in (64, 34, 50, 10, 12):
    for _ in range(300): os.kill(pid, number)
print("queued", flush=True)
sys.stdin.read()
"""


def queued(pid: int | None) -> tuple[int, int]:
    """Return how many signals are queued for all of a process's user, and how many may be when it gets one."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigQ:"))
    now, most = line.split()[1].split("/")
    return int(now), int(most)


@pytest.mark.parametrize("tries", [[], ["raise the limit"]], ids=["", "raised"])
@pytest.mark.parametrize("kind", ["command", "copy", "session"])
def test_signals_for_pid_1(workspace: Path, kind: str, tries: list[str]) -> None:
    """What a command sends to pid 1, which blocks it, isn't queued there; nor if it could raise pid 1's limit.

    Control: as many for the command itself are, up to its own limit.
    """
    policy = Policy.workspace(workspace, limits=Limits(pending_signals=1200))
    with nsbox.Sandbox(policy, stock=int(kind == "copy")) as box, box.session() as session:
        start = session.Popen if kind == "session" else box.Popen
        counts = []
        for target in ("1", "0"):
            command = [sys.executable, "-I", "-S", "-c", QUEUE_UP, target, *tries]
            with start(command, stdin=-1, stdout=-1, text=True) as attacker:
                assert attacker.stdout is not None
                init = attacker.sandbox.init_pid
                assert attacker.stdout.readline() == "queued\n"
                counts.append(queued(init)[0])
                assert queued(init)[1] == 0
                assert queued(attacker.pid)[1] == 1200
                attacker.stdin.close()
                assert attacker.wait() == 0
    assert counts[0] < 400
    assert counts[1] > 900


OURS = sum(1 << number - 1 for number in (16, 26, 30, 17))


def pending(pid: int | None) -> int:
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("ShdPnd:"))
    return int(line.split()[1], 16)


@pytest.mark.parametrize("patient", [False, True])
def test_pid_1_still_hears(workspace: Path, patient: bool) -> None:
    """With all that a command can have queued, pid 1 knows the caller's wish by its sender, and the children that end."""
    code = QUEUE_UP.replace(
        "sys.stdin.read()",
        """
for _ in range(50):
    for number in (16, 26, 30, 17): os.kill(1, number)  # those by which the caller ends a sandbox, and SIGCHLD
signal.pthread_sigmask(signal.SIG_SETMASK, [])
signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"asked\\n"), os._exit(3)))
for n in range(20):  # orphans, which pid 1 reaps
    if os.fork() == 0:
        if os.fork(): os._exit(0)
        os._exit(0)
    os.wait()
while len([name for name in os.listdir("/proc") if name.isdigit()]) > 2: pass
print("alive", flush=True)
sys.stdin.read()
""",
    )
    policy = Policy.workspace(workspace)
    with nsbox.Popen([sys.executable, "-c", code, "1"], policy=policy, stdin=-1, stdout=-1, text=True) as attacker:
        assert attacker.stdout is not None
        assert [attacker.stdout.readline() for _ in range(2)] == ["queued\n", "alive\n"]
        while pending(attacker.sandbox.init_pid) & OURS:  # one more of the same would be merged with it
            pass
        attacker.ask_to_end(patiently=patient)
        assert attacker.stdout.readline() == "asked\n"
        assert attacker.wait() == 3


def test_enough_for_programs(workspace: Path) -> None:
    """What programs need is there: a queue of the usual size, timers, locked memory as gpg has it."""
    code = START + textwrap.dedent("""
        t = ctypes.c_void_p()
        print(sum(libc.timer_create(0, None, ctypes.byref(t)) == 0 for _ in range(100)))
        print(libc.syscall(ctypes.c_long(MQ_OPEN), b"q", 0x42, 0o600, queue) >= 0)
        libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        buffer = ctypes.create_string_buffer(512 << 10)
        print(libc.mlock(buffer, 512 << 10))
    """)
    done = nsbox.run([sys.executable, "-c", code], policy=Policy.workspace(workspace), capture_output=True, text=True)
    assert done.stdout.split() == ["100", "True", "0"], done.stderr
    more = Policy.workspace(workspace, limits=Limits(pending_signals=300, message_queues=0, locked_memory="2M"))
    with nsbox.Popen(["true"], policy=more) as process:
        rlimits = {limit.name: limit.hard for limit in process.sandbox.plan.rlimits}
    assert (rlimits["SIGPENDING"], rlimits["MSGQUEUE"], rlimits["MEMLOCK"]) == (300, 0, 2 << 20)


WATCH = (
    START
    + "raised(resource.RLIMIT_NOFILE)\nwhile libc.inotify_init1(0) >= 0: n += 1\nprint(n, flush=True)\nsys.stdin.read()\n"
)
MOST = Path("/proc/sys/fs/inotify/max_user_instances")


def instance() -> bool:
    fd = libc.inotify_init1(0)
    if fd >= 0:
        os.close(fd)
    return bool(fd >= 0)


def while_watching(start: Callable[..., subprocess.Popen[str]]) -> tuple[int, bool]:
    """Return how many instances of inotify a command has taken, and whether this process still gets one meanwhile."""
    with start([sys.executable, "-I", "-S", "-c", WATCH], stdin=-1, stdout=-1, text=True) as taker:
        assert taker.stdout is not None
        return int(taker.stdout.readline()), instance()


@pytest.mark.parametrize(
    "wishes",
    [
        {"limits": Limits(open_files=4096)},
        {"limits": Limits(memory="4G"), "seccomp": "off"},
        {"limits": Limits(cpu_seconds=600), "network": "host"},
    ],
    ids=str,
)
def test_others_watch_on(workspace: Path, wishes: dict[str, Any]) -> None:
    """A command with limits, in a fresh sandbox or in a copy, doesn't take all of a user's instances of inotify."""
    policy = Policy.workspace(workspace, **wishes)
    alone = probe().inotify_instances // 2
    with nsbox.Sandbox(policy) as box:
        for start in (partial(nsbox.Popen, policy=policy), box.Popen):
            taken, works = while_watching(start)
            assert taken > 1
            assert works
            assert os.geteuid() == 0 or not alone or taken <= alone


@pytest.mark.as_root("others' commands count as the user's")
def test_roots_commands_watch_for_themselves(workspace: Path) -> None:
    """A root caller's command has a user of its own in the kernel, and takes that one's instances only."""
    before = while_watching(partial(nsbox.Popen, policy=Policy.workspace(workspace)))
    assert before[1]


def test_control_one_takes_all_instances() -> None:
    """Control: where nothing is limited one command takes all that there are, and nobody else gets any."""
    taken, works = while_watching(
        partial(nsbox.Popen, policy=Policy.host(ids="full" if os.geteuid() == 0 else "single"))
    )
    assert taken > int(MOST.read_text()) // 2
    assert not works


def test_the_limit_of_instances_can_be_read_in_the_plan(workspace: Path) -> None:
    """The plan says how many there may be; none are counted without limits, or where a namespace gets none."""
    policy = Policy.workspace(workspace, limits=Limits(file_size="1G"))
    here = replace(probe(), kernel_id=0, inotify_instances=128)
    assert compile_policy(policy, here).inotify_instances == 64
    assert "limits: 64 instances of inotify" in compile_policy(policy, here).enforced
    assert compile_policy(policy, replace(here, inotify_instances=0)).inotify_instances == 0
    assert compile_policy(Policy.workspace(workspace), here).inotify_instances == 0
    assert compile_policy(Policy.host(limits=Limits(open_files=9)), here).inotify_instances == 0
