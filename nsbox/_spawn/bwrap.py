"""A command in a sandbox that bubblewrap makes: its arguments, what bwrap reports meanwhile, and how it ended.

bwrap is the caller's child, and stands for the command. It has the command's standard streams and descriptors, but
nothing of its environment: a loader would obey such variables outside of the sandbox. All options go through a
descriptor (--args), where no other process sees them. By another (--json-status-fd), bwrap reports the pid of the
sandbox's init, and whether the command has run.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import stat

from nsbox._base.descriptors import high, write_all
from nsbox._base.errors import IdsError, Reason, SetupError, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.paths import is_below
from nsbox._core import abi, buffers, call
from nsbox._core.command import Command, Result
from nsbox._plan.bwrap_words import arguments
from nsbox._plan.host import Host
from nsbox._plan.ops import Bind, BindFd, DevBind, Op, RoBind
from nsbox._plan.plan import Plan
from nsbox._policy.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsbox._plan.bwrap_words import Kind
    from nsbox._spawn.start import Named

FAILED = 125  # the status of a command that bwrap couldn't start; bwrap has said why
_ARGV0 = (0, 9)


def _kind(path: str) -> Kind:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return "missing"
    return "directory" if stat.S_ISDIR(mode) else "file"


def _kind_in(ops: Sequence[Op]) -> Callable[[str], Kind]:
    """Return a function that says what is at a path of the sandbox: below a bind, what is at its source."""

    def kind(path: str) -> Kind:
        for op in reversed(ops):
            if isinstance(op, Bind | RoBind | DevBind) and is_below(path, op.dest):
                return _kind(op.src.rstrip("/") + path[len(op.dest.rstrip("/")) :])
        return _kind(path)

    return kind


def _memory(data: bytes) -> int:
    fd = high(os.memfd_create("nsbox"))
    try:
        write_all(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_open(command: Command) -> None:
    """Refuse descriptors that are closed: one of ours could get the number."""
    for fd in command.pass_fds:
        try:
            fcntl.fcntl(fd, fcntl.F_GETFD)
        except OSError as error:
            raise SetupError(error.errno or errno.EBADF, "pass_fds") from error


def _check_directory(command: Command, policy: Policy) -> None:
    if command.cwd is None or command.flags & abi.constants.CWD_OPTIONAL or policy.base == "layers":
        return
    if not os.path.isdir(command.cwd):
        os.stat(command.cwd)  # raises with the reason
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fsdecode(command.cwd))


def _without_links(path: str) -> int:
    """Open what is at a path; raises OSError (ELOOP) if any part of it is a symlink."""
    fd = os.open("/", os.O_PATH | os.O_DIRECTORY)
    for part in filter(None, path.split("/")):
        try:
            deeper = os.open(part, os.O_PATH | os.O_NOFOLLOW, dir_fd=fd)
        finally:
            os.close(fd)
        fd = deeper
        if stat.S_ISLNK(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return fd


def _check_program(command: Command, policy: Policy, ops: Sequence[Op], program: Named) -> None:
    """Raise what an exec would, as far as that shows from outside: bwrap only writes it to the command's stderr."""
    if policy.base == "layers":
        return
    error = errno.ENOENT
    mounted = [op.dest for op in ops if isinstance(op, Bind | RoBind | DevBind)]
    for name in command.programs:
        path = os.path.join(command.cwd or b"/", name)
        real = os.fsdecode(os.path.realpath(path))
        if not os.path.exists(real) or not any(is_below(real, dest) for dest in mounted):
            continue
        if os.path.isfile(real) and os.access(real, os.X_OK):
            return
        error = errno.EACCES
    raise OSError(error, os.strerror(error), program)


def _named(command: Command, host: Host, program: Named) -> tuple[list[bytes], bytes]:
    """Return the option for the program's argv[0], and the program that bwrap looks for."""
    target = os.fsencode(program)
    if not command.argv or target == command.argv[0]:
        return [], target
    if host.bwrap_version < _ARGV0:
        raise UnavailableError(Reason("bwrap: executable= needs --argv0", "bubblewrap 0.9 or later"))
    return [b"--argv0", command.argv[0]], target


class Wrapped:
    """The arguments and descriptors of one bwrap. Call close() in the end, whether it has been started or not."""

    def __init__(self, policy: Policy, plan: Plan, filters: Sequence[bytes], host: Host) -> None:
        """Take what doesn't depend on the command. filters: the plan's programs, assembled."""
        self.policy, self.plan, self.filters, self.host = policy, plan, filters, host
        self.status = -1  # by which bwrap reports; the result owns it after started()
        self._fds: list[int] = []
        self._lent: list[int] = []  # the policy's own
        self._line = b""

    def _put(self, data: bytes | int) -> int:
        if isinstance(data, int):
            self._lent.append(data)
            return data
        self._fds.append(_memory(data))
        return self._fds[-1]

    def _held(self, op: Op) -> Op | None:
        """Return the op with its source as a descriptor, opened without links; None: it is optional and missing."""
        if not isinstance(op, Bind | RoBind) or not op.nofollow:
            return op
        try:
            self._fds.append(high(_without_links(op.src)))
        except OSError as error:
            if error.errno == errno.ENOENT and op.optional:
                return None
            raise SetupError(error.errno or errno.EIO, "open source", op.describe()) from error
        return BindFd(self._fds[-1], op.dest, read_only=isinstance(op, RoBind))

    def prepare(self, command: Command, program: Named) -> None:
        """Turn the command into bwrap's; raises what its exec would, as far as that is known before."""
        plan = self.plan
        if command.preexec is not None:
            raise UnavailableError(Reason("bwrap: preexec_fn would be called outside of the sandbox"))
        own = (plan.identity.uid, plan.identity.gid)
        if command.groups is not None or (command.uid, command.gid) not in ((None, None), own):
            raise IdsError(errno.EPERM, "setuid", None, "bwrap makes sandboxes with one id; see uid= of the policy")
        _check_open(command)
        _check_directory(command, self.policy)
        _check_program(command, self.policy, plan.ops, program)
        name, target = _named(command, self.host, program)
        reader, writer = os.pipe()
        try:
            self.status = high(reader)
        finally:
            self._fds.append(high(writer))
        words = [os.fsencode(word) for word in plan.wrapper[1:]]
        words += [b"--json-status-fd", str(self._fds[0]).encode(), *name]
        for entry in command.envp.items:
            variable, _, value = entry.partition(b"=")
            words += [b"--setenv", variable, value]
        ops = plan.ops
        if self.host.bwrap_binds_fds:
            ops = tuple(op for op in map(self._held, ops) if op is not None)
        words += map(os.fsencode, arguments(ops, _kind_in(plan.ops), self._put))
        for code in self.filters:
            words += [b"--add-seccomp-fd", str(self._put(code)).encode()]
        if command.cwd is not None and not command.flags & abi.constants.CWD_OPTIONAL:
            words += [b"--chdir", command.cwd]
        args = self._put(b"".join(word + b"\0" for word in words))
        command.pass_fds = sorted({*command.pass_fds, *self._fds, *self._lent})
        command.programs = [os.fsencode(plan.wrapper[0])]
        command.argv = [b"bwrap", b"--args", str(args).encode(), b"--", target, *command.argv[1:]]
        command.envp = buffers.Strings([])
        command.cwd = None
        command.uid, command.gid = self.host.euid, self.host.egid

    def started(self, result: Result) -> None:
        """Wait for the sandbox's init, and get its pidfd; raises SetupError if bwrap makes none."""
        self._close()
        self._read_report(result)
        if not result.init_pid:
            raise SetupError(errno.ECANCELED, "start bwrap", None, "it said why on the command's standard error")
        with contextlib.suppress(ProcessLookupError):  # it is over already
            result.init_pidfd = os.pidfd_open(result.init_pid)
        os.set_blocking(self.status, False)
        result.init_says, self.status = self.status, -1

    def _read_report(self, result: Result) -> None:
        """Read the first line, byte by byte: what comes after it is read at the end."""
        while not self._line.endswith(b"\n") and (chunk := os.read(self.status, 1)):
            self._line += chunk
        with contextlib.suppress(ValueError, KeyError):
            result.init_pid = int(json.loads(self._line)["child-pid"])

    def abandon(self, result: Result) -> None:
        """End what started() couldn't wait for. First, bwrap reports: killed before, it would leave an init behind."""
        self._close()
        if self.status >= 0:
            self._read_report(result)
        with contextlib.suppress(ProcessLookupError):
            os.kill(result.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            if result.init_pid:
                os.kill(result.init_pid, signal.SIGKILL)
        result.pid, pid = 0, result.pid  # so that nothing else ends it
        call.end(pid, result.init_pidfd, result.init_says)

    def _close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())

    def close(self) -> None:
        """Close everything that is still open."""
        self._close()
        if self.status >= 0:
            os.close(self.status)
            self.status = -1


def command_of(init_pid: int) -> int:
    """Return the pid of the command below this init of bwrap's; 0 if there is none (yet)."""
    try:
        with open(f"/proc/{init_pid}/task/{init_pid}/children", encoding="ascii") as file:
            return int(file.read().split()[0])
    except (OSError, IndexError):
        return 0


def status(raw: int, report: bytes) -> int:
    """Return the command's wait status, from bwrap's wait status and its report. Above 128, it stands for a signal."""
    if raw & 0x7F:
        return raw
    if b'"exit-code"' not in report:
        return FAILED << 8
    code = raw >> 8
    return code - 128 if 128 < code <= 128 + 64 else raw
