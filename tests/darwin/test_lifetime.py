"""What ends with what on a Mac: processes in the background with the command, the command with its caller."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest
from nsbox_darwin import allowed, control, fails, is_gone, python

import nsbox

pytestmark = pytest.mark.darwin

# Their output isn't the command's: a caller that waits for the end of that would wait for them.
BACKGROUND = "sleep 1000 >/dev/null 2>&1 & echo $!"

CALLER = """
import subprocess, sys
if sys.argv[1] == "plain":
    child = subprocess.Popen(["/bin/sleep", "1000"])
else:
    import nsbox
    script = "sleep 1000 >/dev/null 2>&1 & echo $!; exec sleep 1000"
    child = nsbox.Popen(["/bin/sh", "-c", script], policy=nsbox.Policy.workspace(sys.argv[2]), stdout=subprocess.PIPE)
    print(int(child.stdout.readline()), end=" ")
print(child.pid, flush=True)
child.wait()
"""


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_background_ends_with_the_command(policy: nsbox.Policy) -> None:
    """What a command leaves in the background is ended with it; without a sandbox it goes on."""
    plain = int(control(["/bin/sh", "-c", BACKGROUND]))
    try:
        assert _is_alive(plain)
    finally:
        os.kill(plain, signal.SIGKILL)
    assert is_gone(int(allowed(["/bin/sh", "-c", BACKGROUND], policy)))


def test_background_ends_with_a_killed_command(policy: nsbox.Policy) -> None:
    """That is so too when the command is killed."""
    script = f"{BACKGROUND}; exec sleep 1000"
    with nsbox.Popen(["/bin/sh", "-c", script], policy=policy, stdout=nsbox.PIPE, text=True) as child:
        assert child.stdout is not None
        background = int(child.stdout.readline())
        child.kill()
        assert child.wait(30) == -signal.SIGKILL
    assert is_gone(background)


def test_kill_on_exit_false(policy: nsbox.Policy) -> None:
    """With kill_on_exit=False the background goes on when the command has ended."""
    background = int(allowed(["/bin/sh", "-c", BACKGROUND], policy, kill_on_exit=False))
    try:
        assert _is_alive(background)
    finally:
        os.kill(background, signal.SIGKILL)
    assert is_gone(background)


def _killed_caller(*arguments: object) -> list[int]:
    """Start a caller, kill it when its command runs, and return the pids of that and of what it has started."""
    with subprocess.Popen(python(CALLER, *arguments), stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        pids = [int(word) for word in caller.stdout.readline().split()]
        caller.kill()
    return pids


def test_killed_caller(workspace: Path) -> None:
    """A caller that is killed takes its command along, and the command's group; a plain command goes on."""
    (plain,) = _killed_caller("plain")
    try:
        assert _is_alive(plain)
    finally:
        os.kill(plain, signal.SIGKILL)
    pids = _killed_caller("contained", workspace)
    assert len(pids) == 2
    try:
        assert all([is_gone(pid) for pid in pids])
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_another_sandbox_inside(policy: nsbox.Policy) -> None:
    """A command can't put on a second sandbox, not even one that allows everything: the system refuses it."""
    argv = ["/usr/bin/sandbox-exec", "-p", "(version 1)(allow default)", "/bin/echo", "in a sandbox"]
    assert control(argv) == "in a sandbox\n"
    assert "in a sandbox" not in fails(argv, policy)


def test_nsbox_inside(policy: nsbox.Policy, workspace: Path) -> None:
    """nsbox in a sandbox says that it is in one, and starts nothing."""
    code = """
    import sys
    import nsbox
    try:
        nsbox.run(["/bin/echo", "started"], policy=nsbox.Policy.workspace(sys.argv[1]))
    except nsbox.UnavailableError as error:
        print(error)
    """
    assert "started" in control(python(code, workspace))
    said = allowed(python(code, workspace), policy)
    assert "sandbox" in said
    assert "started" not in said
