"""Faults while a sandbox is kept, and while a copy of it is made and entered: each call of the set-up fails once."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing import faults
from nsbox_testing.faults import NUMBERS, THOROUGH, Call, Spawn, outcome, samples
from nsbox_testing.running import Orphans

import nsbox
from nsbox import Policy, Sandbox
from nsbox._base.errors import NsboxError
from nsbox._kept.tree import KeptTree

pytestmark = [
    pytest.mark.skipif(not faults.is_possible(), reason="no seccomp user notification here"),
    pytest.mark.timeout(3000 if THOROUGH else 300),
]

LOOK = """
cut -d ' ' -f 5,6 /proc/self/mountinfo | sort; ls -a / /dev; ls /proc/self/fd | wc -l; cat deny/secret; kill -0 1
grep -E '^(Cap|NoNew|Seccomp|Uid|Gid|NSpid)' /proc/self/status; cut -c 1-7 /proc/net/dev; ls /tmp; echo > /tmp/left
"""


RECEIVING = {NUMBERS.get("socketpair"), NUMBERS.get("recvmsg")}


@pytest.fixture
def policy(workspace: Path) -> Policy:
    (workspace / "deny").mkdir()
    (workspace / "deny/secret").write_text("secret")
    nsbox.probe()  # here: a call of this that fails tells that something is missing, and "auto" would take bubblewrap
    return Policy.workspace(workspace, deny=[workspace / "deny"], backend="namespaces")


def copies(policy: Policy) -> Callable[[], dict[str, Any]]:
    """Return a function that keeps a sandbox, makes a copy, and tells what two commands saw, the first one in there."""

    def run() -> list[Any]:
        with Sandbox(policy, stock=0) as box:
            box.run(["true"])
            kept = box._open_way()._kept
            if kept is not None:
                park(kept)
            return [seen(box.run) for _ in range(2)]

    return lambda: outcome(run)


def park(kept: KeptTree) -> None:
    """Make a copy, as the thread does."""
    try:
        kept._ready.append(kept._park())
    except (NsboxError, OSError):
        pass


def seen(run: Callable[..., Any], **options: Any) -> list[Any]:
    """Return what a command can see of its containment."""
    command = ["sh", "-c", LOOK]
    done = run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    return [done.returncode, sorted(set(done.stdout.decode(errors="replace").splitlines()))]


def test_a_call_that_fails(policy: Policy, orphans: Orphans) -> None:
    """Whichever call fails: an error, or commands that see exactly the same containment. Never less, nothing left."""
    start = copies(policy)
    spawn = Spawn(start, lambda call, spawn: None)
    expected, calls = spawn.run(), spawn.calls
    assert expected["left"] == []
    warm, copy = expected["returned"]
    cold = Spawn(lambda: outcome(lambda: seen(nsbox.run, policy=policy)), lambda call, spawn: None).run()["returned"]
    assert warm == copy and warm[0] == cold[0] == 0
    problems, hits = [], 0
    targets = [
        target
        for target in samples(calls, THOROUGH)
        if target.number not in faults.INFALLIBLE and (target.role != "caller" or target.number in RECEIVING)
    ]
    for target in targets if THOROUGH else targets[os.geteuid() != 0 :: 3]:  # others as another user
        failed: list[Call] = []

        def decide(call: Call, spawn: Spawn, target: Call = target, failed: list[Call] = failed) -> int | None:
            if not call.is_(target):
                return None
            failed.append(call)
            return errno.EMFILE if call.role == "caller" else errno.EPERM

        found = Spawn(start, decide).run()
        hits += len(failed)
        if found is None:
            problems.append(f"{target}: the caller died")
        elif found["left"]:
            problems.append(f"{target}: left {found['left']}")
        elif "raised" in found and not found["text"]:
            problems.append(f"{target}: an error without a word")
        elif "returned" in found and any(one not in (warm, cold) and one[0] != -9 for one in found["returned"]):
            lines = [set(one[1]) ^ set(warm[1]) for one in found["returned"]]
            problems.append(f"{target}: not the same: {lines}")
    assert hits > len(targets) / (2 if THOROUGH else 6) and not problems, "\n".join(problems)
