"""Commands of one Sandbox: what they have in common must not open a way from one to the other, or to the caller."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing.running import python
from nsbox_testing.warm import await_ready

import nsbox
from nsbox import Dev, Policy, RoBind, Sandbox, Tmpfs

HIDE = "import sys; open(sys.argv[1] + '/secret', 'w').write('secret'); print('up', flush=True); input()"
# Each of these needs the kernel's word that the process may be traced (ptrace(2), PTRACE_MODE_READ).
LOOK = """
import os, sys
found = []
for name in ("root/" + sys.argv[2] + "/secret", "environ", "maps"):
    try:
        with open(f"/proc/{sys.argv[1]}/{name}", "rb") as file: found.append(name if file.read() else "")
    except OSError: pass
for name in ("cwd", "ns/user"):
    try: found.append(name if os.readlink(f"/proc/{sys.argv[1]}/{name}") else "")
    except OSError: pass
print(found)
"""


def seen(start: Callable[..., Any], place: str = "/mnt") -> str:
    """Return what one command sees of another, which has made a file in a place."""
    with start(python(HIDE, place), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "up\n"
        with start(python(LOOK, str(other.pid), place), stdout=subprocess.PIPE, text=True) as one:
            found = str(one.communicate()[0])
        other.communicate("\n")
    return found


@pytest.fixture
def by_the_hosts_proc() -> Policy:
    """All processes of the machine are seen, by the host's procfs."""
    return Policy.layers(RoBind("/", "/"), Dev("/dev"), Tmpfs("/mnt"))


@pytest.mark.parametrize("stock", [0, 2])
def test_no_command_may_trace_another(by_the_hosts_proc: Policy, stock: int) -> None:
    """Each is in a user namespace of its own: one that sees the other's number can't look into it."""
    with Sandbox(by_the_hosts_proc, stock=stock) as box:

        def start(*args: Any, **options: Any) -> Any:
            await_ready(box)
            process = box.Popen(*args, **options)
            assert process.sandbox.is_warm, box.why_cold
            return process

        assert seen(start) == "[]\n"


def test_no_command_may_trace_another_without(by_the_hosts_proc: Policy) -> None:
    """The same without a Sandbox."""
    assert seen(lambda *args, **options: nsbox.Popen(*args, policy=by_the_hosts_proc, **options)) == "[]\n"


def test_control_in_one_user_namespace(tmp_path: Path) -> None:
    """Two commands of one user in the same one see all of each other."""
    found = seen(subprocess.Popen, str(tmp_path))
    assert all(name in found for name in ("secret", "environ", "maps", "cwd", "ns/user"))
