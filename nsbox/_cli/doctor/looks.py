"""Looks at this machine, one for each kind of cause: whether it is the cause here, and what was seen."""

from __future__ import annotations

import os
import platform
import shutil
import sys

from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen

if TYPE_CHECKING:
    from nsbox._plan.host import Host

OLDEST = (3, 11)


@frozen
class Look(Frozen):
    """What a look has shown. is_here: whether it is the cause on this machine; None: a look can't tell."""

    is_here: bool | None
    said: str


def _yes_or_no(is_here: bool, yes: str, no: str) -> Look:
    return Look(is_here, yes if is_here else no)


def sandboxes(host: Host) -> Look:
    """Look whether sandboxes start here. If so, a look at the machine can't tell: it is the policy that decides."""
    if host.core_problem:
        return Look(True, host.core_problem)
    if host.system == "Darwin" and host.seatbelt_problem:
        return Look(True, host.seatbelt_problem)
    if host.userns_error:
        return Look(True, f"no sandbox starts here ({os.strerror(host.userns_error)}); `nsbox doctor` says why")
    if host.max_user_namespaces == 0 or (host.unprivileged_userns is False and not host.can_set_ids):
        return Look(True, "this machine's settings allow no user namespaces; `nsbox doctor` says which")
    return Look(None, "sandboxes start on this machine, so the policy decides")


def apparmor(host: Host) -> Look:
    """Look for Ubuntu's restriction."""
    is_here = host.apparmor_restricts_userns and host.euid != 0
    return _yes_or_no(
        is_here, "kernel.apparmor_restrict_unprivileged_userns is 1", "AppArmor doesn't restrict namespaces for you"
    )


def label(host: Host) -> Look:
    """Look for a profile that confines this process."""
    return _yes_or_no(bool(host.label), f"this process is confined as {host.label!r}", "this process isn't confined")


def seccomp(host: Host) -> Look:
    """Look for a filter of this process's own."""
    calls = ", ".join(name for name, _ in host.refused_calls)
    yes = f"this process is filtered{f', and refused {calls}' if calls else ''}"
    return _yes_or_no(host.is_filtered, yes, "no filter is installed in this process")


def procfs(host: Host) -> Look:
    """Look whether a trial failed at a mount."""
    yes = f"a trial failed when it mounted: {os.strerror(host.userns_error)}"
    return _yes_or_no(host.userns_error_at == "mount", yes, "a new procfs can be mounted here")


def namespace_limit(host: Host) -> Look:
    """Look at the sysctl."""
    number = host.max_user_namespaces
    return (
        Look(None, "it can't be read") if number is None else Look(number == 0, f"user.max_user_namespaces is {number}")
    )


def namespaces_switch(host: Host) -> Look:
    """Look at Debian's sysctl."""
    if host.unprivileged_userns is None:
        return Look(False, "this kernel has no such setting")
    return _yes_or_no(
        not host.unprivileged_userns, "kernel.unprivileged_userns_clone is 0", "kernel.unprivileged_userns_clone is 1"
    )


def chroot(host: Host) -> Look:
    """Look whether the root is a mount point."""
    return _yes_or_no(host.is_chrooted, "the root directory isn't a mount point", "the root directory is a mount point")


def kernel(host: Host) -> Look:
    """Look at the kernel's version."""
    version = ".".join(map(str, host.kernel))
    return Look(host.system == "Linux" and host.kernel < (5, 12), f"this is {host.system} {version}")


def core(host: Host) -> Look:
    """Look whether the compiled part is there."""
    return _yes_or_no(bool(host.core_problem), host.core_problem, f"the C core works, on {host.machine}")


def cgroups(host: Host) -> Look:
    """Look for a directory where cgroups can be made."""
    return _yes_or_no(not host.cgroup, host.cgroup_problem or "there is none", f"{host.cgroup} can be used")


def python(_: Host) -> Look:
    """Look at the version of Python."""
    return Look(sys.version_info[:2] < OLDEST, f"this is Python {platform.python_version()}, {sys.executable}")


def machine(host: Host) -> Look:
    """Look at the processor and the C library."""
    is_known = host.machine in ("x86_64", "aarch64", "arm64")
    return Look(
        not is_known, " ".join(filter(None, (f"this is {host.system} on {host.machine}", *platform.libc_ver())))
    )


def compiler(_: Host) -> Look:
    """Look for a compiler in PATH."""
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    return Look(found is None, f"{found} is there" if found else "there is no cc, gcc or clang in PATH")


def pip(_: Host) -> Look:
    """Look at pip's version."""
    from importlib import metadata

    try:
        version = metadata.version("pip")
    except metadata.PackageNotFoundError:
        return Look(None, "this Python has no pip")
    return Look(int(version.partition(".")[0]) < 21, f"this Python has pip {version}")


def home(_: Host) -> Look:
    """Look whether nsbox's directory of state can be made in the user's home."""
    path = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    above = path
    while not os.path.lexists(above) and above != os.path.dirname(above):
        above = os.path.dirname(above)
    return _yes_or_no(
        not os.access(above, os.W_OK | os.X_OK), f"{above} can't be written to", f"{path} can be written to"
    )


def proxy(_: Host) -> Look:
    """Look for a proxy in the environment; its address may have a password."""
    names = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    found = [name for name in names if os.environ.get(name)]
    return _yes_or_no(bool(found), f"{', '.join(found)} is set here", "no variable names a proxy here")


def open_files(_: Host) -> Look:
    """Look at the limit of open files."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Look(None, f"this process may open {soft} files, at most {hard}")


def processes(_: Host) -> Look:
    """Look at the limit of processes."""
    import resource

    soft, _hard = resource.getrlimit(resource.RLIMIT_NPROC)
    return Look(None, "you may have any number of processes" if soft < 0 else f"you may have {soft} processes")
