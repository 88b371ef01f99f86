"""Plan: everything that a backend has decided, as one frozen value; the command's ids, and its resource limits.

Lean: `_plan.bwrap_words` (0.1 ms) is imported by to_bwrap() alone.
"""

from __future__ import annotations

from nsbox._base.display import printable
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsbox._network.network import Network
    from nsbox._plan.capabilities import Capabilities
    from nsbox._plan.landlock import Ruleset
    from nsbox._plan.ops import Op
    from nsbox._seccomp.bpf import Program


@frozen
class Rlimit(Frozen):
    """One resource limit of setrlimit(2). name: without RLIMIT_."""

    name: str
    soft: int
    hard: int


UNCHANGED = 2**32 - 1  # (uid_t)-1, setresuid(2): the ids that a command has, whatever they are called inside


@frozen
class Identity(Frozen):
    """Who the command is, and how its user namespaces map ids (user_namespaces(7)).

    uid, gid: the command's, inside.
    uid_map, gid_map: lines of the first user namespace's maps, each "inside outside count".
    uid_map2, gid_map2: those of a second user namespace below it, which is entered after the mounts.
    deny_setgroups: whether setgroups(2) is denied in the first one.
    by_helper: the first maps have more than one id, so a process outside of the namespace writes them.
    change_ids: whether the command has to change its ids.
    map_programs: paths of newuidmap(1) and newgidmap(1), if these have to write the maps.
    map2_by_helper: the second maps have more than one id.
    userns, userns2: descriptors of namespaces to join instead of making the first and the second; they have no maps.
    """

    uid: int
    gid: int
    uid_map: str
    gid_map: str
    uid_map2: str | None = None
    gid_map2: str | None = None
    deny_setgroups: bool = True
    by_helper: bool = False
    change_ids: bool = False
    map_programs: tuple[str, str] | None = None
    map2_by_helper: bool = False
    userns: int | None = None
    userns2: int | None = None


@frozen
class Plan(Frozen):
    """Everything that a backend has decided about a sandbox.

    ops: the steps that make the file system, in their order.
    namespaces: the names of the namespaces that are made.
    identity: the command's ids, and the maps of its user namespaces.
    rlimits: resource limits of each process.
    new_session: whether the command is the leader of a session of its own.
    cgroup: the directory in which the command's cgroup is made; "": none.
    cgroup_limits: pairs of a file of that cgroup and what is written to it.
    programs: the seccomp filters, in their order.
    ruleset: Landlock's; None: none.
    nested: whether the command may make children of the caller.
    drop_groups: whether the supplementary groups are dropped.
    kill_on_exit: whether everything ends with the command.
    capabilities: what the command keeps; None: nothing.
    pidns: a descriptor of a pid namespace to join.
    limit_userns: whether a limit forbids user namespaces below those of the set-up.
    inotify_instances: the most of these; 0: no limit.
    no_userns: whether the spawn fails unless no user namespaces can be made.
    host_writes: whether ops may change the host.
    die_with_parent: whether everything ends with the caller.
    plain: whether it is a child like any other, without namespaces or an init, however confined.
    wrapper: the arguments of a program that makes the sandbox.
    tmpdir, home: TMPDIR and HOME of a built environment.
    kernel_id: the uid and gid that the first maps lead to outside; 0: the caller's.
    owners: destinations of binds, each with the uid and gid whose files are the command's own there.
    map_root: whether the command may map its uid 0 in user namespaces of its own.
    network: the list of what the command may connect to, which a process outside enforces; None: there is none.
    backend: the backend's name.
    enforced, not_enforced: sentences that say what this plan guarantees, and what it doesn't.
    lost: the names in the policy's `degrade` that are lost here; each has a sentence in not_enforced.
    """

    ops: tuple[Op, ...]
    namespaces: frozenset[str]
    identity: Identity
    rlimits: tuple[Rlimit, ...] = ()
    new_session: bool = True
    cgroup: str = ""
    cgroup_limits: tuple[tuple[str, str], ...] = ()
    programs: tuple[Program, ...] = ()
    ruleset: Ruleset | None = None
    nested: bool = False
    drop_groups: bool = False
    kill_on_exit: bool = True
    capabilities: Capabilities | None = None
    pidns: int | None = None
    limit_userns: bool = False
    inotify_instances: int = 0
    no_userns: bool = False
    host_writes: bool = False
    die_with_parent: bool = True
    plain: bool = False
    wrapper: tuple[str, ...] = ()
    tmpdir: str = "/tmp"
    home: str = "/"
    kernel_id: int = 0
    owners: tuple[tuple[str, int, int], ...] = ()
    map_root: bool = False
    network: Network | None = None
    backend: str = "namespaces"
    enforced: tuple[str, ...] = ()
    not_enforced: tuple[str, ...] = ()
    lost: frozenset[str] = frozenset()

    def to_bwrap(self, put: Callable[[bytes | int], int] | None = None) -> list[str]:
        """Return the options with which bwrap(1) makes such a sandbox, without the program's name and the command.

        What bwrap lacks is left out; an op that it lacks is a PolicyError.

        put: returns a descriptor from which bwrap can read contents or a filter; None: contents are a PolicyError.
        """
        from nsbox._plan.bwrap_words import command_line

        return command_line(self, put)

    def table(self) -> str:
        """Return the plan as lines of aligned columns: number, op, operands."""
        rows = [op.row() for op in self.ops]
        width, digits = max((len(name) for name, _ in rows), default=0), len(str(len(rows)))
        shown = [(name, what if name == "seatbelt" else printable(what)) for name, what in rows]  # a profile has lines
        lines = [f"{i:>{digits}}  {name:<{width}}  {what}".rstrip() for i, (name, what) in enumerate(shown, 1)]
        return "\n".join(lines)
