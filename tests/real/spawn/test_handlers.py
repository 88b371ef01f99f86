"""Signals' handlers that use sandboxes themselves, while what they have interrupted does: nobody waits for ever.

Python runs a handler between two steps of whatever its main thread does, also while that holds a lock.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nsbox._core import orphans as core_orphans
from nsbox._kept import mounts

# Two boxes are closed and made again by a handler, which runs commands as well; threads use a third one meanwhile.
HANDLERS = """
import gc, signal, sys, threading
import nsbox
policy = nsbox.Policy.workspace(sys.argv[1])
boxes, times, is_over = [nsbox.Sandbox(policy), nsbox.Sandbox(policy)], 0, threading.Event()
common = nsbox.Sandbox(policy)
for box in (*boxes, common):
    box.run(["true"], check=True)

def handler(*_):
    global times
    times += 1
    boxes.pop(0).close()
    boxes.append(nsbox.Sandbox(policy))
    boxes[times % 2].run(["true"], check=True)
    common.run(["true"], check=True)
    if times % 7 == 0:
        gc.collect()
    if times < 60:
        signal.setitimer(signal.ITIMER_REAL, 0.0005 * (times % 9 + 1))

def use():
    while not is_over.is_set():
        common.run(["true"], check=True)

threads = [threading.Thread(target=use) for _ in range(2)]
for thread in threads:
    thread.start()
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.001)
while times < 60:
    try:
        boxes[-1].run(["true"], check=True)
    except ValueError as error:  # closed in between
        assert "closed" in str(error), error
is_over.set()
for thread in threads:
    thread.join()
for box in (*boxes, common):
    box.close()
print(times)
"""


def test_sandboxes_in_handlers(workspace: Path) -> None:
    """It ends, and each command has run: two minutes are more than enough."""
    argv = [sys.executable, "-I", "-c", HANDLERS, workspace]
    run = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert (run.stdout, run.stderr, run.returncode) == ("60\n", "", 0)


def test_a_change_of_mounts_is_told_once() -> None:
    """The kernel reports it to one poll(2) alone: a handler that runs in between counts what is kept as stale."""
    watch, told = mounts.MountWatch(), []

    class Poller:
        def poll(self, timeout: int) -> list[Any]:
            told.append(watch.changed())
            return []

    class Raising:
        def poll(self, timeout: int) -> list[Any]:
            raise KeyboardInterrupt

    poller = watch._poller
    try:
        assert not watch.changed()
        watch._poller = Poller()  # type: ignore[assignment]
        watch.changed()
        assert told == [True]
        watch._has_changed, watch._poller = False, Raising()  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            watch.changed()
        watch._poller = poller
        assert watch.changed()
    finally:
        watch.close()


def test_an_init_that_ends_while_another_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for who looks whether this machine reaps: that may be the frame which a handler interrupts."""
    orphans, fds = core_orphans.Orphans(), [os.dup(2) for _ in range(3)]
    orphans.release(fds[0])
    orphans._next = 0.0

    def look(now: float) -> None:
        orphans.release(fds[2])

    monkeypatch.setattr(orphans, "_look", look)
    orphans.release(fds[1])
    assert orphans._watched == fds[0]
    os.close(fds[0])
    for fd in fds:
        with pytest.raises(OSError):
            os.fstat(fd)
