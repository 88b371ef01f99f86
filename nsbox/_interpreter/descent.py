"""Pids behind pidfds that another process has sent: they count only below a process that is known.

Since Linux 6.13 a pidfd answers for itself (PIDFD_GET_INFO, <linux/pidfd.h>), in a fiftieth of the time that procfs
needs.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import signal
import struct

_DEEPEST = 64  # ancestors that are looked at: two lie between an interpreter and the command that it is
_GET_INFO = 0xC040FF0B
_INFO = struct.Struct("=QQ3I36x")  # what is there, cgroup, pid, thread group, parent, and what isn't needed here
_WISH = _INFO.pack(1, 0, 0, 0, 0)  # PIDFD_INFO_PID
_LACKING = (errno.ENOTTY, errno.EINVAL)


class GoneError(Exception):
    """A process has ended, or isn't what it has to be. No signal may go there."""


def pid_of(pidfd: int, above: int) -> int:
    """Return the pid behind a pidfd, as this process's procfs numbers it.

    above: the pidfd of a process that it must descend from. The sender of the first pidfd can get one of any process
        that it has a socket to, this process included (SO_PEERPIDFD, unix(7)).

    Raises GoneError if either has gone, or if it descends from something else.
    """
    (number, at), (limit, _) = _look(pidfd), _look(above)
    for _ in range(_DEEPEST):
        if at == limit and (_look(pidfd)[0], _look(above)[0]) == (number, limit):  # so no number was another process's
            return number
        if at <= 1:
            break
        at = _parent(at)
    raise GoneError(f"process {number} is none of the interpreter's")


def _look(pidfd: int) -> tuple[int, int]:
    """Return the pids of a process and of its parent."""
    try:
        with contextlib.suppress(PermissionError):  # it exists
            signal.pidfd_send_signal(pidfd, 0)  # first: only a pidfd's own answer can be believed
        _, _, number, _, parent = _INFO.unpack(fcntl.ioctl(pidfd, _GET_INFO, _WISH))
    except OSError as error:
        if error.errno not in _LACKING:
            raise GoneError("it has ended") from None
        number = _number(pidfd)
        return number, _parent(number)
    return number, parent


def _number(pidfd: int) -> int:
    with open(f"/proc/self/fdinfo/{pidfd}") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name == "Pid" and int(value) > 0:
                return int(value)
    raise GoneError("it has ended")


def _parent(number: int) -> int:
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{number}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])  # proc_pid_stat(5)
    return 0
