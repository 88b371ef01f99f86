"""The terminal that a command has of its own: nothing of the user's can be reached by it.

The user is an interactive bash on a pseudo-terminal. Control: a command with the user's own terminal, without a filter,
types into the shell by TIOCSTI, where the kernel lets it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

import psutil
import pytest
from nsbox_testing.terminals import NSBOX, PROMPT, Screen, bash, set_size

import nsbox

PYTHON = shlex.quote(sys.executable)

TYPES = """
import fcntl, os, sys, termios
told = []
for fd in (0, 1, 2, os.open("/dev/tty", os.O_RDWR)):
    try:
        for letter in b"touch planted\\n": fcntl.ioctl(fd, termios.TIOCSTI, bytes([letter]))
        told.append(0)
    except OSError as error: told.append(error.errno)
print("told", *told)
"""

SETS = """
import fcntl, os, struct, termios, tty
tty.setraw(0)
fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", 7, 8, 0, 0))
try: termios.tcflow(1, termios.TCOOFF)
except OSError: pass
os.kill(os.getpid(), 9)
"""


def typed(workspace: Path, way: str, attack: str = TYPES) -> str:
    """Return what the shell shows after a command of this kind, when it has done what was typed into it."""
    (workspace / "attack.py").write_text(attack)
    with bash(workspace) as screen:
        screen.line(f"{way}{PYTHON} -ISu attack.py")
        screen.until(PROMPT)
        screen.line("echo en''d")
        screen.until("end\n")
        screen.until(PROMPT)
        screen.line("stty size; echo la''st")
        screen.until("last\n")
        return screen.shown


@pytest.mark.parametrize("options", ["", "--seccomp off ", "--host ", "--host --seccomp off ", "--keep-session "])
def test_nothing_is_typed_for_the_user(workspace: Path, options: str) -> None:
    """TIOCSTI is refused; without a filter, what it types is on the command's own terminal and ends with it."""
    shown = typed(workspace, f"{NSBOX} run {options}-- ")
    assert "told " in shown
    assert not (workspace / "planted").exists()


def test_control_outside(workspace: Path) -> None:
    """Control: what nothing contains types for the user."""
    shown = typed(workspace, "")
    if "told 0" not in shown:
        pytest.skip("this kernel lets nobody type (dev.tty.legacy_tiocsti)")
    assert (workspace / "planted").exists()


@pytest.mark.parametrize("options", ["", "--seccomp off "])
def test_settings_and_size_are_the_users(workspace: Path, options: str) -> None:
    """A raw terminal, another size and stopped output are the command's own, and end with it."""
    assert "\n24 80\nlast\n" in typed(workspace, f"{NSBOX} run {options}-- ", SETS)


def test_no_descriptor_of_the_users(workspace: Path) -> None:
    """Neither the command nor what /proc shows of it leads to the user's terminal, its bridge or its monitor."""
    attack = """
import os, stat
here = {os.fstat(fd).st_rdev for fd in range(3)}
for name in os.listdir("/proc"):
    if not name.isdigit(): continue
    try: fds = os.listdir(f"/proc/{name}/fd")
    except OSError: continue
    for fd in fds:
        try: found = os.stat(f"/proc/{name}/fd/{fd}")
        except OSError: continue
        if stat.S_ISCHR(found.st_mode) and os.major(found.st_rdev) != 1: here.add(found.st_rdev)
print("devices", *sorted(here), "parent", os.getppid(), "session", os.getsid(0))
"""
    (workspace / "attack.py").write_text(attack)
    with bash(workspace) as screen:
        screen.line(f"{NSBOX} run -- {PYTHON} -ISu attack.py")
        screen.until("devices ")
        told = screen.until("\n").split()
        screen.until(PROMPT)
        screen.line(f'{PYTHON} -c \'import os; print("us""ers", os.fstat(0).st_rdev)\'')
        screen.until("users ")
        users = screen.until("\n")
    devices = told[: told.index("parent")]
    assert len(devices) == 1 and users not in devices
    assert told[-3] == told[-1] == "0"


def test_group_of_the_monitor(workspace: Path) -> None:
    """No process group outside can be brought to the foreground of the command's terminal, or be signalled by it."""
    attack = """
import os, signal
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
told = []
for group in (0, 1, os.getppid(), os.getpgid(0) + 1000, -1):
    try: os.tcsetpgrp(0, group); told.append(group)
    except OSError: pass
print("brought", *told, "end")
"""
    (workspace / "attack.py").write_text(attack)
    with bash(workspace) as screen:
        screen.line(f"{NSBOX} run -- {PYTHON} -ISu attack.py")
        screen.until("brought end\n")


def test_popen_pty_isnt_the_callers(workspace: Path) -> None:
    """A command with pty= can't type for the caller, and sets no terminal but its own."""
    master, slave = os.openpty()
    set_size(slave, (33, 99))
    code = TYPES.replace('for fd in (0, 1, 2, os.open("/dev/tty", os.O_RDWR))', "for fd in (0,)")
    code += "import struct; fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack('4H', 7, 8, 0, 0))"
    with nsbox.Popen([sys.executable, "-ISc", code], policy=nsbox.Policy.workspace(workspace), pty=True) as process:
        assert process.terminal is not None
        told = process.terminal.read()
        assert told.startswith(b"told 1") and process.terminal.size == (7, 8)
    assert os.get_terminal_size(slave) == (99, 33)
    os.close(master)
    os.close(slave)


@pytest.mark.parametrize("options", ["", "--host "])
def test_a_signal_that_nobody_typed(workspace: Path, options: str) -> None:
    """A command that dies of a signal of its own takes nobody of the caller's group along. Control: a key does."""
    (workspace / "attack.py").write_text(
        "import os, signal\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\nos.kill(os.getpid(), signal.SIGINT)\n"
    )
    (workspace / "wait.py").write_text(
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\nprint('wai' + 'ting')\nsignal.pause()\n"
    )
    with bash(workspace) as screen:
        for file in ("attack", "wait"):
            (workspace / "script").write_text(f"{NSBOX} run {options}-- {PYTHON} -ISu {file}.py\necho nex''t\n")
            screen.line("bash script")
            if file == "wait":
                screen.until("waiting\n")
                screen.type("\x03")
                assert "next" not in screen.until(PROMPT)
            else:
                screen.until("next\n")
                screen.until(PROMPT)


KEPT = f"{NSBOX} run --keep-session "
DIES = "import os, signal\nsignal.signal({0}, signal.SIG_DFL)\n{1}\nos.kill({2}, {0})\nsignal.pause()\n"
WAITS = "import signal\nsignal.signal({0}, signal.SIG_DFL)\nprint('wai' + 'ting')\nsignal.pause()\n"
# Another of nsbox's group, such as a script (bash ignores SIGQUIT).
CALLER = """
import os, signal, sys
for number in (2, 3): signal.signal(number, signal.SIG_DFL)
status = os.spawnvp(os.P_WAIT, sys.argv[1], sys.argv[1:])
print("nex" + "t", abs(status) % 128)
"""


@pytest.mark.parametrize("options", ["", "--host ", "--backend bwrap "])
@pytest.mark.parametrize(("number", "key"), [(2, "\x03"), (3, "\x1c")])
@pytest.mark.parametrize("group", [False, True])
def test_a_signal_that_nobody_typed_with_our_session(
    workspace: Path, options: str, number: int, key: str, group: bool
) -> None:
    """Nor does a command that has the user's terminal, by a signal to itself or its group. Control: a key does."""
    if "bwrap" in options and (os.geteuid() == 0 or shutil.which("bwrap") is None):
        pytest.skip("bwrap isn't to be had, or not for root")
    before = (
        f"signal.signal({number}, lambda *_: None); os.killpg(0, {number}); signal.signal({number}, signal.SIG_DFL)"
    )
    (workspace / "attack.py").write_text(DIES.format(number, before if group else "", 0 if group else "os.getpid()"))
    (workspace / "wait.py").write_text(WAITS.format(number))
    (workspace / "caller.py").write_text(CALLER)
    with bash(workspace) as screen:
        screen.line("ulimit -c 0")
        screen.until(PROMPT)
        screen.line(f"{PYTHON} caller.py {KEPT}{options}-- {PYTHON} -ISu attack.py")
        screen.until(f"next {number}\n")
        screen.until(PROMPT)
        screen.line(f"{PYTHON} caller.py {KEPT}{options}-- {PYTHON} -ISu wait.py")
        screen.until("waiting\n")
        until_somebody_listens(screen)
        screen.type(key)
        assert "next" not in screen.until(PROMPT)


def until_somebody_listens(screen: Screen) -> None:
    """Wait until the command isn't the only one of its group, which what listens for keys joins right after its start."""
    group = os.tcgetpgrp(screen.fd)
    while sum(process.is_running() and _group(process.pid) == group for process in psutil.process_iter()) < 2:
        pass


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def test_killed_with_the_process_that_listens(workspace: Path) -> None:
    """What tells keys from other signals may be killed with the command's group; the caller's goes on."""
    (workspace / "attack.py").write_text("import os, signal\nos.kill(0, signal.SIGKILL)\n")
    (workspace / "script").write_text(f"{KEPT}-- {PYTHON} -ISu attack.py\necho nex''t $?\n")
    with bash(workspace) as screen:
        screen.line("bash script")
        screen.until("next 137\n")
        screen.until(PROMPT)


def test_stopped_with_the_process_that_listens(workspace: Path) -> None:
    """It may be stopped with the command's group, too, and is there again when that goes on."""
    (workspace / "attack.py").write_text(
        "import os, signal\nsignal.signal(2, signal.SIG_DFL)\nos.kill(0, signal.SIGSTOP)\n"
        "print('wai' + 'ting')\nsignal.pause()\n"
    )
    with bash(workspace) as screen:
        screen.line(f"for i in 1 2; do {KEPT}-- {PYTHON} -ISu attack.py; echo nex''t; done")
        screen.until("Stopped")
        screen.until(PROMPT)
        screen.line("fg")
        screen.until("waiting\n")
        screen.type("\x03")
        screen.until(PROMPT)


def test_a_stop_that_nobody_typed(workspace: Path) -> None:
    """A command that stops itself stops nsbox, and nobody else of its group. Control: Ctrl-Z does."""
    (workspace / "attack.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTSTP)\n")
    (workspace / "wait.py").write_text("print('wai' + 'ting')\ninput()\n")
    outer = "import os, sys\npid = os.spawnvp(os.P_NOWAIT, sys.argv[1], sys.argv[1:])\n"
    outer += "found = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED)\nprint('sto' + 'pped')\nos.kill(pid, 9)\n"
    (workspace / "outer.py").write_text(outer)
    with bash(workspace) as screen:
        screen.line(f"{PYTHON} outer.py {NSBOX} run -- {PYTHON} -ISu attack.py")
        assert "Stopped" not in screen.until("stopped\n")
        screen.until(PROMPT)
        screen.line(f"{PYTHON} outer.py {NSBOX} run -- {PYTHON} -ISu wait.py")
        screen.until("waiting\n")
        screen.type("\x1a")
        screen.until("Stopped")
        screen.until(PROMPT)
        screen.line("kill -9 %1; wait; echo en''d")
        screen.until("end\n")
