"""What subprocess.Popen promises holds for commands in a sandbox on a Mac."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from pathlib import Path

import pytest
from nsbox_darwin import allowed, control, python

import nsbox

pytestmark = pytest.mark.darwin


@pytest.mark.parametrize("status", [0, 1, 255])
def test_return_code(policy: nsbox.Policy, status: int) -> None:
    """The exit status is the command's."""
    assert nsbox.run(["/bin/sh", "-c", f"exit {status}"], policy=policy).returncode == status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_return_code_of_a_signal(policy: nsbox.Policy, number: signal.Signals) -> None:
    """A command that a signal has ended has the signal's number as its negative return code."""
    with nsbox.Popen(["/bin/sleep", "100"], policy=policy) as child:
        child.send_signal(number)
        assert child.wait(30) == -number


def test_pid_and_parent(policy: nsbox.Policy) -> None:
    """The command is this process's own child, under the pid that Popen has."""
    with nsbox.Popen(
        python("import os; print(os.getpid(), os.getppid())"), policy=policy, stdout=nsbox.PIPE, text=True
    ) as child:
        assert child.communicate()[0].split() == [str(child.pid), str(os.getpid())]


@pytest.mark.parametrize("name", ["/nowhere/program", "nsbox-no-such-program"])
def test_missing_program(policy: nsbox.Policy, name: str) -> None:
    """A program that isn't there is a FileNotFoundError with its name, as without a sandbox."""
    for start in (lambda: subprocess.run([name], check=False), lambda: nsbox.run([name], policy=policy)):
        with pytest.raises(FileNotFoundError) as caught:
            start()
        assert caught.value.filename == name


def test_program_without_permission(policy: nsbox.Policy, workspace: Path) -> None:
    """A file that isn't executable is a PermissionError with its name."""
    (workspace / "file").write_text("x")
    with pytest.raises(PermissionError) as caught:
        nsbox.run([str(workspace / "file")], policy=policy)
    assert (caught.value.filename, caught.value.errno) == (str(workspace / "file"), errno.EACCES)


def test_program_in_a_file(policy: nsbox.Policy, workspace: Path) -> None:
    """A path through a file is a NotADirectoryError."""
    (workspace / "file").touch()
    with pytest.raises(NotADirectoryError):
        nsbox.run([str(workspace / "file" / "program")], policy=policy)


def test_no_program(policy: nsbox.Policy, workspace: Path) -> None:
    """A file that is no program at all is the same error as without a sandbox."""
    (workspace / "file").write_bytes(b"\x00\x01\x02\x03" * 16)
    (workspace / "file").chmod(0o755)
    found = []
    for start in (
        lambda: subprocess.run([workspace / "file"], check=False),
        lambda: nsbox.run([workspace / "file"], policy=policy),
    ):
        with pytest.raises(OSError, match="format") as caught:
            start()
        found.append((caught.value.errno, str(caught.value.filename)))
    assert found == [(errno.ENOEXEC, str(workspace / "file"))] * 2


def test_cwd(policy: nsbox.Policy, workspace: Path) -> None:
    """cwd is where the command starts."""
    (workspace / "below").mkdir()
    assert allowed(["/bin/pwd"], policy, cwd=workspace / "below") == f"{workspace / 'below'}\n"


def test_missing_cwd(policy: nsbox.Policy, workspace: Path) -> None:
    """A cwd that isn't there is a FileNotFoundError with its name."""
    with pytest.raises(FileNotFoundError) as caught:
        nsbox.run(["/usr/bin/true"], policy=policy, cwd=workspace / "missing")
    assert str(caught.value.filename) == str(workspace / "missing")


def test_pipes(policy: nsbox.Policy) -> None:
    """Standard input, output and error are pipes, or one pipe."""
    script = "cat; echo error >&2"
    done = nsbox.run(["/bin/sh", "-c", script], policy=policy, input="input\n", capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("input\n", "error\n")
    done = nsbox.run(
        ["/bin/sh", "-c", script], policy=policy, input="input\n", stdout=nsbox.PIPE, stderr=nsbox.STDOUT, text=True
    )
    assert done.stdout == "input\nerror\n"


def test_devnull(policy: nsbox.Policy) -> None:
    """DEVNULL is empty, and takes everything."""
    argv = ["/bin/sh", "-c", "echo lost; test -z $(cat)"]
    assert nsbox.run(argv, policy=policy, stdin=nsbox.DEVNULL, stdout=nsbox.DEVNULL).returncode == 0


def test_much_output(policy: nsbox.Policy) -> None:
    """More than a pipe holds goes both ways."""
    text = "x" * 1_000_000
    assert nsbox.run(["/bin/cat"], policy=policy, input=text, capture_output=True, text=True).stdout == text


def test_pass_fds(policy: nsbox.Policy) -> None:
    """What pass_fds names is open in the command under its number, and no other descriptor is."""
    code = """
    import os, sys
    given, other = map(int, sys.argv[1:])
    os.write(given, b"hello")
    try:
        os.fstat(other)
    except OSError:
        print("closed")
    """
    read, write = os.pipe()
    other = os.dup(read)
    try:
        os.set_inheritable(other, True)
        assert control(python(code, write, other), pass_fds=[write, other]) == ""
        assert allowed(python(code, write, other), policy, pass_fds=[write]) == "closed\n"
        assert os.read(read, 20) == b"hellohello"
    finally:
        for fd in (read, write, other):
            os.close(fd)


def test_all_descriptors(policy: nsbox.Policy) -> None:
    """A command has the three standard ones and nothing that nsbox needs itself."""
    code = """
    import fcntl
    found = []
    for fd in range(256):
        try:
            fcntl.fcntl(fd, fcntl.F_GETFD)
        except OSError:
            continue
        found.append(fd)
    print(found)
    """
    assert allowed(python(code), policy) == "[0, 1, 2]\n"


def test_close_fds_false(policy: nsbox.Policy) -> None:
    """With close_fds=False inheritable descriptors stay open."""
    read, write = os.pipe()
    try:
        os.set_inheritable(write, True)
        allowed(python("import os, sys; os.write(int(sys.argv[1]), b'x')", write), policy, close_fds=False)
        assert os.read(read, 1) == b"x"
    finally:
        os.close(read)
        os.close(write)


def test_env(policy: nsbox.Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mapping is the whole environment; without one the policy builds it, and the caller's isn't in it."""
    # Without a sandbox, macOS adds a variable of its own too: __CF_USER_TEXT_ENCODING.
    assert "ONE=1" in allowed(["/usr/bin/env"], policy, env={"ONE": "1"}).splitlines()
    monkeypatch.setenv("NSBOX_TEST_SECRET", "secret")
    assert "NSBOX_TEST_SECRET" in control(["/usr/bin/env"])
    assert "NSBOX_TEST_SECRET" not in allowed(["/usr/bin/env"], policy)
    assert (
        "NSBOX_TEST_SECRET=secret"
        in allowed(["/usr/bin/env"], policy.with_(pass_env=["NSBOX_TEST_SECRET"])).splitlines()
    )


def test_loaders_variables(policy: nsbox.Policy, workspace: Path) -> None:
    """A library that the command's environment asks the loader for isn't loaded into what sets the sandbox up."""
    env = {"DYLD_INSERT_LIBRARIES": str(workspace / "missing.dylib")}
    assert allowed(["/bin/echo", "hello"], policy, env=env) == "hello\n"


def test_session_and_group(policy: nsbox.Policy) -> None:
    """A command leads a session of its own, also when asked to."""
    for options in ({}, {"start_new_session": True}):
        printed = allowed(python("import os; print(os.getpid() == os.getsid(0) == os.getpgrp())"), policy, **options)
        assert printed == "True\n"


def test_umask_and_signals(policy: nsbox.Policy) -> None:
    """umask is set, and SIGPIPE is what it is for other programs."""
    assert allowed(["/bin/sh", "-c", "umask"], policy, umask=0o027).strip().endswith("027")
    assert nsbox.run(["/bin/sh", "-c", "kill -PIPE $$"], policy=policy).returncode == -signal.SIGPIPE


def test_timeout(policy: nsbox.Policy) -> None:
    """A command that takes too long is ended."""
    with pytest.raises(subprocess.TimeoutExpired):
        nsbox.run(["/bin/sleep", "100"], policy=policy, capture_output=True, timeout=0.5)


def test_wait_with_timeout(policy: nsbox.Policy) -> None:
    """wait() with a timeout leaves the command alone, and finds its end later."""
    with nsbox.Popen(["/bin/cat"], policy=policy, stdin=nsbox.PIPE) as child:
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.05)
        assert child.poll() is None
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(30) == 0


def test_limits(workspace: Path) -> None:
    """Limits hold for each process."""
    policy = nsbox.Policy.workspace(workspace, limits=nsbox.Limits(open_files=64, file_size="1M"))
    assert allowed(["/bin/sh", "-c", "ulimit -n"], policy) == "64\n"
    done = nsbox.run(["/bin/dd", "if=/dev/zero", "of=big", "bs=1m", "count=2"], policy=policy, capture_output=True)
    assert done.returncode != 0
    assert (workspace / "big").stat().st_size <= 1 << 20


def test_preexec_fn(policy: nsbox.Policy, workspace: Path) -> None:
    """preexec_fn runs in the sandbox, and what it raises is a SubprocessError."""
    assert allowed(["/bin/pwd"], policy, preexec_fn=lambda: os.chdir("/usr")) == "/usr\n"
    with pytest.raises(subprocess.SubprocessError):
        nsbox.run(["/usr/bin/true"], policy=policy, preexec_fn=lambda: os.mkdir("/private/tmp/nsbox-preexec"))
    assert not os.path.exists("/private/tmp/nsbox-preexec")
