"""Terminals on a Mac: a command can make its own, and use the one that it was given."""

from __future__ import annotations

import os
import pty
from collections.abc import Iterator

import pytest
from nsbox_darwin import allowed, attempt, control, python, refused

import nsbox

pytestmark = pytest.mark.darwin


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal that is open before the sandbox is made."""
    ends = pty.openpty()
    yield ends
    for end in ends:
        os.close(end)


def test_own_terminal(policy: nsbox.Policy) -> None:
    """A command can open a new terminal, and talk through it."""
    code = """
    import os, pty, termios
    first, second = pty.openpty()
    settings = termios.tcgetattr(second)
    settings[3] &= ~termios.ECHO
    termios.tcsetattr(second, termios.TCSANOW, settings)
    os.write(first, b"line\\n")
    assert os.read(second, 100) == b"line\\n"
    assert os.ttyname(second).startswith("/dev/ttys")
    """
    allowed(python(code), policy)


def test_program_in_a_terminal(policy: nsbox.Policy) -> None:
    """A command can start a program in a terminal of its own, as pexpect and script(1) do."""
    code = """
    import os, pty
    status = pty.spawn(["/bin/sh", "-c", "test -t 0 && test -t 1 && stty -a >/dev/null"])
    assert os.waitstatus_to_exitcode(status) == 0
    """
    allowed(python(code), policy)


def test_given_terminal(policy: nsbox.Policy, terminal: tuple[int, int]) -> None:
    """What was open before has its size and its settings, which can be changed."""
    code = """
    import os, sys, termios, tty
    assert os.isatty(0)
    os.get_terminal_size(0)
    settings = termios.tcgetattr(0)
    tty.setraw(0)
    termios.tcsetattr(0, termios.TCSANOW, settings)
    """
    allowed(python(code), policy, stdin=terminal[1])


@pytest.mark.as_user("root may type into any terminal")
def test_typing_into_a_terminal(policy: nsbox.Policy, terminal: tuple[int, int]) -> None:
    """A command can't type into a terminal that it was given, for the caller's shell to read: it isn't its own."""
    code = "import fcntl, termios\nfcntl.ioctl(0, termios.TIOCSTI, b'x')"
    # The control makes a terminal its own first. That one hangs up when it ends, so it has another one.
    own = f"os.setsid()\nimport fcntl, termios\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{code}"
    first, second = pty.openpty()
    try:
        control(attempt(own), stdin=second)
    finally:
        os.close(first)
        os.close(second)
    refused(attempt(code), policy, stdin=terminal[1])
