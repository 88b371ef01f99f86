"""Policy.host(), which contains least: the default seccomp profile is there, and sandboxes can be made in it all the same."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing import needs
from nsbox_testing.running import python

import nsbox
from nsbox import Policy

as_user = pytest.mark.skipif(os.geteuid() == 0, reason="the kernel wants CAP_SETFCAP to map uid 0 again")

ATTEMPTS = """
import fcntl, socket, termios
X86 = os.uname().machine == "x86_64"
def numbered(x86, arm, *args): return syscall(x86 if X86 else arm, *args)
def typed():
    master, slave = os.openpty()
    if os.fork() == 0:
        os.setsid(); fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        os._exit(attempt(fcntl.ioctl, slave, termios.TIOCSTI, b"x"))
    return os.waitstatus_to_exitcode(os.wait()[1])
def unshared(flags):
    if (pid := os.fork()) == 0: os._exit(numbered(272, 97, flags))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
report({
    "bpf": numbered(321, 280, 0, 0, 0), "io_uring": numbered(425, 425, 1, 0), "userfaultfd": numbered(323, 282, 1),
    "personality": numbered(135, 92, 0x0400000), "TIOCSTI": typed(), "kcmp": numbered(312, 272, 0, 0, 0, 0, 0),
    "AF_ALG": attempt(socket.socket, 38, socket.SOCK_SEQPACKET), "perf_event_open": numbered(298, 241, 0, 0, 0, 0, 0),
    "unshare": unshared(0x10000000), "mount": unshared(0x10020000),
})
"""
REFUSED = {
    **dict.fromkeys(("bpf", "userfaultfd", "personality", "TIOCSTI", "kcmp", "perf_event_open"), errno.EPERM),
    **{"io_uring": errno.ENOSYS, "AF_ALG": errno.EAFNOSUPPORT},
}


def test_the_profile_is_there(attempt: Callable[..., Any]) -> None:
    """What the default profile refuses is refused, and namespaces can be made."""
    policy = Policy.host()
    assert policy.seccomp == "default"
    assert attempt(ATTEMPTS, policy=policy) == REFUSED | {"unshare": 0, "mount": 0}


def test_control(attempt: Callable[..., Any]) -> None:
    """Control: with seccomp="off" these fail by what the kernel makes of their arguments, or work."""
    found = attempt(ATTEMPTS, policy=Policy.host(seccomp="off"))
    assert found["personality"] == 0
    assert found["bpf"] in (errno.EINVAL, errno.EPERM)  # its own word, for an ordinary user
    assert not found.items() >= REFUSED.items()


def test_a_stricter_one(attempt: Callable[..., Any]) -> None:
    """The hardened profile has its rules about namespaces here too."""
    found = attempt(ATTEMPTS, policy=Policy.host(seccomp="hardened"))
    assert found == REFUSED | {"unshare": errno.EPERM, "mount": errno.EPERM}


@as_user
@needs.programs("unshare", "bwrap")
@pytest.mark.parametrize(
    "command",
    [
        ["unshare", "-Urmpf", "--mount-proc", "echo", "made"],
        ["bwrap", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--unshare-all", "echo", "made"],
    ],
)
def test_other_sandboxes(command: list[str]) -> None:
    """Other programs make their sandboxes under it."""
    done = nsbox.run(command, policy=Policy.host(), capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("made\n", "")
    # Control: with the rules about namespaces they can't.
    assert nsbox.run(command, policy=Policy.host(seccomp="hardened"), capture_output=True).returncode != 0


NSBOX = """
import sys, nsbox
policy = nsbox.Policy.workspace(sys.argv[1])
for _ in range(3):
    print(nsbox.run(["echo", "made"], policy=policy, stdout=nsbox.PIPE, text=True, check=True).stdout, end="")
nsbox.Popen(["sleep", "1000"], policy=policy)
"""


@as_user
def test_sandboxes_of_ones_own(workspace: Path) -> None:
    """nsbox works under it, and its commands, which are children of the caller then, end with it."""
    command = [sys.executable, "-I", "-c", NSBOX, str(workspace)]
    done = nsbox.run(command, policy=Policy.host(), stdout=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "made\nmade\nmade\n")
    assert _children("sleep") == []


STRAY = """
import ctypes, os, time
libc = ctypes.CDLL(None)
pid = libc.syscall(56 if os.uname().machine == "x86_64" else 220, 0x8000 | 17, 0, 0, 0, 0)  # CLONE_PARENT
if pid == 0:
    libc.prctl(15, b"stray", 0, 0, 0)
    libc.prctl(4, 0, 0, 0, 0)  # it hides what can be told of it
    time.sleep(1000)
"""


def test_children_given_to_the_caller() -> None:
    """What a command makes the caller's child ends with its sandbox, and leaves no zombie."""
    for _ in range(3):
        assert nsbox.run(python(STRAY), policy=Policy.host(), timeout=60).returncode == 0
        assert _children("stray") == []
    # Control: it would be there.
    subprocess.run([sys.executable, "-I", "-c", STRAY], check=True)
    while not (strays := _children("stray")):
        time.sleep(0.01)
    (stray,) = strays
    os.kill(stray, signal.SIGKILL)
    os.waitpid(stray, 0)


def _children(name: str) -> list[int]:
    """Return this process's children of a name, in whatever state; a sandbox that is ready for its command has another."""
    found = []
    for task in os.listdir("/proc/self/task"):
        for pid in Path(f"/proc/self/task/{task}/children").read_text().split():
            with contextlib.suppress(OSError):  # it has just been reaped
                if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                    found.append(int(pid))
    return found
