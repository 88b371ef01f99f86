"""Core dumps: a command's go nowhere, to no file and to no handler of the host's, whatever it does to its limits."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing import needs
from nsbox_testing.running import python

import nsbox
from nsbox import Filter, Limits, Policy

X86 = platform.machine() == "x86_64"
LACKED = {"attributes", "namespaces", "secrets"}
THOROUGH = bool(int(os.environ.get("NSBOX_THOROUGH", "0")))
PATTERN = Path("/proc/sys/kernel/core_pattern")
in_vm = pytest.mark.skipif(
    "RUN_IN_VM" not in os.environ or os.geteuid() != 0, reason="changes kernel.core_pattern: as root in a VM only"
)

# Set in each way to what would let a handler run, reports what came of it and what the limit is then.
LOWERED = """
import mmap, resource
X86 = os.uname().machine == "x86_64"
libc.mmap.restype = ctypes.c_void_p
high = libc.mmap(ctypes.c_void_p(7 << 32), 4096, 3, 0x100022, -1, 0)  # MAP_FIXED_NOREPLACE: the low half is 0
assert high == 7 << 32
ctypes.memset(high, 0, 16)
def int80(number, *args):
    code = mmap.mmap(-1, 4096, prot=7)
    data = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40)  # MAP_32BIT: zeros
    at = ctypes.addressof(ctypes.c_char.from_buffer(data))
    moves = [op + struct.pack("=I", at if v is data_ else v) for op, v in zip((b"\\xbb", b"\\xb9", b"\\xba", b"\\xbe"), args)]
    code.write(b"\\x53\\xb8" + struct.pack("=I", number) + b"".join(moves) + b"\\xcd\\x80\\x5b\\xc3")
    ret = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
    return -ret if ret < 0 else 0
data_ = object()
zeros = ctypes.create_string_buffer(16)
SETRLIMIT, PRLIMIT = (160, 302) if X86 else (164, 261)
ways = {
    "setrlimit": lambda: syscall(SETRLIMIT, 4, zeros),
    "prlimit": lambda: syscall(PRLIMIT, 0, 4, zeros, None),
    "prlimit by number": lambda: syscall(PRLIMIT, os.getpid(), 4, zeros, None),
    "prlimit with high bits": lambda: syscall(PRLIMIT, 0, 4 | 1 << 32, zeros, None),
    "a pointer without a low half": lambda: syscall(PRLIMIT, 0, 4, high, None),
    "a library": lambda: attempt(resource.setrlimit, 4, (0, 0)),
    "i386 setrlimit": lambda: int80(75, 4, data_) if X86 else 0,
    "i386 prlimit": lambda: int80(340, 0, 4, data_, 0) if X86 else 0,
}
found = {}
for name, way in ways.items():
    if name in sys.argv[1].split(","):
        found[name] = [way(), *resource.getrlimit(4)]
"""
WAYS = (
    *(
        "setrlimit",
        "prlimit",
        "prlimit by number",
        "prlimit with high bits",
        "a pointer without a low half",
        "a library",
    ),
    *("i386 setrlimit", "i386 prlimit"),
)


@pytest.fixture(params=["", "landlock", "nested"])
def kind(request: pytest.FixtureRequest, policy: Policy, workspace: Path) -> Policy:
    """The kinds of a workspace, each with and without its seccomp profile."""
    more: dict[str, dict[str, Any]] = {
        "landlock": {"backend": "landlock", "degrade": LACKED},
        "nested": {"nested": True},
    }
    if request.param == "landlock" and nsbox.probe().landlock_abi < 2:
        pytest.skip("needs Landlock of version 2 or later")
    return policy.with_(**more.get(request.param, {}))


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_CORE)[1] == 0, reason="the hard limit of this process is 0")
@pytest.mark.parametrize("way", WAYS)
def test_the_limit_stays(attempt: Callable[..., Any], kind: Policy, way: str) -> None:
    """RLIMIT_CORE is 1, at which the kernel asks no handler, and setting it seems to succeed, and changes nothing."""
    error, *limit = attempt(LOWERED + "report(found)", way, policy=kind)[way]
    assert limit == [1, 1]
    # ENOSYS where there are no 32-bit programs; EPERM behind Landlock alone, as for the limits of any other process.
    assert error in {"i386 setrlimit": (0, 38), "i386 prlimit": (0, 38), "prlimit by number": (0, 1)}.get(way, (0,))


@pytest.mark.parametrize("way", WAYS)
def test_control(attempt: Callable[..., Any], workspace: Path, way: str) -> None:
    """Control: where a policy lets there be core dumps, each of these ways sets the limit."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    size = 4096 if hard == resource.RLIM_INFINITY else min(hard, 4096)
    policy = Policy.workspace(workspace, seccomp="off", limits=Limits(core_size=size))
    before = attempt("import resource; report(resource.getrlimit(4))", policy=policy)
    assert before == [size, size]
    error, *limit = attempt(LOWERED + "report(found)", way, policy=policy)[way]
    if not way.startswith("i386") or (X86 and error != 38):  # a kernel without IA32_EMULATION
        assert (error, limit) == (0, [0, 0])


def test_reading_and_other_limits(attempt: Callable[..., Any], kind: Policy) -> None:
    """The limit can be read in each way, others can be set; a call that sets it and asks for the old one is refused."""
    code = """
import resource
report([attempt(resource.prlimit, 0, 4, (0, 0)), resource.getrlimit(4), resource.prlimit(0, 4),
        attempt(resource.setrlimit, resource.RLIMIT_NOFILE, (100, 100)), resource.getrlimit(resource.RLIMIT_NOFILE)])
"""
    now = 0 if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0 else 1
    assert attempt(code, policy=kind) == [1, [now, now], [now, now], 0, [100, 100]]


@needs.programs("gpg")
def test_programs_that_forbid_their_dumps(policy: Policy, workspace: Path) -> None:
    """gpg and shells, which give up when they can't, go on."""
    script = (
        "ulimit -c 0 && bash -c 'ulimit -c 0 && ulimit -S -c' && gpg --homedir . --batch --list-keys && echo went on"
    )
    done = nsbox.run(["sh", "-c", script], policy=policy, cwd=workspace, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split("\n")[-2]) == (0, "went on"), done.stderr


def test_in_a_session(workspace: Path) -> None:
    """It is so for commands of a session and of a transaction, and for those of a Sandbox."""
    code = LOWERED + "print(json.dumps(found))"
    prelude = "import ctypes, json, os, struct, sys\nlibc = ctypes.CDLL(None)\ndef attempt(*a): pass\n"
    prelude += (
        "def syscall(n, *a): return libc.syscall(n, *[x if not isinstance(x, int) else ctypes.c_ulong(x) for x in a])\n"
    )
    command = [sys.executable, "-I", "-S", "-c", prelude + code, "prlimit"]
    with nsbox.Sandbox(Policy.workspace(workspace)) as sandbox:
        for _ in range(3):
            assert b"[0, 1, 1]" in nsbox.run(command, policy=sandbox, stdout=subprocess.PIPE, check=True).stdout
        with sandbox.session() as session:
            assert b"[0, 1, 1]" in nsbox.run(command, policy=session, stdout=subprocess.PIPE, check=True).stdout
        with sandbox.transaction() as transaction:
            assert b"[0, 1, 1]" in nsbox.run(command, policy=transaction, stdout=subprocess.PIPE, check=True).stdout


def test_no_file(policy: Policy, workspace: Path) -> None:
    """A crash leaves no file, however the limit was set before it."""
    for script in ("kill -SEGV $$", "ulimit -c unlimited; kill -SEGV $$", "ulimit -c 0; kill -SEGV $$"):
        done = nsbox.run(["sh", "-c", script], policy=policy, cwd=workspace)
        assert done.returncode == -signal.SIGSEGV
    assert os.listdir(workspace) == []


# ---- a core_pattern that is a pipe, which is a setting of the whole machine


@pytest.fixture
def handled(tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Make a script the machine's core handler; returns what it has been told since it was asked last."""
    handler, log = tmp_path / "handler", tmp_path / "log"
    handler.write_text(f'#!/bin/sh\necho "$* bytes=$(wc -c)" >> {log}\n')
    handler.chmod(0o755)
    before = PATTERN.read_text()
    PATTERN.write_text(f"|{handler} limit=%c")

    def told() -> str:
        # The handler of this one is the last: once it is there, those of others have been asked as well.
        subprocess.run([sys.executable, "-c", MARK], check=False)
        latest = time.monotonic() + 60
        while "limit=7777 " not in (text := log.read_text() if log.exists() else ""):
            assert time.monotonic() < latest
            time.sleep(0.05)
        log.unlink()
        return "".join(line for line in text.splitlines(keepends=True) if "limit=7777 " not in line)

    yield told
    PATTERN.write_text(before)


MARK = "import os, resource; resource.setrlimit(4, (7777, 7777)); os.abort()"
CRASHES = ("", "resource.setrlimit(4, (0, 0))", "os.system('ulimit -c 0')", "resource.setrlimit(4, (4096, 4096))")


@pytest.mark.vm
@in_vm
@pytest.mark.parametrize("first", CRASHES if THOROUGH else CRASHES[1:2])
def test_no_handler(handled: Callable[[], str], kind: Policy, first: str) -> None:
    """A crash in a sandbox asks no handler."""
    code = f"import os, resource; {first}\nos.abort()"
    assert nsbox.run(python(code), policy=kind).returncode == -signal.SIGABRT
    assert handled() == ""


@pytest.mark.vm
@in_vm
def test_control_a_handler(handled: Callable[[], str], workspace: Path) -> None:
    """Control: with another limit, 0 too, the handler gets the command's memory."""
    code = "import os, resource; resource.setrlimit(4, (0, 0)); os.abort()"
    policy = Policy.workspace(workspace, limits=Limits(core_size=4096))
    assert nsbox.run(python(code), policy=policy).returncode == -signal.SIGABRT
    assert handled().startswith("limit=0 bytes=")


@pytest.mark.vm
@in_vm
@pytest.mark.parametrize("base", ["workspace", "host", "sized"])
def test_no_memory_of_the_caller(handled: Callable[[], str], workspace: Path, base: str) -> None:
    """A ready program that kills at the exec does so in a copy of the caller's memory, of which no handler gets a dump."""
    number = 59 if X86 else 221
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x80000000), (0x06, 0, 0, 0x7FFF0000)]
    wish = Filter(base="off", programs=(b"".join(struct.pack("=HBBI", *row) for row in code),))
    policy = {
        "workspace": Policy.workspace(workspace, seccomp=wish),
        "host": Policy.host(seccomp=wish),
        "sized": Policy.workspace(workspace, seccomp=wish, limits=Limits(core_size=1 << 30)),
    }[base]
    assert nsbox.run(["/bin/true"], policy=policy).returncode == -signal.SIGSYS
    assert handled() == ""
    # The control: the same in a plain copy.
    pid = os.fork()
    if pid == 0:
        libc = ctypes.CDLL(None)
        array = ctypes.create_string_buffer(wish.programs[0])
        program = struct.pack("=HxxxxxxQ", len(code), ctypes.addressof(array))
        libc.prctl(38, 1, 0, 0, 0)
        libc.prctl(22, 2, program, 0, 0)
        os.execv("/bin/true", ["true"])
    os.waitpid(pid, 0)
    assert "bytes=" in handled()
