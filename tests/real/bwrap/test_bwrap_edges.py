"""nsbox's bwrap where what happens around it is unusual: terminals that go away, death signals, sources that are replaced."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from nsbox_testing import needs
from nsbox_testing.leftovers import status

from nsbox._bwrap import install

SHARED = ("--dev-bind", "/", "/")
OWN_PID = (*SHARED, "--unshare-pid", "--proc", "/proc")


@pytest.fixture(scope="module")
def bwrap(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the executable that --install makes."""
    return install.install(str(tmp_path_factory.mktemp("bin")))


def ends(fd: int) -> bool:
    """Wait for the end of all that have the other end of a pipe; False if something goes on."""
    return bool(select.select([fd], [], [], 30)[0]) and os.read(fd, 1) == b""


def blocks(pid: int, number: int) -> bool:
    """Say whether a process blocks a signal."""
    return bool(int(status(pid)["SigBlk"], 16) >> number - 1 & 1)


def in_process(code: str, *words: str, stdout: int) -> subprocess.CompletedProcess[bytes]:
    """Run the front in an interpreter that has executed some code before."""
    script = f"import os, sys\nfrom nsbox._bwrap import run as _bwrap\n{code}\nsys.exit(_bwrap.main(['bwrap', *sys.argv[1:]]))"
    command = [sys.executable, "-P", "-c", script, *words]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, timeout=30, check=False)


def test_a_terminal_that_hangs_up(bwrap: str) -> None:
    """The kernel tells the session's leader alone: that is this program, if a terminal was made for it. All ends."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    leader, terminal = pty.fork()
    if leader == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        os.execv(bwrap, [bwrap, *OWN_PID, "sh", "-c", f"echo up >/proc/self/fd/{write}; exec sleep 100"])
    try:
        os.close(write)
        assert os.read(read, 3) == b"up\n"
        # Until the sandbox is made, for which all signals are blocked. That some are blocked again can't be waited for:
        # while sigtimedwait(2) sleeps, the kernel has those unblocked that it waits for.
        while blocks(leader, signal.SIGALRM):
            os.sched_yield()
        os.close(terminal)
        assert ends(read)
        assert os.WTERMSIG(os.waitpid(leader, 0)[1]) == signal.SIGHUP
    finally:
        os.close(read)


@needs.programs("setpriv")
@pytest.mark.parametrize("more", [(), ("--die-with-parent",)], ids=["nothing said", "said to the command"])
def test_a_death_signal_that_it_was_given(bwrap: str, more: tuple[str, ...]) -> None:
    """The process that starts it may have set one, which survives execve(2) and isn't this program's to clear. Here it ends both."""
    given = ("setpriv", "--pdeathsig", "TERM", bwrap, *OWN_PID, "sh", "-c", "echo up; exec sleep 100", "sh", *more)
    with subprocess.Popen(["sh", "-c", '"$@"; :', "sh", *given], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        process.kill()
        assert ends(process.stdout.fileno())


@pytest.mark.parametrize("options", [SHARED, OWN_PID], ids=["caller's pids", "own pids"])
def test_nobody_can_hold_the_locks(options: tuple[str, ...], tmp_path: Path) -> None:
    """Then no command goes on without them, behind a client's back that was told of an error."""
    lock = tmp_path / "lock"
    lock.touch()
    read, write = os.pipe()
    fails = "def fork(): raise BlockingIOError(11, os.strerror(11))\nos.fork = fork"
    try:
        done = in_process(fails, *options, "--lock-file", str(lock), "sleep", "100", stdout=write)
        os.close(write)
        assert (done.returncode, b"holds locks: Resource temporarily unavailable" in done.stderr) == (1, True)
        assert ends(read)
    finally:
        os.close(read)


@pytest.mark.parametrize("is_late", [False, True], ids=["control: before", "between look and mount"])
def test_a_source_that_becomes_a_link(tmp_path: Path, is_late: bool) -> None:
    """A source is mounted as it was found; what replaces it later is refused if it leads elsewhere.

    The control: a link that is there from the start is followed, as bubblewrap does.
    """
    (tmp_path / "given").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/secret").write_text("secret")
    swap = f"os.rename({str(tmp_path / 'given')!r}, {str(tmp_path / 'old')!r})\n"
    swap += f"os.symlink({str(tmp_path / 'other')!r}, {str(tmp_path / 'given')!r})"
    late = "spawn = _bwrap.call.spawn\ndef late(*args):\n    {}\n    return spawn(*args)\n_bwrap.call.spawn = late"
    code = late.format(swap.replace("\n", "\n    ")) if is_late else swap
    words = (*SHARED, "--tmpfs", "/mnt", "--bind", str(tmp_path / "given"), "/mnt/given", "cat", "/mnt/given/secret")
    done = in_process(code, *words, stdout=subprocess.PIPE)
    expected = (1, b"") if is_late else (0, b"secret")
    assert (done.returncode, done.stdout) == expected
    assert not is_late or b"given" in done.stderr
