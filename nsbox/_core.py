"""What touches the C core: abi.h's names as Python values, and its calls with their buffers.

Nothing else does, but for _core_linux and _core_darwin, which have the calls that only one system's core has.

Python owns every buffer; C borrows them for the length of one call. Where there is no C core (another system or
processor) the module imports all the same, and `problem` says why.
"""

from __future__ import annotations

import _signal as signal  # signal itself makes enums of the numbers
import gc
import sys
import time
from itertools import repeat

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.lean_os import os
from nsbox._command import Command as Command
from nsbox._command import Result as Result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


class Constants:
    """The enum constants of abi.h without their prefix: OP_BIND, RDONLY, STEP_EXEC, ..."""

    def __init__(self, lib: object) -> None:
        self._lib = lib

    def __getattr__(self, name: str) -> int:
        value: int = getattr(self._lib, f"NSBOX_{name}")
        setattr(self, name, value)
        return value


on_linux, on_darwin = sys.platform == "linux", sys.platform == "darwin"
problem = ""
extension: Any = None
try:
    extension = __import__("nsbox._nsbox", fromlist=["lib"])  # as importlib does, which takes its time to import itself
except ImportError as _error:
    problem = f"the C core is missing ({_error})" if on_linux or on_darwin else f"there is no C core for {sys.platform}"
ffi: Any = getattr(extension, "ffi", None)
lib: Any = getattr(extension, "lib", None)
constants = Constants(lib)


class _Arena:
    """Stacks and work space for the children of one spawn at a time, kept for the next one."""

    def __init__(self, size: int) -> None:
        total = size + ffi.sizeof("nsbox_result")
        # Shared, so that a fork doesn't make its pages copy-on-write: the kernel fails to write to such a page for a
        # process that is being killed, and nobody hears of it.
        flags = lib.MAP_SHARED | lib.MAP_ANONYMOUS
        memory = lib.mmap(ffi.NULL, total, lib.PROT_READ | lib.PROT_WRITE, flags, -1, 0)
        if memory == ffi.cast("void *", -1):
            raise OSError(ffi.errno, os.strerror(ffi.errno))
        self.memory = ffi.gc(memory, lambda memory, munmap=lib.munmap: munmap(memory, total), total)
        self.size = size
        self.pointer = ffi.cast("uint8_t *", memory)
        self.result = ffi.cast("nsbox_result *", self.pointer + size)


_USUAL = 256  # ops that a pooled arena is made for
_arenas: list[_Arena] = []
_abandoned: list[object] = []  # what a process of a set-up that was killed may still use
os.register_at_fork(after_in_child=_arenas.clear)  # they are the parent's


RSS_UNIT = 1024 if on_linux else 1  # bytes of getrusage(2)'s ru_maxrss: macOS counts single ones
WALL = 0x40000000 if on_linux else 0  # wait(2): also children whose exit signal isn't SIGCHLD, killed before their exec
adopt_inits = False  # _reap has seen that this machine's pid 1 doesn't reap them: this process does it


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


_characters = repeat("char[]")


class Strings:
    """A char*[] that ends in NULL. Its pointers lead into the bytes objects, whose buffers end in NUL."""

    __slots__ = ("_keep", "array", "items")

    def __init__(self, items: Sequence[bytes]) -> None:
        self.items = items
        self._keep = [*map(ffi.from_buffer, _characters, items)]
        self.array = ffi.new("char *[]", [*self._keep, ffi.NULL])


def _strings(items: Sequence[bytes], keep: list[object]) -> Any:
    strings = Strings(items)
    keep.append(strings)
    return strings.array


class Stamps:
    """What the ops of a kept sandbox have found and made: an nsbox_stamp each, which C fills in."""

    __slots__ = ("array",)

    def __init__(self, watched: Sequence[bool]) -> None:
        self.array = ffi.new("nsbox_stamp[]", [(0, 0, 0, 0, 0, is_watched) for is_watched in watched] or 1)


class Entered:
    """A sandbox that is kept. fds: its user and mount namespace and its /dev/null; plan: the blob that made it.

    root_id: the mount that the caller's root was then.
    """

    __slots__ = ("blob", "fds", "plan", "root_id", "stamps")

    def __init__(self, fds: tuple[int, int, int], plan: bytes, stamps: Stamps, root_id: int) -> None:
        self.fds, self.plan, self.stamps, self.root_id = fds, plan, stamps, root_id
        self.blob = ffi.from_buffer("uint8_t[]", plan)


class Template:
    """A request with all that doesn't depend on the command, and the buffers that it points to.

    plan: a blob as _wire makes it, of nops ops. uid_map, gid_map: for user_namespaces(7); the second ones, if any, for
    a second namespace. map_programs: arguments of newuidmap(1) and newgidmap(1). rlimits: resource, soft, hard.
    programs: seccomp filters; the last n_last are for right before exec, the n_confined before these for the last user
    namespace. ruleset: Landlock's rights to files and to TCP, its scopes, and its rules: path, rights, flags.
    capabilities: permitted, inheritable and bounding ones, that the command keeps. joined: descriptors of a user
    namespace, a second, a pid and a mount namespace, or -1. stamps: a new sandbox's, to be kept for others. entered:
    one that is kept, to be copied. kernel_ids: those that all of the sandbox has outside, whoever the caller is, or
    zeros. inotify_instances: the most, or 0. idmaps: returns uids and gids with what has the descriptor of the user
    namespace by which their files are mapped.
    """

    __slots__ = ("_keep", "idmaps", "nops", "plan", "request")

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
        ruleset: tuple[int, int, int, Sequence[tuple[bytes, int, int]]] | None = None,
        capabilities: tuple[int, int, int] | None = None,
        joined: Sequence[int] = (-1, -1, -1, -1),
        stamps: Stamps | None = None,
        entered: Entered | None = None,
        kernel_ids: tuple[int, int] = (0, 0),
        inotify_instances: int = 0,
        idmaps: Callable[[], Sequence[Any]] | None = None,
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
        self.nops, self.plan = nops, plan
        self.request = r = ffi.new("nsbox_request *")
        r.plan, r.plan_len = blob, len(plan)
        r.namespaces, r.flags = namespaces, flags
        r.uid_map, r.gid_map, r.uid_map2, r.gid_map2 = maps
        if map_programs is not None:
            r.uid_map_program, r.gid_map_program = (_strings(argv, self._keep) for argv in map_programs)
        r.rlimits, r.n_rlimits = limits, len(rlimits)
        if ruleset is not None:
            r.ruleset = self._ruleset(*ruleset)
        if capabilities is not None:
            r.caps = caps = ffi.new("nsbox_caps *", capabilities)
            self._keep.append(caps)
        r.user_fd, r.user2_fd, r.pid_fd, r.mnt_fd = joined
        r.null_fd = r.park_fd = r.go_fd = r.hold_fd = r.report_fd = r.cgroup_fd = r.relay_fd = -1
        r.kernel_uid, r.kernel_gid = kernel_ids
        r.inotify_instances = inotify_instances
        self.idmaps = idmaps
        if stamps is not None:
            r.stamps = stamps.array
            self._keep.append(stamps)
        if entered is not None:
            self._enter(entered)
        r.filters, r.n_filters = filters, len(programs)
        r.n_confined_filters, r.n_last_filters = n_confined, n_last

    def _enter(self, entered: Entered) -> None:
        r = self.request
        r.user_fd, r.mnt_fd, r.null_fd = entered.fds
        r.stamps, r.template_plan, r.template_plan_len = entered.stamps.array, entered.blob, len(entered.plan)
        r.root_id = entered.root_id
        self._keep.append(entered)

    def _ruleset(self, files: int, net: int, scoped: int, rules: Sequence[tuple[bytes, int, int]]) -> object:
        names = [ffi.from_buffer("char[]", path) for path, _, _ in rules]
        paths = ffi.new(
            "nsbox_path_rule[]",
            [(name, rights, flags, 0) for name, (_, rights, flags) in zip(names, rules, strict=True)],
        )
        made = ffi.new("nsbox_ruleset *", (files, net, scoped, paths, len(rules), 0))
        self._keep += [names, paths, made]
        return made


def _fill(r: Any, q: Command, keep: list[object]) -> None:
    r.programs = _strings(q.programs, keep)
    spare = [b"sh"] if q.flags & constants.SHELL else []  # the name of a shell comes before a script's
    r.argv = _strings([*spare, *q.argv], keep) + len(spare)
    if q.hold_fd >= 0 or q.report_fd >= 0:
        r.hold_fd, r.report_fd = q.hold_fd, q.report_fd
    if q.places:
        names = [ffi.from_buffer("char[]", path) for path, _ in q.places]
        places = ffi.new("nsbox_place[]", [(name, env.array) for name, (_, env) in zip(names, q.places, strict=True)])
        r.places, r.n_places = places, len(q.places)
        keep += [names, places, q.places]  # not r.places, which owns nothing
    r.envp = q.envp.array
    if q.cwd is not None:
        r.cwd = cwd = ffi.from_buffer("char[]", q.cwd)
        keep.append(cwd)
    r.flags |= q.flags
    r.stdin_fd, r.stdout_fd, r.stderr_fd = q.stdio
    r.umask, r.pgid, r.uid, r.gid = q.umask, q.pgid, q.uid, q.gid
    if q.cgroup_fd >= 0 or q.terminal:
        r.cgroup_fd, r.terminal = q.cgroup_fd, q.terminal
    if q.park_stamps is not None:
        r.park_stamps = q.park_stamps.array
    parked = q.parked
    if parked is not None:
        r.park_fd, r.go_fd, r.user2_fd = parked.result.init_pidfd, parked.result.go_fd, parked.user2_fd
        r.stamps = parked.stamps.array
    elif q.line is not None:
        r.relay_fd, r.relay_id, r.relay_later = q.line.fileno(), q.line.id, q.line.is_later
    if q.profile is not None:
        q.profile.fill(r, keep)
    if q.filters:
        codes = [ffi.from_buffer("uint8_t[]", code) for code in q.filters]
        own = [(code, len(code) // 8, 0) for code in codes]
        filters = ffi.new("nsbox_filter[]", [*own, *(r.filters[i] for i in range(r.n_filters))])
        r.filters, r.n_filters = filters, len(filters)
        keep += [codes, filters]
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


def _run_before_exec(
    preexec: Callable[[], object], r: Any, inherits_env: dict[bytes, bytes] | None, parked: Any
) -> None:
    """In the command: call it, and execute the program. Never returns."""
    failed = 1
    try:
        if parked is not None:
            parked.forget()
        preexec()
        if inherits_env is not None:
            keep: list[object] = []
            found = [entry for entry in _c_environment() if entry.partition(b"=")[0] not in inherits_env]
            r.envp = _strings([*found, *(name + b"=" + value for name, value in inherits_env.items())], keep)
        failed = 0
    finally:  # whatever it raised, nobody here is to see it
        lib.nsbox_preexec_done(r, failed)


def _spawn_with(preexec: Callable[[], object], r: Any, inherits_env: dict[bytes, bytes] | None, parked: Any) -> None:
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
            if on_linux:
                lib.nsbox_release_ids()  # which this is no fork for: see kernel_id.c
            is_command = nsbox_spawn(request)
            if is_command:
                _run_before_exec(preexec, r, inherits_env, parked)
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
    if template.idmaps is not None:
        keep += [found := template.idmaps()]
        keep += [mappings := ffi.new("nsbox_mapping[]", [(one.fd, *owner) for owner, one in found])]
        r.idmaps, r.n_idmaps = mappings, len(found)
    owners, arena = command.owners, _take_arena(template.nops)
    r.arena, r.arena_len = arena.pointer, arena.size
    r.result = command.progress = result = arena.result
    result.pid = result.init_pid = 0
    result.init_pidfd = result.init_says = result.go_fd = result.pidfd = -1
    try:
        if command.preexec is not None:
            _spawn_with(command.preexec, r, command.inherits_env, command.parked)
            if owners is not None:
                _owners().own([fd for fd in map(getattr, [result] * 4, _DESCRIPTORS) if fd >= 0], owners)
        elif owners is None:
            lib.nsbox_spawn(r)
        else:
            _owners().own_left(lib.nsbox_spawn, r, result, _DESCRIPTORS, owners)
        answer = Result(
            *(result.error, result.step, result.op, result.pid),
            *(result.init_pid, result.init_pidfd, result.init_says, result.go_fd),
        )
        answer.root_id, answer.pidfd = result.root_id, result.pidfd
        if answer.error:
            answer.detail = ffi.string(result.detail)
        else:
            command.result = answer
    except BaseException:  # of a signal handler, which runs when the call is over: nobody would own the command
        if (result.pid > 0 or result.init_pidfd >= 0) and not result.error:
            command.result = None
            end(result.pid, result.init_pidfd, result.init_says, result.go_fd, owners)
        raise
    try:
        if answer.step == constants.STEP_KILLED:
            _abandoned.append((arena, r, keep, template, command))
        else:
            _give_back(arena, template.nops)
    except BaseException:  # the same; the arena may be another thread's by now
        abandon(command)
        raise
    return answer


_DESCRIPTORS = ("init_pidfd", "init_says", "go_fd", "pidfd")  # that a spawn leaves: fields of nsbox_result


def _owners() -> Any:
    return sys.modules["nsbox._base.owners"]  # loaded by those who have any; a program that starts one command has none


def abandon(command: Command) -> None:
    """End what a spawn has started, if nobody has answered for it since: a signal's handler has raised in between."""
    result, command.result = command.result, None
    if result is not None:
        end(result.pid, result.init_pidfd, result.init_says, result.go_fd, command.owners)
        result.on_end()


_LAST_WAIT = 30_000  # milliseconds


def _reap(pid: int) -> None:
    """Wait for a child that was killed, but not for ever."""
    until = time.monotonic() + _LAST_WAIT / 1000
    try:
        while pid > 0 and os.waitpid(pid, os.WNOHANG | WALL)[0] == 0 and time.monotonic() < until:
            time.sleep(0.0005)
    except ChildProcessError:
        pass


def end(pid: int, init_pidfd: int, init_says: int, go_fd: int = -1, owners: list[Any] | None = None) -> None:
    """Kill a command (pid 0: none), and return when its whole sandbox is gone, whatever its policy lets go on.

    After half a minute in any case: nobody is told here, and something worse is being told already. owners: of the
    descriptors, which are closed with these.
    """
    try:
        if pid > 0:
            os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:  # where SIGCHLD is ignored the kernel reaps
        pid = 0
    if init_pidfd >= 0:
        try:
            signal.pidfd_send_signal(init_pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass
    _reap(pid)
    if init_pidfd >= 0:
        wait(init_pidfd, -1, _LAST_WAIT)
    if owners:
        for owner in owners:
            owner.close()
        owners.clear()
        return
    for fd in (init_pidfd, init_says, go_fd):
        if fd >= 0:
            os.close(fd)


def wait(pidfd: int, init_says: int, timeout_ms: int) -> bool:
    """Wait until the init behind pidfd is gone or says at init_says that its sandbox is empty; timeout_ms -1: for ever.

    An init that is a child of this process is reaped.
    """
    end = time.monotonic() + timeout_ms / 1000
    while True:
        ret = lib.nsbox_wait(pidfd, init_says, timeout_ms)
        if ret >= 0:
            return bool(ret)
        if -ret != 4:  # EINTR; Python's signal handlers have run by now
            raise OSError(-ret, os.strerror(-ret))
        timeout_ms = max(0, round((end - time.monotonic()) * 1000)) if timeout_ms > 0 else timeout_ms
