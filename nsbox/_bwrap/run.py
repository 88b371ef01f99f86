"""bubblewrap's command line, carried out by nsbox: `nsbox bwrap`, `nsbox-bwrap`, and the bwrap that --install makes.

One process, which ends with the command. It imports little, and nothing that it doesn't need: most of its time is the
start of the interpreter.

Lean: `_signal` stands for `signal` (5 ms, most of it for enums). Functions import what few command lines need: `ctypes`
(3.6 ms), `watch` (4.7 ms), `messages` (9 ms), `help` (0.1 ms). Undo this when bwrap's command line needs no Python.
"""

from __future__ import annotations

import _signal
import errno
import sys
import time
from posix import environ as _given

from nsbox._base.errors import NsboxError, PolicyError
from nsbox._base.frozen import TYPE_CHECKING, replace
from nsbox._base.lean_os import os
from nsbox._bwrap.asked import Asked, Failed, Refused, Usage, Version
from nsbox._bwrap.parse import parse
from nsbox._bwrap.policy import policy_of, read_all
from nsbox._core import abi, buffers, call, linux
from nsbox._core.abi import constants as c
from nsbox._core.command import Command
from nsbox._machine import minimal
from nsbox._plan import ops
from nsbox._plan.plan import UNCHANGED, Identity
from nsbox._policy.policy import Policy
from nsbox._spawn.prepare import Prepared, prepare, with_plan
from nsbox._spawn.start import Start, request_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsbox._bwrap.watch import Watch

VERSION = "0.11.1"  # whose behaviour this is; clients ask for it

_FORWARDED = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP, _signal.SIGQUIT, _signal.SIGUSR1, _signal.SIGUSR2)
_S_IFMT, _S_IFDIR = 0o170000, 0o040000  # inode(7)
_BY_KERNEL = 0x80  # SI_KERNEL, <asm-generic/siginfo.h>: such as a terminal's key, which the whole group gets
_LONGEST = 30.0  # seconds that a killed command may take to end


def main(argv: Sequence[str] | None = None, parent: int | None = None) -> int:
    """Do what bwrap does with these arguments, the program's name first; return the exit status.

    parent: the pid of the process that started this one, if it was noted at the start.
    """
    prog, *words = sys.argv if argv is None else argv
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # which raises
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    if parent is None:
        parent = os.getppid()
    before = _tie(parent) if "--die-with-parent" in words else None  # before anything that takes time
    say = _to_stderr
    try:
        environ = _environ()
        options = parse(
            words,
            environ,
            read=read_all,
            say=say,
            cwd=_cwd(environ),
            real_uid=os.getuid(),
            real_gid=os.getgid(),
        )
    except Refused as error:
        say(str(error))
        return 1
    except Version:
        return _to_stdout(f"bubblewrap {VERSION}\n")
    except Usage as wanted:
        from nsbox._bwrap.help import usage

        if wanted.status == 0:
            return _to_stdout(usage(prog))
        say(usage(prog).rstrip("\n"))
        return wanted.status
    if options.die_with_parent and before is None:  # the option was in an --args file
        _tie(parent)
    elif not options.die_with_parent and before is not None:  # it was an argument of the command
        linux.death_signal(before)
    try:
        return run(options)
    except Failed as error:
        say(f"{'<3>' if options.level_prefix else ''}bwrap: {error}")
        return 1


def _to_stderr(text: str) -> None:
    try:
        os.write(2, os.fsencode(text + "\n"))
    except OSError:
        return  # nothing reads it


def _to_stdout(text: str) -> int:
    data = os.fsencode(text)
    try:
        while data:
            data = data[os.write(1, data) :]
    except OSError:
        return 1
    return 0


def _environ() -> Mapping[str, str]:
    """Return the environment as the caller gave it: in the C locale, an interpreter sets LC_CTYPE (PEP 538)."""
    env = {os.fsdecode(name): os.fsdecode(value) for name, value in _given.items()}
    if env.get("LC_CTYPE") not in ("C.UTF-8", "C.utf8", "UTF-8"):
        return env
    try:
        with open("/proc/self/environ", "rb") as file:
            pairs = [word.partition(b"=") for word in file.read().split(b"\0")]
    except OSError:
        return env
    env.clear()
    for key, equals, text in pairs:
        if equals:
            env.setdefault(os.fsdecode(key), os.fsdecode(text))
    return env


def _cwd(env: Mapping[str, str]) -> str:
    """Return the current directory, by the name in PWD if that is right (get_current_dir_name(3)).

    "" if it is gone, or can't be found out.
    """
    name = env.get("PWD", "")
    try:
        if name.startswith("/") and _is_same(os.stat(name), os.stat(".")):
            return name
    except OSError:
        pass  # PWD is wrong
    try:
        return os.getcwd()
    except OSError:
        return ""


def _is_same(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_ino, one.st_dev) == (other.st_ino, other.st_dev)


# ---- one run


def run(options: Asked) -> int:
    """Make the sandbox, run the command in it, and return its exit status, 128 + N after signal N; raises Failed.

    If this process got that signal too, it dies of it, so that a shell that started it knows that its user wants to
    stop.
    """
    if not abi.on_linux:
        raise Failed("it makes namespaces, which only Linux has")
    if options.exec_label is not None or options.file_label is not None:
        raise Failed("labeling not supported on this system")
    contents = {op.data for op in options.ops if isinstance(op, ops.File | ops.BindData)}
    for fd in options.fds:
        if fd not in contents:  # for those, the error of reading says more
            _check_open(fd)
    options = replace(
        options, ops=tuple(found for op in options.ops if (found := _found(op, options.sources)) is not None)
    )
    policy, prepared = _prepared(options)
    if options.pidns is not None:
        _hide()
    command = _command(options)
    waiting: list[int] = []
    _catch(waiting)
    watch = _watch(options, policy, command)
    try:
        request = request_of(prepared, command)
    except NsboxError as error:
        raise Failed(str(error)) from None
    result = call.spawn(request, command)
    problem = watch.started(result) if watch else ""
    if result.error and waiting:
        _die_of(waiting[0])
    if result.error or problem:
        from nsbox._bwrap.messages import failure

        raise Failed(
            problem or failure(result, options, Start(policy, prepared, command, options.command[0], options.chdir))
        )
    for fd in (result.init_says, result.init_pidfd) if not watch else ():
        if fd >= 0:
            os.close(fd)
    code, ours = _wait(result.pid, waiting, options)
    if watch:
        watch.ended(code)
    if ours:
        _die_of(ours)
    return code


def _found(op: ops.Op, names: Mapping[str, str]) -> ops.Op | None:
    """Return an op with its sources resolved in this process, and its contents; None if an optional source is missing.

    The child that mounts them is another process with other descriptors: a path through /proc/self, such as /dev/fd,
    would lead elsewhere there.
    """
    if isinstance(op, ops.Bind | ops.RoBind | ops.DevBind):
        src = _followed(op.src, names, op.optional)
        return replace(op, src=src, nofollow=True) if src else None  # a link put there in the meantime isn't followed
    if isinstance(op, ops.Overlay | ops.RoOverlay | ops.TmpOverlay):
        op = replace(op, lower=tuple(_followed(path, names) for path in op.lower))
        if isinstance(op, ops.Overlay):
            op = replace(op, upper=_followed(op.upper, names), work=_followed(op.work, names))
    if isinstance(op, ops.File | ops.BindData) and isinstance(op.data, int):
        try:
            return replace(op, data=read_all(op.data))
        except OSError as error:
            raise Failed(f"Can't write data to file {op.dest}: {error.strerror}") from None
    return op


def _followed(path: str, names: Mapping[str, str], optional: bool = False) -> str:
    """Return the name that a path leads to; "" if it is optional and missing. Raises Failed."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_mode & _S_IFMT == _S_IFDIR:
                # Opening this path makes the kernel mount what is mounted on demand.
                os.close(os.open(f"{path}/.", os.O_PATH | os.O_CLOEXEC))

            name = os.readlink(f"/proc/self/fd/{fd}")
            if name.startswith("/") and _is_same(os.fstat(fd), os.lstat(name)):
                return name
        finally:
            os.close(fd)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))  # it has no name, or lost it
    except OSError as error:
        if optional and error.errno == errno.ENOENT:
            return ""
        raise Failed(f"Can't find source path {names.get(path, path)}: {error.strerror}") from None


def _tie(parent: int) -> int:
    """Let this process be killed with its parent, which may have ended already; return its former death signal."""
    before = linux.death_signal(_signal.SIGKILL)
    if os.getppid() != parent:
        _die_of(_signal.SIGKILL)
    return before


def _die_of(number: int) -> None:
    if number != _signal.SIGKILL:
        _signal.signal(number, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)


def _check_open(fd: int) -> None:
    try:
        os.fstat(fd)
    except OSError as error:
        raise Failed(f"Invalid fd: {fd}: {error.strerror}") from None


def _inherited(options: Asked) -> list[int]:
    """Return what COMMAND gets besides its standard streams: the descriptors inherited here that no option names."""
    found = []
    try:
        names = os.listdir("/proc/self/fd")
    except OSError as error:
        raise Failed(f"Can't open /proc/self/fd: {error.strerror}") from None
    for name in names:
        fd = int(name)
        try:
            if fd > 2 and fd not in options.fds and os.get_inheritable(fd):
                found.append(fd)
        except OSError:
            continue  # the directory's own
    return sorted(found)


def _prepared(options: Asked) -> tuple[Policy, Prepared]:
    filters = options.filters
    try:
        if options.seccomp_fd is not None:
            filters = (_filter(options.seccomp_fd),)
        host = minimal.identity()
        policy = policy_of(options, filters, is_root=host.euid == 0)
        prepared = prepare(policy, host)
    except PolicyError as error:
        raise Failed(f"{error.field}: {error.problem}") from None
    except NsboxError as error:
        raise Failed(str(error)) from None
    if options.userns_block_fd is not None:  # another process writes the maps
        plan = prepared.plan
        identity = Identity(UNCHANGED, UNCHANGED, "", "")
        prepared = with_plan(prepared, replace(plan, identity=identity))
    return policy, prepared


def _filter(fd: int) -> bytes:
    try:
        data = read_all(fd)
    except OSError as error:
        raise Failed(f"Can't read seccomp data: {error.strerror}") from None
    if len(data) % 8:
        raise Failed("Invalid seccomp data, must be multiple of 8")
    if not data:
        raise Failed(f"prctl(PR_SET_SECCOMP): {os.strerror(errno.EINVAL)}")
    return data


def _hide() -> None:
    """Make this process non-dumpable; otherwise processes in a joined pid namespace could trace its children."""
    import ctypes

    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE


def _command(options: Asked) -> Command:
    flags = c.CLOSE_FDS | c.RESTORE_SIGNALS | c.SHELL
    flags |= c.AS_INIT if options.as_pid_1 else 0
    flags |= c.HOLD_MAPS if options.userns_block_fd is not None else 0
    if options.die_with_parent and (options.as_pid_1 or "pid" not in options.unshare):
        flags |= c.DIE_WITH_THREAD  # there is no init to end it
    program = options.command[0]
    argv = [options.command[0] if options.argv0 is None else options.argv0, *options.command[1:]]
    directories = options.env.get("PATH", "/bin:/usr/bin").split(":")  # confstr(3)
    found = [program] if "/" in program or not program else [f"{at or '.'}/{program}" for at in directories]
    entries = [os.fsencode(f"{name}={value}") for name, value in (options.env | {"PWD": ""}).items()]
    if options.chdir is None:
        names = [name for name in (_cwd(options.env), options.env.get("HOME"), "/") if name]
        places = [(os.fsencode(name), _environment(entries, name)) for name in dict.fromkeys(names)]
        cwd, envp = None, places[0][1]
    else:
        places, cwd, envp = [], os.fsencode(options.chdir), _environment(entries, options.chdir)
    return Command(
        programs=[os.fsencode(path) for path in found],
        argv=[os.fsencode(word) for word in argv],
        envp=envp,
        cwd=cwd,
        places=places,
        flags=flags,
        pass_fds=_inherited(options),
    )


def _environment(entries: list[bytes], directory: str) -> buffers.Strings:
    """Return an environment with a directory for its empty PWD."""
    at = entries.index(b"PWD=")
    return buffers.Strings([*entries[:at], b"PWD=" + os.fsencode(directory), *entries[at + 1 :]])


def _watch(options: Asked, policy: Policy, command: Command) -> Watch | None:
    needs = (options.info_fd, options.json_status_fd, options.block_fd, options.userns_block_fd, options.sync_fd)
    if needs == (None,) * len(needs) and not options.lock_files:
        return None
    from nsbox._bwrap.watch import Watch

    try:
        return Watch(options, policy, command)
    except OSError as error:
        raise Failed(f"Can't make pipes to hold the command by: {error.strerror}") from None


# ---- signals, and the end


def _catch(waiting: list[int]) -> None:
    """Take note of signals from now on. Those that this process ignores stay ignored, by the command too.

    SIGCHLD is the exception: a process that ignores it gets no statuses to wait for.
    """
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [_signal.SIGCHLD])
    for number in _FORWARDED:
        if _signal.getsignal(number) is not _signal.SIG_IGN:
            _signal.signal(number, lambda number, frame: waiting.append(number))


def _wait(pid: int, waiting: list[int], options: Asked) -> tuple[int, int]:
    """Pass on signals until the command has ended; return its exit status, and the signal that we both got, or 0."""
    patience = 0.05  # seconds
    fatal = 0  # a signal that a pid 1 without a handler survives (pid_namespaces(7)), so that SIGKILL has to end it
    until = 0.0  # when a killed command should have ended
    got = set()
    watched = {_signal.SIGCHLD, *_FORWARDED}
    _signal.pthread_sigmask(_signal.SIG_BLOCK, watched)
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG | abi.WALL)
        if ended:
            killed = fatal or os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            return 128 + killed if killed else os.WEXITSTATUS(status), killed if killed in got else 0
        if waiting:
            number = waiting.pop(0)
            got.add(number)
        else:
            if until and time.monotonic() > until:
                raise Failed(f"Process {pid} was killed, and doesn't end")
            info = _signal.sigtimedwait(watched, min(patience, 1) if until else patience)
            if info is None:  # a command that was killed before its exec sends no SIGCHLD
                patience = min(patience * 2, 60)
                continue
            number = info.si_signo
            got.add(number)
            if number == _signal.SIGCHLD:
                continue
            # A terminal that hangs up signals only the session's leader, which may be us.
            if info.si_code == _BY_KERNEL and number != _signal.SIGHUP and not options.new_session:
                continue
        if options.as_pid_1 and not _is_caught(pid, number):
            fatal, number = number, _signal.SIGKILL
            until = until or time.monotonic() + _LONGEST
        _send(pid, number)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        return  # the process changed its user


def _is_caught(pid: int, number: int) -> bool:
    """Say if a process handles a signal, or ignores it on purpose."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            rows = [line.split() for line in file]
    except OSError:
        return True
    masks = [int(row[1], 16) for row in rows if row[0] in ("SigCgt:", "SigIgn:")]
    return any(mask >> number - 1 & 1 for mask in masks)
