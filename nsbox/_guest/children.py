"""Children that are awaited by their pidfds: the branches of an interpreter, and the forks of a kernel.

For each there is a socket, `told`, on which its caller is told of its start and of its end.
"""

from __future__ import annotations

import _thread
import os
import resource  # noqa: F401 (wait4() imports it when it is first called)
import select
import signal
import socket
import sys
import threading
from typing import Any

from .channel import Channel, encode, high
from .interrupts import hold

_MOST_HELD = 8
_ALL = 0x40000000  # __WALL: also children whose end is told by another signal than SIGCHLD, or by none


def other_threads() -> list[str]:
    """Return the names of the other threads: a fork would have their locks, but not the threads."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    me = threading.get_ident()
    found = sorted(names.get(ident) or f"thread {ident}" for ident in sys._current_frames() if ident != me)
    unseen = _thread._count() - len(found)  # those that run C alone have no frames
    return found + ([f"{unseen} of the module _thread's"] if unseen > 0 else [])


def tell(told: socket.socket, message: dict[str, Any], fds: list[int]) -> bool:
    """Send a message; return whether that worked: not if nobody listens, or too many descriptors are in flight."""
    try:
        told.sendmsg([encode(message).encode("ascii")], rights(fds), socket.MSG_NOSIGNAL)
    except OSError:
        return False
    return True


def rights(fds: list[int]) -> list[tuple[int, int, bytes]]:
    """Return the ancillary data that sends descriptors."""
    content = b"".join(fd.to_bytes(4, "little") for fd in fds)
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, content)] if fds else []


def seqpacket(fd: int) -> socket.socket:
    """Return a socket of messages, by a high descriptor; it owns the given one."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, high(fd))


class _Child:
    def __init__(self, pid: int, told: socket.socket, init_pidfd: int, hold: socket.socket | None) -> None:
        self.pid, self.told, self.init_pidfd, self.hold = pid, told, init_pidfd, hold
        self.pidfd = high(os.pidfd_open(pid))

    def outcome(self) -> dict[str, Any] | None:
        """Reap it; return what its caller is told, or None while it runs."""
        try:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG | _ALL)
        except ChildProcessError:  # foreign code has reaped it
            return {"ended": None}
        if pid == 0:
            return None
        return _outcome(status, usage.ru_utime, usage.ru_stime, usage.ru_maxrss)


def _outcome(status: int, user: float, system: float, kibibytes: int) -> dict[str, Any]:
    return {
        "ended": status,
        "user_us": round(user * 1e6),
        "system_us": round(system * 1e6),
        "max_rss": kibibytes * 1024,
    }


class Children:
    """The children of this process, except for those that foreign code has made."""

    def __init__(self) -> None:
        """There are none yet."""
        self._children: dict[int, _Child] = {}  # by pidfd
        self._inits: set[int] = set()  # pidfds of the pid 1s of branches that have ended
        self._poll = select.poll()

    @property
    def may_hold(self) -> bool:
        """Whether one more may have a `hold`: what is on its way in sockets counts for the user (unix(7))."""
        return sum(child.hold is not None for child in self._children.values()) < _MOST_HELD

    def add(
        self,
        pid: int,
        told: socket.socket,
        init_pidfd: int = -1,
        says_fd: int = -1,
        hold: socket.socket | None = None,
    ) -> None:
        """Watch a child, and tell its start; raises OSError.

        told: it belongs to this from now on.
        init_pidfd: of the child's pid 1, which is reaped after it; or -1.
        says_fd: what that pid 1 writes to, which is handed on; or -1.
        hold: has what is to go after the child's end was told; or None. It belongs to this from now on.
        """
        child = _Child(pid, told, init_pidfd, hold)
        self._children[child.pidfd] = child
        self._poll.register(child.pidfd, select.POLLIN)
        if not tell(told, {"started": pid}, [fd for fd in (child.pidfd, init_pidfd, says_fd) if fd >= 0]):
            signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)  # its caller would wait for it: now it learns the end

    def rehearse(self) -> None:
        """Tell nobody of an end, while there is time: then the pages that this writes to are this process's own.

        Each that a fork still shares costs a copy, which would be made when a child has ended, and its caller waits.
        """
        self.reap()
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            return
        with ours, theirs:
            self._poll.register(ours.fileno(), select.POLLIN)
            tell(ours, _outcome(0, 0.001, 0.001, 1), [])
            self._poll.unregister(ours.fileno())

    def wait(self, fd: int) -> bool:
        """Wait until something can be read from a descriptor, or a child ends; return whether it's the first."""
        if not self._children and not self._inits:
            return True
        self._poll.register(fd, select.POLLIN)
        ready = [ready for ready, _ in self._poll.poll()]
        self._poll.unregister(fd)
        for number in ready:
            if number in self._inits:
                self._reap_init(number)
        self.reap()
        return fd in ready

    def reap(self, *_: Any) -> None:
        """Reap what has ended, and tell it. Also a handler of SIGCHLD."""
        for pidfd, child in list(self._children.items()):
            outcome = child.outcome()
            if outcome is not None and self._children.pop(pidfd, None) is not None:
                self._poll.unregister(pidfd)
                os.close(pidfd)
                tell(child.told, outcome, [])
                child.told.close()
                if child.hold is not None:
                    child.hold.close()
                if child.init_pidfd >= 0:
                    self._inits.add(child.init_pidfd)
                    self._poll.register(child.init_pidfd, select.POLLIN)

    def _reap_init(self, pidfd: int) -> None:
        try:
            os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | _ALL)
        except ChildProcessError:
            pass
        self._inits.discard(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)

    def kill(self) -> None:
        """End all of them."""
        for pidfd in self._children:
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            except OSError:
                pass

    def forget(self) -> None:
        """In a fork: close what belongs to the parent."""
        for child in self._children.values():
            os.close(child.pidfd)
            child.told.close()
            if child.hold is not None:
                child.hold.close()
            if child.init_pidfd >= 0:
                os.close(child.init_pidfd)
        for pidfd in self._inits:
            os.close(pidfd)
        self.__init__()  # type: ignore[misc]


class Forks(Children):
    """The forks of a kernel, which go on with its state, each on a line of its own."""

    def __init__(self, confine: Any = os.setsid) -> None:
        """There are none yet.

        confine: puts a fork out of its siblings' reach.
        """
        super().__init__()
        self.confine = confine

    def await_frame(self, line: Channel) -> None:
        """Wait until a frame comes; meanwhile reap forks."""
        while not line.has_data() and not self.wait(line.fd):
            pass
        line.wait()

    def fork(self, number: Any, fds: list[int], line: Channel) -> Channel | None:
        """Make a fork of this process; return its line in the fork, None in the kernel.

        number: of the caller's frame.
        fds: told and line of the fork, and its standard streams if it has its own.
        line: the kernel's own, on which it answers.
        """
        names = other_threads()
        if names:
            for fd in fds:
                os.close(fd)
            line.send({"id": number, "failed": {"what": "threads", "names": names}})
            return None
        told, theirs = seqpacket(fds[0]), fds[1]
        hold(True)
        try:
            pid = os.fork()
        except OSError as error:
            for fd in fds[1:]:
                os.close(fd)
            hold(False)
            tell(told, {"failed": error.errno, "step": 0, "op": -1}, [])
            line.send({"id": number, "failed": {"what": "fork", "errno": error.errno, "message": str(error)}})
            return None
        if pid == 0:
            self._become(told, fds[2:])
            return Channel(theirs)
        hold(False)
        for fd in fds[1:]:
            os.close(fd)
        if signal.getsignal(signal.SIGCHLD) in (signal.SIG_DFL, None):
            signal.signal(signal.SIGCHLD, self.reap)
            signal.siginterrupt(signal.SIGCHLD, False)
        self.add(pid, told)
        line.send({"id": number, "forked": pid})
        return None

    def _become(self, told: socket.socket, streams: list[int]) -> None:
        told.close()
        self.forget()
        if signal.getsignal(signal.SIGCHLD) == self.reap:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd, number in zip(streams, (0, 1, 2)):
            os.dup2(fd, number)
            os.close(fd)
        self.confine()

    def forget(self) -> None:
        """In a fork: close what belongs to the parent."""
        confine = self.confine
        super().forget()
        self.confine = confine
