"""Asks Linux what it offers to this process; the answers are a Host. Nothing is decided here."""

from __future__ import annotations

import os

from nsbox._base.checks import check_answer
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._core import abi, linux
from nsbox._files.mounts import automounts
from nsbox._machine import accounts, cgroup, directories
from nsbox._machine.caller import hard_limits, state
from nsbox._machine.interpreter import imports, interpreter_links, own_prefixes, package, prefixes
from nsbox._machine.minimal import CAP_SETGID, CAP_SETUID, id_ranges, kernel_version, number, owns_settings, read
from nsbox._machine.private import private_files, secrets
from nsbox._plan.host import Host

if TYPE_CHECKING:
    from typing import Literal

_HANDLERS: dict[str, Literal["pipe", "socket"]] = {"|": "pipe", "@": "socket"}  # core(5); sockets: Linux 6.16


def _status(name: str) -> str:
    for line in (read("/proc/self/status") or "").splitlines():
        if line.startswith(f"{name}:"):
            return line.partition(":")[2].strip()
    return ""


def _capabilities() -> int:
    return int(_status("CapEff") or "0", 16)


def _label() -> str:
    """Return the label by which a security module confines this process; "" if none does."""
    text = read("/proc/self/attr/apparmor/current") or read("/proc/self/attr/current") or ""
    label = text.strip("\0\n ")
    free = label in ("", "unconfined", "kernel", "_") or label.endswith((" (unconfined)", " (complain)"))
    return "" if free or ":unconfined_t:" in label else label


def _inotify_instances() -> int:
    """Return how many inotify instances a user may have; 0 if a user namespace can't have a limit of its own.

    Namespaces have such limits since Linux 4.10 (namespaces(7)). They can't be set in containers, where /proc/sys is
    mounted read-only, nor if the profile of a security module forbids it.
    """
    try:
        is_fixed = os.statvfs("/proc/sys/user/max_inotify_instances").f_flag & os.ST_RDONLY or _label()
    except OSError as error:
        check_answer(error)
        return 0
    return 0 if is_fixed else number("/proc/sys/fs/inotify/max_user_instances") or 0


def _is_chrooted() -> bool:
    """Say if this process is in a chroot: mountinfo has no line for "/", or not the same one as pid 1's.

    The second test needs the permission to look at pid 1, and a mount namespace that is shared with it.
    """
    roots = {}
    for process in ("self", "1"):
        rows = [line.split() for line in (read(f"/proc/{process}/mountinfo") or "").splitlines()]
        roots[process] = [row[0] for row in rows if row[4] == "/"]
        if process == "self" and rows and not roots["self"]:
            return True
    try:
        is_shared = os.readlink("/proc/self/ns/mnt") == os.readlink("/proc/1/ns/mnt")
    except OSError as error:
        check_answer(error)
        return False
    return is_shared and bool(roots["1"]) and roots["self"] != roots["1"]


def _subordinate(path: str) -> tuple[tuple[int, int], ...]:
    """Return the ranges of this user in subuid(5) or subgid(5): first id and count."""
    import pwd

    owners = {str(os.geteuid())}
    try:
        owners.add(pwd.getpwuid(os.geteuid()).pw_name)
    except KeyError:  # the user has no name
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


def _system() -> directories.SystemDirs:
    import pwd

    try:
        entry = pwd.getpwuid(os.geteuid())
    except KeyError:  # the user has no name
        return directories.look(home=os.path.expanduser("~"))
    return directories.look(user=entry.pw_name, home=os.path.realpath(entry.pw_dir))


def _open_files() -> int:
    import resource

    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 0 if soft == resource.RLIM_INFINITY else soft


def host() -> Host:
    """Return what Linux offers to this process, before anything has been tried."""
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
        cgroup=(place := cgroup.look()).directory,
        cgroup_controllers=place.controllers,
        cgroup_problem=place.problem,
        label=_label(),
        is_filtered=_status("Seccomp") == "2",
        is_chrooted=_is_chrooted(),
        directories=(system := _system()).directories,
        ways=tuple({**dict(system.links), **dict(interpreter_links())}.items()),
        profiles=system.programs,
        home_links=system.home_links,
        prefixes=(shown := prefixes()),
        programs=tuple(os.path.join(prefix, "bin") for prefix in own_prefixes() if prefix != "/usr"),
        package=package(shown),
        imports=imports(),
        passwd=accounts.of_system("/etc/passwd"),
        groups=accounts.of_system("/etc/group"),
        ssh_files=accounts.ssh_files(),
        secrets=secrets(),
        private=(hidden := private_files(system.directories))[0],
        private_unknown=hidden[1],
        state=(own := state())[0],
        state_detours=own[1],
        has_key=bool(own[0]) and os.path.lexists(os.path.join(own[0], "key")),
        automounts=automounts(),
        resolv_conf=accounts.resolv_conf(),
        open_files=_open_files(),
        inotify_instances=_inotify_instances(),
        core_handler=_HANDLERS.get((read("/proc/sys/kernel/core_pattern") or "")[:1], ""),
        hard_limits=hard_limits(),
    )
