"""What is mounted in this process's mount namespace."""

from __future__ import annotations

import os
from _collections_abc import Iterator


def mounts() -> Iterator[tuple[str, str, list[str]]]:
    """Yield where each mount is, the type of its file system, and the options of that (proc_pid_mountinfo(5))."""
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            fields, _, system = line.rstrip(b"\n").partition(b" - ")
            point = fields.split(b" ")[4].decode("unicode_escape").encode("latin-1")  # a blank is \040
            kind, _, options = (os.fsdecode(part) for part in system.split(b" "))
            yield os.fsdecode(point), kind, options.split(",")
