"""What is left behind: a picture of this process and of the machine before a test, and the complaints after it.

A machine may run other tests at the same time, so a process counts as ours only if it can be told to be: it descends
from us, it is an orphan with our command line or mark, or it is pid 1 of a pid namespace whose lifeline leads to us.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

MARK = f"NSBOX_TEST_MARK={os.getpid()}.{time.monotonic_ns()}"
"""In the environment of everything that a test starts without an environment of its own."""

PATIENCE = 10.0  # seconds until a process that is about to die counts as left behind
_PR_GET_DUMPABLE = 3
_libc = ctypes.CDLL(None, use_errno=True)


def dumpable() -> int:
    """Return this process's dumpable flag: 1 for an ordinary process."""
    return int(_libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0))


def fds() -> dict[int, str]:
    """Return the open descriptors of this process, and what they are."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return found


def kept_fd() -> int:
    """Return the one descriptor that nsbox may keep: of an ended init, until it is known whether pid 1 reaps here."""
    from nsbox import _reap

    return getattr(_reap.orphans, "_watched", -1)


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


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


def _depth(pid: int | str) -> int:
    return len(status(pid).get("NSpid", "").split())


def _lifeline(pid: int) -> int | None:
    """Return the pid that this init watches, -1 for one that is gone, None where it can't be seen."""
    try:
        for line in _read(f"/proc/{pid}/fdinfo/0").splitlines():
            if line.startswith("Pid:"):
                return int(line.split()[1])
    except (PermissionError, FileNotFoundError, ProcessLookupError):
        return None
    return None


def _is_marked(pid: int) -> bool:
    try:
        if MARK in _read(f"/proc/{pid}/environ").split("\0"):
            return True
        return _read(f"/proc/{pid}/cmdline") == _read("/proc/self/cmdline")  # a fork of ours, or what shares its memory
    except (PermissionError, FileNotFoundError, ProcessLookupError):
        return False


def _descends(process: Process, table: dict[int, Process], ancestor: int) -> bool:
    seen = set()
    pid = process.ppid
    while pid in table and pid not in seen:
        if pid == ancestor:
            return True
        seen.add(pid)
        pid = table[pid].ppid
    return False


def _is_ours(process: Process, table: dict[int, Process], own_depth: int) -> bool:
    me = os.getpid()
    if _descends(process, table, me):
        return True
    if process.state in "ZX":
        return False  # an orphan's zombie is its new parent's to reap
    facts = status(process.pid)
    inner = facts.get("NSpid", "").split()
    if len(inner) > own_depth:
        if inner[-1] != "1":
            # It dies with its init. Without one (none made yet), a parent that lives elsewhere speaks for it.
            return process.ppid <= 1 and _is_marked(process.pid)
        watched = _lifeline(process.pid)
        if watched is not None:
            return watched in (me, -1) or (watched in table and _descends(table[watched], table, me))
        return facts.get("Uid", "0").split()[0] == str(os.getuid()) and (process.ppid <= 1 or process.ppid == me)
    return process.ppid <= 1 and _is_marked(process.pid)


def survivors(since: int, patience: float = PATIENCE) -> list[str]:
    """Return what is alive of the processes that were started since then and are ours, once the dying have died.

    Children of this process must have been reaped, so its zombies count; they aren't waited for.
    """
    end = time.monotonic() + patience
    while True:
        table = processes()
        depth = _depth("self")
        me = os.getpid()
        left = [p for p in table.values() if p.started >= since and p.pid != me and _is_ours(p, table, depth)]
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
    mounts: str
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
        mounts=_read("/proc/self/mountinfo"),
        state={name: facts.get(name, "") for name in _STATE} | {"SigCgt": _caught(facts)},
        dumpable=dumpable(),
        cwd=os.getcwd(),
        root=frozenset(os.listdir("/")),
        temporary=frozenset(os.listdir(temporary)),
    )


def _caught(facts: dict[str, str]) -> str:
    """Return the handled signals but SIGALRM, pytest-timeout's, and 32 and 33, the C library's for threads."""
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
    old, new = before.mounts.splitlines(), after.mounts.splitlines()
    found += [f"mount: {line}" for line in new if line not in old] + [
        f"unmounted: {line}" for line in old if line not in new
    ]
    found += [
        f"{name}: {before.state[name]} became {after.state[name]}"
        for name in _STATE
        if after.state[name] != before.state[name]
    ]
    for name in ("dumpable", "cwd"):
        if getattr(after, name) != getattr(before, name):
            found.append(f"{name}: {getattr(before, name)} became {getattr(after, name)}")
    found += [f"temporary file: {name}" for name in after.temporary - before.temporary]
    found += [f"in /: {name}" for name in after.root ^ before.root]
    return found


@contextmanager
def nothing_left(temporary: str) -> Iterator[None]:
    """Assert that what runs in the block leaves nothing behind."""
    before = take(temporary)
    yield
    found = complaints(before, temporary)
    assert not found, "left behind: " + "; ".join(found)


def kill_and_reap(pid: int) -> None:
    """End a child that a test has forked."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
