"""The calls of the C core: a spawn, the wait for its end, and a sandbox that is ended at once.

Lean: functions import `ctypes` (3.6 ms) for a preexec_fn,
and `_base.owners` (0.8 ms), which one command alone doesn't need.
"""

from __future__ import annotations

import gc
import os
import signal
import time

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._core.abi import WALL, constants, ffi, lib, on_linux
from nsbox._core.buffers import _abandoned, _give_back, _strings, _take_arena
from nsbox._core.command import Command, Result

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsbox._base.owners import Owner
    from nsbox._core.abi import CData
    from nsbox._core.command import Parked
    from nsbox._core.request import Request

adopt_inits = False  # True: this machine's pid 1 doesn't reap inits, as orphans.py has seen, so this process does


def _fill(r: CData, q: Command, keep: list[object]) -> None:
    r.programs = _strings(q.programs, keep)
    spare = [b"sh"] if q.flags & constants.SHELL else []  # the name of a shell comes before a script's
    r.argv = _strings([*spare, *q.argv], keep) + len(spare)
    r.envp = q.envp.array
    if q.cwd is not None:
        r.cwd = cwd = ffi.from_buffer("char[]", q.cwd)
        keep.append(cwd)
    r.flags |= q.flags
    r.stdin_fd, r.stdout_fd, r.stderr_fd = q.stdio
    r.umask, r.pgid, r.uid, r.gid = q.umask, q.pgid, q.uid, q.gid
    if q.cgroup_fd >= 0 or q.terminal:
        r.cgroup_fd, r.terminal = q.cgroup_fd, q.terminal
    if q.keeps_caps:
        r.keeps_caps = 1
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
    """Return the environment as the C library has it. Other threads could change it, so there mustn't be any."""
    import ctypes

    pointer = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    entries: list[bytes] = []
    while (entry := pointer[len(entries)]) is not None:
        entries.append(entry)
    return entries


def _run_before_exec(
    preexec: Callable[[], object], r: CData, inherits_env: dict[bytes, bytes] | None, parked: Parked | None
) -> None:
    """In the command, call preexec, and execute the program. Never returns."""
    failed = 1
    try:
        if parked is not None:
            parked.forget()
        preexec()
        if inherits_env is not None:
            keep: list[object] = []
            inherited = [entry for entry in _c_environment() if entry.partition(b"=")[0] not in inherits_env]
            r.envp = _strings([*inherited, *(name + b"=" + value for name, value in inherits_env.items())], keep)
        failed = 0
    finally:  # whatever it raises, no handler of this copy may see it
        lib.nsbox_preexec_done(r, failed)


def _spawn_with(
    preexec: Callable[[], object], r: CData, inherits_env: dict[bytes, bytes] | None, parked: Parked | None
) -> None:
    """Start one command in which Python code runs before its program: the call returns twice, as os.fork() does.

    This thread holds the GIL meanwhile: a copy of this process without it could never acquire it. As in subprocess,
    garbage collection is off, since its finalizers belong to this process.
    """
    import ctypes

    api = ctypes.pythonapi
    address = int(ffi.cast("uintptr_t", ffi.addressof(lib, "nsbox_spawn")))
    nsbox_spawn = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(address)
    request = int(ffi.cast("uintptr_t", r))
    # C calls it: if Python did, and other threads had requested the GIL, it would release it first and wait for them.
    after_fork = ctypes.cast(api.PyOS_AfterFork_Child, ctypes.c_void_p).value
    r.after_fork = ffi.cast("void (*)(void)", after_fork or 0)
    before_fork, after_in_parent = api.PyOS_BeforeFork, api.PyOS_AfterFork_Parent
    is_command = 0
    collecting = gc.isenabled()
    try:
        api.PyGC_Disable()
        try:  # before_fork() holds the lock of imports, so it is undone even if a signal handler raises
            before_fork()
            if on_linux:
                lib.nsbox_release_ids()  # for these, this isn't a fork: see kernel_id.c
            is_command = nsbox_spawn(request)
            if is_command:
                _run_before_exec(preexec, r, inherits_env, parked)
        finally:
            if not is_command:
                after_in_parent()
    finally:
        if collecting:
            api.PyGC_Enable()


def spawn(request: Request, command: Command) -> Result:
    """Start one command. Blocks, without the GIL, until it has executed its program or failed to."""
    keep: list[object] = []
    r = ffi.new("nsbox_request *", request.request[0])
    _fill(r, command, keep)
    if request.idmaps is not None:
        keep += [namespaces := request.idmaps()]
        keep += [mappings := ffi.new("nsbox_mapping[]", [(one.fd, *owner) for owner, one in namespaces])]
        r.idmaps, r.n_idmaps = mappings, len(namespaces)
    owners, arena = command.owners, _take_arena(request.nops)
    r.arena, r.arena_len = arena.pointer, arena.size
    r.result = result = arena.result
    result.pid = result.init_pid = 0
    result.init_pidfd = result.init_says = result.go_fd = result.pidfd = -1
    result.user_fd = result.mnt_fd = result.null_fd = result.image_fd = -1
    try:
        if command.preexec is not None:
            _spawn_with(command.preexec, r, command.inherits_env, command.parked)
            if owners is not None:
                from nsbox._base.owners import own  # loaded wherever there are owners

                own([fd for fd in map(getattr, [result] * len(_DESCRIPTORS), _DESCRIPTORS) if fd >= 0], owners)
        elif owners is None:
            lib.nsbox_spawn(r)
        else:
            from nsbox._base.owners import own_left

            own_left(lib.nsbox_spawn, r, result, _DESCRIPTORS, owners)
        answer = Result(
            *(result.error, result.step, result.op, result.pid),
            *(result.init_pid, result.init_pidfd, result.init_says, result.go_fd),
        )
        answer.root_id, answer.pidfd = result.root_id, result.pidfd
        if result.user_fd >= 0:
            answer.kept = (result.user_fd, result.mnt_fd, result.null_fd, result.image_fd)
        if answer.error:
            answer.detail = ffi.string(result.detail)
        else:
            command.result = answer
    except BaseException:  # from a signal handler, which runs after the call: otherwise, nothing would own the command
        if (result.pid > 0 or result.init_pidfd >= 0) and not result.error:
            command.result = None
            end(result.pid, result.init_pidfd, result.init_says, result.go_fd, owners)
        raise
    try:
        if answer.step == constants.STEP_KILLED:
            _abandoned.append((arena, r, keep, request, command))
        else:
            _give_back(arena, request.nops)
    except BaseException:  # from a signal handler too; another thread may have the arena by now
        abandon(command)
        raise
    return answer


# Those that a spawn leaves, as fields of nsbox_result: what is kept, then what belongs to a command.
_DESCRIPTORS = ("user_fd", "mnt_fd", "null_fd", "image_fd", "init_pidfd", "init_says", "go_fd", "pidfd")


def abandon(command: Command) -> None:
    """End what a spawn has started, if nothing owns it yet, because a signal handler has raised in between."""
    result, command.result = command.result, None
    if result is not None:
        end(result.pid, result.init_pidfd, result.init_says, result.go_fd, command.owners)
        result.on_end()


_LAST_WAIT = 30_000  # milliseconds


def _reap(pid: int) -> None:
    """Wait for a child that was killed, but only for so long."""
    until = time.monotonic() + _LAST_WAIT / 1000
    try:
        while pid > 0 and os.waitpid(pid, os.WNOHANG | WALL)[0] == 0 and time.monotonic() < until:
            time.sleep(0.0005)
    except ChildProcessError:
        pass


def end(pid: int, init_pidfd: int, init_says: int, go_fd: int = -1, owners: list[Owner] | None = None) -> None:
    """Kill a command (pid 0: none), and return when its whole sandbox has gone, whatever its policy lets go on.

    It returns after half a minute in any case, without an error: a worse one is already on its way.

    owners: those of the descriptors, which close them; None: the numbers are closed.
    """
    try:
        if pid > 0:
            os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:  # if SIGCHLD is ignored, the kernel reaps it
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
    """Wait until the init behind pidfd has gone, or says by init_says that its sandbox is empty; return whether it has.

    timeout_ms: -1 for no limit. An init that is a child of this process is reaped.
    """
    end = time.monotonic() + timeout_ms / 1000
    while True:
        ret = lib.nsbox_wait(pidfd, init_says, timeout_ms)
        if ret >= 0:
            return bool(ret)
        if -ret != 4:  # EINTR; Python's signal handlers have run by now
            raise OSError(-ret, os.strerror(-ret))
        timeout_ms = max(0, round((end - time.monotonic()) * 1000)) if timeout_ms > 0 else timeout_ms
