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

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._core.orphans import pid_behind

if TYPE_CHECKING:
    from collections.abc import Iterable

_DEEPEST = 64  # ancestors that are looked at: two lie between an interpreter and the command that it is
_GET_INFO = 0xC040FF0B
_INFO = struct.Struct("=QQ3I36x")  # what is there, cgroup, pid, thread group, parent, and what isn't needed here
_WISH = _INFO.pack(1, 0, 0, 0, 0)  # PIDFD_INFO_PID
_LACKING = (errno.ENOTTY, errno.EINVAL)


class GoneError(Exception):
    """A process has ended, or isn't what it has to be. No signal may go there."""


def pid_of(pidfd: int, above: int) -> int:
    """Return the pid behind a pidfd, as pids_of() does."""
    return pids_of([pidfd], above)[0]


def pids_of(pidfds: Iterable[int], above: int) -> list[int]:
    """Return the pids behind pidfds, as this process's procfs numbers them.

    above: the pidfd of a process that they must descend from. The sender of the others can get one of any process that
        it has a socket to, this process included (SO_PEERPIDFD, unix(7)).

    Raises GoneError if any of them has gone, or if one descends from something else.
    """
    found = [(pidfd, *_look(pidfd)) for pidfd in pidfds]
    limit, _ = _look(above)  # last: it had this number all the time
    for pidfd, number, parent in found:
        if parent != limit and not (
            _is_below(parent, limit) and _look(pidfd) == (number, parent) and _has(above, limit)
        ):
            raise GoneError(f"process {number} is none of the interpreter's")
    return [number for _, number, _ in found]


def _is_below(number: int, limit: int) -> bool:
    for _ in range(_DEEPEST):
        number = parent_of(number)
        if number == limit:
            return True
        if number <= 1:
            break
    return False


def _has(pidfd: int, number: int) -> bool:
    return _look(pidfd)[0] == number


def _look(pidfd: int) -> tuple[int, int]:
    """Return the pids of a process and of its parent."""
    try:
        with contextlib.suppress(PermissionError):  # it exists
            signal.pidfd_send_signal(pidfd, 0)  # first: only a pidfd's own answer can be believed
        _, _, number, _, parent = _INFO.unpack(fcntl.ioctl(pidfd, _GET_INFO, _WISH))
    except OSError as error:
        if error.errno not in _LACKING:
            raise GoneError("it has ended") from None
        number = pid_behind(pidfd)
        parent = parent_of(number)
        if not number or pid_behind(pidfd) != number:  # it has ended: the parent may be another process's
            raise GoneError("it has ended") from None
    return number, parent


def parent_of(number: int) -> int:
    """Return the pid of a process's parent; 0 if it has gone."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{number}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])  # proc_pid_stat(5)
    return 0
