"""Where records go: handlers of the standard library's logging, a file of ours among them.

Several processes may append to one file, and so may forked copies of one. Each record is one write(2) to a file that is
open for appending, which Linux doesn't mix with another on a local file system. A process that writes holds a shared
lock on the file (flock(2)), and one that rotates it an exclusive one; nobody waits for that. A process whose file was
rotated by another opens the new one before its next record. A line without an end is being written as long as anybody
holds a lock, and else it is torn.
"""

from __future__ import annotations

import contextlib
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
_PATIENCE = 500  # milliseconds, with a writer that has begun a line
_REPLACED = ("emit", "handleError")  # methods of a handler
# Attributes of a record: which sinks got it, and which failed, by their ids: some handlers pickle records.
_REACHED, _PROBLEMS = "audit_reached", "audit_problems"


class AuditError(NsboxError):
    """A record that is required can't be written.

    place: where it was to go. problem: why it can't be. returncode: of the command, if it has ended; else None.
    """

    def __init__(self, place: str, problem: str, returncode: int | None = None) -> None:
        """Make the exception; the parameters become attributes."""
        super().__init__(place, problem, returncode)
        self.place, self.problem, self.returncode = place, problem, returncode

    def __str__(self) -> str:
        ended = "" if self.returncode is None else f" (the command has ended, with status {self.returncode})"
        return f"audit record for {shown(self.place)}: {self.problem}{ended}"


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
        self._opened: os.stat_result | None = None  # the file that _fd was opened for
        self._pid = 0  # the process that opened it: a forked copy needs a lock of its own
        self._open_file()

    def _open_file(self) -> None:
        self._close_file()
        fd = os.open(self.baseFilename, _FLAGS, 0o600)
        try:
            _check(fd, self.baseFilename)
            opened = os.fstat(fd)
        except BaseException:
            os.close(fd)
            raise
        self._close_file()  # of a signal handler that came in between
        self._fd, self._opened, self._pid = fd, opened, os.getpid()

    def _close_file(self) -> None:
        """Close the file, unless other code has, as daemons do: another file may have the number now."""
        fd, opened = getattr(self, "_fd", -1), getattr(self, "_opened", None)
        self._fd, self._opened = -1, None
        if fd >= 0 and opened is not None and _is_still(fd, opened):
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
        full = size + len(data)
        if self.maxBytes > 0 and size and full > self.maxBytes and self._rotated(is_late=full > 2 * self.maxBytes):
            self._open_file()
            size = os.fstat(self._fd).st_size
        if size and self._is_torn(size):
            data = b"\n" + data
        with contextlib.suppress(OSError):  # somebody rotates it; or the file system has no locks
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        try:
            written = os.write(self._fd, data)
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        if written != len(data):
            raise OSError(errno.ENOSPC, f"{written} of {len(data)} bytes were written", self.baseFilename)
        if self._sync:
            os.fdatasync(self._fd)

    def _is_torn(self, size: int) -> bool:
        """Return whether the last line has no end, and isn't being written at this moment: the size grows by pages."""
        if self._has_end(size):
            return False
        lock = self._second()
        if lock < 0:
            return True
        try:
            for _ in range(_PATIENCE):
                is_still = _is_locked(lock)  # then nobody writes
                if self._has_end(os.fstat(self._fd).st_size):
                    return False
                if is_still:
                    break
                time.sleep(0.001)
            return True
        finally:
            os.close(lock)

    def _has_end(self, size: int) -> bool:
        return size == 0 or os.pread(self._fd, 1, size - 1) == b"\n"

    def _second(self) -> int:
        """Return a second descriptor of the file by its name, for a lock; -1 if another process is renaming it."""
        try:
            return os.open(self.baseFilename, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return -1

    def _is_current(self) -> bool:
        """Return whether the open file still has its name."""
        if self._fd < 0 or self._pid != os.getpid() or self._opened is None or not _is_still(self._fd, self._opened):
            return False
        try:
            return os.path.samestat(os.lstat(self.baseFilename), self._opened)
        except FileNotFoundError:
            return False

    def _rotated(self, *, is_late: bool) -> bool:
        """Rename the file and its backups; return False if another process writes to it, or is doing that.

        is_late: don't mind. Whoever can read the file can lock it, and must not be able to make it grow for ever.
        """
        lock = self._second()
        if lock < 0:
            return True
        try:
            if not _is_locked(lock) and not is_late:
                return False
            if os.path.samestat(os.fstat(lock), os.fstat(self._fd)) and self._is_current():
                for number in range(self.backupCount, 0, -1):
                    source = self.baseFilename + (f".{number - 1}" if number > 1 else "")
                    if os.path.lexists(source):
                        os.rename(source, f"{self.baseFilename}.{number}")
            return True
        finally:
            os.close(lock)


def _is_locked(fd: int) -> bool:
    """Get the exclusive lock; return False if another has a lock."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(fd: int, opened: os.stat_result) -> bool:
    """Return whether a descriptor is open for the same file as before."""
    try:
        return os.path.samestat(os.fstat(fd), opened)
    except OSError:
        return False


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
        self._before = handler.formatter, {name: vars(handler)[name] for name in _REPLACED if name in vars(handler)}
        handler.setFormatter(JsonFormatter())
        handler.handleError = self._failed  # type: ignore[method-assign]
        self._emit = handler.emit
        handler.emit = self._guarded  # type: ignore[method-assign]

    def release(self) -> None:
        """Give the handler back as it was: it may be the program's own."""
        formatter, methods = self._before
        self.handler.setFormatter(formatter)
        for name in _REPLACED:
            vars(self.handler).pop(name, None)
        vars(self.handler).update(methods)

    @property
    def place(self) -> str:
        """Where records go, for messages."""
        return self.path or type(self.handler).__name__

    def has(self, record: logging.LogRecord) -> bool:
        """Return whether the handler got a record, which a filter or a level could have kept from it."""
        return id(self) in vars(record).get(_REACHED, ())

    def problem(self, record: logging.LogRecord) -> str:
        """Return why a record couldn't be written; "" if it was."""
        problems: dict[int, str] = vars(record).get(_PROBLEMS, {})
        return problems.get(id(self), "")

    def _guarded(self, record: logging.LogRecord) -> None:
        """Emit a record. Handlers that raise, instead of reporting what they can't do, break nothing."""
        vars(record).setdefault(_REACHED, []).append(id(self))
        try:
            self._emit(record)
        except Exception:
            self._failed(record)

    def _failed(self, record: logging.LogRecord) -> None:
        """Count a loss. It is the trail that raises, when all handlers have had the record."""
        error = sys.exception()
        problem = f"{type(error).__name__}: {error}" if error is not None else "it failed"
        vars(record).setdefault(_PROBLEMS, {})[id(self)] = problem
        self.lose(problem)

    def lose(self, problem: str) -> None:
        """Note that a record is lost. The first loss is logged, unless records are required: then an error says so."""
        self.lost += 1
        if self.lost == 1 and not self.is_required:
            logger.error("audit records are lost, %s can't be written: %s", shown(self.place), problem)


assert MOST_LINE == 16_384  # as JsonFormatter says
