"""Where records go: handlers of the standard library's logging, a file of ours among them.

Several processes may append to one file, and so may forked copies of one. Each record is one write(2) to a file that is
open for appending, which Linux doesn't mix with another on a local file system. A process that rotates the file holds a
lock on it (flock(2)) meanwhile; nobody waits for that lock. A process whose file was rotated by another opens the new
one before its next record.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import sys
import time
from logging.handlers import RotatingFileHandler
from typing import TYPE_CHECKING

from nsbox._audit.line import MOST_LINE, line
from nsbox._audit.record import SCHEMA, stamp
from nsbox._base.display import shown
from nsbox._base.errors import NsboxError
from nsbox._logs import logger

if TYPE_CHECKING:
    from typing import Any

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK
_LOOSE = stat.S_IWGRP | stat.S_IWOTH


class AuditError(NsboxError):
    """A record that is required can't be written. place: where it was to go. problem: why it can't be."""

    def __init__(self, place: str, problem: str) -> None:
        """Make the exception; the parameters become attributes."""
        super().__init__(place, problem)
        self.place, self.problem = place, problem

    def __str__(self) -> str:
        return f"audit record for {shown(self.place)}: {self.problem}"


class JsonFormatter(logging.Formatter):
    """Formats a record of nsbox.audit as one line of JSON, in ASCII, of at most 16384 bytes with its line end."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        facts: dict[str, Any] | None = getattr(record, "audit", None)
        if facts is None:  # somebody else's
            time = stamp(int(record.created * 1e9))
            facts = {"schema": SCHEMA, "event": "message", "time": time, "message": record.getMessage()}
        return line(facts)


class AuditFile(RotatingFileHandler):
    """Appends records to a file of the caller's own (mode 0600), one write each.

    A line that another writer has left unfinished, for lack of space, is ended before the next record.
    """

    def __init__(self, path: str, max_bytes: int, backups: int, *, sync: bool = False) -> None:
        """Open the file. Raises OSError, also for a file that others could write to or replace."""
        super().__init__(path, maxBytes=max_bytes, backupCount=backups, encoding="ascii", delay=True)
        self._fd, self._sync = -1, sync
        self._open_file()

    def _open_file(self) -> None:
        self._close_file()
        fd = os.open(self.baseFilename, _FLAGS, 0o600)
        try:
            _check(fd, self.baseFilename)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def _close_file(self) -> None:
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        """Close the file. Another record opens it again."""
        with self.lock or logging._lock:  # type: ignore[attr-defined]
            self._close_file()
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; handleError() hears of a failure."""
        try:
            self._write(self.format(record).encode("ascii") + b"\n")
        except Exception:
            self.handleError(record)

    def _write(self, data: bytes) -> None:
        if not self._is_current():
            self._open_file()
        size = os.fstat(self._fd).st_size
        if self.maxBytes > 0 and size and size + len(data) > self.maxBytes and self._rotated():
            self._open_file()
            size = os.fstat(self._fd).st_size
        if size and self._is_torn(size):
            data = b"\n" + data
        written = os.write(self._fd, data)
        if written != len(data):
            raise OSError(errno.ENOSPC, f"{written} of {len(data)} bytes were written", self.baseFilename)
        if self._sync:
            os.fdatasync(self._fd)

    def _is_torn(self, size: int) -> bool:
        """Return whether the last line has no end, and isn't being written at this moment: the size grows by pages."""
        for _ in range(10):
            if os.pread(self._fd, 1, size - 1) == b"\n":
                return False
            time.sleep(0.001)
            size = os.fstat(self._fd).st_size
        return True

    def _is_current(self) -> bool:
        """Return whether the open file still has its name."""
        try:
            return self._fd >= 0 and os.path.samestat(os.lstat(self.baseFilename), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def _rotated(self) -> bool:
        """Rename the file and its backups; return False if another process is doing that."""
        lock = os.open(self.baseFilename, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)  # of a forked copy's own
        try:  # if another process has the lock, this record still goes to the file as it is
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), os.fstat(self._fd)) and self._is_current():
                for number in range(self.backupCount, 0, -1):
                    source = self.baseFilename + (f".{number - 1}" if number > 1 else "")
                    if os.path.lexists(source):
                        os.rename(source, f"{self.baseFilename}.{number}")
            return True
        except BlockingIOError:
            return False
        finally:
            os.close(lock)


def _check(fd: int, path: str) -> None:
    """Raise PermissionError unless it is a plain file of this user's, which nobody else can write to or replace."""
    status, above = os.fstat(fd), os.stat(os.path.dirname(path))
    owners = (os.geteuid(), 0)
    problem = ""
    if not stat.S_ISREG(status.st_mode):
        problem = "is no regular file"
    elif status.st_uid not in owners or status.st_mode & _LOOSE:
        problem = "can be written by others: chmod go-w, and own it"
    elif status.st_nlink != 1:
        problem = "has another name, by which commands might reach it"
    elif above.st_uid not in owners or (above.st_mode & _LOOSE and not above.st_mode & stat.S_ISVTX):
        problem = "is in a directory where others can replace it"
    if problem:
        raise PermissionError(errno.EPERM, problem, path)


class Sink:
    """A handler, and what happens if it fails.

    path: of its file; None if it has none. is_required: whether a record that it can't write is an error.
    """

    def __init__(self, handler: logging.Handler, *, is_required: bool) -> None:
        """Give the handler our formatter, and hear of its failures."""
        self.handler, self.is_required = handler, is_required
        path = getattr(handler, "baseFilename", None)
        self.path: str | None = path if isinstance(path, str) else None
        self.lost = 0
        handler.setFormatter(JsonFormatter())
        handler.handleError = self._failed  # type: ignore[method-assign]
        self._emit = handler.emit
        handler.emit = self._guarded  # type: ignore[method-assign]

    @property
    def place(self) -> str:
        """Where records go, for messages."""
        return self.path or type(self.handler).__name__

    def _guarded(self, record: logging.LogRecord) -> None:
        """Emit a record. Handlers that raise, instead of reporting what they can't do, break nothing."""
        try:
            self._emit(record)
        except AuditError:
            raise
        except Exception:
            self._failed(record)

    def _failed(self, record: logging.LogRecord) -> None:
        error = sys.exception()
        problem = f"{type(error).__name__}: {error}" if error is not None else "it failed"
        if self.is_required:
            raise AuditError(self.place, problem)
        self.lost += 1
        if self.lost == 1:
            logger.error("audit records are lost, %s can't be written: %s", shown(self.place), problem)


assert MOST_LINE == 16_384  # as JsonFormatter says
