"""Descriptors of this process: their numbers, and their end."""

from __future__ import annotations

import fcntl
import os


def high(fd: int) -> int:
    """Return a descriptor from 3 up in place of one that may be lower, where the caller has closed a standard one."""
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def close(*fds: int) -> None:
    """Close those that aren't -1. One that is closed already is no error: a forked child may have closed all."""
    for fd in fds:
        if fd >= 0:
            try:  # contextlib.suppress() takes as long as closing them, and a command's start waits for it
                os.close(fd)
            except OSError:
                pass
