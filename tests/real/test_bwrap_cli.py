"""nsbox's bwrap as a program: what becomes of it and of its sandbox, by every way to end; what it says to bad input.

What it shares with bubblewrap is compared with that in tests/differential and tests/peer.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nsbox._bwrap import install

LIVES = "echo up; exec sleep 100"
SHARED = ("--dev-bind", "/", "/")
OWN_PID = (*SHARED, "--unshare-pid", "--proc", "/proc")
AS_PID_1 = (*OWN_PID, "--as-pid-1")
KINDS = pytest.mark.parametrize("options", [SHARED, OWN_PID, AS_PID_1], ids=["caller's pids", "own pids", "as pid 1"])


@pytest.fixture(scope="module")
def bwrap(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the executable that --install makes."""
    return install.install(str(tmp_path_factory.mktemp("bin")))


def run(*command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run to the end; the output is text in which no byte is lost."""
    return subprocess.run(command, capture_output=True, text=True, errors="surrogateescape", timeout=30, **options)


def _heed() -> None:
    """Ignore nothing: tests in the background of a shell are started with SIGINT and SIGQUIT ignored, by nohup SIGHUP."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def started(*command: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a command that says when it is up; what is left of its output ends with the last process that has it."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=_heed, **options) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        try:
            yield process
        finally:
            process.kill()


def is_over(process: subprocess.Popen[str]) -> bool:
    """Wait for the end of all that write to its output; False if something goes on."""
    assert process.stdout is not None
    return bool(select.select([process.stdout], [], [], 30)[0]) and process.stdout.read() == ""


# ---- where it is called, and how


@pytest.mark.parametrize("option", ["--bind", "--ro-bind-try"])
def test_a_directory_that_has_gone(bwrap: str, tmp_path: Path, option: str) -> None:
    """What is relative to it isn't there: it doesn't become relative to "/". The command starts in HOME."""

    def leave() -> None:
        os.mkdir(tmp_path / "gone")
        os.chdir(tmp_path / "gone")
        os.rmdir(tmp_path / "gone")

    done = run(
        bwrap, "--ro-bind", "/", "/", "--tmpfs", "/tmp", option, ".", "/tmp/work", "ls", "/tmp", preexec_fn=leave
    )
    if option == "--bind":
        assert (done.returncode, done.stderr) == (1, "bwrap: Can't find source path .: No such file or directory\n")
    else:
        assert (done.returncode, done.stdout) == (0, "")
    done = run(bwrap, "--ro-bind", "/", "/", "pwd", preexec_fn=leave, env={**os.environ, "HOME": "/usr/lib"})
    assert done.stdout == "/usr/lib\n"


def test_a_wrong_pwd(bwrap: str) -> None:
    """PWD only counts when it is the current directory's name."""
    env = {"PATH": os.environ["PATH"], "PWD": "/nosuch"}
    assert run(bwrap, *SHARED, "pwd", cwd="/usr/share", env=env).stdout == "/usr/share\n"
    done = run(bwrap, *SHARED, "--tmpfs", "/mnt", "--ro-bind", "lib", "/mnt/x", "ls", "/mnt/x", cwd="/usr", env=env)
    assert sorted(done.stdout.split("\n")[:-1]) == sorted(os.listdir("/usr/lib"))


def test_ignored_children(bwrap: str) -> None:
    """A caller that ignores SIGCHLD hears the status all the same."""
    done = run(bwrap, *SHARED, "sh", "-c", "exit 5", preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    assert (done.returncode, done.stderr) == (5, "")


def test_descriptors_and_environments_of_many_sizes(bwrap: str) -> None:
    """What the command is given isn't freed before its exec, whatever is allocated beside it."""
    read, write = os.pipe()
    try:
        for size in range(60, 210, 5):
            env = {"PATH": "/usr/bin:/bin", "HOME": "/usr/lib", "K": size * "v"}
            done = run(bwrap, "--ro-bind", "/", "/", "sh", "-c", "pwd", cwd="/usr/share", env=env, pass_fds=[read])
            assert (done.stdout, done.stderr) == ("/usr/share\n", "")
    finally:
        os.close(read)
        os.close(write)


# ---- statuses


@pytest.mark.vm
@KINDS
def test_status(bwrap: str, options: tuple[str, ...]) -> None:
    """The command's own; 128 + N after signal N; 1 for one that isn't there, or a sandbox that can't be made."""
    assert run(bwrap, *options, "sh", "-c", "exit 42").returncode == 42
    assert run(bwrap, *options, "nosuch").returncode == 1
    assert run(bwrap, *options, "--bind", "/nosuch", "/tmp", "true").returncode == 1
    if options != AS_PID_1:  # which isn't killed by signals of its own
        assert run(bwrap, *options, "sh", "-c", "kill -9 $$").returncode == 137


def test_entry_points(bwrap: str) -> None:
    """The script, the subcommand and the installed file are the same program, and say by which name they were called."""
    here = Path(sys.executable).parent
    for command in ([bwrap], [str(here / "nsbox-bwrap")], [str(here / "nsbox"), "bwrap"]):
        assert run(*command, *SHARED, "echo", "hello").stdout == "hello\n"
        assert run(*command, "--version").stdout == "bubblewrap 0.11.1\n"
        assert run(*command, "--help").stdout.startswith(
            f"usage: {command[0]}" if len(command) == 1 else "usage: nsbox bwrap"
        )


# ---- signals


@KINDS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1])
def test_a_signal_reaches_the_command(bwrap: str, options: tuple[str, ...], number: signal.Signals) -> None:
    """Unlike with bubblewrap, where only the monitor dies and the sandbox goes on."""
    script = f"trap 'echo got; exit 7' {number.name[3:]}; echo up; while :; do sleep 0.05; done"
    with started(bwrap, *options, "sh", "-c", script) as process:
        process.send_signal(number)
        assert process.wait(20) == 7
        assert process.stdout is not None and process.stdout.read() == "got\n"


@KINDS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_kills_the_command(bwrap: str, options: tuple[str, ...], number: signal.Signals) -> None:
    """One that it doesn't handle (a shell would): this program dies of it too, so that a shell's loop ends at Ctrl-C."""
    read, write = os.pipe()
    os.write(write, b"up\n")
    with started(bwrap, *options, "cat", stdin=read) as process:
        process.send_signal(number)
        assert process.wait(20) == -number
        assert is_over(process)
    os.close(read)
    os.close(write)


def test_a_signal_of_the_commands_own(bwrap: str) -> None:
    """One that only the command got is an exit status; so is what it makes of one that it handles."""
    assert run(bwrap, *SHARED, "sh", "-c", "kill -TERM $$").returncode == 128 + signal.SIGTERM
    with started(bwrap, *SHARED, "sh", "-c", "trap 'exit 7' TERM; echo up; while :; do sleep .1; done") as process:
        process.terminate()
        assert process.wait(20) == 7


def test_a_signal_before_the_command_is_there(bwrap: str) -> None:
    """Whenever it comes, the sandbox doesn't go on as if it hadn't come."""
    for delay in (0.0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05):
        with subprocess.Popen([bwrap, *OWN_PID, "sleep", "100"]) as process:
            time.sleep(delay)
            process.terminate()
            assert process.wait(20) == -signal.SIGTERM


def test_ignored_signals_stay_ignored(bwrap: str) -> None:
    """As nohup(1) wants it: neither this program nor the command dies."""
    ignoring = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]
    with started(
        *ignoring, bwrap, *OWN_PID, "sh", "-c", "kill -HUP $$; echo up; read x; exit 3", stdin=subprocess.PIPE
    ) as process:
        process.send_signal(signal.SIGHUP)
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.wait(20) == 3


# ---- how a sandbox ends


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
    """Who lets it go on before it has begun to wait, many at a time: it goes on."""
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
    """It is closed then, but nothing else gets its number: what is said later goes nowhere, not to whoever has it."""
    done = run(bwrap, *OWN_PID, "--info-fd", str(fd), "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    told, other = (done.stdout, done.stderr)[:: 1 if fd == 1 else -1]
    assert done.returncode == 3 and '"child-pid": ' in told
    assert told.splitlines()[-1] == ("out" if fd == 1 else "err") and other == ("err\n" if fd == 1 else "out\n")


def test_interrupted_at_once(bwrap: str) -> None:
    """Whenever SIGINT comes there is no traceback of ours, once it reads its options."""
    read, write = os.pipe()
    with subprocess.Popen(
        [bwrap, "--args", str(read), "true"], pass_fds=(read,), stderr=subprocess.PIPE, preexec_fn=_heed
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


# ---- what the command finds


def test_directory(bwrap: str, tmp_path: Path) -> None:
    """The current directory by the caller's name for it, else the home, else "/"; PWD says which."""
    link = tmp_path / "link"
    link.symlink_to("/usr/share")
    system = [
        "--ro-bind",
        "/usr",
        "/usr",
        *(w for d in ("bin", "lib", "lib64") for w in ("--symlink", f"usr/{d}", f"/{d}")),
    ]
    tell = ["sh", "-c", 'echo "$PWD $(pwd -P)"']
    env = {"PATH": "/usr/bin:/bin", "HOME": "/usr/lib"}
    assert run(bwrap, *system, *tell, cwd="/usr/bin", env=env).stdout == "/usr/bin /usr/bin\n"
    assert run(bwrap, *system, *tell, cwd=tmp_path, env=env).stdout == "/usr/lib /usr/lib\n"
    assert run(bwrap, *system, *tell, cwd=tmp_path, env=env | {"HOME": "/no"}).stdout == "/ /\n"
    assert (
        run(bwrap, *system, "--chdir", "/usr/share", *tell, cwd=tmp_path, env=env).stdout == "/usr/share /usr/share\n"
    )
    named = run(bwrap, *SHARED, *tell, cwd=link, env=env | {"PWD": str(link)})
    assert named.stdout == f"{link} /usr/share\n"
    refused = run(bwrap, *system, "--chdir", "/no", "true")
    assert (refused.returncode, refused.stderr) == (1, "bwrap: Can't chdir to /no: No such file or directory\n")


def test_script_without_interpreter(bwrap: str, tmp_path: Path) -> None:
    """A file of no known format is the shell's, as with execvp(3)."""
    script = tmp_path / "script"
    script.write_text('echo "$0 $1"')
    script.chmod(0o755)
    assert run(bwrap, *SHARED, str(script), "one").stdout == f"{script} one\n"


@pytest.mark.vm
def test_descriptors(bwrap: str, tmp_path: Path) -> None:
    """The command has what the caller left open, but nothing that an option names, and nothing of ours."""
    mine, given = os.pipe(), os.open(tmp_path, os.O_PATH)
    try:
        options = [*OWN_PID, "--bind-fd", str(given), "/tmp", "--sync-fd", str(mine[1])]
        for more in ([], ["--as-pid-1"]):
            done = run(bwrap, *options, *more, "ls", "/proc/self/fd", pass_fds=(mine[0], mine[1], given))
            found = {int(fd) for fd in done.stdout.split()}
            assert {0, 1, 2, mine[0]} < found and not found & {mine[1], given}, done
            assert len(found) == 5, done  # and that of the listing itself
    finally:
        for fd in (*mine, given):
            os.close(fd)


def test_secrets_of_the_caller(bwrap: str) -> None:
    """What --clearenv drops can't be read back from pid 1, as it can with bubblewrap."""
    script = (
        "cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c '^SECRET='; echo $(cat /proc/1/maps 2>/dev/null)"
    )
    words = [*OWN_PID, "--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "sh", "-c", script]
    assert run(bwrap, *words, env=os.environ | {"SECRET": "x"}).stdout == "0\n\n"
    control = run(bwrap, *OWN_PID, "sh", "-c", script, env=os.environ | {"SECRET": "x"})
    assert int(control.stdout.split()[0]) > 0


@pytest.mark.vm
def test_read_only_for_root_too(bwrap: str, tmp_path: Path) -> None:
    """With all capabilities a read-only bind can't be made writable, nor uncovered (bubblewrap's uid 0 can)."""
    inside = tmp_path / "f"
    inside.write_text("safe")
    tries = (
        f"mount -o remount,rw,bind {tmp_path}; umount -l {tmp_path}; mount --move {tmp_path} /mnt; echo gone > {inside}"
    )
    options = [
        "--bind",
        "/",
        "/",
        "--ro-bind",
        str(tmp_path),
        str(tmp_path),
        "--unshare-user",
        "--uid",
        "0",
        "--gid",
        "0",
        "--cap-add",
        "ALL",
    ]
    run(bwrap, *options, "sh", "-c", tries)
    assert inside.read_text() == "safe"
    control = ["--bind", "/", "/", "--unshare-user", "--uid", "0", "--gid", "0", "--cap-add", "ALL"]
    run(bwrap, *control, "sh", "-c", tries)
    assert inside.read_text() == "gone\n"


def test_host_is_changed_where_it_is_shown_only(bwrap: str, tmp_path: Path) -> None:
    """A link in a writable bind that leads out leads nowhere (CVE-2026-87766); one that doesn't is followed, and made there."""
    outside, shown = tmp_path / "outside", tmp_path / "shown"
    for path in (outside, shown, shown / "real"):
        path.mkdir()
    (shown / "out").symlink_to(outside)
    (shown / "in").symlink_to("/w/real")
    made = {"--dir": ["x"], "--tmpfs": ["x"], "--proc": ["x"]}
    for option in made:
        run(bwrap, "--ro-bind", "/usr", "/usr", "--bind", str(shown), "/w", "--unshare-pid", option, "/w/out/x", "true")
        run(
            bwrap,
            "--ro-bind",
            "/usr",
            "/usr",
            "--bind",
            str(shown),
            "/w",
            "--unshare-pid",
            option,
            f"/w/in/{option}",
            "true",
        )
    assert list(outside.iterdir()) == []
    assert {path.name for path in (shown / "real").iterdir()} == set(made)


# ---- bad input


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nosuch"], "bwrap: Unknown option --nosuch\n"),
        (["--bind", "/"], "bwrap: --bind takes two arguments\n"),
        (["--info-fd", "x", "true"], "bwrap: Invalid fd: x\n"),
        (["--info-fd", "-1", "true"], "bwrap: Invalid fd: -1\n"),
        (["--args", "99", "true"], "bwrap: Can't read --args data: Bad file descriptor\n"),
        (["--file", "99", "/f", "true"], "bwrap: Can't write data to file /f: Bad file descriptor\n"),
        (["--seccomp", "99", "true"], "bwrap: Invalid fd: 99: Bad file descriptor\n"),
        (
            ["--perms", "0700", "--bind", "/", "/", "true"],
            "bwrap: --perms must be followed by an option that creates a file\n",
        ),
        (["--userns", "0", "--unshare-user", "true"], "bwrap: --userns is not compatible with --unshare-user\n"),
        (
            ["--bind", "/\udcff\udcfe", "/", "true"],
            "bwrap: Can't find source path /\udcff\udcfe: No such file or directory\n",
        ),
        (["--bind", "/", "/", "no\udcff"], "bwrap: execvp no\udcff: No such file or directory\n"),
        (
            ["--userns", "0", "--bind", "/", "/", "true"],
            "bwrap: Joining specified user namespace failed: Invalid argument\n",
        ),
        (["--exec-label", "l", "true"], "bwrap: labeling not supported on this system\n"),
        (
            ["--level-prefix", "--bind", "/no", "/", "true"],
            "<3>bwrap: Can't find source path /no: No such file or directory\n",
        ),
        (["x"] * 9001, "bwrap: Exceeded maximum number of arguments 9000\n"),
    ],
    ids=lambda value: " ".join(value[:3]).encode(errors="replace").decode() if isinstance(value, list) else None,
)
def test_bad_input(bwrap: str, words: list[str], said: str) -> None:
    """One line that says what is wrong, status 1, and nothing is started."""
    done = run(bwrap, *words, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


def test_a_lock_that_is_only_inside(bwrap: str) -> None:
    """The file is looked up in the sandbox's root, also when the command is there before that is."""
    binds = [word for n in range(100) for word in ("--ro-bind", "/usr", f"/mnt/{n}")]
    for _ in range(10):
        read, write = os.pipe()
        os.close(write)
        inside = ("--tmpfs", "/mnt", "--file", str(read), "/mnt/only-inside", "--lock-file", "/mnt/only-inside")
        done = run(bwrap, *OWN_PID, *inside, *binds, "true", pass_fds=(read,))
        os.close(read)
        assert (done.returncode, done.stderr) == (0, "")


def test_no_command(bwrap: str) -> None:
    """Usage on stderr, status 1; also when a file of arguments has one, which doesn't count."""
    assert run(bwrap).stderr.startswith(f"usage: {bwrap} [OPTIONS...] [--] COMMAND [ARGS...]\n")
    read, write = os.pipe()
    os.write(write, b"--bind\0/\0/\0true\0")
    os.close(write)
    done = run(bwrap, "--args", str(read), pass_fds=(read,))
    os.close(read)
    assert done.returncode == 1 and done.stderr.startswith("usage: ")


def test_nobody_listens(bwrap: str) -> None:
    """A closed standard stream, or one that nobody reads, is no traceback."""
    for how in (">&-", "2>&-", ">&- 2>&- <&-", "| :"):
        done = run("sh", "-c", f'"$0" --help {how}', bwrap)
        assert "Traceback" not in done.stderr, done.stderr
    assert run("sh", "-c", f'"$0" {" ".join(SHARED)} sh -c "exit 4" >&- 2>&- <&-', bwrap).returncode == 4


def test_info_to_a_closed_descriptor(bwrap: str) -> None:
    """What can't be told isn't left untold: the command doesn't start."""
    done = run(bwrap, *SHARED, "--info-fd", "99", "echo", "started")
    assert (done.returncode, done.stdout) == (1, "") and "99" in done.stderr
    done = run("sh", "-c", f'"$0" {" ".join(SHARED)} --json-status-fd 3 echo started 3</dev/null', bwrap)
    assert (done.returncode, done.stdout) == (1, ""), done
    assert done.stderr == "bwrap: Write to info_fd: Bad file descriptor\n"


def test_an_environment_in_another_encoding(bwrap: str, tmp_path: Path) -> None:
    """No byte of it changes, whatever the locale's encoding and what LC_CTYPE, which an interpreter may set, says."""
    made = run("localedef", "-i", "en_US", "-f", "ISO-8859-1", str(tmp_path / "en_US.ISO-8859-1"))
    env = {"LC_ALL": "en_US.ISO-8859-1", "LOCPATH": str(tmp_path), "LC_CTYPE": "C.UTF-8", "Y": "\u00e9\u20ac"}
    for locale in ("C", *(["en_US.ISO-8859-1"] if (tmp_path / "en_US.ISO-8859-1").is_dir() else [])):
        done = subprocess.run(
            [bwrap, *SHARED, "/usr/bin/printenv", "Y"], env=env | {"LC_ALL": locale}, capture_output=True, check=False
        )
        assert (done.stdout, done.stderr) == ("\u00e9\u20ac\n".encode(), b""), (locale, made.stderr)


# ---- --install


def test_install(tmp_path: Path) -> None:
    """It replaces what it has made itself, and nothing else; nothing half made is left."""
    nsbox = str(Path(sys.executable).with_name("nsbox"))
    for _ in range(2):
        assert run(nsbox, "bwrap", "--install", str(tmp_path)).stdout == f"{tmp_path}/bwrap\n"
    (tmp_path / "bwrap").write_text("somebody's")
    refused = run(nsbox, "bwrap", "--install", str(tmp_path))
    assert refused.returncode == 1 and "that nsbox hasn't made" in refused.stderr
    made = run(nsbox, "bwrap", "--install", str(tmp_path / "not" / "there"))
    assert (made.returncode, made.stdout) == (0, f"{tmp_path}/not/there/bwrap\n")
    assert run(nsbox, "bwrap", "--install").returncode == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bwrap", "not"]


@pytest.mark.parametrize("interpreter", ["/usr/bin/a python3", "/" + "x" * 300])
def test_install_for_an_interpreter_that_a_first_line_cannot_name(
    interpreter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path with a space, or too long for the kernel: a shell starts it."""
    monkeypatch.setattr(sys, "executable", interpreter)
    script = install.script()
    assert script.startswith("#!/bin/sh\n") and interpreter in script


def test_install_by_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And that one works."""
    spaced = tmp_path / "a b"
    spaced.mkdir()
    (spaced / "python3").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(spaced / "python3"))
    program = install.install(str(tmp_path))
    assert run(program, *SHARED, "echo", "a  b").stdout == "a  b\n"
    assert run(program).stderr.startswith(f"usage: {program} ")


def test_completion() -> None:
    """Each shell has its own; an unknown one is an error."""
    nsbox = str(Path(sys.executable).with_name("nsbox"))
    for shell in ("bash", "zsh", "fish"):
        assert "ro-bind" in run(nsbox, "bwrap", "--completion", shell).stdout
    assert run(nsbox, "bwrap", "--completion", "cmd").returncode == 2
