"""Asks the machine; the answers are a Host. Nothing is decided here."""

from __future__ import annotations

import errno
import os
import stat
import sys

from nsbox import _accounts, _automounts, _system_dirs
from nsbox._backends import namespaces
from nsbox._base.frozen import TYPE_CHECKING, replace
from nsbox._base.paths import PACKAGE, is_below
from nsbox._core import abi, buffers, call, command, linux
from nsbox._core.request import request_for
from nsbox._files.links import detours
from nsbox._identity import (
    CAP_SETGID,
    CAP_SETUID,
    check_scarcity,
    id_ranges,
    kernel_version,
    number,
    owns_settings,
    read,
)
from nsbox._paths.home import name_of
from nsbox._plan.host import Host
from nsbox._policy.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Literal

_SECRETS = (
    *("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/security/opasswd"),
    *("/etc/sudoers", "/etc/sudoers.d", "/etc/krb5.keytab", "/etc/ssl/private"),
    *(f"/etc/ssh/ssh_host_{kind}_key" for kind in ("rsa", "dsa", "ecdsa", "ed25519")),
)
_PRIVATE_BELOW = ("/etc", "/usr/local/etc", "/opt", *(f"/home/linuxbrew/.linuxbrew/{name}" for name in ("etc", "var")))
_PUBLIC = ("/var/lib/dpkg", "/var/lib/pacman/local", "/var/lib/rpm")  # large, and for everybody to read
_MOST_ENTRIES = 50_000  # that are looked at below each of them
_MOST_MASKS = 64  # in one directory, each of which is a mount; one with more is hidden as a whole
_PARTS = ("bin", "include", "lib", "lib32", "lib64", "libexec", "pyvenv.cfg")  # of an interpreter's prefix
_LIMITS = ("AS", "NPROC", "CPU", "FSIZE", "NOFILE", "CORE")
_HANDLERS: dict[str, Literal["pipe", "socket"]] = {"|": "pipe", "@": "socket"}  # core(5); sockets: Linux 6.16

_known: dict[tuple[int, int], Host] = {}


def probe(*, refresh: bool = False) -> Host:
    """Return what this machine offers to this process. Asked once for each effective user; refresh: ask again."""
    if not abi.on_linux and not abi.on_darwin:
        import platform

        return Host(system=platform.system(), kernel=(0, 0), machine=platform.machine(), core_problem=abi.problem)
    key = (os.geteuid(), os.getegid())
    known = _known.get(key)
    if known is not None and not refresh:
        return known
    if abi.on_darwin:
        host = _darwin()
    else:
        host = _linux()
        error, at = _try_sandbox(host)
        host = replace(host, userns_error=error, userns_error_at=at)
        if host.is_filtered and not host.core_problem and at in ("", "mount"):
            host = replace(host, refused_calls=linux.refused_calls())
        host = _accounts.with_user(host, host.euid, host.egid)
        host = _with_bwrap(host) if namespaces.missing(host) else host
    _known[key] = host
    return host


def _with_bwrap(host: Host) -> Host:
    from nsbox._system_bwrap import with_bwrap  # seldom needed

    return with_bwrap(host)


# What host_for() looks up: which of it, depends on the policy and on what probe() has said.
_latest: tuple[Policy, Host, tuple[Callable[[Policy, Host], Host], ...]] | None = None


def host_for(policy: Policy) -> Host:
    """Return probe(), with what has to be known for this policy: what its patterns match, of bubblewrap, kernel ids."""
    global _latest
    host, latest = probe(), _latest
    if latest is None or latest[0] is not policy or latest[1] is not host:
        _latest = latest = policy, host, tuple(_lookups(policy, host))
    for look in latest[2]:
        host = look(policy, host)
    return host


def _lookups(policy: Policy, host: Host) -> Iterator[Callable[[Policy, Host], Host]]:
    """Yield what is looked up for each command of a policy, in this order. Most of it is seldom needed."""
    if host.automounts and policy.base == "workspace":
        yield _automounts.use
    if policy.has_patterns or policy.strict:
        from nsbox._matches import matched

        yield matched
    if policy.devices:
        from nsbox._device_nodes import with_devices

        yield with_devices
    if abi.on_darwin:
        from nsbox import _probe_darwin

        yield _probe_darwin.host_for
        return
    if policy.backend == "bwrap" and not host.bwrap_version:
        yield _with_version
    if policy.network not in ("none", "host"):
        from nsbox._network_files import with_network_files

        yield with_network_files
    if policy.base != "workspace":
        return
    if (policy.uid, policy.gid, policy.network) != (None, None, "none"):
        yield _accounts.host_for
    if name_of(policy.home) is not None:
        from nsbox._homes import with_home

        yield with_home
    if host.euid == 0:
        from nsbox._kernel_id import mapped

        yield mapped


def _with_version(_: Policy, host: Host) -> Host:
    known = _known[os.geteuid(), os.getegid()] = _with_bwrap(probe())
    return replace(known, matches=host.matches, devices=host.devices)


def _status(name: str) -> str:
    for line in (read("/proc/self/status") or "").splitlines():
        if line.startswith(f"{name}:"):
            return line.partition(":")[2].strip()
    return ""


def _capabilities() -> int:
    return int(_status("CapEff") or "0", 16)


def _label() -> str:
    """Return the label of a security module that confines this process; "" for none, or one that lets it do all."""
    text = read("/proc/self/attr/apparmor/current") or read("/proc/self/attr/current") or ""
    label = text.strip("\0\n ")
    free = label in ("", "unconfined", "kernel", "_") or label.endswith((" (unconfined)", " (complain)"))
    return "" if free or ":unconfined_t:" in label else label


def _inotify_instances() -> int:
    """Return how many a user may have; 0 where a user namespace gets no limit of its own (namespaces(7), Linux 4.10).

    In containers /proc/sys is mounted read-only, and profiles of security modules refuse to write there.
    """
    try:
        is_fixed = os.statvfs("/proc/sys/user/max_inotify_instances").f_flag & os.ST_RDONLY or _label()
    except OSError:
        return 0
    return 0 if is_fixed else number("/proc/sys/fs/inotify/max_user_instances") or 0


def _is_chrooted() -> bool:
    """Say whether "/" is no mount point, so that mountinfo has no line for it, or another one than pid 1's.

    The latter only who may look at pid 1 can say, and only in a mount namespace that it shares with that.
    """
    roots = {}
    for process in ("self", "1"):
        rows = [line.split() for line in (read(f"/proc/{process}/mountinfo") or "").splitlines()]
        roots[process] = [row[0] for row in rows if row[4] == "/"]
        if process == "self" and rows and not roots["self"]:
            return True
    try:
        is_shared = os.readlink("/proc/self/ns/mnt") == os.readlink("/proc/1/ns/mnt")
    except OSError:
        return False
    return is_shared and bool(roots["1"]) and roots["self"] != roots["1"]


def _subordinate(path: str) -> tuple[tuple[int, int], ...]:
    """Return the ranges of this user; lines are a name or number, the first id and the count (subuid(5))."""
    import pwd

    owners = {str(os.geteuid())}
    try:
        owners.add(pwd.getpwuid(os.geteuid()).pw_name)
    except KeyError:  # a user without a name
        pass
    rows = [line.split(":") for line in (read(path) or "").splitlines()]
    mine = (row[1:] for row in rows if len(row) == 3 and row[0] in owners)
    return tuple((int(first), int(count)) for first, count in mine if first.isdigit() and count.isdigit())


def _map_programs() -> tuple[str, str] | None:
    for directory in ("/usr/bin", "/bin", "/usr/local/bin"):
        uid, gid = f"{directory}/newuidmap", f"{directory}/newgidmap"
        if os.access(uid, os.X_OK) and os.access(gid, os.X_OK):
            return uid, gid
    return None


def _system() -> _system_dirs.SystemDirs:
    import pwd

    try:
        entry = pwd.getpwuid(os.geteuid())
    except KeyError:  # a user without a name
        return _system_dirs.look(home=os.path.expanduser("~"))
    return _system_dirs.look(user=entry.pw_name, home=os.path.realpath(entry.pw_dir))


def _interpreter_links() -> tuple[tuple[str, str], ...]:
    own = (sys.executable, getattr(sys, "_base_executable", ""), sys.prefix, sys.base_prefix)
    return _system_dirs.interpreter_links(name for name in own if name)


def _own_prefixes() -> tuple[str, ...]:
    candidates = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
    real = (os.path.realpath(path) for path in candidates)
    return tuple(dict.fromkeys(path for path in real if path != "/" and os.path.isdir(path)))


def _is_shared_with_home(prefix: str) -> bool:
    """Say if a home directory is in the prefix, or if it is ~/.local: there is more there than an interpreter."""
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        return False
    home = os.path.realpath(home)
    return is_below(home, prefix) or prefix == os.path.join(home, ".local")


def _prefixes() -> tuple[str, ...]:
    found: list[str] = []
    for prefix in _own_prefixes():
        if _is_shared_with_home(prefix):
            parts = (os.path.join(prefix, name) for name in _PARTS)
            found += [part for part in parts if os.path.exists(part) and not os.path.islink(part)]
        else:
            found.append(prefix)
    return tuple(found)


def _package(prefixes: tuple[str, ...]) -> str:
    path = os.path.realpath(PACKAGE)
    return "" if any(is_below(path, prefix) for prefix in prefixes) else path


def _imports() -> tuple[str, ...]:
    """Return what is there of sys.path, without links."""
    try:
        real = [os.path.realpath(entry) for entry in sys.path if isinstance(entry, str)]  # "" is the current directory
    except FileNotFoundError:  # that is gone
        real = [os.path.realpath(entry) for entry in sys.path if isinstance(entry, str) and os.path.isabs(entry)]
    return tuple(path for path in dict.fromkeys(real) if path != "/" and os.path.exists(path))


def _secrets() -> tuple[str, ...]:
    """For uid 0 all names, since they may come to exist later; for others those whose permissions let them read."""
    return tuple(path for path in _SECRETS if os.geteuid() == 0 or os.access(path, os.R_OK))


def _private(directories: tuple[tuple[str, str | None], ...] = ()) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """For uid 0, whom permission bits don't stop: what they keep from everybody else, files and whole directories.

    Returns also the directories that have so many entries that not all were looked at.
    """
    if os.geteuid() != 0:
        return (), ()
    found: list[str] = []
    data = [path for path, _ in directories if is_below(path, "/var/lib") and path not in _PUBLIC]
    passed_over = [directory for root in (*_PRIVATE_BELOW, *data) for directory in _add_private(root, found)]
    return tuple(sorted(found)), tuple(sorted(passed_over))


def _add_private(root: str, found: list[str]) -> list[str]:
    """Add what is private below root, the highest first; return the directories that were left out."""
    left, directories = _MOST_ENTRIES, [root]
    for at, directory in enumerate(directories):
        private = []
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    left -= 1
                    if left < 0:
                        return directories[at:]
                    if (mode := _mode(entry)) is None:
                        continue
                    if not mode & (stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH):
                        private.append(entry.path)
                    elif stat.S_ISDIR(mode):
                        directories.append(entry.path)
        except OSError as error:
            check_scarcity(error)
        if len(private) > _MOST_MASKS and directory != root:
            directories[at + 1 :] = [d for d in directories[at + 1 :] if not is_below(d, directory)]
            private = [directory]
        found += private
    return []


def _mode(entry: os.DirEntry[str]) -> int | None:
    """Return an entry's mode; None for a link, or if it can't be told."""
    try:
        return None if entry.is_symlink() else entry.stat(follow_symlinks=False).st_mode
    except OSError as error:
        check_scarcity(error)
        return None


def _open_files() -> int:
    import resource

    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 0 if soft == resource.RLIM_INFINITY else soft


def _hard_limits() -> tuple[tuple[str, int], ...]:
    import resource

    hard = ((name, resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1]) for name in _LIMITS)
    return tuple((name, value) for name, value in hard if value != resource.RLIM_INFINITY)


_REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSPC, errno.ENOSYS, errno.EINVAL)
_AT: dict[str, Literal["unshare", "map", "mount"]] = {
    **dict.fromkeys(("UNSHARE", "SECOND_USERNS"), "unshare"),
    **dict.fromkeys(("UID_MAP", "GID_MAP", "SETGROUPS"), "map"),
    **dict.fromkeys(("ROOT", "PIVOT"), "mount"),
}


def _try_sandbox(host: Host) -> tuple[int, Literal["", "unshare", "map", "mount"]]:
    """Make an empty sandbox, and return the errno with which that was refused, and where; 0 if it wasn't.

    There is nothing in it to execute, so that is what fails when all is well. It takes about a millisecond; what
    security modules and filters forbid can't be known in another way.
    """
    if namespaces.missing(host):
        return 0, ""
    plan = namespaces.compile(Policy.layers(), host)
    nothing = command.Command(
        programs=[b"/"],
        argv=[b"/"],
        envp=buffers.Strings([]),
        cwd=None,
        flags=abi.constants.CLOSE_FDS,
        uid=plan.identity.uid,
        gid=plan.identity.gid,
    )
    result = call.spawn(request_for(plan, ()), nothing)
    for name, at in _AT.items():
        if result.step == getattr(abi.constants, f"STEP_{name}") and result.error in _REFUSALS:
            return result.error, at
    return 0, ""


def _linux() -> Host:
    from nsbox import _cgroup

    caps = _capabilities()
    unprivileged = number("/proc/sys/kernel/unprivileged_userns_clone")
    return Host(
        system="Linux",
        kernel=kernel_version(os.uname().release),
        machine=os.uname().machine,
        core_problem=abi.problem,
        euid=os.geteuid(),
        egid=os.getegid(),
        can_set_ids=bool(caps >> CAP_SETUID & 1 and caps >> CAP_SETGID & 1),
        can_set_groups=bool(caps >> CAP_SETGID & 1) and (read("/proc/self/setgroups") or "allow").strip() == "allow",
        capabilities=caps,
        inheritable=int(_status("CapInh") or "0", 16),
        bounding=int(_status("CapBnd") or "0", 16),
        last_capability=number("/proc/sys/kernel/cap_last_cap") or 40,
        uid_ranges=id_ranges("/proc/self/uid_map"),
        gid_ranges=id_ranges("/proc/self/gid_map"),
        subuids=_subordinate("/etc/subuid"),
        subgids=_subordinate("/etc/subgid"),
        map_programs=_map_programs(),
        settings_writable=os.access("/proc/sys/kernel/core_pattern", os.W_OK, effective_ids=True),
        owns_settings=owns_settings(),
        landlock_abi=0 if abi.problem else linux.landlock_abi(),
        max_user_namespaces=number("/proc/sys/user/max_user_namespaces"),
        unprivileged_userns=None if unprivileged is None else unprivileged != 0,
        apparmor_restricts_userns=number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == 1,
        cgroup=(place := _cgroup.look()).directory,
        cgroup_controllers=place.controllers,
        cgroup_problem=place.problem,
        label=_label(),
        is_filtered=_status("Seccomp") == "2",
        is_chrooted=_is_chrooted(),
        directories=(system := _system()).directories,
        ways=tuple({**dict(system.links), **dict(_interpreter_links())}.items()),
        profiles=system.programs,
        home_links=system.home_links,
        prefixes=(prefixes := _prefixes()),
        programs=tuple(os.path.join(prefix, "bin") for prefix in _own_prefixes() if prefix != "/usr"),
        package=_package(prefixes),
        imports=_imports(),
        passwd=_accounts.of_system("/etc/passwd"),
        groups=_accounts.of_system("/etc/group"),
        ssh_files=_accounts.ssh_files(),
        secrets=_secrets(),
        private=(private := _private(system.directories))[0],
        private_unknown=private[1],
        state=(state := _state())[0],
        state_detours=state[1],
        has_key=bool(state[0]) and os.path.lexists(os.path.join(state[0], "key")),
        automounts=_automounts.points(),
        resolv_conf=_accounts.resolv_conf(),
        open_files=_open_files(),
        inotify_instances=_inotify_instances(),
        core_handler=_HANDLERS.get((read("/proc/sys/kernel/core_pattern") or "")[:1], ""),
        hard_limits=_hard_limits(),
    )


def _darwin() -> Host:
    from nsbox import _probe_darwin

    prefixes = _prefixes()
    host = Host(
        system="Darwin",
        kernel=kernel_version(os.uname().release),
        machine=os.uname().machine,
        core_problem=abi.problem,
        euid=os.geteuid(),
        egid=os.getegid(),
        can_set_ids=os.geteuid() == 0,
        can_set_groups=os.geteuid() == 0,
        directories=_probe_darwin.directories(),
        prefixes=prefixes,
        programs=tuple(os.path.join(prefix, "bin") for prefix in _own_prefixes() if prefix != "/usr"),
        package=os.path.realpath(PACKAGE),  # also in a prefix: the helper program is executed outside
        imports=_imports(),
        resolv_conf=_accounts.resolv_conf(),
        secrets=("/etc/master.passwd", *_secrets()),
        private=(private := _private())[0],
        private_unknown=private[1],
        state=(state := _state())[0],
        state_detours=state[1],
        has_key=bool(state[0]) and os.path.lexists(os.path.join(state[0], "key")),
        hard_limits=_hard_limits(),
    )
    return _probe_darwin.with_seatbelt(host)


def _state_home() -> str:
    """Return the user's directory for state (XDG base directories); "" if there is none. Relative ones don't count."""
    given = os.environ.get("XDG_STATE_HOME", "")
    path = given if os.path.isabs(given) else os.path.expanduser("~/.local/state")
    return path if os.path.isabs(path) else ""


def transactions_dir() -> str:
    """Return where transactions keep their files: in the user's directory for state."""
    return os.path.join(_state_home() or os.path.expanduser("~/.local/state"), "nsbox", "transactions")


def _state() -> tuple[str, tuple[str, ...]]:
    """Return nsbox's directory in it, without links, and what else is on the way there."""
    home = _state_home()
    if not home:
        return "", ()
    named = os.path.join(home, "nsbox")
    real = os.path.realpath(named)
    return real, () if real == named else detours(named, real)
