"""The program of a warm interpreter, without a sandbox: started with plain subprocess, spoken to frame by frame."""

from __future__ import annotations

import array
import contextlib
import fcntl
import functools
import glob
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from nsbox._guest import archive

PATIENCE = 30.0  # seconds for an answer
_LENGTH = struct.Struct("<I")


@functools.cache
def interpreters() -> dict[str, str]:
    """Return this machine's interpreters from 3.9 on, one of each version, by version; the running one for its own."""
    found = {}
    patterns = ("/usr/bin/python3.*", "/usr/local/bin/python3.*", "~/.pyenv/versions/*/bin/python3")
    for path in (
        sys.executable,
        *(path for pattern in patterns for path in sorted(glob.glob(os.path.expanduser(pattern)))),
    ):
        with contextlib.suppress(OSError):
            question = "import sys; print('%d.%d' % sys.version_info[:2])"
            done = subprocess.run([path, "-I", "-c", question], capture_output=True, text=True, timeout=PATIENCE)
            version = done.stdout.strip()
            if done.returncode == 0 and tuple(map(int, version.split("."))) >= (3, 9):
                found.setdefault(version, path)
    return found


def memory_file(content: bytes) -> int:
    """Return a descriptor of a file in memory."""
    fd = os.memfd_create("nsbox-test")
    os.write(fd, content)
    return fd


def _rights(fds: Sequence[int]) -> list[tuple[int, int, array.array[int]]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []


def message(end: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return the next message of a socket of messages, and its descriptors; None at the end."""
    data, control, _, _ = end.recvmsg(1 << 16, socket.CMSG_SPACE(16))
    fds = array.array("i")
    for _, _, part in control:
        fds.frombytes(part)
    return json.loads(data) if data else None, list(fds)


class Interpreter:
    """A warm interpreter whose branches are plain forks. hello: its first message."""

    def __init__(self, python: str = sys.executable, **config: Any) -> None:
        """Start it, and wait until it is ready, or says why it can't be.

        python: which interpreter.
        config: see nsbox/_guest/boot.py.
        """
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(PATIENCE)
        zipped = memory_file(archive.archive())
        fds = {"control": theirs.fileno(), "zip": zipped}
        told = {"protocol": 1, "fds": fds, "imports": [], "setup": "", "uncontained": True, **config}
        config_fd = memory_file(json.dumps(told).encode())
        argv = [python, "-I", "-c", archive.boot_text(), str(config_fd)]
        self.process = subprocess.Popen(argv, pass_fds=[*fds.values(), config_fd], stdin=subprocess.DEVNULL)
        theirs.close()
        os.close(zipped)
        os.close(config_fd)
        self.branches: list[Branch] = []
        self.hello, _ = message(self.control)

    def branch(self, **go: Any) -> Branch:
        """Make a branch that runs one piece of code; its output goes to a file.

        go: what its first frame says beside.
        """
        branch = Branch.of(self, go)
        self.branches.append(branch)
        return branch

    def kernel(self, **go: Any) -> Branch:
        """Make a branch that stays."""
        return self.branch(kernel=True, **go)

    def end_branches(self) -> None:
        """End all its branches."""
        while self.branches:
            self.branches.pop().close()

    def close(self) -> None:
        """End it and all its branches."""
        self.end_branches()
        self.control.close()
        self.process.wait(PATIENCE)


class Branch:
    """The caller's ends of a branch: told, line, and a file for its output. Its pid is 0 when it has none."""

    def __init__(self, told: socket.socket, line: socket.socket, output: int) -> None:
        self.told, self.line, self.output = told, line, output
        self.forks: list[Branch] = []
        self.number = 0
        self.last: dict[str, Any] | None = None
        told.settimeout(PATIENCE)
        line.settimeout(PATIENCE)

    @classmethod
    def of(cls, interpreter: Interpreter, go: dict[str, Any]) -> Branch:
        told, their_told = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        line, their_line = socket.socketpair()
        with their_told, their_line:
            interpreter.control.sendmsg([b'{"branch":1}'], _rights([their_told.fileno(), their_line.fileno()]))
        branch = cls(told, line, _output())
        try:
            branch.start()
        except BaseException:  # nothing stays open, so that only this test fails
            for end in (told, line):
                end.close()
            os.close(branch.output)
            raise
        stdin, extra = go.pop("stdin", None), go.pop("extra", [])
        null = os.open(os.devnull, os.O_RDONLY)
        first = null if stdin is None else stdin
        frame = {"op": "go", "env": None, "cwd": None, "argv": ["-c"], "umask": None, "kernel": False, **go}
        branch.send(frame, [first, branch.output, branch.output, *extra])
        os.close(null)
        return branch

    def start(self) -> None:
        started, fds = message(self.told)
        assert started is not None and "started" in started, started
        self.pid, self.pidfd = started["started"], fds[0]

    def send(self, frame: dict[str, Any], fds: Sequence[int] = ()) -> None:
        content = json.dumps(frame).encode()
        data = memoryview(_LENGTH.pack(len(content)) + content)
        try:
            data = data[self.line.sendmsg([data], _rights(fds)) :]
        except BrokenPipeError:
            raise AssertionError(f"the line has ended: {self.text()[-2000:]}") from None
        if data:
            self.line.sendall(data)

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                more = self.line.recv(count - len(data))
            except ConnectionResetError:
                more = b""
            if not more:
                break
            data += more
        return data

    def receive(self) -> dict[str, Any] | None:
        """Return the next frame, None at the end of the line. The one that says that the branch has begun is left out."""
        frame = self.frame()
        return self.frame() if frame == {"begun": True} else frame

    def frame(self) -> dict[str, Any] | None:
        """Return the next frame, None at the end of the line."""
        head = self._read(4)
        if len(head) < 4:
            return None
        (size,) = _LENGTH.unpack(head)
        assert size <= 32 << 20
        frame = json.loads(self._read(size), parse_constant=lambda name: pytest_fail(name))
        assert isinstance(frame, dict)
        return frame

    def begin(self, code: str, **options: Any) -> None:
        """Send a run."""
        self.number += 1
        frame = {"op": "run", "id": self.number, "code": code, "name": "<python>", "inputs": None, "limits": {}}
        self.send({**frame, **options})

    def end(self) -> dict[str, Any]:
        """Return the reply to a run."""
        reply = self.receive()
        assert reply is not None, f"the line has ended: {self.text()[-2000:]}"
        assert reply["id"] == self.number and reply["done"] is True
        return reply

    def run(self, code: str, **options: Any) -> dict[str, Any]:
        """Run a piece of code; return the reply."""
        self.begin(code, **options)
        return self.end()

    def interrupt(self) -> None:
        signal.pidfd_send_signal(self.pidfd, signal.SIGINT)

    def sync(self) -> None:
        """Wait until no earlier signal can interrupt anything."""
        self.number += 1
        self.send({"op": "sync", "id": self.number})
        assert self.receive() == {"id": self.number, "synced": True}

    def status(self) -> int:
        """Wait for the end; return the exit status, negative for a signal."""
        ended, _ = message(self.told)
        assert ended is not None and "ended" in ended, ended
        return os.waitstatus_to_exitcode(ended["ended"])

    def text(self) -> str:
        """Return all output so far."""
        return os.pread(self.output, 1 << 24, 0).decode("utf-8", "surrogateescape")

    def fork(self) -> Branch:
        """Make a fork of a kernel, with output of its own."""
        told, their_told = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        line, their_line = socket.socketpair()
        output = _output()
        null = os.open(os.devnull, os.O_RDONLY)
        self.number += 1
        with their_told, their_line:
            fds = [their_told.fileno(), their_line.fileno(), null, output, output]
            self.send({"op": "fork", "id": self.number}, fds)
        os.close(null)
        fork = Branch(told, line, output)
        self.forks.append(fork)
        reply = self.receive()
        assert reply is not None and reply["id"] == self.number, reply
        fork.start()
        assert reply["forked"] == fork.pid
        return fork

    def close(self) -> None:
        """End it."""
        for fork in self.forks:
            fork.close()
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        with self.told, self.line, contextlib.suppress(ConnectionResetError):
            while message(self.told)[0] is not None:  # until it is reaped
                pass
        os.close(self.pidfd)
        os.close(self.output)


def _output() -> int:
    """Return a file for output. It appends: writers of a memfd with one offset overwrite each other (FMODE_ATOMIC_POS)."""
    output = os.memfd_create("nsbox-output")
    fcntl.fcntl(output, fcntl.F_SETFL, os.O_APPEND)
    return output


def pytest_fail(name: str) -> None:
    raise AssertionError(f"{name} isn't JSON")
