"""install() and confined(): the standard library's ways to start a process, contained or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Child = Callable[..., Any]

# ---- the standard library's ways through subprocess


@pytest.mark.parametrize(
    "way",
    [
        "subprocess.Popen(NAMESPACE, stdout=-1).communicate()[0]",
        "subprocess.run(NAMESPACE, capture_output=True).stdout",
        "subprocess.check_output(NAMESPACE)",
        "subprocess.getoutput('readlink /proc/self/ns/pid').encode()",
        "by_call(subprocess.call)",
        "by_call(subprocess.check_call)",
        "os.popen('readlink /proc/self/ns/pid').read().encode()",
        "by_asyncio(asyncio.create_subprocess_exec(*NAMESPACE, stdout=-1))",
        "by_asyncio(asyncio.create_subprocess_shell('readlink /proc/self/ns/pid', stdout=-1))",
        "earlier_run(NAMESPACE, capture_output=True).stdout",
    ],
)
def test_contained(child: Child, way: str) -> None:
    """Whatever goes through subprocess.Popen is contained in the block, and isn't outside of it."""
    code = f"""
import warnings
warnings.simplefilter("ignore", ResourceWarning)  # os.popen() isn't closed here
def by_call(function):
    with open("out", "w") as file:
        function(NAMESPACE, stdout=file)
    with open("out", "rb") as file:
        return file.read()

def by_asyncio(starting):
    async def main():
        return (await (await starting).communicate())[0]
    return asyncio.run(main())

nsbox.install()
seen = [said({way})]
with nsbox.confined(policy):
    seen.append(said({way}))
report(seen)
"""
    assert child(code, before="from subprocess import run as earlier_run\n") == ["out", "in"]


def test_programs_unmodified(child: Child, workspace: Path) -> None:
    """A module with `import subprocess` is contained by confined(), and one whose import is nsbox's by itself."""
    body = "\ndef ask():\n    return subprocess.check_output(['readlink', '/proc/self/ns/pid'])\n"
    (workspace / "plain.py").write_text("import subprocess\n" + body)
    (workspace / "changed.py").write_text("import nsbox.subprocess as subprocess\n" + body)
    code = """
import plain, changed
seen = [said(plain.ask()), said(changed.ask())]
with nsbox.confined(policy):
    seen += [said(plain.ask()), said(changed.ask())]
report(seen)
"""
    assert child(code) == ["out", "in", "in", "in"]


# ---- other ways are refused

REFUSED = {
    "os.system": "os.system('touch made')",
    "os.posix_spawn": "os.waitpid(os.posix_spawn('/bin/sh', ['sh', '-c', 'touch made'], os.environ), 0)",
    "os.posix_spawnp": "os.waitpid(os.posix_spawnp('touch', ['touch', 'made'], os.environ), 0)",
    "pty.spawn": "__import__('pty').spawn(['touch', 'made'])",
    "an earlier Popen": "Earlier(['touch', 'made']).wait()",
    "an earlier subclass": "Subclass(['touch', 'made']).wait()",
    "multiprocessing's spawn": "os.waitpid(spawnv_passfds(b'/bin/sh', [b'sh', b'-c', b'touch made'], ()), 0)",
}

EARLIER = """
import subprocess
from multiprocessing.util import spawnv_passfds
from subprocess import Popen as Earlier
class Subclass(subprocess.Popen):
    pass
"""


@pytest.mark.parametrize("way", REFUSED)
def test_refused(child: Child, way: str) -> None:
    """In the block it raises NsboxError, before anything is started; outside of it all is as ever."""
    code = f"""
nsbox.install()
def attempt():
    {REFUSED[way]}

with nsbox.confined(policy):
    problem = refused(attempt)
seen = ["outside of the sandbox that nsbox.confined() asks for" in problem, os.path.exists("made")]
attempt()
report([*seen, os.path.exists("made")])
"""
    assert child(code, before=EARLIER) == [True, False, True]


@pytest.mark.parametrize("way", ["execv('/bin/sh', ARGV)", "execve('/bin/sh', ARGV, {})", "execvp('sh', ARGV)"])
def test_exec_is_refused(child: Child, way: str) -> None:
    """os.exec*() raises an error that is an OSError too, which a library expects of it in its fork."""
    code = f"""
ARGV = ["sh", "-c", 'echo "[1, 2]"']
with nsbox.confined(policy):
    try:
        os.{way}
    except PermissionError as error:
        assert isinstance(error, nsbox.NsboxError)
os.{way}
"""
    assert child(code) == [1, 2]


def test_exec_in_a_fork(child: Child) -> None:
    """The usual fork and exec, with its handling of OSError, and os.spawn*(): the caller sees a failed start."""
    code = """
def fork_and_exec():
    pid = os.fork()
    if pid == 0:
        try:
            os.execv("/bin/sh", ["sh", "-c", "touch made"])
        except OSError:
            os._exit(126)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def spawn():
    return os.spawnlp(os.P_WAIT, "touch", "touch", "made")

with nsbox.confined(policy):
    seen = [fork_and_exec(), spawn(), os.path.exists("made")]
seen.append(fork_and_exec())
os.unlink("made")
report([*seen, spawn(), os.path.exists("made")])
"""
    assert child(code) == [126, 127, False, 0, 0, True]


def test_forkpty_is_refused_in_the_caller(child: Child) -> None:
    """pty.fork(), as pexpect calls it: no copy of the caller is made, in which the error would be handled again."""
    code = """
import pty
with nsbox.confined(policy):
    problem = refused(pty.fork)
pid, terminal = pty.fork()
if pid == 0:
    os._exit(3)
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
os.close(terminal)
report(["by os.forkpty()" in problem, status])
"""
    assert child(code) == [True, 3]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_multiprocessing_is_refused(child: Child, method: str, workspace: Path) -> None:
    """Its start methods that execute a new Python are refused in the block, and work outside of it."""
    (workspace / "work.py").write_text("def make(path):\n    open(path, 'w').close()\n")
    code = f"""
import multiprocessing, work
context = multiprocessing.get_context("{method}")
def attempt(name):
    process = context.Process(target=work.make, args=(name,))
    process.start()
    process.join()

with nsbox.confined(policy):
    problem = refused(attempt, "inside")
attempt("outside")
report(["by multiprocessing" in problem, os.path.exists("inside"), os.path.exists("outside")])
from multiprocessing import forkserver, resource_tracker
forkserver._forkserver._stop()
resource_tracker._resource_tracker._stop()
"""
    assert child(code) == [True, False, True]
