"""The lifetime of a command and its sandbox: how they are awaited, signalled and killed, and when that is over.

For subprocess.Popen, a command is over once waitpid(2) has reaped it. Here the end has two stages. First _try_wait()
reaps the command, and keeps its status back in _raw_status. Then it waits until all processes of the sandbox are gone,
except for an init that is about to end. Only after that does returncode get the status. _release() then closes the
init's descriptors, reads its last word, and ends the cgroup.

A kill can take several steps, since SIGKILL isn't always the end (kills.py says why). _killed holds the state of one.
All waits are cut into slices: after each, _press() takes the next step of the kill, and _go_on() raises KillError when
the time for it is over.

In a forked copy of this process, the sandbox is still the parent's: nothing is awaited, signalled or ended there.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import time

from nsbox._base.errors import KillError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.owners import opened, own
from nsbox._base.poll import is_readable
from nsbox._base.stdlib import RLock, has_gevent, popen
from nsbox._core import abi, call, linux, orphans
from nsbox._lifetime import kills
from nsbox._lifetime.grace import Grace
from nsbox._lifetime.shutdown import Shutdown, is_finalizing
from nsbox._logs import logger

if TYPE_CHECKING:
    import resource
    from collections.abc import Callable
    from typing import Any, AnyStr

    from nsbox._base.owners import Owner
    from nsbox._core.command import Leaf, SessionCommand, Spent
    from nsbox._logs.observers import Told
    from nsbox._plan.plan import Plan
    from nsbox._spawn.way import Way


_LOST = 255  # stands for an exit status that isn't known, as in asyncio

if TYPE_CHECKING:

    class Plain(subprocess.Popen[AnyStr]):
        """What subprocess defines."""
else:
    Plain = popen()


class Lifetime(Shutdown, Grace, Plain["AnyStr"]):
    """A subprocess.Popen from its start on. A subclass does the start itself."""

    _is_plain = False
    _leads_group = False  # the command is the leader of its process group, even without a session of its own
    _plan: Plan  # not there without a policy
    _says_empty: bool
    _init_pid = 0
    _session_command: SessionCommand | None = None  # of a command that pid 1 of a session has started
    _pid_namespace: int
    _killed: kills.Kill | None = None
    _on_kill: Callable[[], object] = bool  # for code that waits without calling wait()
    _is_green = False  # gevent waits, for all of this process's children
    _watcher: Any = None  # gevent's, which has the status when gevent has reaped the command
    _way: Way | None = None  # during the start, and until it has ended
    _story: Told | None = None  # if somebody listens
    _on_end: Callable[[], object] = bool
    _init_pidfd = _init_says = -1
    _holds = False  # _held owns both
    _pidfd = -1  # of the command, if SIGCHLD is ignored: then nothing else tells how it ended
    _is_lost = False  # how it ended isn't known
    _raw_status: int | None = None  # of the command, once it has been reaped
    _returncode: int | None = None
    _timed_out = False
    _last_signal = 0  # the last one that was sent after a TimeoutExpired
    _ended = 0.0
    _rusage: resource.struct_rusage | None = None  # of the command
    _callers_rss = 0  # ru_maxrss of this process, with which the command's began
    _last_word = b""  # of the init, about the others
    _leaf: Leaf | None = None  # the sandbox's cgroup
    _spent: Spent | None = None  # what the cgroup reported at the end

    def begin(self) -> None:
        """Before the start, set the attributes that objects can't share. All others are the class's until then."""
        self._held: list[Owner] = []  # what owns the init's descriptors
        self._init_lock = RLock()  # a signal to the init uses its descriptor, and _release() closes it
        self._creator = os.getpid()
        self._began = time.monotonic()

    @property
    def returncode(self) -> int | None:
        """The exit status, -N after signal N; None while anything of the sandbox is left."""
        return self._returncode

    @returncode.setter
    def returncode(self, value: int | None) -> None:
        # Also called from outside: asyncio and psutil reap by themselves and store what they found.
        if value is not None:
            if self._raw_status is None:
                self._await_rest()
            if self._returncode is None:
                self._ended = time.monotonic()
            orphans.commands.discard(self.pid)
            self._release()
        self._returncode = value
        if value is not None and self._story is not None:
            self._story.ended(self)

    def _await_rest(self) -> None:
        """Wait for the sandbox of a command that other code has reaped. It isn't long, since the init kills the rest.

        The other code can be an event loop, which couldn't handle an error: it is logged.
        """
        if self._init_pidfd < 0 or self._creator != os.getpid():
            return
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT | abi.WALL)
        except ChildProcessError:
            try:
                self._await_empty()
            except KillError as error:
                logger.error("%s", error)
        # Without an error it hasn't been reaped: it is alive, or a zombie, before which the sandbox's pid 1 can't end.

    def hold(self) -> None:
        """Own the init's descriptors from here on, except those that are owned already."""
        numbers = [owner.fileno() for owner in self._held]
        own([fd for fd in (self._init_pidfd, self._init_says) if fd >= 0 and fd not in numbers], self._held)
        self._holds = True

    def _release(self) -> None:
        if not self._holds:
            self.hold()
        is_ours = self._creator == os.getpid()  # a forked copy doesn't take away what its parent will read
        # Once closed, its number can be another sandbox's. In a forked copy, a thread that is gone may hold the lock.
        with self._init_lock if is_ours else contextlib.nullcontext():
            pidfd, self._init_pidfd = self._init_pidfd, -1
        init_says, self._init_says = self._init_says, -1
        held, self._held = self._held, []  # if a signal handler raises from here on, they are closed with this list
        self._pidfd = -1
        try:
            if init_says >= 0 and is_ours:
                self._last_word = linux.last_word(init_says)
        finally:
            on_end, self._on_end, self._way = self._on_end, bool, None
            watcher, self._watcher = self._watcher, None
            if watcher is not None:
                watcher.close()
            try:
                while held:
                    owner = held.pop()
                    if owner.fileno() == pidfd:
                        self._give_up(owner, is_ours)
                    else:
                        owner.close()
                leaf, self._leaf = self._leaf, None
                if leaf is not None and is_ours:
                    self._spent = leaf.end(kill=self._plan.kill_on_exit)
            finally:
                if is_ours:
                    on_end()  # last: it may wake a thread, which then runs whenever this one releases the interpreter

    def _give_up(self, pidfd: Owner, is_ours: bool) -> None:
        if not is_ours:
            pidfd.close()
        elif self._plan.kill_on_exit:
            orphans.orphans.release(pidfd)
            if orphans.leftovers.pidfds:
                orphans.leftovers.sweep()
        else:
            orphans.leftovers.add(pidfd)

    def _is_empty(self, timeout_ms: int) -> bool:
        """Return whether all processes of the sandbox have gone, except an init that is about to end.

        Call it only when the command has been reaped: pid 1 can't end before that.
        """
        if self._init_pidfd < 0 or not self._plan.kill_on_exit or self._creator != os.getpid():
            return True  # in a forked copy: the sandbox is the parent's
        if not self._plan.nested:
            return call.wait(self._init_pidfd, self._init_says if self._says_empty else -1, timeout_ms)
        namespace = self._pid_namespace
        if self._says_empty and not call.wait(self._init_pidfd, self._init_says, timeout_ms):
            return False
        if self._says_empty and namespace and not orphans.has_strays(namespace):
            return True
        return orphans.wait_for_init(self._init_pidfd, namespace, timeout_ms)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """Reap the command, then wait for its sandbox. As waitpid(2) for the base: (0, 0) while one of them goes on."""
        if self._is_plain:
            return self._reaped(wait_flags)
        if self._raw_status is None:
            if not wait_flags & os.WNOHANG:
                self._await_command()
            if not self._end_group():
                time.sleep(0 if wait_flags & os.WNOHANG else 0.005)
                return 0, 0
            try:
                pid, status, rusage = orphans.wait(self.pid, wait_flags)
            except ChildProcessError:  # gevent or other code has reaped it, or SIGCHLD is ignored
                pid, status, rusage = self.pid, self._lost_status(), None
            if pid != self.pid:
                return pid, status
            self._rusage, self._callers_rss = rusage, orphans.callers_rss()
            orphans.commands.discard(self.pid)
            self._raw_status = self._status_inside(status) if self._plan.wrapper else status
        if not wait_flags & os.WNOHANG:
            self._await_empty()
        elif not self._is_empty(0):
            return 0, 0
        return self.pid, self._raw_status

    def _reaped(self, wait_flags: int) -> tuple[int, int]:
        """Return the status of a command that gevent has reaped; for any other, what the base says."""
        if self._watcher is not None and self._watcher.rpid:
            return self.pid, self._watcher.rstatus
        return super()._try_wait(wait_flags)  # type: ignore[misc, no-any-return]

    def adopt(self) -> None:
        """If gevent waits for all children, let it wait for the command."""
        if has_gevent():
            from nsbox._lifetime.gevent import adopt

            self._is_green, self._watcher = True, adopt(self)

    def _lost_status(self) -> int:
        """Return the wait status of a command that other code has reaped: by its pidfd, or else that of exit 255."""
        if self._watcher is not None and self._watcher.rpid:
            return int(self._watcher.rstatus)
        with contextlib.suppress(OSError):
            pid, wait_status = os.waitpid(self.pid, os.WNOHANG)  # a program may have put a waitpid() there that knows
            if pid == self.pid:
                return wait_status
        status = orphans.status_by_pidfd(self._pidfd)
        if status is None:
            self._is_lost = True
            logger.warning(
                "process %d was reaped by others, or SIGCHLD is ignored: its status isn't known, 255 stands for it",
                self.pid,
            )
        return _LOST << 8 if status is None else status

    # No wait sleeps for ever: another thread may ask for a kill meanwhile, and not every kill is the end.

    def _slice(self) -> float:
        """Return for how many seconds to sleep before looking again."""
        return kills.SLICE if self._killed is None else self._killed.pause()

    def _await_command(self) -> None:
        """Wait until the command can be reaped. Raises KillError if it was killed and that doesn't happen."""
        if self._creator != os.getpid():
            return  # in a forked copy, which can't reap it
        try:
            while not orphans.ends_within(self.pid, self._slice()):
                self._go_on()
        except ChildProcessError:
            pass

    def _await_empty(self) -> None:
        """Wait until the sandbox is empty. Raises KillError if that doesn't happen, though pid 1 kills what is left."""
        while not self._is_empty(0 if self._is_green else math.ceil(1000 * self._slice())):
            if self._is_green:
                self._sleep(self._slice())
            self._killed = self._killed or kills.Kill()
            self._go_on()

    def _go_on(self) -> None:
        """Take the next step of a kill, if there is one. Raises KillError when its time is over."""
        self._press()
        error = self.kill_error()
        if error is not None:
            raise error

    def kill_error(self) -> KillError | None:
        """Return the error for a sandbox that was killed long ago and doesn't end; else None."""
        if self._killed is None or self._returncode is not None:
            return None
        command = self.pid if self._raw_status is None else 0
        return self._killed.error(command, self._init_pid if self._init_pidfd >= 0 else 0)

    def _press(self) -> None:
        """Take the next step of a kill, if it is time for it."""
        if self._killed is None or self._creator != os.getpid() or not self._killed.is_due():
            return
        if self._raw_status is None and (self._init_pidfd < 0 or not self._plan.kill_on_exit):
            kills.free(self.pid)
        elif self._plan.wrapper or self._killed.is_late:
            self._kill_init()
        else:  # pid 1 kills whatever is left, a tracer too, so that it can still report what all of them have used
            self._signal_init(abi.constants.END)

    def _status_inside(self, status: int) -> int:
        """Return the command's wait status, from bwrap's own and from what bwrap has written since the start."""
        from nsbox._spawn import bwrap

        self._kill_init()  # bwrap may have been killed before its init was tied to it
        report = b""
        with contextlib.suppress(BlockingIOError):
            report = os.read(self._init_says, 4096)
        return bwrap.status(status, report)

    def _end_group(self) -> bool:
        """Without an init, end what the command leaves in its process group. Its zombie keeps the group's number.

        Returns False while the command runs, or its group has time to end: then it mustn't be reaped yet.
        """
        plan = self._plan
        leads = plan.plain and (plan.new_session or self._leads_group) and not plan.wrapper
        if not (leads and plan.kill_on_exit) or self._creator != os.getpid():
            return True
        with contextlib.suppress(ChildProcessError, ProcessLookupError, PermissionError):
            if not orphans.has_ended(self.pid, block=False):
                return False
            if self._is_asked and self._killed is None and self._group_has_time():
                return False
            os.killpg(self.pid, signal.SIGKILL)
        return True

    def _internal_poll(
        self, _deadstate: int | None = None, *more: Any, _is_late: Any = is_finalizing, **helpers: Any
    ) -> int | None:
        """Do what poll(), __del__ and subprocess's clean-up need. Never blocks."""
        if self._is_plain:
            return super()._internal_poll(_deadstate, *more, **helpers)  # type: ignore[misc, no-any-return]
        if _is_late():
            return self._last_status(False)
        if self._returncode is not None or not self._waitpid_lock.acquire(False):  # type: ignore[attr-defined]
            return self._returncode
        try:
            if self._returncode is None:
                pid, status = self._try_wait(os.WNOHANG)
                if pid == self.pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
        except OSError:
            if _deadstate is not None:
                self.returncode = _deadstate
        finally:
            self._waitpid_lock.release()  # type: ignore[attr-defined]
        if self._returncode is None and self._killed is not None:
            self._press()
        return self._returncode

    def wait(self, timeout: float | None = None, *, _is_late: Any = is_finalizing) -> int:
        """Wait for the end of the command and its sandbox, and return the exit status."""
        if self._returncode is None:
            if _is_late() and not self._is_plain:
                return self._last_wait(timeout)  # type: ignore[return-value]
            super().wait(timeout)
        if self._story is not None:
            self._story.check()
        return self._returncode  # type: ignore[return-value]

    def _wait(self, timeout: float | None) -> int | None:
        """Wait as the base does. With a timeout, sleep on pidfds, where the base polls."""
        if self._is_plain and timeout is None and self._is_green:
            with contextlib.suppress(ChildProcessError):
                while not orphans.ends_within(self.pid, kills.SLICE):
                    pass
        if timeout is None or self._is_plain:
            return super()._wait(timeout=timeout)  # type: ignore[misc, no-any-return]
        end = time.monotonic() + timeout
        while self._internal_poll() is None:
            rest = end - time.monotonic()
            if rest <= 0:
                self._timed_out = True
                raise subprocess.TimeoutExpired(self.args, timeout)
            self._sleep(min(rest, self._slice()))
        return self.returncode

    def communicate(
        self, input: AnyStr | None = None, timeout: float | None = None, *, _is_late: Any = is_finalizing
    ) -> tuple[AnyStr, AnyStr]:
        """Do as the base does. Raises KillError if a killed sandbox doesn't end, and so keeps its pipes open."""
        if _is_late() and not self._is_plain:
            words = self._last_words()
            self._last_wait(timeout)
            return words
        while timeout is None and self._killed is not None and self.poll() is None:
            error = self.kill_error()  # a killed process ends even if nothing reads its pipes
            if error is not None:
                raise error
            self._sleep(self._slice())
        return super().communicate(input, timeout=timeout)  # type: ignore[return-value, arg-type]

    def _communicate(self, *args: Any) -> Any:
        if not self._is_green:
            return super()._communicate(*args)  # type: ignore[misc]
        from nsbox._lifetime.gevent import communicate

        return communicate(Plain, self, *args)

    def _check_timeout(self, *args: Any, **options: Any) -> None:
        """Raise TimeoutExpired for communicate()."""
        try:
            super()._check_timeout(*args, **options)  # type: ignore[misc]
        except subprocess.TimeoutExpired:
            self._timed_out = True
            raise

    def watch(self) -> tuple[list[Owner], float | None]:
        """Return what to wait for, (fds, seconds), before calling poll() again.

        fds: owners of descriptors. One of them becomes readable at the next step towards the end: first the command's
            end, and after the command has been reaped, the sandbox's.
        seconds: how long to wait at most; None: for ever.
        """
        fds: list[Owner] = []
        try:
            if not abi.on_linux:
                return fds, 0.005
            if self._command_ended is not None and self._raw_status is None:
                return fds, 0.01
            if self._raw_status is None:
                fds.append(opened(os.pidfd_open, self.pid))
                # If it has ended, reap it at once, before a waitpid(-1) elsewhere in the program takes its status.
                if is_readable(fds[0].fileno()) and not orphans.has_ended(self.pid, block=False):  # a tracer has it
                    fds.pop().close()
                    return fds, 0.001
                return fds, None if self._killed is None else self._killed.pause()
            # Copies: another thread may see the end, and close the descriptors, meanwhile.
            for fd in (self._init_pidfd, self._init_says if self._says_empty else -1):
                if fd >= 0:
                    fds.append(opened(os.dup, fd))
            if len(fds) == 2 and orphans.has_hung_up(fds[1].fileno()):  # the init is being killed: it writes no more
                fds.pop().close()
        except OSError:  # no descriptor is free, or another thread is just reaping it
            return fds, 0.001
        patience = 0.02 if self._plan.nested or not fds else None
        return fds, patience if self._killed is None else min(patience or self._killed.pause(), self._killed.pause())

    def _sleep(self, seconds: float) -> None:
        fds, patience = self.watch()
        try:
            poller = select.poll()
            for fd in fds:
                poller.register(fd.fileno(), select.POLLIN)
            poller.poll(math.ceil(1000 * (seconds if patience is None else min(seconds, patience))))
        finally:
            for fd in fds:
                fd.close()

    def send_signal(self, sig: int, *, _is_late: Any = is_finalizing) -> None:
        """Send a signal to the command. After its end, SIGKILL still ends what is left of its sandbox."""
        if self._is_plain:
            super().send_signal(sig)
            return
        if _is_late():
            self._last_kill(sig)
            return
        if self.poll() is not None:
            return
        if self._timed_out:
            self._last_signal = sig
        if self._raw_status is None and self._plan.wrapper and sig != signal.SIGKILL:
            from nsbox._spawn import bwrap

            os.kill(bwrap.command_of(self._init_pid) or self.pid, sig)  # any signal would end bwrap itself
        elif self._raw_status is None:
            super().send_signal(sig)
            if sig == signal.SIGKILL:
                self._begin_kill()
        elif sig == signal.SIGKILL:
            self._begin_kill()
        else:  # pid 1 is killing the rest. As with the base, a command that has ended has a returncode after this
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._wait(1.0)

    def _begin_kill(self) -> None:
        """Kill whatever keeps the command from ending, or is left of its sandbox."""
        if self._killed is None:
            self._killed = kills.Kill()
        self._press()
        self._on_kill()

    def _kill_init(self) -> None:
        self._signal_init(signal.SIGKILL)

    def _signal_init(self, number: int) -> None:
        if self._creator != os.getpid():
            return
        with self._init_lock, contextlib.suppress(ProcessLookupError):
            if self._init_pidfd >= 0:
                signal.pidfd_send_signal(self._init_pidfd, number)
