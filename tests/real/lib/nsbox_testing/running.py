"""Ways to run things: the faces that are compared, Python code in a child, a function in a fork, a session that is full."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import select
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

import nsbox

_WALL = 0x40000000  # __WALL: children with any exit signal
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


class Face:
    """The names of subprocess: the standard library's own, or nsbox's with one policy.

    The plain one is the control: a test of parity that fails with it tests something else than parity.
    """

    def __init__(self, name: str, policy: nsbox.Policy | None, directory: Path) -> None:
        self.name = name
        self.policy = policy
        self.directory = directory

    def __getattr__(self, name: str) -> Any:
        if self.policy is None:
            return getattr(subprocess, name)
        return functools.partial(getattr(nsbox, name), policy=self.policy)

    @property
    def contained(self) -> bool:
        return self.policy is not None

    @property
    def isolated(self) -> bool:
        """Say if the command is in a pid namespace, with an init."""
        return self.policy is not None and self.policy.backend == "auto"


def python(code: str, *args: str) -> list[str]:
    """Return a command that runs this Python code, without site packages, which take time to find."""
    return [sys.executable, "-I", "-S", "-c", code, *args]


class Orphans:
    """While this is active, orphans of the machine's become children of this process (a subreaper, prctl(2)).

    Thus reap() knows when nothing at all is left of a caller that was killed, however late the machine's pid 1 reaps.
    """

    def __enter__(self) -> Orphans:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        return self

    def __exit__(self, *_: object) -> None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def reap(self, patience: float = 30.0) -> list[int]:
        """Reap children and orphans until there are none; fails if any is still alive after that many seconds."""
        end = time.monotonic() + patience
        reaped = []
        while True:
            try:
                pid, _ = os.waitpid(-1, _WALL | os.WNOHANG)
            except ChildProcessError:
                return reaped
            if pid:
                reaped.append(pid)
            elif not self._await_one(end):
                left = [f"{p.name()} (pid {p.pid}, {p.status()})" for p in psutil.Process().children(recursive=True)]
                raise AssertionError(f"still alive: {', '.join(left)}")

    def _await_one(self, end: float) -> bool:
        children = [child.pid for child in psutil.Process().children()]
        held = [os.pidfd_open(pid) for pid in children]
        try:
            return bool(select.select(held, [], [], max(0.0, end - time.monotonic()))[0])
        finally:
            for fd in held:
                os.close(fd)


def fill(s: nsbox.Session) -> None:
    """Leave processes behind until a shell of the session finds no room for another."""
    for _ in range(30):
        token = nsbox.CancelToken()

        def look(event: nsbox.StreamEvent, token: nsbox.CancelToken = token) -> None:
            if b"temporarily unavailable" in event.data:
                token.cancel()

        if s.shell("sleep 1000 >/dev/null 2>&1 &", cancel=token, grace=0, on_output=look).cancelled:
            return
    raise AssertionError("there is always room")


def in_fork(function: Callable[[], Any]) -> Any:
    """Run a function in a fork of this process; return what it returns, by JSON, or fail with its traceback."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        _run_and_exit(function, write)
    os.close(write)
    with open(read) as file:
        answer = file.read()
    _, status = os.waitpid(pid, 0)
    assert answer, f"the fork ended with status {os.waitstatus_to_exitcode(status)}"
    result = json.loads(answer)
    assert "ok" in result, result["error"]
    return result["ok"]


def _run_and_exit(function: Callable[[], Any], write: int) -> None:
    os.dup2(write, 900, inheritable=False)  # out of the way: the function may close what is low
    os.close(write)
    try:
        answer = json.dumps({"ok": function()})
    except BaseException:
        answer = json.dumps({"error": traceback.format_exc()})
    with open(900, "w") as file:
        file.write(answer)
    os._exit(0)
