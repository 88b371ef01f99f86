"""Host: facts about a machine on which plans depend, as a frozen value. _machine finds them out; nothing here asks."""

from __future__ import annotations

from nsbox._base.frozen import TYPE_CHECKING, Frozen, field, fields, frozen

if TYPE_CHECKING:
    from typing import Literal


@frozen
class IdRange(Frozen):
    """A row of an id map (user_namespaces(7)): the first id inside, the first id outside, and how many there are."""

    inside: int
    outside: int
    count: int

    def has(self, number: int) -> bool:
        """Say if an id of the inside is in the range."""
        return self.inside <= number < self.inside + self.count


@frozen
class Host(Frozen):
    """What a machine offers to a process: probe() returns this one's. On any machine you can plan for any Host.

    The comment at each field says what it holds.
    """

    system: str = "Linux"
    kernel: tuple[int, int] = (6, 1)
    machine: str = "x86_64"
    core_problem: str = ""  # why the C core can't be used; "" if it can

    euid: int = 1000
    egid: int = 1000
    can_set_ids: bool = False  # CAP_SETUID and CAP_SETGID: may write any map
    can_set_groups: bool = False  # CAP_SETGID, and setgroups(2) is not denied in this user namespace
    capabilities: int = 0  # the effective set, as bits
    inheritable: int = 0  # the other sets
    bounding: int = 0
    last_capability: int = 40  # the highest number that this kernel knows
    # Maps of this process's user namespace. A row may be given as a plain tuple.
    uid_ranges: tuple[IdRange, ...] = (IdRange(0, 0, 4294967295),)
    gid_ranges: tuple[IdRange, ...] = (IdRange(0, 0, 4294967295),)

    subuids: tuple[tuple[int, int], ...] = ()  # the user's ranges in subuid(5): first id and count
    subgids: tuple[tuple[int, int], ...] = ()
    map_programs: tuple[str, str] | None = None  # paths of newuidmap(1) and newgidmap(1); None: not installed

    settings_writable: bool = False  # whether permission bits let this process write to /proc/sys/kernel
    owns_settings: bool | None = None  # whether the files there are this user's; None: not known

    landlock_abi: int = 0  # the version of Landlock; 0: none

    max_user_namespaces: int | None = None  # user.max_user_namespaces; None: not known
    unprivileged_userns: bool | None = None  # kernel.unprivileged_userns_clone (Debian's patch)
    apparmor_restricts_userns: bool = False  # kernel.apparmor_restrict_unprivileged_userns (Ubuntu 23.10 and later)
    userns_error: int = 0  # the errno with which a trial sandbox failed; 0: it didn't fail
    userns_error_at: Literal["", "unshare", "map", "mount"] = ""  # the step at which it failed

    bwrap: str = ""  # the path of bubblewrap; "": there is none
    bwrap_version: tuple[int, ...] = ()
    bwrap_binds_fds: bool = False  # whether it has --bind-fd
    bwrap_problem: str = ""  # its message if a trial failed; it is only tried where a sandbox of ours fails

    cgroup: str = ""  # the directory where cgroups can be made; "": nowhere
    cgroup_controllers: tuple[str, ...] = ()  # those of memory, pids and cpu that can be used there
    cgroup_problem: str = ""  # why no cgroups can be made

    seatbelt_ways: tuple[str, ...] = ()  # macOS: how a profile can be applied, the best way first: see _spawn.seatbelt
    seatbelt_problem: str = ""  # why none can be, for instance because this process is in a sandbox already
    temporary: str = ""  # macOS: the user's directory for temporary files
    names_are_exact: bool = True  # False: volumes take "a" and "A" for the same name
    firmlinks: tuple[str, ...] = ()  # macOS: paths that also exist below /System/Volumes/Data
    links: tuple[str, ...] = ()  # macOS: links on the way to the interpreter, and to Xcode
    spellings: tuple[tuple[str, str], ...] = ()  # macOS: paths of the policy, with the file system's other spelling

    label: str = ""  # the AppArmor profile or SELinux context that confines this process
    is_filtered: bool = False  # whether this process runs behind a seccomp filter
    refused_calls: tuple[tuple[str, int], ...] = ()  # calls that sandboxes need and the filter refuses, with the errno
    is_chrooted: bool = False  # whether the root isn't a mount point; then the kernel refuses user namespaces

    directories: tuple[tuple[str, str | None], ...] = ()  # system directories; with the target if one is a link
    ways: tuple[tuple[str, str], ...] = ()  # links on the way to these and to the interpreter, with their targets
    home_links: tuple[tuple[str, str], ...] = ()  # links on the way to /home/USER, with their targets
    profiles: tuple[str, ...] = ()  # more directories of programs for PATH, such as NixOS's
    prefixes: tuple[str, ...] = ()  # the running interpreter's
    user: str = ""  # the name of the command's user; "": it has none
    user_info: str = ""  # that user's full name, and whatever else passwd(5) calls GECOS
    shell: str = ""  # that user's
    group: str = ""  # the name of the command's group; "": it has none
    passwd: bytes | None = None  # the contents of /etc/passwd, b"" if they can't be read; None: there is no such file
    groups: bytes | None = None  # the same of /etc/group
    ssh_files: tuple[tuple[str, bytes], ...] = ()  # root's files that the system's configuration of ssh includes
    certificates: tuple[tuple[str, str], ...] = ()  # the caller's variables about certificates, with their values
    certificate_files: tuple[str, ...] = ()  # the files and directories that these name, without links
    programs: tuple[str, ...] = ()  # the interpreter's directories of programs, for PATH
    package: str = ""  # the directory of nsbox itself; "": it is in a prefix
    imports: tuple[str, ...] = ()  # directories and archives that this process imports from
    secrets: tuple[str, ...] = ()  # files of the host that this process can read and no command should
    private: tuple[str, ...] = ()  # for uid 0: what permissions keep from all others below /etc, /opt, /usr/local/etc
    private_unknown: tuple[str, ...] = ()  # directories there that are too large to be searched for such files
    state: str = ""  # the directory of the user's key and of transactions, which no workspace shows
    state_detours: tuple[str, ...] = ()  # links on the way there, and their directories unless these are above it
    has_key: bool = False  # whether there is such a key
    sources: tuple[tuple[str | int, str], ...] = ()  # sources of a policy's binds whose links may lead around state
    automounts: tuple[str, ...] = ()  # where file systems are mounted at their first use
    resolv_conf: str | None = None  # where /etc/resolv.conf leads; None: to no file outside of /etc
    core_handler: Literal["", "pipe", "socket"] = ""  # what kernel.core_pattern is; "": a file
    open_files: int = 0  # the soft RLIMIT_NOFILE; 0: unlimited
    inotify_instances: int = 0  # the most that a user may have; 0: not known, or a namespace can't have its own limit
    hard_limits: tuple[tuple[str, int], ...] = ()  # RLIMIT names with their hard limits, except unlimited ones

    # For one policy:
    matches: tuple[tuple[str, tuple[str, ...]], ...] = ()  # its patterns, and what they match
    devices: tuple[str, ...] = ()  # the device nodes that it names, or that are in directories that it names
    network_files: tuple[tuple[str, str], ...] = (  # with a network list: where these lead in a sandbox
        ("/etc/resolv.conf", "/etc/resolv.conf"),
        ("/etc/hosts", "/etc/hosts"),
    )
    hostname: str = ""  # with a network list: this machine's name
    home_points: tuple[str, ...] = ()  # names in its kept home on which other sandboxes have mounted something

    kernel_id: int = 0  # for uid 0: a uid and gid that nobody has, for the policy's commands; 0: none
    owners: tuple[tuple[str, int, int], ...] = ()  # with it: paths of the policy, and their owners
    unmapped: str = ""  # for uid 0: why there is none

    _hash: int = field(init=False, repr=False, compare=False, default=0)  # of all others; every spawn needs it

    def __post_init__(self) -> None:
        for name in ("uid_ranges", "gid_ranges"):
            rows = [row if isinstance(row, IdRange) else IdRange(*row) for row in getattr(self, name)]
            object.__setattr__(self, name, tuple(rows))
        values = tuple(getattr(self, f.name) for f in fields(self) if f.compare)
        object.__setattr__(self, "_hash", hash(values))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Host], tuple[object, ...]]:
        return type(self), tuple(getattr(self, f.name) for f in fields(self) if f.init)

    @property
    def is_kernel_root(self) -> bool:
        """Say if commands are the kernel's uid 0, which may write to /proc/sys, and which RLIMIT_NPROC doesn't limit.

        They aren't if they have kernel ids of their own. In a nested user namespace the map doesn't show it; the owner
        of the files does.
        """
        if self.kernel_id:
            return False
        if self.owns_settings is not None:
            return self.settings_writable or self.owns_settings
        return self.settings_writable or any(
            row.has(self.euid) and row.outside + self.euid - row.inside == 0 for row in self.uid_ranges
        )
