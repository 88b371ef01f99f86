"""PythonKernel: a branch that stays. Its variables live from call to call, until it ends or is reset."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import weakref
from functools import partial

from nsbox._base.errors import NsboxError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.stdlib import RLock
from nsbox._calls.output import MOST_OUTPUT
from nsbox._kernels.call import KernelCall, sync
from nsbox._kernels.exchange import KernelExchange
from nsbox._kernels.forks import check_count, forked
from nsbox._kernels.functions import answer
from nsbox._kernels.idle import Pending, reader
from nsbox._kernels.process import Clock
from nsbox._kernels.record import FRESH, CallFacts, Fate, not_begun, record
from nsbox._lifetime import kills
from nsbox._logs import observers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType
    from typing import Any, TypedDict

    from nsbox._calls.token import CancelToken
    from nsbox._handles.stream import StreamEvent
    from nsbox._kernels.process import KernelProcess
    from nsbox._leaks.scrub import Scrubber
    from nsbox._lifetime.ends import Early
    from nsbox._policy.policy import Policy
    from nsbox._python.result import PythonResult

    class KernelOptions(TypedDict, total=False):
        """What PythonKernel.run() takes besides the code and check."""

        inputs: Mapping[str, Any] | None
        input: str | bytes | None
        timeout: float | None
        grace: float
        max_output: int | str
        cancel: CancelToken | None
        on_output: Callable[[StreamEvent], object] | None


_WAIT = 0.05  # seconds between two looks of a call that waits for its turn: was it cancelled?
_PAUSE = 0.05  # seconds between two interrupts: each begins a handler, on top of one that hasn't ended


class PythonKernel:
    """A branch of a warm interpreter that stays: variables live from call to call. `Python.kernel()` makes it.

        with py.kernel() as kernel:
            kernel.run("x = 41")
            print(kernel.run("x + 1").value)

    It has namespaces of its own. Its files and background processes end with it, and so do its forks. Calls from
    several threads run one after another. Once it has ended, it does nothing more until reset().
    """

    _process: KernelProcess | None = None
    _exchange: KernelExchange

    def __init__(
        self,
        start: Callable[[], KernelProcess],
        policy: Policy,
        scrubber: Scrubber | None = None,
        *,
        family: weakref.WeakSet[PythonKernel] | None = None,
        process: KernelProcess | None = None,
        parent: PythonKernel | None = None,
        functions: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        """Hold it. Use Python.kernel().

        start: starts its process; reset() calls it again. scrubber: masks secrets.
        family: where it and its forks are listed. process: what it begins with. Default: None, for start's.
        parent: the kernel that it was forked from, which stays as long as something refers to the fork. Default: None.
        functions: that code may call, by name. Default: None.
        """
        self._start, self._policy, self._scrubber = start, policy, scrubber
        self._functions = functions or {}
        self._lock = threading.Lock()  # of the thread that uses it
        self._signal_lock = RLock()  # a signal handler may interrupt a call
        self._user: int | None = None  # that thread
        self._call: KernelCall | None = None  # that can be interrupted
        self._is_closed = False
        self._fate: Fate | None = None
        self._number = 0
        self._origin = None if parent is None else (parent, parent._process)
        self._creator = os.getpid()
        self._family: weakref.WeakSet[PythonKernel] = weakref.WeakSet() if family is None else family
        self._settle(start() if process is None else process)
        self._family.add(self)

    def _settle(self, process: KernelProcess) -> None:
        """Use a process from now on."""
        try:
            self._exchange = KernelExchange(process.line, process.fileno(), process.pipes)
            self._pending = (Pending(), Pending())
            self._exchange.begin(self._pending)
            reader().begin()
        except BaseException:
            process.kill()
            process.close()
            raise
        process.line.takes_calls = bool(self._functions)
        self._process, self._fate = process, None
        self._listen()

    # ---- calls

    def run(
        self,
        code: str,
        *,
        inputs: Mapping[str, Any] | None = None,
        input: str | bytes | None = None,
        timeout: float | None = None,
        grace: float = kills.GRACE,
        max_output: int | str = MOST_OUTPUT,
        cancel: CancelToken | None = None,
        on_output: Callable[[StreamEvent], object] | None = None,
        check: bool = False,
    ) -> PythonResult:
        """Run code in the kernel, and return what it did. Its variables stay.

        code: statements. The value of the last one, if it is an expression, is the result's `value` and `repr`.
        inputs: variables for the code: a mapping of names to values that JSON can hold. They stay too. Default: None.
        input: str or bytes, which the code reads from stdin. Default: None; then reading stdin is an error.
        timeout: seconds, after which the code is interrupted: KeyboardInterrupt is raised in it, and the kernel goes
            on. Default: None, for no limit.
        grace: seconds from then until the kernel is killed, from 0 to 600. 0: at once. Default: 2.
        max_output: how much of stdout, and of stderr, is kept, as for Sandbox.shell(). What background threads have
            printed since the last call comes first.
        cancel: a CancelToken, which ends the call as `timeout` does; then the record has the cause "cancelled".
        on_output: a function that is called with each StreamEvent meanwhile, in this thread. If it raises an error, the
            code is interrupted, and the error is raised here. Default: None.
        check: whether to raise CalledProcessError for a returncode that isn't 0. Default: False.

        Code that fails raises nothing here: the record's `exception` is what it has raised, and its returncode is 1.
        `ended` says whether the kernel has ended with the call: it was killed, or ended by sys.exit(), os._exit() or a
        crash.

        Raises ValueError if the kernel is closed or had ended before; TypeError and ValueError for parameters; and
        KillError.
        """
        call = KernelCall(
            code,
            inputs=inputs,
            input=input,
            timeout=timeout,
            grace=grace,
            max_output=max_output,
            cancel=cancel,
            on_output=on_output,
        )
        if self._is_closed:
            raise ValueError("the kernel is closed")
        with self._turn(cancel) as has_begun:
            result = self._run(call) if has_begun else not_begun(code)
        if check:
            result.check_returncode()
        return result

    @contextlib.contextmanager
    def _turn(self, cancel: CancelToken | None = None) -> Iterator[bool]:
        """Wait for this thread's turn to use the kernel; yield False if the call was cancelled before that."""
        self._check_user()
        while not (cancel is not None and cancel.is_cancelled):
            if self._lock.acquire(timeout=-1 if cancel is None else _WAIT):
                break
        else:
            yield False
            return
        try:
            self._user = threading.get_ident()
            yield True
        finally:
            self._user = None
            self._lock.release()

    def _check_user(self) -> None:
        if self._creator != os.getpid():
            raise ValueError("the kernel belongs to the process that this one was forked from")
        if self._user == threading.get_ident():
            raise ValueError("the kernel is running a call of this thread")

    def _living(self) -> KernelProcess:
        """Return the process; raises ValueError if there is none."""
        if self._is_closed:
            raise ValueError("the kernel is closed")
        self._look()
        if self._process is None:
            raise ValueError(f"the kernel has ended: {self._fate}; {FRESH}")
        return self._process

    def _look(self) -> None:
        """Notice the end of a kernel that has ended between two calls."""
        if self._process is not None and self._process.has_ended():
            self._end()

    def _run(self, call: KernelCall) -> PythonResult:
        process = self._living()
        if observers.active:
            code = call.code if self._scrubber is None else self._scrubber.scrub(call.code)
            observers.note("code", process.story_id, pid=process.pid, code=code)
        clock = Clock(process.pid)
        try:
            with self._heard(process):
                self._number += 1
                call.functions = self._functions
                call.begin(process, self._number, self._scrubber)
                for pending, output in zip(self._pending, call.outputs, strict=True):
                    pending.move(output)
                self._exchange.begin(call.outputs, partial(answer, self._functions))
                self._call = call
                try:
                    outcome = call.talk(process, self._exchange, self._scrubber)
                finally:
                    with self._signal_lock:
                        self._call = None
                if outcome.is_last:
                    self._end(outcome.problem, early=None if outcome.stop is None else outcome.stop.cause)
                elif call.has_signalled:
                    self._sync(process)
                for output in call.outputs:
                    output.end()
        except BaseException:  # the caller's: also KeyboardInterrupt
            self._recover(call)
            raise
        duration, usage = time.monotonic() - call.began, None if self._process is None else clock.usage()
        facts = CallFacts(call.code, outcome.reply, outcome.stop, self._fate, duration, usage)
        return record(self._policy, facts, call.outputs)

    @contextlib.contextmanager
    def _heard(self, process: KernelProcess) -> Iterator[None]:
        """Read the output of the kernel in this thread."""
        reader().remove(process.pipes)
        try:
            yield
        finally:
            if self._process is not None:
                self._exchange.begin(self._pending)
                self._listen()

    def _listen(self) -> None:
        """Keep what is printed from now on for the next call."""
        if self._process is not None:
            reader().add(dict(zip(self._process.pipes, self._pending, strict=True)))

    def _recover(self, call: KernelCall) -> None:
        """After an error within a call, interrupt the code; if that doesn't end it, kill the kernel."""
        process = self._process
        if process is None or not call.began or (process.line.reply is not None and not call.has_signalled):
            return
        with self._heard(process):
            process.signal(signal.SIGINT)
            if not call.grace or self._exchange.run(time.monotonic() + call.grace) != "reply":
                self._end()
            else:
                self._sync(process)

    def _sync(self, process: KernelProcess) -> None:
        """After a SIGINT, make sure that the signal can't interrupt the next call."""
        self._number += 1
        if not sync(process, self._exchange, self._number):
            self._end("it didn't answer after an interrupt, and was killed")

    # ---- forks

    def fork(self, n: int = 1) -> list[PythonKernel]:
        """Return kernels that begin with the state of this one: variables, modules, open files.

        Memory is shared until one of them writes to it, so forks are quick to make. They run at the same time, in the
        namespaces of this kernel: they see its files and processes. They can't signal or trace it or each other where
        the kernel has Landlock of version 6 (Linux 6.12). A fork can be forked again. Each ends with the kernel or fork
        that it was forked from.

        Unless you close or reset it, this kernel stays as long as something refers to one of its forks.

        n: how many. Default: 1.

        Raises ForkError if threads run in the kernel, or there is no room for more processes; ValueError and TypeError
        for n, and ValueError if the kernel is closed or has ended. If one can't be made, the others are closed.
        """
        check_count(n)
        made: list[PythonKernel] = []
        with self._turn():
            process = self._living()
            try:
                with self._heard(process):
                    self._exchange.begin(self._pending)
                    for _ in range(n):
                        self._number += 1
                        fork = forked(process, self._exchange, self._number)
                        fork.story_id = process.story_id
                        process.forks.add(fork)
                        made.append(self._one(fork))
            except BaseException:
                for kernel in made:
                    kernel.close()
                self._look()
                raise
        return made

    def _one(self, process: KernelProcess) -> PythonKernel:
        start, family = self._start, self._family
        return PythonKernel(
            *(start, self._policy, self._scrubber),
            family=family,
            process=process,
            parent=self,
            functions=self._functions,
        )

    # ---- its end

    def _end(self, problem: str = "", *, early: Early | None = None) -> None:
        """End the process, if it hasn't ended, and remember how."""
        process = self._process
        if process is None:
            return
        was_alive = not process.has_ended()
        reader().remove(process.pipes)
        process.kill(early=early)
        for fork in tuple(process.forks):  # if this is a fork that has exited by itself
            fork.kill()
        self._exchange.drain_rest()
        status, usage = process.outcome()
        self._fate = Fate(status, usage, problem if was_alive else "", not was_alive and self._is_orphan())
        self._process = self._origin = None
        reader().end()
        process.close()

    def _is_orphan(self) -> bool:
        """Return whether it was forked from a process that has ended, as far as is known."""
        if self._origin is None:
            return False
        parent, process = self._origin
        return parent.ended is not None or parent._process is not process

    def interrupt(self) -> bool:
        """Raise KeyboardInterrupt in the code of the call that is running; return whether there is one.

        Any thread or signal handler may call it. At most twenty interrupts a second are sent. If the interrupt ends the
        call, the record has the cause "cancelled". The kernel goes on.
        """
        if self._creator != os.getpid():
            return False
        with self._signal_lock:
            process, call = self._process, self._call
            if process is None or call is None:
                return False
            now = time.monotonic()
            call.is_interrupted = call.has_signalled = True
            if now - call.interrupted >= _PAUSE:
                call.interrupted = now
                process.signal(signal.SIGINT)
        return True

    def reset(self) -> None:
        """Begin again: end the kernel, its forks, and a call that is running, and use a fresh branch.

        A fork becomes a kernel of its own. Raises ValueError if the kernel is closed, KillError, and what
        Python.kernel() raises.
        """
        self._kill_running()
        with self._turn():
            if self._is_closed:
                raise ValueError("the kernel is closed")
            self._end()
            self._settle(self._start())

    def close(self) -> None:
        """End the kernel, its forks, and a call that is running; return when nothing of it is left. Raises KillError.

        Closing twice isn't an error.
        """
        if self._creator != os.getpid():
            self._is_closed = True
            return
        self._kill_running()
        with self._turn():
            self._is_closed = True
            self._end("it was closed")
        self._family.discard(self)

    def _kill_running(self) -> None:
        """End the process while a call of another thread uses it, so that the call returns."""
        self._check_user()
        if self._user is not None:
            self._kill()

    def _kill(self) -> None:
        """Send SIGKILL to the process, if there is one; any thread may."""
        process = self._process
        if process is not None:
            process.signal(signal.SIGKILL)

    @property
    def ended(self) -> str | None:
        """How it has ended, as text; None while it goes on."""
        is_ours = self._creator == os.getpid()
        if self._process is not None and is_ours and self._lock.acquire(blocking=False):
            try:
                self._look()
            finally:
                self._lock.release()
        return None if self._fate is None else str(self._fate)

    @property
    def pid(self) -> int | None:
        """Its process number, as this process sees it; None once it has ended."""
        process = self._process
        return None if process is None else process.pid

    def __enter__(self) -> PythonKernel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self, *, _is_late: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._process is not None and not _is_late() and self._creator == os.getpid():
            with contextlib.suppress(NsboxError, OSError):
                self._end()

    def __repr__(self) -> str:
        return f"<nsbox.PythonKernel {'has ended' if self._process is None else self._process.pid}>"
