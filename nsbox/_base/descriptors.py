"""Descriptors of this process: their numbers, and their end."""

from __future__ import annotations

import _socket
import errno
import fcntl
import os
import stat


def high(fd: int) -> int:
    """Return the descriptor, or if it is below 3, a copy instead: the caller may have closed standard descriptors."""
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def pair() -> tuple[_socket.socket, _socket.socket]:
    """Return the two ends of a connection that keeps messages apart, both 3 or above, without a time limit.

    They aren't of the class socket.socket: gevent's makes the descriptor non-blocking, also for another process.
    """
    ours, theirs = (_from_3_up(end) for end in _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET))
    for end in (ours, theirs):
        end.settimeout(None)  # not the default timeout
    return ours, theirs


def _from_3_up(end: _socket.socket) -> _socket.socket:
    """Return the socket, or a copy from 3 up; in one step, as in _base.owners, since a signal's handler may raise."""
    if end.fileno() > 2:
        return end
    copy = map(fcntl.fcntl, (end.fileno(),), (fcntl.F_DUPFD_CLOEXEC,), (3,))
    moved = next(map(_socket.socket, (-1,), (-1,), (-1,), copy))
    end.close()
    return moved


def close(*fds: int) -> None:
    """Close those that aren't -1. One that is closed already is no error: a forked child may have closed all."""
    for fd in fds:
        if fd >= 0:
            try:  # contextlib.suppress() takes as long as closing them, and a command's start waits for it
                os.close(fd)
            except OSError:
                pass


def walked(above: int, path: str, flags: int) -> int:
    """Open what no link and no ".." leads to, part by part."""
    at = os.open("/" if path.startswith("/") else ".", os.O_PATH | os.O_CLOEXEC, dir_fd=None if above < 0 else above)
    try:
        parts = [part for part in path.split("/") if part not in ("", ".")] or ["."]
        if ".." in parts:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
        for part in parts[:-1]:
            inner = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = inner
            _check_no_link(at, path)
        fd = os.open(parts[-1], flags | os.O_NOFOLLOW, dir_fd=at)
    finally:
        os.close(at)
    try:
        _check_no_link(fd, path)
    except OSError:
        os.close(fd)
        raise
    return fd


def _check_no_link(fd: int, path: str) -> None:
    if stat.S_ISLNK(os.fstat(fd).st_mode):  # one that was opened itself (O_PATH)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
