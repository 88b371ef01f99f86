"""The caller's terminal, where a command has it as a standard stream: what is refused, and its state afterwards.

In a session of its own a command gets neither keys that are typed nor the controlling terminal's signals. But whoever
has a terminal open may change its size, which sends SIGWINCH to the caller, stop its output, and change its settings.
"""

from __future__ import annotations

import os
import signal
from threading import Lock

from nsbox import _arguments, _core
from nsbox._bpf import EPERM, Arg, Rule
from nsbox._frozen import TYPE_CHECKING, remembered
from nsbox._seccomp import Filter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from nsbox._keeper import Way
    from nsbox._policy import Policy

# <asm-generic/ioctls.h>; the kernel's struct termios has 36 bytes.
_TCGETS, _TCSETS, _TCXONC, _TIOCSWINSZ = 0x5401, 0x5402, 0x540A, 0x5414
_TERMIOS = 36
_TCOON = 1
_RULE = Rule("ioctl", EPERM, (Arg(1, (_TCXONC, _TIOCSWINSZ)),))


def of(fds: Iterable[int]) -> list[int]:
    """Return those descriptors that are terminals."""
    return [fd for fd in fds if fd >= 0 and os.isatty(fd)]


@remembered
def guarded(policy: Policy) -> Policy:
    """Return the policy for a command that has a terminal: it can't stop its output, nor set its size, under a profile.

    A rule of the policy's own that allows these comes first.
    """
    wish = policy.filter
    if wish.base == "off" or not policy.new_session:
        return policy
    chosen = Filter(base=wish.base, allow=wish.allow, rules=(*wish.rules, _RULE), programs=wish.programs)
    return policy.with_(seccomp=chosen)


class _Lent:
    """A terminal that commands have: how many, and what its settings were before."""

    def __init__(self, fd: int, settings: bytes) -> None:
        self.fd, self.settings, self.count = fd, settings, 0


_lock = Lock()
_lent: dict[int, _Lent] = {}  # by device number


class Loan:
    """The terminals that one command gets, if it has a session of its own; in the caller's they are the command's too.

    As a context manager it gives them back if the command doesn't start. policy: the one to start it under.
    """

    def __init__(self, policy: Policy, stdio: tuple[int, int, int], passed: Any, way: Way | None) -> None:
        """Remember their settings. stdio: as in subprocess, -1 for the caller's own."""
        self.policy = policy
        self._devices: list[int] = []
        if not policy.new_session or not _core.on_linux:
            return
        streams = [fd if fd >= 0 else number for number, fd in enumerate(stdio)]
        found = of((*streams, *(_arguments.descriptors(passed) if passed else ())))
        if found and (way is None or way.adds_filters):
            self.policy = guarded(policy)
        for fd in found:
            self._lend(fd)

    def _lend(self, fd: int) -> None:
        import fcntl  # subprocess has it already, where there is one

        device = os.fstat(fd).st_rdev
        with _lock:
            if device in self._devices:
                return
            if device not in _lent:
                _lent[device] = _Lent(fd, fcntl.ioctl(fd, _TCGETS, bytes(_TERMIOS)))
            _lent[device].count += 1
            self._devices.append(device)

    def give_back(self) -> None:
        """Give them back, as they were: the last one does of several commands that run at once."""
        with _lock:
            while self._devices:
                device = self._devices.pop()
                lent = _lent.get(device)
                if lent is None:  # the parent's, in a forked copy
                    continue
                lent.count -= 1
                if not lent.count:
                    del _lent[device]
                    _restore(device, lent)

    def then(self, on_end: Callable[[], object]) -> Callable[[], object]:
        """Return what is to be called at the command's end."""
        if not self._devices:
            return on_end

        def ended() -> None:
            try:
                on_end()
            finally:
                self.give_back()

        return ended

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.give_back()


def _restore(device: int, lent: _Lent) -> None:
    """Let the output go on, and put the old settings back, if this process is in the terminal's foreground.

    From the background that would be a change of what others have on their screen, and SIGTTOU would stop us; that is
    blocked, in case the foreground changes just then (tty_check_change in the kernel).
    """
    import fcntl

    try:
        if os.fstat(lent.fd).st_rdev != device or os.tcgetpgrp(lent.fd) != os.getpgrp():
            return
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            fcntl.ioctl(lent.fd, _TCXONC, _TCOON)
            if fcntl.ioctl(lent.fd, _TCGETS, bytes(_TERMIOS)) != lent.settings:
                fcntl.ioctl(lent.fd, _TCSETS, lent.settings)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    except OSError:  # closed meanwhile, hung up, or not our controlling terminal
        return


def _after_fork() -> None:
    """Forget those of the parent, in a forked child."""
    global _lock
    _lock = Lock()
    _lent.clear()


os.register_at_fork(after_in_child=_after_fork)
