"""Every system call that opens a file, asked for what Landlock's rules don't cover, with controls by a plain child.

Access mode 3 asks for neither reading nor writing, so Landlock asks nothing. The descriptor is good for ioctl(2):
FIDEDUPERANGE tells if the file's bytes are those of another.
"""

from __future__ import annotations

import errno
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nsbox
from nsbox import Policy

pytestmark = pytest.mark.skipif(nsbox.probe().landlock_abi < 2, reason="needs Landlock of version 2 or later")
REFUSED = {errno.EPERM, errno.EACCES, errno.ENOSYS}
LACKED = {"attributes", "namespaces", "secrets"}
X86 = platform.machine() == "x86_64"

# report() gets, for each call and each access, an errno: 0 for a descriptor, 9999 where this machine has no such call.
OPENING = """
import mmap
path = sys.argv[1].encode()
X86 = os.uname().machine == "x86_64"
AT_FDCWD = -100 & 0xFFFFFFFFFFFFFFFF
def raw(x86, arm, *args):
    number = x86 if X86 else arm
    if number is None: return 9999
    given = [ctypes.c_char_p(a) if isinstance(a, bytes) else ctypes.c_ulong(a) if isinstance(a, int) else a for a in args]
    fd = libc.syscall(ctypes.c_long(number), *given)
    if fd < 0: return ctypes.get_errno()
    os.close(fd)
    return 0
def handle():
    data, mount = ctypes.create_string_buffer(struct.pack("=I", 128), 136), ctypes.c_int()
    if libc.syscall(ctypes.c_long(303 if X86 else 264), AT, path, data, ctypes.byref(mount), 0x400) < 0: return None
    return data
AT = ctypes.c_ulong(AT_FDCWD)
def by_handle(flags):
    data = handle()
    if data is None: return ctypes.get_errno()
    root = os.open(".", os.O_RDONLY)
    try: return raw(304, 265, root, data, flags)
    finally: os.close(root)
def by_int80(number, *args):
    if not X86: return 9999
    name = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40, prot=7)  # MAP_32BIT
    name.write(path + b"\\0")
    at = ctypes.addressof(ctypes.c_char.from_buffer(name))
    how = at + 2048
    values = [at if a is path else how if a == "how" else a & 0xFFFFFFFF for a in args]
    name.seek(2048); name.write(struct.pack("=QQQ", flags_now, 0, 0))
    code = mmap.mmap(-1, 4096, prot=7)
    # push rbx; mov eax, number; mov ebx, ecx, edx, esi; int 0x80; pop rbx; ret
    moves = [op + struct.pack("=I", v) for op, v in zip((b"\\xbb", b"\\xb9", b"\\xba", b"\\xbe"), [*values, 0, 0, 0, 0])]
    code.write(b"\\x53\\xb8" + struct.pack("=I", number) + b"".join(moves) + b"\\xcd\\x80\\x5b\\xc3")
    fd = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
    if fd < 0: return -fd
    os.close(fd)
    return 0
def by_ring(flags):
    params = ctypes.create_string_buffer(120)
    return raw(425, 425, 1, params)  # without one nothing can be asked of it
found = {}
for name, flags_now in json.loads(sys.argv[2]).items():
    how = struct.pack("=QQQ", flags_now, 0, 0)
    tries = {
        "open": raw(2, None, path, flags_now, 0),
        "openat": raw(257, 56, AT, path, flags_now, 0),
        "openat, high bits": raw(257, 56, AT, path, flags_now | 1 << 40, 0),
        "openat2": raw(437, 437, AT, path, how, 24),
        "open_by_handle_at": by_handle(flags_now),
        "x32 open": raw(0x40000002, None, path, flags_now, 0),
        "x32 openat2": raw(0x40000000 | 437, None, AT, path, how, 24),
        "i386 open": by_int80(5, path, flags_now, 0),
        "i386 openat": by_int80(295, -100, path, flags_now, 0),
        "i386 openat2": by_int80(437, -100, path, "how", 24),
        "io_uring": by_ring(flags_now),
    }
    found |= {f"{name}: {how}": error for how, error in tries.items()}
found["truncate"] = call("truncate", sys.argv[1], 1)
found["creat"] = raw(85, None, path, 0o600)
found["execveat"] = raw(322, 281, AT, path, None, None, 0)
report(found)
"""
BEYOND = '{"mode 3": 3, "mode 3, a path": 2097155, "truncating": 512}'  # O_ACCMODE, with O_PATH, O_TRUNC


@pytest.fixture(params=["default", "off"])
def alone(request: pytest.FixtureRequest, workspace: Path) -> Policy:
    return Policy.workspace(workspace, backend="landlock", degrade=LACKED, seccomp=request.param)


def test_files_outside(attempt: Callable[..., Any], alone: Policy, victim: Path, untouched: None) -> None:
    """Behind Landlock alone no call opens a file of the host for neither reading nor writing, or to empty it."""
    found = attempt(OPENING, str(victim / "secret"), BEYOND, policy=alone)
    assert {k: v for k, v in found.items() if v not in {*REFUSED, 9999}} == {}


@pytest.mark.parametrize("filter", ["default", "off"])
def test_a_descriptor_that_is_passed(
    attempt: Callable[..., Any], workspace: Path, victim: Path, untouched: None, filter: Any
) -> None:
    """With landlock=True a file that is passed for reading is opened so by none of them either."""
    policy = Policy.workspace(workspace, landlock=True, seccomp=filter)
    with open(victim / "secret") as file:
        found = attempt(OPENING, "/proc/self/fd/0", BEYOND, policy=policy, stdin=file)
    assert {k: v for k, v in found.items() if v not in {*REFUSED, 9999}} == {}


def test_control(attempt: Callable[..., Any], workspace: Path, victim: Path) -> None:
    """Control: a plain child opens it by each call that this kernel has, and gets what it asks for."""
    plain = Policy.workspace(workspace, backend="passthrough", require="nothing", seccomp="off")
    found = attempt(OPENING, str(victim / "secret"), BEYOND, policy=plain)
    calls = ["open", "openat", "openat2"] if X86 else ["openat", "openat2"]
    for flags in ("mode 3", "truncating"):
        assert [found[f"{flags}: {call}"] for call in calls] == [0] * len(calls), found
    if os.geteuid() == 0:
        assert found["mode 3: open_by_handle_at"] == 0, found
    assert found["truncate"] == 0
    assert (victim / "secret").stat().st_size == 0  # by creat(2)


def test_files_inside(attempt: Callable[..., Any], alone: Policy, workspace: Path) -> None:
    """What the policy opens is opened as ever, and openat2(2) fails as if it didn't exist, for which programs are prepared."""
    (workspace / "own").write_text("own")
    found = attempt(OPENING, str(workspace / "own"), '{"read": 0, "write": 1, "both": 2}', policy=alone)
    for flags in ("read", "write", "both"):
        assert found[f"{flags}: openat"] == 0 and found[f"{flags}: openat2"] == errno.ENOSYS
