"""Homes that are kept: directories of mode 0700 in nsbox's own directory for state; made, locked, and removed.

A home's name is the user's choice, or a Sandbox's own. A Sandbox's home has a lock beside it: if its process is killed,
the next one removes it. What commands leave in a home is theirs: nothing in it is followed or carried out here.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import os
import stat
import time
import weakref

from nsbox._base.checks import check_answer
from nsbox._base.descriptors import high
from nsbox._base.errors import PolicyError, Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen, replace
from nsbox._files import files
from nsbox._files.files import Tree
from nsbox._homes import points as home_points
from nsbox._homes import reach
from nsbox._homes.reach import check_place
from nsbox._layout.layout import wants_full
from nsbox._layout.user import home_source, uid_of
from nsbox._logs import logger
from nsbox._machine.probe import probe
from nsbox._paths.home import HOMES, PRIVATE, is_of_box, name_of, of_box

if TYPE_CHECKING:
    from nsbox._plan.host import Host
    from nsbox._policy.policy import Policy

_MODE = stat.S_IFDIR | 0o700
_ATTEMPTS = 20  # to remove a home to which a command that has just been killed still writes
_made: dict[tuple[Policy, str], int] = {}
_MOST_KEPT = 256
_latest: dict[Policy, tuple[Host, Host]] = {}
_bare: dict[Policy, _Bare] = {}  # of Sandboxes


@frozen
class _Bare(Frozen):
    """A Sandbox's home that was made, without mount points, as most commands have it."""

    host: Host
    name: str
    source: str
    reached: int  # how many entries _spawn.reached had by then

    def is_there(self, host: Host) -> bool:
        """Return whether with_home() has nothing to do. A command may have changed the home, but nothing above it."""
        if self.host is not host or self.reached != len(reach.reached) or self.name in home_points.of_boxes:
            return False
        try:
            status = os.lstat(self.source)
        except OSError as error:
            check_answer(error)
            return False
        return status.st_mode == _MODE and status.st_uid == host.euid


def with_home(policy: Policy, host: Host) -> Host:
    """Make a policy's home, as make() does; return the host with the mount points that other policies have in it."""
    bare = _bare.get(policy)
    if bare is not None and bare.is_there(host):
        return host
    source = make(policy, host)
    points = home_points.foreign(policy, host)
    if not points:
        if is_of_box(policy.home):
            if len(_bare) >= _MOST_KEPT:
                _bare.clear()
            _bare[policy] = _Bare(host, name_of(policy.home) or "", source, len(reach.reached))
        return host
    latest = _latest.get(policy)
    if latest is not None and latest[0] is host and latest[1].home_points == points:
        return latest[1]  # the same object, so that what was prepared for it is found without a comparison
    new = replace(host, home_points=points)
    if len(_latest) >= _MOST_KEPT:
        _latest.clear()
    _latest[policy] = host, new
    return new


def make(policy: Policy, host: Host) -> str:
    """Make the directory of a policy's home, with mount points for what the policy shows in it; return its path.

    Raises PolicyError for a home that commands could reach in another way, or in which something else is at a mount
    point's place; UnavailableError if it can't be made.
    """
    source = home_source(policy, host)
    assert source is not None
    known = _made.get((policy, source))
    if known == len(reach.reached) and _is_ready(policy, host, source):
        return source
    _check_ids(policy, host)
    if known != len(reach.reached):  # commands of other policies may reach more by now
        state = os.path.dirname(base := os.path.dirname(source))
        check_place(policy, base, base, field="home")
        if not is_of_box(policy.home):
            check_place(policy, points := os.path.join(state, home_points.POINTS), points, field="home")
        if len(_made) >= _MOST_KEPT:
            _made.clear()
    try:
        _make(policy, host, source)
    except OSError as error:
        check_answer(error)
        where = error.filename if isinstance(error.filename, str) else source
        raise UnavailableError(
            Reason(
                f"home={policy.home!r} can't be made: {where}: {error.strerror}",
                "set XDG_STATE_HOME to a directory of this user's, or say home='private' or home='tmp'",
            )
        ) from None
    _made[policy, source] = len(reach.reached)
    return source


def _is_ready(policy: Policy, host: Host, source: str) -> bool:
    """Return whether nothing has to be made. A command may have changed the home itself, but nothing above it."""
    try:
        status = os.lstat(source)
        # A Sandbox holds a lock in the directory above, and has looked at that.
        is_closed = is_of_box(policy.home) or not os.lstat(os.path.dirname(source)).st_mode & 0o022
    except OSError as error:
        check_answer(error)
        return False
    is_own = status.st_mode == _MODE and status.st_uid == os.geteuid()
    return is_own and is_closed and home_points.are_there(policy, host, source)


def _check_ids(policy: Policy, host: Host) -> None:
    if wants_full(policy, host) and (host.euid != 0 or uid_of(policy, host) != host.euid):
        problem = "doesn't go with ids='full', by which its files would be other users'"
        raise PolicyError("home", f"{policy.home!r} {problem}: say 'private', 'tmp' or a path")


def _make(policy: Policy, host: Host, source: str) -> None:
    base, name = os.path.split(source)
    _make_base(base)
    with Tree(base) as tree:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=tree.fd)
        status = os.lstat(name, dir_fd=tree.fd)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise PolicyError("home", f"{source} is no directory of this user's: remove it")
        if stat.S_IMODE(status.st_mode) != 0o700:  # a command may have changed it; then it may not even be opened
            files.set_mode(tree.fd, name, stat.S_IFDIR, 0o700)
        with tree.dir(name) as fd:
            home_points.make(policy, host, fd)


def _make_base(base: str) -> None:
    for path in (os.path.dirname(base), base):
        with contextlib.suppress(FileExistsError):
            os.makedirs(path, mode=0o700)
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            what = "must be a directory of this user's, and no other user may write to it (chmod go-w)"
            raise PolicyError("home", f"{path} {what}")


# ---- a Sandbox's own


class BoxHome:
    """The home of one Sandbox: made at its first command, removed when it is closed, or by the next process."""

    def __init__(self, state: str) -> None:
        self._base = os.path.join(state, HOMES)
        self._name = name_of(of_box(os.urandom(8).hex())) or ""
        self.home = of_box(self._name.removeprefix("box-"))
        self._lock = -1
        self._creator = os.getpid()
        _boxes.add(self)

    def hold(self, policy: Policy) -> bool:
        """Return whether commands of this policy, which names it, can have it; if so, make it.

        They can't if its directory is in their reach, or can't be written to: for a workspace that is a home, a user
        without a directory for state, or ids='full'.
        """
        host = probe()
        if not host.state:
            return False
        try:
            check_place(policy, self._base, self._base, field="home")
            _make_base(self._base)
            self._hold()
            make(policy, host)
        except (OSError, PolicyError) as error:
            self.remove()
            if isinstance(error, OSError):
                check_answer(error)
            return False
        return True

    def _hold(self) -> None:
        """Lock it, to show other processes that it wasn't left behind; remove those that were. Raises OSError."""
        if self._lock >= 0:
            return
        _sweep(self._base)
        for _ in range(_ATTEMPTS):
            fd = self._locked()
            if fd >= 0:
                self._lock = high(fd)
                return
        raise OSError(errno.EAGAIN, "another process removes each lock that is made", self._base)

    def _locked(self) -> int:
        """Return the lock, which gets its name once it is held; -1 if another process has removed it as left behind."""
        path = os.path.join(self._base, self._name)
        fd = os.open(f"{path}.new", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(f"{path}.new", f"{path}.lock")
        except (BlockingIOError, FileNotFoundError):
            os.close(fd)
            return -1
        except BaseException:
            os.close(fd)
            raise
        return fd

    def remove(self) -> None:
        """Remove it. Commands that still run have no home from then on."""
        held, self._lock = self._lock, -1
        if held < 0:
            return
        try:
            if self._creator == os.getpid():
                _remove(self._base, self._name)
                home_points.forget(self._name)
        finally:
            os.close(held)

    def forget(self) -> None:
        """In a forked child, let go of the parent's."""
        held, self._lock = self._lock, -1
        if held >= 0:
            os.close(held)


_boxes: weakref.WeakSet[BoxHome] = weakref.WeakSet()


def _remove(base: str, name: str) -> None:
    """Remove a home and its lock. What can't be removed is left to the next process, which will find the lock free."""
    for attempt in range(_ATTEMPTS):
        try:
            with Tree(base, forceful=True) as tree:
                with contextlib.suppress(FileNotFoundError):
                    files.remove(tree, name)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{name}.lock", dir_fd=tree.fd)
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if attempt == _ATTEMPTS - 1:
                logger.warning("%s can't be removed now: %s", os.path.join(base, name), error)
        time.sleep(0.01)


def sweep() -> None:
    """Remove the homes of this user's Sandboxes whose processes were killed, as the next Sandbox would."""
    state = probe().state
    base = os.path.join(state, HOMES)
    try:
        status = os.lstat(base)
    except OSError:
        return
    if state and stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022:
        _sweep(base)


def _sweep(base: str) -> None:
    """Remove the homes of Sandboxes whose processes were killed: the locks beside them are free."""
    for entry in os.listdir(base):
        name, dot, kind = entry.partition(".")
        if not is_of_box(f"{PRIVATE}:{name}") or f"{dot}{kind}" not in (".lock", ".new"):
            continue
        try:
            fd = os.open(os.path.join(base, entry), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:  # another process has just removed it
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if kind == "new":
                os.unlink(os.path.join(base, entry))
            else:
                _remove(base, name)
        except OSError:  # its Sandbox is open, or the lock has its final name by now
            continue
        finally:
            os.close(fd)


def _at_exit() -> None:
    for box in list(_boxes):
        box.remove()


atexit.register(_at_exit)
