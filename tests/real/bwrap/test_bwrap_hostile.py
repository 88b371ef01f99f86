"""nsbox's bwrap with descriptors that nobody reads, that are closed or named twice, and with signals without end."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from nsbox_testing.leftovers import status

from nsbox._bwrap import install

SHARED = ("--dev-bind", "/", "/")
AS_PID_1 = (*SHARED, "--unshare-pid", "--proc", "/proc", "--as-pid-1", "--die-with-parent")


@pytest.fixture(scope="module")
def bwrap(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the executable that --install makes."""
    return install.install(str(tmp_path_factory.mktemp("bin")))


def fill(fd: int) -> None:
    """Write to a pipe until there is no room."""
    os.set_blocking(fd, False)
    for size in (4096, 1):
        try:
            while True:
                os.write(fd, b"x" * size)
        except BlockingIOError:
            continue
    os.set_blocking(fd, True)


def one_waits(pid: int) -> bool:
    """Say whether one of a process's threads waits for room in a pipe."""
    return any(waits(task.name) for task in Path(f"/proc/{pid}/task").iterdir())


def waits(thread: int | str) -> bool:
    """Say whether a thread waits for room in a pipe: by write(2) or ppoll(2), on x86_64 or aarch64."""
    return Path(f"/proc/{thread}/syscall").read_text().split()[0] in ("1", "64", "271", "73")


def writes(pid: int) -> bool:
    """Say whether the program sleeps in its last write, for which it blocks SIGPIPE. It isn't dumpable any more by then.

    By then it catches no SIGTERM any more; while it starts the command, it blocks all signals and catches this one.
    """
    now = status(pid)
    blocked, caught = int(now["SigBlk"], 16), int(now["SigCgt"], 16)
    return now["State"].startswith("S") and bool(_bit(blocked, signal.SIGPIPE)) and not _bit(caught, signal.SIGTERM)


def _bit(mask: int, number: int) -> int:
    return mask >> number - 1 & 1


@pytest.mark.parametrize("option", ["--info-fd", "--json-status-fd"])
@pytest.mark.parametrize("more", [(), ("--die-with-parent",), ("--unshare-pid",)], ids=["plain", "tied", "own pids"])
def test_nobody_reads_what_it_reports(bwrap: str, option: str, more: tuple[str, ...]) -> None:
    """A signal ends it while it waits for a reader, and no command is started."""
    read, write = os.pipe()
    fill(write)
    command = [bwrap, *SHARED, *more, option, str(write), "echo", "started"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=(write,)) as process:
        try:
            while not one_waits(process.pid):
                os.sched_yield()
            process.terminate()
            out, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    os.close(read)
    os.close(write)
    assert (process.returncode, out) == (-signal.SIGTERM, b"")


@pytest.mark.parametrize("is_over", [True, False], ids=["after the command's end", "while it runs"])
def test_nobody_reads_the_exit_status(bwrap: str, is_over: bool) -> None:
    """A signal ends the wait for a reader; if it has ended the command, there is no wait."""
    read, write = os.pipe()
    command = [bwrap, *SHARED, "--json-status-fd", str(write), "sh", "-c", "echo up; read x"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(write,)) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            assert process.stdout.readline() == b"up\n"
            fill(write)
            if is_over:
                process.stdin.close()
            while is_over and not writes(process.pid):
                os.sched_yield()
            process.terminate()
            assert process.wait(30) == -signal.SIGTERM
        finally:
            process.kill()
    os.close(read)
    os.close(write)


def test_it_reports_to_what_is_not_open_for_writing(bwrap: str) -> None:
    """It says so, and waits for nothing."""
    read, write = os.pipe()
    done = subprocess.run(
        [bwrap, *SHARED, "--info-fd", str(read), "true"], stderr=subprocess.PIPE, pass_fds=(read,), timeout=30
    )
    os.close(read)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"bwrap: Write to info_fd: Bad file descriptor\n")


@pytest.mark.parametrize("closed", ["", "<&-", "<&- >&-"], ids=["control: none closed", "stdin", "stdin, stdout"])
def test_a_set_up_fails_with_streams_closed(bwrap: str, closed: str) -> None:
    """What watches the set-up hears of its end, whatever numbers its own descriptors had at first."""
    options = (*SHARED, "--bind", "/etc", "/proc/nope/x", "--sync-fd", "7")
    script = f'"$@" 7>/dev/null {closed}'
    done = subprocess.run(
        ["sh", "-c", script, "sh", bwrap, *options, "true"], stderr=subprocess.PIPE, timeout=30, check=False
    )
    assert (done.returncode, done.stderr.startswith(b"bwrap: Can't mkdir parents for")) == (1, True)


@pytest.mark.parametrize("option", ["--block-fd", "--sync-fd", "--info-fd", "--userns", "--bind-fd"])
def test_a_descriptor_that_was_read_is_used_again(bwrap: str, option: str, tmp_path: Path) -> None:
    """--file closes it. Its number may be one of this program's own by then, so the other option is refused."""
    (tmp_path / "data").write_text("data")
    fd = os.open(tmp_path / "data", os.O_RDWR)
    options = [*SHARED, "--tmpfs", "/mnt", "--file", str(fd), "/mnt/x", option, str(fd)]
    options += ["/mnt/y"] if option == "--bind-fd" else []
    done = subprocess.run([bwrap, *options, "true"], stderr=subprocess.PIPE, pass_fds=(fd,), timeout=30)
    os.close(fd)
    assert (done.returncode, done.stderr.decode()) == (1, f"bwrap: Invalid fd: {fd}: Bad file descriptor\n")


def test_signals_take_no_memory(bwrap: str) -> None:
    """Before it passes on a signal to a pid 1, it looks at that. What this takes is given back."""
    script = 'trap "echo x" USR1; echo up; while :; do sleep 0.01; done'
    with subprocess.Popen([bwrap, *AS_PID_1, "sh", "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"up\n"
            sizes = []
            for _ in range(30):
                process.send_signal(signal.SIGUSR1)
                assert process.stdout.readline() == b"x\n"
                sizes.append(int(status(process.pid)["VmSize"].split()[0]))
            # It may be at work on a signal when it is looked at; what stays would add up.
            assert min(sizes[15:]) <= min(sizes[:15])
        finally:
            process.kill()


def test_a_long_name_and_a_long_path(bwrap: str) -> None:
    """A name that no directory can have isn't looked for, in none of the many directories of PATH."""
    name = "a" * 100_000
    done = subprocess.run(
        [bwrap, *SHARED, name], env={"PATH": ":" * 100_000}, stderr=subprocess.PIPE, timeout=30, check=False
    )
    assert (done.returncode, done.stderr.endswith(b"aaa: File name too long\n")) == (1, True)
