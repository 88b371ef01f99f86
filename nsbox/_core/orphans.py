"""The end of sandboxes: what has to be reaped besides the command, for which Popen waits.

Three kinds of processes can become zombies of this process without being its commands:

- Inits, when the machine's pid 1 doesn't reap orphans. Orphans finds that out, and lets this process adopt them.
- Inits that outlive their command (kill_on_exit=False), if this process is a subreaper or the machine's pid 1.
  Leftovers keeps them.
- Strays: children that a command has made for this process by CLONE_PARENT. The init of their pid namespace can't end
  before they are reaped, so wait_for_init() reaps them while it waits.

The functions at the top look at a child without reaping it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.owners import opened, own
from nsbox._base.poll import is_readable
from nsbox._core import abi, call

if TYPE_CHECKING:
    import resource

    from nsbox._base.owners import Owner


def pid_namespace(pid: int) -> int:
    """Return the inode of a child's pid namespace; 0 if that can't be found out."""
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return 0


def pid_behind(pidfd: int) -> int:
    """Return the pid of a pidfd's process, as this process's procfs numbers it; 0 if it has gone."""
    with open(f"/proc/self/fdinfo/{pidfd}") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name == "Pid":
                return max(0, int(value))
    return 0


_NS_GET_PARENT = 0xB702  # ioctl_ns(2)


def _is_within(pid: int, namespace: int) -> bool | None:
    """Return whether a child is in this pid namespace or one below it; None if that can't be found out."""
    try:
        fd = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    import fcntl

    for _ in range(33):  # MAX_PID_NS_LEVEL
        try:
            if os.fstat(fd).st_ino == namespace:
                return True
            above = fcntl.ioctl(fd, _NS_GET_PARENT)
        except OSError:  # EPERM: above is this process's own
            return False
        finally:
            os.close(fd)
        fd = above
    os.close(fd)
    return False


def has_ended(pid: int, *, block: bool) -> bool:
    """Return whether a child has ended, without reaping it. block: wait for its end. Raises OSError."""
    if abi.on_linux:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | (0 if block else os.WNOHANG) | abi.WALL) is not None
    from nsbox._core import darwin  # Python for macOS has waitid(2) since 3.13

    return darwin.has_ended(pid, block=block)


def ends_within(pid: int, seconds: float) -> bool:
    """Return whether a child ends within some seconds, without reaping it. Raises ChildProcessError if it isn't ours.

    A pidfd is readable as soon as the process has ended, but its parent can't reap it before its tracer has.
    """
    if not abi.on_linux:
        return has_ended(pid, block=True)
    try:
        pidfd = opened(os.pidfd_open, pid)
    except OSError:  # no descriptor is free, or it has been reaped, by the kernel where SIGCHLD is ignored
        if not has_ended(pid, block=False):
            time.sleep(min(seconds, 0.005))
            return False
        return True
    try:
        is_over = is_readable(pidfd.fileno(), seconds)
        if has_ended(pid, block=False):
            return True
    finally:
        pidfd.close()
    if is_over:
        time.sleep(min(seconds, 0.005))
    return False


def wait(pid: int, flags: int) -> tuple[int, int, resource.struct_rusage | None]:
    """Reap a child that has ended, as wait4(2) does; pid 0: it goes on. macOS's wait4 reports stops to a tracer too."""
    if not abi.on_linux and not has_ended(pid, block=not flags & os.WNOHANG):
        return 0, 0, None
    return os.wait4(pid, flags | abi.WALL)


def callers_rss() -> int:
    """Return ru_maxrss of this process so far; that of its children isn't less, since it counts from before exec."""
    import resource  # wait4() has imported it

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


_GET_INFO, _EXIT = 0xC040FF0B, 1 << 3  # PIDFD_GET_INFO and PIDFD_INFO_EXIT of <linux/pidfd.h>
_INFO = 64  # bytes of a struct pidfd_info, of which the last word is the wait status


def status_by_pidfd(pidfd: int) -> int | None:
    """Return the wait status of a process that has been reaped; None before Linux 6.15, or without a pidfd."""
    if pidfd < 0:
        return None
    import fcntl

    until = time.monotonic() + 1
    while True:
        has_gone = _has_gone(pidfd)  # first: once it has gone, its status is there
        info = bytearray(_EXIT.to_bytes(8, "little") + bytes(_INFO - 8))
        try:
            fcntl.ioctl(pidfd, _GET_INFO, info)
            if int.from_bytes(info[:8], "little") & _EXIT:
                return int.from_bytes(info[-4:], "little")
        except OSError:
            return None
        if has_gone or time.monotonic() > until:
            return None
        time.sleep(0.0005)  # it has been reaped, but the kernel still has to release it


def _has_gone(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, 0)
    return any(events & select.POLLHUP for _, events in poller.poll(0))


commands: set[int] = set()
"""The pids of commands that haven't been reaped: only their Popen may do that."""


def reap_strays(namespace: int) -> None:
    """Reap this process's zombies in a pid namespace: children that a command made by CLONE_PARENT."""
    for task in os.listdir("/proc/self/task"):
        for pid in _children(task):
            if pid not in commands and _is_stray(pid, namespace):
                with contextlib.suppress(OSError):  # other code has reaped it
                    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | abi.WALL)


def has_strays(namespace: int) -> bool:
    """Return whether this process has a child, apart from commands, that is or may be in a pid namespace."""
    others = (pid for task in os.listdir("/proc/self/task") for pid in _children(task) if pid not in commands)
    return any(_is_within(pid, namespace) is not False for pid in others)


def wait_for_init(pidfd: int, namespace: int, timeout_ms: int) -> bool:
    """Wait for a pid namespace's init; return whether it has ended. timeout_ms: -1 for none.

    Children that a command has given this process (CLONE_PARENT) are zombies by now, and the init waits for them too.
    """
    waited = 0
    while not call.wait(pidfd, -1, 20 if timeout_ms < 0 else min(20, timeout_ms - waited)):
        reap_strays(namespace)
        waited += 20
        if 0 <= timeout_ms <= waited:
            return call.wait(pidfd, -1, 0)
    return True


def _is_stray(pid: int, namespace: int) -> bool:
    is_within = _is_within(pid, namespace)
    if is_within is not None:
        return is_within
    # A process that made itself non-dumpable hides its namespaces. It can't hide that it is a zombie of a pid namespace
    # deeper than ours. In the next deeper one, pid 1 is the init of a sandbox, which isn't a stray.
    status = status_of(pid)
    inside = status.get("NSpid", "").split()
    depth = len(status_of("self").get("NSpid", "").split())
    is_deeper = len(inside) > depth + 1 or (len(inside) > depth and inside[-1] != "1")
    return status.get("State", "").startswith("Z") and is_deeper


def status_of(pid: int | str) -> dict[str, str]:
    """Return the fields of /proc/PID/status by name; {} if there is no such process."""
    try:
        with open(f"/proc/{pid}/status", errors="replace") as file:
            return {key: value.strip() for key, _, value in (line.partition(":") for line in file)}
    except OSError:
        return {}


def _children(task: str) -> list[int]:
    try:
        with open(f"/proc/self/task/{task}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def has_hung_up(pipe: int) -> bool:
    """Return whether nothing more will come from a pipe."""
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    return any(not events & select.POLLIN for _, events in poller.poll(0))


class Orphans:
    """Finds out whether this machine's pid 1 reaps the sandboxes' inits, which are orphans once the set-up is over.

    In a container whose pid 1 doesn't, they would pile up as zombies. Then `piling_up` becomes true, and later inits
    are made children of this process, which reaps them itself. One pidfd is watched until the answer is known.
    """

    PATIENCE = 10.0  # seconds; some reap in a loop with a pause

    def __init__(self) -> None:
        self._lock = threading.Lock()  # no thread waits for it
        self._watched = -1
        self._owner: Owner | None = None
        self._settled = False
        self._since = self._next = 0.0

    @property
    def piling_up(self) -> bool:
        """Whether no other process reaps them."""
        return call.adopt_inits

    def release(self, pidfd: Owner | int) -> None:
        """Take the pidfd of an init that has ended, or its owner."""
        if isinstance(pidfd, int):
            owners: list[Owner] = []
            own([pidfd], owners)
            pidfd = owners[0]
        if not self._settled and self._lock.acquire(blocking=False):  # if another thread is looking, that will do
            try:
                now = time.monotonic()
                if not self._settled and self._watched < 0:
                    self._watched, self._owner = pidfd.fileno(), pidfd
                    self._since, self._next = now, now + 0.1
                    return
                if not self._settled and now >= self._next:
                    self._next = now + 0.1
                    self._look(now)
            finally:
                self._lock.release()
        pidfd.close()

    def _look(self, now: float) -> None:
        try:
            signal.pidfd_send_signal(self._watched, 0)
        except OSError:  # ESRCH: reaped
            self._settled = True
        else:
            call.adopt_inits = self._settled = now - self._since > self.PATIENCE
        if self._settled:
            self._watched, self._owner = -1, None

    def after_fork(self) -> None:
        """In a forked child, make a fresh lock: another thread of the parent may have held the old one."""
        self._lock = threading.Lock()


class Leftovers:
    """The inits of sandboxes that nothing waits for any more: kill_on_exit=False.

    If they are children of this process (a subreaper, or the machine's pid 1), it has to reap them when they end. It
    looks for that whenever another sandbox has ended.
    """

    def __init__(self) -> None:
        self.pidfds: list[Owner] = []

    def add(self, pidfd: Owner) -> None:
        """Take the pidfd of an init that may be alive: its owner."""
        self.pidfds.append(pidfd)
        self.sweep()

    def sweep(self) -> None:
        """Reap those that have ended."""
        for _ in range(len(self.pidfds)):
            try:
                pidfd = self.pidfds.pop(0)  # so that two threads look at different ones
            except IndexError:
                return
            if call.wait(pidfd.fileno(), -1, 0):
                orphans.release(pidfd)
            else:
                self.pidfds.append(pidfd)

    def after_fork(self) -> None:
        """In a forked child, forget those of the parent."""
        self.pidfds = []


orphans = Orphans()
leftovers = Leftovers()
os.register_at_fork(after_in_child=leftovers.after_fork)
os.register_at_fork(after_in_child=orphans.after_fork)
