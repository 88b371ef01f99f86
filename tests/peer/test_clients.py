"""Clients of bubblewrap with our bwrap: one that does as Flatpak does.

Flatpak gives all options by a descriptor, and talks to the sandbox over others: it reads who the first process is, sets
up what is to be set up from outside, lets the command start, and learns the exit status and the end of the sandbox.
"""

from __future__ import annotations

import json
import os
import select
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "uts")
pytestmark = pytest.mark.timeout(20)

A_WHILE = 0.2  # seconds in which nothing must happen

UNAME = {"x86_64": 63, "aarch64": 160}.get(os.uname().machine, -1)
NO_UNAME = [  # (code, jt, jf, k): uname(2) fails with ENODATA, which it never does by itself; all else is allowed
    (0x20, 0, 0, 0),  # load the number
    (0x15, 0, 1, UNAME),
    (0x06, 0, 0, 0x00050000 | 61),
    (0x06, 0, 0, 0x7FFF0000),
]


def quiet(*files: IO[Any]) -> bool:
    """Tell whether there is nothing to be read for a while, nor the end."""
    return not select.select(files, [], [], A_WHILE)[0]


class Client:
    """One sandbox and the descriptors that it shares with us. Used as Flatpak uses them: every option is in a file."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.theirs: list[int] = []
        self.options: list[str] = []

    def from_us(self, option: str, data: bytes, *more: str) -> None:
        """Add an option whose descriptor is a file with this content."""
        fd = os.memfd_create(option)
        os.write(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
        self.give(option, fd, *more)

    def to_us(self, option: str) -> IO[bytes]:
        """Add an option whose descriptor is a pipe that they write to, or just hold; return our end."""
        ours, theirs = os.pipe()
        self.give(option, theirs)
        return self._stack.enter_context(open(ours, "rb", buffering=0))

    def awaits_us(self, option: str) -> IO[bytes]:
        """Add an option whose descriptor is a pipe that they wait for; return our end."""
        theirs, ours = os.pipe()
        self.give(option, theirs)
        return self._stack.enter_context(open(ours, "wb", buffering=0))

    def give(self, option: str, fd: int, *more: str) -> None:
        self.theirs.append(fd)
        self.options += [option, str(fd), *more]

    def start(self, bwrap: str, *command: str, **more: Any) -> subprocess.Popen[bytes]:
        """Start the command in the sandbox, and close all that isn't ours."""
        words = b"".join(os.fsencode(word) + b"\0" for word in self.options)
        self.from_us("--args", words)
        try:
            process = subprocess.Popen([bwrap, *self.options[-2:], "--", *command], pass_fds=self.theirs, **more)
        finally:
            for fd in self.theirs:
                os.close(fd)
        self._stack.enter_context(process)
        self._stack.callback(process.kill)  # in case a test fails; it waits for the others
        return process


@contextmanager
def client() -> Iterator[Client]:
    """Return a client whose sandbox sees a /usr and little else, as Flatpak's do."""
    with ExitStack() as stack:
        made = Client(stack)
        made.options += ["--ro-bind", "/usr", "/usr", "--ro-bind", "/etc", "/etc"]
        for name in ("bin", "lib", "lib64", "sbin"):
            link = Path("/", name)
            if link.is_symlink():
                made.options += ["--symlink", f"usr/{name}", str(link)]
            elif link.exists():
                made.options += ["--ro-bind", str(link), str(link)]
        made.options += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--dir", "/run/user", "--chdir", "/tmp"]
        made.options += ["--setenv", "XDG_RUNTIME_DIR", "/run/user", "--unsetenv", "TMPDIR"]
        yield made


def test_order_of_events(bwrap: str) -> None:
    """The first process is known before the command starts, which waits for us; the status is reported when the command ends, the end of all that it has left behind by the last descriptor."""
    with client() as it:
        it.options += [f"--unshare-{name}" for name in ("cgroup", "ipc", "net", "pid", "user", "uts")]
        info, status = it.to_us("--info-fd"), it.to_us("--json-status-fd")
        block, sync = it.awaits_us("--block-fd"), it.to_us("--sync-fd")
        script = "echo started; exec 3<&0; cat <&3 >/dev/null & exit 3"
        process = it.start(bwrap, "sh", "-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None and process.stdout is not None

        about = json.loads(info.read())  # to its end: nobody else holds it
        known = json.loads(status.readline())  # written piece by piece
        for name in NAMESPACES:
            assert os.readlink(f"/proc/{about['child-pid']}/ns/{name}") == f"{name}:[{about[f'{name}-namespace']}]"
        assert known == about
        assert quiet(process.stdout, status, sync)

        block.write(b".")
        assert process.stdout.readline() == b"started\n"
        assert json.loads(status.read()) == {"exit-code": 3}
        assert process.wait() == 3

        assert quiet(sync)  # `cat` is still there
        process.stdin.close()
        assert sync.read() == b""


def test_block_fd_that_is_closed(bwrap: str) -> None:
    """A client that closes its end of --block-fd lets the command go as well: what waits isn't left behind."""
    with client() as it:
        block = it.awaits_us("--block-fd")
        process = it.start(bwrap, "echo", "started", stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert quiet(process.stdout)
        block.close()
        assert process.stdout.read() == b"started\n"
        assert process.wait() == 0


def test_files_filter_and_environment(bwrap: str) -> None:
    """What is given by descriptors arrives: a file, a system call filter; a descriptor that no option names is the command's."""
    if UNAME < 0:
        pytest.skip("no number of uname(2) for this machine")
    with client() as it, closing(open(os.devnull)) as other:
        it.from_us("--ro-bind-data", b"[Application]\n", "/.flatpak-info")
        it.from_us("--seccomp", b"".join(struct.pack("HBBI", *instruction) for instruction in NO_UNAME))
        it.options += ["--unshare-pid", "--new-session", "--die-with-parent"]
        it.theirs.append(os.dup(other.fileno()))
        script = "cat /.flatpak-info; echo $XDG_RUNTIME_DIR $PWD ${TMPDIR-unset}; echo no > /.flatpak-info || uname; ls /proc/self/fd"
        process = it.start(
            bwrap, "sh", "-c", script, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = process.communicate()
        lines = out.decode().splitlines()
        assert lines[:2] == ["[Application]", "/run/user /tmp unset"]
        assert b"No data available" in err
        assert b"ead-only" in err
        assert len(lines[2:]) == 5, f"0 to 2, the other one, that of `ls` itself: {lines[2:]}"


def test_exec_that_fails(bwrap: str) -> None:
    """No exit status is reported for a command that never existed."""
    with client() as it:
        status = it.to_us("--json-status-fd")
        process = it.start(bwrap, "/nonexistent/command", stderr=subprocess.PIPE)
        _, err = process.communicate()
        documents = [json.loads(line) for line in status.read().splitlines()]
        assert process.returncode == 1
        assert err.startswith(b"bwrap: ")
        assert b"/nonexistent/command" in err
        assert ["exit-code" in document for document in documents] == [False]


def test_namespace_of_another_process(bwrap: str) -> None:
    """--userns FD: the command is in the user namespace of a process that we made, with the ids that are mapped there."""
    holder = ["unshare", "--user", "--map-root-user", "sh", "-c", "echo ready; exec cat"]
    with subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other, client() as it:
        assert other.stdin is not None and other.stdout is not None
        assert other.stdout.readline() == b"ready\n"
        path = f"/proc/{other.pid}/ns/user"
        it.give("--userns", os.open(path, os.O_RDONLY))
        it.options += ["--unshare-pid", "--unshare-ipc"]
        process = it.start(bwrap, "sh", "-c", "readlink /proc/self/ns/user; id -u", stdout=subprocess.PIPE)
        assert process.communicate()[0].decode().splitlines() == [os.readlink(path), "0"]
        other.stdin.close()
