"""Popen(pty=): a terminal of the command's own, whose other end the caller has."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import os
import signal
import sys
from pathlib import Path

import pytest
from nsbox_testing import needs

import nsbox
from nsbox._popen import pty as popen_pty
from nsbox._popen.pty import Terminal

BACKENDS = ["namespaces", "bwrap", "landlock", "passthrough"]


@pytest.fixture(params=BACKENDS)
def each(request: pytest.FixtureRequest, workspace: Path) -> nsbox.Policy:
    """The default policy with each backend that can be used here."""
    if request.param == "bwrap" and os.geteuid() == 0:
        pytest.skip("bwrap isn't used for root")
    if request.param == "bwrap":
        needs.require("bwrap")
    policy = nsbox.Policy.workspace(workspace, backend=request.param, require="nothing")
    if request.param == "landlock":
        lacks = ["attributes", "deny", "namespaces", "secrets"]
        policy = policy.with_(degrade=lacks)
    return policy


def read_until(terminal: Terminal, text: bytes) -> bytes:
    shown = b""
    while text not in shown:
        data = terminal.read(4096)
        assert data, shown
        shown += data
    return shown


def test_it_is_the_controlling_terminal(each: nsbox.Policy) -> None:
    """The three streams are the terminal, so is /dev/tty, and keys that interrupt do."""
    code = (
        "import os, sys\n"
        "assert all(map(os.isatty, range(3))) and os.getpgrp() == os.tcgetpgrp(0)\n"
        "open('/dev/tty', 'w').write('by name\\n')\n"
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [2])  # a handler right before a read() would wait\n"
        "print('ready', *os.get_terminal_size(0), flush=True); signal.sigwait([2]); sys.exit(9)\n"
    )
    with nsbox.Popen([sys.executable, "-ISc", code], policy=each, pty=(30, 90)) as process:
        terminal = process.terminal
        assert isinstance(terminal, Terminal) and terminal.size == (30, 90)
        assert b"by name\r\nready 90 30\r\n" in read_until(terminal, b"30\r\n")
        terminal.write(b"\x03")
        terminal.read()
        # bwrap is in the foreground as well, and dies of it (bwrap(1)), unless it has seen the command's end by then.
        assert process.wait() in ({-signal.SIGINT, 9} if each.backend == "bwrap" else {9})
    assert terminal.closed


def test_resize(each: nsbox.Policy) -> None:
    """A new size is a SIGWINCH."""
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGWINCH, lambda *_: os.write(1, b'now %d %d' % os.get_terminal_size(0)))\n"
        "print('ready', flush=True)\nwhile True: time.sleep(0.01)  # a signal right before pause() would wait\n"
    )
    with nsbox.Popen([sys.executable, "-ISc", code], policy=each, pty=True) as process:
        assert process.terminal is not None
        read_until(process.terminal, b"ready")
        process.terminal.resize(10, 20)
        read_until(process.terminal, b"now 20 10")
        for size in ((-1, 5), (5, 70000)):
            with pytest.raises(ValueError, match="0 to 65535"):
                process.terminal.resize(*size)
        process.kill()


def test_hang_up(policy: nsbox.Policy) -> None:
    """Closing the terminal is SIGHUP, of which most programs die."""
    process = nsbox.Popen(["sleep", "600"], policy=policy, pty=True)
    assert process.terminal is not None
    process.terminal.close()
    assert process.wait() == -signal.SIGHUP
    with nsbox.Popen(
        ["sh", "-c", "trap 'exit 7' HUP; echo ready; while :; do read line; done"], policy=policy, pty=True
    ) as process:
        assert process.terminal is not None
        read_until(process.terminal, b"ready")
    assert process.returncode == 7


def test_streams_that_are_given(policy: nsbox.Policy) -> None:
    """Only those that aren't given are the terminal; a password prompt reads /dev/tty all the same."""
    code = "test ! -t 1 && test -t 0 && test -t 2 && read word < /dev/tty && echo got $word"
    with nsbox.Popen(["sh", "-c", code], policy=policy, pty=True, stdout=nsbox.PIPE, text=True) as process:
        assert process.terminal is not None and process.stdout is not None
        process.terminal.write(b"words\n")
        assert process.stdout.read() == "got words\n"
    with nsbox.Popen(
        ["sh", "-c", "cat; test ! -t 0 && test -t 1"], -1, None, nsbox.PIPE, policy=policy, pty=True
    ) as process:
        assert process.stdin is not None and process.terminal is not None
        process.stdin.write(b"piped\n")
        process.stdin.close()
        assert process.terminal.read() == b"piped\r\n"
        assert process.wait() == 0


def test_faces(policy: nsbox.Policy, workspace: Path) -> None:
    """A Sandbox, its sessions and transactions, preexec_fn and asyncio have it too."""
    code = "tty > /dev/null; test -t 0 && : < /dev/tty && echo ok; exit 3"
    with nsbox.Sandbox(policy) as box:
        for _ in range(2):
            with box.Popen(["sh", "-c", code], pty=True) as process:
                assert process.terminal.read() == b"ok\r\n" and process.wait() == 3
        with box.session() as session, session.Popen(["sh", "-c", code], pty=True) as process:
            assert process.terminal.read() == b"ok\r\n" and process.wait() == 3
        with box.transaction() as tx, tx.Popen(["sh", "-c", code], pty=True) as process:
            assert process.terminal.read() == b"ok\r\n" and process.wait() == 3
    with nsbox.Popen(["sh", "-c", code], policy=policy, pty=True, preexec_fn=lambda: None) as process:
        assert process.terminal is not None and process.terminal.read() == b"ok\r\n"

    async def run() -> bytes:
        process = await nsbox.asyncio.create_subprocess_exec("sh", "-c", code, policy=policy, pty=True)
        terminal = process.terminal
        assert terminal is not None
        shown = await asyncio.to_thread(terminal.read)
        terminal.close()
        assert await process.wait() == 3
        return shown

    assert asyncio.run(run()) == b"ok\r\n"


@pytest.mark.parametrize("kind", [None, "session", "task", "transaction"])
def test_names_are_openable(policy: nsbox.Policy, kind: str | None) -> None:
    """/dev/stderr and what tty(1) and ttyname(3) name can be opened, also by a command with kernel ids of its own."""
    code = "echo one > /dev/stderr; echo two > $(tty); echo three > /dev/tty; python3 -c 'import os; os.ttyname(0)'"
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(nsbox.Sandbox(policy, stock=0))
        box = made if kind is None else stack.enter_context(getattr(made, kind)())
        with box.Popen(["sh", "-c", code], pty=True) as process:
            assert process.terminal is not None
            assert process.terminal.read() == b"one\r\ntwo\r\nthree\r\n"


@pytest.mark.parametrize("kind", ["session", "task"])
def test_terminals_of_a_session(policy: nsbox.Policy, kind: str) -> None:
    """They are its own, and gone with their commands."""
    with nsbox.Sandbox(policy, stock=0) as box, getattr(box, kind)() as s:
        with s.Popen(["sh", "-c", "tty; ls -m /dev/pts; read x"], pty=True) as process:
            assert process.terminal is not None
            assert read_until(process.terminal, b"ptmx\r\n") == b"/dev/pts/0\r\n0, ptmx\r\n"
        assert s.shell("ls /dev/pts").stdout == "ptmx\n"


def test_a_session_without_devpts(policy: nsbox.Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its terminals are this machine's."""

    def opened_in(root: int) -> tuple[int, int]:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "dev/pts/ptmx")

    monkeypatch.setattr(popen_pty, "opened_in", opened_in)
    with nsbox.Sandbox(policy, stock=0) as box, box.session() as s, s.Popen(["test", "-t", "0"], pty=True) as process:
        assert process.wait() == 0


@pytest.mark.parametrize("kind", ["fifo", "link", "file", "null", "directory"])
def test_what_is_no_devpts_is_not_opened(tmp_path: Path, kind: str) -> None:
    """Commands could have put it there. A FIFO would let the caller wait, and a link may lead out."""
    (tmp_path / "dev/pts").mkdir(parents=True)
    name = tmp_path / "dev/pts/ptmx"
    if kind == "fifo":
        os.mkfifo(name)
    elif kind == "directory":
        name.mkdir()
    elif kind == "file":
        name.touch()
    else:
        name.symlink_to("/dev/null" if kind == "null" else "/dev/ptmx")
    root = os.open(tmp_path, os.O_PATH)
    try:
        with pytest.raises(OSError):
            popen_pty.opened_in(root)
    finally:
        os.close(root)


def test_as_a_file(policy: nsbox.Policy) -> None:
    """It can be wrapped as any raw file, and ends where the command does."""
    process = nsbox.Popen(["seq", "3000"], policy=policy, pty=True)
    assert process.terminal is not None
    with io.TextIOWrapper(io.BufferedReader(process.terminal)) as text:
        assert [int(line) for line in text] == list(range(1, 3001))
    assert process.wait() == 0


def test_what_makes_no_sense(policy: nsbox.Policy, workspace: Path) -> None:
    """Errors come before a command does, and leave no terminal open."""
    null = nsbox.DEVNULL
    with pytest.raises(ValueError, match="all given"):
        nsbox.Popen(["true"], policy=policy, pty=True, stdin=null, stdout=null, stderr=null)
    for size in ("80x24", (1, 2, 3), (1.0, 2), 5, None):
        with pytest.raises(TypeError, match="pty"):
            nsbox.Popen(["true"], policy=policy, pty=size)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="65535"):
        nsbox.Popen(["true"], policy=policy, pty=(24, 1 << 16))
    with pytest.raises(FileNotFoundError):
        nsbox.Popen(["nosuchprogram"], policy=policy, pty=True)
    with pytest.raises(ValueError, match="reads no terminal"):
        nsbox.run(["true"], policy=policy, pty=True)


def test_no_free_terminal(policy: nsbox.Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the machine has no pseudo-terminal left, that is what is said."""

    def none_left() -> tuple[int, int]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "openpty", none_left)
    with pytest.raises(OSError, match="No space left"):
        nsbox.Popen(["true"], policy=policy, pty=True)
