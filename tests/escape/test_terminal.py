"""The caller's terminal, which a command without pipes has open: SIGWINCH for the caller, and output that stops.

The caller is a process of its own with a pseudo-terminal as its controlling one; it reports on a pipe. Control: a child
that nothing contains does each of these.
"""

from __future__ import annotations

import errno
import os
import pty
import select
import sys
from pathlib import Path

import pytest

ATTACK = """
import fcntl, struct, sys, termios
def attempt(*args):
    try: fcntl.ioctl(1, *args)
    except OSError as error: return error.errno
    return 0
found = [attempt(termios.TIOCSWINSZ, struct.pack("HHHH", 11, 22, 0, 0)), attempt(1 << 32 | termios.TIOCSWINSZ, struct.pack("HHHH", 12, 22, 0, 0))]
found.append(attempt(termios.TCXONC, 0))
open("found", "w").write(repr(found))
"""

# WAY starts the command ATTACK, as the caller; after it the state of the terminal is reported.
CALLER = """
import os, signal, subprocess, sys
import nsbox
report, way, ws, attack, base = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5]
os.set_inheritable(report, False)
got = []
signal.signal(signal.SIGWINCH, lambda *_: got.append("SIGWINCH"))
command = [sys.executable, "-I", "-S", "-c", attack]
policy = nsbox.Policy.workspace(ws, seccomp=base)
if way == "plain":
    subprocess.run(command, cwd=ws, check=True)
elif way == "run":
    nsbox.run(command, policy=policy, check=True)
elif way == "landlock":
    weaker = policy.with_(backend="landlock", degrade={"attributes", "deny", "namespaces", "secrets"})
    nsbox.run(command, policy=weaker, check=True)
elif way == "passed":
    nsbox.run(command, policy=policy, check=True, stdin=0, stdout=os.dup(1), stderr=subprocess.DEVNULL)
else:
    with nsbox.Sandbox(policy) as box:
        if way == "sandbox":
            for _ in range(3): box.run(command, check=True)
        elif way == "session":
            with box.session() as s: s.run(command, check=True)
        else:
            with box.transaction() as t:
                t.run(command, check=True)
                t.commit()
signal.signal(signal.SIGALRM, lambda *_: (os.write(report, " ".join([*dict.fromkeys(got), "stopped"]).encode()), os._exit(0)))
signal.alarm(5)
os.write(1, b"hello\\n")  # it hangs where output is stopped
os.write(report, " ".join(got).encode())
"""


def reported(workspace: Path, way: str, base: str, code: str = CALLER) -> str:
    """Return what a caller on a terminal reports afterwards."""
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    pid, master = pty.fork()
    if pid == 0:
        try:
            os.execv(sys.executable, [sys.executable, "-P", "-c", code, str(writer), way, str(workspace), ATTACK, base])
        finally:
            os._exit(126)
    os.close(writer)
    said = shown = b""
    try:
        while True:
            ready = select.select([master, reader], [], [], 60)[0]
            if reader in ready:
                data = os.read(reader, 1000)
                if not data:
                    break
                said += data
            elif master in ready:  # what is written is read, so that it's no full buffer that stops it
                shown += os.read(master, 1000)
            else:
                raise TimeoutError(shown)
    finally:
        os.close(reader)
        os.close(master)
        status = os.waitpid(pid, 0)[1]
    assert os.waitstatus_to_exitcode(status) in (0, -1), shown  # SIGHUP, of the terminal's end
    return said.decode()


@pytest.mark.parametrize("way", ["run", "passed", "landlock", "sandbox", "session", "transaction"])
def test_neither_size_nor_flow(workspace: Path, way: str) -> None:
    """Neither is the command's to change, however it is started."""
    assert reported(workspace, way, "default") == ""
    assert (workspace / "found").read_text() == f"[{errno.ENOTTY}, {errno.ENOTTY}, {errno.EPERM}]"


def test_without_a_profile(workspace: Path) -> None:
    """With seccomp="off" nothing is refused."""
    assert reported(workspace, "run", "off") == "SIGWINCH stopped"


def test_control_a_plain_child_does_it(workspace: Path) -> None:
    """Control: a child that nothing contains signals the caller, and stops its output."""
    assert reported(workspace, "plain", "default") == "SIGWINCH stopped"
    assert (workspace / "found").read_text() == "[0, 0, 0]"


OWN = """
import fcntl, os, struct, sys, termios
import nsbox
report, ws = int(sys.argv[1]), sys.argv[3]
code = (
    "import fcntl, os, struct, termios\\n"
    "master, slave = os.openpty()\\n"
    "fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack('HHHH', 11, 22, 0, 0))\\n"
    "print(*os.get_terminal_size(slave))\\n"
)
done = nsbox.run([sys.executable, "-I", "-S", "-c", code], policy=nsbox.Policy.workspace(ws), stdin=nsbox.DEVNULL, capture_output=True)
os.write(report, done.stdout.strip() + b" ")
master, slave = os.openpty()
code = "import fcntl, struct, termios; fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack('HHHH', 33, 44, 0, 0))"
nsbox.run([sys.executable, "-I", "-S", "-c", code], policy=nsbox.Policy.workspace(ws), stdin=slave, stdout=slave, stderr=slave, check=True)
os.write(report, b"%d %d" % os.get_terminal_size(slave))
"""


def test_other_terminals(workspace: Path) -> None:
    """A command without the caller's terminal sets the size of those that it makes, and of one that was made for it."""
    assert reported(workspace, "", "default", OWN) == "22 11 44 33"
