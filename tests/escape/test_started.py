"""What a command of a session may try to outlive its time limit, or to have another command's processes ended with it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import psutil
import pytest
from nsbox_testing.running import python

from nsbox import Policy, Sandbox, Session

# Leaves the tree, the session and the group; then does what else might help, and stays.
ESCAPE = """
import ctypes, os, resource, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)
LOCKS = 10
def get(pid=0):
    pair = (ctypes.c_uint64 * 2)()
    assert libc.prlimit(pid, LOCKS, None, pair) == 0
    return pair[1]
def put(value, pid=0):
    pair = (ctypes.c_uint64 * 2)(value, value)
    return libc.prlimit(pid, LOCKS, pair, None), libc.setrlimit(LOCKS, pair)
if os.fork(): os.wait(); print("up", flush=True); time.sleep(1000)
os.setsid()
if os.fork(): os._exit(0)
before = get()
{trick}
os.execvp("sleep", ["sleep", "993"])
"""
TRICKS = {
    "nothing": "",
    "no limit left": "for value in (0, 1, before - 1, before + 1, 2**64 - 1): put(value)\nassert get() == before",
    "the mark of another": "put(before + 1); put(before - 1); assert get() == before",
    "another's limit, by its number": (
        "for name in os.listdir('/proc'):\n    if name.isdigit(): put(5, int(name))\nassert get() == before"
    ),
    "a new environment and name": "os.environ.clear(); os.environ['PATH'] = '/usr/bin:/bin'",
    "a subreaper above": "libc.prctl(36, 1)\nif os.fork(): time.sleep(1000)",
    "ignored signals": "for number in range(1, 32):\n    try: signal.signal(number, signal.SIG_IGN)\n    except OSError: pass",
    "a user namespace": "libc.unshare(0x10000000); put(0); assert get() == before",
}


@pytest.fixture
def s(policy: Policy) -> Iterator[Session]:
    with Sandbox(policy, stock=0) as box, box.session() as made:
        yield made


def sleepers(s: Session) -> int:
    found = 0
    for process in s.processes():
        try:
            found += process.cmdline() == ["sleep", "993"]
        except psutil.NoSuchProcess:
            pass
    return found


@pytest.mark.parametrize("trick", TRICKS)
def test_nothing_outlives_a_time_limit(s: Session, trick: str) -> None:
    with s.Popen(python(ESCAPE.replace("{trick}", TRICKS[trick])), stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == b"up\n"
        while not sleepers(s) and parent.poll() is None:
            pass
        parent.kill()
        parent.wait()
        assert sleepers(s) == 0
    assert s.shell("echo on").stdout == "on\n"


def test_control_it_goes_on_when_its_command_ends(s: Session) -> None:
    """What is killed above would be there for good."""
    code = ESCAPE.replace("{trick}", "").replace("time.sleep(1000)", "sys.exit()", 1)
    s.run(python(code), check=True, stdout=subprocess.DEVNULL)
    while not sleepers(s):
        pass
    s.shell("sleep 1000", timeout=0.2, grace=0)
    assert sleepers(s) == 1


def test_limits_of_locks_seem_to_be_set(s: Session) -> None:
    """Programs that set all of theirs go on; the kernel has had no such limit for twenty years."""
    code = "import ctypes; print(ctypes.CDLL(None).setrlimit(10, (ctypes.c_uint64 * 2)(7, 7)))"
    assert s.check_output(python(code)) == b"0\n"


def test_the_session_outlives_attacks_on_its_pid_1(s: Session) -> None:
    """Pid 1 alone knows how to mark: its limits can't be changed, nor its memory read."""
    code = "import ctypes; p = (ctypes.c_uint64 * 2)(5, 5); print(ctypes.CDLL(None).prlimit(1, 10, p, None))"
    assert s.check_output(python(code)) == b"-1\n"
    assert s.shell("sleep 1000", timeout=0.2, grace=0).timed_out
