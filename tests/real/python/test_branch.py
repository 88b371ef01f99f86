"""A branch as the caller knows it, against an interpreter that the test plays: what it says, and what it says wrongly."""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from nsbox._interpreter import descent
from nsbox._interpreter.branch import BranchCommand, Failed, Lost, received
from nsbox._interpreter.descent import GoneError, pid_of, pids_of
from nsbox._interpreter.wire import WireError

STARTS = "sleep 1000 & echo $!; sleep 1000 & echo $!; wait $!"


class Fake:
    """An interpreter that reports a real process as the branch."""

    def __init__(self) -> None:
        self.command = BranchCommand()
        fds = [os.dup(end.fileno()) for end in self.command.ends.theirs]
        self.told, self.line = (socket.socket(fileno=fd) for fd in fds)
        self.command.ends.give()
        self.interpreter = subprocess.Popen(["sh", "-c", STARTS], stdout=subprocess.PIPE, text=True)
        assert self.interpreter.stdout is not None
        self.pids = [int(self.interpreter.stdout.readline()) for _ in range(2)]
        self.pidfd, self.init, self.lifeline = map(os.pidfd_open, (*self.pids, self.interpreter.pid))
        self.says = os.open("/dev/null", os.O_RDONLY)

    def say(self, message: Any, fds: list[int] | None = None) -> None:
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.told.sendmsg([data], rights)

    def start(self) -> None:
        self.say({"started": 7}, [self.pidfd, self.init, self.says])
        self.command.start(self.lifeline)

    def close(self) -> None:
        self.command.close()
        for end in (self.told, self.line):
            end.close()
        for fd in (self.pidfd, self.init):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        for fd in (self.pidfd, self.init, self.lifeline, self.says):
            os.close(fd)
        with self.interpreter:
            self.interpreter.kill()


@pytest.fixture
def fake() -> Iterator[Fake]:
    before = len(os.listdir("/proc/self/fd"))
    made = Fake()
    try:
        yield made
    finally:
        made.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_branch_from_start_to_end(fake: Fake) -> None:
    """Its pid is the caller's number for it; its end is what the interpreter says."""
    fake.start()
    assert (fake.command.pid, fake.command.init_pid) == tuple(fake.pids)
    assert not fake.command.ends_within(0)
    assert not fake.command.try_wait(os.WNOHANG)
    fake.say({"ended": 3 << 8, "user_us": 10, "system_us": 20, "max_rss": 4096})
    assert fake.command.try_wait(0)
    assert (fake.command.status, fake.command.is_lost) == (3 << 8, False)
    used = fake.command.used
    assert used is not None and (used.user_us, used.system_us, used.max_rss) == (10, 20, 4096)
    assert fake.command.last_status(False) == 3


def test_it_gets_its_streams_and_its_code_in_one_piece(fake: Fake) -> None:
    """The descriptors are attached to the first byte; what the socket doesn't take is left to be sent."""
    fake.start()
    code = b"x" * 5_000_000
    rest = fake.command.run(code, fake.command.go({"op": "go"}, [0, 1, 2]))
    fds = array.array("i")
    data, ancillary, _, _ = fake.line.recvmsg(1 << 20, socket.CMSG_LEN(12))
    fds.frombytes(ancillary[0][2])
    for fd in fds:
        os.close(fd)
    assert len(fds) == 3
    assert int.from_bytes(data[:4], "little") == len(b'{"op":"go"}')
    assert 0 < len(rest) < len(code)


@pytest.mark.parametrize(
    "message",
    [
        {"started": 0},
        {"started": True},
        {"started": "7"},
        {"ended": 0},
        b"nonsense",
        b"[]",
        {"failed": "EPERM", "step": 1, "op": 1},
        {"failed": 1},
    ],
)
def test_a_start_that_makes_no_sense(fake: Fake, message: Any) -> None:
    """It isn't a start: the caller looks for another branch, and keeps no descriptor of this one."""
    fake.say(message, [fake.pidfd, fake.init, fake.says])
    with pytest.raises(Lost):
        fake.command.start(fake.lifeline)


def test_a_start_without_descriptors(fake: Fake) -> None:
    """A start has three."""
    fake.say({"started": 7}, [fake.pidfd])
    with pytest.raises(Lost, match="descriptors"):
        fake.command.start(fake.lifeline)


def test_a_branch_that_cant_be_made(fake: Fake) -> None:
    """The errno, the step and the op are what a spawn reports."""
    fake.say({"failed": 1, "step": 12, "op": -1})
    with pytest.raises(Failed) as caught:
        fake.command.start(fake.lifeline)
    assert (caught.value.number, caught.value.step, caught.value.op) == (1, 12, -1)


def test_an_interpreter_that_ends_before(fake: Fake) -> None:
    """Its end is noticed, even if another process holds the socket."""
    fake.interpreter.kill()
    with pytest.raises(Lost, match="ended"):
        fake.command.start(fake.lifeline)


def test_an_interpreter_that_closes_the_socket(fake: Fake) -> None:
    """So does an end without a word."""
    fake.told.close()
    with pytest.raises(Lost, match="ended"):
        fake.command.start(fake.lifeline)


def test_a_parked_branch_that_ends_before_its_code(fake: Fake) -> None:
    """The line is gone: another branch can run it."""
    fake.start()
    fake.line.close()
    with pytest.raises(Lost):
        fake.command.go({"op": "go"}, [0, 1, 2])


@pytest.mark.parametrize("message", [b"", b"{", {"ended": -1}, {"ended": 1 << 16}, {"ended": 0}, {"started": 7}])
def test_an_end_that_makes_no_sense(fake: Fake, message: Any) -> None:
    """How it ended isn't known then, and is said to be unknown: 255 stands for it."""
    fake.start()
    if message:
        fake.say(message)
    else:
        fake.told.close()
    assert fake.command.try_wait(0)
    assert (fake.command.status, fake.command.is_lost) == (255 << 8, True)
    assert fake.command.last_status(False) == 255


def test_signals_reach_the_process_and_no_other(fake: Fake) -> None:
    """A signal goes by the pidfd; after the end it goes nowhere."""
    fake.start()
    fake.command.signal(signal.SIGTERM)
    assert select.select([fake.pidfd], [], [], 10)[0]
    fake.command.signal(signal.SIGTERM)


@pytest.mark.parametrize("whose", ["this one", "another child", "init"])
def test_another_process_as_the_branch(fake: Fake, whose: str) -> None:
    """What it reports must descend from it. No signal goes anywhere else, nor is a process moved to a cgroup."""
    with subprocess.Popen(["sleep", "1000"]) as other:
        pidfd = os.pidfd_open({"this one": os.getpid(), "another child": other.pid, "init": 1}[whose])
        for fds in ([pidfd, fake.init], [fake.pidfd, pidfd], [pidfd]):
            fake.say({"started": 7}, [*fds, fake.says])
            with pytest.raises(Lost):
                fake.command.start(fake.lifeline)
            fake.command.signal(signal.SIGKILL)
        os.close(pidfd)
        time.sleep(0.05)
        assert other.poll() is None
        other.kill()


def test_pid_of_a_process_that_has_gone(fake: Fake) -> None:
    """Its number is another one's by then, or nobody's; so it is for what it must descend from."""
    assert pid_of(fake.pidfd, fake.lifeline) == fake.pids[0]
    fake.interpreter.kill()
    fake.interpreter.wait()
    with pytest.raises(GoneError, match="ended"):
        pid_of(fake.pidfd, fake.lifeline)
    with pytest.raises(GoneError, match="ended"):
        pid_of(fake.lifeline, fake.pidfd)


@pytest.mark.parametrize("has_info", [True, False])
def test_pids_of_descendants(fake: Fake, has_info: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children, grandchildren and no others, whether the kernel answers for pidfds (Linux 6.13) or procfs is read."""
    if not has_info:
        monkeypatch.setattr(descent, "_GET_INFO", 0xC040FFFF)
    me = os.pidfd_open(os.getpid())
    try:
        assert pids_of([fake.pidfd, fake.init], fake.lifeline) == fake.pids
        assert pids_of([fake.pidfd, fake.lifeline], me) == [fake.pids[0], fake.interpreter.pid]
        for wrong in ([me], [fake.pidfd, me], [fake.lifeline]):
            with pytest.raises(GoneError, match="none of"):
                pids_of(wrong, fake.lifeline)
        signal.pidfd_send_signal(fake.init, signal.SIGKILL)
        fake.interpreter.wait()  # its shell waits for that one alone
        with pytest.raises(GoneError, match="ended"):
            pids_of([fake.init, fake.pidfd], me)
    finally:
        os.close(me)


@pytest.mark.parametrize("path", ["/dev/null", "/proc/{pid}", "/proc/{pid}/ns/pid", "/proc/{pid}/stat"])
def test_what_is_no_pidfd(fake: Fake, path: str) -> None:
    """Only a pidfd is asked for a pid: another file's answer could be any."""
    fd = os.open(path.format(pid=fake.pids[0]), os.O_RDONLY)
    try:
        with pytest.raises(GoneError):
            pids_of([fd], fake.lifeline)
    finally:
        os.close(fd)


def test_a_branch_that_cant_become_what_it_should(fake: Fake) -> None:
    """It says so and ends, before its code is sent: what it has said is read. Without a word, another one can run it."""
    fake.start()
    assert fake.command.go({"op": "go"}, [0, 1, 2]) == b""
    said = json.dumps({"failed": {"what": "cwd", "errno": 2}}).encode()
    fake.line.recv(1 << 16)
    fake.line.send(len(said).to_bytes(4, "little") + said)
    fake.line.close()
    assert fake.command.run(b"code") == b""
    assert fake.command.line.recv(1 << 16).endswith(said)
    with pytest.raises(Lost):
        fake.command.run(b"code")


def test_threads_wait_for_one_end(fake: Fake) -> None:
    """Several threads may wait; all see the same."""
    fake.start()
    threads = [threading.Thread(target=fake.command.try_wait, args=(0,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    fake.say({"ended": 9, "user_us": 1, "system_us": 1, "max_rss": 1})
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    assert fake.command.status == 9


def test_descriptors_are_owned_as_they_come() -> None:
    """A message and its descriptors are read together; those of a message without sense are closed with their owners."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1]))]
        theirs.sendmsg([b'{"a":1}'], rights)
        theirs.sendmsg([b"nonsense"], rights)
        owners: list[Any] = []
        assert received(ours, 3, owners) == {"a": 1}
        assert len(owners) == 2
        with pytest.raises(WireError):
            received(ours, 3, owners)
        assert len(owners) == 4
        theirs.close()
        assert received(ours, 3, owners) is None
