"""`nsbox run` after a command that failed: a line on stderr with the option that would help, and nothing more than is known."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from nsbox_testing.terminals import PROMPT, bash
from nsbox_testing.typed import RUN

COMMAND = [sys.executable, "-P", "-m", "nsbox"]


def run(workspace: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "run", *words],
        cwd=workspace,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=100,
        check=False,
    )


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("nsbox: ")]


@pytest.mark.parametrize(
    ("words", "status", "hint"),
    [
        (
            ["--file-size", "2K", "-c", "head -c 5000 /dev/zero > big"],
            153,
            "perhaps a file became too large (--file-size 2K)",
        ),
        (
            ["--cpu-seconds", "1", "-c", "while :; do :; done"],
            152,
            "it used up its processor time (--cpu-seconds 1)",
        ),
        (["--", "sh", "-c", "kill -9 $$"], 137, "it was killed by SIGKILL, by itself or by another process"),
        (
            ["--memory", "2G", "--", "sh", "-c", "kill -SEGV $$"],
            139,
            "it may have run out of memory and crashed: --memory 2G bounds",
        ),
        (["--", "sh", "-c", "kill -SYS $$"], 159, "it made a system call that the sandbox's filter doesn't allow"),
        (
            ["--", "sh", "-c", "exit 1", "git", "clone", "x"],
            1,
            "the command may have wanted the network: the network is off in this sandbox (--network none); --allow-net HOST lets it connect",
        ),
    ],
)
def test_how_it_ended(workspace: Path, words: list[str], status: int, hint: str) -> None:
    """What is known without its output. The status stays the command's own; --quiet leaves the line out."""
    done = run(workspace, *words)
    assert done.returncode == status
    assert any(hint in line for line in said(done)), done.stderr
    quiet = run(workspace, "-q", *words)
    assert (quiet.returncode, said(quiet)) == (status, [])


@pytest.mark.parametrize(
    ("words", "status", "lines"),
    [
        (["-c", "touch /etc/x; true"], 0, []),
        (["--", "true"], 0, []),
        (["--", "sh", "-c", "exit 3"], 3, []),
        (["--", "sh", "-c", "kill $$"], 143, []),
        (["--", "sh", "-c", "kill -ABRT $$"], 134, []),
        (["--timeout", "0.5", "--", "sleep", "60"], 124, ["nsbox: --timeout: the command was ended after 0.5 s"]),
        (
            ["--timeout", "0.5", "--grace", "0", "--", "sleep", "60"],
            124,
            ["nsbox: --timeout: the command was ended after 0.5 s"],
        ),
    ],
)
def test_nothing_is_made_up(workspace: Path, words: list[str], status: int, lines: list[str]) -> None:
    """Nothing for a success, for a status that says nothing, and for what a line says already."""
    done = run(workspace, *words)
    assert (done.returncode, said(done)) == (status, lines)


def test_a_workspace_that_is_gone(workspace: Path, tmp_path: Path) -> None:
    """What is looked at for a hint may be gone by then. The status is the command's own all the same."""
    words = [*COMMAND, "run", "-w", str(workspace), "--", "sh", "-c", "echo ready; read line; exit 3"]
    with subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        workspace.rmdir()
        process.stdin.write("\n")
        process.stdin.close()
        assert process.wait() == 3


def test_output_in_a_pipe_is_its_own(workspace: Path) -> None:
    """It isn't read: what would explain a failure on a terminal says nothing here."""
    done = run(workspace, "--read-only", "--", "touch", "x")
    assert done.returncode == 1 and said(done) == [] and "Read-only file system" in done.stderr


@pytest.mark.parametrize(
    ("words", "hints"),
    [
        ("--read-only -- touch x", ["x' is read-only in the sandbox", "--write PATH lets it write there"]),
        ("-- touch /etc/x", ["'/etc/x' is read-only in the sandbox", "--write PATH lets it write there"]),
        ("-- ls /var/log/x", ["'/var/log/x' is outside of the sandbox", "--read PATH lets it read there"]),
        (
            "--open-files 20 -- python3 -c '[open(1, closefd=False) for _ in [0]]; import os; [os.dup(0) for _ in range(50)]'",
            ["--open-files 20"],
        ),
        ("--tmp-size 1M -- dd if=/dev/zero of=/tmp/x bs=1M count=3", ["(--tmp-size)"]),
        ("--memory 2G -- sh -c 'echo Out of memory; exit 1'", ["a limit may have been reached: --memory 2G"]),
        ("--processes 77 -- sh -c 'echo Cannot fork; exit 1'", ["a limit may have been reached: --processes 77"]),
        ("-c 'nothing-like-this; exit 127'", ["there is no program 'nothing-like-this' in the sandbox"]),
        ("-- sh -c 'echo Could not resolve host: a.example; exit 6'", ["--network none", "--allow-net HOST"]),
        ("-- sh -c 'echo No usable sandbox!; exit 1'", ["the policy needs --nested for that"]),
    ],
)
def test_on_a_terminal(workspace: Path, words: str, hints: list[str]) -> None:
    """What it has shown there counts too, in the words of the options."""
    with bash(workspace, size=(50, 400)) as screen:
        screen.line(f"{RUN} {words}")
        screen.until("\nnsbox: ")
        line = screen.until(PROMPT)
        assert all(hint in line for hint in hints), line
        screen.line(f"{RUN} -q {words}")
        assert "\nnsbox: " not in screen.until(PROMPT)


def test_what_was_typed(workspace: Path) -> None:
    """After a key was typed, the screen tells of more than one failure, and isn't read. Control: without one it is."""
    program = "sh -c 'read line; touch /etc/x'"
    with bash(workspace, size=(50, 400)) as screen:
        screen.line(f"{RUN} -- {program}")
        screen.type("\n")
        screen.until("Read-only file system")
        assert "nsbox: " not in screen.until(PROMPT)
        screen.line(f"{RUN} -- {program} </dev/null")
        screen.until("nsbox: '/etc/x' is read-only")


def test_a_policy_of_a_file(workspace: Path) -> None:
    """Its words are the file's keys: no option that doesn't go with --policy."""
    (workspace / "nsbox.toml").write_text(f'workspace = "{workspace}"\n[limits]\nfile_size = "2K"\n')
    done = run(workspace, "-p", "nsbox.toml", "-c", "head -c 5000 /dev/zero > big")
    assert done.returncode == 153 and said(done) == [
        "nsbox: perhaps a file became too large (limits.file_size=2 KiB): it was killed by SIGXFSZ"
    ]


@pytest.mark.parametrize("subcommand", ["run", "python"])
def test_a_remedy_for_a_file(workspace: Path, subcommand: str) -> None:
    """What this machine can't grant, in the file's words: --degrade doesn't go with --policy. The control has options."""
    (workspace / "nsbox.toml").write_text(f'workspace = "{workspace}"\nbackend = "landlock"\n')
    words = ["--", "true"] if subcommand == "run" else ["-c", "pass"]
    for options, expected, other in (
        (["-p", "nsbox.toml"], "degrade=[", "--degrade"),
        (["-w", ".", "--backend", "landlock"], "--degrade ", "degrade=["),
    ):
        line = [*COMMAND, subcommand, *options, *words]
        done = subprocess.run(line, cwd=workspace, capture_output=True, text=True, timeout=100)
        assert done.returncode == 125 and expected in done.stderr and other not in done.stderr


def test_a_limit_of_the_caller(workspace: Path) -> None:
    """It isn't called the policy's."""
    line = "ulimit -f 1000; exec " + " ".join([*COMMAND, "run", "-c", "'head -c 2000000 /dev/zero > big'"])
    done = subprocess.run(["bash", "-c", line], cwd=workspace, capture_output=True, text=True, timeout=100)
    assert done.returncode == 153 and "perhaps it was the caller's own (ulimit -f)" in done.stderr


def test_nothing_waits_for_hints() -> None:
    """The modules that make them are imported after a failure alone."""
    code = "import sys, nsbox._cli.run.command; print([m for m in sys.modules if m.startswith('nsbox._tools')])"
    assert subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize("subcommand", [["run"], ["python", "-c", "1"], ["python", "--json", "-c", "1"]])
@pytest.mark.parametrize("what", ["missing", "relative", "file", "outside"])
def test_chdir(workspace: Path, tmp_path: Path, subcommand: list[str], what: str) -> None:
    """The error names the option, whatever is wrong with its directory."""
    (workspace / "file").touch()
    (tmp_path / "elsewhere").mkdir()
    directory = {
        "missing": "/nonexistent/x",
        "relative": "no/such",
        "file": str(workspace / "file"),
        "outside": str(tmp_path / "elsewhere"),
    }[what]
    first, *more = subcommand
    done = subprocess.run(
        [*COMMAND, first, "-C", directory, *(more or ["true"])],
        cwd=workspace,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 125 and done.stderr.startswith(f"nsbox: --chdir: {directory}"), done.stderr


@pytest.mark.parametrize(
    "option",
    [
        *("--chdir", "--workspace", "--policy", "--section", "--audit", "--net-log", "--env-file", "--read", "--write"),
        *(
            "--deny",
            "--tools-bin",
            "--device",
            "--home",
            "--hostname",
            "--pass-env",
            "--memory",
            "--allow-net",
            "--env",
        ),
    ],
)
def test_empty_values(workspace: Path, option: str) -> None:
    """An unset variable of a script: refused, with the option's name."""
    done = run(workspace, f"{option}=", "true")
    assert done.returncode == 2 and f"{option}: " in done.stderr, done.stderr


def test_setenv_without_a_name(workspace: Path) -> None:
    """It is the option that was written which the error names."""
    assert "nsbox: --setenv: '' isn't the name" in run(workspace, "--setenv", "", "x", "true").stderr
    assert "nsbox: --setenv: 'a=b' isn't the name" in run(workspace, "--setenv", "a=b", "x", "true").stderr


@pytest.mark.parametrize("option", ["-w", "--read", "--write", "--env-file", "--audit", "--net-log", "--tools-bin"])
@pytest.mark.skipif(os.geteuid() == 0, reason="root can look into every directory")
def test_what_cannot_be_read(workspace: Path, tmp_path: Path, option: str) -> None:
    """A path in a directory that the caller may not enter."""
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed").chmod(0)
    done = run(workspace, option, str(tmp_path / "closed/in"), "true")
    name = {"-w": "--workspace"}.get(option, option)
    assert done.returncode == 2 and done.stderr.startswith(f"nsbox: {name}: {tmp_path}/closed/in: Permission denied")


def test_a_virtual_environment_that_leads_outside(workspace: Path, tmp_path: Path) -> None:
    """The error has the option that shows the interpreter's own directory, which then helps."""
    prefix = tmp_path / "python"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin/python3").write_text("#!/bin/sh\necho ran\n")
    (prefix / "bin/python3").chmod(0o755)
    (prefix / "lib/python3.11").mkdir(parents=True)
    (prefix / "lib/python3.11/os.py").touch()
    (workspace / "env/bin").mkdir(parents=True)
    (workspace / "env/bin/python").symlink_to(prefix / "bin/python3")
    done = run(workspace, "env/bin/python")
    assert done.returncode == 127 and done.stderr.endswith(f": add --read {prefix} for that Python\n"), done.stderr
    assert run(workspace, "--read", str(prefix), "env/bin/python").stdout == "ran\n"
    (prefix / "lib/python3.11/os.py").unlink()  # a link of a command's, to anything: no advice
    assert "--read" not in run(workspace, "env/bin/python").stderr
