"""nsbox's bwrap where what happens around it is unusual: terminals that go away, death signals, sources that are replaced."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
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


@needs.programs("strace")
@pytest.mark.parametrize("options", [SHARED, OWN_PID], ids=["caller's pids", "own pids"])
def test_nobody_can_hold_the_locks(bwrap: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """Then no command goes on without them, behind a client's back that was told of an error."""
    lock = tmp_path / "lock"
    lock.touch()
    read, write = os.pipe()
    # The last clone(2) of the first thread: before it are those of the watch and of the set-up.
    plain = [bwrap, *options, "--lock-file", str(lock)]
    traced = ("strace", "-qq", "-o", str(tmp_path / "trace"), "-e", "trace=clone")
    subprocess.run([*traced, *plain, "true"], check=True)
    count = sum("clone(" in line for line in (tmp_path / "trace").read_text().splitlines())
    fault = ("-e", f"fault=clone:error=EAGAIN:when={count}")
    try:
        done = subprocess.run(
            [*traced, *fault, *plain, "sleep", "100"], stdout=write, stderr=subprocess.PIPE, timeout=30
        )
        os.close(write)
        assert (done.returncode, b"holds locks: Resource temporarily unavailable" in done.stderr) == (1, True)
        assert ends(read)
    finally:
        os.close(read)


@pytest.mark.parametrize("is_late", [False, True], ids=["control: before", "between look and mount"])
def test_a_source_that_becomes_a_link(bwrap: str, tmp_path: Path, is_late: bool) -> None:
    """A source is mounted as it was found; what replaces it later is refused if it leads elsewhere.

    The control: a link that is there from the start is followed, as bubblewrap does.
    """
    given, other = tmp_path / "given", tmp_path / "other"
    given.mkdir()
    other.mkdir()
    (other / "secret").write_text("secret")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # The look at --bind's source comes before that at the next op's contents, for which the program waits.
    words = [*SHARED, "--tmpfs", "/mnt", "--bind", str(given), "/mnt/given", "--file", "FD", "/mnt/x", "cat"]
    if not is_late:
        given.rename(tmp_path / "old")
        given.symlink_to(other)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    writer = os.open(fifo, os.O_WRONLY)
    words[words.index("FD")] = str(reader)
    command = [bwrap, *words, "/mnt/given/secret"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=(reader,)) as process:
        os.close(reader)
        while is_late and not waits_for_a_pipe(process.pid):
            os.sched_yield()
        if is_late:
            given.rename(tmp_path / "old")
            given.symlink_to(other)
        os.close(writer)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == ((1, b"") if is_late else (0, b"secret"))
    assert not is_late or b"given" in err


def waits_for_a_pipe(pid: int) -> bool:
    """Say whether a process sleeps in read(2)."""
    return Path(f"/proc/{pid}/syscall").read_text().split()[0] in ("0", "63") and status(pid)["State"].startswith("S")


SHOWS = {  # STATE: nsbox's own directory of the user
    "as it is": ((), "STATE"),
    "above it": (("--bind", "STATE/..", "/mnt"), "/mnt/nsbox"),
    "itself": (("--ro-bind", "STATE", "/mnt"), "/mnt"),
    "by a descriptor": (("--bind-fd", "FD", "/mnt"), "/mnt/nsbox"),
    "by an overlay": (("--overlay-src", "STATE/..", "--tmp-overlay", "/mnt"), "/mnt/nsbox"),
    "something in it is named": (("--dir", "STATE/more"), "STATE"),
}


@pytest.mark.parametrize("is_ours", [False, True], ids=["control: another's", "ours"])
@pytest.mark.parametrize("words", SHOWS.values(), ids=SHOWS)
def test_nsboxes_own_key(bwrap: str, tmp_path: Path, words: tuple[tuple[str, ...], str], is_ours: bool) -> None:
    """No command sees the key by which commits are sealed, however a command line shows it."""
    state = tmp_path / "state" / "nsbox"
    state.mkdir(parents=True)
    (state / "key").write_text("sealed")
    options, at = words
    fd = os.open(state.parent, os.O_PATH)
    line = [word.replace("STATE", str(state)).replace("FD", str(fd)) for word in (*options, f"{at}/key")]
    env = os.environ | {"XDG_STATE_HOME": str(state.parent if is_ours else tmp_path)}
    command = [bwrap, *SHARED, *line[:-1], "cat", line[-1]]
    done = subprocess.run(command, env=env, capture_output=True, text=True, pass_fds=(fd,), check=False)
    os.close(fd)
    assert ("sealed" in done.stdout) is not is_ours, done.stderr


@pytest.mark.parametrize("is_ignored", [False, True])
def test_signals_that_the_caller_ignores(bwrap: str, is_ignored: bool) -> None:
    """They stay ignored, as across any exec; no interpreter comes between."""
    how = signal.SIG_IGN if is_ignored else signal.SIG_DFL

    def begin() -> None:
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM):
            signal.signal(number, how)

    line = [bwrap, *OWN_PID, "grep", "SigIgn", "/proc/self/status"]
    options = {"preexec_fn": begin, "restore_signals": False, "capture_output": True, "text": True}
    mask = int(subprocess.run(line, check=True, **options).stdout.split()[1], 16)  # type: ignore[call-overload]
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM):
        assert bool(mask >> number - 1 & 1) is is_ignored


GIVEN_UP = (
    "until grep -q 'NoNewPrivs:.1' /proc/$PPID/status; do :; done; "  # which comes last, after the command's start
)


def test_what_the_command_can_read_of_the_program(bwrap: str) -> None:
    """In the caller's pid namespace it sees the program, but neither the environment nor the memory that it waits with."""
    line = [
        *(bwrap, *SHARED, "--clearenv", "sh", "-c"),
        f"PATH=/usr/bin:/bin; {GIVEN_UP}cat /proc/$PPID/environ /proc/$PPID/maps; tr '\\0' ' ' </proc/$PPID/cmdline",
    ]
    done = subprocess.run(
        line, env={"PATH": "/usr/bin:/bin", "SECRET": "sesame"}, capture_output=True, text=True, check=False
    )
    assert "sesame" not in done.stdout and "heap" not in done.stdout and "stack" not in done.stdout
    assert "--clearenv" in done.stdout  # as ps(1) shows it
    assert done.stderr.count("Permission denied") == 2


def test_what_the_program_keeps_while_it_waits(bwrap: str) -> None:
    """No capability except the one for signals, and no way to more."""
    script = f"{GIVEN_UP}grep -E 'Cap(Prm|Eff)' /proc/$PPID/status"
    done = subprocess.run([bwrap, *SHARED, "sh", "-c", script], capture_output=True, text=True, check=True)
    kept = 1 << 5 if os.geteuid() == 0 else 0
    assert [int(line.split()[1], 16) for line in done.stdout.splitlines()] == [kept, kept]
