"""Descriptors of this process: their numbers, and their end."""

from __future__ import annotations

import _socket  # gevent replaces socket's class: see pair()
import errno
import fcntl
import os
import stat

from nsbox._base.errors import Reason, UnavailableError

_MFD_EXEC = 0x10  # since Linux 6.3, in case vm.memfd_noexec is set


def high(fd: int) -> int:
    """Return a descriptor from 3 up instead of one that may be lower, if the caller has closed a standard one."""
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def pair() -> tuple[_socket.socket, _socket.socket]:
    """Return the two ends of a connection that keeps messages apart. They are numbered from 3 up, and have no timeout.

    They aren't of the class socket.socket: gevent's makes its descriptor non-blocking, also for the other process.
    """
    ours, theirs = (from_3_up(end) for end in _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET))
    for end in (ours, theirs):
        end.settimeout(None)  # not the default timeout
    return ours, theirs


def from_3_up(end: _socket.socket) -> _socket.socket:
    """Return it, or a copy, made in one step with its descriptor, as in _base.owners: a signal handler may raise."""
    if end.fileno() > 2:
        return end
    copy = map(fcntl.fcntl, (end.fileno(),), (fcntl.F_DUPFD_CLOEXEC,), (3,))
    moved = next(map(_socket.socket, (-1,), (-1,), (-1,), copy))
    end.close()
    return moved


def close(*fds: int) -> None:
    """Close those that aren't -1. It is no error if one is closed already: a forked child may have closed all."""
    for fd in fds:
        if fd >= 0:
            try:  # contextlib.suppress() takes as long as closing them, and the start of a command waits for this
                os.close(fd)
            except OSError:
                pass


def write_all(fd: int, content: bytes) -> None:
    """Write to a file, however many calls that takes."""
    left = memoryview(content)
    while left:
        left = left[os.write(fd, left) :]


def sealed(name: str, content: bytes, mode: int, whose: str = "a session") -> int:
    """Return a descriptor of a file in memory that no process can change any more.

    whose: what needs it, for the UnavailableError where there is no such file.
    """
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        fd = high(os.memfd_create(name, flags | (_MFD_EXEC if mode & 0o100 else 0)))
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOSYS):
            reason = f"a seccomp filter of this process refuses memfd_create(2) ({errno.errorcode[error.errno]})"
            raise UnavailableError(Reason(f"{reason}, which {whose} needs", "allow it in the filter")) from None
        if error.errno != errno.EINVAL:
            raise
        fd = high(os.memfd_create(name, flags))
    try:
        write_all(fd, content)
        os.fchmod(fd, mode)
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(fd)
        raise
    return fd


def walked(above: int, path: str, flags: int) -> int:
    """Open a file part by part; raises OSError if a link (ELOOP) or ".." (EXDEV) is on the way."""
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
        file = os.open(parts[-1], flags | os.O_NOFOLLOW, dir_fd=at)
    finally:
        os.close(at)
    try:
        _check_no_link(file, path)
    except OSError:
        os.close(file)
        raise
    return file


def _check_no_link(fd: int, path: str) -> None:
    if stat.S_ISLNK(os.fstat(fd).st_mode):  # a link that was opened itself (O_PATH)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
