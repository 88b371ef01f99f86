"""A warm interpreter: its start, the branches that it is asked for, and its end.

It is an ordinary command of nsbox in a sandbox of its own, made for one policy. On a socket ("control") it reports that
it is ready, or why it isn't, and receives requests for branches.
"""

from __future__ import annotations

import _socket  # as in _base.descriptors
import array
import collections
import contextlib
import os
import select
import subprocess
import sys
import time

from nsbox._base.checks import check_answer
from nsbox._base.display import printable, seconds_phrase
from nsbox._base.errors import InterpreterError, NsboxError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._base.owners import opened
from nsbox._base.poll import is_readable
from nsbox._base.stdlib import RLock
from nsbox._guest.archive import boot_text
from nsbox._interpreter.branch import LONGEST, BranchCommand, EndedError, Ends, Lost, SilentError, received
from nsbox._interpreter.descent import GoneError, parent_of, pid_of
from nsbox._interpreter.environments.choice import OpenError, choose, cold
from nsbox._interpreter.executable import death
from nsbox._interpreter.mounts.stamps import Stamps
from nsbox._interpreter.program import files
from nsbox._interpreter.warm import Made, warm
from nsbox._interpreter.wire import WireError, encode, plain
from nsbox._lookup.host import host_for
from nsbox._popen.popen import Popen

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from nsbox._base.owners import Owner
    from nsbox._interpreter.environments.choice import Choice
    from nsbox._interpreter.mounts.layers import Layers
    from nsbox._interpreter.mounts.overlay import Overlaid
    from nsbox._interpreter.program import Wish
    from nsbox._policy.policy import Policy
    from nsbox._relay.relay import Relay
    from nsbox._spawn.prepare import Prepared

_MOST_WORDS = 1 << 16  # bytes that are kept of what it prints before it is ready
_MOMENT = 5.0  # seconds
_SILENCE = 30.0  # until an interpreter that doesn't report an end is given up
_PAUSE = 1000  # milliseconds until the next look at an interpreter that does nothing
_STAGES = ("core", "import", "setup", "threads", "version")


@frozen
class Facts(Frozen):
    """What an interpreter says of itself. version: (major, minor, micro). seconds: how long it took to get ready."""

    version: tuple[int, int, int]
    implementation: str
    executable: str
    prefix: str
    seconds: float


class Interpreter:
    """One warm interpreter, with branches that it has made ahead. Threads may share it.

    prepared: what it was made for. renewed: its branches' ops. facts: what it says of itself.
    """

    _stamps: Stamps | None = None

    def __init__(
        self, policy: Policy, prepared: Prepared, wish: Wish, relay: Relay | None = None, why_cold: str = ""
    ) -> None:
        """Start it, and wait until it is ready. Raises InterpreterError, and what starting a command raises.

        relay: for branches with a network list; None: there is no list.
        why_cold: why its branches do all imports and the setup themselves, if that is known already.
        """
        self.policy, self.prepared, self._wish, self._relay = policy, prepared, wish, relay
        self._layers: Layers | None = None  # what branches get overlays of
        self._is_stale = False
        self._lock = RLock()
        self._parked: collections.deque[BranchCommand] = collections.deque()
        self._users = 0
        self._is_retired = self._is_closed = self._is_short = False
        self._numbers = self._pid = 0
        self._fate = ""
        self._words = bytearray()
        choice = choose(policy, prepared, wish)
        self.choice = cold(choice, why_cold) if why_cold and not choice.why_cold else choice
        self.program = self.choice.program
        self._process: Popen[bytes] | None = None
        self._ends = Ends(_socket.SOCK_SEQPACKET)
        (self._control,) = self._ends.ours
        self._ended: Owner = self._control  # what becomes readable at its end; its pidfd, when it has one
        try:
            self._process = self._started(*self._ends.theirs)
            self._ended = opened(os.pidfd_open, self._process.pid)
            self._ends.give()
            self.facts = self._await_ready()
            assert self._stamps is not None
            self._stamps.complete(self._process.pid)
            self._refill()
        except BaseException:
            self.close()
            raise

    def _started(self, theirs: _socket.socket) -> Popen[bytes]:
        overlaid = self._overlaid()
        made = warm(self.policy, self.prepared, overlaid)
        self.renewed = made.renewed
        self._stamps = Stamps(made.prepared.ops, () if overlaid is None else overlaid.places)
        owners: list[Owner] = []
        try:
            place = {"cwd": self.policy.workdir or "/", **_words(self.choice)}
            config, fds = files(self._wish, theirs.fileno(), made.blob, made.pointers, place, owners)
            argv = [self.program, "-I", "-S", "-c", boot_text(), str(config)]
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "bufsize": 0}
            keeper: Any = Made(self.policy, made.prepared)
            return Popen(argv, policy=keeper, pass_fds=fds, stderr=subprocess.STDOUT, **streams)
        except OSError as error:
            if isinstance(error, NsboxError) or error.filename is None:
                raise
            problem = f"{error.strerror}; python= chooses another interpreter of those that the sandbox shows"
            raise InterpreterError("start", self.program, problem) from error
        finally:
            for owner in owners:
                owner.close()

    def _overlaid(self) -> Overlaid | None:
        """Return what becomes of the plan if branches get overlays, and keep what these are made of."""
        if not self._wish.overlay:
            return None
        from nsbox._interpreter.mounts.layers import Layers, overlaid_of  # seldom needed

        made = overlaid_of(self.prepared)
        size = self.policy.tmp_size
        if made.places:
            own = size if isinstance(size, int) else None
            self._layers = Layers(self.prepared, host_for(self.policy), made.places, own)
        return made

    # ---- getting ready

    def _await_ready(self) -> Facts:
        assert self._process is not None and self._process.stdout is not None
        deadline = time.monotonic() + self._wish.start_timeout
        words = self._process.stdout.fileno()
        os.set_blocking(words, False)
        poller = select.poll()
        for fd in (self._control.fileno(), words, self._ended.fileno()):
            poller.register(fd, select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            ready = dict(poller.poll(max(0.0, 1000 * left)))
            if words in ready and not self._keep_words(words):
                poller.unregister(words)
            if self._control.fileno() in ready or self._ended.fileno() in ready:
                return self._first()
            if left <= 0:
                raise InterpreterError("timeout", "", self._late())

    def _late(self) -> str:
        doing = ", ".join(self._wish.imports)
        what = f"it isn't ready after {seconds_phrase(self._wish.start_timeout)} (start_timeout=)"
        return f"{what}; it imports {doing}" if doing else what

    def _keep_words(self, fd: int) -> bool:
        with contextlib.suppress(BlockingIOError):
            data = os.read(fd, _MOST_WORDS)
            self._words += data
            del self._words[:-_MOST_WORDS]
            return bool(data)
        return True

    def _said(self) -> str:
        """Return what it has printed."""
        if self._process is not None and self._process.stdout is not None:
            fd = self._process.stdout.fileno()
            while self._keep_words(fd) and is_readable(fd):
                pass
        return self._words.decode("utf-8", "replace")

    def _first(self) -> Facts:
        try:
            owners: list[Owner] = []
            message = received(self._control, 1, owners) if self._has_message() else None
        except WireError as error:
            raise InterpreterError("start", self.program, f"what it says makes no sense: {error}") from None
        if message is None:
            raise self._death()
        failed = message.get("failed")
        if isinstance(failed, dict):
            raise _failure(failed)
        self._believe(owners)
        try:
            major, minor, micro = map(int, message["version"][:3])
            kind, path, prefix = (str(message[name]) for name in ("implementation", "executable", "prefix"))
            return Facts((major, minor, micro), kind, path, prefix, float(message["seconds"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InterpreterError("start", self.program, f"what it says makes no sense: {error!r:.100}") from None

    def _believe(self, owners: list[Owner]) -> None:
        """Know the interpreter itself by its own pidfd from here on, instead of the command that it is a process of."""
        with contextlib.suppress(GoneError):
            for owner in owners:
                self._pid = pid_of(owner.fileno(), self._ended.fileno())
                self._ended = owner

    def _has_message(self) -> bool:
        return is_readable(self._control.fileno())

    def _death(self) -> InterpreterError:
        """Return the error for an interpreter that has ended without a word."""
        return death(self.policy, self.program, self.fate(), self._said())

    def fate(self) -> str:
        """Return how it has ended, as a text; "" if it goes on. Its first process ends a moment after it."""
        process = self._process
        if self._fate or process is None:
            return self._fate or "it was closed"
        try:
            status = process.wait(timeout=_MOMENT)
        except subprocess.TimeoutExpired:
            return ""
        if status < 0:
            usage = process.sandbox.usage
            more = " for lack of memory" if usage is not None and usage.oom_kills else ""
            return f"it was killed by signal {-status}{more}"
        return f"it has ended with status {status}"

    # ---- branches

    @property
    def has_ended(self) -> bool:
        """Whether it can't make branches any more."""
        if self._is_closed or self._process is None:
            return True
        return is_readable(self._ended.fileno())

    def fits(self, prepared: Prepared) -> bool:
        """Return whether its branches are what a new sandbox would be, for what is prepared now."""
        if self.prepared is not prepared or self._is_stale or self.has_ended or self._stamps is None:
            return False
        self._is_stale = self._stamps.have_changed()
        return not self._is_stale

    def check(self, branch: BranchCommand) -> None:
        """Raise Lost if a branch sees a file of the host where something was mounted on another, or has ended."""
        try:
            self._is_stale = self._is_stale or self._stamps is None or self._stamps.differ(branch.pid)
        except OSError as error:
            check_answer(error)
            raise Lost("it has ended") from None
        if self._is_stale:
            raise Lost("files that the policy hides or protects were replaced")
        self._pid = self._pid or parent_of(branch.pid)

    def doubt(self) -> None:
        """Replace it: a branch has found its mounts elsewhere, or something else in their place."""
        self._is_stale = True

    def fileno(self) -> int:
        """Return a descriptor that becomes readable at its end."""
        return self._ended.fileno()

    def take(self, *, is_kernel: bool = False) -> BranchCommand:
        """Return a branch. Raises Lost if the interpreter has ended.

        The next one is made at once if callers are faster than the interpreter, or if this one stays. Otherwise it is
        made when this one has ended, or runs for a while: to make one takes longer than to run a line of code, and the
        interpreter also has to report the end of that.
        """
        with self._lock:
            if self._is_closed:
                raise Lost("it was closed")
            self._users += 1
            try:
                branch = self._ready() or self._asked()
                self._is_short = True
                if is_kernel or not branch.is_ready:
                    self.refill()
            except BaseException:
                self._users -= 1
                raise
            return branch

    def _ready(self) -> BranchCommand | None:
        """Return a branch that is parked; None if there is none. If its relay has gone, it has no network."""
        while self._parked:
            branch = self._parked.popleft()
            if branch.net is None or branch.net.is_served():
                return branch
            branch.close()
        return None

    def refill(self) -> None:
        """Ask for as many branches as are to be parked, if the latest ones haven't been replaced yet.

        If what they need can't be made, the next take() reports why. Raises Lost.
        """
        if self._is_short:
            with self._lock:
                self._is_short = False
                try:
                    self._refill()
                except (NsboxError, OSError):
                    self._is_short = True

    def glance(self) -> None:
        """Refill while code runs for long: its caller looks at it from time to time."""
        with contextlib.suppress(Lost):
            self.refill()

    def _refill(self) -> None:
        while len(self._parked) < self._wish.stock and not self._is_retired:
            self._parked.append(self._asked())

    def _asked(self) -> BranchCommand:
        branch = BranchCommand()
        branch.on_wait = self.is_stopped
        try:
            self._numbers += 1
            message = {"branch": self._numbers}
            mounts = [] if self._layers is None else self._layers.make()
            if mounts:
                message["mounts"] = len(mounts)
            fds = [end.fileno() for end in (*branch.ends.theirs, *mounts)]
            if self._relay is not None:
                branch.net = self._relay.line()
                fds.append(branch.net.fileno())
                message["relay"] = branch.net.id
            rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", fds))]
            self._send(encode(message), rights)
            branch.ends.give()
            for mount in mounts:
                mount.close()
            return branch
        except BaseException:
            branch.close()
            raise

    def _send(self, data: bytes, rights: list[Any]) -> None:
        poller = select.poll()
        poller.register(self._control, select.POLLOUT)
        poller.register(self._ended.fileno(), select.POLLIN)
        for _ in range(LONGEST // _PAUSE):
            try:
                self._control.sendmsg([data], rights, _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL)
                return
            except BlockingIOError:
                ready = dict(poller.poll(_PAUSE))
                if self._ended.fileno() in ready:
                    raise EndedError("the interpreter has ended") from None
                if not ready and self.is_stopped():
                    break
            except (BrokenPipeError, ConnectionResetError):
                raise EndedError("the interpreter has ended") from None
        how = "is stopped (SIGSTOP)" if self.is_stopped() else f"read nothing for {LONGEST // 1000} seconds"
        self.give_up(f"the interpreter {how}")
        raise SilentError(self._fate)

    def await_end(self) -> None:
        """Wait a moment for its end: a process that is killed closes its connections before its pidfd reports that."""
        poller = select.poll()
        with contextlib.suppress(ValueError):  # another thread has closed it
            poller.register(self._ended.fileno(), select.POLLIN)
            poller.poll(1000 * _MOMENT)

    def is_stopped(self) -> bool:
        """Return whether a signal has stopped it, so that it does nothing."""
        try:
            with open(f"/proc/{self._pid}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[0] == b"T"  # proc_pid_stat(5)
        except OSError:
            return False

    def give_up(self, why: str) -> None:
        """Kill it, since it does nothing; all of its branches end, and the next one is another interpreter's."""
        with self._lock:
            if self._is_closed or self._process is None:
                return
            self._fate, self._is_stale = self._fate or why, True
            self._process.kill()

    @property
    def is_given_up(self) -> bool:
        """Whether it was killed because it did nothing."""
        return bool(self._fate)

    def look(self, branch: BranchCommand) -> None:
        """Look at a branch whose end isn't known: the interpreter must report it soon after its process has exited."""
        self.glance()
        if not branch.has_exited():
            return
        now = time.monotonic()
        branch.exited_at = branch.exited_at or now
        silence = now - branch.exited_at
        if silence >= _MOMENT and self.is_stopped():
            self.give_up("the interpreter is stopped (SIGSTOP), and can't report how the code ended")
        elif silence >= _SILENCE:
            self.give_up(f"the interpreter didn't report for {seconds_phrase(_SILENCE)} how the code ended")

    def give_back(self) -> None:
        """Say that a branch from take() has ended."""
        with self._lock:
            self._users -= 1
            is_over = self._is_retired and self._users <= 0
        if is_over:
            self.close()
        elif not self._is_retired:
            self.glance()

    # ---- its end

    def retire(self) -> None:
        """Make no more branches, and end it when those that run have ended."""
        with self._lock:
            self._is_retired = True
            self._drop_parked()
            is_over = self._users <= 0
        if is_over or self.has_ended:
            self.close()

    def _drop_parked(self) -> None:
        while self._parked:
            self._parked.pop().close()

    def close(self) -> None:
        """End it and all of its branches, and return when they have gone; raises KillError if something doesn't end."""
        with self._lock:
            self._fate = self._fate or (self.fate() if self.has_ended else "it was closed")
            self._is_retired = self._is_closed = True
            self._drop_parked()
            process, self._process = self._process, None
            self._ends.close()
        self._let_go()
        if process is None:
            return
        with process:
            process.kill()
        self._ended.close()

    def forget(self) -> None:
        """In a forked child, let go of what is the parent's."""
        self._lock = RLock()
        self._is_retired = self._is_closed = True
        self._drop_parked()
        self._ends.close()
        self._let_go()
        self._process = None

    def _let_go(self) -> None:
        for kept in (self._layers, self._stamps):
            if kept is not None:
                kept.close()

    def __del__(self, *, _is_late: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "_process", None) is not None and not _is_late():
            self.close()  # a signal handler has raised before anything held it

    def __repr__(self) -> str:
        return f"<Interpreter {printable(self.program)}>"


def _failure(row: dict[str, Any]) -> InterpreterError:
    """Return the error for what an interpreter reports instead of being ready."""
    texts = [row.get(name) for name in ("stage", "what", "type", "message", "traceback")]
    stage, what, kind, message, traceback = (plain(text) if isinstance(text, str) else "" for text in texts)
    if stage == "open":
        return OpenError(what)
    problem = f"{kind}: {message}" if kind and message else kind or message
    if stage == "threads":
        problem = "threads are running, and a fork would lack them: imports and setup must not leave any running"
    return InterpreterError(stage if stage in _STAGES else "start", what[:1000], problem[:2000], traceback[-20_000:])


def _words(choice: Choice) -> dict[str, object]:
    """Return what the interpreter learns about itself."""
    regions = [] if choice.why_cold else [list(region) for region in choice.regions]
    return {"executable": choice.executable, "regions": regions, "cold": bool(choice.why_cold)}
