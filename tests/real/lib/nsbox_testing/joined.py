"""A sandbox whose namespaces others join."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import nsbox

_NS_GET_USERNS = 0xB701  # ioctl_ns(2)
_PR_SET_DUMPABLE = 4


@dataclass(frozen=True)
class Joined:
    """Descriptors of its pid namespace, and of the user namespace that this belongs to."""

    pidns: int
    userns: int

    @staticmethod
    def numbers(pid: int) -> list[int]:
        """Return the numbers that a process has below our pid namespace: in the sandbox that was joined, and deeper."""
        return [int(number) for number in _numbers(pid)[len(_numbers(os.getpid())) :]]


def _numbers(pid: int) -> list[str]:
    with open(f"/proc/{pid}/status") as file:
        return next(line for line in file if line.startswith("NSpid:")).split()[1:]


@contextlib.contextmanager
def joined(policy: nsbox.Policy) -> Iterator[Joined]:
    """Keep a sandbox for as long as it is needed, by a process that is no child of ours: some tests wait for all."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        if os.fork() == 0:
            _keep(policy, theirs)
        os._exit(0)
    theirs.close()
    os.waitpid(pid, 0)
    with ours:
        _, fds, _, _ = socket.recv_fds(ours, 1, 3)
        keeper, pidns, userns = fds
        try:
            yield Joined(pidns, userns)
        finally:
            ours.shutdown(socket.SHUT_WR)
            select.select([keeper], [], [])
            for fd in fds:
                os.close(fd)


def _keep(policy: nsbox.Policy, theirs: socket.socket) -> None:
    try:
        with nsbox.Popen(["cat"], policy=policy, stdin=subprocess.PIPE, cwd="/") as process:
            pidns = os.open(f"/proc/{process.pid}/ns/pid", os.O_RDONLY)
            fds = [os.pidfd_open(os.getpid()), pidns, fcntl.ioctl(pidns, _NS_GET_USERNS)]
            socket.send_fds(theirs, [b"x"], fds)
            theirs.recv(1)
    finally:
        os._exit(0)


def hide() -> None:
    """Make this process non-dumpable, as who joins a pid namespace has to be; what nsbox can do is known before."""
    nsbox.probe()
    assert ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0
