"""Where a transaction keeps its files: a directory of its own in one that is nobody else's.

lock        held (flock) as long as the transaction lives; who gets it may clean up
about       which workspace it is for; sealed, as the journal is: see _journal
upper work  overlayfs's
journal     from the moment on when the changes are certain: the steps that bring them in
done        the journal, when nothing is left of it but to clean up

Beside the stores lies a `lock` of all: held (flock) while a store is made or looked at, and by a byte for each
workspace (OFD locks, fcntl(2)) while changes are brought into it. Nothing of it can be seen in a sandbox.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import stat
import struct
import time
from _collections_abc import Callable, Iterator

from nsbox import _journal
from nsbox._base.errors import ConflictError, PolicyError
from nsbox._files import files
from nsbox._files.files import Tree, sync_directory
from nsbox._machine import probe

VERSION = 2
_PATIENCE = 30.0  # seconds for another process that has the lock of all stores, or commits into the same workspace
_RESERVE = 8  # what end() opens at the same time
_log = logging.getLogger("nsbox")


class Store:
    """The directory of one transaction, and the lock on it."""

    def __init__(self, path: str, lock: int) -> None:
        self.path, self._lock = path, lock
        self.upper, self.work = (os.path.join(path, name) for name in ("upper", "work"))
        self.is_needed = False  # something is left that the next recover() has to see to
        self._reserve: list[int] = []  # descriptors that nobody else gets, so that it can be removed in any case

    @property
    def spare(self) -> str:
        """The name of the directory in the workspace that a commit uses."""
        return ".nsbox-" + os.path.basename(self.path)

    @property
    def has_journal(self) -> bool:
        """Say if changes are certain that may be in the workspace only in part."""
        return os.path.exists(os.path.join(self.path, "journal"))

    @classmethod
    def make(cls, base: str, workspace: str, found: os.stat_result) -> Store:
        """Make one below base for a workspace; raises PolicyError for a base that others may write to, and OSError."""
        os.makedirs(base, mode=0o700, exist_ok=True)
        with locked_base(base):
            path = os.path.join(base, os.urandom(8).hex())
            store = cls(path, -1)
            store._set_aside()
            os.mkdir(path, 0o700)
            try:
                store._lock = lock(os.path.join(path, "lock"))
            except BaseException:
                store.end()
                raise
        try:
            sync_directory(base)
            for name in (store.upper, store.work):
                os.mkdir(name, 0o700)
            if os.geteuid() == 0:
                os.chown(store.upper, found.st_uid, found.st_gid)
            os.chmod(store.upper, stat.S_IMODE(found.st_mode))  # it is what the workspace looks like inside
            store.write("about", {"version": VERSION, "workspace": workspace, "ino": found.st_ino})
        except BaseException:
            store.end()
            raise
        return store

    def write(self, name: str, content: object) -> None:
        """Write a file of its own, so that it is there whole or not at all, also after a power failure."""
        data = _journal.sealed(_journal.key(probe.probe().state), self._context(name), content)
        path = os.path.join(self.path, name)
        with open(path + ".new", "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(path + ".new", path)
        sync_directory(self.path)

    def read(self, name: str) -> object:
        """Return what write() has written; None if it hasn't. Raises ValueError for anything else."""
        path = os.path.join(self.path, name)
        try:
            data = _journal.read(path)
            if data is None:
                return None
            state = probe.probe().state
            key = _journal.known_key(state)
            if key is None:
                where = _journal.key_path(state) if state else "this user's directory for state"
                raise ValueError(f"can't be told to be this user's: there is no key in {where}")
            return _journal.opened(key, self._context(name), data)
        except ValueError as error:
            what = f"{path} {error}. Nothing of it is done; to drop it, remove {self.path}"
            raise ValueError(f"{what}, and {self.spare} in the workspace") from None

    def claim(self) -> str:
        """Return the workspace that it says it is for, sealed or not: only for telling whom its errors are about."""
        with contextlib.suppress(OSError, ValueError, RecursionError, LookupError, TypeError):
            data = _journal.read(os.path.join(self.path, "about")) or b""
            return str(json.loads(data[: 1 << 16].rpartition(b"\n")[2])["workspace"])
        return ""

    def _context(self, name: str) -> str:
        return f"{os.path.basename(self.path)}/{name}"

    def finish(self) -> None:
        """Say that the journal is done with."""
        os.rename(os.path.join(self.path, "journal"), os.path.join(self.path, "done"))
        sync_directory(self.path)

    def withdraw(self) -> None:
        """Say that nothing has come of the journal, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.path, "journal"))
            sync_directory(self.path)

    def clean(self, real: Tree) -> None:
        """Remove the spare directory, with what the commit has taken out of the workspace; or note that it couldn't."""
        self.is_needed = True
        try:
            with Tree(real.fd, forceful=True) as tree:
                files.remove(tree, self.spare)
            self.is_needed = False
        except OSError as error:
            _log.warning("%s in the workspace can't be removed now: %s", self.spare, error)

    def _set_aside(self) -> None:
        try:
            for _ in range(_RESERVE):
                self._reserve.append(os.open("/", os.O_PATH | os.O_CLOEXEC))
        except OSError as error:
            self._give_back()
            what = f"{error.strerror} for a transaction, which takes 16 or so: raise RLIMIT_NOFILE (ulimit -n)"
            raise OSError(error.errno, what) from None

    def end(self) -> None:
        """Remove it, unless it is needed. Commands that were killed a moment ago may still be at work in it."""
        try:
            self._give_back()
            for attempt in range(20):
                if self.is_needed or self.has_journal:
                    return
                try:
                    self._remove()
                    return
                except OSError as error:
                    if attempt == 19:
                        _log.warning("%s can't be removed now: %s", self.path, error)
                time.sleep(0.01)
        finally:
            self.let_go()

    def _remove(self) -> None:
        above, name = os.path.split(self.path)
        with Tree(above, forceful=True) as tree:
            for part in ("upper", "work", ""):  # the rest at last: without it nobody knows what the others are
                files.remove(tree, f"{name}/{part}" if part else name)

    def _give_back(self) -> None:
        while self._reserve:
            os.close(self._reserve.pop())

    def let_go(self) -> None:
        """Unlock it."""
        self._give_back()
        held, self._lock = self._lock, -1
        if held >= 0:
            os.close(held)


def lock(path: str) -> int:
    """Return a descriptor of a locked file; raises BlockingIOError if somebody else has locked it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_base(base: str) -> None:
    """Refuse a directory where somebody else could leave a journal, which is carried out with our rights."""
    found = os.stat(base)
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PolicyError("dir", f"{base} has to belong to this user, and nobody else may write to it (chmod go-w)")


_held: set[int] = set()  # locks of bases, which a forked child would keep


def _after_fork() -> None:
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_after_fork)


@contextlib.contextmanager
def _lock_file(base: str) -> Iterator[int]:
    _check_base(base)
    fd = os.open(os.path.join(base, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    _held.add(fd)
    try:
        yield fd
    finally:
        _held.discard(fd)
        os.close(fd)


def _wait(take: Callable[[], object]) -> bool:
    """Take a lock; False if another process has it all the time. Never waits for longer than that."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            take()
            return True
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            if time.monotonic() >= end:
                return False
        time.sleep(0.01)


@contextlib.contextmanager
def locked_base(base: str) -> Iterator[None]:
    """Keep others from taking a store that is just being made for one that has been left behind.

    Raises TimeoutError when another process has the lock for half a minute.
    """
    with _lock_file(base) as fd:
        if not _wait(lambda: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)):
            what = "another process has been looking after transactions there for half a minute; end it, or try again"
            raise TimeoutError(errno.ETIMEDOUT, what, os.path.join(base, "lock"))
        yield


@contextlib.contextmanager
def locked_workspace(base: str, workspace: os.stat_result) -> Iterator[None]:
    """Have no other commit from this base change this workspace in the block; raises ConflictError if one goes on.

    Commits from other bases are seen as anybody else's changes are.
    """
    at = (workspace.st_ino << 16 ^ workspace.st_dev) & (1 << 62) - 1
    request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0)  # struct flock, where off_t has 64 bits
    with _lock_file(base) as fd:
        if not _wait(lambda: fcntl.fcntl(fd, fcntl.F_OFD_SETLK, request)):
            raise ConflictError([(".", "another commit is under way")])
        yield


def _lock_of(path: str) -> int:
    """Lock a store, if it has been left behind. One with a journal is waited for: somebody is just committing.

    Or has just been killed, and a process that shares his descriptors hasn't gone yet.
    """
    for _ in range(200 if os.path.exists(os.path.join(path, "journal")) else 0):
        try:
            return lock(os.path.join(path, "lock"))
        except BlockingIOError:
            time.sleep(0.01)
    return lock(os.path.join(path, "lock"))


_NAME = re.compile("[0-9a-f]{16}")  # as Store.make() calls them


def left_behind(base: str) -> Iterator[Store]:
    """Yield, locked, the stores below base whose transactions have ended without a word."""
    try:
        names = [name for name in os.listdir(base) if _NAME.fullmatch(name)]  # all else is somebody's
    except FileNotFoundError:
        return
    if not names:
        return
    with locked_base(base):
        for name in sorted(names):
            path = os.path.join(base, name)
            try:
                if not stat.S_ISDIR(os.lstat(path).st_mode):
                    continue
                store = Store(path, _lock_of(path))
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.ENOENT):
                    raise
                continue
            try:
                yield store
            finally:
                store.let_go()
