"""What is left behind: a picture of this process and of the machine before a test, and the complaints after it.

A machine does other things at the same time, such as other runs of these tests. So only what is known to be ours
counts. A process is ours if it descends from this one, or has our mark. The mark is a resource limit: every process
inherits it, and none changes it. Any user may read it of any process, even of one that isn't dumpable, is an orphan,
has an empty environment, or is in a pid namespace. For mounts, a run has a mount namespace of its own, if it may.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import re
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_mark = 0
"""Our soft RLIMIT_RTTIME: microseconds of processor time without a pause under a real-time policy, over 17 years."""

PATIENCE = 10.0  # seconds until a process that is about to die counts as left behind
_PR_GET_DUMPABLE = 3
_SOURCES = (".py", ".c", ".h")
_CLONE_NEWNS = 0x00020000
_MS_REC, _MS_PRIVATE, _MS_SHARED = 1 << 14, 1 << 18, 1 << 20
_libc = ctypes.CDLL(None, use_errno=True)


def dumpable() -> int:
    """Return this process's dumpable flag: 1 for an ordinary process."""
    return int(_libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0))


def fds() -> dict[int, str]:
    """Return the open descriptors of this process, and what they are, without those that last as long as a policy."""
    mappings = kept_namespaces()
    found = {}
    for name in os.listdir("/proc/self/fd"):
        if int(name) in mappings:
            continue
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return found


def kept_namespaces() -> set[int]:
    """Return the descriptors of user namespaces that idmapped mounts are made by, for policies that may be used again."""
    from nsbox._core import linux

    return {fd for fd, _ in linux._mappings.values()}  # with those that a forgotten exception's frames still have


def kept_fd() -> int:
    """Return the one descriptor that nsbox may keep: of an ended init, until it is known whether pid 1 reaps here."""
    from nsbox._core import orphans

    return getattr(orphans.orphans, "_watched", -1)


def _read(path: str) -> str:
    """Return what a file of /proc says. Each test reads hundreds of them, and a text file takes more than twice as long."""
    parts = []
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while part := os.read(fd, 1 << 16):
            parts.append(part)
    finally:
        os.close(fd)
    return b"".join(parts).decode(errors="replace")


def boot_ticks() -> int:
    """Return the time since boot in the unit of process start times."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


@dataclass
class Process:
    """One line of the process table."""

    pid: int
    name: str
    state: str
    ppid: int
    started: int


def processes() -> dict[int, Process]:
    """Return all processes of the machine, zombies included."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = _read(f"/proc/{entry}/stat")
        except (FileNotFoundError, ProcessLookupError):
            continue
        name, rest = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :].split()
        found[int(entry)] = Process(int(entry), name, rest[0], int(rest[1]), int(rest[19]))
    return found


def status(pid: int | str) -> dict[str, str]:
    """Return /proc/PID/status as a dictionary; empty if there is no such process."""
    try:
        lines = _read(f"/proc/{pid}/status").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def mark() -> None:
    """Mark this process, and so all that it will start."""
    global _mark
    _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    most = 1 << 50 if hard == resource.RLIM_INFINITY else hard
    _mark = most - time.monotonic_ns() % max(1, most // 2)
    resource.setrlimit(resource.RLIMIT_RTTIME, (_mark, hard))


def is_marked(pid: int) -> bool:
    """Say if a process is this one or has been started by it, directly or not."""
    assert _mark
    try:
        limits = _read(f"/proc/{pid}/limits")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return f" {_mark} " in limits


def _descends(process: Process, table: dict[int, Process], ancestor: int) -> bool:
    seen = set()
    pid = process.ppid
    while pid in table and pid not in seen:
        if pid == ancestor:
            return True
        seen.add(pid)
        pid = table[pid].ppid
    return False


def _is_ours(process: Process, table: dict[int, Process]) -> bool:
    if _descends(process, table, os.getpid()):
        return True
    # An orphan's zombie is its new parent's to reap.
    return process.state not in "ZX" and is_marked(process.pid)


def survivors(since: int, patience: float = PATIENCE) -> list[str]:
    """Return those of our processes that were started since then and are still there, after waiting for them to end.

    Children of this process must have been reaped, so its zombies count. They aren't waited for.
    """
    end = time.monotonic() + patience
    while True:
        table = processes()
        me = os.getpid()
        left = [p for p in table.values() if p.started >= since and p.pid != me and _is_ours(p, table)]
        dying = [p for p in left if p.state not in "ZX"]
        if not dying or not _await_end(dying, end):
            return [f"{p.name} (pid {p.pid}, state {p.state}, parent {p.ppid})" for p in left]


def _await_end(those: list[Process], end: float) -> bool:
    """Wait until one of the processes ends; False when there was nothing to wait for, or no time left."""
    poller = select.poll()
    held = []
    try:
        for process in those:
            try:
                held.append(os.pidfd_open(process.pid))
            except (ProcessLookupError, OSError):
                return True  # it has gone meanwhile: look again
            poller.register(held[-1], select.POLLIN)
        return bool(poller.poll(max(0.0, end - time.monotonic()) * 1000))
    finally:
        for fd in held:
            os.close(fd)


@dataclass
class Picture:
    """This process and its surroundings at one moment."""

    since: int
    fds: dict[int, str]
    children: set[int]
    mounts: tuple[str, ...]
    state: dict[str, str]
    dumpable: int
    cwd: str
    root: frozenset[str]
    temporary: frozenset[str]


_STATE = ("Umask", "Uid", "Gid", "Groups", "SigBlk", "SigIgn", "SigCgt", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp")


def take(temporary: str) -> Picture:
    """Take a picture; temporary: the directory where temporary files go."""
    facts = status("self")
    return Picture(
        since=boot_ticks(),
        fds=fds(),
        children=set(_children()),
        mounts=tuple(filter(_may_be_ours, _read("/proc/self/mountinfo").splitlines())),
        state={name: facts.get(name, "") for name in _STATE} | {"SigCgt": _caught(facts)},
        dumpable=dumpable(),
        cwd=os.getcwd(),
        root=frozenset(os.listdir("/")),
        temporary=frozenset(os.listdir(temporary)),
    )


def _may_be_ours(mount: str) -> bool:
    """Say if a line of mountinfo may be of this user, who without privileges mounts nothing here except FUSE (mount.fuse3(8))."""
    return os.geteuid() == 0 or f"user_id={os.geteuid()}," in mount


def _caught(facts: dict[str, str]) -> str:
    """Return the handled signals, except SIGALRM (pytest-timeout's) and 32 and 33 (the C library's, for threads)."""
    return hex(int(facts.get("SigCgt", "0"), 16) & ~sum(1 << number - 1 for number in (signal.SIGALRM, 32, 33)))


def _children() -> Iterator[int]:
    for task in os.listdir("/proc/self/task"):
        try:
            yield from map(int, _read(f"/proc/self/task/{task}/children").split())
        except (FileNotFoundError, ProcessLookupError):
            continue


def _new_fds(before: Picture) -> list[str]:
    kept = kept_fd()
    now = fds()
    return [
        f"descriptor {fd}: {what}"
        for fd, what in now.items()
        if before.fds.get(fd) != what and not (fd == kept and "pidfd" in what)
    ] + [
        f"descriptor {fd} has been closed: {what}"
        for fd, what in before.fds.items()
        if fd not in now and "pidfd" not in what
    ]


def complaints(before: Picture, temporary: str) -> list[str]:
    """Return a line for each thing that differs from the picture and must not."""
    found = _new_fds(before)
    if found:
        gc.collect()  # a forgotten Popen or pipe is not a leak of nsbox; its ResourceWarning speaks for itself
        found = _new_fds(before)
    found += [f"child process: {text}" for text in survivors(before.since)]
    after = take(temporary)
    found += [f"child {pid}" for pid in after.children - before.children]
    found += [f"mount: {line}" for line in after.mounts if line not in before.mounts]
    found += [f"unmounted: {line}" for line in before.mounts if line not in after.mounts]
    found += [
        f"{name}: {before.state[name]} became {after.state[name]}"
        for name in _STATE
        if after.state[name] != before.state[name]
    ]
    for name in ("dumpable", "cwd"):
        if getattr(after, name) != getattr(before, name):
            found.append(f"{name}: {getattr(before, name)} became {getattr(after, name)}")
    found += [f"temporary file: {name}" for name in after.temporary - before.temporary]
    found += [f"in /: {name}" for name in after.root ^ before.root if _is_named(f"/{name}")]
    return found


def _is_named(path: str) -> bool:
    """Say if a path stands in a test, as a destination does, or in nsbox's source: one that doesn't belongs to another program."""
    root = Path(__file__).parents[4]
    files = [file for name in ("tests", "nsbox", "csrc") for file in (root / name).rglob("*.[pch]*")]
    return "nsbox" in path or any(
        re.search(rf"{re.escape(path)}\b", f.read_text()) for f in files if f.suffix in _SOURCES
    )


def own_mounts() -> None:
    """Give this process a mount namespace in which nobody else mounts anything, if it may have one.

    The processes that it starts later share it. Mounts propagate in it as they do on most machines. A process that may
    not have such a namespace may not mount anything either.
    """
    if _libc.unshare(_CLONE_NEWNS) != 0:
        return
    for flags in (_MS_PRIVATE, _MS_SHARED):
        failed = _libc.mount(b"none", b"/", None, ctypes.c_ulong(flags | _MS_REC), None)
        if failed and ctypes.get_errno() == errno.EINVAL:
            return  # in a chroot, whose / is no mount: then others' mounts are seen
        assert not failed, os.strerror(ctypes.get_errno())


def _end_relays() -> None:
    """Let go of relays, which otherwise stay for policies that are used again, and see them end."""
    if "nsbox._relay.relay" not in sys.modules:
        return
    from nsbox._core import orphans

    sys.modules["nsbox._relay.relay"]._close_all()
    end = time.monotonic() + PATIENCE
    while orphans.leftovers.pidfds and time.monotonic() < end:
        orphans.leftovers.sweep()
        time.sleep(0.002)


@contextmanager
def nothing_left(temporary: str) -> Iterator[None]:
    """Assert that what runs in the block leaves nothing behind."""
    before = take(temporary)
    yield
    _end_relays()
    found = complaints(before, temporary)
    assert not found, "left behind: " + "; ".join(found)


def kill_and_reap(pid: int) -> None:
    """End a child that a test has forked."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
