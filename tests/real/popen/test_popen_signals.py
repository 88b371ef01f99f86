"""Popen's callers with odd signal settings."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from typing import Any

import pytest
from nsbox_testing.running import Face, in_fork

import nsbox

SIGNALS = ("SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt")

WALL = 0x40000000  # __WALL: children with any exit signal


def signal_state(sub: Any, **options: Any) -> dict[str, int]:
    """Return the signal sets that a command starts with."""
    lines = sub.run(["cat", "/proc/self/status"], stdout=subprocess.PIPE, text=True, **options).stdout.splitlines()
    facts = {key: value for key, _, value in (line.partition(":") for line in lines)}
    return {name: int(facts[name], 16) for name in SIGNALS}


def test_signal_mask_is_inherited(sub: Face) -> None:
    """Signals that the caller blocks are blocked in the command, and no others."""

    def ask() -> dict[str, int]:
        signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGUSR1, signal.SIGTERM, signal.SIGRTMIN + 3})
        return signal_state(sub)

    expected = sum(1 << n - 1 for n in (signal.SIGUSR1, signal.SIGTERM, signal.SIGRTMIN + 3))
    assert in_fork(ask)["SigBlk"] == expected


def test_nothing_is_blocked_otherwise(sub: Face) -> None:
    """The signals that are blocked around the spawn aren't blocked in the command."""
    assert signal_state(sub)["SigBlk"] == 0


def test_ignored_signals_are_inherited(sub: Face) -> None:
    """Ignored signals stay ignored, handled ones are at their default."""

    def ask() -> list[bool]:
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, lambda *_: None)
        state = signal_state(sub)
        return [bool(state["SigIgn"] >> n - 1 & 1) for n in (signal.SIGUSR2, signal.SIGUSR1)] + [state["SigCgt"] != 0]

    assert in_fork(ask) == [True, False, False]


@pytest.mark.parametrize("restore", [True, False])
def test_restore_signals(sub: Face, restore: bool) -> None:
    """restore_signals=True gives SIGPIPE and SIGXFSZ, which Python ignores, their defaults back."""
    ignored = signal_state(sub, restore_signals=restore)["SigIgn"]
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        assert bool(ignored >> number - 1 & 1) is not restore


def test_pending_signals_are_not_inherited(sub: Face) -> None:
    """A signal that is pending for the caller stays with it."""

    def ask() -> list[Any]:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2})
        signal.raise_signal(signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR2)
        state = signal_state(sub)
        return [state["SigPnd"], state["ShdPnd"], sorted(signal.sigpending())]

    assert in_fork(ask) == [0, 0, [signal.SIGUSR1, signal.SIGUSR2]]


def test_sigchld_ignored(sub: Face) -> None:
    """With SIGCHLD ignored the kernel reaps the command: wait() ends, never with a 0 that nobody knows."""

    def run() -> list[Any]:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        return [sub.run(["sh", "-c", "exit 3"]).returncode, sub.run(["echo", "x"], capture_output=True).stdout.decode()]

    status = 0 if not sub.contained else 3 if nsbox.probe().kernel >= (6, 15) else 255  # PIDFD_GET_INFO tells
    assert in_fork(run) == [status, "x\n"]


def test_sigchld_blocked(sub: Face) -> None:
    """With SIGCHLD blocked commands end as always, and exactly one signal is pending for one command."""

    def run() -> list[Any]:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        status = sub.run(["sh", "-c", "exit 3"]).returncode
        info = signal.sigtimedwait({signal.SIGCHLD}, 10)
        return [status, info is not None, signal.sigtimedwait({signal.SIGCHLD}, 0) is None]

    assert in_fork(run) == [3, True, True]


def test_sigchld_only_for_commands(sub: Face) -> None:
    """Each SIGCHLD that the caller gets is about the command; a failed start sends none."""

    def run() -> bool:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pids = []
        for _ in range(5):
            p = sub.Popen(["true"])
            info = signal.sigtimedwait({signal.SIGCHLD}, 10)
            pids.append((p.pid, info.si_pid if info else None))
            p.wait()
            if sub.contained:
                try:
                    sub.Popen(["/nowhere/nothing"])
                except FileNotFoundError:
                    assert signal.sigtimedwait({signal.SIGCHLD}, 0) is None
        return all(pid == seen for pid, seen in pids)

    assert in_fork(run) is True


def test_waitpid_for_any_child_sees_commands_only(sub: Face) -> None:
    """waitpid(-1) never returns another process than the commands: no mediator, no init, nothing of a failed start."""

    def run() -> list[bool]:
        commands = set()
        for _ in range(10):
            commands.add(sub.Popen(["true"]).pid)
            with contextlib.suppress(FileNotFoundError):
                sub.Popen(["/nowhere/nothing"])
        reaped = set()
        while True:
            try:
                reaped.add(os.waitpid(-1, 0)[0])
            except ChildProcessError:
                break
        try:
            os.waitpid(-1, WALL | os.WNOHANG)
            alone = False
        except ChildProcessError:
            alone = True
        return [reaped == commands, alone]

    assert in_fork(run) == [True, True]


def test_a_signal_for_what_somebody_else_has_reaped(policy: nsbox.Policy) -> None:
    """There is a return code after it, as with the base, although pid 1 of the sandbox takes its time."""
    p = nsbox.Popen(["sh", "-c", "read line"], stdin=subprocess.PIPE, policy=policy)
    os.kill(p.sandbox.init_pid, signal.SIGSTOP)
    p.stdin.close()
    os.waitpid(p.pid, 0)
    assert p.poll() is None
    goes_on = threading.Timer(0.2, os.kill, (p.sandbox.init_pid, signal.SIGCONT))
    goes_on.start()
    p.send_signal(signal.SIGTERM)
    assert p.returncode is not None
    goes_on.join()


@pytest.mark.filterwarnings("ignore:.*is multi-threaded.*:DeprecationWarning")
def test_waitpid_loop_during_spawns(sub: Face) -> None:
    """A thread that reaps every child all the time finds commands only, and stops no spawn."""

    def run() -> bool:
        reaped: set[int] = set()
        done = threading.Event()

        def reap() -> None:
            while not done.is_set():
                try:
                    pid, _ = os.waitpid(-1, os.WNOHANG)
                except ChildProcessError:
                    continue
                if pid:
                    reaped.add(pid)

        thread = threading.Thread(target=reap)
        thread.start()
        commands = set()
        for _ in range(50):
            p = sub.Popen(["true"])
            commands.add(p.pid)
            assert p.wait() in (0, 255)  # which stands for what isn't known
        done.set()
        thread.join()
        return reaped <= commands

    assert in_fork(run) is True


def test_sigalrm_every_millisecond(sub: Face) -> None:
    """A Python handler that runs a thousand times a second disturbs neither spawns nor waiting."""

    def run() -> list[Any]:
        ticks = 0

        def tick(*_: Any) -> None:
            nonlocal ticks
            ticks += 1

        signal.signal(signal.SIGALRM, tick)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        outputs = {sub.run(["cat"], input=b"x" * 70000, stdout=subprocess.PIPE).stdout for _ in range(50)}
        timed = [sub.Popen(["true"]).wait(timeout=30) for _ in range(20)]
        signal.setitimer(signal.ITIMER_REAL, 0)
        return [outputs == {b"x" * 70000}, set(timed) == {0}, ticks > 10]

    assert in_fork(run) == [True, True, True]


def test_keyboard_interrupt_while_waiting(sub: Face) -> None:
    """KeyboardInterrupt comes out of wait(), and the command can still be waited for."""

    def run() -> list[Any]:
        interrupted = threading.Event()

        def interrupt(*_: Any) -> None:
            if not interrupted.is_set():
                interrupted.set()
                raise KeyboardInterrupt

        def send() -> None:
            # More than once: one that comes just before the sleep begins is noticed after it only.
            while not interrupted.wait(0.01):
                signal.pthread_kill(main, signal.SIGINT)

        signal.signal(signal.SIGINT, interrupt)
        main = threading.main_thread().ident
        with sub.Popen(["cat"], stdin=subprocess.PIPE) as p:
            thread = threading.Thread(target=send)
            try:
                thread.start()
                p.wait(timeout=50)
            except KeyboardInterrupt:
                thread.join()
            p.stdin.close()
            return [interrupted.is_set(), p.wait()]

    assert in_fork(run) == [True, 0]
