"""Bad input and what comes of it: the right exception with the right words, nothing started, nothing left, nothing lost."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing.running import Face

import nsbox
from nsbox import (
    AccessError,
    Bind,
    Dir,
    Policy,
    RoBind,
    SetupError,
)

ROOT = RoBind("/", "/")


def tool(path: Path, text: str, mode: int = 0o755) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


# ---- the program: the exceptions are those of the standard library, whichever face


@pytest.mark.parametrize(
    "name", ["no-such-program", "/no/such/program", "./no-such-program", b"/no/such", Path("/no/such")]
)
def test_missing_program(sub: Face, name: object) -> None:
    """A program that isn't there is FileNotFoundError, with the name as it was given."""
    with pytest.raises(FileNotFoundError) as caught:
        sub.Popen([name, "arg"])
    assert caught.value.errno == errno.ENOENT
    assert os.fspath(caught.value.filename) == os.fspath(name)
    if sub.contained:  # by posix_spawn(3) the plain class makes a str of a PathLike, from Python 3.13 on
        assert type(caught.value.filename) is type(name)


def test_missing_executable(sub: Face) -> None:
    """With executable= that is what is missing."""
    with pytest.raises(FileNotFoundError) as caught:
        sub.Popen(["x"], executable="/no/such")
    assert caught.value.filename == "/no/such"
    with pytest.raises(FileNotFoundError) as caught:
        sub.Popen("x", shell=True, executable="/no/shell")
    assert caught.value.filename == "/no/shell"


def test_program_that_is_not_executable(sub: Face) -> None:
    """Without the x bit: PermissionError."""
    path = tool(sub.directory / "tool", "#!/bin/sh\n", 0o644)
    with pytest.raises(PermissionError) as caught:
        sub.Popen([str(path)])
    assert caught.value.filename == str(path)


@pytest.mark.parametrize("name", ["/etc", "/usr/bin/", "."])
def test_directory_as_program(sub: Face, name: str) -> None:
    """A directory: PermissionError."""
    with pytest.raises(PermissionError) as caught:
        sub.Popen([name], executable=name)
    assert caught.value.filename == name


def test_program_in_no_known_format(sub: Face) -> None:
    """Neither ELF nor #!: OSError ENOEXEC."""
    path = tool(sub.directory / "tool", "just text\n")
    with pytest.raises(OSError) as caught:
        sub.Popen([str(path)])
    assert caught.value.errno == errno.ENOEXEC
    assert caught.value.filename == str(path)


def test_program_with_a_missing_interpreter(sub: Face) -> None:
    """A #! line that leads nowhere: FileNotFoundError, about the script."""
    path = tool(sub.directory / "tool", "#!/no/interpreter\n")
    with pytest.raises(FileNotFoundError) as caught:
        sub.Popen([str(path)])
    assert caught.value.filename == str(path)


def test_program_behind_a_file(sub: Face) -> None:
    """A file used as a directory: NotADirectoryError."""
    with pytest.raises(NotADirectoryError):
        sub.Popen(["/etc/passwd/x"])


def test_program_through_a_loop_of_links(sub: Face) -> None:
    """A symlink to itself: OSError ELOOP."""
    (sub.directory / "loop").symlink_to("loop")
    with pytest.raises(OSError) as caught:
        sub.Popen(["./loop"])
    assert caught.value.errno == errno.ELOOP


def test_program_with_a_name_that_is_too_long(sub: Face) -> None:
    """More than 255 bytes between slashes: OSError ENAMETOOLONG."""
    with pytest.raises(OSError) as caught:
        sub.Popen(["/" + "x" * 300])
    assert caught.value.errno == errno.ENAMETOOLONG


def test_program_that_is_being_written(sub: Face) -> None:
    """A program open for writing: OSError ETXTBSY."""
    path = sub.directory / "true"
    path.write_bytes(Path("/bin/true").read_bytes())
    path.chmod(0o755)
    with path.open("ab"), pytest.raises(OSError) as caught:
        sub.Popen([str(path)])
    assert caught.value.errno == errno.ETXTBSY


@pytest.mark.parametrize("name", ["", b""])
def test_empty_name(sub: Face, name: str | bytes) -> None:
    """An empty name is no program. (The standard library says PermissionError, since PATH's directories are no programs.)"""
    with pytest.raises(OSError) as caught:
        sub.Popen([name])
    assert caught.value.errno in (errno.EACCES, errno.ENOENT)
    assert caught.value.filename == name


@pytest.mark.parametrize("args", [[], ()])
def test_empty_argv(sub: Face, args: object) -> None:
    """No argument at all: IndexError, as in the standard library."""
    with pytest.raises(IndexError):
        sub.Popen(args)


@pytest.mark.parametrize("args", [None, 5, [5], [None], ["echo", 1], ["echo", None]])
def test_args_of_a_wrong_type(sub: Face, args: object) -> None:
    """Things that are no path: TypeError."""
    with pytest.raises(TypeError):
        sub.Popen(args)


@pytest.mark.parametrize(
    "options",
    [
        {"args": ["a\0b"]},
        {"args": ["echo", "a\0b"]},
        {"args": ["echo", b"\0"]},
        {"args": ["true"], "executable": "/bin/true\0"},
        {"args": ["true"], "cwd": "/tmp\0"},
        {"args": ["true"], "cwd": b"/tmp\0"},
        {"args": ["true"], "env": {"A\0": "b"}},
        {"args": ["true"], "env": {"A": "b\0"}},
        {"args": "echo \0", "shell": True},
        {"args": ["true"], "env": {"A=B": "c"}},
    ],
    ids=lambda options: repr({k: v for k, v in options.items() if "\0" in repr(v) or "0" in repr(v) or "=" in repr(v)}),
)
def test_null_bytes(sub: Face, options: dict[str, object]) -> None:
    """NUL in an argument, a name, a directory, the environment, or "=" in a variable's name: ValueError."""
    with pytest.raises(ValueError):
        sub.Popen(**options)


def test_program_of_the_host_that_the_sandbox_lacks(workspace: Path, tmp_path: Path) -> None:
    """A program that exists on the host only: FileNotFoundError with a note that says so."""
    path = tool(tmp_path / "tool", "#!/bin/sh\n")
    with pytest.raises(FileNotFoundError) as caught:
        nsbox.run([str(path)], policy=Policy.workspace(workspace))
    assert caught.value.filename == str(path)
    assert "exists on the host" in " ".join(caught.value.__notes__)


def test_relative_program_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path that is right from here, and not from where the command starts: the note names that directory."""
    (tmp_path / "work").mkdir()
    tool(tmp_path / "work/tool", "#!/bin/sh\n")
    monkeypatch.chdir(tmp_path)
    policy = Policy.workspace("work")
    with pytest.raises(FileNotFoundError) as caught:
        nsbox.run(["work/tool"], policy=policy)
    assert f"counts from where the command starts, {tmp_path}/work" in " ".join(caught.value.__notes__)
    assert nsbox.run(["./tool"], policy=policy).returncode == 0
    with pytest.raises(FileNotFoundError) as caught:
        nsbox.run(["./none"], policy=policy)
    assert not getattr(caught.value, "__notes__", [])


# ---- the directory


@pytest.mark.parametrize("cwd", ["no/such", Path("no/such"), b"no/such", "/no/such"])
def test_missing_cwd(sub: Face, cwd: object) -> None:
    """A directory that isn't there: FileNotFoundError, with the name as it was given."""
    with pytest.raises(FileNotFoundError) as caught:
        sub.Popen(["true"], cwd=cwd)
    assert caught.value.filename == cwd
    assert type(caught.value.filename) is type(cwd)


def test_cwd_that_is_a_file(sub: Face) -> None:
    """A file: NotADirectoryError."""
    (sub.directory / "file").touch()
    with pytest.raises(NotADirectoryError) as caught:
        sub.Popen(["true"], cwd="file")
    assert caught.value.filename == "file"


def test_cwd_and_program_both_missing(sub: Face) -> None:
    """The directory's error comes first."""
    with pytest.raises(FileNotFoundError) as caught:
        sub.Popen(["/no/program"], cwd="/no/directory")
    assert caught.value.filename == "/no/directory"


def test_cwd_outside(tmp_path: Path, policy: Policy) -> None:
    """A directory of the host that the sandbox lacks: AccessError, which says what is there instead."""
    outside = tmp_path / "outside"
    outside.mkdir()
    with pytest.raises(AccessError, match="not in the sandbox") as caught:
        nsbox.Popen(["true"], policy=policy, cwd=outside)
    assert isinstance(caught.value, PermissionError)
    assert caught.value.filename == str(outside)
    assert str(policy.workdir) in str(caught.value)


def test_cwd_that_is_masked(workspace: Path) -> None:
    """A denied directory can't be started in: PermissionError."""
    (workspace / "denied").mkdir()
    policy = Policy.workspace(workspace, deny=[workspace / "denied"])
    with pytest.raises(PermissionError):
        nsbox.Popen(["true"], policy=policy, cwd=workspace / "denied")


def test_cwd_by_a_planted_link(workspace: Path, policy: Policy) -> None:
    """A link to a descriptor of the set-up, planted where the command is to start, leads nowhere (CVE-2024-21626)."""
    for number in range(3, 60):
        for pid in ("self", "1", "2"):
            link = workspace / "link"
            link.unlink(missing_ok=True)
            link.symlink_to(f"/proc/{pid}/fd/{number}")
            try:
                done = nsbox.run(["pwd", "-P"], policy=policy, cwd=link, stdout=subprocess.PIPE, text=True)
            except OSError:
                continue
            assert done.stdout.strip().startswith(str(workspace)), link.readlink()


def test_current_directory_that_is_gone(tmp_path: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A current directory that has been removed: FileNotFoundError, or the workspace; no crash."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    try:
        for chosen in (policy, None, Policy.host()):
            try:
                assert nsbox.run(["true"], policy=chosen).returncode == 0
            except FileNotFoundError:
                continue
    finally:
        monkeypatch.undo()


# ---- what the errors are


def test_setup_errors_survive_pickling(workspace: Path) -> None:
    """Errors come out of a pickle with all their fields."""
    with pytest.raises(SetupError) as caught:
        nsbox.run(["true"], policy=Policy.layers(ROOT, Bind(str(workspace), str(workspace)), Dir(f"{workspace}/new")))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.errno, again.step, again.op, again.hint) == (
        str(caught.value),
        caught.value.errno,
        caught.value.step,
        caught.value.op,
        caught.value.hint,
    )


def test_the_same_after_a_hundred_failures(policy: Policy) -> None:
    """A hundred failed starts of all kinds, and the next one works."""
    bad = Policy.layers(ROOT, Bind("/no/such", "/mnt"))
    for _ in range(25):
        for options in (
            {"args": ["/no/such"]},
            {"args": ["true"], "cwd": "/no/such"},
            {"args": ["true"], "policy": bad},
            {"args": ["/etc"]},
        ):
            with pytest.raises(OSError):
                nsbox.Popen(**({"policy": policy} | options))
    assert nsbox.run(["true"], policy=policy).returncode == 0


def test_pipes_are_closed_after_a_failed_start(policy: Policy) -> None:
    """A failed start with pipes leaves no descriptor open (the fixture looks) and raises no ResourceWarning."""
    pipe = subprocess.PIPE
    for name in ("/no/such", "/etc"):
        with pytest.raises(OSError):
            nsbox.Popen([name], stdin=pipe, stdout=pipe, stderr=pipe, policy=policy)


# ---- what the host has and the sandbox doesn't show


def test_a_program_of_the_callers_path(workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare name that the caller's PATH has: the error says where the host has it."""
    tool = tmp_path / "bin" / "my-tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    with pytest.raises(FileNotFoundError) as caught:
        nsbox.run(["my-tool"], policy=Policy.workspace(workspace))
    assert str(tool) in "".join(getattr(caught.value, "__notes__", []))


@pytest.mark.parametrize("what", ["program", "cwd"])
def test_something_denied(workspace: Path, what: str) -> None:
    """A program or a directory that the policy denies: the error says that it is the policy."""
    hidden = workspace / "hidden"
    hidden.mkdir()
    (hidden / "tool").write_text("#!/bin/sh\n")
    (hidden / "tool").chmod(0o755)
    policy = Policy.workspace(workspace, deny=[hidden])
    if what == "program":
        with pytest.raises(PermissionError) as caught:
            nsbox.run([str(hidden / "tool")], policy=policy)
        said = "".join(getattr(caught.value, "__notes__", []))
    else:
        with pytest.raises(nsbox.AccessError) as caught:
            nsbox.run(["true"], policy=policy, cwd=hidden)
        said = str(caught.value)
    assert f"the policy denies {hidden}" in said


def test_a_sandbox_describes_itself_briefly(workspace: Path) -> None:
    """The repr of Popen.sandbox doesn't have the whole plan in it."""
    with nsbox.Popen(["true"], policy=Policy.workspace(workspace)) as process:
        process.wait()
    assert "namespaces" in repr(process.sandbox) and len(repr(process.sandbox)) < 2500


def test_unknown_options_of_a_subcommand() -> None:
    """The help that is named is the subcommand's."""
    done = subprocess.run([sys.executable, "-P", "-m", "nsbox", "explain", "--bogus"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "nsbox explain: no such option: --bogus; see nsbox explain --help\n"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: Policy.workspace(path, deny=".env"), "such as ['.env']"),
        (lambda path: Policy.workspace(path, raed=["/x"]), "read"),
        (lambda path: Policy.workspace(path, env={"A": 1}), "the value of A is an int"),
        (lambda path: Policy.workspace(path, env={"A=B": "1"}), "'='"),
    ],
)
def test_messages_of_policies(workspace: Path, make: Any, words: str) -> None:
    """What is wrong is said, with what would be right."""
    with pytest.raises(nsbox.PolicyError) as caught:
        make(workspace)
    assert words in str(caught.value)
