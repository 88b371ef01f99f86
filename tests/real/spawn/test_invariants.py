"""What a spawn must not change in the caller, whose memory its children share until they execute; and what must not grow."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import resource
import signal
import struct
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing import leftovers
from nsbox_testing.running import in_fork

import nsbox
from nsbox import Policy

_libc = ctypes.CDLL(None, use_errno=True)
_NR_RT_SIGACTION = {"x86_64": 13, "aarch64": 134}
PRCTLS = {
    "dumpable": 3,
    "keepcaps": 7,
    "timing": 13,
    "name": 16,
    "seccomp": 21,
    "securebits": 27,
    "timerslack": 30,
    "subreaper": 37,
    "nnp": 39,
    "thp": 42,
}


def handlers() -> dict[int, bytes]:
    """Return each signal's disposition as the kernel has it: handler address, flags, restorer, mask."""
    number = _NR_RT_SIGACTION[os.uname().machine]
    found = {}
    for sig in range(1, 65):
        if sig in (signal.SIGALRM, 32, 33):  # pytest-timeout's; the C library's, set when its first thread starts
            continue
        action = ctypes.create_string_buffer(32)
        if _libc.syscall(number, sig, None, action, 8) == 0:
            found[sig] = action.raw
    return found


def pdeathsig() -> int:
    value = ctypes.c_int(-1)
    _libc.prctl(2, ctypes.byref(value), 0, 0, 0)
    return value.value


def state() -> dict[str, Any]:
    """Return all of this process and thread that a spawn could change."""
    facts = leftovers.status("thread-self")
    for name in list(facts):
        if name.startswith(
            ("Vm", "Rss", "voluntary", "nonvoluntary", "HugetlbPages", "State", "SigQ", "Threads", "SigCgt", "FDSize")
        ):
            del facts[name]
    found: dict[str, Any] = {f"status {name}": value for name, value in facts.items()}
    found["handlers"] = handlers()
    found["pdeathsig"] = pdeathsig()
    for name, number in PRCTLS.items():
        if name != "name":
            found[f"prctl {name}"] = _libc.prctl(number, 0, 0, 0, 0)
    found["comm"] = Path("/proc/thread-self/comm").read_text()
    found["namespaces"] = {n: os.readlink(f"/proc/thread-self/ns/{n}") for n in os.listdir("/proc/thread-self/ns")}
    found["limits"] = {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")}
    found["cwd"], found["root"] = os.getcwd(), os.readlink("/proc/self/root")
    found["ids"] = (
        os.getresuid(),
        os.getresgid(),
        os.getgroups(),
        os.getsid(0),
        os.getpgid(0),
        os.getpid(),
        os.getppid(),
    )
    found["environ"] = dict(os.environ)
    found["c environ"] = sorted(c_environ())
    found["priority"] = (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), sorted(os.sched_getaffinity(0)))
    found["oom"] = Path("/proc/self/oom_score_adj").read_text()
    found["mounts"] = Path("/proc/self/mountinfo").read_text()
    found["id maps"] = Path("/proc/self/uid_map").read_text() + Path("/proc/self/setgroups").read_text()
    found["argv"] = Path("/proc/self/cmdline").read_bytes()
    return found


def c_environ() -> list[bytes]:
    pointer = ctypes.POINTER(ctypes.c_char_p).in_dll(_libc, "environ")
    found = []
    while pointer[len(found)] is not None:
        found.append(pointer[len(found)])
    return found


def kinds(workspace: Path) -> list[Callable[[], Any]]:
    """Return spawns of every kind, failing ones too."""
    (workspace / "deny").mkdir(exist_ok=True)
    policy = Policy.workspace(workspace, deny=[workspace / "deny"], hostname="box", limits=nsbox.Limits(open_files=100))
    other = Policy.workspace(workspace, uid=1234, gid=1234)
    broken = Policy.layers(nsbox.RoBind("/", "/"), nsbox.Bind("/no/such", "/mnt"))

    def failing(**options: Any) -> None:
        with pytest.raises(OSError):
            nsbox.run(**({"args": ["true"], "policy": policy} | options))

    found: list[Callable[[], Any]] = [
        lambda: nsbox.run(["true"], policy=policy, check=True),
        lambda: nsbox.run(["cat"], input=b"x", stdout=subprocess.PIPE, policy=other, check=True),
        lambda: nsbox.run(["true"], policy=Policy.host(), umask=0o077, start_new_session=True, check=True),
        lambda: nsbox.run(["true"], policy=policy.with_(network="host"), env={}, executable="/bin/true", check=True),
        lambda: failing(args=["/no/such"]),
        lambda: failing(cwd="/no/such"),
        lambda: failing(policy=broken),
    ]
    if os.geteuid() == 0:
        found.append(
            lambda: nsbox.run(["true"], policy=Policy.host(uid=1234, gid=1234), cwd="/", extra_groups=[7], check=True)
        )
    return found


def test_nothing_of_the_caller_changes(workspace: Path) -> None:
    """200 spawns of all kinds later, everything about the process and its thread is what it was."""

    def run() -> list[str]:
        signal.signal(signal.SIGUSR1, lambda *_: None)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        os.umask(0o037)
        those = kinds(workspace)
        for start in those:
            start()
        before = state()
        for number in range(200):
            those[number % len(those)]()
        after = state()
        return [f"{name}: {before[name]} became {after[name]}" for name in before if before[name] != after[name]]

    assert in_fork(run) == []


def test_nothing_of_a_thread_changes(workspace: Path) -> None:
    """The same in a thread that isn't the main one, with a signal mask of its own, and for the main one meanwhile."""

    def run() -> list[str]:
        those = kinds(workspace)
        differences: list[str] = []

        def work() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGTERM, signal.SIGRTMIN})
            those[0]()
            before = state()
            for number in range(40):
                those[number % len(those)]()
            after = state()
            differences.extend(name for name in before if before[name] != after[name])

        main = state()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        after = state()
        return differences + [f"main: {name}" for name in main if main[name] != after[name]]

    assert in_fork(run) == []


def test_memory_is_left_alone(workspace: Path) -> None:
    """Patterns in the heap, on the stack of another thread and in mapped memory are intact after 200 spawns by four threads."""
    import hashlib
    import mmap
    import random

    those = kinds(workspace)
    data = random.Random(1).randbytes(8 << 20)
    digest = hashlib.sha256(data).digest()
    held = bytearray(data)
    mapped = mmap.mmap(-1, len(data))
    mapped[:] = data
    small = [data[i : i + 40] for i in range(0, 4 << 20, 256)]
    failures: list[str] = []

    def work(offset: int) -> None:
        for number in range(50):
            try:
                those[(number + offset) % len(those)]()
            except Exception as error:
                failures.append(repr(error))

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert hashlib.sha256(held).digest() == digest  # meanwhile as well
    for thread in threads:
        thread.join()
    assert not failures
    assert hashlib.sha256(held).digest() == hashlib.sha256(mapped).digest() == digest
    assert all(piece == data[i : i + 40] for i, piece in zip(range(0, 4 << 20, 256), small, strict=True))
    mapped.close()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_memory_and_descriptors_stay_flat(workspace: Path) -> None:
    """1000 spawns later the process has no more descriptors, and no more memory than a few hundred kB."""

    def run() -> list[int]:
        policy = Policy.workspace(workspace)
        for start in kinds(workspace):
            start()
        for _ in range(150):
            nsbox.run(["true"], policy=policy)
        gc.collect()
        memory, fds, maps = (
            resident(),
            len(os.listdir("/proc/self/fd")),
            len(Path("/proc/self/maps").read_text().splitlines()),
        )
        for _ in range(1000):
            nsbox.run(["true"], policy=policy)
        gc.collect()
        now = len(Path("/proc/self/maps").read_text().splitlines())
        return [resident() - memory, len(os.listdir("/proc/self/fd")) - fds, now - maps]

    memory, fds, maps = in_fork(run)
    assert memory < 1 << 20
    assert fds <= 0  # one less, if pid 1 of the machine has been found to reap meanwhile
    assert maps <= 4


def test_policies_do_not_pile_up(workspace: Path) -> None:
    """200 different policies later no descriptor is open and memory has grown by what the cache of plans holds, no more."""

    def run() -> list[int]:
        def start(number: int) -> None:
            nsbox.run(["true"], policy=Policy.workspace(workspace, env={"N": str(number)}))

        for number in range(100):
            start(number)
        gc.collect()
        memory, fds = resident(), len(os.listdir("/proc/self/fd"))
        for number in range(100, 300):
            start(number)
        gc.collect()
        return [resident() - memory, len(os.listdir("/proc/self/fd")) - fds]

    memory, fds = in_fork(run)
    assert memory < 2 << 20
    assert fds <= 0


def test_large_caller(workspace: Path) -> None:
    """A caller of 1 GiB spawns without copying itself: no page more is used, and the command's memory is its own."""
    code = "print(int(open('/proc/self/statm').read().split()[1]) * 4096 < 64 << 20)"
    ballast = bytearray(1 << 30)
    view = memoryview(ballast)
    for i in range(0, len(ballast), 4096):
        view[i] = 1
    before = resident()
    import sys

    done = nsbox.run(
        [sys.executable, "-I", "-S", "-c", code], policy=Policy.workspace(workspace), stdout=subprocess.PIPE
    )
    assert done.stdout == b"True\n"
    assert abs(resident() - before) < 16 << 20
    view.release()
    del ballast


def test_errno_of_the_caller(policy: Policy) -> None:
    """The C library's errno of the calling thread isn't touched: the children have no C library."""
    nsbox.run(["true"], policy=policy)
    ctypes.set_errno(errno.EDOM)
    pidfd = os.pidfd_open(os.getpid())
    os.close(pidfd)
    assert ctypes.get_errno() == errno.EDOM


def test_stdio_buffers_are_not_written_twice(workspace: Path) -> None:
    """Unflushed output of the caller is written once, by the caller."""

    def run() -> str:
        out = workspace / "out"
        file = out.open("w")
        file.write("buffered")
        for start in kinds(workspace):
            start()
        before = out.read_text()
        file.close()
        return before + "|" + out.read_text()

    assert in_fork(run) == "|buffered"


def test_atexit_and_fork_hooks_do_not_run(workspace: Path) -> None:
    """No os.register_at_fork hook and no atexit function runs for a spawn."""

    def run() -> list[str]:
        ran: list[str] = []
        os.register_at_fork(before=lambda: ran.append("before"), after_in_parent=lambda: ran.append("after"))
        for start in kinds(workspace):
            start()
        return ran

    assert in_fork(run) == []


def test_image_of_pid_1_is_static_and_small() -> None:
    """Pid 1's program is an ELF file of a few kB without an interpreter or a writable and executable segment."""
    from nsbox._core import linux

    image = linux.init_image()
    assert image[:4] == b"\x7fELF"
    assert len(image) < 16384
    offset, size, count = struct.unpack_from("<Q", image, 32)[0], *struct.unpack_from("<HH", image, 54)
    segments = [struct.unpack_from("<II", image, offset + i * size) for i in range(count)]
    assert not any(kind == 3 for kind, _ in segments)  # PT_INTERP
    assert not any(kind == 1 and flags & 3 == 3 for kind, flags in segments)
