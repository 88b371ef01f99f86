"""Sinks that are slow, full or broken: they break no command, lose no verdict, and hide nothing from other sinks."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import logging.handlers
import multiprocessing
import os
import pickle
import queue
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nsbox
import nsbox.asyncio
from nsbox import Policy
from nsbox._audit.trail import trail


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """No other test has records."""
    yield
    with contextlib.suppress(OSError):
        nsbox.audit.close()


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    """A policy whose commands can't reach what lies beside their workspace."""
    (tmp_path / "work").mkdir()
    return Policy.workspace(tmp_path / "work")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def events(log: Path) -> list[str]:
    return [json.loads(text)["event"] for text in log.read_text().splitlines()]


class Fails(logging.Handler):
    """A handler that raises after some records."""

    def __init__(self, after: int = 0) -> None:
        super().__init__()
        self.left = after

    def emit(self, record: logging.LogRecord) -> None:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("it is full")


def test_a_required_sink_hides_nothing_from_others(policy: Policy, log: Path) -> None:
    """If a required handler fails, no command starts, and the other handlers have the records of that."""
    nsbox.audit.to_handler(Fails(), required=True)
    nsbox.audit.to_file(log)
    with pytest.raises(nsbox.audit.AuditError, match="RuntimeError: it is full"):
        nsbox.run(["true"], policy=policy)
    assert events(log) == ["start", "refused"]


def test_the_end_is_in_the_other_sinks(policy: Policy, log: Path) -> None:
    """If a required handler can't have the end, the others have it, and the error says how the command ended."""
    nsbox.audit.to_handler(Fails(1), required=True)
    nsbox.audit.to_file(log)
    with pytest.raises(nsbox.audit.AuditError, match=r"it is full.*with status 3") as raised:
        nsbox.run(["sh", "-c", "exit 3"], policy=policy)
    assert raised.value.returncode == 3
    assert events(log) == ["start", "end"] and nsbox.audit.lost() == 1


@pytest.mark.parametrize("how", ["filter", "level", "logger's filter"])
def test_required_can_not_be_filtered_away(how: str, policy: Policy) -> None:
    """A filter or a level that keeps records from a required handler keeps commands from starting."""
    handler = logging.handlers.MemoryHandler(100)
    nsbox.audit.to_handler(handler, required=True)
    logger = logging.getLogger("nsbox.audit")
    none = logging.Filter("another")
    if how == "filter":
        handler.addFilter(none)
    elif how == "level":
        handler.setLevel(logging.CRITICAL)
    else:
        logger.addFilter(none)
    try:
        assert policy.workdir is not None
        with pytest.raises(nsbox.audit.AuditError, match="a filter or a level keeps records from it"):
            nsbox.run(["touch", "ran"], policy=policy)
        assert not Path(policy.workdir, "ran").exists()
    finally:
        logger.removeFilter(none)


def test_waiting_in_asyncio(policy: Policy) -> None:
    """The wait() of asyncio says, as Popen's does, that the record of the end isn't there; the status is."""

    async def main() -> int | None:
        process = await nsbox.asyncio.create_subprocess_exec("sh", "-c", "exit 3", policy=policy)
        with pytest.raises(nsbox.audit.AuditError, match="with status 3"):
            await process.wait()
        assert await process.wait() == 3
        return process.returncode

    nsbox.audit.to_handler(Fails(1), required=True)
    assert asyncio.run(main()) == 3


def test_a_log_that_raises(policy: Policy, capfd: pytest.CaptureFixture[str]) -> None:
    """A log handler of the program's that raises breaks no command, and its error is shown."""
    logger, handler = logging.getLogger("nsbox"), Fails()
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        assert nsbox.run(["sh", "-c", "exit 3"], policy=policy).returncode == 3
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    assert "RuntimeError: it is full" in capfd.readouterr().err


@pytest.mark.parametrize("is_reused", [False, True])
def test_descriptors_that_others_close(is_reused: bool, policy: Policy, log: Path) -> None:
    """A program that closes all descriptors, as daemons do, loses no record; nor is a stranger's descriptor closed."""
    nsbox.audit.to_file(log)
    nsbox.run(["true"], policy=policy)
    handler = trail._sinks[0].handler
    fd: int = handler._fd  # type: ignore[attr-defined]
    os.close(fd)
    if is_reused:
        null = os.open(os.devnull, os.O_WRONLY)
        assert null == fd or os.dup2(null, fd) == fd
    nsbox.run(["true"], policy=policy)
    assert events(log) == ["start", "end"] * 2 and nsbox.audit.lost() == 0
    if is_reused:
        assert os.fstat(fd).st_rdev == os.stat(os.devnull).st_rdev
        os.close(null)


def test_a_line_that_is_being_written(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line without an end isn't torn as long as another process writes it: a record comes after its end."""
    nsbox.audit.to_file(log)
    log.write_bytes(b'{"event":')
    naps: list[float] = []
    with log.open("ab", buffering=0) as file:

        def nap(seconds: float) -> None:
            naps.append(seconds)
            if len(naps) == 30:
                file.write(b'"other"}\n')
                fcntl.flock(file, fcntl.LOCK_UN)

        fcntl.flock(file, fcntl.LOCK_SH)
        monkeypatch.setattr(time, "sleep", nap)
        trail._sinks[0].handler.handle(logging.makeLogRecord({"msg": "own"}))
    assert events(log) == ["other", "message"] and len(naps) == 30


def test_a_lock_of_a_reader(policy: Policy, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can read the file can lock it: that delays neither records nor, for ever, the rotation."""
    nsbox.audit.to_file(log, max_bytes="64K", backups=1, required=True)
    log.write_bytes(b"x" * 100_000 + b"\n")
    monkeypatch.setattr(time, "sleep", pytest.fail)
    with log.open("rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_EX)
        nsbox.run(["true"], policy=policy)
        assert log.read_bytes().count(b"\n") == 3
        os.truncate(log, 0)
        log.write_bytes(b"x" * 130_000 + b"\n")
        nsbox.run(["true"], policy=policy)
    assert events(log) == ["start", "end"] and Path(f"{log}.1").stat().st_size == 130_001


def test_a_handler_is_given_back(policy: Policy) -> None:
    """After close() a handler is as it was before; it can't be given twice, but again."""
    handler = Fails(100)
    formatter = logging.Formatter("%(message)s")
    handler.setFormatter(formatter)
    for _ in range(2):
        nsbox.audit.to_handler(handler, required=True)
        with pytest.raises(ValueError, match="gets records already"):
            nsbox.audit.to_handler(handler)
        nsbox.run(["true"], policy=policy)
        nsbox.audit.close()
        assert handler.formatter is formatter and not {"emit", "handleError"} & {*vars(handler)}
    assert handler.left == 96


def test_a_command_that_outlives_close(policy: Policy, log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its end is no error, and nothing is printed."""
    nsbox.audit.to_file(log, required=True)
    with nsbox.Popen(["cat"], policy=policy, stdin=nsbox.PIPE) as process:
        nsbox.audit.close()
    assert process.returncode == 0 and events(log) == ["start"]
    assert capfd.readouterr().err == ""


# ---- syslog, queues


def test_syslog(policy: Policy, tmp_path: Path) -> None:
    """Syslog gets each record as one message; while its socket is gone, records are counted as lost."""
    path = tmp_path / "socket"

    def listening() -> socket.socket:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        server.bind(str(path))
        server.settimeout(60)
        return server

    def told(server: socket.socket) -> list[str]:
        texts = [server.recv(1 << 16).rstrip(b"\0").removeprefix(b"<14>") for _ in range(2)]
        return [json.loads(text)["event"] for text in texts]

    server = listening()
    before = len(os.listdir("/proc/self/fd"))
    nsbox.audit.to_handler(logging.handlers.SysLogHandler(str(path)))
    nsbox.run(["echo", "\n<14>{}"], policy=policy, stdout=nsbox.DEVNULL)
    assert told(server) == ["start", "end"]
    server.close()
    path.unlink()
    assert nsbox.run(["true"], policy=policy).returncode == 0
    assert nsbox.audit.lost() == 2
    server = listening()
    nsbox.run(["true"], policy=policy)
    assert told(server) == ["start", "end"] and nsbox.audit.lost() == 2
    nsbox.audit.close()
    assert len(os.listdir("/proc/self/fd")) == before
    server.close()


def test_required_syslog_that_is_gone(policy: Policy, tmp_path: Path) -> None:
    """Without its socket no command starts."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(path))
        nsbox.audit.to_handler(logging.handlers.SysLogHandler(str(path)), required=True)
    path.unlink()
    assert policy.workdir is not None
    with pytest.raises(nsbox.audit.AuditError, match="SysLogHandler"):
        nsbox.run(["touch", "ran"], policy=policy)
    assert not Path(policy.workdir, "ran").exists()


def test_a_queue(policy: Policy) -> None:
    """Behind a queue, a handler that waits delays no command; a listener's plain handler gets the same lines."""
    waiting: queue.Queue[logging.LogRecord] = queue.Queue()
    nsbox.audit.to_handler(logging.handlers.QueueHandler(waiting))
    nsbox.run(["true"], policy=policy)  # nobody reads yet
    lines = [logging.Formatter().format(waiting.get_nowait()) for _ in range(2)]
    assert [json.loads(text)["event"] for text in lines] == ["start", "end"]


def test_handlers_that_pickle(policy: Policy) -> None:
    """A handler that sends records to another process can pickle them."""
    sent: list[dict[str, Any]] = []

    class Sender(logging.handlers.SocketHandler):
        def emit(self, record: logging.LogRecord) -> None:
            sent.append(pickle.loads(self.makePickle(record)[4:]))

    nsbox.audit.to_handler(Sender("localhost", 1), required=True)
    queued: multiprocessing.SimpleQueue[logging.LogRecord] = multiprocessing.SimpleQueue()
    handler = logging.handlers.QueueHandler(queue.Queue())
    handler.enqueue = queued.put  # type: ignore[method-assign]
    nsbox.audit.to_handler(handler, required=True)
    nsbox.run(["true"], policy=policy)
    assert [one["audit"]["event"] for one in sent] == ["start", "end"]
    assert [json.loads(queued.get().getMessage())["event"] for _ in range(2)] == ["start", "end"]


def test_a_full_queue(policy: Policy) -> None:
    """A queue without room breaks no command, unless it is required."""
    nsbox.audit.to_handler(logging.handlers.QueueHandler(queue.Queue(1)))
    assert nsbox.run(["true"], policy=policy).returncode == 0
    assert nsbox.audit.lost() == 1


# ---- gevent


def test_gevent(tmp_path: Path) -> None:
    """Greenlets have each record once, a handler may wait as greenlets do, and the others go on meanwhile."""
    pytest.importorskip("gevent")
    code = """
import gevent.monkey; gevent.monkey.patch_all()
import gevent, json, logging, nsbox, sys
class Slow(logging.Handler):
    told = 0
    def emit(self, record):
        gevent.sleep(0.01)
        self.told += 1
slow, ticks = Slow(), []
nsbox.audit.to_handler(slow)
nsbox.audit.to_file(sys.argv[1], required=True)
def tick():
    while True:
        gevent.sleep(0.001)
        ticks.append(slow.told)
ticking = gevent.spawn(tick)
policy = nsbox.Policy.workspace(sys.argv[2])
jobs = [gevent.spawn(lambda i=i: nsbox.run(["sh", "-c", f"exit {i}"], policy=policy).returncode) for i in range(6)]
gevent.joinall(jobs)
print([job.value for job in jobs], slow.told, nsbox.audit.lost(), len({*ticks}) > 6)
"""
    (tmp_path / "work").mkdir()
    log = tmp_path / "audit.jsonl"
    command = [sys.executable, "-P", "-W", "ignore", "-c", code, log, tmp_path / "work"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[0, 1, 2, 3, 4, 5] 12 0 True\n", "")
    records = [json.loads(text) for text in log.read_text().splitlines()]
    assert sorted(record["seq"] for record in records) == list(range(1, 13))
    assert sorted(record["status"] for record in records if record["event"] == "end") == list(range(6))
