"""What is mounted in this process's mount namespace."""

from __future__ import annotations

import os
from collections.abc import Iterator

from nsbox._base.paths import is_below


def mounts() -> Iterator[tuple[str, str, list[str]]]:
    """Yield for each mount its path, the type of its file system, and that system's options.

    See proc_pid_mountinfo(5).
    """
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            fields, _, system = line.rstrip(b"\n").partition(b" - ")
            point = fields.split(b" ")[4].decode("unicode_escape").encode("latin-1")  # a blank is \040
            kind, _, options = (os.fsdecode(part) for part in system.split(b" "))
            yield os.fsdecode(point), kind, options.split(",")


def automounts() -> tuple[str, ...]:
    """Return where file systems are mounted at their first use, and directories that contain such places."""
    try:
        mounted = [point for point, kind, _ in mounts() if kind == "autofs" and not is_below(point, "/proc")]
    except OSError:
        return ()
    return tuple(dict.fromkeys(mounted))
