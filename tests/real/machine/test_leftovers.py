"""The fixture that looks for what a test leaves behind sees what is ours, and nothing of what else goes on."""

from __future__ import annotations

import dataclasses
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from nsbox_testing import leftovers

import nsbox


@contextmanager
def orphan(*, marked: bool) -> Iterator[int]:
    """Have a process that is no descendant of ours, with our mark or without it; yield its pid."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if not marked:
                _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
                resource.setrlimit(resource.RLIMIT_RTTIME, (hard, hard))
            child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            os.write(write, str(child.pid).encode())
        finally:
            os._exit(0)
    os.close(write)
    child = int(os.read(read, 20))
    os.close(read)
    os.waitpid(pid, 0)
    pidfd = os.pidfd_open(child)
    try:
        yield child
    finally:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)


@pytest.mark.parametrize("marked", [True, False], ids=["ours", "another's"])
def test_processes(marked: bool) -> None:
    """An orphan counts if one of our processes has started it, whatever its session and its command line."""
    since = leftovers.boot_ticks()
    with orphan(marked=marked) as pid:
        found = leftovers.survivors(since, patience=0.1)
    assert [line for line in found if f"(pid {pid}," in line] == found
    assert len(found) == marked


def test_pid_1_of_a_sandbox(policy: nsbox.Policy) -> None:
    """The mark tells pid 1, which isn't dumpable, and the command, whose environment is empty."""
    with nsbox.Popen(["cat"], policy=policy, env={}, stdin=subprocess.PIPE) as process:
        assert leftovers.is_marked(process.sandbox.init_pid)
        assert leftovers.is_marked(process.pid)
    assert not leftovers.is_marked(1)


@pytest.mark.as_root("to mount something")
def test_mounts(tmp_path: Path, temporary: str) -> None:
    """What is mounted in another mount namespace isn't seen here; control: what is mounted in this one is."""
    before = leftovers.take(temporary)
    mount = ["mount", "-t", "tmpfs", "somebody", str(tmp_path)]
    elsewhere = ["unshare", "--mount", "--propagation", "shared", "sh", "-c", 'mount --make-rprivate / && "$@"', "sh"]
    subprocess.run([*elsewhere, *mount], check=True)
    assert leftovers.complaints(before, temporary) == []
    subprocess.run(mount, check=True)
    try:
        (line,) = leftovers.complaints(before, temporary)
        assert line.startswith("mount: ") and str(tmp_path) in line
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize(
    ("mount", "is_ours"), [("tmpfs nobody rw", False), ("fuse.sshfs host rw,user_id={},group_id=0", True)]
)
def test_mounts_of_others(temporary: str, monkeypatch: pytest.MonkeyPatch, mount: str, is_ours: bool) -> None:
    """Root's mounts come and go without an unprivileged user, whose own ones are FUSE's."""
    before, read = leftovers.take(temporary), leftovers._read
    line = f"9 1 0:9 / /there rw - {mount.format(os.geteuid())}"
    monkeypatch.setattr(leftovers, "_read", lambda path: read(path) + line * path.endswith("mountinfo"))
    counts = is_ours or os.geteuid() == 0
    assert leftovers.complaints(before, temporary) == [f"mount: {line}"] * counts


def test_files_in_the_root(temporary: str) -> None:
    """A new name in / counts if a test names it; any other belongs to another process."""
    before = leftovers.take(temporary)
    ours, other = "data", "".join(("somebody", "-elses"))
    missing = dataclasses.replace(before, root=before.root - {"usr"} | {ours, other})
    assert sorted(leftovers.complaints(missing, temporary)) == [f"in /: {ours}", "in /: usr"]
