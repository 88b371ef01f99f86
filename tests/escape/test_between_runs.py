"""What one command leaves for the next, and what it can do to outlive itself, to its own filter or to its limits."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing.running import python

import nsbox
from nsbox import Policy

# Makes, or looks for, an object of each kind that could be shared; prints the kinds that are there already.
OBJECTS = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
key = int(sys.argv[1])
found = []
for name, get in (("shm", lambda f: libc.shmget(key, 4096, f)), ("msg", lambda f: libc.msgget(key, f)), ("sem", lambda f: libc.semget(key, 1, f))):
    if get(0) >= 0: found.append(name)
    else: get(0o1000 | 0o600)  # IPC_CREAT
queue = b"/nsbox-test-%d" % key
librt = ctypes.CDLL("librt.so.1", use_errno=True)
if librt.mq_open(queue, os.O_RDWR) >= 0: found.append("mqueue")
else: librt.mq_open(queue, os.O_RDWR | os.O_CREAT, 0o600, None)
for place in ("/dev/shm", "/tmp"):
    path = f"{place}/nsbox-test-{key}"
    if os.path.exists(path): found.append(place)
    else: open(path, "w").close()
print(json.dumps(found))
"""

REMOVE = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
key = int(sys.argv[1])
libc.shmctl(libc.shmget(key, 0, 0), 0, None); libc.msgctl(libc.msgget(key, 0), 0, None); libc.semctl(libc.semget(key, 0, 0), 0, 0)
ctypes.CDLL("librt.so.1").mq_unlink(b"/nsbox-test-%d" % key)
for place in ("/dev/shm", "/tmp"):
    try: os.unlink(f"{place}/nsbox-test-{key}")
    except OSError: pass
"""


def looked(run: Callable[..., Any], key: int, **options: Any) -> list[str]:
    """Run it twice: what the second run finds of the first."""
    done = None
    for _ in range(2):
        done = run(python(OBJECTS, str(key)), capture_output=True, text=True, check=True, **options)
    assert done is not None
    return list(json.loads(done.stdout))


def test_nothing_is_left_for_the_next(policy: Policy) -> None:
    """Shared memory, queues, semaphores and temporary files of a command are gone for the next one; 53."""
    key = 0x6E730000 + os.getpid() % 0xFFFF
    assert looked(nsbox.run, key, policy=policy) == []


def test_control_plain_commands_leave_it() -> None:
    """Control: without a sandbox the second finds all that the first has made."""
    key = 0x6E740000 + os.getpid() % 0xFFFF
    try:
        found = looked(subprocess.run, key)
    finally:
        subprocess.run(python(REMOVE, str(key)), check=True)
    assert {"shm", "msg", "sem", "/tmp"} <= set(found)


def test_a_subreaper_keeps_nothing_alive(policy: Policy, workspace: Path) -> None:
    """A daemon of a command that made itself a subreaper, ignoring every signal, ends with the sandbox; 24."""
    script = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
r, w = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(1, 65):
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        import fcntl
        lock = open("lock", "w"); fcntl.lockf(lock, fcntl.LOCK_EX)
        os.write(w, b"x")
        while True: signal.pause()
    os._exit(0)
os.read(r, 1)
"""
    nsbox.run([sys.executable, "-c", script], policy=policy, check=True)
    with open(workspace / "lock", "w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody holds it


def test_no_cgroup_files(attempt: Callable[..., Any], policy: Policy) -> None:
    """No cgroup file system is there, none can be mounted, and the own cgroup looks like the root; 64, CVE-2022-0492."""
    code = """
os.mkdir("/tmp/c")
report({
    "mounted": [line.split(" - ")[1].split()[0] for line in open("/proc/self/mountinfo") if " - cgroup" in line],
    "mount": [call("mount", "none", "/tmp/c", kind, 0, 0) for kind in ("cgroup2", "cgroup")],
    "fsopen": syscall(430, "cgroup2", 0),
    "paths": sorted({line.rstrip().split(":")[2] for line in open("/proc/self/cgroup")}),
    "sys": os.path.exists("/sys/fs/cgroup"),
})
"""
    found = attempt(code)
    assert found["mounted"] == [] and not found["sys"]
    assert all(number in (errno.EPERM, errno.EBUSY) for number in (*found["mount"], found["fsopen"])), found
    assert set(found["paths"]) <= {"/"}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of x86_64")
def test_a_filter_with_a_listener_of_its_own(attempt: Callable[..., Any], policy: Policy) -> None:
    """A command may put a filter of its own over ours, with itself as listener: what ours refuses stays refused; 38."""
    keyctl = struct.pack("=" + "HBBI" * 4, 0x20, 0, 0, 0, 0x15, 0, 1, 250, 6, 0, 0, 0x7FC00000, 6, 0, 0, 0x7FFF0000)
    code = f"""
import threading
code = ctypes.create_string_buffer({keyctl!r})
program = struct.pack("=HxxxxxxQ", 4, ctypes.addressof(code))
listener = libc.syscall(317, 1, 8, ctypes.c_char_p(program))  # SECCOMP_FILTER_FLAG_NEW_LISTENER
def serve():  # "continue": let the kernel do it
    import fcntl
    request = bytearray(80)
    try: fcntl.ioctl(listener, 0xC0502100, request)
    except OSError: return
    fcntl.ioctl(listener, 0xC0182101, bytearray(request[:8] + struct.pack("=qiI", 0, 0, 1)))
threading.Thread(target=serve, daemon=True).start()
report([listener >= 0, syscall(250, 0, -3, 0)])
"""
    works, answer = attempt(code)
    assert works
    assert answer == errno.ENOSYS
