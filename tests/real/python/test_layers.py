"""Throw-away overlays: what a branch sees in them, and where its writes stay. Branches are made by a driver."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing.branches import layers_of, run

import nsbox
from nsbox._python.overlay import Overlaid

ATTEMPT = """
def attempt(call, *args):
    try:
        return call(*args)
    except OSError as error:
        return error.errno
"""


def in_branches(policy: nsbox.Policy, code: str, *, count: int = 1, **options: Any) -> Any:
    """Run a test's code in an interpreter that has `count` sets of overlays, `sets`; return its `result`."""
    overlaid, layers = layers_of(policy)
    try:
        owners = [layers.make() for _ in range(count)]
        sets = [[owner.fileno() for owner in each] for each in owners]
        fds = [fd for each in sets for fd in each]
        return run(policy, f"{ATTEMPT}\nsets = {sets}\n{code}", pass_fds=fds, overlaid=overlaid, **options)
    finally:
        layers.close()


def test_what_a_branch_writes_stays_in_it(workspace: Path, policy: nsbox.Policy) -> None:
    """It can write, and sees what it wrote; the host and other branches don't."""
    (workspace / "old").write_text("old")
    result = in_branches(
        policy,
        f"""
def first():
    os.chdir({str(workspace)!r})
    open("new", "w").write("new")
    open("old", "a").write(" and changed")
    return [sorted(os.listdir()), open("old").read()]

def second():
    return [sorted(os.listdir({str(workspace)!r})), open({str(workspace / "old")!r}).read()]

result = [branch(first, mounts=sets[0]), branch(second, mounts=sets[1])]
""",
        count=2,
    )
    assert result == [[["new", "old"], "old and changed"], [["old"], "old"]]
    assert os.listdir(workspace) == ["old"]
    assert (workspace / "old").read_text() == "old"
