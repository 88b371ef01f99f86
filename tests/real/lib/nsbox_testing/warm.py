"""The same tests for commands in copies of what a Sandbox keeps: whatever holds for a policy holds there.

NSBOX_TESTS_WARM=anew: each command has its copy made; =ready: it finds one that is ready.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

import nsbox
from nsbox import Policy, Sandbox
from nsbox._kept import tree
from nsbox._popen import popen

WAY = os.environ.get("NSBOX_TESTS_WARM", "")


def is_refilled(kept: tree.KeptTree) -> bool:
    """Say if the thread that makes copies has something left to do for this one."""
    return kept.reference in tree._refiller._asked or kept.filling.locked()


def await_ready(box: Sandbox, seconds: float = 10) -> int:
    """Wait until a sandbox is ready for the next command, and return how many are; 0: none will be, or nothing is kept."""
    end = time.monotonic() + seconds
    while (kept := box._way._kept) is not None and not kept._ready and is_refilled(kept):
        if time.monotonic() > end:
            break
        time.sleep(0.001)
    return len(kept._ready) if kept is not None else 0


def output(box: Sandbox, *command: str) -> str:
    """Run a command that has to be in a copy, and return what it says. Once more, if the machine's mounts have changed."""
    for _ in range(3):
        await_ready(box)
        with box.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            said = process.communicate()[0]
        if process.sandbox.is_warm:
            return str(said)
    pytest.fail(f"it isn't in a copy: {box.why_cold}")


@contextlib.contextmanager
def by_sandboxes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace each policy by a Sandbox, as NSBOX_TESTS_WARM says."""
    if not WAY:
        yield
        return
    boxes: dict[Policy, Sandbox] = {}
    check = popen.check_policy

    def replaced(policy: object) -> Any:
        checked = check(policy)
        if not isinstance(checked, Policy):
            return checked
        if checked not in boxes:
            boxes[checked] = Sandbox(checked, stock=2 if WAY == "ready" else 0)
        box = boxes[checked]
        with contextlib.suppress(nsbox.NsboxError, OSError):  # the command tells
            box.start()
            await_ready(box)
        return box

    with monkeypatch.context() as patch:
        patch.setattr(popen, "check_policy", replaced)
        try:
            yield
        finally:
            for box in boxes.values():
                await_ready(box)
                box.close()
