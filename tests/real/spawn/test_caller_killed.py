"""The caller is killed at any moment while it spawns: nothing survives. Moments by chance here, by system call in test_faults."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from nsbox_testing.running import Orphans

import nsbox
from nsbox import Policy, SetupError

ROUNDS = 200


def spawn_for_ever(policies: list[Policy], stay: int, beat: int, threads: int) -> None:
    """Spawn, in a caller that will be killed, commands that never end by themselves; a byte to beat for each."""

    def loop(policy: Policy) -> None:
        while True:
            try:
                nsbox.Popen(["cat"], stdin=stay, policy=policy, cwd="/", stderr=subprocess.DEVNULL)
            except SetupError as error:  # sandboxes aren't ended here: there may be too many of them by now
                assert error.errno is not None
            os.write(beat, b".")

    try:
        others = [threading.Thread(target=loop, args=(policies[i % len(policies)],)) for i in range(1, threads)]
        for thread in others:
            thread.start()
        loop(policies[0])
    finally:
        os._exit(1)


@pytest.mark.parametrize("threads", [1, 3])
def test_two_hundred_moments(workspace: Path, orphans: Orphans, threads: int) -> None:
    """200 callers are killed at random moments during spawns; each time all processes of theirs die.

    The moment: some spawns, told by a pipe, and a part of the time that one takes. Nothing survives: this process is the
    subreaper of all that is left, and reap() comes back only when it has none.
    """
    rng = random.Random(threads)
    policies = [Policy.workspace(workspace), Policy.host()]
    if os.geteuid() == 0:
        policies.append(Policy.host(uid=1234, gid=1234))
    stay_read, stay_write = os.pipe()  # nothing is ever written to it: a process that reads from it stays
    longest = 0.004
    try:
        for number in range(ROUNDS // 2):
            read, write = os.pipe()
            caller = os.fork()
            if caller == 0:
                os.close(read)
                os.close(stay_write)
                spawn_for_ever(
                    policies[number % len(policies) :] + policies[: number % len(policies)], stay_read, write, threads
                )
            os.close(write)
            os.set_blocking(read, True)
            for _ in range(rng.randrange(1, 4)):
                assert os.read(read, 1) == b"."
            end = time.perf_counter() + rng.random() * longest
            while time.perf_counter() < end:
                pass
            os.kill(caller, signal.SIGKILL)
            reaped = orphans.reap()
            assert caller in reaped
            # The pipe has ended: nobody has the caller's descriptors, by whichever process, any more.
            while os.read(read, 4096):
                pass
            os.close(read)
    finally:
        os.close(stay_read)
        os.close(stay_write)
    assert list(workspace.iterdir()) == []


def test_caller_killed_by_its_own_command_line(workspace: Path) -> None:
    """`nsbox run` killed: its command, its children and pid 1 are gone."""
    import sys

    from nsbox_testing import leftovers

    since = leftovers.boot_ticks()
    read, write = os.pipe()
    command = [sys.executable, "-I", "-m", "nsbox", "run", "--", "sh", "-c", "cat <&0 & echo x; cat"]
    with subprocess.Popen(command, cwd=workspace, stdin=read, stdout=subprocess.PIPE) as p:
        os.close(read)
        assert p.stdout.read(2) == b"x\n"
        p.kill()
    os.close(write)
    assert p.returncode == -signal.SIGKILL
    assert leftovers.survivors(since) == []


def test_mediators_killed_by_a_racer(workspace: Path) -> None:
    """A neighbour who kills every child that the caller has for a moment: errors or -9, but no hang and nothing left.

    Those it hits are mediators and commands, at moments that only the scheduler knows.
    """
    policy = Policy.workspace(workspace)
    racer = os.fork()
    if racer == 0:
        caller = os.getppid()
        me = os.getpid()
        path = f"/proc/{caller}/task/{caller}/children"
        while True:
            try:
                with open(path) as file:
                    for pid in map(int, file.read().split()):
                        if pid != me:
                            os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
            except FileNotFoundError:
                os._exit(0)
    statuses = set()
    try:
        for _ in range(150):
            try:
                statuses.add(nsbox.run(["true"], policy=policy).returncode)
            except SetupError as error:
                assert "killed" in str(error), error
    finally:
        os.kill(racer, signal.SIGKILL)
        os.waitpid(racer, 0)
    assert statuses <= {0, -9}
    assert nsbox.run(["true"], policy=policy).returncode == 0
