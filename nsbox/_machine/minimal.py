"""Asks the machine who this process is: the part of a Host that every program needs, even a short one."""

from __future__ import annotations

import errno

from nsbox._base.lean_os import os
from nsbox._core import abi
from nsbox._plan.host import Host, IdRange

CAP_SETGID, CAP_SETUID = 6, 7


def identity() -> Host:
    """Return the part of probe() that says who this process is. That is enough for Policy.layers(), and fast."""
    status = read("/proc/self/status") or ""
    caps = _mask(status, "CapEff")
    system = os.uname()
    return Host(
        system=system.sysname,
        kernel=kernel_version(system.release),
        machine=system.machine,
        core_problem=abi.problem,
        euid=os.geteuid(),
        egid=os.getegid(),
        can_set_ids=bool(caps >> CAP_SETUID & 1 and caps >> CAP_SETGID & 1),
        capabilities=caps,
        inheritable=_mask(status, "CapInh"),
        bounding=_mask(status, "CapBnd"),
        last_capability=number("/proc/sys/kernel/cap_last_cap") or 40,
        uid_ranges=id_ranges("/proc/self/uid_map"),
        gid_ranges=id_ranges("/proc/self/gid_map"),
        settings_writable=os.access("/proc/sys/kernel/core_pattern", os.W_OK, effective_ids=True),
        owns_settings=owns_settings(),
        landlock_abi=0,
    )


def owns_settings() -> bool | None:
    """Say if this process has the kernel's uid 0, which owns the kernel's settings; None if that can't be found out."""
    try:
        return os.stat("/proc/sys/kernel/core_pattern").st_uid == os.geteuid()
    except OSError:
        return None


def _mask(status: str, name: str) -> int:
    return int(status.partition(f"\n{name}:")[2].partition("\n")[0] or "0", 16)


def check_scarcity(error: OSError) -> None:
    """Raise an error that is about this process, not the machine: a Host made without descriptors knows no secrets."""
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        raise error


def read(path: str) -> str | None:
    """Return the text of a file; None if it can't be read. Raises OSError if descriptors or memory are used up."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = b""
            while chunk := os.read(fd, 1 << 16):
                data += chunk
        finally:
            os.close(fd)
    except OSError as error:
        check_scarcity(error)
        return None
    return data.decode("utf-8", "surrogateescape")


def number(path: str) -> int | None:
    """Return the number in a file; None if it has none."""
    text = read(path)
    return int(text) if text is not None and text.strip().lstrip("-").isdigit() else None


def kernel_version(release: str) -> tuple[int, int]:
    """Return the first two numbers of a release as uname(2) has it."""
    parts = release.split(".")
    return int(parts[0]), int("".join(ch for ch in parts[1] if ch.isdigit()) or 0)


def id_ranges(path: str) -> tuple[IdRange, ...]:
    """Return the rows of an id map (user_namespaces(7)). Without the file all are mapped."""
    return tuple(IdRange(*map(int, line.split())) for line in (read(path) or "0 0 4294967295").splitlines())
