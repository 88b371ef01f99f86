"""Directories that are replaced while a branch makes its mounts, and put back: before any of its calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing import faults
from nsbox_testing.faults import EXIT, NUMBERS, THOROUGH, UMASK, Call, Spawn, outcome
from nsbox_testing.running import Orphans
from nsbox_testing.swaps import MOVE_MOUNT, PATHS, Swap, exchange, moments

import nsbox
from nsbox import Policy, Sandbox

pytestmark = [
    pytest.mark.skipif(not faults.is_possible(), reason="no seccomp user notification here"),
    pytest.mark.timeout(3000 if THOROUGH else 600),
]

ENDS = {EXIT, UMASK}  # a branch calls it when all is mounted, or nothing will be

LOOK = """
import os
[open("a/cache/fixed/file").read(), os.listdir("a/cache"), os.stat("a/cache").st_dev]
"""


@pytest.fixture
def policy(workspace: Path, tmp_path: Path) -> Policy:
    """A fresh file system in a writable directory, with a file of the policy's on it. "b" has another's in that place."""
    ours = tmp_path / "ours"
    ours.mkdir()
    (ours / "file").write_text("ours")
    for name in ("a", "b"):
        (workspace / name / "cache/fixed").mkdir(parents=True)
    (workspace / "b/cache/fixed/file").write_text("another's")
    return Policy.layers(
        nsbox.RoBind("/", "/"),
        nsbox.Dev("/dev"),
        nsbox.Proc("/proc"),
        nsbox.Bind(str(workspace), str(workspace)),
        nsbox.Tmpfs(str(workspace / "a/cache")),
        nsbox.RoBind(str(ours), str(workspace / "a/cache/fixed")),
        workdir=workspace,
        nested=os.geteuid() == 0,  # root's commands are the kernel's uid 0 here
        backend="namespaces",
    )


class Turns:
    """Exchanges two directories while a branch makes its mounts: another branch at each turn, at another moment.

    turn: a file with the number of the turn. moments: for each turn, see Swap.
    """

    def __init__(self, places: tuple[Path, Path], turn: Path, moments: Sequence[tuple[int, int, int]]) -> None:
        self._places, self._turn, self._moments = places, turn, moments
        self._pids: set[int] = set()
        self.swaps: dict[int, Swap] = {}

    def __call__(self, call: Call, spawn: Spawn) -> None:
        if call.role == "branch" and call.number in PATHS and call.pid not in self._pids:
            self._pids.add(call.pid)
            turn = int(self._turn.read_text())
            if turn >= 0 and turn not in self.swaps:  # a turn's later branches replace its first
                its = partial(_is_of, call.pid)
                self.swaps[turn] = Swap(self._places, its, *self._moments[turn], ends=ENDS)
        for swap in self.swaps.values():
            swap(call, spawn)


def _is_of(pid: int, call: Call) -> bool:
    return call.pid == pid


def looks(policy: Policy, workspace: Path, overlay: bool, turn: Path, turns: int) -> Callable[[], dict[str, Any]]:
    """Return a function that makes an interpreter, and tells what a branch sees at each turn.

    Of the fresh file system it tells whether it is the interpreter's, which all branches share.
    """

    def run() -> list[str]:
        turn.write_text("-1")
        seen = []
        with Sandbox(policy, stock=0) as box:
            py = box.python(overlay=overlay, stock=0)
            py.run("", check=True)
            for number in range(turns):
                turn.write_text(str(number))
                result = py.run(LOOK)
                interpreter = py._supply.current  # which the branch was made of
                assert interpreter is not None and interpreter._process is not None
                root = f"/proc/{interpreter._process.pid}/root"
                shared = os.stat(f"{root}{workspace}/a/cache").st_dev
                text, names, device = result.value or (result.stderr[-200:], [], -1)
                seen.append(" ".join([text, *names, "shared" if device == shared else "own"]))
        return seen

    return lambda: outcome(run)


@pytest.mark.parametrize("overlay", [False, True], ids=["shared", "overlay"])
def test_a_directory_that_is_replaced_meanwhile(
    policy: Policy, workspace: Path, tmp_path: Path, orphans: Orphans, overlay: bool
) -> None:
    """Branches see the policy's file on a file system of their own, whenever it was that a directory was another.

    Control: what starts while a directory is another one sees that one.
    """
    nsbox.probe()  # here, not in what is tried
    places, turn = (workspace / "a", workspace / "b"), tmp_path / "turn"
    numbers = PATHS | ENDS | {NUMBERS["mount_setattr"], NUMBERS["fsopen"]}
    none = Turns(places, turn, [(-1, 0, 0)])
    found = Spawn(looks(policy, workspace, overlay, turn, 1), none, numbers=numbers).run()
    assert found == {"returned": ["ours fixed own"], "left": []}
    made = none.swaps[0].numbers
    assert made.count(MOVE_MOUNT) > 4
    turns = moments(made)
    all_ = Turns(places, turn, turns)
    found = Spawn(looks(policy, workspace, overlay, turn, len(turns)), all_, numbers=numbers).run(patience=550)
    assert len(all_.swaps) == len(turns) and not any(swap.is_swapped for swap in all_.swaps.values())
    problems = [
        f"{moment} ({made[moment[0]]}): {seen}"
        for moment, seen in zip(turns, found["returned"], strict=True)
        if seen != "ours fixed own"
    ]
    assert not problems, "\n".join(problems)
    assert found["left"] == []
    exchange(*places)
    assert (workspace / "a/cache/fixed/file").read_text() == "another's"
