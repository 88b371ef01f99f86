"""What a sandbox reports to other processes, and what is held while it lives: the monitor's part of bwrap.

The command is set up. It waits until the reports are written, the locks are held, and the process that blocks it lets
it go. A thread sees to that, since the first one is busy with the command until its exec.

Lean: `_signal`, `_thread` and `_socket` stand for `signal` (1.7 ms), `threading` (1.1 ms) and `socket` (4.6 ms). Undo
this when bwrap's command line needs no Python.
"""

from __future__ import annotations

import _signal
import _socket
import _thread
import array
import contextlib
import errno
import fcntl
import os
import select
import struct

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._bwrap.asked import Asked, Failed
from nsbox._core import call, linux
from nsbox._core.abi import constants as c
from nsbox._core.command import Command, Result
from nsbox._policy.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsbox._core.abi import CData

_NAMESPACES = (("cgroup", "cgroup"), ("ipc", "ipc"), ("mnt", "mount"), ("net", "net"), ("pid", "pid"), ("uts", "uts"))


class Watch:
    """The watch over one sandbox."""

    def __init__(self, options: Asked, policy: Policy, command: Command) -> None:
        """Make the pipes that hold the command back, and the thread."""
        self._options, self._command = options, command
        new = policy.unshare | ({"net"} if policy.network == "none" else set())
        self._namespaces = [(name, f"{name}-namespace") for name, ours in _NAMESPACES if ours in new]
        for fd in (options.info_fd, options.json_status_fd):
            if fd is not None:
                self._check_open(fd, "Write to info_fd")
        self._is_locked = bool(policy.details.capabilities)
        self._locks: list[int] = []
        self._problem = ""
        self._reports, theirs = _socket.socketpair()
        command.report_fd = theirs.detach()
        command.hold_fd, self._go = os.pipe()
        self._signalled, self._signal = os.pipe()
        os.set_blocking(self._signal, False)
        _signal.set_wakeup_fd(self._signal, warn_on_full_buffer=False)
        self._is_over = _thread.allocate_lock()
        self._is_over.acquire()
        _thread.start_new_thread(self._thread, ())

    def _check_open(self, fd: int, what: str) -> None:
        try:
            os.fstat(fd)
        except OSError as error:
            raise Failed(f"{what}: {error.strerror}") from None

    # ---- before the command runs, in a thread of its own

    def _thread(self) -> None:
        try:
            self._attend()
        except Exception as error:
            self._problem = self._problem or str(error)
        finally:
            _signal.pthread_sigmask(_signal.SIG_BLOCK, range(1, 32))  # from here on, the first thread gets all signals
            os.close(self._go)  # if it wasn't let go: now it gives up
            self._is_over.release()

    def _attend(self) -> None:
        options = self._options
        if options.userns_block_fd is not None:
            if not self._reports.recv(1):
                return
            self._inform(early=True)
            if not self._may_go_on(options.userns_block_fd, self._progress().set_up_pid):
                return
            os.write(self._go, b"m")
        shown = self._receive()
        if not shown:
            return
        try:
            self._lock(shown[c.SHOWN_ROOT])
            self._inform(early=False, shown=shown)
        finally:
            for fd in shown:
                os.close(fd)
        if options.block_fd is None or self._may_go_on(options.block_fd, self._progress().pid):
            os.write(self._go, b"g")

    def _progress(self) -> CData:
        progress = self._command.progress
        assert progress is not None  # it has reported something, so it was begun
        return progress

    def _receive(self) -> list[int]:
        """Return what the command shows of itself, or nothing if there is none."""
        fds = array.array("i")
        space = _socket.CMSG_LEN(c.SHOWN * fds.itemsize)
        _, ancillary, flags, _ = self._reports.recvmsg(1, space, _socket.MSG_CMSG_CLOEXEC)
        for _, _, content in ancillary:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
        if flags & _socket.MSG_CTRUNC or (ancillary and len(fds) != c.SHOWN):
            for fd in fds:
                os.close(fd)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return fds.tolist()

    def _may_go_on(self, fd: int, pid: int) -> bool:
        """Wait for a byte or the end of the descriptor that blocks the sandbox; False if the sandbox ends first."""
        try:
            end = os.pidfd_open(pid)
        except OSError:
            return False  # it is gone; the reason is reported elsewhere
        try:
            poller = select.poll()
            for one in (fd, end, self._signalled):
                poller.register(one, select.POLLIN)
            ready = {one for one, _ in poller.poll()}
            if fd not in ready:
                self._problem = "killed while it was blocked"
                return False
            os.read(fd, 1)
            return True
        except OSError as error:
            self._problem = f"Can't read from fd {fd}: {error.strerror}"
            raise
        finally:
            os.close(end)

    def _inform(self, *, early: bool, shown: Sequence[int] = ()) -> None:
        """Write to --info-fd, which is closed then, and to --json-status-fd, each once."""
        options, known = self._options, self._progress()
        if options.info_fd is None and options.json_status_fd is None:
            return
        blocks = options.userns_block_fd is not None
        of = known.init_pid or known.pid or known.set_up_pid if early else known.pid
        # Pid 1, unless the command's mounts are its own copy: readers of the pid use it to find the namespaces.
        child = of if self._is_locked and not early else known.init_pid or of
        rows = [("child-pid", child)]
        known_by: dict[str, int | str] = {name: f"/proc/{of}/ns/{name}" for name, _ in _NAMESPACES}
        known_by.update(zip(known_by, shown[c.SHOWN_ROOT + 1 :], strict=False))  # none, or all
        rows += [(word, os.stat(known_by[name]).st_ino) for name, word in self._namespaces]
        if options.info_fd is not None and early == blocks:
            text = ",\n".join(f'    "{word}": {number}' for word, number in rows)
            self._write(options.info_fd, f"{{\n{text}\n}}\n")
            _end(options.info_fd)
        if options.json_status_fd is not None and not early:
            text = ", ".join(f'"{word}": {number}' for word, number in rows)
            self._write(options.json_status_fd, f"{{ {text} }}\n")

    def _write(self, fd: int, text: str) -> None:
        try:
            os.write(fd, text.encode())
        except OSError as error:
            self._problem = f"Write to info_fd: {error.strerror}"
            raise

    def _lock(self, root: int) -> None:
        """Take a read lock on each file, by its name inside. The open file holds it, so that it can be handed over."""
        for path in self._options.lock_files:
            verb = "open lock"
            try:
                self._locks.append(linux.open_in_root(root, os.fsencode(path)))
                verb = "lock"
                fcntl.fcntl(self._locks[-1], fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 0, 0))
            except OSError as error:
                self._problem = f"Unable to {verb} file {path}: {error.strerror}"
                raise

    # ---- when it runs, and at its end

    def started(self, result: Result) -> str:
        """Take over what spawn() returned; return what went wrong here. If something did, the command has ended."""
        os.close(self._command.report_fd)
        self._is_over.acquire()
        _signal.set_wakeup_fd(-1)
        self._reports.close()
        for fd in (self._command.hold_fd, self._signalled, self._signal):
            os.close(fd)
        try:
            if not result.error:
                self._hold(result)
        except OSError as error:
            self._problem = f"Can't make a process that holds locks: {error.strerror}"
            call.end(result.pid, result.init_pidfd, result.init_says)
        else:
            for fd in (result.init_says, result.init_pidfd):
                if fd >= 0:
                    os.close(fd)
        return self._problem

    def _hold(self, result: Result) -> None:
        """Keep the locks and --sync-fd for as long as the sandbox lives, which may be longer than this process."""
        fds = [*self._locks, *([self._options.sync_fd] if self._options.sync_fd is not None else [])]
        if not fds:
            return
        end = result.init_pidfd if result.init_pidfd >= 0 else os.pidfd_open(result.pid)
        if os.fork() == 0:
            try:
                _close_but({*fds, end})
                poller = select.poll()
                poller.register(end, select.POLLIN)
                poller.poll()
            finally:
                os._exit(0)
        for fd in fds:
            os.close(fd)
        if end != result.init_pidfd:
            os.close(end)

    def ended(self, code: int) -> None:
        """Write the exit status to --json-status-fd, of a command that has been started."""
        if not self._problem and self._options.json_status_fd is not None:
            with contextlib.suppress(OSError):  # the reader is gone
                self._write(self._options.json_status_fd, f'{{ "exit-code": {code} }}\n')


def _end(fd: int) -> None:
    """Close a descriptor; a standard stream becomes /dev/null instead, so that nothing else gets its number."""
    if fd > 2:
        os.close(fd)
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, fd)
    os.close(nothing)


def _close_but(kept: set[int]) -> None:
    low = 0
    for fd in (*sorted(kept), os.sysconf("SC_OPEN_MAX")):
        os.closerange(low, fd)
        low = fd + 1
