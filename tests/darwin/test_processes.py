"""Processes on a Mac: those of the host can't be seen or signalled, and no setuid program runs."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator

import pytest
from nsbox_darwin import allowed, attempt, control, fails, python, refused

import nsbox

pytestmark = pytest.mark.darwin

MARK = "NSBOX_TEST_SECRET=secret"

PROC_PIDINFO = """
import ctypes
buffer = ctypes.create_string_buffer(256)
system = ctypes.CDLL(None, use_errno=True)
if system.proc_pidinfo(int(args[0]), 3, ctypes.c_uint64(0), buffer, 136) <= 0:  # PROC_PIDTBSDINFO
    raise OSError(ctypes.get_errno(), "proc_pidinfo")
"""

# The argument vector and the environment of a process, where secrets are: KERN_PROCARGS2.
ARGUMENTS = """
import ctypes
names = (ctypes.c_int * 3)(1, 49, int(args[0]))
buffer, size = ctypes.create_string_buffer(1 << 18), ctypes.c_size_t(1 << 18)
system = ctypes.CDLL(None, use_errno=True)
if system.sysctl(names, 3, buffer, ctypes.byref(size), None, ctypes.c_size_t(0)):
    raise OSError(ctypes.get_errno(), "sysctl")
print(args[1].encode() in buffer.raw)
"""


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the host, in a group of its own."""
    argv = python("print(flush=True); input()", MARK)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        assert process.poll() is None, "it has been ended by a command in a sandbox"
        process.kill()


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("os.kill(int(args[0]), int(args[1]))", id="kill"),
        pytest.param("os.killpg(int(args[0]), int(args[1]))", id="killpg"),
    ],
)
def test_signals(policy: nsbox.Policy, victim: subprocess.Popen[bytes], code: str) -> None:
    """Processes outside can't be signalled, nor asked by a signal whether they are there."""
    control(attempt(code, victim.pid, 0))
    refused(attempt(code, victim.pid, 0), policy)
    refused(attempt(code, victim.pid, 9), policy)


def test_signal_to_the_caller(policy: nsbox.Policy) -> None:
    """The caller, which is the command's parent, can't be signalled."""
    code = "os.kill(os.getppid(), 0)"
    control(attempt(code))
    refused(attempt(code), policy)


def test_own_processes(policy: nsbox.Policy) -> None:
    """A command can signal what it has started itself."""
    script = "sleep 100 & kill $!; wait $!; test $? = 143"
    allowed(["/bin/sh", "-c", script], policy)


def test_another_command(policy: nsbox.Policy) -> None:
    """Two commands under the same policy are strangers to each other."""
    with nsbox.Popen(["/bin/sleep", "100"], policy=policy) as other:
        code = "os.kill(int(args[0]), 0)"
        control(attempt(code, other.pid))
        refused(attempt(code, other.pid), policy)
        other.kill()


def test_information(policy: nsbox.Policy, victim: subprocess.Popen[bytes]) -> None:
    """The system tells nothing of processes outside."""
    control(attempt(PROC_PIDINFO, victim.pid))
    refused(attempt(PROC_PIDINFO, victim.pid), policy)


def test_information_of_itself(policy: nsbox.Policy) -> None:
    """It tells a process of itself."""
    allowed(attempt(f"args = [os.getpid()]\n{PROC_PIDINFO}"), policy)


def test_arguments_and_environment(policy: nsbox.Policy, victim: subprocess.Popen[bytes]) -> None:
    """Arguments and environment of processes outside, where secrets are, can't be read."""
    assert control(attempt(ARGUMENTS, victim.pid, MARK)) == "True\n"
    done = nsbox.run(attempt(ARGUMENTS, victim.pid, MARK), policy=policy, capture_output=True, text=True)
    assert "True" not in done.stdout


def test_psutil_list(policy: nsbox.Policy, victim: subprocess.Popen[bytes]) -> None:
    """The list of all processes isn't given out, or hasn't those of the host."""
    code = f"import psutil; print('found' if {victim.pid} in psutil.pids() else 'not there')"
    assert control(python(code)) == "found\n"
    done = nsbox.run(python(code), policy=policy, capture_output=True, text=True)
    assert "found" not in done.stdout


@pytest.mark.parametrize(
    "argv", [["/bin/ps", "-p", "1"], ["/usr/bin/sudo", "-V"], ["/usr/bin/top", "-l", "1", "-n", "1"]]
)
def test_setuid_programs(policy: nsbox.Policy, argv: list[str]) -> None:
    """Programs that would run as root don't run at all."""
    assert os.stat(argv[0]).st_mode & stat.S_ISUID, "no longer setuid: choose another program for this test"
    control(argv)
    with pytest.raises(PermissionError) as caught:
        nsbox.run(argv, policy=policy)
    assert caught.value.filename == argv[0]
    fails(["/bin/sh", "-c", '"$@"', "sh", *argv], policy)
