"""Where a transaction keeps its files: a directory of its own, inside one that belongs to this user alone.

lock        held (flock) as long as the transaction lives; a process that gets it may clean up
about       which workspace it is for; sealed like the journal: see _transaction.journal
upper work  overlayfs's directories
journal     the steps that bring the changes in, from the moment when these are certain
done        the journal, once nothing is left to do except cleaning up

Beside the stores is one `lock` for all of them. It is held (flock) while a store is made or looked at. While changes
are brought into a workspace, the byte for that workspace is locked (OFD locks, fcntl(2)). Commands see nothing of all
this.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
import struct
import time
from itertools import repeat

from nsbox._base.errors import ConflictError, PolicyError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.owners import opened, own
from nsbox._files import files
from nsbox._files.files import Tree, sync_directory
from nsbox._logs import logger
from nsbox._machine import probe
from nsbox._transaction import journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nsbox._base.owners import Owner

VERSION = 2
_PATIENCE = 30.0  # seconds for another process that has the lock of all stores, or commits into the same workspace
_RESERVE = 8  # how many descriptors end() has open at the same time


class Store:
    """The directory of one transaction, and the lock on it."""

    def __init__(self, path: str, lock: Owner | None) -> None:
        self.path, self._lock = path, lock
        self.upper, self.work = (os.path.join(path, name) for name in ("upper", "work"))
        self.is_needed = False  # something is left for the next recover() to do
        self._about: object = None  # what settle() writes
        self._reserve: list[Owner] = []  # descriptors that are set aside, so that it can be removed in any case

    @property
    def spare(self) -> str:
        """The name of the directory in the workspace that a commit uses."""
        return ".nsbox-" + os.path.basename(self.path)

    @property
    def has_journal(self) -> bool:
        """Whether there are certain changes, of which only a part may be in the workspace."""
        return os.path.exists(os.path.join(self.path, "journal"))

    @classmethod
    def make(cls, base: str, workspace: str, found: os.stat_result, *, settles: bool = True) -> Store:
        """Make a store below base for a workspace; found: that directory's status.

        settles: False leaves it to the caller to call settle() before there is anything to recover. To wait for the
            device takes longer than everything else.

        Raises PolicyError if another user may write to base, and OSError.
        """
        os.makedirs(base, mode=0o700, exist_ok=True)
        with locked_base(base):
            path = os.path.join(base, os.urandom(8).hex())
            store = cls(path, None)
            store._set_aside()
            os.mkdir(path, 0o700)
            try:
                store._lock = lock(os.path.join(path, "lock"))
            except BaseException:
                store.end()
                raise
        try:
            make_upper(store.upper, store.work, found)
            store._about = {"version": VERSION, "workspace": workspace, "ino": found.st_ino}
            if settles:
                store.settle()
        except BaseException:
            store.end()
            raise
        return store

    def settle(self) -> None:
        """Make sure that recover() knows after a crash which workspace this is for."""
        if self._about is None:
            return
        sync_directory(os.path.dirname(self.path))
        self.write("about", self._about)
        self._about = None

    def write(self, name: str, content: object) -> None:
        """Write one of its files, whole or not at all, even if the power fails."""
        data = journal.sealed(journal.key(probe.probe().state), self._context(name), content)
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
            data = journal.read(path)
            if data is None:
                return None
            state = probe.probe().state
            key = journal.known_key(state)
            if key is None:
                where = journal.key_path(state) if state else "this user's directory for state"
                raise ValueError(f"can't be recognised as this user's: there is no key in {where}")
            return journal.opened(key, self._context(name), data)
        except ValueError as error:
            what = f"{path} {error}. Nothing of it is done; to drop it, remove {self.path}"
            raise ValueError(f"{what}, and {self.spare} in the workspace") from None

    def claim(self) -> str:
        """Return the workspace that it claims to be for, sealed or not: only to say what its errors are about."""
        with contextlib.suppress(OSError, ValueError, RecursionError, LookupError, TypeError):
            data = journal.read(os.path.join(self.path, "about")) or b""
            return str(json.loads(data[: 1 << 16].rpartition(b"\n")[2])["workspace"])
        return ""

    def _context(self, name: str) -> str:
        return f"{os.path.basename(self.path)}/{name}"

    def finish(self) -> None:
        """Record that the steps of the journal have been done."""
        os.rename(os.path.join(self.path, "journal"), os.path.join(self.path, "done"))
        sync_directory(self.path)

    def withdraw(self) -> None:
        """Drop the journal, if there is one: its steps have been undone, or weren't begun."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.path, "journal"))
            sync_directory(self.path)

    def clean(self, real: Tree) -> None:
        """Remove the spare directory, with what the commit has taken out of the workspace; remember if that fails."""
        self.is_needed = True
        try:
            with Tree(real.fd, forceful=True) as tree:
                files.remove(tree, self.spare)
            self.is_needed = False
        except OSError as error:
            logger.warning("%s in the workspace can't be removed now: %s", self.spare, error)

    def _set_aside(self) -> None:
        try:
            own(map(os.open, repeat("/", _RESERVE), repeat(os.O_PATH | os.O_CLOEXEC)), self._reserve)
        except OSError as error:
            self._give_back()
            if error.errno is None:  # a signal handler's own
                raise
            what = f"{error.strerror} for a transaction, which needs 16 or so: raise RLIMIT_NOFILE (ulimit -n)"
            raise OSError(error.errno, what) from None

    def end(self) -> None:
        """Remove it, unless it is needed. Commands that were killed a moment ago may still be writing to it."""
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
                        logger.warning("%s can't be removed now: %s", self.path, error)
                time.sleep(0.01)
        finally:
            self.let_go()

    def _remove(self) -> None:
        above, name = os.path.split(self.path)
        with Tree(above, forceful=True) as tree:
            for part in ("upper", "work", ""):  # the rest comes last: it says what the other parts are
                files.remove(tree, f"{name}/{part}" if part else name)

    def _give_back(self) -> None:
        while self._reserve:
            self._reserve.pop().close()

    def let_go(self) -> None:
        """Unlock it."""
        self._give_back()
        held, self._lock = self._lock, None
        if held is not None:
            held.close()


def make_upper(upper: str, work: str, found: os.stat_result) -> None:
    """Make the directories that overlayfs needs. Commands see the mode and the owner of the upper one; found: these."""
    for name in (upper, work):
        os.mkdir(name, 0o700)
    if os.geteuid() == 0:
        try:
            os.chown(upper, found.st_uid, found.st_gid)
        except OSError as error:
            if error.errno != errno.EINVAL:  # an id that isn't mapped in this user namespace, user_namespaces(7)
                raise
    os.chmod(upper, stat.S_IMODE(found.st_mode))


def lock(path: str) -> Owner:
    """Open a file and lock it; raises BlockingIOError if another process has locked it."""
    owner = _opened(path)
    try:
        fcntl.flock(owner.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        owner.close()  # or it would stay locked for as long as the caller looks at the error
        raise
    return owner


def _opened(path: str) -> Owner:
    """Open a lock file. It has an owner: if a signal handler raises, a lost descriptor would keep the lock."""
    return opened(os.open, path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _check_base(base: str) -> None:
    """Refuse a directory where another user could leave a journal: it would be carried out with this user's rights."""
    status = os.stat(base)
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PolicyError("dir", f"{base} must belong to this user, and no other user may write to it (chmod go-w)")


_held: set[Owner] = set()  # locks of bases, which a forked child would keep otherwise


def _after_fork() -> None:
    while _held:
        _held.pop().close()


os.register_at_fork(after_in_child=_after_fork)


@contextlib.contextmanager
def _lock_file(base: str) -> Iterator[int]:
    _check_base(base)
    owner = _opened(os.path.join(base, "lock"))
    try:
        _held.add(owner)
        yield owner.fileno()
    finally:
        _held.discard(owner)
        owner.close()


def _wait(take: Callable[[], object]) -> bool:
    """Acquire a lock; False if another process has had it for _PATIENCE seconds."""
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
    """Lock the stores in a block: no process must mistake one that is being made for one that was left behind.

    Raises TimeoutError if another process has had the lock for half a minute.
    """
    with _lock_file(base) as fd:
        if not _wait(lambda: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)):
            what = "another process has been looking after transactions there for half a minute; end it, or try again"
            raise TimeoutError(errno.ETIMEDOUT, what, os.path.join(base, "lock"))
        yield


@contextlib.contextmanager
def locked_workspace(base: str, workspace: os.stat_result) -> Iterator[None]:
    """Keep other commits from this base out of a workspace in a block; raises ConflictError if one is under way.

    Commits from other bases are noticed as any other process's changes are.
    """
    at = (workspace.st_ino << 16 ^ workspace.st_dev) & (1 << 62) - 1
    request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0)  # struct flock with an off_t of 64 bits
    with _lock_file(base) as fd:
        if not _wait(lambda: fcntl.fcntl(fd, fcntl.F_OFD_SETLK, request)):
            raise ConflictError([(".", "another commit is under way")])
        yield


def _lock_of(path: str) -> Owner:
    """Lock a store, if it has been left behind; raises BlockingIOError otherwise.

    If it has a journal, wait for it. A process may be committing, or may have been killed a moment ago, while another
    one that shares its descriptors hasn't gone yet.
    """
    for _ in range(200 if os.path.exists(os.path.join(path, "journal")) else 0):
        try:
            return lock(os.path.join(path, "lock"))
        except BlockingIOError:
            time.sleep(0.01)
    return lock(os.path.join(path, "lock"))


_NAME = re.compile("[0-9a-f]{16}")  # as Store.make() calls them


def left_behind(base: str) -> Iterator[Store]:
    """Yield, locked, the stores below base whose processes have ended without cleaning up."""
    try:
        names = [name for name in os.listdir(base) if _NAME.fullmatch(name)]  # other names aren't nsbox's
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
