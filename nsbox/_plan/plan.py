"""A Plan: all that a backend has decided, as one frozen value; who the command is, and its resource limits."""

from __future__ import annotations

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
    """One resource limit, as setrlimit(2) has it; the name without RLIMIT_."""

    name: str
    soft: int
    hard: int


@frozen
class Identity(Frozen):
    """Who the command is: the lines of the user namespaces' maps, "inside outside count" each.

    The second pair, when there is one, is for a namespace entered after the mounts, whose parent is the first.
    by_helper: the maps hold more than one id and are written by a process outside of the namespace (map2_by_helper: so
    do the second ones); map_programs: the paths of newuidmap(1) and newgidmap(1), when it has to be these. userns,
    userns2: descriptors of namespaces to be joined instead of the first and of the second; then without maps.
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
    """All that a backend has decided: the ops in their order, and what holds for the processes.

    cgroup: where the command's is made, or ""; cgroup_limits: what is written to its files. pidns: a descriptor of a
    pid namespace to be joined. limit_userns: no user namespaces below those of the set-up; no_userns: this has to be
    so. inotify_instances: 0 for no limit. host_writes: ops may change the host. die_with_parent: all ends with the
    caller. programs: the seccomp filters, in their order. plain: a child like any other, without namespaces or an init,
    however confined. wrapper: arguments of a program that makes the sandbox. tmpdir, home: those of a built
    environment. kernel_id: the uid and gid that the sandbox has outside, which the first maps are of; 0: the caller's.
    owners: destinations of binds, with the uid and gid whose files are the command's own there. map_root: the command
    may map its uid 0 in user namespaces of its own. network: the list of what the command may connect to, which a
    process outside enforces; None: there is none.
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

    def to_bwrap(self, put: Callable[[bytes | int], int] | None = None) -> list[str]:
        """Return the options with which bwrap(1) makes such a sandbox, without the program's name and the command.

        put: returns a descriptor for contents or a filter. What bwrap lacks is left out, or a PolicyError (ops).
        """
        from nsbox._plan.bwrap_words import command_line

        return command_line(self, put)

    def table(self) -> str:
        """Return the plan as lines of aligned columns: number, op, operands."""
        rows = [op.row() for op in self.ops]
        width, digits = max((len(name) for name, _ in rows), default=0), len(str(len(rows)))
        from nsbox._base.display import printable

        shown = [(name, what if name == "seatbelt" else printable(what)) for name, what in rows]  # a profile has lines
        lines = [f"{i:>{digits}}  {name:<{width}}  {what}".rstrip() for i, (name, what) in enumerate(shown, 1)]
        return "\n".join(lines)
