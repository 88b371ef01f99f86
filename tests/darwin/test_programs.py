"""Programs that people run on a Mac work in a workspace: Python and its processes, git, a compiler, scripts."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from nsbox_darwin import allowed, control, python

import nsbox

pytestmark = pytest.mark.darwin


def _has_tool(name: str) -> bool:
    """Say if Apple's developer tools are there: without them the program of that name only offers to install them."""
    return subprocess.run(["/usr/bin/xcrun", "--find", name], check=False, capture_output=True).returncode == 0


def test_name_of_the_user(policy: nsbox.Policy) -> None:
    """The user and the group have names."""
    code = "import grp, os, pwd; print(pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name)"
    assert allowed(python(code), policy) == control(python(code))
    assert pwd.getpwuid(os.getuid()).pw_name in allowed(["/usr/bin/id", "-un"], policy)


def test_what_the_machine_is(policy: nsbox.Policy) -> None:
    """Programs can ask for the number of processors, the system and its version."""
    code = "import os, platform; print(os.cpu_count(), platform.machine(), platform.mac_ver()[0], os.uname().release)"
    assert allowed(python(code), policy) == control(python(code))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(policy: nsbox.Policy, method: str) -> None:
    """multiprocessing has its semaphores, pipes and processes."""
    code = """
    import multiprocessing, sys
    context = multiprocessing.get_context(sys.argv[1])
    lock = context.Lock()
    with lock, context.Pool(2) as pool:
        assert pool.map(abs, [-1, -2, 3]) == [1, 2, 3]
    """
    allowed(python(code, method), policy)


def test_shared_memory_by_file(policy: nsbox.Policy) -> None:
    """Memory can be shared by a file of the workspace."""
    code = """
    import mmap
    with open("shared", "w+b") as file:
        file.truncate(4096)
        with mmap.mmap(file.fileno(), 4096) as memory:
            memory[:2] = b"ok"
        assert file.read(2) == b"ok"
    """
    allowed(python(code), policy)


def test_threads_and_subprocess(policy: nsbox.Policy) -> None:
    """Threads start programs by the standard library's subprocess."""
    code = """
    import subprocess
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(4) as pool:
        assert {*pool.map(lambda n: subprocess.check_output(["/bin/echo", str(n)]), range(8))} == {b"%d\\n" % n for n in range(8)}
    """
    allowed(python(code), policy)


def test_script(policy: nsbox.Policy, workspace: Path) -> None:
    """A script is run by the interpreter that its first line names, also through env."""
    for name, first in (("one", "#!/bin/sh"), ("two", "#!/usr/bin/env sh")):
        (workspace / name).write_text(f'{first}\necho "$0 $1"\n')
        (workspace / name).chmod(0o755)
        assert allowed([str(workspace / name), "word"], policy) == f"{workspace / name} word\n"


def test_shell(policy: nsbox.Policy) -> None:
    """Shells have pipes, here documents, background jobs, and the tools of the system."""
    script = "cat <<END | sed s/a/b/ | tr b c\na\nEND\nsleep 0 & wait; date >/dev/null; ls / >/dev/null; awk 'BEGIN {print 6 * 7}'"
    for shell in ("/bin/sh", "/bin/bash", "/bin/zsh"):
        assert allowed([shell, "-c", script], policy) == "c\n42\n"


def test_python_venv(policy: nsbox.Policy, workspace: Path) -> None:
    """A virtual environment can be made in the workspace, and its Python runs."""
    allowed([sys.executable, "-m", "venv", "--without-pip", "env"], policy)
    printed = allowed(["env/bin/python", "-c", "import sys; print(sys.prefix)"], policy)
    assert os.path.realpath(printed.strip()) == os.path.realpath(workspace / "env")


@pytest.mark.skipif(sys.platform == "darwin" and not _has_tool("git"), reason="no developer tools here")
def test_git(policy: nsbox.Policy, workspace: Path) -> None:
    """A repository can be made, and committed to."""
    names = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
    (workspace / "file").write_text("content\n")
    allowed(["git", "init", "-q"], policy)
    allowed(["git", "add", "file"], policy)
    allowed(["git", *names, "commit", "-q", "-m", "first"], policy)
    assert allowed(["git", "log", "--format=%s"], policy) == "first\n"


@pytest.mark.skipif(sys.platform == "darwin" and not _has_tool("clang"), reason="no developer tools here")
def test_compiler(policy: nsbox.Policy, workspace: Path) -> None:
    """A program in C can be compiled and run."""
    (workspace / "hello.c").write_text('#include <stdio.h>\nint main(void) { return puts("hello") < 0; }\n')
    allowed(["clang", "-o", "hello", "hello.c"], policy)
    assert allowed([str(workspace / "hello")], policy) == "hello\n"


@pytest.mark.skipif(shutil.which("node") is None, reason="no node here")
def test_node(workspace: Path) -> None:
    """Node runs, and starts processes."""
    node = shutil.which("node")
    assert node is not None
    policy = nsbox.Policy.workspace(workspace, read=[Path(node).resolve().parents[1]])
    code = "console.log(require('child_process').execFileSync('/bin/echo', ['hello']).toString().trim())"
    assert allowed([os.path.realpath(node), "-e", code], policy) == "hello\n"
