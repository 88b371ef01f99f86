"""A user and a mount namespace in which an overlay lies on the workspace. Each command's root is built in a copy.

Descriptors keep them, as they keep a Sandbox's: there is no process to be killed, and the kernel drops everything with
this process. All commands share one overlay, since two overlays must not have the same upper directory.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import signal
import stat
from collections import deque
from collections.abc import Iterator
from functools import partial

from nsbox._backends.filters import programs
from nsbox._base.display import shown
from nsbox._base.errors import Reason, SetupError, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING, replace
from nsbox._base.paths import is_below
from nsbox._base.stdlib import RLock
from nsbox._core import buffers, call
from nsbox._core.abi import constants as c
from nsbox._core.command import Command, Result
from nsbox._core.request import request_for
from nsbox._files.attributes import OVERLAY
from nsbox._files.files import Tree, join
from nsbox._files.mounts import mounts
from nsbox._homes.reach import check_place as check_place
from nsbox._kept import split, tree
from nsbox._lookup.host import host_for
from nsbox._machine.probe import probe
from nsbox._plan.ops import DevBind, Freeze, Mask, Overlay
from nsbox._spawn.prepare import prepare
from nsbox._spawn.start import Start, spawn
from nsbox._spawn.way import Way

if TYPE_CHECKING:
    from nsbox._plan.host import Host
    from nsbox._policy.policy import Policy
    from nsbox._relay.relay import Relay
    from nsbox._spawn.prepare import Prepared

_MOST_LOOKED_AT = 50_000  # files: some tenths of a second, once for each transaction
_MOST_NAMED = 5
_HINT = (
    "overlayfs can't write to every file system: dir= in one on ext4, xfs, btrfs or tmpfs (Linux 6.6) will do; in user "
    "namespaces it exists since Linux 5.11"
)


def _check(prepared: Prepared) -> None:
    """Raise UnavailableError for a plan that can't be built in shared namespaces."""
    split.check(prepared.plan)
    if prepared.request is None:
        raise UnavailableError(Reason("contents that come from descriptors can serve one command alone"))
    if not prepared.plan.kill_on_exit:
        raise UnavailableError(
            Reason("kill_on_exit=False: processes that go on would write while changes are committed")
        )
    if prepared.plan.identity.by_helper and os.geteuid() != 0:
        raise UnavailableError(
            Reason("ids='full': files of subordinate ids can't be read, nor committed, by this user")
        )


def _check_mounts(workspace: str) -> None:
    """Raise UnavailableError if anything is mounted below: an overlay shows the directory that it is mounted on."""
    for point, _, _ in mounts():
        if point != workspace and is_below(point, workspace):
            raise UnavailableError(Reason(f"{point} is mounted in the workspace", "unmount it"))


def check_marks(real: Tree, workspace: str) -> None:
    """Raise UnavailableError for files that overlayfs would mistake for its own, and hide. Any user may have made them.

    These are character devices 0:0, which stand for deleted files, and files with attributes of overlayfs's names. With
    user.overlay.metacopy, for one, a file can't be opened. At most _MOST_LOOKED_AT files are looked at, from the top
    down.
    """
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
    except OSError:  # a file system without any, or it has gone
        return False
    return any(name.startswith(OVERLAY) for name in names)


def _check_attributes(upper: str) -> None:
    """Raise UnavailableError if overlayfs couldn't mark a directory of the upper one that hides what is below it."""
    try:
        os.setxattr(upper, "user.nsbox", b"")
        os.removexattr(upper, "user.nsbox")
    except OSError as error:
        what = f"the file system of {upper} has no user.* attributes ({error.strerror}), which overlayfs needs"
        remedy = "dir= in one that has: ext4, xfs, btrfs, tmpfs since Linux 6.6"
        raise UnavailableError(Reason(what, remedy)) from None


def _host(policy: Policy) -> Host:
    """Return the host, without kernel ids for commands: the caller must own what they write to the upper directory."""
    host = host_for(policy)
    if not host.kernel_id:
        return host
    return replace(probe(), unmapped="a transaction keeps its changes as the caller's")


class OverlayWay(Way):
    """Starts commands that see the overlay where the workspace is."""

    def __init__(
        self, policy: Policy, workspace: str, base: str, upper: str, work: str, relay: Relay | None = None
    ) -> None:
        """Mount the overlay; raises UnavailableError and OSError.

        base: the directory of upper and work, which commands don't see.
        """
        super().__init__(policy, relay)
        self._workspace = workspace
        self._host = _host(policy)
        prepared = prepare(policy, self._host)
        _check(prepared)
        _check_mounts(workspace)
        _check_attributes(upper)
        plan = prepared.plan
        ops = (DevBind("/", "/"), Overlay((workspace,), workspace, upper, work), Mask(base))
        request = request_for(
            plan,
            ops,
            flags=c.TEMPLATE,
            without=plan.namespaces - {"user", "mount"},
            stamps=buffers.Stamps((False,) * len(ops)),
        )
        try:
            _, _, self._owners = tree.made(request, "begin a transaction", ops)
        except SetupError as error:
            is_overlay = error.op is not None and error.op.startswith("overlay")
            raise SetupError(error.errno or 0, error.step, error.op, _HINT if is_overlay else "") from None
        self._fds = [owner.fileno() for owner in self._owners]
        if len(self._fds) != c.SENT:
            self._close()
            raise SetupError(errno.EMFILE, "begin a transaction", None, "no descriptor was free for its namespaces")
        del self._fds[c.SENT_NULL]
        self._owners.pop(c.SENT_NULL).close()
        self._inside: tuple[Prepared, tuple[Prepared, Prepared]] | None = None
        self.started = 0  # commands so far
        self._running: dict[object, int] = {}  # for each command the pidfd of its sandbox's pid 1
        self._lock = RLock()
        self._is_resting = False

    @contextlib.contextmanager
    def at_rest(self, where: str | None = None) -> Iterator[None]:
        """Keep every process from writing to the overlay in a block, even by a descriptor from before.

        No command runs, and none is started. Raises ValueError if one runs. Raises OSError, EBUSY, if a process has a
        file of the overlay open for writing, or mapped: a command may have passed it on.

        where: the workspace's current path. Default: None, for the path that it had at first.
        """
        where = where or self._workspace
        with self._lock:
            if self._running:
                raise ValueError("commands of the transaction still run, or haven't been waited for")
            self._is_resting = True  # a signal handler can acquire the lock too
            try:
                self._freeze(where)
                try:
                    yield
                finally:
                    if self._fds:  # otherwise the transaction is over
                        self._freeze(where, thaw=True)
            finally:
                self._is_resting = False

    def _freeze(self, where: str, *, thaw: bool = False) -> None:
        """Make the overlay read-only, or writable again: the file system itself, so for each of its mounts.

        A spawn does it, with nothing to execute. So if all is well, the exec fails.
        """
        ops = (Freeze(where, thaw),)
        prepared = replace(prepare(self.policy, self._host), ops=ops)
        request = self._within(self.policy, prepared).request
        assert request is not None
        nothing = Command(programs=[b"/"], argv=[b"/"], envp=buffers.Strings([]), cwd=None, flags=c.CLOSE_FDS)
        nothing.uid, nothing.gid = prepared.plan.identity.uid, prepared.plan.identity.gid
        result = call.spawn(request, nothing)
        if result.step == c.STEP_EXEC and result.error == errno.EACCES:
            return
        if result.error == errno.EBUSY and result.op == 0:
            what = "a process has a file of the transaction open for writing, or has mapped it: end that process"
            raise OSError(errno.EBUSY, what, where)
        from nsbox._spawn.failure import step_name  # seldom needed

        raise SetupError(result.error, f"make the changes read-only: {step_name(result.step)}", ops[0].describe())

    def _prepared(self, policy: Policy, prepared: Prepared) -> tuple[Prepared, Prepared]:
        """Return what is prepared for this policy here, and the same for commands in the shared namespaces."""
        latest = self._inside
        if latest is None or latest[0] is not prepared:
            own = prepare(policy, self._host) if prepared.plan.kernel_id else prepared
            _check(own)
            self._inside = latest = (prepared, (own, self._within(policy, own)))
        return latest[1]

    def _within(self, policy: Policy, prepared: Prepared) -> Prepared:
        """Return the same for commands in the shared namespaces. Each has one more user namespace of its own there."""
        plan = prepared.plan
        uids, gids = split.last_maps(plan.identity)
        identity = replace(plan.identity, uid_map2=uids, gid_map2=gids, map2_by_helper=plan.identity.by_helper)
        own = programs(policy, self._host, by_second_userns=True)
        inside = replace(plan, identity=identity, programs=own)
        user, mount = self._fds
        inner = request_for(inside, prepared.ops, without=frozenset({"user"}), within=(user, mount))
        return replace(prepared, request=inner)

    def spawn(self, start: Start) -> Result:
        """Start a command in the overlay."""
        key, result = object(), None
        try:
            with self._lock:
                if not self._fds:
                    raise ValueError("the transaction is over")
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
            self._close()
        for pidfd in tuple(self._running.values()):
            if pidfd >= 0:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def _close(self) -> None:
        self._fds.clear()
        while self._owners:
            self._owners.pop().close()

    def forget(self) -> None:
        """In a forked child, close what is the parent's."""
        self._lock = RLock()
        self._running.clear()
        self._close()
