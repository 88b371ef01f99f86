"""The command's number, given away again before pid 1 of the sandbox looks for the command by it."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import signal
import struct
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from nsbox_testing import faults
from nsbox_testing.faults import NUMBERS, Call, Spawn
from nsbox_testing.leftovers import status
from nsbox_testing.running import Orphans

import nsbox
from nsbox import DevBind, Policy, Proc
from nsbox._lifetime import kills

_PIDFD_OPEN, _CLONE3 = 434, 435
_NS_GET_USERNS = 0xB701
_NEWUSER, _NEWPID = 0x10000000, 0x20000000
_libc = ctypes.CDLL(None, use_errno=True)

pytestmark = [
    pytest.mark.skipif(not faults.is_possible(), reason="no seccomp user notification here"),
    pytest.mark.skipif(
        tuple(map(int, platform.release().split(".")[:2])) < (6, 13), reason="PIDFD_GET_INFO is Linux 6.13's"
    ),
    pytest.mark.timeout(120),
]


def _with_number(number: int) -> int:
    """Fork as clone3(2) does with set_tid, which needs power over the pid namespace."""
    chosen = ctypes.c_int32(number)
    args = struct.pack("11Q", 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(chosen), 1, 0)
    pid: int = ctypes.PyDLL(None, use_errno=True).syscall(ctypes.c_long(_CLONE3), ctypes.c_char_p(args), len(args))
    return pid


def take(number: int, init: int, told: int) -> None:
    """Be in the sandbox of this pid 1, with a child that gets the number there; told: its pid, or -1, for the test."""
    pidns = os.open(f"/proc/{init}/ns/pid", os.O_RDONLY)
    userns = fcntl.ioctl(pidns, _NS_GET_USERNS)
    for fd, kind in ((userns, _NEWUSER), (pidns, _NEWPID)):
        if _libc.setns(fd, kind):
            spaces = [os.readlink(f"/proc/{pid}/ns/{name}") for pid in (init, "self") for name in ("user", "pid")]
            why = f"{spaces}, pid 1 is {status(init)}, threads {os.listdir('/proc/self/task')}"
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), why)
    if os.fork() == 0:
        pid = _with_number(number)
        if pid:
            os.write(told, struct.pack("i", pid))
        while True:
            signal.pause()
    os.wait()


def test_a_number_that_is_given_away_again(orphans: Orphans) -> None:
    """Pid 1 doesn't take another process of the sandbox for the command: that has ended, so all ends, and at once."""
    policy = Policy.layers(DevBind("/", "/"), Proc("/proc"))
    nsbox.run(["true"], policy=policy, cwd="/", check=True)  # whatever is tried first, is tried here
    looked: list[int] = []
    watched: list[int] = []  # its sleeps until the caller, the command or a signal wants an end
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    pids: dict[str, int] = {}
    taken: list[int] = []

    def is_taken() -> bool:
        """Say if another process has the number; arrange that when the command's has become free."""
        if not taken and not Path(f"/proc/{pids['command']}").exists():
            taken.append(0)
            if os.fork() == 0:
                try:
                    take(looked[0], pids["init"], writer)
                except BaseException:
                    traceback.print_exc()
                    os.write(writer, struct.pack("i", -1))
                finally:
                    os._exit(0)
        try:
            taken[:] = struct.unpack("i", os.read(reader, 4))
        except BlockingIOError:
            return False
        return True

    def decide(call: Call, spawn: Spawn) -> Callable[[], bool] | None:
        pids.update((role, pid) for pid, role in spawn._roles.items())
        if call.role == "init" and call.number == _PIDFD_OPEN and call.args[0] > 1 and not looked:
            looked.append(call.args[0])
            return is_taken
        if call.role == "init" and call.number == NUMBERS["ppoll"] and call.args[1] == 3:
            watched.append(call.nth)
        return None

    def start() -> int:
        kills.SLICE = 60.0  # after that the caller kills pid 1, which is held here for as long as take() needs
        return nsbox.run(["true"], policy=policy, cwd="/").returncode

    try:
        assert Spawn(start, decide).run() == 0
    finally:
        os.close(reader)
        os.close(writer)
    assert taken == looked == [2]
    assert not watched
