"""A sandbox that many commands enter one after the other: its pid 1 starts them on request.

A process that enters a pid namespace with untrusted processes must come from clean memory (CVE-2016-9962). So none
enters this one from outside: pid 1 is a small program that is confined as a command is, and each command is its child.
Each command has a socket, by which pid 1 sends its pidfd and reports its end (session_command.py).
"""

from __future__ import annotations

import _socket  # as in _base.descriptors
import array
import contextlib
import errno
import fcntl
import os
import select
import signal
import stat
import time

from nsbox._base.descriptors import high, pair, sealed
from nsbox._base.errors import Reason, SetupError, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.poll import is_readable
from nsbox._base.stdlib import RLock
from nsbox._core import abi, buffers, linux
from nsbox._core.abi import constants as c
from nsbox._core.command import Command, Result
from nsbox._core.entry import ASKING, encode_entry
from nsbox._core.request import assembled_once
from nsbox._kept.ids import ids_of, of_pid_1
from nsbox._kept.pipes import Unread
from nsbox._kept.session_command import LONGEST, SessionCommand, received
from nsbox._lifetime import kills
from nsbox._lookup.host import host_for
from nsbox._plan.ops import Tmpfs
from nsbox._popen import pty, terminal
from nsbox._relay.line import LateLine, joined
from nsbox._seccomp.bpf import EPERM, Arg, Program, Rule
from nsbox._spawn.prepare import prepare
from nsbox._spawn.start import Start, spawn
from nsbox._spawn.way import Way

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nsbox._core import command as core_command
    from nsbox._kept.ids import Ids
    from nsbox._plan.plan import Identity
    from nsbox._policy.policy import Policy
    from nsbox._relay.relay import Line, Relay
    from nsbox._spawn.prepare import Prepared
    from nsbox._tools.verdicts import Fate

_PAUSE = 0.002  # seconds between two looks for processes that haven't ended yet
_MOST_FDS = 240  # SCM_MAX_FD is 253


def _check(prepared: Prepared) -> None:
    plan = prepared.plan
    if plan.backend != "namespaces" or plan.plain or not {"mount", "pid"} <= plan.namespaces:
        raise UnavailableError(Reason(f"a session needs namespaces of its own; the backend is {plan.backend}"))
    if plan.capabilities is not None or not plan.die_with_parent or plan.pidns is not None:
        raise UnavailableError(Reason("details belong to one command"))
    if plan.identity.change_ids and not plan.identity.by_helper:
        raise UnavailableError(Reason("a change of ids needs a sandbox with several"))


class SessionWay(Way):
    """Starts commands as children of one sandbox's pid 1."""

    kind = "session"
    remedy = "the policy has to say ids='full'"  # what a call needs that asks for other ids

    def __init__(
        self,
        policy: Policy,
        relay: Relay | None = None,
        *,
        prepared: Prepared | None = None,
        start: Callable[[Start], Result] = spawn,
    ) -> None:
        """Make the sandbox; raises what starting a command raises.

        prepared: what the sandbox is made of. Default: what the policy says.
        start: what starts its pid 1.
        """
        super().__init__(policy, relay)
        self._lock = RLock()
        self._prepared = prepared = prepared or prepare(policy, host_for(policy))
        _check(prepared)
        self._pidfd = -1
        self._line: core_command.Line | core_command.LateLine | None = None  # None: it has the host's network
        self._unread = Unread()
        self._socket, theirs = pair()
        secret = int.from_bytes(os.urandom(8), "little")
        with contextlib.ExitStack() as stack:
            stack.callback(theirs.close)
            caller = high(os.pidfd_open(os.getpid()))
            stack.callback(os.close, caller)
            # All users may execute it: the sandbox's ids, with which that is done, may differ from this process's.
            image = sealed("nsbox-session", linux.init_image("session"), 0o111)
            stack.callback(os.close, image)
            command = Command(
                programs=[],
                argv=[b"nsbox-init"],
                envp=buffers.Strings([]),
                cwd=None if policy.workdir is None else os.fsencode(policy.workdir),
                flags=c.CLOSE_FDS | c.RESTORE_SIGNALS | c.AS_INIT | c.BY_FD | c.CWD_OPTIONAL,
                stdio=(theirs.fileno(), caller, image),
                # Its commands inherit the filters of pid 1, which exists before them.
                filters=[*terminal.filters(policy, prepared.plan, (0, 1, 2)), _marks_filter(policy, secret)],
            )
            command.relay = relay
            command.keeps_caps = prepared.plan.identity.by_helper
            if prepared.plan.network is None and "net" in prepared.plan.namespaces:
                self._line = command.line = LateLine()
            try:
                result = start(Start(policy, of_pid_1(prepared), command, "nsbox-init", policy.workdir))
                self.pid, self._leaf, self._on_end = result.pid, command.leaf, result.on_end
                self._line = command.line
                self._pidfd = high(os.pidfd_open(result.pid))
            except BaseException:
                self._socket.close()
                self._close_line()
                raise
        self._begin(secret, prepared.plan.identity)

    def _begin(self, secret: int, identity: Identity) -> None:
        """Tell pid 1 what it needs before the first command; raises SetupError if it can't do its part."""
        is_up = self._ask_for(c.ASKED_SECRET, int(identity.by_helper), secret) is not None
        if is_up and identity.change_ids:
            is_up = self._ask_for(c.ASKED_IDS, 0, identity.gid << 32 | identity.uid) is not None
        if not is_up and identity.by_helper:
            self.close()
            what = "its pid 1 has ended: a filter may refuse capget(2), capset(2), or the calls by which ids change"
            raise SetupError(errno.EPERM, "enter the session", None, what)

    @property
    def has_ended(self) -> bool:
        """Whether pid 1 has gone, and the session with it."""
        return self._pidfd < 0 or is_readable(self._pidfd)

    def join(self, relay: Relay | None) -> Line:
        """Let a relay serve the session, unless one does already; None: one of its own."""
        with self._lock:
            self._line = line = joined(self._line, relay)
            return line

    def spawn(self, start: Start) -> Result:
        """Start a command; pid 1 makes it."""
        command = start.command
        if start.policy is not self.policy:
            raise ValueError("a session's commands can't have kill_on_exit=: what they leave behind goes on")
        _check_command(command)
        ids = ids_of(self._prepared.plan, command, self.remedy)
        line = self._line
        if line is not None and not line.is_later:
            command.line, command.line_mark = line, line.mark()
        ours, theirs = pair()
        try:
            reader, writer = (high(fd) for fd in os.pipe2(os.O_CLOEXEC))
        except BaseException:
            ours.close()
            theirs.close()
            raise
        child = SessionCommand(ours, reader, self._send)
        try:
            try:
                self._ask(command, ids, theirs, writer)
            finally:
                theirs.close()
                os.close(writer)
            result = child.start(self._pidfd)
            if result.error:
                from nsbox._spawn.failure import exception

                raise exception(result, start, host_for(start.policy), "end what runs in it: kill_processes()")
            result.init_pid, result.session_command, result.on_end = self.pid, child, child.close
            if self._prepared.plan.kernel_id != start.prepared.plan.kernel_id:  # what the machine allows has changed
                result.plan = self._prepared.plan
            return result
        except BaseException:
            child.signal(signal.SIGKILL)
            child.close()
            raise

    def _ask(self, command: Command, ids: Ids, told: _socket.socket, failed: int) -> None:
        flags = c.ENTRY_SETSID if self._prepared.plan.new_session or command.flags & c.SETSID else 0
        flags |= c.ENTRY_CWD_OPTIONAL if command.flags & c.CWD_OPTIONAL else 0
        sources: dict[int, int] = {fd: fd for fd in command.pass_fds}  # by the number in the command
        for target, fd in enumerate(command.stdio):
            sources.pop(target, None)
            if fd == c.DEVNULL:
                flags |= c.ENTRY_NULL << target
            elif fd >= 0 or _is_inherited(target):
                sources[target] = fd if fd >= 0 else target
        targets = sorted(sources)
        if self._prepared.plan.kernel_id:
            open_pipes(sources.values())
        if len(targets) > _MOST_FDS:
            raise ValueError(f"a session passes at most {_MOST_FDS} descriptors to a command")
        flags |= c.ENTRY_TERMINAL << command.terminal - 1 if command.terminal else 0
        flags |= 0 if ids[2] is None else c.ENTRY_GROUPS
        pgid = -1 if flags & c.ENTRY_SETSID else command.pgid
        entry = encode_entry(
            command.programs, command.argv, command.envp.items, command.cwd, targets, flags, command.umask, pgid, ids
        )
        request = sealed("nsbox-entry", entry, 0o400)
        try:
            fds = array.array("i", [request, told.fileno(), failed, *(sources[target] for target in targets)])
            with self._lock:
                if self._pidfd < 0:
                    raise ValueError("the session is closed")
                self._socket.sendmsg([b"\0"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)])
        except (BrokenPipeError, ConnectionResetError):
            raise SetupError(errno.ESRCH, "enter the session", None, "it has ended") from None
        finally:
            os.close(request)

    def _send(self, pidfd: int, number: int) -> None:
        """Send a signal to a command that has ids which this process may not signal."""
        self._answer(ASKING.pack(c.ASKED_SEND, number, 0), [pidfd])

    def _ask_for(self, what: int, number: int, mark: int, fds: Iterable[int] = ()) -> int | None:
        """Return pid 1's answer; None if the session has ended, or doesn't answer. what: a request of abi_session.h."""
        answer = self._answer(ASKING.pack(what, number, mark), fds)
        return None if answer is None else int(answer[0][-1])

    def _answer(self, message: bytes, fds: Iterable[int] = ()) -> tuple[tuple[int, ...], int] | None:
        """Return pid 1's whole answer, and the descriptor that has come with it, or -1."""
        ours, theirs = pair()
        try:
            try:
                rights = array.array("i", [theirs.fileno(), *fds])
                with self._lock:
                    if self._pidfd < 0:
                        return None
                    self._socket.sendmsg([message], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
                    session = os.dup(self._pidfd)
            except (BrokenPipeError, ConnectionResetError):
                return None
            finally:
                theirs.close()
            try:
                poller = select.poll()
                poller.register(ours, select.POLLIN)
                poller.register(session, select.POLLIN)
                poller.poll(LONGEST)
                return received(ours, _socket.MSG_DONTWAIT)
            except (BlockingIOError, ConnectionResetError):
                return None
            finally:
                os.close(session)
        finally:
            ours.close()

    def open_root(self) -> int:
        """Return a new descriptor (O_PATH) of the session's "/"; raises SetupError if it has ended."""
        return self._made(ASKING.pack(c.ASKED_ROOT, 0, 0), (), has_fd=True)

    def kernel_id_of(self, prepared: Prepared) -> int:
        """Return the kernel id of the session's commands, or 0."""
        return self._prepared.plan.kernel_id

    def open_terminal(self) -> tuple[int, int]:
        """Return the two ends of a terminal that has a name in the session, if that has a devpts."""
        try:
            root = self.open_root()
            try:
                return pty.opened_in(root)
            finally:
                os.close(root)
        except OSError:  # also a SetupError, which the start is about to raise too
            return super().open_terminal()

    def make_name(self, kind: int, mode: int, names: Sequence[str], dirs: Sequence[int]) -> int:
        """Make a name with the ids of commands; return the descriptor of a new file, open for writing, or -1.

        kind: one of abi_session.h's nsbox_make. names, dirs: a name, and the directory that it is in; to move one: two.

        Raises OSError, and SetupError if the session has ended.
        """
        text = b"".join(os.fsencode(name) + b"\0" for name in names)
        if any(len(os.fsencode(name)) > 255 for name in names):
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), names[-1])
        return self._made(ASKING.pack(c.ASKED_MAKE, kind, mode) + text, dirs, has_fd=kind == c.MAKE_FILE)

    def _made(self, message: bytes, fds: Iterable[int], *, has_fd: bool) -> int:
        answer = None if self.has_ended else self._answer(message, fds)
        if answer is None:
            raise SetupError(errno.ESRCH, "reach the session's files", None, "it has ended, and they with it")
        (_, error, *_), fd = answer
        if error or (has_fd and fd < 0):  # without a free number, the kernel drops what comes
            raise OSError(error or errno.EMFILE, os.strerror(error or errno.EMFILE))
        return fd

    def signal_started(self, command: SessionCommand, number: int, *, frozen: bool = False) -> int:
        """Send a signal (0: none) to a command and everything that it has started; return how many of them are left.

        Without marks, that is the command's descendants, as far as their parents are alive. frozen: stop the session
        meanwhile, so that no process can fork faster than it is found, and then continue it.
        """
        if command.mark:
            return self._ask_for(c.ASKED_FREEZE if frozen else c.ASKED_SIGNAL, number, command.mark) or 0
        return kills.signal_below(command.pid, number) if command.status is None else 0

    def keep_output(self, pipes: list[int], *, in_file: bool) -> tuple[str | None, Fate]:
        """Let pid 1 read the pipes that a command has left to others; return the file that it writes, and their fate.

        in_file: whether there may be such a file: a new one, if the session has a /tmp of its own.
        """
        dest = [op for op in self._prepared.plan.ops if getattr(op, "dest", None) == "/tmp"]
        has_tmp = len(dest) == 1 and isinstance(dest[0], Tmpfs)
        with self._lock:
            self._unread.drop_ended()
        number = self._ask_for(c.ASKED_KEEP, int(in_file and has_tmp), 0, pipes)
        if number is None or number == 2**64 + c.NOT_KEPT:
            with self._lock:
                return None, "unread" if self._pidfd >= 0 and self._unread.keep(pipes) else "closed"
        return (f"/tmp/nsbox-output-{number}.log" if number else None), "read"

    def end_processes(self) -> None:
        """Kill everything in it except pid 1, and return when it is gone; raises KillError if something doesn't end."""
        kill, request = kills.Kill(), ASKING.pack(c.ASKED_END, 0, 0)
        while not self.has_ended:
            answer = self._answer(request)
            if answer is not None and answer[0][1] == errno.ESRCH:
                return
            error = kill.error(0, self.pid)
            if error is not None:
                raise error
            time.sleep(_PAUSE)

    def close(self) -> None:
        """End everything in it, and return when it has gone; raises KillError if something doesn't end."""
        pidfd, self._pidfd = self._pidfd, -1
        if pidfd < 0:
            return
        try:
            with contextlib.suppress(ProcessLookupError):  # first: a thread that is sending it a request has the lock
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            with self._lock:
                self._socket.close()
                self._unread.close()
                self._close_line()
            kills.outlast(pidfd, self.pid)
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PIDFD, pidfd, os.WEXITED | abi.WALL)
        finally:
            os.close(pidfd)
            if self._leaf is not None:
                self._leaf.end(kill=True)
            self._on_end()

    def kill(self) -> None:
        """Kill everything in it."""
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _close_line(self) -> None:
        if isinstance(self._line, LateLine):
            self._line.close()

    def forget(self) -> None:
        """In a forked child, close what is the parent's."""
        self._unread.close()
        self._close_line()
        self._lock = RLock()
        pidfd, self._pidfd = self._pidfd, -1
        self._socket.close()
        if pidfd >= 0:
            os.close(pidfd)


_LOCKS = Arg(1, 10)  # RLIMIT_LOCKS, which the kernel hasn't used since Linux 2.4.25
_WORD = 0xFFFFFFFF


def _marks_filter(policy: Policy, secret: int) -> bytes:
    """Return the filter by which pid 1 alone, knowing the secret, sets the limit that marks commands: init/started.c.

    For others, the call claims to succeed, since the limit limits nothing; with the old limit asked for too, it fails.
    """
    by_us = (Arg(5, secret & _WORD), Arg(5, secret >> 32, high=True))
    rules = (
        Rule(("prlimit64",), 0, (_LOCKS, Arg(2, 0), Arg(2, 0, high=True))),
        Rule(("prlimit64",), 0, (_LOCKS, *by_us)),
        Rule(("prlimit64",), EPERM, (_LOCKS, Arg(3, 0, inverted=True))),
        Rule(("prlimit64",), EPERM, (_LOCKS, Arg(3, 0, inverted=True, high=True))),
        Rule(("prlimit64",), None, (_LOCKS,)),
        Rule(("setrlimit",), None, (Arg(0, 10),)),
    )
    wish = policy.filter
    program = Program(rules, with_compatible=wish.base == "off" and not wish.rules)
    return assembled_once(program)


def open_pipes(fds: Iterable[int]) -> None:
    """Let processes of other ids reopen a pipe that they have, as share_pipes() does in kernel_id.c, which says why."""
    for fd in fds:
        with contextlib.suppress(OSError):
            status = os.fstat(fd)
            is_ours = stat.S_ISFIFO(status.st_mode) and status.st_uid == 0
            if is_ours and os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:["):
                os.fchmod(fd, 0o666)


def _is_inherited(fd: int) -> bool:
    """Return whether a standard descriptor is one that any child would inherit, not another file under its number."""
    try:
        return not fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    except OSError:
        return False


def _check_command(command: Command) -> None:
    """Refuse options that only a child of this process can have."""
    for name, is_used in (
        ("preexec_fn", command.preexec is not None),
        ("close_fds=False", not command.flags & c.CLOSE_FDS),
    ):
        if is_used:
            raise ValueError(f"{name} can't be had in a session: its commands are no children of this process")
