"""A Host: facts about a machine that planning depends on, as a frozen value. _machine fills it in."""

from __future__ import annotations

from nsbox._base.frozen import TYPE_CHECKING, Frozen, field, fields, frozen

if TYPE_CHECKING:
    from typing import Literal


@frozen
class Host(Frozen):
    """What this machine offers to this process. Plans for any Host can be made on any machine."""

    system: str = "Linux"
    kernel: tuple[int, int] = (6, 1)
    machine: str = "x86_64"
    core_problem: str = ""  # why the C core can't be used; "": it can

    euid: int = 1000
    egid: int = 1000
    can_set_ids: bool = False  # CAP_SETUID and CAP_SETGID: may write any map
    can_set_groups: bool = False  # CAP_SETGID, and setgroups(2) is not denied in this user namespace
    capabilities: int = 0  # the effective ones, a bit each
    inheritable: int = 0
    bounding: int = 0
    last_capability: int = 40  # its number, as far as this kernel knows them
    uid_ranges: tuple[tuple[int, int, int], ...] = ((0, 0, 4294967295),)  # of this process's own user namespace
    gid_ranges: tuple[tuple[int, int, int], ...] = ((0, 0, 4294967295),)

    subuids: tuple[tuple[int, int], ...] = ()  # first and count, subuid(5); as far as newuidmap(1) is there
    subgids: tuple[tuple[int, int], ...] = ()
    map_programs: tuple[str, str] | None = None  # newuidmap and newgidmap

    settings_writable: bool = False  # /proc/sys/kernel, by permission bits alone
    owns_settings: bool | None = None  # its files are this user's; None: not known

    landlock_abi: int = 0  # the version of Landlock, 0 where there is none

    max_user_namespaces: int | None = None  # user.max_user_namespaces; None: not known
    unprivileged_userns: bool | None = None  # kernel.unprivileged_userns_clone (Debian's patch)
    apparmor_restricts_userns: bool = False  # kernel.apparmor_restrict_unprivileged_userns (Ubuntu 23.10 and later)
    userns_error: int = 0  # the errno with which a sandbox that was tried failed; 0: it didn't
    userns_error_at: Literal["", "unshare", "map", "mount"] = ""  # and with what

    bwrap: str = ""  # the path of bubblewrap; "": there is none
    bwrap_version: tuple[int, ...] = ()
    bwrap_binds_fds: bool = False  # --bind-fd
    bwrap_problem: str = ""  # what it said when it was tried; that is only done where a sandbox of ours failed

    cgroup: str = ""  # where cgroups can be made; "": nowhere
    cgroup_controllers: tuple[str, ...] = ()  # with which controllers, of memory, pids and cpu
    cgroup_problem: str = ""  # why they can't be made

    seatbelt_ways: tuple[str, ...] = ()  # macOS: how a profile can be applied, the best first: see _spawn.seatbelt
    seatbelt_problem: str = ""  # why it can't; that this process is in a sandbox already is one
    temporary: str = ""  # macOS: the user's directory for temporary files
    names_are_exact: bool = True  # False: its volumes take "a" and "A" for the same name
    firmlinks: tuple[str, ...] = ()  # macOS: what is reached below /System/Volumes/Data too
    links: tuple[str, ...] = ()  # macOS: links on the way to the interpreter, and to Xcode
    spellings: tuple[tuple[str, str], ...] = ()  # macOS: paths of the policy that the file system spells otherwise

    label: str = ""  # the AppArmor profile or SELinux context that confines this process
    is_filtered: bool = False  # this process runs behind a seccomp filter
    refused_calls: tuple[tuple[str, int], ...] = ()  # that it refuses, of those that sandboxes need, and its errno
    is_chrooted: bool = False  # its root is no mount point, where the kernel refuses user namespaces

    directories: tuple[tuple[str, str | None], ...] = ()  # system directories there are, with the target if a link
    ways: tuple[tuple[str, str], ...] = ()  # links on the way to these and to the interpreter, with their targets
    home_links: tuple[tuple[str, str], ...] = ()  # links on the way to /home/USER, with their targets
    profiles: tuple[str, ...] = ()  # more directories of programs, such as NixOS's, for PATH
    prefixes: tuple[str, ...] = ()  # where the running interpreter lives
    user: str = ""  # the name of the commands' user; "": it has none
    user_info: str = ""  # that user's full name, and what else passwd(5) calls GECOS
    shell: str = ""  # that user's
    group: str = ""  # the name of the commands' group; "": it has none
    passwd: bytes | None = None  # what is in /etc/passwd, as far as it can be read; None: there is no such file
    groups: bytes | None = None  # what is in /etc/group
    ssh_files: tuple[tuple[str, bytes], ...] = ()  # root's files that the system's configuration of ssh includes
    certificates: tuple[tuple[str, str], ...] = ()  # the caller's variables about certificates, with their values
    certificate_files: tuple[str, ...] = ()  # what these name, without links
    programs: tuple[str, ...] = ()  # its directories of programs, for PATH
    package: str = ""  # where nsbox itself lives, when that is elsewhere
    imports: tuple[str, ...] = ()  # directories and archives that this process imports from
    secrets: tuple[str, ...] = ()  # files of the host that this process can read and no command should
    private: tuple[str, ...] = ()  # for uid 0: what permissions keep from all others below /etc, /opt, /usr/local/etc
    private_unknown: tuple[str, ...] = ()  # directories there that are too large to look for that in all of them
    state: str = ""  # where nsbox keeps the user's key, and transactions, which no workspace shows
    state_detours: tuple[str, ...] = ()  # links on the way there, and what they are in, if it isn't above it
    has_key: bool = False  # there is such a key
    sources: tuple[tuple[str | int, str], ...] = ()  # of a policy's binds, those that lead by links around state
    automounts: tuple[str, ...] = ()  # where file systems are mounted at their first use
    resolv_conf: str | None = None  # what /etc/resolv.conf leads to, when that is outside of /etc
    core_handler: Literal["", "pipe", "socket"] = ""  # what kernel.core_pattern is; "": a file
    open_files: int = 0  # the soft RLIMIT_NOFILE; 0: unlimited
    inotify_instances: int = 0  # that a user may have; 0: not known, or a namespace's can't be limited
    hard_limits: tuple[tuple[str, int], ...] = ()  # RLIMIT names with their hard limits, unlimited ones left out

    matches: tuple[tuple[str, tuple[str, ...]], ...] = ()  # for one policy: its patterns, and what they match
    devices: tuple[str, ...] = ()  # for one policy: the device nodes that it names, or that are in what it names
    network_files: tuple[tuple[str, str], ...] = (  # for one policy with a network list: where these lead in a sandbox
        ("/etc/resolv.conf", "/etc/resolv.conf"),
        ("/etc/hosts", "/etc/hosts"),
    )
    hostname: str = ""  # for one policy with a network list: this machine's name
    home_points: tuple[str, ...] = ()  # for one policy: names in its kept home that others have something mounted on

    kernel_id: int = 0  # for uid 0 and one policy: a uid and gid that nobody has, for its commands; 0: none
    owners: tuple[tuple[str, int, int], ...] = ()  # with it: paths of the policy, and whose they are
    unmapped: str = ""  # for uid 0: why there is none

    _hash: int = field(init=False, repr=False, compare=False, default=0)  # of all the others: asked for on every spawn

    def __post_init__(self) -> None:
        values = tuple(getattr(self, f.name) for f in fields(self) if f.compare)
        object.__setattr__(self, "_hash", hash(values))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Host], tuple[object, ...]]:
        return type(self), tuple(getattr(self, f.name) for f in fields(self) if f.init)

    @property
    def is_kernel_root(self) -> bool:
        """Say if the effective user is the kernel's uid 0, which permission bits of /proc/sys and RLIMIT_NPROC favour.

        Its commands aren't where they have kernel ids of their own. In a nested user namespace the map doesn't tell:
        there the files do.
        """
        if self.kernel_id:
            return False
        if self.owns_settings is not None:
            return self.settings_writable or self.owns_settings
        return self.settings_writable or any(
            inside <= self.euid < inside + n and outside + self.euid - inside == 0
            for inside, outside, n in self.uid_ranges
        )
