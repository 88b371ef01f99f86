"""Libraries that know nothing of nsbox, contained: GitPython, invoke, build, and pexpect, which can't be.

    pip install nsbox GitPython invoke build pexpect
    python examples/confined_libraries.py

Each part does the same thing twice, first as it is and then within nsbox.confined(). Something hostile is in it each
time: a hook of a repository, a task, a build backend. It reads a secret and leaves a file, both outside of the
workspace. "Outside" is a temporary directory too, so that the first time does no harm.

What to know before you do likewise:

- confined() contains the programs that a library starts, not the library: GitPython's index.commit(), say, writes the
  objects itself, and build's own Python code runs where yours does.
- These libraries hand on a copy of os.environ, which a policy leaves as it is. Take secrets out of that first.
- A library that has bound Popen to a name of its own must find nsbox's there: import it after nsbox.install(), or give
  the module to install().
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import nsbox
from nsbox import Policy

Attempt = Callable[[Path, "Outside"], str]
WAY = re.compile(r"by [^ ,]+")  # "a program would be started by os.forkpty(), outside of the sandbox ..."


class Outside:
    """What no command should reach: a secret to read, a directory to write into."""

    def __init__(self, directory: Path) -> None:
        self.secret = directory / "secret"
        self.planted = directory / "planted"
        self.secret.write_text("xyzzy")

    @property
    def raid(self) -> str:
        """The hostile thing as a shell command: it prints the secret and plants a file."""
        return f"cat {self.secret}; echo was here > {self.planted}; true"

    def damage(self, printed: str) -> str:
        """Say what has been reached, and put the file away."""
        found = ["the secret was read"] if "xyzzy" in printed else []
        found += ["a file was planted"] if self.planted.exists() else []
        self.planted.unlink(missing_ok=True)
        return ", ".join(found) or "nothing was reached"


# ---- a hook of a repository


def commit(workspace: Path, outside: Outside) -> str:
    """GitPython: init, add, commit and log, in a repository with a hook that somebody has planted."""
    import git  # only now: git.cmd keeps Popen under two names, and takes them when it is imported

    with git.Repo.init(workspace) as repo:
        hook = workspace / ".git/hooks/pre-commit"
        hook.write_text(f"#!/bin/sh\n({outside.raid}) > {workspace}/loot 2>&1\n")
        hook.chmod(0o755)
        with repo.config_writer() as config:
            config.set_value("user", "name", "nobody").set_value("user", "email", "nobody@example.org")
        (workspace / "file").write_text("hello\n")
        repo.git.add("file")
        repo.git.commit("-m", "the first one")
        assert [one.message for one in repo.iter_commits()] == ["the first one\n"]
    return (workspace / "loot").read_text()


# ---- a task


def run_task(workspace: Path, outside: Outside) -> str:
    """invoke: a command line, and its output."""
    import invoke

    # Its module has `from subprocess import Popen`. It may have been imported by others before, so it is named here.
    nsbox.install(invoke.runners)
    done = invoke.run(f"echo ran; ({outside.raid}) 2>&1", hide=True, in_stream=False)
    assert done.stdout.startswith("ran\n")
    return str(done.stdout)


# ---- a build backend

BACKEND = """
import os, subprocess
loot = subprocess.run(RAID, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
open("loot", "wb").write(loot)
def build_wheel(directory, settings=None, metadata=None):
    open(os.path.join(directory, "thing-1-py3-none-any.whl"), "w").close()
    return "thing-1-py3-none-any.whl"
"""

PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""


@contextlib.contextmanager
def temporary_files(directory: Path) -> Iterator[None]:
    """Have this process's temporary files in a directory; the policy gives commands a /tmp of their own."""
    before, tempfile.tempdir = tempfile.tempdir, str(directory)
    try:
        yield
    finally:
        tempfile.tempdir = before


def build_wheel(workspace: Path, outside: Outside) -> str:
    """build: a wheel of a project that brings its own build backend, as pip would make it."""
    import build

    (workspace / "pyproject.toml").write_text(PROJECT)
    (workspace / "backend.py").write_text(BACKEND.replace("RAID", repr(outside.raid)))
    with temporary_files(workspace):  # build and the backend talk by files
        wheel = build.ProjectBuilder(workspace).build("wheel", workspace / "dist")
    assert os.listdir(workspace / "dist") == [os.path.basename(wheel)]
    return (workspace / "loot").read_text()


# ---- a dialogue on a terminal


def talk(workspace: Path, outside: Outside) -> str:
    """pexpect: it forks with a terminal and executes by itself, without subprocess. Not contained, so not started."""
    import pexpect

    return bytes(pexpect.run(f"sh -c '{outside.raid}'")).decode()


# ---- all


def attempt(what: Attempt, around: Callable[[Path], AbstractContextManager[None]]) -> str:
    """Do it in a new workspace, within what is around; say what came of it."""
    with tempfile.TemporaryDirectory() as name:
        workspace, elsewhere = Path(name, "workspace"), Path(name, "outside")
        workspace.mkdir()
        elsewhere.mkdir()
        outside = Outside(elsewhere)
        try:
            with around(workspace):
                printed = what(workspace, outside)
        except nsbox.NsboxError as error:
            return f"{outside.damage('')}, {type(error).__name__}: refused, {WAY.findall(str(error))[0]}"
        return outside.damage(printed)


def main() -> None:
    """One line for each library."""
    nsbox.install()
    parts: dict[str, Attempt] = {"git": commit, "invoke": run_task, "build": build_wheel, "pexpect": talk}
    for library, what in parts.items():
        if importlib.util.find_spec(library) is None:
            print(f"{library}: skipped, it isn't installed")
            continue
        plain = attempt(what, lambda _: nullcontext())
        contained = attempt(what, lambda workspace: nsbox.confined(Policy.workspace(workspace)))
        print(f"{library}: plain: {plain}; confined: {contained}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
