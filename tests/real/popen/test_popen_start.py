"""Popen as subprocess.Popen: how a command is named, where and how it runs. The same test for each face."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest
from nsbox_testing.running import Face, in_fork, python

import nsbox

# ---- how a command is named


def test_arguments_arrive_unchanged(sub: Face) -> None:
    """Spaces, quotes, empty and non-ASCII arguments, bytes that are no UTF-8."""
    args = ["a b", "", "'\"$x`*", "äöü\n", "\udcff", "-n"]
    done = sub.run(
        python("import os, sys; [os.write(1, os.fsencode(a) + b'\\0') for a in sys.argv[1:]]", *args),
        capture_output=True,
    )
    assert done.stdout.split(b"\0")[:-1] == [os.fsencode(arg) for arg in args]


def test_args_of_all_types(sub: Face) -> None:
    """A str or bytes or PathLike alone is the program; in a sequence they mix; a tuple will do."""
    for args in (
        "/bin/true",
        b"/bin/true",
        Path("/bin/true"),
        ["/bin/true"],
        ("/bin/true",),
        [b"/bin/true", Path("x"), "y"],
    ):
        p = sub.Popen(args)
        assert p.wait() == 0
        assert p.args is args


def test_a_hundred_thousand_bytes_of_argument(sub: Face) -> None:
    """A 100,000-byte argument arrives whole."""
    done = sub.run(["printf", "%s", "x" * 100_000], capture_output=True)
    assert done.stdout == b"x" * 100_000


def test_an_argument_that_is_too_long(sub: Face) -> None:
    """More than the kernel takes for one argument (128 KiB) is E2BIG, with the program's name."""
    with pytest.raises(OSError) as caught:
        sub.Popen(["true", "x" * (1 << 20)])
    assert caught.value.errno == errno.E2BIG
    assert caught.value.filename == "true"


def test_shell(sub: Face) -> None:
    """shell=True runs /bin/sh -c; further items become its positional parameters."""
    assert sub.run("echo a b | tr a-z A-Z", shell=True, stdout=subprocess.PIPE).stdout == b"A B\n"
    done = sub.run(['echo "$0-$1"', "zero", "one"], shell=True, stdout=subprocess.PIPE)
    assert done.stdout == b"zero-one\n"


def test_shell_with_another_executable(sub: Face) -> None:
    """executable= with shell=True takes /bin/sh's place."""
    done = sub.run("echo $0 $BASH_VERSION", shell=True, executable="/bin/bash", stdout=subprocess.PIPE, text=True)
    assert done.stdout.split()[0] == "/bin/bash"
    assert len(done.stdout.split()) == 2


def test_shell_with_a_path_is_a_type_error(sub: Face) -> None:
    """A PathLike command with shell=True is refused."""
    with pytest.raises(TypeError):
        sub.Popen(Path("/bin/true"), shell=True)


def test_executable_differs_from_argv0(sub: Face) -> None:
    """executable= is what is run; args[0] is the name that it gets."""
    done = sub.run(["some name", "-c", "echo $0"], executable="/bin/sh", stdout=subprocess.PIPE)
    assert done.stdout == b"some name\n"
    done = sub.run(["nothing"], executable=b"/bin/true")
    assert done.returncode == 0
    done = sub.run(["nothing"], executable=Path("/bin/true"))
    assert done.returncode == 0


def test_program_is_looked_up_in_the_path_of_env(sub: Face) -> None:
    """PATH is that of env=, if it is given."""
    bin_ = sub.directory / "bin"
    bin_.mkdir()
    tool = bin_ / "only-here"
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    done = sub.run(["only-here"], env={"PATH": f"/nowhere:{bin_}"}, stdout=subprocess.PIPE)
    assert done.stdout == b"found\n"
    with pytest.raises(FileNotFoundError):
        sub.run(["only-here"])


def test_relative_program_counts_from_the_new_directory(sub: Face) -> None:
    """A program with a slash is looked up after the change of directory."""
    (sub.directory / "there").mkdir()
    tool = sub.directory / "there" / "tool"
    tool.write_text("#!/bin/sh\npwd\n")
    tool.chmod(0o755)
    done = sub.run(["./tool"], cwd="there", stdout=subprocess.PIPE, text=True)
    assert done.stdout.strip() == str(sub.directory / "there")


def test_path_order_and_what_execvp_skips(sub: Face) -> None:
    """A directory of PATH whose file can't be executed is skipped, as execvp does."""
    for name, mode in (("a", 0o644), ("b", 0o755)):
        (sub.directory / name).mkdir()
        tool = sub.directory / name / "tool"
        tool.write_text("#!/bin/sh\nexit 42\n")
        tool.chmod(mode)
    path = f"{sub.directory}/a:{sub.directory}/b"
    assert sub.run(["tool"], env={"PATH": path}).returncode == 42


# ---- where and how a command runs


@pytest.mark.parametrize("kind", [str, os.fsencode, Path])
def test_cwd(sub: Face, kind: type) -> None:
    """cwd= may be str, bytes or PathLike."""
    (sub.directory / "sub dir").mkdir()
    done = sub.run(["pwd"], cwd=kind(str(sub.directory / "sub dir")), stdout=subprocess.PIPE, text=True)
    assert done.stdout == f"{sub.directory}/sub dir\n"


@pytest.mark.parametrize("cwd", ["a/b", "./a/../a/b/.", "link"])
def test_relative_cwd(sub: Face, cwd: str) -> None:
    """A relative cwd counts from the current directory of the caller."""
    (sub.directory / "a" / "b").mkdir(parents=True)
    (sub.directory / "link").symlink_to("a/b")
    done = sub.run(["/bin/pwd", "-P"], cwd=cwd, stdout=subprocess.PIPE, text=True)
    assert done.stdout == f"{sub.directory}/a/b\n"


def test_cwd_is_inherited(sub: Face) -> None:
    """Without cwd= the command starts in the caller's current directory, also below that of the policy."""
    (sub.directory / "deep").mkdir()
    assert sub.run(["/bin/pwd", "-P"], stdout=subprocess.PIPE, text=True).stdout == f"{sub.directory}\n"
    os.chdir("deep")
    try:
        assert sub.run(["/bin/pwd", "-P"], stdout=subprocess.PIPE, text=True).stdout == f"{sub.directory}/deep\n"
    finally:
        os.chdir("..")


def test_env_given(sub: Face) -> None:
    """env= is the whole environment, in its order, with any bytes."""
    env = {"B": "2", "A": "1 2", b"C": b"\xff", "EMPTY": ""}
    done = sub.run(["/usr/bin/env", "-0"], env=env, stdout=subprocess.PIPE)
    assert done.stdout == b"B=2\0A=1 2\0C=\xff\0EMPTY=\0"


def test_empty_env(sub: Face) -> None:
    """env={} is an empty environment."""
    assert sub.run(["/usr/bin/env"], env={}, stdout=subprocess.PIPE).stdout == b""


def test_env_inherited(sub: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """env=None inherits the environment; under a workspace policy it is built, and nothing else passes."""
    monkeypatch.setenv("NSBOX_TEST_VARIABLE", "inherited")
    done = sub.run(["sh", "-c", "echo ${NSBOX_TEST_VARIABLE:-unset}"], stdout=subprocess.PIPE)
    assert done.stdout == (b"unset\n" if sub.name == "workspace" else b"inherited\n")


def test_start_new_session(sub: Face) -> None:
    """start_new_session=True makes the command the leader of a session of its own."""
    with sub.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=True) as p:
        assert os.getsid(p.pid) == p.pid
        assert os.getpgid(p.pid) == p.pid


def test_session_is_inherited(sub: Face) -> None:
    """Without it the session is the caller's, unless the policy says otherwise (a workspace's does)."""
    with sub.Popen(["cat"], stdin=subprocess.PIPE) as p:
        assert os.getsid(p.pid) == (p.pid if sub.name == "workspace" else os.getsid(0))


def test_process_group(sub: Face) -> None:
    """process_group=0 makes the command the leader of a new group."""
    with sub.Popen(["cat"], stdin=subprocess.PIPE, process_group=0) as p:
        assert os.getpgid(p.pid) == p.pid


def test_process_group_of_another(sub: Face) -> None:
    """process_group=N joins a group of the session; in a sandbox, whose pid namespace has no such group, it is an error."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, process_group=0) as leader:
        if sub.isolated:
            with pytest.raises(nsbox.SetupError, match="setpgid") as caught:
                sub.Popen(["cat"], stdin=subprocess.DEVNULL, process_group=leader.pid)
            assert caught.value.errno in (errno.EPERM, errno.ESRCH)
            return
        with sub.Popen(["cat"], stdin=subprocess.PIPE, process_group=leader.pid) as p:
            assert os.getpgid(p.pid) == leader.pid


@pytest.mark.parametrize("umask", [0o077, 0, -1])
def test_umask(sub: Face, umask: int) -> None:
    """umask= is the command's; the caller's otherwise."""
    expected = "0022" if umask < 0 else f"{umask:04o}"

    def ask() -> str:
        os.umask(0o022)
        return sub.run(["sh", "-c", "umask"], umask=umask, stdout=subprocess.PIPE, text=True).stdout.strip()

    assert in_fork(ask) == expected


def test_files_made_inside_are_ours(sub: Face) -> None:
    """Files that the command creates belong to the caller, with the umask's mode."""
    sub.run(["sh", "-c", "echo x > made; mkdir d"], umask=0o027, check=True)
    st = (sub.directory / "made").stat()
    assert (st.st_uid, st.st_gid, st.st_mode & 0o777) == (os.geteuid(), os.getegid(), 0o640)
    assert (sub.directory / "d").stat().st_mode & 0o777 == 0o750
