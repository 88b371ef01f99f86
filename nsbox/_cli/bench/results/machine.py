"""The machine that was measured, for the head of the report, and how much memory it has available."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from dataclasses import dataclass


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _field(text: str, name: str) -> str:
    """Return the value of the first line "name: value"."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _mib(text: str) -> int | None:
    """Return the MiB of a size as /proc writes it, such as "1234 kB"."""
    return int(text.split()[0]) >> 10 if text else None


def resident_mib() -> int:
    """Return this process's resident size; 0 if it isn't known."""
    return _mib(_field(_read("/proc/self/status"), "VmRSS")) or 0


def available_mib() -> int | None:
    """Return how much memory is available, by the machine's and the cgroup's account; None if it isn't known."""
    sizes = [_mib(_field(_read("/proc/meminfo"), "MemAvailable"))]
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        most, now = _read(f"/sys/fs/cgroup/{limit}").strip(), _read(f"/sys/fs/cgroup/{used}").strip()
        if most.isdigit() and now.isdigit():
            sizes.append((int(most) - int(now)) >> 20)
    return min((size for size in sizes if size is not None), default=None)


def _bwrap_version() -> str:
    program = shutil.which("bwrap")
    if program is None:
        return "absent"
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return answer.stdout.strip().removeprefix("bubblewrap ") or "unknown"


@dataclass(frozen=True, slots=True)
class Machine:
    """What the figures depend on. load: the machine's, over the minute before the start."""

    nsbox: str
    bwrap: str
    python: str
    kernel: str
    architecture: str
    cpus: int
    cpu: str
    uid: int
    load: float
    time: str

    def __str__(self) -> str:
        cpus = f"{self.cpus} CPU{'' if self.cpus == 1 else 's'}"
        return (
            f"nsbox {self.nsbox}, bwrap {self.bwrap}, Python {self.python}, {self.kernel} ({self.architecture}),\n"
            f"{cpus}{f' ({self.cpu})' if self.cpu else ''}, uid {self.uid}, load {self.load:.2f}, {self.time}"
        )


def look() -> Machine:
    """Return this machine."""
    import nsbox

    return Machine(
        nsbox=nsbox.__version__,
        bwrap=_bwrap_version(),
        python=platform.python_version(),
        kernel=f"{platform.system()} {platform.release()}",
        architecture=platform.machine(),
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        cpu=_field(_read("/proc/cpuinfo"), "model name"),
        uid=os.geteuid(),
        load=os.getloadavg()[0],
        time=time.strftime("%Y-%m-%d %H:%M:%S%z"),
    )
