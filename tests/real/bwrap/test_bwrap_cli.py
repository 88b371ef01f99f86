"""nsbox's bwrap as a program: what becomes of it and of its sandbox, by every way to end; what it says to bad input.

What it shares with bubblewrap is compared with that in tests/differential and tests/peer.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from nsbox_testing.bwrap import AS_PID_1, KINDS, OWN_PID, SHARED, is_over, run, started

from nsbox._bwrap import install


@pytest.fixture(scope="module")
def bwrap(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the executable that --install makes."""
    return install.install(str(tmp_path_factory.mktemp("bin")))


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
    """A caller that ignores SIGCHLD gets the status all the same."""
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
        (["--seccomp", "99", "true"], "bwrap: Can't read seccomp data: Bad file descriptor\n"),
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
        (["--userns2", "0", "--bind", "/", "/", "true"], "bwrap: Setting userns2 failed: Invalid argument\n"),
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
    """It replaces what it has made itself, and others' by --force alone; nothing half made is left."""
    nsbox, own = str(Path(sys.executable).with_name("nsbox")), tmp_path / "bwrap"
    for _ in range(2):
        made = run(nsbox, "bwrap", "--install", str(tmp_path))
        assert made.stdout == f"{own}\n"
        assert made.stderr == f"{tmp_path} isn't on PATH: programs won't find it there\n"
    own.write_text("#!/usr/bin/python3 -IS\n# bubblewrap's command line, made by `nsbox bwrap --install`\n")
    assert run(nsbox, "bwrap", "--install", str(tmp_path)).returncode == 0
    for other in ("somebody's", "\x7fELF, somebody's"):
        own.write_text(other)
        refused = run(nsbox, "bwrap", "--install", str(tmp_path))
        assert refused.returncode == 1 and "which nsbox hasn't made (--force" in refused.stderr
        assert own.read_text() == other
        assert run(nsbox, "bwrap", "--install", "--force", str(tmp_path)).stdout == f"{own}\n"
    path = {"PATH": f"/usr/bin:{tmp_path / 'not' / 'there'}"}
    made = run(nsbox, "bwrap", "--install", str(tmp_path / "not" / "there"), env=os.environ | path)
    assert (made.returncode, made.stdout, made.stderr) == (0, f"{tmp_path}/not/there/bwrap\n", "")
    assert run(nsbox, "bwrap", "--install").returncode == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bwrap", "not"]
    (tmp_path / "directory" / "bwrap").mkdir(parents=True)
    assert run(nsbox, "bwrap", "--install", str(tmp_path / "directory")).returncode == 1


def test_it_needs_nothing_else(bwrap: str, tmp_path: Path) -> None:
    """The installed file works alone: without Python, libraries, PATH and environment, in a root that has nothing else."""
    root = tmp_path / "root"
    root.mkdir()
    shutil.copy(bwrap, root / "bwrap")
    done = run(bwrap, "--bind", str(root), "/", "/bwrap", "--version", env={})
    assert (done.returncode, done.stdout) == (0, "bubblewrap 0.11.1\n")
    content = Path(bwrap).read_bytes()
    assert b"ld-linux" not in content and b"ld-musl" not in content


@pytest.mark.parametrize("way", ["path", "link", "/proc/self/exe", "descriptor"])
def test_by_which_way_it_is_called(bwrap: str, tmp_path: Path, way: str) -> None:
    """It doesn't look for itself, so every way is good."""
    words = ["--dev-bind", "/", "/", "echo", "hello"]
    if way == "link":
        (tmp_path / "link").symlink_to(bwrap)
        done = run(str(tmp_path / "link"), *words)
    elif way == "/proc/self/exe":
        done = run(bwrap, "--dev-bind", "/", "/", bwrap, "--dev-bind", "/", "/", "/proc/1/exe", "--version")
        done = run(bwrap, "--dev-bind", "/", "/", "--", "/proc/self/exe", *words)
    elif way == "descriptor":
        with open(bwrap, "rb") as file:
            done = run(f"/proc/self/fd/{file.fileno()}", *words, pass_fds=(file.fileno(),))
    else:
        done = run(bwrap, *words)
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr


def test_without_an_argument_0(bwrap: str) -> None:
    """execve(2) with an empty list: since Linux 5.18 the kernel adds an empty word. It says how it is used."""
    code = f"import ctypes; ctypes.CDLL(None).execve({os.fsencode(bwrap)!r}, (ctypes.c_char_p * 1)(), (ctypes.c_char_p * 1)())"
    done = run(sys.executable, "-c", code)
    assert done.returncode == 1 and done.stderr.startswith("usage: ")


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_standard_streams_that_are_closed(bwrap: str, tmp_path: Path, closed: tuple[int, ...]) -> None:
    """They are closed in the command too: no descriptor of ours takes their numbers."""
    (tmp_path / "lock").touch()
    script = f"for fd in 0 1 2; do test -e /proc/$$/fd/$fd && echo $fd; done > {tmp_path}/seen; true"
    words = ["--dev-bind", "/", "/", "--lock-file", str(tmp_path / "lock"), "sh", "-c", script]

    def close() -> None:
        for fd in closed:
            os.close(fd)

    done = subprocess.run([bwrap, *words], preexec_fn=close, timeout=30)
    assert done.returncode == 0
    seen = {int(word) for word in (tmp_path / "seen").read_text().split()}
    assert seen == {0, 1, 2} - {*closed} | {1}  # the shell's own, of the file


def test_completion() -> None:
    """Each shell has its own; an unknown one is an error."""
    nsbox = str(Path(sys.executable).with_name("nsbox"))
    for shell in ("bash", "zsh", "fish"):
        assert "ro-bind" in run(nsbox, "bwrap", "--completion", shell).stdout
    assert run(nsbox, "bwrap", "--completion", "cmd").returncode == 2
