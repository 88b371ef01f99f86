"""Callers on a Mac that aren't simple: libraries with hooks at a fork, threads that start other things, many descriptors."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Iterator

import pytest
from nsbox_darwin import allowed, control, python

import nsbox

pytestmark = pytest.mark.darwin

START = """
import importlib, nsbox, sys
importlib.import_module(sys.argv[2])
for _ in range(3):
    nsbox.run(["/usr/bin/true"], policy=nsbox.Policy.workspace(sys.argv[1]), check=True)
print("fine")
"""


@pytest.mark.parametrize("module", ["tkinter", "urllib.request"])
def test_libraries_with_hooks(tmp_path: os.PathLike[str], module: str) -> None:
    """A caller in whose libraries something happens at each fork starts commands: there is no second one in the child."""
    pytest.importorskip(module)
    assert control(python(START, tmp_path, module)) == "fine\n"


def test_beside_posix_spawn(policy: nsbox.Policy) -> None:
    """A thread that starts processes which keep all descriptors holds up nobody: what tells of an exec isn't theirs."""
    stop = threading.Event()
    sleepers: list[int] = []

    def others() -> None:
        while not stop.is_set() and len(sleepers) < 100:
            sleepers.append(os.posix_spawn("/bin/sleep", ["sleep", "60"], {}))

    thread = threading.Thread(target=others)
    thread.start()
    try:
        for _ in range(50):
            assert nsbox.run(["/usr/bin/true"], policy=policy, timeout=30).returncode == 0
    finally:
        stop.set()
        thread.join()
        for pid in sleepers:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@pytest.fixture
def many_descriptors() -> Iterator[int]:
    """More open descriptors than fit into the list by which they are closed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, hard))
    fds: list[int] = []
    try:
        fds += (os.dup(0) for _ in range(7000))
        for fd in fds:
            os.set_inheritable(fd, True)
        yield len(fds)
    finally:
        for fd in fds:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_many_descriptors(policy: nsbox.Policy, many_descriptors: int) -> None:
    """However many are open here, a command has 0 to 2; without close_fds=True the same program sees them."""
    count = python("import os; print(len(os.listdir('/dev/fd')))")
    assert int(control(count, close_fds=False)) > many_descriptors
    assert int(allowed(count, policy)) <= 4  # one is the listing's own


def test_a_stop_is_no_end(policy: nsbox.Policy) -> None:
    """A command that wants to be traced, and stops, hasn't ended: wait4(2) would tell of that as well."""
    code = """
    import ctypes, os, signal
    ctypes.CDLL(None).ptrace(0, 0, None, 0)  # PT_TRACE_ME, which may be refused
    print("stops", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    """
    with nsbox.Popen(python(code), policy=policy, stdout=nsbox.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "stops\n"
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1)
        assert child.returncode is None
        child.kill()
    assert child.returncode == -signal.SIGKILL


def test_groups(tmp_path: os.PathLike[str]) -> None:
    """For root, which may give a command other groups: it has all of them, and the group that it is to have."""
    if os.geteuid() != 0:
        with pytest.raises(nsbox.SetupError):
            nsbox.run(["/usr/bin/true"], policy=nsbox.Policy.host(), extra_groups=[1, 2])
        return
    code = "import os; print(os.getegid(), sorted(os.getgroups()))"
    done = nsbox.run(python(code), policy=nsbox.Policy.host(), extra_groups=[1, 2], capture_output=True, text=True)
    assert done.stdout == f"{os.getegid()} {sorted({os.getegid(), 1, 2})}\n"
