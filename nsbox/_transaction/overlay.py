"""A user and a mount namespace in which an overlay lies on the workspace. Each command's root is built in a copy.

Descriptors keep them, as they keep a Sandbox's: there is no process to be killed, and the kernel drops everything with
this process. All commands share one overlay, since two overlays must not have the same upper directory.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import stat
from collections import deque
from collections.abc import Iterator
from functools import partial

from nsbox._base.checks import check_answer
from nsbox._base.display import shown
from nsbox._base.errors import BusyError, Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.paths import is_below
from nsbox._base.stdlib import RLock
from nsbox._core import call
from nsbox._core.command import Result
from nsbox._files.attributes import LACK, OVERLAY, REMEDY, has_attributes
from nsbox._files.files import Tree, join
from nsbox._files.mounts import mounts
from nsbox._homes.reach import check_place as check_place
from nsbox._plan.ops import Mask, Overlay
from nsbox._spawn.prepare import prepare
from nsbox._spawn.start import Start, spawn
from nsbox._spawn.way import Way
from nsbox._transaction.holder import Holder, check, host_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsbox._plan.host import Host
    from nsbox._policy.policy import Policy
    from nsbox._relay.relay import Relay
    from nsbox._spawn.prepare import Prepared

OVER = "the transaction is over: it was committed or closed; begin another by box.transaction()"
_MOST_LOOKED_AT = 50_000  # files: some tenths of a second, once for each transaction
_MOST_NAMED = 5


def check_mounts(workspace: str) -> None:
    """Raise UnavailableError if anything is mounted below: an overlay shows the directory that it is mounted on."""
    for point, _, _ in mounts():
        if point != workspace and is_below(point, workspace):
            raise UnavailableError(Reason(f"{point} is mounted in the workspace", "unmount it"))


def check_marks(real: Tree, workspace: str) -> None:
    """Raise UnavailableError for files that overlayfs would mistake for its own, and hide. Any user may have made them.

    These are character devices 0:0, which stand for deleted files, and files with attributes of overlayfs's names. With
    user.overlay.metacopy, for one, a file can't be opened. At most _MOST_LOOKED_AT files are looked at, from the top
    down. Also raises it if this Python can't look at attributes.
    """
    if not has_attributes():
        raise UnavailableError(Reason(f"overlayfs's marks are extended attributes, and {LACK}", REMEDY))
    marked: list[str] = []
    left, todo = _MOST_LOOKED_AT, deque([""])
    with real.walking():
        while todo and left > 0 and len(marked) < _MOST_NAMED:
            path = todo.popleft()
            gone = contextlib.suppress(PermissionError, FileNotFoundError, NotADirectoryError)
            with gone, real.dir(path) as fd, os.scandir(fd) as scanned:
                for entry in itertools.islice(scanned, left):
                    left -= 1
                    at = join(path, entry.name)
                    if _is_marked(fd, entry):
                        marked.append(at)
                    elif entry.is_dir(follow_symlinks=False):
                        todo.append(at)
    if marked:
        listed = ", ".join(map(shown, marked[:_MOST_NAMED]))
        what = f"overlayfs would hide files of {workspace}, by its marks on them: {listed}"
        raise UnavailableError(Reason(what, "setfattr -x the attributes user.overlay.*, remove devices 0:0"))


def _is_marked(above: int, entry: os.DirEntry[str]) -> bool:
    if entry.is_symlink():
        return False
    if not entry.is_file(follow_symlinks=False) and not entry.is_dir(follow_symlinks=False):
        status = entry.stat(follow_symlinks=False)
        return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0
    try:
        names = os.listxattr(f"/proc/self/fd/{above}/{entry.name}", follow_symlinks=False)
    except OSError as error:  # a file system without any, or it has gone
        check_answer(error)
        return False
    return any(name.startswith(OVERLAY) for name in names)


def check_attributes(upper: str) -> None:
    """Raise UnavailableError if overlayfs couldn't mark a directory of the upper one that hides what is below it."""
    try:
        os.setxattr(upper, "user.nsbox", b"")
        os.removexattr(upper, "user.nsbox")
    except OSError as error:
        check_answer(error)
        what = f"the file system of {upper} has no user.* attributes ({error.strerror}), which overlayfs needs"
        remedy = "dir= in one that has: ext4, xfs, btrfs, tmpfs since Linux 6.6"
        raise UnavailableError(Reason(what, remedy)) from None


def is_seen(path: str, uppers: Sequence[tuple[str, str]]) -> bool:
    """Return whether commands see something at a path.

    What is in an overlay's upper directory is what they see. There a device 0:0 stands for nothing, and a directory may
    hide what is below it on this machine.

    uppers: the place of each overlay, and its upper directory.
    """
    place, upper = max((one for one in uppers if is_below(path, one[0])), default=("", ""))
    hides = False
    try:
        with Tree(upper or "/") as tree:
            names = os.path.relpath(path, place).split("/") if place else []
            for count in range(1, len(names) + 1):
                at = "/".join(names[:count])
                status = tree.stat(at)
                if status is None:
                    break
                if count == len(names) or not stat.S_ISDIR(status.st_mode):
                    return count == len(names) and not (stat.S_ISCHR(status.st_mode) and status.st_rdev == 0)
                with tree.dir(at) as fd:
                    hides = hides or f"{OVERLAY}opaque" in os.listxattr(fd)
    except OSError as error:  # only commands may look there
        check_answer(error)
        return False
    return not hides and os.access(path, os.F_OK)


class OverlayWay(Way):
    """Starts commands that see the overlay where the workspace is."""

    kind = "transaction"

    def __init__(
        self, policy: Policy, workspace: str, base: str, upper: str, work: str, relay: Relay | None = None
    ) -> None:
        """Mount the overlay; raises UnavailableError and OSError.

        base: the directory of upper and work, which commands don't see.
        """
        super().__init__(policy, relay)
        self._workspace, self._uppers = workspace, ((workspace, upper),)
        host = host_of(policy)
        check(prepare(policy, host))
        check_mounts(workspace)
        check_attributes(upper)
        ops = (Overlay((workspace,), workspace, upper, work, nofollow=True), Mask(base))
        self._holder = Holder(policy, host, ops, "begin a transaction")
        self._inside: tuple[Prepared, tuple[Prepared, Prepared]] | None = None
        self.started = 0  # commands so far
        self._running: dict[object, int] = {}  # for each command the pidfd of its sandbox's pid 1
        self._lock = RLock()
        self._is_resting = False

    def kernel_id_of(self, prepared: Prepared) -> int:
        """Return 0: the caller must own what commands write."""
        return 0

    def exists(self, path: str) -> bool:
        """Return whether commands see something at a path."""
        return is_seen(path, self._uppers)

    @property
    def host(self) -> Host:
        """The machine as its commands meet it: they have the caller's ids."""
        return self._holder.host

    @contextlib.contextmanager
    def at_rest(self, where: str | None = None) -> Iterator[None]:
        """Keep every process from writing to the overlay in a block, even by a descriptor from before.

        No command runs, and none is started. Raises BusyError if one runs. Raises OSError, EBUSY, if a process has a
        file of the overlay open for writing, or mapped: a command may have passed it on.

        where: the workspace's current path. Default: None, for the path that it had at first.
        """
        where = where or self._workspace
        with self._lock:
            if self._running:
                raise BusyError(
                    "commands of the transaction still run, or haven't been waited for: wait() for each Popen, close "
                    "streams, and kill() jobs"
                )
            self._is_resting = True  # a signal handler can acquire the lock too
            try:
                self._holder.freeze([where])
                try:
                    yield
                finally:
                    if self._holder.is_open:  # otherwise the transaction is over
                        self._holder.freeze([where], thaw=True)
            finally:
                self._is_resting = False

    def _prepared(self, policy: Policy, prepared: Prepared) -> tuple[Prepared, Prepared]:
        """Return what is prepared for this policy here, and the same for commands in the shared namespaces."""
        latest = self._inside
        if latest is None or latest[0] is not prepared:
            own = prepare(policy, self._holder.host) if prepared.plan.kernel_id else prepared
            check(own)
            self._inside = latest = (prepared, (own, self._holder.within(policy, own)))
        return latest[1]

    def spawn(self, start: Start) -> Result:
        """Start a command in the overlay."""
        key, result = object(), None
        try:
            with self._lock:
                if not self._holder.is_open:
                    raise ValueError(OVER)
                if self._is_resting:
                    raise ValueError("a commit is under way")
                own, inside = self._prepared(start.policy, start.prepared)
                self.started += 1
                result = spawn(start.by(inside))
                result.plan = own.plan
                self._running[key] = result.init_pidfd
                result.on_end = partial(self._running.pop, key, None)
            return result
        except BaseException:  # a signal handler's: nothing owns the command
            if result is not None:
                self._running.pop(key, None)
                call.abandon(start.command)
            raise

    def close(self) -> None:
        """Start nothing more, let go of the namespaces, and kill the commands that run."""
        with self._lock:
            self._holder.close()
        for pidfd in tuple(self._running.values()):
            if pidfd >= 0:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def forget(self) -> None:
        """In a forked child, close what is the parent's."""
        self._lock = RLock()
        self._running.clear()
        self._holder.close()
