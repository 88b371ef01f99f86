"""One command as the input of a spawn, and the result of that. Values alone: _core reads them."""

from __future__ import annotations

from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Literal, Protocol

    from nsbox._base.owners import Owner
    from nsbox._core.abi import CData
    from nsbox._core.buffers import Stamps
    from nsbox._network.log import Mark, NetworkRecord
    from nsbox._plan.plan import Plan

    class Strings(Protocol):
        """_core's: strings, and the array in C."""

        items: Sequence[bytes]
        array: CData

    class Spent(Protocol):
        """_machine.cgroup's: what a cgroup has used."""

        @property
        def memory_peak(self) -> int | None: ...
        @property
        def oom_kills(self) -> int: ...

    class Leaf(Protocol):
        """_machine.cgroup's: the cgroup of one sandbox."""

        def started(self, limits: Sequence[tuple[str, str]], pid: int) -> None: ...
        def end(self, *, kill: bool) -> Spent: ...

    class Relay(Protocol):
        """_relay.relay's: what enforces a network list."""

        problem: str
        network: Any

        def line(self) -> Line: ...
        def take(self) -> bool: ...

    class Line(Protocol):
        """_relay.relay's: what connects a sandbox with its relay."""

        id: int
        is_later: Literal[False]
        is_kept: bool
        environment: dict[str, str]

        @property
        def relay(self) -> Relay: ...
        def fileno(self) -> int: ...
        def port(self) -> int: ...
        def is_served(self) -> bool: ...
        def record(self, since: Mark | None = None) -> NetworkRecord: ...
        def mark(self) -> Mark: ...

    class LateLine(Protocol):
        """_relay.line's: what a relay needs to join a sandbox later."""

        id: int
        is_later: Literal[True]

        def fileno(self) -> int: ...

    class Parked(Protocol):
        """_kept.tree's: a sandbox that waits for its command."""

        result: Result
        stamps: Stamps
        user2_fd: int
        is_taken: bool
        held: list[Owner]

        @property
        def line(self) -> Line | None: ...
        def forget(self) -> None: ...

    class Profile(Protocol):
        """_core.darwin's: what confines a command."""

        def fill(self, r: CData, keep: list[object]) -> None: ...

    class SessionCommand(Protocol):
        """_kept.session_command's: a command that pid 1 of a session has started."""

        pid: int
        status: int | None
        used: Used | None

        def try_wait(self, flags: int) -> bool: ...
        def ends_within(self, seconds: float) -> bool: ...
        def fileno(self) -> int: ...
        def signal(self, number: int) -> None: ...
        def last_status(self, is_patient: bool) -> int | None: ...
        def last_signal(self, number: int) -> None: ...


class Command:
    """What varies from spawn to spawn: paths as bytes, ids and descriptors as numbers.

    programs: the paths to try, in order.
    flags: abi.h's, for the command.
    uid, gid, groups: None means the plan's own, which _spawn fills in.
    preexec: called in the command before its exec; flags have PREEXEC then.
    inherits_env: with it, changes of preexec to the environment count, except to these variables, which the policy
        sets. None: they don't count.
    filters: installed before the plan's.
    owners: a list that receives the owners of all descriptors that the spawn leaves, before a signal handler can run.
        None: the caller gets the numbers, and owns them.
    """

    result: Result | None = None  # of the spawn, until something owns the command
    cgroup_fd = -1
    terminal = 0
    keeps_caps = False  # it is pid 1 of a session whose commands may have several ids
    parked: Parked | None = None
    park_stamps: Stamps | None = None  # of a sandbox that is to wait for its command: its ops leave them here
    profile: Profile | None = None
    leaf: Leaf | None = None  # to which cgroup_fd belongs
    relay: Relay | None = None  # for a network list; None: the shared one
    line: Line | LateLine | None = None  # the relay's, of this sandbox
    line_mark: Mark | None = None  # the line's mark at the start, if the sandbox is older than the command

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
        filters: Sequence[bytes] = (),
        owners: list[Owner] | None = None,
    ) -> None:
        self.programs, self.argv, self.envp, self.cwd = programs, argv, envp, cwd
        self.flags, self.stdio, self.pass_fds = flags, stdio, pass_fds
        self.umask, self.pgid = umask, pgid
        self.uid, self.gid, self.groups = uid, gid, groups
        self.preexec, self.inherits_env = preexec, inherits_env
        self.filters = filters
        self.owners = owners


class Used:
    """What processes used: microseconds of user and of system time, and bytes of memory of the largest one."""

    __slots__ = ("max_rss", "system_us", "user_us")

    def __init__(self, user_us: int, system_us: int, max_rss: int) -> None:
        self.user_us, self.system_us, self.max_rss = user_us, system_us, max_rss


class Result:
    """The result of a spawn: error 0 and a pid; or an errno, with the step and the op that failed."""

    __slots__ = (
        *("detail", "error", "go_fd", "init_pid", "init_pidfd", "init_says", "kept", "on_end", "op", "pid", "pidfd"),
        *("plan", "root_id", "session_command", "step", "warm"),
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
        self.kept: tuple[int, ...] = ()  # descriptors of what was made instead of a command, as in abi.h
        self.warm = False  # True: in a copy of a kept sandbox
        self.plan: Plan | None = None  # the plan that was carried out, if it isn't the policy's own
        self.session_command: SessionCommand | None = None  # of a command that isn't our child
        self.on_end: Callable[[], object] = bool  # called when its sandbox has gone
