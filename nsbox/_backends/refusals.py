"""Why user namespaces are refused, as far as the facts of a Host show, and what would help. Pure."""

from __future__ import annotations

import errno

from nsbox._base.errors import Reason
from nsbox._plan.host import Host

_PROFILE = """\
abi <abi/4.0>,
include <tunables/global>

profile nsbox {interpreter} flags=(unconfined) {{
  userns,
  include if exists <local/nsbox>
}}
"""


def apparmor_profile(interpreter: str) -> str:
    """Return an AppArmor profile (4.0, Ubuntu 23.10 and later) that lets this program make user namespaces.

    It lets every user of the program do so. To allow less, make a copy of the interpreter for one purpose.

    interpreter: the path of the executable file, without links, since AppArmor compares that.
    """
    if any(ch in interpreter for ch in '"\\\n'):
        raise ValueError(f"{interpreter!r} can't be written in a profile")
    return _PROFILE.format(interpreter=f'"{interpreter}"' if " " in interpreter else interpreter)


# What lets a process make namespaces that runs behind somebody's seccomp filter.
FILTERED = (
    "in a container, --security-opt seccomp=deploy/seccomp.json, of nsbox's source (docs/howto/containers-and-ci.md); "
    "in a sandbox of nsbox, nested=True in its policy"
)


def no_core(host: Host) -> Reason:
    """Return the reason where the C core can't be used: it was built for another kind of machine, or not installed."""
    if host.system == "Linux" and host.machine in ("x86_64", "aarch64"):
        return Reason(host.core_problem, "pip install --force-reinstall nsbox, with the Python that runs it")
    here = " on ".join(filter(None, (host.system, host.machine)))
    return Reason(host.core_problem, f"use Linux or macOS, on x86_64 or aarch64; this is {here}")


def refused_calls(calls: tuple[tuple[str, int], ...]) -> Reason:
    """Return the reason if a seccomp filter refuses calls that every sandbox needs.

    calls: pairs of a name and an errno, below 0 if the filter kills.
    """
    how: dict[int, list[str]] = {}
    for name, error in calls:
        how.setdefault(error, []).append(f"{name}(2)")
    groups = (
        f"{', '.join(names)} ({'it kills' if error < 0 else errno.errorcode.get(error, error)})"
        for error, names in how.items()
    )
    return Reason(
        f"a seccomp filter of this process refuses {' and '.join(groups)}",
        f"allow them in the filter: in a service of systemd, no SystemCallFilter= without @mount; {FILTERED}",
    )


def refused_userns(number: int, host: Host, *, is_uid_map: bool = False) -> Reason:
    """Return why a user namespace, or a step that needs one, failed on this host.

    number: the errno.
    is_uid_map: whether writing the uid map failed.
    """
    if number == errno.ENOSPC:
        limit = host.max_user_namespaces
        what = "user.max_user_namespaces is 0" if limit == 0 else "the limit of namespaces is reached"
        return Reason(what, "raise user.max_user_namespaces and similar limits: sysctl user.max_user_namespaces=15000")
    if number == errno.ENOSYS or number == errno.EINVAL:
        return Reason("this kernel has no user namespaces", "a kernel with CONFIG_USER_NS")
    if host.is_chrooted:
        return Reason(
            "in a chroot the kernel refuses user namespaces (user_namespaces(7))", "pivot_root, or a container"
        )
    if host.unprivileged_userns is False and not host.can_set_ids:
        return Reason("kernel.unprivileged_userns_clone is 0", "sysctl kernel.unprivileged_userns_clone=1")
    if host.apparmor_restricts_userns and host.euid != 0:
        return Reason(
            "AppArmor forbids unprivileged user namespaces (Ubuntu 23.10 and later)",
            "a profile with 'userns,' for this interpreter (nsbox doctor --apparmor-profile prints one), or sysctl "
            "kernel.apparmor_restrict_unprivileged_userns=0",
        )
    if host.label:
        return Reason(
            f"this process is confined as {host.label!r}, which can forbid user namespaces or what they are for",
            "a profile that allows userns, mount, pivot_root and capabilities inside; in a container, "
            "--security-opt apparmor=unconfined (label=disable for SELinux)",
        )
    if is_uid_map and number == errno.EACCES:
        return Reason(
            "this process isn't dumpable (prctl(2)), so it can't write the maps of its children",
            "PR_SET_DUMPABLE; to be non-dumpable and join a pid namespace, call nsbox.probe() first",
        )
    if is_uid_map and host.euid == 0:
        return Reason("uid 0 can only be mapped with CAP_SETFCAP (Linux 5.12)", "in a sandbox, run as another uid")
    if host.is_filtered:
        return Reason(
            "this process runs behind a seccomp filter, which refuses user namespaces",
            FILTERED,
        )
    return Reason("user namespaces are refused here, for a reason that nsbox can't see")
