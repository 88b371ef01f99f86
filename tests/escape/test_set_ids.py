"""No set-user-ID and set-group-ID bits from a workspace: a user who executes such a file outside has its owner's ids.

Each way is tried for real, and the disk is looked at. Control: a child that nothing contains sets them by each.
"""

from __future__ import annotations

import json
import os
import platform
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing import needs

import nsbox
from nsbox import Filter, Limits, Policy

X86 = platform.machine() == "x86_64"

# Each attempt makes, or changes, the file of its own name; mode and name come by argument.
WAYS = """
import ctypes, json, mmap, os, socket, stat, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
X86, HERE = os.uname().machine == "x86_64", -100
def call(x86, arm, *args):
    if (x86 if X86 else arm) is None: return 38
    words = [ctypes.c_char_p(a) if isinstance(a, bytes) else ctypes.c_ulong(a & 2**64 - 1) if isinstance(a, int) else a for a in args]
    ret = libc.syscall(ctypes.c_long(x86 if X86 else arm), *words)
    return ctypes.get_errno() if ret < 0 else 0
def made(name):
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o700))
    return os.open(name, os.O_RDONLY)
def how(flags, mode): return struct.pack("QQQ", flags, mode, 0)
def anonymous(mode, name):
    fd = libc.openat(HERE, b".", os.O_TMPFILE | os.O_WRONLY, mode)
    done = fd if fd < 0 else libc.linkat(HERE, b"/proc/self/fd/%d" % fd, HERE, name, 0x400)  # AT_SYMLINK_FOLLOW
    return ctypes.get_errno() if done < 0 else 0
def bound(mode, name):
    server = socket.socket(socket.AF_UNIX)
    error = call(91, 52, server.fileno(), mode)
    server.bind(name)
    return error
def ring(mode, name):
    params = ctypes.create_string_buffer(120)
    fd = libc.syscall(ctypes.c_long(425), 4, params)
    if fd < 0: return ctypes.get_errno()
    entries = struct.unpack_from("II", params.raw)
    sq, cq = struct.unpack_from("10I", params.raw, 40), struct.unpack_from("10I", params.raw, 80)
    rings = [mmap.mmap(fd, 4096, offset=at) for at in (0, 0x8000000)]
    todo = mmap.mmap(fd, 4096, offset=0x10000000)
    text = ctypes.create_string_buffer(name)
    todo[:64] = struct.pack("BBHiQQIIQQ16x", 18, 0, 0, HERE, 0, ctypes.addressof(text), mode, os.O_CREAT | os.O_WRONLY, 0, 0)
    struct.pack_into("I", rings[0], sq[6], 0)
    struct.pack_into("I", rings[0], sq[1], 1)
    if libc.syscall(ctypes.c_long(426), fd, 1, 1, 1, 0, 0) < 0: return ctypes.get_errno()
    result = struct.unpack_from("Qi", rings[1], cq[5])[1]
    return -result if result < 0 else 0
def of_32_bits(mode, name):
    made(name)
    if not X86: return 38
    page = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40, prot=7)  # MAP_32BIT
    at = ctypes.addressof(ctypes.c_char.from_buffer(page))
    page[100:101 + len(name)] = name + b"\\0"
    code = b"\\x53\\xb8" + struct.pack("I", 15) + b"\\xbb" + struct.pack("I", at + 100) + b"\\xb9" + struct.pack("I", mode)
    page[:len(code) + 4] = code + b"\\xcd\\x80\\x5b\\xc3"  # push rbx; mov eax, ebx, ecx; int 0x80; pop rbx; ret
    ret = ctypes.CFUNCTYPE(ctypes.c_int)(at)()
    return -ret if ret < 0 else 0
WAYS = {
    "chmod": lambda m, n: made(n) and call(90, None, n, m),
    "fchmod": lambda m, n: call(91, 52, made(n), m),
    "fchmod, a directory": lambda m, n: os.mkdir(n) or call(91, 52, os.open(n, os.O_RDONLY), m),
    "fchmodat": lambda m, n: made(n) and call(268, 53, HERE, n, m),
    "fchmodat by a magic link": lambda m, n: call(268, 53, HERE, b"/proc/self/fd/%d" % made(n), m),
    "fchmodat, high bits of the mode": lambda m, n: made(n) and call(268, 53, HERE, n, m | 0x70000 | 5 << 32),
    "fchmodat2": lambda m, n: made(n) and call(452, 452, HERE, n, m, 0),
    "creat": lambda m, n: call(85, None, n, m),
    "open": lambda m, n: call(2, None, n, os.O_CREAT | os.O_WRONLY, m),
    "open, high bits of the flags": lambda m, n: call(2, None, n, os.O_CREAT | os.O_WRONLY | 9 << 32, m | 1 << 40),
    "openat": lambda m, n: call(257, 56, HERE, n, os.O_CREAT | os.O_WRONLY, m),
    "openat, O_TMPFILE": anonymous,
    "openat2": lambda m, n: call(437, 437, HERE, n, how(os.O_CREAT | os.O_WRONLY, m), 24),
    "mknod": lambda m, n: call(133, None, n, stat.S_IFREG | m, 0),
    "mknod, a FIFO": lambda m, n: call(133, None, n, stat.S_IFIFO | m, 0),
    "mknodat": lambda m, n: call(259, 33, HERE, n, stat.S_IFREG | m, 0),
    "mkdir": lambda m, n: call(83, None, n, m),
    "mkdirat": lambda m, n: call(258, 34, HERE, n, m),
    "bind": bound,
    "io_uring": ring,
    "int 0x80": of_32_bits,
}
mode, names, found = int(sys.argv[1], 8), sys.argv[2:] or list(WAYS), {}
os.umask(0)
for name in names:
    answer, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try: error = WAYS[name](mode, os.fsencode(name))
        except OSError as failed: error = failed.errno
        os.write(told, str(error).encode())
        os._exit(0)
    os.close(told)
    found[name] = os.read(answer, 64).decode()
    os.close(answer)
    os.waitpid(pid, 0)
print(json.dumps(found))
"""
ONLY_X86 = {"chmod", "creat", "open", "open, high bits of the flags", "mknod", "mknod, a FIFO", "mkdir", "int 0x80"}
BY_THE_KERNEL = {"mkdir", "mkdirat"}  # inode_init_owner(9) knows no such bits: open(2), "NOTES"


def with_bits(directory: Path) -> set[str]:
    """Return the names of what has one of the bits, as the host sees it."""
    return {
        name for name in os.listdir(directory) if os.lstat(directory / name).st_mode & (stat.S_ISUID | stat.S_ISGID)
    }


def tried(policy: Policy | None, place: Path, mode: int, *names: str, **options: Any) -> dict[str, str]:
    command = [sys.executable, "-c", WAYS, oct(mode)[2:], *names]
    if policy is None:
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=True)
    else:
        done = nsbox.run(command, policy=policy, capture_output=True, text=True, check=True, **options)
    found: dict[str, str] = json.loads(done.stdout)
    return found


MODES = [stat.S_ISUID | 0o755, stat.S_ISGID | 0o755, 0o6777, stat.S_ISGID]


@pytest.mark.parametrize("mode", MODES, ids=oct)
@pytest.mark.parametrize("chosen", ["default", "hardened"])
def test_no_way_sets_them(workspace: Path, chosen: str, mode: int) -> None:
    """By whichever call: it fails, and nothing on disk has the bits."""
    found = tried(Policy.workspace(workspace, seccomp=chosen), workspace, mode)
    assert with_bits(workspace) == set()
    assert {name for name, error in found.items() if error == "0"} <= BY_THE_KERNEL
    assert set(found.values()) <= {"0", "1", "38"}


@pytest.mark.parametrize("mode", MODES, ids=oct)
def test_control_a_plain_child_sets_them(workspace: Path, mode: int) -> None:
    """Control: without the filter each way works, as far as this kernel knows the call; mkdir(2) alone never does."""
    found = tried(None, workspace, mode)
    lacking = {name for name, error in found.items() if error in ("38", "1")}
    assert lacking <= {"fchmodat2", "io_uring", "int 0x80"} | (set() if X86 else ONLY_X86)
    assert with_bits(workspace) == found.keys() - lacking - BY_THE_KERNEL


@pytest.mark.parametrize(
    "wishes",
    [
        {"landlock": True, "degrade": {"landlock"}},
        {"network": "host"},
        {"limits": Limits(open_files=100)},
        {"seccomp": Filter(base="hardened", rules=(nsbox.Rule("acct"),))},
    ],
    ids=["landlock", "network", "limits", "rules"],
)
def test_with_other_wishes(workspace: Path, wishes: dict[str, Any]) -> None:
    """Whatever else a policy says about system calls and files."""
    tried(Policy.workspace(workspace, **wishes), workspace, 0o6755)
    assert with_bits(workspace) == set()


@pytest.mark.parametrize("backend", ["landlock", "bwrap"])
def test_by_other_backends(workspace: Path, backend: str) -> None:
    """Behind Landlock alone and behind bwrap as in namespaces of our own."""
    if backend == "landlock" and nsbox.probe().landlock_abi < 2:
        pytest.skip("needs Landlock of version 2 or later")
    if backend == "bwrap":
        needs.require("bwrap")
        if os.geteuid() == 0:
            pytest.skip("as_user: behind bwrap kernel settings would be writable to uid 0, which is refused")
    lacking = {"attributes", "ids", "namespaces", "read", "secrets"}
    policy = Policy.workspace(workspace, backend=backend, degrade=lacking)
    found = tried(policy, workspace, 0o6755, cwd=workspace)
    assert {name for name, error in found.items() if error == "0"} <= BY_THE_KERNEL
    assert with_bits(workspace) == set()


def test_in_a_session_and_a_transaction(workspace: Path) -> None:
    """Nor do they come in by a commit, or are set by a later command of a session."""
    command = [sys.executable, "-c", WAYS, "6755"]
    with nsbox.Sandbox(Policy.workspace(workspace)) as box:
        with box.session() as session:
            session.run(command, check=True, stdout=nsbox.DEVNULL)
        assert with_bits(workspace) == set()
        for name in os.listdir(workspace):
            path = workspace / name
            path.rmdir() if path.is_dir() else path.unlink()
        with box.transaction() as changes:
            changes.run(command, check=True, stdout=nsbox.DEVNULL)
            changes.commit()
    assert with_bits(workspace) == set() != set(os.listdir(workspace))


def test_other_modes_work(workspace: Path) -> None:
    """All other bits can be set, the sticky one among them; what is there already may keep its own."""
    there = workspace / "there"
    there.write_text("")
    there.chmod(0o6755)
    for mode in (0o1777, 0o755, 0o600, 0):
        found = tried(Policy.workspace(workspace), workspace, mode, "fchmod", "openat", "mknodat", "mkdirat")
        assert set(found.values()) == {"0"}
        assert {stat.S_IMODE(os.lstat(workspace / name).st_mode) for name in found} == {mode}
        for name in found:
            (workspace / name).rmdir() if name == "mkdirat" else (workspace / name).unlink()
    assert stat.S_IMODE(there.stat().st_mode) == 0o6755


def test_flags_without_a_file_to_make(workspace: Path) -> None:
    """open(2) that makes nothing has no mode: whatever is in that register doesn't count."""
    script = (
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None)\n"
        "print(libc.syscall(ctypes.c_long(257 if os.uname().machine == 'x86_64' else 56), -100, b'/', 0, 0o6777) >= 0)"
    )
    policy = Policy.workspace(workspace)
    assert nsbox.run([sys.executable, "-c", script], policy=policy, capture_output=True).stdout == b"True\n"


def test_allowed_by_name(workspace: Path) -> None:
    """allow lifts the rule of one call, for a project whose directories are set-group-ID."""
    policy = Policy.workspace(workspace, seccomp=Filter(allow=("fchmodat",)))
    found = tried(policy, workspace, 0o2755, "fchmodat", "fchmod", "openat", "openat2")
    assert (found["fchmodat"], found["openat"], found["openat2"]) == ("0", "1", "38")
    left = "set-user-ID programs and scripts that the command leaves"
    assert left in nsbox.explain(policy)
    assert left not in nsbox.explain(Policy.workspace(workspace))


def test_programs_of_every_day(workspace: Path) -> None:
    """Archives, copies with all attributes and version control, as long as they ask for no such bit."""
    script = """
        mkdir -p a/b && echo x > a/b/f && chmod 755 a/b && chmod +x a/b/f && install -d -m 775 i && install -m 755 a/b/f i
        cp -a a c && tar cf t.tar a && mkdir u && tar xpf t.tar -C u && cmp u/a/b/f a/b/f && mkdir -m 1777 s
    """
    nsbox.run(["sh", "-ec", script], policy=Policy.workspace(workspace), check=True)
    assert stat.S_IMODE((workspace / "s").stat().st_mode) == 0o1777
