"""Signals whose sender fills in their siginfo: pid 1 takes none for the caller's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nsbox import Policy, Popen, Sandbox

# All three calls; then it says how many were refused.
QUEUE = """
import ctypes, os, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)
numbers = {"x86_64": (129, 297, 424), "aarch64": (138, 240, 424)}[os.uname().machine]
target = int(sys.argv[1]) or os.getpid()
info = (ctypes.c_int * 32)()
pidfd = os.pidfd_open(target)
refused = 0
for number in (16, 30, 26):
    signal.signal(number, signal.SIG_IGN)
    for _ in range(20):
        info[0], info[2] = number, -1  # si_signo; si_code: SI_QUEUE
        for call, arguments in zip(
            numbers, ((target, number, info), (target, target, number, info), (pidfd, number, info, 0))
        ):
            ctypes.set_errno(0)
            refused += libc.syscall(call, *arguments) != 0 and ctypes.get_errno() == 1
        time.sleep(0.001)
print(refused)
"""


@pytest.mark.parametrize("seccomp", ["default", "off", "hardened"])
def test_pid_1_stays(workspace: Path, seccomp: str) -> None:
    """The signals by which the caller ends a sandbox, queued from inside: they are refused, and nothing ends."""
    argv = [sys.executable, "-c", QUEUE, "1"]
    with Popen(argv, policy=Policy.workspace(workspace, seccomp=seccomp), stdout=subprocess.PIPE, text=True) as command:
        said, _ = command.communicate()
    assert (command.returncode, said) == (0, "180\n")


def test_a_session_stays(workspace: Path) -> None:
    """One command can't end a session, and with it the others."""
    with Sandbox(Policy.workspace(workspace)) as box, box.session() as session:
        other = session.Popen(["sleep", "1000"])
        assert session.run([sys.executable, "-c", QUEUE, "1"], capture_output=True, text=True).stdout == "180\n"
        assert other.poll() is None
        other.kill()
        other.wait()


def test_control_others_may_get_them(workspace: Path) -> None:
    """sigqueue(3) works between the commands' own processes; pidfd_send_signal(2) with a siginfo doesn't."""
    argv = [sys.executable, "-c", QUEUE, "0"]
    with Popen(argv, policy=Policy.workspace(workspace), stdout=subprocess.PIPE, text=True) as command:
        said, _ = command.communicate()
    assert (command.returncode, said) == (0, "60\n")
