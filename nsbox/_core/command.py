"""One command, as a spawn is told of it, and what came of that. Values alone: what reads them is in _core."""

from __future__ import annotations

from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

    class Strings(Protocol):
        """_core's: strings, and the array in C."""

        items: Sequence[bytes]
        array: Any


class Command:
    """What varies from spawn to spawn: paths as bytes, ids and descriptors as numbers.

    uid, gid, groups: None means the plan's own, which a spawn fills in. flags: abi.h's, of the command. preexec: called
    in the command before its exec; flags have PREEXEC then. inherits_env: what it changes in the environment counts,
    except these variables, which the policy sets; None: it doesn't count. places: instead of cwd and envp, directories
    to start in with the environment for each; the last is taken where none can be entered. hold_fd: a
    pipe's end by which somebody lets the command go on, who is told by report_fd, a socket's, that all is set up.
    filters: ahead of the plan's. owners: a list that the owners of all descriptors that the spawn leaves are put into
    before a signal's handler can run; None: they are the caller's, as numbers.
    """

    result: Result | None = None  # what came of it, until somebody answers for that
    cgroup_fd = -1
    terminal = 0
    parked: Any = None  # _template's, the sandbox that waits for it
    park_stamps: Any = None  # _core.call's, for a sandbox that is made to wait: what the ops have found goes into these
    profile: Any = None  # _core.darwin's, what confines it
    leaf: Any = None  # _machine.cgroup's, which the descriptor is of
    relay: Any = None  # _relay.relay's, for a network list; None: that which is shared
    line: Any = None  # its, of this sandbox
    line_mark: Any = None  # how far that was at the start, where the sandbox is older
    progress: Any = None  # set by spawn(): where pid, init_pid and set_up_pid are, as soon as they are known

    def __init__(
        self,
        *,
        programs: Sequence[bytes],
        argv: Sequence[bytes],
        envp: Strings,
        cwd: bytes | None,
        flags: int = 0,
        stdio: tuple[int, int, int] = (-1, -1, -1),
        pass_fds: Sequence[int] = (),
        umask: int = -1,
        pgid: int = -1,
        uid: int | None = None,
        gid: int | None = None,
        groups: Sequence[int] | None = None,
        preexec: Callable[[], object] | None = None,
        inherits_env: dict[bytes, bytes] | None = None,
        places: Sequence[tuple[bytes, Strings]] = (),
        hold_fd: int = -1,
        report_fd: int = -1,
        filters: Sequence[bytes] = (),
        owners: list[Any] | None = None,
    ) -> None:
        self.programs, self.argv, self.envp, self.cwd = programs, argv, envp, cwd
        self.flags, self.stdio, self.pass_fds = flags, stdio, pass_fds
        self.umask, self.pgid = umask, pgid
        self.uid, self.gid, self.groups = uid, gid, groups
        self.preexec, self.inherits_env = preexec, inherits_env
        self.places, self.hold_fd, self.report_fd, self.filters = places, hold_fd, report_fd, filters
        self.owners = owners


class Result:
    """What came of a spawn; error 0 and a pid, or an errno with the step and the op that it came from."""

    __slots__ = (
        *("detail", "entered", "error", "go_fd", "init_pid", "init_pidfd", "init_says", "on_end", "op", "pid", "pidfd"),
        *("plan", "root_id", "step", "warm"),
    )

    def __init__(
        self,
        error: int,
        step: int,
        op: int,
        pid: int,
        init_pid: int,
        init_pidfd: int,
        init_says: int,
        go_fd: int = -1,
        detail: bytes = b"",
    ) -> None:
        self.error, self.step, self.op, self.pid = error, step, op, pid
        self.init_pid, self.init_pidfd, self.init_says = init_pid, init_pidfd, init_says
        self.go_fd, self.detail, self.root_id, self.pidfd = go_fd, detail, 0, -1
        self.warm = False  # in a copy of a sandbox that is kept
        self.plan: Any = None  # what was carried out, if that isn't the plan for the policy alone
        self.entered: Any = None  # _session's, of a command that isn't our child
        self.on_end: Callable[[], object] = bool  # called when its sandbox has gone
