"""The only module that touches the C core: abi.h's names as Python values, and its calls with their buffers.

Python owns every buffer; C borrows them for the length of one call. Where there is no C core (another system or
processor) the module imports all the same, and `problem` says why.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Protocol, cast


class _Lib(Protocol):
    """What the extension offers, as abi.h declares it."""

    def nsbox_spawn(self, request: object) -> int: ...
    def nsbox_arena_size(self, nops: int) -> int: ...
    def nsbox_plan_check(self, plan: object, length: int, bad: object) -> int: ...
    def nsbox_preexec_done(self, request: object, failed: int) -> None: ...
    def nsbox_wait(self, pidfd: int, init_says: int, timeout_ms: int) -> int: ...
    def nsbox_landlock_abi(self) -> int: ...
    def nsbox_syscalls(self) -> object: ...
    def nsbox_init_bytes(self) -> object: ...
    def nsbox_init_size(self) -> int: ...


class Constants:
    """The enum constants of abi.h without their prefix: OP_BIND, RDONLY, STEP_EXEC, ..."""

    def __init__(self, lib: object) -> None:
        self._lib = lib

    def __getattr__(self, name: str) -> int:
        value = cast(int, getattr(self._lib, f"NSBOX_{name}"))
        setattr(self, name, value)
        return value


on_linux = sys.platform == "linux"
problem = ""
ffi: Any = None
lib: _Lib
try:
    _nsbox: Any = import_module("nsbox._nsbox")
except ImportError as _error:
    problem = f"the C core is missing ({_error})" if on_linux else f"there is no C core for {sys.platform}"
    lib = cast(_Lib, None)
    constants = Constants(None)
else:
    ffi = _nsbox.ffi
    lib = cast(_Lib, _nsbox.lib)
    constants = Constants(_nsbox.lib)


@dataclass(slots=True, kw_only=True)
class Command:
    """What varies from spawn to spawn: paths as bytes, ids and descriptors as numbers.

    uid, gid, groups: None means the plan's own, which _spawn fills in. flags: abi.h's, of the command. preexec: called
    in the command before its exec; flags have PREEXEC then. inherits_env: what it changes in the environment counts,
    but for these variables, which the policy sets; None: it doesn't count.
    """

    programs: Sequence[bytes]
    argv: Sequence[bytes]
    envp: Strings
    cwd: bytes | None
    flags: int = 0
    stdio: tuple[int, int, int] = (-1, -1, -1)
    pass_fds: Sequence[int] = ()
    umask: int = -1
    pgid: int = -1
    uid: int | None = None
    gid: int | None = None
    groups: Sequence[int] | None = None
    preexec: Callable[[], object] | None = None
    inherits_env: dict[bytes, bytes] | None = None
    cgroup_fd: int = -1
    leaf: Any = None  # _cgroup's, which the descriptor is of


@dataclass(slots=True)
class Result:
    """What came of a spawn; error 0 and a pid, or an errno with the step and the op that it came from."""

    error: int
    step: int
    op: int
    pid: int
    init_pid: int
    init_pidfd: int
    init_says: int


class _Arena:
    """Stacks and work space for the children of one spawn at a time, kept for the next one."""

    def __init__(self, size: int) -> None:
        # Shared, so that a fork, in this process or of the command, doesn't make its pages copy-on-write: the kernel
        # fails to write to such a page when the process that it does it for is being killed, and nobody hears of it.
        self.map = mmap.mmap(-1, size + ffi.sizeof("nsbox_result"), flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
        self.size = size
        self.pointer = ffi.from_buffer("uint8_t[]", self.map)
        self.result = ffi.cast("nsbox_result *", self.pointer + size)


_USUAL = 256  # ops that a pooled arena is made for
_arenas: list[_Arena] = []
_abandoned: list[_Arena] = []  # a process of a set-up that was killed may still use them
os.register_at_fork(after_in_child=_arenas.clear)  # they are the parent's


def _take_arena(nops: int) -> _Arena:
    if nops <= _USUAL:
        try:
            return _arenas.pop()  # atomic; each thread gets its own
        except IndexError:
            pass
    return _Arena(lib.nsbox_arena_size(max(nops, _USUAL)))


def _give_back(arena: _Arena, nops: int) -> None:
    if nops <= _USUAL and len(_arenas) < 64:
        _arenas.append(arena)


class Strings:
    """A char*[] that ends in NULL. Its pointers lead into the bytes objects, whose buffers end in NUL."""

    __slots__ = ("_keep", "array")

    def __init__(self, items: Sequence[bytes]) -> None:
        self._keep = [ffi.from_buffer("char[]", item) for item in items]
        self.array = ffi.new("char *[]", [*self._keep, ffi.NULL])


def _strings(items: Sequence[bytes], keep: list[object]) -> object:
    strings = Strings(items)
    keep.append(strings)
    return strings.array


class Template:
    """A request with all that doesn't depend on the command, and the buffers that it points to.

    plan: a blob as _wire makes it, of nops ops. uid_map, gid_map: for user_namespaces(7); the second ones, if any, for
    a second namespace. map_programs: arguments of newuidmap(1) and newgidmap(1). rlimits: resource, soft, hard.
    programs: seccomp filters; the last n_last are for right before exec, the n_confined before these for the last user
    namespace. ruleset: Landlock's rights and scopes, and its rules: path, rights, flags.
    """

    __slots__ = ("_keep", "nops", "request")

    def __init__(
        self,
        *,
        plan: bytes,
        nops: int,
        namespaces: int,
        flags: int,
        uid_map: bytes,
        gid_map: bytes,
        uid_map2: bytes | None,
        gid_map2: bytes | None,
        map_programs: tuple[Sequence[bytes], Sequence[bytes]] | None,
        rlimits: Sequence[tuple[int, int, int]],
        programs: Sequence[bytes],
        n_confined: int,
        n_last: int,
        ruleset: tuple[int, int, Sequence[tuple[bytes, int, int]]] | None = None,
    ) -> None:
        blob = ffi.from_buffer("uint8_t[]", plan)
        maps = [
            ffi.NULL if text is None else ffi.from_buffer("char[]", text)
            for text in (uid_map, gid_map, uid_map2, gid_map2)
        ]
        limits = ffi.new("nsbox_rlimit[]", [(name, 0, soft, hard) for name, soft, hard in rlimits])
        codes = [ffi.from_buffer("uint8_t[]", code) for code in programs]
        filters = ffi.new("nsbox_filter[]", [(code, len(code) // 8, 0) for code in codes])
        self._keep: list[object] = [blob, maps, limits, codes, filters]
        self.nops = nops
        self.request = r = ffi.new("nsbox_request *")
        r.plan, r.plan_len = blob, len(plan)
        r.namespaces, r.flags = namespaces, flags
        r.uid_map, r.gid_map, r.uid_map2, r.gid_map2 = maps
        if map_programs is not None:
            r.uid_map_program, r.gid_map_program = (_strings(argv, self._keep) for argv in map_programs)
        r.rlimits, r.n_rlimits = limits, len(rlimits)
        if ruleset is not None:
            r.ruleset = self._ruleset(*ruleset)
        r.filters, r.n_filters = filters, len(programs)
        r.n_confined_filters, r.n_last_filters = n_confined, n_last

    def _ruleset(self, files: int, scoped: int, rules: Sequence[tuple[bytes, int, int]]) -> object:
        names = [ffi.from_buffer("char[]", path) for path, _, _ in rules]
        paths = ffi.new(
            "nsbox_path_rule[]",
            [(name, rights, flags, 0) for name, (_, rights, flags) in zip(names, rules, strict=True)],
        )
        made = ffi.new("nsbox_ruleset *", (files, scoped, paths, len(rules), 0))
        self._keep += [names, paths, made]
        return made


def _fill(r: Any, q: Command, keep: list[object]) -> None:
    r.programs = _strings(q.programs, keep)
    r.argv = _strings(q.argv, keep)
    r.envp = q.envp.array
    if q.cwd is not None:
        r.cwd = cwd = ffi.from_buffer("char[]", q.cwd)
        keep.append(cwd)
    r.flags |= q.flags
    r.stdin_fd, r.stdout_fd, r.stderr_fd = q.stdio
    r.umask, r.pgid, r.uid, r.gid, r.cgroup_fd = q.umask, q.pgid, q.uid, q.gid, q.cgroup_fd
    if q.pass_fds:
        keep.append(fds := ffi.new("int32_t[]", list(q.pass_fds)))
        r.pass_fds, r.n_pass_fds = fds, len(q.pass_fds)
    if q.groups:
        keep.append(groups := ffi.new("uint32_t[]", list(q.groups)))
        r.groups, r.n_groups = groups, len(q.groups)


def _c_environment() -> list[bytes]:
    """Return the environment as the C library has it. Only for a process without other threads, which may change it."""
    import ctypes

    pointer = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    found: list[bytes] = []
    while (entry := pointer[len(found)]) is not None:
        found.append(entry)
    return found


def _run_before_exec(preexec: Callable[[], object], r: Any, inherits_env: dict[bytes, bytes] | None) -> None:
    """In the command: call it, and execute the program. Never returns."""
    failed = 1
    try:
        preexec()
        if inherits_env is not None:
            keep: list[object] = []
            found = [entry for entry in _c_environment() if entry.partition(b"=")[0] not in inherits_env]
            r.envp = _strings([*found, *(name + b"=" + value for name, value in inherits_env.items())], keep)
        failed = 0
    finally:  # whatever it raised, nobody here is to see it
        lib.nsbox_preexec_done(r, failed)


def _spawn_with(preexec: Callable[[], object], r: Any, inherits_env: dict[bytes, bytes] | None) -> None:
    """Start one command in which Python code runs before its program: the call returns twice, as os.fork() does.

    The GIL is held meanwhile, since a copy of this process without it could never get it; and as in subprocess no
    garbage is collected, whose finalizers belong to this process.
    """
    import ctypes

    api = ctypes.pythonapi
    address = int(ffi.cast("uintptr_t", ffi.addressof(lib, "nsbox_spawn")))
    nsbox_spawn = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(address)
    request = int(ffi.cast("uintptr_t", r))
    # Called from C: an interpreter that other threads have asked for the GIL would give it up first, and wait for them.
    after_fork = ctypes.cast(api.PyOS_AfterFork_Child, ctypes.c_void_p).value
    r.after_fork = ffi.cast("void (*)(void)", after_fork)
    before_fork, after_in_parent = api.PyOS_BeforeFork, api.PyOS_AfterFork_Parent
    is_command = 0
    collecting = gc.isenabled()
    try:
        api.PyGC_Disable()
        try:  # what comes before the fork is undone even if a signal's handler raises: it holds the lock of imports
            before_fork()
            is_command = nsbox_spawn(request)
            if is_command:
                _run_before_exec(preexec, r, inherits_env)
        finally:
            if not is_command:
                after_in_parent()
    finally:
        if collecting:
            api.PyGC_Enable()


def spawn(template: Template, command: Command) -> Result:
    """Start one command. Blocks, without the GIL, until it has executed its program or failed to."""
    keep: list[object] = []
    r = ffi.new("nsbox_request *", template.request[0])
    _fill(r, command, keep)
    arena = _take_arena(template.nops)
    r.arena, r.arena_len = arena.pointer, arena.size
    r.result = result = arena.result
    result.pid = 0
    try:
        if command.preexec is None:
            lib.nsbox_spawn(r)
        else:
            _spawn_with(command.preexec, r, command.inherits_env)
        answer = Result(
            result.error, result.step, result.op, result.pid, result.init_pid, result.init_pidfd, result.init_says
        )
    except BaseException:  # of a signal handler, which runs when the call is over: nobody would own the command
        if result.pid > 0 and not result.error:
            end(result.pid, result.init_pidfd, result.init_says)
        raise
    try:
        if answer.step == constants.STEP_KILLED:
            _abandoned.append(arena)
        else:
            _give_back(arena, template.nops)
    except BaseException:  # the same; the arena may be another thread's by now
        if not answer.error:
            end(answer.pid, answer.init_pidfd, answer.init_says)
        raise
    return answer


def end(pid: int, init_pidfd: int, init_says: int) -> None:
    """Kill a command, and return when its whole sandbox is gone, whatever its policy lets go on."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0x40000000)  # __WALL
    if init_pidfd >= 0:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(init_pidfd, signal.SIGKILL)
        wait(init_pidfd, -1, -1)
        os.close(init_pidfd)
    os.close(init_says)


def wait(pidfd: int, init_says: int, timeout_ms: int) -> bool:
    """Wait until the init behind pidfd is gone or says at init_says that its sandbox is empty; timeout_ms -1: for ever.

    An init that is a child of this process is reaped.
    """
    end = time.monotonic() + timeout_ms / 1000
    while True:
        ret = lib.nsbox_wait(pidfd, init_says, timeout_ms)
        if ret >= 0:
            return ret == 1
        if -ret != 4:  # EINTR; Python's signal handlers have run by now
            raise OSError(-ret, os.strerror(-ret))
        if timeout_ms > 0:
            timeout_ms = max(0, round((end - time.monotonic()) * 1000))


def last_word(init_says: int) -> bytes:
    """Return what an init said at its end, for used_by_others(); b"" when it ended without a word."""
    try:
        return os.read(init_says, 64)
    except BlockingIOError:
        return b""


def used_by_others(text: bytes) -> tuple[int, int, int] | None:
    """Return what an init's children used, by its last word: user and system microseconds, bytes of the largest."""
    if len(text) != ffi.sizeof("nsbox_word"):
        return None
    word = ffi.from_buffer("nsbox_word *", text)
    return (word.user_us, word.system_us, word.max_rss) if word.said == constants.SAID_EMPTY else None


def plan_check(plan: bytes) -> tuple[int, int]:
    """Return 0 or -EINVAL, and the index of the first malformed op (-1: the header)."""
    bad = ffi.new("int32_t *")
    ret = lib.nsbox_plan_check(ffi.from_buffer("uint8_t[]", plan), len(plan), bad)
    return ret, bad[0]


def landlock_abi() -> int:
    """Return the version of the kernel's Landlock; 0 where there is none."""
    return max(0, lib.nsbox_landlock_abi())


@cache
def syscalls() -> tuple[str, dict[str, int]]:
    """Return the machine that the C core was built for, and its system calls by name, by the kernel headers."""
    machine, *rows = ffi.string(lib.nsbox_syscalls()).decode().split("\n")
    return machine, {name: int(number) for name, number in (row.split() for row in rows if row)}


def init_image() -> bytes:
    """Return the program that becomes pid 1 of each sandbox."""
    return bytes(ffi.buffer(lib.nsbox_init_bytes(), lib.nsbox_init_size()))
