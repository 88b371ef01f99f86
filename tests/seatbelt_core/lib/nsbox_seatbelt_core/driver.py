"""macOS's C core, driven through cffi: what the scripts of these tests run, each in a process of its own.

The directory of the build is in NSBOX_DARWIN_DIR. Every spawn() looks that the caller is afterwards what it was.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

DIRECTORY = os.environ.pop("NSBOX_DARWIN_DIR")
sys.path.insert(0, DIRECTORY)

from _nsbox import ffi, lib  # type: ignore[import-not-found]  # noqa: E402

HELPER = f"{DIRECTORY}/_helper"
DEVNULL = lib.NSBOX_DEVNULL
STEPS = {getattr(lib, name): name.removeprefix("NSBOX_STEP_") for name in dir(lib) if name.startswith("NSBOX_STEP_")}

# A program that writes the numbers of its open descriptors and of their files, to 1 or to the argument. A shell would have
# some of its own.
SHOW_FDS = [
    *(sys.executable, "-ISc"),
    """if 1:
    import os, sys
    found = []
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            found.append(f"{number} {os.fstat(number).st_ino}\\n")
        except OSError:  # the listing's own
            pass
    os.write(int(sys.argv[1]) if sys.argv[1:] else 1, "".join(found).encode())
    """,
]


@dataclass(frozen=True)
class Outcome:
    """What nsbox_spawn() has said."""

    error: int
    step: str
    pid: int

    def status(self) -> int:
        """Wait for the command: its status as subprocess has it."""
        assert (self.error, self.step) == (0, "NONE"), self
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def refused(self) -> list[object]:
        """Return the error and the step of a spawn that failed."""
        assert self.error > 0
        assert self.pid == 0
        return [self.error, self.step]


def say(value: object) -> None:
    """Print what the test is to see."""
    print(json.dumps(value))


def strings(items: Sequence[str | bytes], keep: list[object]) -> Any:
    """Return a char*[] that ends in NULL."""
    found = [ffi.new("char[]", os.fsencode(item)) for item in items]
    array = ffi.new("char *[]", [*found, ffi.NULL])
    keep += [found, array]
    return array


def compile_profile(profile: str | bytes, *params: str | bytes, size: int = 4096) -> Any:
    """Return a compiled profile; raises ValueError with libsandbox's message."""
    keep: list[object] = []
    message = ffi.new("char[]", size + 1)
    message[size] = b"!"  # beyond what is to be written
    found = lib.nsbox_seatbelt_compile(ffi.new("char[]", os.fsencode(profile)), strings(params, keep), message, size)
    assert message[size] == b"!"
    if found == ffi.NULL:
        raise ValueError(ffi.string(message).decode(errors="replace") if size else "")
    return found


def orders(profile: Sequence[Any], programs: Sequence[Any], argv: Sequence[Any], envp: Sequence[Any] = ()) -> bytes:
    """Return the text of the file that says to the helper how it becomes a command."""
    texts: list[bytes] = [b"nsbox 1"]
    for items in (profile, programs, argv, envp):
        texts += [str(len(items)).encode(), *map(os.fsencode, items)]
    return b"".join(text + b"\0" for text in texts)


def memory_file(text: bytes) -> int:
    """Return a file with this text, its offset at the end."""
    fd = os.memfd_create("orders")
    os.write(fd, text)
    return fd


def _put(r: Any, keep: list[object], values: dict[str, Any]) -> None:
    for name, value in values.items():
        if name in ("programs", "argv", "envp"):
            setattr(r, name, strings(value, keep))
        elif name in ("cwd", "helper") and value is not None:
            keep.append(text := ffi.new("char[]", os.fsencode(value)))
            setattr(r, name, text)
        elif name in ("pass_fds", "groups"):
            keep.append(numbers := ffi.new("int32_t[]" if name == "pass_fds" else "uint32_t[]", list(value)))
            setattr(r, name, numbers)
            setattr(r, f"n_{name}", len(value))
        elif name == "rlimits":
            keep.append(limits := ffi.new("nsbox_rlimit[]", [(which, 0, *both) for which, *both in value]))
            r.rlimits, r.n_rlimits = limits, len(value)
        elif name == "stdio":
            r.stdin_fd, r.stdout_fd, r.stderr_fd = value
        elif name == "pipe":
            r.pipe_read, r.pipe_write = value
        elif name == "flags":
            r.flags = sum(getattr(lib, f"NSBOX_{flag}") for flag in value.split())
        elif value is not None:
            setattr(r, name, value)


def request(keep: list[object], argv: Sequence[str | bytes], **options: Any) -> Any:
    """Return a request for argv; options: its fields, flags by their names, stdio in one."""
    size = lib.nsbox_arena_size(0)
    memory = mmap.mmap(-1, size + ffi.sizeof("nsbox_result"))
    r = ffi.new("nsbox_request *")
    r.arena, r.arena_len = ffi.from_buffer("uint8_t[]", memory), size
    r.result = ffi.cast("nsbox_result *", r.arena + size)
    keep.append(memory)
    usual = {
        **{
            "programs": argv[:1],
            "argv": argv,
            "envp": ["PATH=/usr/bin:/bin"],
            "cwd": os.getcwd(),
            "flags": "CLOSE_FDS",
        },
        **{"stdio": (-1, -1, -1), "umask": -1, "pgid": -1, "uid": os.getuid(), "gid": os.getgid(), "helper": HELPER},
    }
    _put(r, keep, usual | options)
    return r


def open_fds() -> dict[int, tuple[int, int]]:
    """Return the open descriptors of this process, and what they are."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            facts = os.fstat(int(name))
        except OSError:  # the listing's own
            continue
        found[int(name)] = (facts.st_dev, facts.st_ino)
    return found


def _state() -> list[object]:
    with open("/proc/thread-self/status") as file:
        facts = dict(line.rstrip("\n").split(":\t", 1) for line in file)
    names = ("SigBlk", "SigIgn", "Uid", "Gid", "Umask", "NoNewPrivs")
    return [open_fds(), os.getcwd(), [facts[name] for name in names]]


def outcome(r: Any) -> Outcome:
    """Return what is in a request's result."""
    result = r.result
    assert (result.op, result.init_pid, result.init_pidfd, result.init_says, result.go_fd) == (-1, 0, -1, -1, -1)
    return Outcome(result.error, STEPS[result.step], result.pid)


def start(argv: Sequence[str | bytes], **options: Any) -> Outcome:
    """Start a command, as request() has it, in a process whose other threads may open descriptors meanwhile."""
    keep: list[object] = []
    r = request(keep, argv, **options)
    assert lib.nsbox_spawn(r) == 0
    return outcome(r)


def spawn(argv: Sequence[str | bytes], **options: Any) -> Outcome:
    """Start a command, and look that nothing of this process is changed."""
    before = _state()
    found = start(argv, **options)
    assert _state() == before
    return found


def spawn_with(preexec: Callable[[Any], object], argv: Sequence[str | bytes], **options: Any) -> Outcome:
    """The same with Python code in the command, which gets the request. As nsbox itself does it, with the GIL."""
    keep: list[object] = []
    options["flags"] = options.get("flags", "CLOSE_FDS") + " PREEXEC"
    r = request(keep, argv, **options)
    r.after_fork = ffi.cast("void (*)(void)", ctypes.cast(ctypes.pythonapi.PyOS_AfterFork_Child, ctypes.c_void_p).value)
    address = int(ffi.cast("uintptr_t", ffi.addressof(lib, "nsbox_spawn")))
    nsbox_spawn = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(address)
    before = _state()
    ctypes.pythonapi.PyOS_BeforeFork()
    if nsbox_spawn(int(ffi.cast("uintptr_t", r))):
        failed = 1
        try:
            preexec(r)
            failed = 0
        finally:
            lib.nsbox_preexec_done(r, failed)
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    assert _state() == before
    return outcome(r)


def output(argv: Sequence[str | bytes], start: Callable[..., Outcome] = spawn, **options: Any) -> str:
    """Return what a command writes to its stdout, which is to end well."""
    read, write = os.pipe()
    found = start(argv, stdio=(-1, write, -1), **options)
    os.close(write)
    with open(read, encoding="utf-8", errors="surrogateescape") as file:
        text = file.read()
    status = found.status()
    assert status == 0, status
    return text


def facts(start: Callable[..., Outcome] = spawn, **options: Any) -> dict[str, str]:
    """Return /proc/PID/status of a command."""
    lines = output(["/bin/cat", "/proc/self/status"], start, **options).splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def by_helper(argv: Sequence[str | bytes], params: Sequence[str] = (), **options: Any) -> Outcome:
    """Start a command by the helper, as spawn() does without it."""
    programs, envp = options.pop("programs", argv[:1]), options.pop("envp", ["PATH=/usr/bin:/bin"])
    flags = options.pop("flags", "CLOSE_FDS")
    fd = memory_file(orders(["(profile)", *params], programs, argv, envp))
    try:
        # What the helper doesn't get from the file, it must not have from the request.
        wrong = {"programs": ["/wrong"], "envp": ["WRONG=1"], "profile_fd": fd, "flags": f"{flags} BY_HELPER"}
        return spawn(["/wrong"], **wrong, **options)
    finally:
        os.close(fd)


def fds_in(text: str | bytes) -> dict[int, int]:
    """Return what SHOW_FDS has written: the inode of each number."""
    return {int(number): int(inode) for number, inode in (line.split() for line in text.splitlines())}


def adopt() -> None:
    """Become the parent of the orphans among this process's descendants."""
    assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER


def children() -> list[int]:
    """Return the children of this process's main thread."""
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as file:
        return [int(word) for word in file.read().split()]


def no_child_left() -> bool:
    """Say if there is no child of this process, not even an ended one."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


def kill(pid: int) -> None:
    """End a process that this one is, or becomes, the parent of."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
