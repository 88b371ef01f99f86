"""Directories that are replaced while a copy of a kept sandbox is made, and put back: before any of its calls."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing import faults
from nsbox_testing.faults import NUMBERS, THOROUGH, Call, Spawn, outcome
from nsbox_testing.running import Orphans
from nsbox_testing.swaps import MOVE_MOUNT, Swap, exchange, moments

import nsbox
from nsbox import Policy, Sandbox

pytestmark = [
    pytest.mark.skipif(not faults.is_possible(), reason="no seccomp user notification here"),
    pytest.mark.timeout(3000 if THOROUGH else 300),
]

GETPID = NUMBERS.get("getpid", -1)


@pytest.fixture
def policy(workspace: Path, tmp_path: Path) -> Policy:
    """A fresh file system in a writable directory, with a file of the policy's on it. "b" has another's in that place."""
    nsbox.probe()  # here, not in what is tried
    ours = tmp_path / "ours"
    ours.mkdir()
    (ours / "file").write_text("ours")
    for name in ("a", "b"):
        (workspace / name / "cache").mkdir(parents=True)
    (workspace / "b/cache/fixed").mkdir()
    (workspace / "b/cache/fixed/file").write_text("another's")
    return Policy.layers(
        nsbox.RoBind("/", "/"),
        nsbox.Bind(str(workspace), str(workspace)),
        nsbox.Tmpfs(str(workspace / "a/cache")),
        nsbox.RoBind(str(ours), str(workspace / "a/cache/fixed")),
        workdir=workspace,
        backend="namespaces",
    )


LOOK = "cat a/cache/fixed/file; echo; ls a/cache; stat -c %d a/cache"


def looks(policy: Policy, is_parked: bool) -> Callable[[], dict[str, Any]]:
    """Return a function that keeps a sandbox, and tells what two commands see, each in a copy of it.

    Of the fresh file system they tell whether it is the kept sandbox's, which no command may see.
    """

    def run() -> list[str]:
        with Sandbox(policy, stock=0) as box:
            box.run(["true"], check=True)
            seen = []
            for _ in range(2):
                kept = box._open_way()._kept
                assert kept is not None
                if is_parked:
                    kept._stock = 1
                    kept.make_ready()
                    kept._stock = 0
                shared = {os.makedev(stamp.dev >> 32, stamp.dev & 0xFFFFFFFF) for stamp in kept._stamps.array}
                done = box.run(["sh", "-c", LOOK], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                *lines, device = done.stdout.decode().split()
                seen.append(" ".join([*lines, "shared" if int(device) in shared else "own"]))
            return seen

    return lambda: outcome(run)


class Copies:
    """Tells which calls are those of the process that makes the second copy of a kept sandbox."""

    def __init__(self) -> None:
        self._makers: list[int] = []  # of the kept sandbox, then of a copy for a command that looks at nothing

    def __call__(self, call: Call) -> bool:
        if call.number == GETPID and call.role in ("mediator", "helper") and call.pid not in self._makers:
            self._makers.append(call.pid)  # it is the first call that it makes, and its own helpers don't make it
        return self._makers[2:3] == [call.pid]


@pytest.mark.parametrize("is_parked", [False, True], ids=["anew", "ready"])
def test_a_directory_that_is_replaced_meanwhile(
    policy: Policy, workspace: Path, orphans: Orphans, is_parked: bool
) -> None:
    """Commands see the policy's file on a file system of their own, whenever it was that a directory was another.

    Control: what starts while a directory is another one sees that one.
    """
    run, places = looks(policy, is_parked), (workspace / "a", workspace / "b")
    none = Swap(places, Copies())
    expected = Spawn(run, none).run()
    assert expected == {"returned": ["ours fixed own"] * 2, "left": []}
    assert none.numbers.count(MOVE_MOUNT) == 2  # the fresh file system, and what goes along onto it
    problems = []
    for moment in moments(none.numbers):
        swap = Swap(places, Copies(), *moment)
        found = Spawn(run, swap).run()
        assert not swap.is_swapped
        if found != expected:
            problems.append(f"{moment} ({none.numbers[moment[0]]}): {found}")
    assert not problems, "\n".join(problems)
    exchange(*places)
    assert (workspace / "a/cache/fixed/file").read_text() == "another's"
