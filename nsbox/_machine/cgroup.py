"""Cgroups of version 2: one for each command that has limits on all its processes together (cgroups(7)).

They are made in a subtree that was delegated to this process: its own cgroup, or the one above. A cgroup that hands out
controllers can't have processes. So all processes of this one's cgroup, itself included, first move into a new cgroup
below that, once. A command starts in its cgroup (CLONE_INTO_CGROUP); no process is moved there.
"""

from __future__ import annotations

import atexit
import errno
import os
import select
import time
from weakref import ref

from nsbox._backends.limits import SETUP_PROCESSES
from nsbox._base.checks import check_answer
from nsbox._base.errors import SetupError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._base.owners import opened

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nsbox._base.owners import Owner

_ROOT = "/sys/fs/cgroup"
_CALLERS = "nsbox-callers"  # the cgroup that the processes move into
_PREFIX = "nsbox-box-"
CONTROLLERS = ("memory", "pids", "cpu")


@frozen
class Place(Frozen):
    """Where cgroups can be made.

    directory: the cgroup in which they can be made; "": nowhere.
    controllers: which of CONTROLLERS they can have.
    problem: why none can be made.
    """

    directory: str = ""
    controllers: tuple[str, ...] = ()
    problem: str = ""


@frozen
class Spent(Frozen):
    """What a cgroup has used.

    memory_peak: the most bytes of memory; None: not known (before Linux 5.19).
    oom_kills: how many processes were killed because of its limit.
    """

    memory_peak: int | None
    oom_kills: int


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode("ascii"))
    finally:
        os.close(fd)


def _words(path: str) -> tuple[str, ...]:
    try:
        return tuple(_read(path).split())
    except OSError as error:
        check_answer(error)
        return ()


def _own(root: str) -> str | None:
    """Return the directory of this process's cgroup; None if there is no version 2, or it isn't visible."""
    try:
        rows = [line.split(":", 2) for line in _read("/proc/self/cgroup").splitlines()]
    except OSError as error:
        check_answer(error)
        return None
    path = next((path for number, _, path in rows if number == "0"), None)
    if path is None or path.startswith("/.."):
        return None
    return os.path.normpath(root + path)


def _is_ours(directory: str) -> bool:
    """Say if this process may make cgroups in a directory, and move processes between them."""
    files = [directory, f"{directory}/cgroup.procs", f"{directory}/cgroup.subtree_control"]
    return all(os.access(path, os.W_OK, effective_ids=True) for path in files)


def _is_delegated(directory: str) -> bool:
    """Say if systemd, if it runs, has delegated this cgroup (user.delegate); otherwise it undoes changes by others."""
    if not os.path.isdir("/run/systemd/system") or os.geteuid() != 0:
        return True  # permissions decide
    for name in ("user.delegate", "trusted.delegate"):
        try:
            if os.getxattr(directory, name) == b"1":
                return True
        except (OSError, AttributeError):  # CPython before 3.11.3 has no such function with musl
            pass
    return False


def look(root: str = _ROOT) -> Place:
    """Return where cgroups could be made; changes nothing. root: where the file system is mounted."""
    if not os.path.exists(f"{root}/cgroup.controllers"):
        is_v1 = os.path.isdir(f"{root}/memory") or os.path.isdir(f"{root}/pids")
        return Place(problem="cgroups are of version 1 here" if is_v1 else f"no cgroup v2 at {root}")
    own = _own(root)
    if own is None:
        return Place(problem="this process's own cgroup isn't visible")
    if os.path.basename(own) == _CALLERS:
        own = os.path.dirname(own)
    above = os.path.dirname(own)
    for directory, file in ((own, "cgroup.controllers"), (above, "cgroup.subtree_control")):
        if directory.startswith(root) and _is_ours(directory) and _is_delegated(directory):
            there = _words(f"{directory}/{file}")
            return Place(directory, tuple(name for name in CONTROLLERS if name in there))
    return Place(problem=f"{own} isn't delegated to this process")


def _move_away(directory: str) -> None:
    """Move the processes of a cgroup into one below it."""
    callers = f"{directory}/{_CALLERS}"
    try:
        os.mkdir(callers)
    except FileExistsError:
        pass
    for _ in range(100):  # some may fork meanwhile
        pids = _words(f"{directory}/cgroup.procs")
        if not pids:
            return
        for pid in pids:
            try:
                _write(f"{callers}/cgroup.procs", pid)
            except ProcessLookupError:
                pass
    raise OSError(errno.EBUSY, "its processes can't be moved")


def _enable(directory: str, controllers: Sequence[str]) -> None:
    """Hand out controllers to the cgroups below."""
    control = f"{directory}/cgroup.subtree_control"
    there = _words(control)
    lacking = [name for name in controllers if name not in there]
    if not lacking:
        return
    # EBUSY isn't the only sign: a cgroup with processes can hand out cpu and pids, but becomes threaded by that, and
    # then nothing can be started in those below it (cgroup-v2.rst). The root of the machine is exempt.
    kind = _words(f"{directory}/cgroup.type")
    if kind == ("domain", "threaded"):
        _write(control, " ".join(f"-{name}" for name in there))
        lacking += [name for name in there if name not in lacking]
    if kind and _words(f"{directory}/cgroup.procs"):
        _move_away(directory)
    _write(control, " ".join(f"+{name}" for name in lacking))


def _needed(limits: Sequence[tuple[str, str]]) -> list[str]:
    return sorted({name.partition(".")[0] for name, _ in limits})


# These limits wait until the caller's memory is its own again. Until their execs, the init and the command share it,
# and a process that runs out of memory is killed together with all that share its memory.
_NOT_YET = {"memory.oom.group": "0", "memory.max": "max"}


class Leaf:
    """The cgroup of one sandbox.

    fd: a descriptor of it, until started().
    path: its directory.
    is_over: whether remove() has been called.
    """

    def __init__(self, directory: str, limits: Sequence[tuple[str, str]]) -> None:
        """Make it in a directory, with these limits: pairs of a file's name and its contents.

        Raises SetupError, and leaves nothing behind, if that fails.
        """
        sweep()
        self.fd = -1
        self._owner: Owner | None = None
        self.is_over = self._is_in_force = False
        self.has_memory_limit = "memory.max" in dict(limits)
        self.path = f"{directory}/{_PREFIX}{os.getpid()}-{os.urandom(6).hex()}"
        what = f"cgroup {directory}"
        try:
            _remove_stale(directory)
            _enable(directory, _needed(limits))
            _made[self.path] = ref(self)
            os.mkdir(self.path)
            for name, value in limits:
                what = f"cgroup: {name} {value}"
                self._limit(name, _NOT_YET.get(name, value))
            self._owner = opened(os.open, self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self.fd = self._owner.fileno()
        except BaseException as error:
            self.remove()
            if isinstance(error, OSError):
                raise SetupError(error.errno or errno.EIO, "limit", what, "") from error
            raise

    def _limit(self, name: str, value: str) -> None:
        try:
            _write(f"{self.path}/{name}", value)
        except FileNotFoundError:
            if name != "memory.swap.max" or len(_read("/proc/swaps").splitlines()) > 1:
                raise  # without swap there is nothing to limit

    def started(self, limits: Sequence[tuple[str, str]], pid: int) -> None:
        """Put all limits into force, now that the set-up is over and the command has memory of its own.

        limits: as in __init__(). pid: the command's. Raises OSError.
        """
        self._close()
        if self._is_in_force:
            return
        if "memory.max" in dict(limits):
            _await_own_memory(pid)
        self._enforce(limits)

    def _enforce(self, limits: Sequence[tuple[str, str]]) -> None:
        wished = dict(limits)
        if "pids.max" in wished:
            _write(f"{self.path}/pids.max", str(int(wished["pids.max"]) - SETUP_PROCESSES))
        for name in _NOT_YET:
            if name in wished:
                _write(f"{self.path}/{name}", wished[name])

    def enter(self, limits: Sequence[tuple[str, str]], pids: Iterable[int]) -> None:
        """Put processes of one sandbox into it, with all limits in force from then on; raises OSError.

        What a process has used before stays with the cgroup that it comes from (cgroups(7) of version 2).
        """
        for pid in pids:
            _write(f"{self.path}/cgroup.procs", str(pid))
        self._is_in_force = True
        self._enforce(limits)
        self._close()

    def _close(self) -> None:
        self.fd = -1
        if self._owner is not None:
            self._owner.close()

    def spent(self) -> Spent:
        """Return what has been used so far."""
        peak = _words(f"{self.path}/memory.peak")
        events = dict(line.split() for line in _lines(f"{self.path}/memory.events.local"))
        # A limit of a cgroup above, or the machine's, also kills here. Then ours wasn't reached.
        by_us = self.has_memory_limit and int(events.get("oom", 0)) > 0
        return Spent(int(peak[0]) if peak else None, int(events.get("oom_kill", 0)) if by_us else 0)

    def end(self, *, kill: bool) -> Spent:
        """Remove the cgroup; return what was used. kill: kill everything in it first."""
        spent = self.spent()
        if kill:
            self.kill()
        self.remove()
        return spent

    def remove(self) -> None:
        """Remove the cgroup. If a process in it is still ending, a later sweep() removes it."""
        self.is_over = True
        self._close()
        _remove(self.path)

    def kill(self) -> None:
        """Kill everything in it, and wait up to a second until it is empty. Before Linux 5.14, only wait."""
        _kill(self.path)


_PF_FORKNOEXEC = 0x40  # <linux/sched.h>


def _await_own_memory(pid: int) -> None:
    """Wait, up to a second, until an exec has given a process memory of its own.

    vfork(2) returns a moment before that (exec_mm_release). In between, a process that is killed because it runs out of
    memory would still take this one with it. The flag that it hasn't executed anything is cleared later
    (begin_new_exec).
    """
    end = time.monotonic() + 1
    while time.monotonic() < end:
        try:
            fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        except OSError:  # it has ended and been reaped, or there is no /proc
            return
        if not int(fields[6]) & _PF_FORKNOEXEC or fields[0] in "ZX":
            return
        time.sleep(0)


def _kill(path: str) -> None:
    try:
        _write(f"{path}/cgroup.kill", "1")
    except OSError:
        pass
    try:
        _await_empty(path)
    except OSError:
        pass


def _await_empty(path: str) -> None:
    with open(f"{path}/cgroup.events", encoding="ascii") as events:
        poller = select.poll()
        poller.register(events, select.POLLPRI)
        for _ in range(20):
            events.seek(0)
            if "populated 0" in events.read():
                return
            poller.poll(50)


# Cgroups that may exist, with the Leaf of each. If the Leaf is gone, its cgroup is no longer needed.
_made: dict[str, ref[Leaf]] = {}


def _remove(path: str) -> None:
    """Remove a cgroup; if a process in it is still ending, it stays in the list."""
    try:
        os.rmdir(path)
    except FileNotFoundError:
        pass
    except OSError:
        return
    _made.pop(path, None)


def _lines(path: str) -> list[str]:
    try:
        return _read(path).splitlines()
    except OSError:
        return []


def sweep() -> None:
    """Remove cgroups that are no longer needed and have become empty."""
    for path, reference in list(_made.items()):
        leaf = reference()
        if leaf is None or leaf.is_over:
            _remove(path)


_swept: set[str] = set()


def _remove_stale(directory: str) -> None:
    """Remove, once per directory, what killed callers have left."""
    if directory in _swept:
        return
    _swept.add(directory)
    for name in os.listdir(directory):
        pid = name.removeprefix(_PREFIX).partition("-")[0]
        if name.startswith(_PREFIX) and pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            try:
                os.rmdir(f"{directory}/{name}")
            except OSError:
                pass


def _at_exit() -> None:
    """Remove all cgroups of this process, and kill what is in them."""
    for path in list(_made):
        _kill(path)
        _remove(path)


def _after_fork() -> None:
    """Forget the parent's cgroups, in a forked child."""
    _made.clear()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
