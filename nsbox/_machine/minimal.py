"""What every look at the machine needs: files of /proc, and what is in them."""

from __future__ import annotations

import os

from nsbox._base.checks import check_answer
from nsbox._plan.host import IdRange

CAP_SETGID, CAP_SETUID = 6, 7


def owns_settings() -> bool | None:
    """Say if this process has the kernel's uid 0, which owns the kernel's settings; None if that can't be found out."""
    try:
        return os.stat("/proc/sys/kernel/core_pattern").st_uid == os.geteuid()
    except OSError as error:
        check_answer(error)
        return None


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
        check_answer(error)
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
