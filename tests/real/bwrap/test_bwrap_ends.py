"""nsbox's bwrap as a program: how its sandbox ends."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing.bwrap import AS_PID_1, KINDS, OWN_PID, SHARED, heed, is_over, run, started

from nsbox._bwrap import install

LIVES = "echo up; exec sleep 100"


@pytest.fixture(scope="module")
def bwrap(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the executable that --install makes."""
    return install.install(str(tmp_path_factory.mktemp("bin")))


@pytest.mark.vm
@KINDS
def test_die_with_parent(bwrap: str, options: tuple[str, ...]) -> None:
    """When this program is killed, the command dies; so it does when the one that started this program is."""
    with started(bwrap, *options, "--die-with-parent", "sh", "-c", LIVES) as process:
        process.kill()
        assert is_over(process)
    with started("sh", "-c", '"$@"; :', "sh", bwrap, *options, "--die-with-parent", "sh", "-c", LIVES) as process:
        process.kill()
        assert is_over(process)


@KINDS
def test_it_goes_on_without_its_parent(bwrap: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """The control: without --die-with-parent the command outlives this program, as with bubblewrap.

    From its first moment on. With one processor it runs while those who made the sandbox still wait for theirs.
    """
    one = ("taskset", "--cpu-list", str(min(os.sched_getaffinity(0))))
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for _ in range(15):
        with started(*one, bwrap, *options, "sh", "-c", f"echo up; read x < {fifo}; echo still here") as process:
            process.kill()
            process.wait()
            assert process.stdout is not None
            writer = os.open(fifo, os.O_RDWR)  # which waits for nobody
            os.write(writer, b"go\n")
            assert process.stdout.read() == "still here\n"
            os.close(writer)


@pytest.mark.vm
@pytest.mark.parametrize("options", [SHARED, OWN_PID], ids=["caller's pids", "own pids"])
def test_background_processes(bwrap: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """What the command leaves running goes on when this program has returned, unless --die-with-parent ends it."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    script = f"(read x < {fifo}; echo behind) & echo up; exit 5"
    with started(bwrap, *options, "sh", "-c", script) as process:
        assert process.wait(20) == 5
        fifo.write_text("go\n")
        assert process.stdout is not None and process.stdout.read() == "behind\n"
    if options == OWN_PID:
        with started(bwrap, *options, "--die-with-parent", "sh", "-c", "sleep 100 & echo up; exit 5") as process:
            assert process.wait(20) == 5
            assert is_over(process)


def test_no_zombies(bwrap: str, orphans: Any) -> None:
    """All that becomes a child of this process's ends: no init, no holder of locks, no command stays a zombie or alive."""
    for options in (SHARED, OWN_PID, AS_PID_1):
        for _ in range(5):
            assert run(bwrap, *options, "true").returncode == 0
    lock = Path(os.environ["TMPDIR"], "lock")
    lock.touch()
    assert run(bwrap, *OWN_PID, "--lock-file", str(lock), "true").returncode == 0
    lock.unlink()
    orphans.reap()


@pytest.mark.vm
@KINDS
@pytest.mark.parametrize("die", [(), ("--die-with-parent",)], ids=["", "die with parent"])
def test_while_it_is_blocked(bwrap: str, options: tuple[str, ...], die: tuple[str, ...]) -> None:
    """By --block-fd: a signal ends it all; so does the death of what is blocked, which nobody waits for then."""
    for kill_child in (False, True):
        block, info = os.pipe(), os.pipe()
        words = [*options, *die, "--block-fd", str(block[0]), "--info-fd", str(info[1]), "echo", "started"]
        with subprocess.Popen([bwrap, *words], pass_fds=(block[0], info[1]), stdout=subprocess.PIPE) as process:
            os.close(info[1])
            with open(info[0], encoding="ascii") as told:
                child = json.load(told)["child-pid"]
            if kill_child:
                os.kill(child, signal.SIGKILL)
                assert process.wait(20) in (1, 137)
            else:
                process.terminate()
                assert process.wait(20) == -signal.SIGTERM
            assert process.stdout is not None and process.stdout.read() == b""
        for fd in block:
            os.close(fd)


@KINDS
def test_a_filter(bwrap: str, options: tuple[str, ...]) -> None:
    """One of the caller's (here: all is allowed) for a command of each kind; for root with all its capabilities."""
    for _ in range(10):
        read, write = os.pipe()
        os.write(write, struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000))  # BPF_RET, SECCOMP_RET_ALLOW
        os.close(write)
        done = run(bwrap, *options, "--seccomp", str(read), "echo", "hello", pass_fds=(read,))
        os.close(read)
        assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")


def test_not_blocked_for_long(bwrap: str) -> None:
    """If it is let go before it has begun to wait, many at a time, it goes on."""
    running = [
        subprocess.Popen([bwrap, *OWN_PID, "--block-fd", "0", "true"], stdin=subprocess.DEVNULL) for _ in range(24)
    ]
    assert [process.wait(30) for process in running] == [0] * 24


def test_nobody_to_tell(bwrap: str) -> None:
    """A lock that can't be had, and a reader of facts that has gone: an error, not a wait."""
    done = run(bwrap, *OWN_PID, "--lock-file", "/nosuch", "echo", "started")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "bwrap: Unable to open lock file /nosuch: No such file or directory\n"
    for option in ("--info-fd", "--json-status-fd"):
        read, write = os.pipe()
        os.close(read)
        done = run(bwrap, *OWN_PID, option, str(write), "echo", "started", pass_fds=(write,))
        os.close(write)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", "bwrap: Write to info_fd: Broken pipe\n")


def test_nobody_to_tell_at_the_end(bwrap: str) -> None:
    """The reader of the status document has gone meanwhile: the exit status is the command's all the same."""
    read, write = os.pipe()
    words = [*OWN_PID, "--json-status-fd", str(write), "sh", "-c", "read x; exit 7"]
    with subprocess.Popen([bwrap, *words], pass_fds=(write,), stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        os.close(write)
        assert b"child-pid" in os.read(read, 4096)
        os.close(read)
        assert process.communicate(b"go\n", timeout=20)[1] == b""
    assert process.returncode == 7


@pytest.mark.parametrize("fd", [1, 2])
def test_facts_on_a_standard_stream(bwrap: str, fd: int) -> None:
    """It is closed then, but nothing else gets its number: what is written later goes nowhere, not to another file."""
    done = run(bwrap, *OWN_PID, "--info-fd", str(fd), "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    told, other = (done.stdout, done.stderr)[:: 1 if fd == 1 else -1]
    assert done.returncode == 3 and '"child-pid": ' in told
    assert told.splitlines()[-1] == ("out" if fd == 1 else "err") and other == ("err\n" if fd == 1 else "out\n")


def test_interrupted_at_once(bwrap: str) -> None:
    """Whenever SIGINT comes there is no traceback of ours, once it reads its options."""
    read, write = os.pipe()
    with subprocess.Popen(
        [bwrap, "--args", str(read), "true"], pass_fds=(read,), stderr=subprocess.PIPE, preexec_fn=heed
    ) as process:
        os.write(write, b"-")
        while fcntl.ioctl(read, termios.FIONREAD, struct.pack("i", 0)) != struct.pack("i", 0):
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=20)[1] == b""
    os.close(read)
    os.close(write)
    assert process.returncode == -signal.SIGINT


NO_NAMESPACE = 'echo 0 > /proc/sys/user/max_$0_namespaces; exec "$@"'


@pytest.mark.parametrize("name", ["ipc", "net", "pid", "uts", "cgroup"])
@pytest.mark.parametrize("more", [(), ("--unshare-pid",), ("--unshare-pid", "--as-pid-1")], ids=" ".join)
def test_a_namespace_that_cannot_be_made(bwrap: str, name: str, more: tuple[str, ...]) -> None:
    """Is never done without: the command doesn't start, in whichever process the namespace would have been made."""
    words = ["--ro-bind", "/", "/", *more, f"--unshare-{name}", "echo", "started"]
    limited = ["unshare", "--user", "--map-root-user", "sh", "-c", NO_NAMESPACE, name]
    done = run(*limited, bwrap, *words)
    assert (done.returncode, done.stdout) == (1, ""), done
    assert done.stderr.startswith("bwrap: "), done
    other = "ipc" if name != "ipc" else "uts"
    assert run(*limited[:-1], other, bwrap, *words).stdout == "started\n"  # the control


@pytest.mark.vm
def test_maps_of_somebody_elses(bwrap: str) -> None:
    """--userns-block-fd: nothing goes on before they are written; and there are no capabilities over the mounts."""
    block, info = os.pipe(), os.pipe()
    options = ["--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc"]
    words = [
        *options,
        "--info-fd",
        str(info[1]),
        "--userns-block-fd",
        str(block[0]),
        "grep",
        "CapEff",
        "/proc/self/status",
    ]
    with subprocess.Popen([bwrap, *words], pass_fds=(block[0], info[1]), stdout=subprocess.PIPE, text=True) as process:
        os.close(info[1])
        with open(info[0], encoding="ascii") as told:
            child = json.load(told)["child-pid"]
        for file, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{os.getuid()} {os.getuid()} 1"),
            ("gid_map", f"{os.getgid()} {os.getgid()} 1"),
        ):
            Path(f"/proc/{child}/{file}").write_text(text)
        os.write(block[1], b"x")
        assert process.stdout is not None and process.stdout.read() == "CapEff:\t0000000000000000\n"
    for fd in block:
        os.close(fd)
    done = run(
        bwrap,
        *options,
        "--info-fd",
        "1",
        "--userns-block-fd",
        "0",
        "--cap-add",
        "ALL",
        "true",
        stdin=subprocess.DEVNULL,
    )
    assert (done.returncode, done.stderr) == (1, "bwrap: --cap-add: can't be combined with --userns-block-fd here\n")


def test_a_signal_that_pid_1_would_not_mind(bwrap: str) -> None:
    """It ends the command all the same, and the status says by which."""
    with started(bwrap, *AS_PID_1, "sh", "-c", LIVES) as process:
        process.terminate()
        assert process.wait(20) == -signal.SIGTERM
        assert is_over(process)


def children(pid: int) -> list[int]:
    """Return the processes below this one, as far as they are its own."""
    try:
        found = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [below for child in found for below in (child, *children(child))]


@KINDS
@pytest.mark.parametrize("more", [(), ("--unshare-net",), ("--unshare-user", "--disable-userns")], ids=" ".join)
@pytest.mark.parametrize("victim", [0, 1, 2, 3])
def test_killed_while_it_is_made(bwrap: str, options: tuple[str, ...], more: tuple[str, ...], victim: int) -> None:
    """Whichever process of the set-up is killed, this program ends, and nothing is left; so when it is itself (the last)."""
    slow = [word for n in range(1500) for word in ("--tmpfs", f"/mnt/{n}")]
    with subprocess.Popen(
        [bwrap, *options, *more, "--tmpfs", "/mnt", *slow, "true"], stderr=subprocess.DEVNULL
    ) as process:
        for _ in range(2000):
            found = children(process.pid)
            if len(found) > victim or (found and victim == 3) or process.poll() is not None:
                break
            time.sleep(0.001)
        with contextlib.suppress(ProcessLookupError, IndexError):
            os.kill(process.pid if victim == 3 else found[victim], signal.SIGKILL)
        assert process.wait(20) in (0, 1, 137, -signal.SIGKILL)
