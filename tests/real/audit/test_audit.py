"""Audit records of real commands: each that ran or was refused is there, whatever it does, or none starts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import logging.handlers
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import nsbox
from nsbox import Policy


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """No other test has records."""
    yield
    nsbox.audit.close()


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    """A policy whose commands can't reach the log beside their workspace."""
    (tmp_path / "work").mkdir()
    return Policy.workspace(tmp_path / "work")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


VALIDATOR = jsonschema.Draft202012Validator(nsbox.audit.schema())


def records(log: Path) -> list[dict[str, Any]]:
    """Return the records of a file, each of which is as the schema says."""
    found = [json.loads(text) for text in log.read_bytes().split(b"\n")[:-1]]
    for record in found:
        VALIDATOR.validate(record)
    return found


def events(log: Path, kind: str = "") -> list[str]:
    return [record["event"] for record in records(log) if not kind or record.get("kind") == kind]


def test_a_command(policy: Policy, log: Path) -> None:
    """A command has a record before it starts and one at its end, which belong together; the file is the caller's."""
    nsbox.audit.to_file(log, required=True)
    done = nsbox.run(["sh", "-c", "exit 3"], policy=policy)
    start, end = records(log)
    assert (start["event"], end["event"]) == ("start", "end")
    assert start["id"] == end["id"] and end["seq"] == start["seq"] + 1
    assert start["argv"] == ["sh", "-c", "exit 3"] and start["policy"]["workdir"] == policy.workdir
    assert start["caller"]["pid"] == os.getpid() and start["caller"]["uid"] == os.getuid()
    assert start["enforced"] and start["not_enforced"]
    assert end["status"] == done.returncode == 3 and end["cause"] == "exit" and end["usage"]["max_rss"] > 0
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_command_sees_its_record(policy: Policy, log: Path) -> None:
    """The record of the start is written before the command runs."""
    nsbox.audit.to_file(log)
    with nsbox.Popen(["cat"], policy=policy, stdin=nsbox.PIPE):
        assert events(log) == ["start"]


def test_refusals(policy: Policy, log: Path, tmp_path: Path) -> None:
    """What can't be started has a record that says why."""
    nsbox.audit.to_file(log)
    with pytest.raises(FileNotFoundError):
        nsbox.run(["/no/such/program"], policy=policy)
    (tmp_path / "other").mkdir()
    with pytest.raises(nsbox.AccessError):
        nsbox.run(["true"], policy=policy, cwd=tmp_path / "other")
    refused = [record for record in records(log) if record["event"] == "refused"]
    assert [record["error"]["type"] for record in refused] == ["FileNotFoundError", "nsbox.AccessError"]


@pytest.mark.parametrize("word", ["\ud800", "a\0b", b"\xff\0", "x" * 200_000, ""])
def test_what_can_not_be_executed(word: str | bytes, policy: Policy, log: Path) -> None:
    """A command that no system could start has its record, as a program and as an argument."""
    nsbox.audit.to_file(log)
    for argv in ([word], ["true", word]):
        with contextlib.suppress(OSError, ValueError):
            nsbox.run(argv, policy=policy)
    kinds = events(log)
    assert kinds[-1] == ("end" if word == "" else "refused") and set(kinds) <= {"start", "refused", "end"}
    assert len([kind for kind in kinds if kind != "start"]) == 2


def test_nothing_forges_a_record(policy: Policy, log: Path) -> None:
    """Line ends, escapes and bytes that aren't UTF-8 in argv, cwd and output make no other record."""
    nsbox.audit.to_file(log)
    forged = '\n{"schema":"nsbox.audit/1","event":"end"}\n\u2028\x85\x1b[2K'
    assert policy.workdir is not None
    place = os.path.join(policy.workdir, "a\nb")
    os.mkdir(place)
    nsbox.run(["printf", "%s", forged, b"\xff\n\xfe"], policy=policy, cwd=place, stdout=nsbox.DEVNULL)
    start, end = records(log)
    assert (start["event"], end["event"]) == ("start", "end")
    assert start["escaped"] == ["argv", "cwd"]
    assert log.read_bytes().count(b"\n") == 2 and log.read_text().isascii() and "\x1b" not in log.read_text()


def test_secrets(policy: Policy, log: Path) -> None:
    """Secrets of a call, and those that were named, aren't in any record."""
    nsbox.audit.to_file(log)
    nsbox.audit.redact(["open-sesame-2"])
    with nsbox.Sandbox(policy) as box:
        box.shell("echo open-sesame-1 open-sesame-2; false", secrets={"KEY": "open-sesame-1"})
    assert "sesame" not in log.read_text()
    assert events(log) == ["start", "end"] or events(log) == ["start", "end", "explained"]


def test_hints(policy: Policy, log: Path) -> None:
    """What a tool call says of a denied path is a record of its own, with the command's id."""
    nsbox.audit.to_file(log)
    with nsbox.Sandbox(policy) as box:
        box.shell("cat /root/x")
    start, _, explained = records(log)
    assert explained["event"] == "explained" and explained["id"] == start["id"]
    assert explained["hints"][0]["kind"] == "outside"


def test_ways(policy: Policy, log: Path) -> None:
    """Sessions, transactions, branches and kernels have records; the code of these is in them, and what was committed."""
    nsbox.audit.to_file(log)
    with nsbox.Sandbox(policy) as box:
        with box.session() as session:
            session.run("true")
        with box.transaction() as transaction:
            transaction.shell("echo hi > new")
            transaction.commit()
        python = box.python()
        python.run("1 + 1")
        with python.kernel() as kernel:
            kernel.run("x = 2")
    assert events(log, "session") == events(log, "transaction") == ["start", "end"]
    assert events(log, "python") == events(log, "kernel") == ["start", "end"]
    by_event = {record["event"]: record for record in records(log)}
    assert by_event["commit"]["changes"] == [{"kind": "added", "path": "new"}]
    assert by_event["code"]["code"] == "x = 2"
    assert "1 + 1" in [record.get("code") for record in records(log)]


def test_passthrough(policy: Policy, log: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A command that nothing contains has records all the same; as it could change them, required= refuses it."""
    free = policy.with_(backend="passthrough", require="nothing")
    nsbox.audit.to_file(log)
    nsbox.run(["true"], policy=free)
    assert [record.get("backend") for record in records(log)] == ["passthrough"] * 2
    nsbox.audit.close()
    nsbox.audit.to_file(log, required=True)
    with pytest.raises(nsbox.PolicyError, match="could change records"):
        nsbox.run(["true"], policy=free)


def test_out_of_reach(policy: Policy) -> None:
    """A policy whose commands could write to the file is refused, and so the command isn't started."""
    assert policy.workdir is not None
    nsbox.audit.to_file(Path(policy.workdir, "audit.jsonl"))
    with pytest.raises(nsbox.PolicyError, match=r"audit\.jsonl is where commands of this policy can write"):
        nsbox.run(["touch", "ran"], policy=policy)
    assert not Path(policy.workdir, "ran").exists()


@pytest.mark.parametrize("kind", ["fifo", "link", "hard link", "loose"])
def test_odd_files(kind: str, tmp_path: Path, log: Path) -> None:
    """A file that is another's, or that others can write to, isn't written to."""
    other = tmp_path / "other"
    other.touch(0o600)
    if kind == "fifo":
        os.mkfifo(log)
    elif kind == "link":
        log.symlink_to(other)
    elif kind == "hard link":
        os.link(other, log)
    else:
        log.touch()
        log.chmod(0o666)
    with pytest.raises(OSError):
        nsbox.audit.to_file(log)
    assert other.read_bytes() == b""


class Full(logging.Handler):
    """A handler that can be full."""

    is_full = True

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self.is_full:
                raise OSError(28, "No space left on device")
        except OSError:
            self.handleError(record)


def test_required_fails_closed(policy: Policy) -> None:
    """Without its record, no command starts; one whose end has none is over, and wait() says so once."""
    handler = Full()
    nsbox.audit.to_handler(handler, required=True)
    assert policy.workdir is not None
    with pytest.raises(nsbox.audit.AuditError, match="No space left"):
        nsbox.run(["touch", "ran"], policy=policy)
    assert not Path(policy.workdir, "ran").exists()
    handler.is_full = False
    process = nsbox.Popen(["sh", "-c", "exit 4"], policy=policy)
    handler.is_full = True
    with pytest.raises(nsbox.audit.AuditError):
        process.wait()
    assert process.wait() == process.returncode == 4


def test_required_can_not_be_configured_away(policy: Policy) -> None:
    """Neither a disabled logger nor a removed handler lets a command run without its record."""
    handler = logging.handlers.MemoryHandler(1000)
    nsbox.audit.to_handler(handler, required=True)
    logger = logging.getLogger("nsbox.audit")
    logger.disabled = True
    nsbox.run(["true"], policy=policy)
    assert len(handler.buffer) == 2
    logger.removeHandler(handler)
    with pytest.raises(nsbox.audit.AuditError, match="removed"):
        nsbox.run(["true"], policy=policy)


def test_losses_are_reported_once(policy: Policy, caplog: pytest.LogCaptureFixture) -> None:
    """If records aren't required, the first loss is an error in the log, and all are counted."""
    nsbox.audit.to_handler(Full())
    nsbox.run(["true"], policy=policy)
    assert nsbox.audit.lost() == 2
    assert [record.levelname for record in caplog.records if "audit" in record.message] == ["ERROR"]


def test_rotation(policy: Policy, log: Path) -> None:
    """A file is renamed before it gets too large, and as many are kept as wanted."""
    nsbox.audit.to_file(log, max_bytes="64K", backups=2)
    for _ in range(4):
        nsbox.run(["true", *["x" * 3000] * 30], policy=policy)
        for _ in range(15):
            nsbox.run(["true"], policy=policy)
    files = [log, *(Path(f"{log}.{number}") for number in (1, 2))]
    assert all(file.stat().st_size <= 65536 for file in files if file.exists())
    assert files[1].exists() and not Path(f"{log}.3").exists()
    numbers = [record["seq"] for file in reversed(files) if file.exists() for record in records(file)]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_several_processes(policy: Policy, log: Path, tmp_path: Path) -> None:
    """Processes, their threads and forked copies share a file: no line is torn, and none is missing, while it rotates."""
    code = f"""
import os, threading, nsbox
nsbox.audit.to_file({str(log)!r}, max_bytes="64K", backups=100, required=True)
policy = nsbox.Policy.workspace({policy.workdir!r})
def work():
    for _ in range(5): nsbox.run(["true", "x" * 2000], policy=policy)
pid = os.fork()
threads = [threading.Thread(target=work) for _ in range(2)]
for t in threads: t.start()
for t in threads: t.join()
if pid: os.waitpid(pid, 0)
"""
    command = [sys.executable, "-P", "-W", "ignore", "-c", code]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait() for process in processes] == [0] * 3
    found = [record for file in tmp_path.glob("audit.jsonl*") for record in records(file)]
    assert len(found) == 3 * 2 * 2 * 5 * 2
    by_process: dict[str, list[int]] = {}
    for record in found:
        by_process.setdefault(record["process"], []).append(record["seq"])
    assert len(by_process) == 6
    assert all(sorted(numbers) == list(range(1, 21)) for numbers in by_process.values())


def test_a_torn_line(policy: Policy, log: Path) -> None:
    """What another writer has left of a line doesn't spoil the next record."""
    nsbox.audit.to_file(log)
    log.write_bytes(b'{"schema":"nsbox.aud')
    nsbox.run(["true"], policy=policy)
    torn, *rest = log.read_bytes().split(b"\n")
    assert torn == b'{"schema":"nsbox.aud' and [json.loads(text)["event"] for text in rest[:-1]] == ["start", "end"]


def test_a_caller_that_ends_first(policy: Policy, log: Path) -> None:
    """A command that its program hasn't waited for is on record as left."""
    code = (
        f"import nsbox; nsbox.audit.to_file({str(log)!r})\n"
        f"p = nsbox.Popen(['sleep', '100'], policy=nsbox.Policy.workspace({policy.workdir!r}))"
    )
    subprocess.run([sys.executable, "-P", "-W", "ignore", "-c", code], check=True)
    start, left = records(log)
    assert left["event"] == "left" and left["id"] == start["id"] and left["pid"] > 0


def test_standard_handlers(policy: Policy, tmp_path: Path) -> None:
    """A handler of the standard library gets the same lines."""
    log = tmp_path / "timed.jsonl"
    nsbox.audit.to_handler(logging.handlers.TimedRotatingFileHandler(log, when="midnight"))
    nsbox.run(["true"], policy=policy)
    assert events(log) == ["start", "end"]


def test_plain_commands_have_no_record(log: Path) -> None:
    """What the program starts outside of any sandbox is its own business."""
    nsbox.audit.to_file(log)
    subprocess.run(["true"], check=True)
    assert records(log) == []


def test_command_line(policy: Policy, log: Path) -> None:
    """nsbox run --audit has a record, or nothing is run."""
    assert policy.workdir is not None
    base = [sys.executable, "-P", "-m", "nsbox", "run", "--audit"]
    done = subprocess.run([*base, log, "--", "sh", "-c", "exit 5"], cwd=policy.workdir)
    assert done.returncode == 5 and events(log) == ["start", "end"]
    inside = subprocess.run([*base, "own.jsonl", "--", "touch", "ran"], cwd=policy.workdir, capture_output=True)
    assert inside.returncode != 0 and b"could change records" in inside.stderr
    assert not Path(policy.workdir, "ran").exists()


def test_command_line_without_room(policy: Policy, log: Path) -> None:
    """If there is room for the start alone, the command runs, and what is printed tells how it ended."""
    assert policy.workdir is not None
    size, most = len(recorded(policy, log)[0]), 1 << 20
    log.write_bytes(b"x" * (most - size - 200) + b"\n")
    code = f"import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, {most})); "
    code += "from nsbox._cli import main; sys.exit(main())"
    command = [sys.executable, "-P", "-c", code, "run", "--audit", log, "--", "sh", "-c", "echo out; exit 5"]
    done = subprocess.run(command, cwd=policy.workdir, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (125, "out\n")
    assert "with status 5" in done.stderr


def recorded(policy: Policy, log: Path) -> list[bytes]:
    """Return the lines of nsbox run's records."""
    command = [sys.executable, "-P", "-m", "nsbox", "run", "--audit", log, "--", "sh", "-c", "echo out; exit 5"]
    subprocess.run(command, cwd=policy.workdir, stdout=subprocess.DEVNULL)
    return log.read_bytes().splitlines(keepends=True)


def test_command_line_of_code(policy: Policy, log: Path) -> None:
    """nsbox python --audit has a record of the code, or runs none."""
    command = [sys.executable, "-P", "-m", "nsbox", "python", "--audit", log, "-c", "raise SystemExit(5)"]
    assert subprocess.run(command, cwd=policy.workdir).returncode == 5
    start, end = (record for record in records(log) if record.get("kind") == "python")
    assert (start["event"], start["code"], end["event"], end["status"]) == ("start", "raise SystemExit(5)", "end", 5)
    command[6] = Path("/dev/full")
    done = subprocess.run(command, cwd=policy.workdir, capture_output=True, text=True)
    assert done.returncode not in (0, 5) and "/dev/full" in done.stderr


def test_arguments(log: Path) -> None:
    """Arguments that make no sense are refused."""
    for options in ({"max_bytes": 1000, "backups": 1}, {"max_bytes": "1M"}, {"backups": 1}, {"backups": -1}):
        with pytest.raises(ValueError):
            nsbox.audit.to_file(log, **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        nsbox.audit.to_handler("x")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        nsbox.audit.to_file(log, required=1)  # type: ignore[arg-type]


# ---- file tools


def test_file_tools(policy: Policy, log: Path) -> None:
    """Each call of a file tool has a record, with its paths and how it ended, and nothing of what is in the files."""
    nsbox.audit.to_file(log, required=True)
    work = policy.write[0]
    with nsbox.Sandbox(policy) as box:
        box.write("a.txt", "the contents")
        assert nsbox.call_tool(box, "edit", {"path": "a.txt", "old": "the", "new": "new"})["path"] == "a.txt"
        box.move("a.txt", f"{work}/b.txt")
        box.attach(path for path in ["b.txt"])
        assert "error" in nsbox.call_tool(box, "read_lines", {"path": "/etc/shadow"})
        with pytest.raises(FileNotFoundError):
            box.read("missing\n.txt")
        with box.session() as session:
            session.read("b.txt")
    told = [record for record in records(log) if record["event"] == "files"]
    assert [(one["tool"], one["paths"]) for one in told] == [
        ("write", ["a.txt"]),
        ("edit", ["a.txt"]),
        ("move", ["a.txt", f"{work}/b.txt"]),
        ("attach", ["b.txt"]),
        ("read_lines", ["/etc/shadow"]),
        ("read", ["missing\\n.txt"]),
        ("read", ["b.txt"]),
    ]
    errors = [one["error"] and one["error"]["type"] for one in told]
    assert errors == [None, None, None, None, "nsbox.AccessError", "FileNotFoundError", None]
    assert {one["workspace"] for one in told} == {work}
    assert [one["kind"] for one in told] == ["sandbox"] * 6 + ["session"]
    with nsbox.Sandbox(policy) as box:
        box.exec("true")
    assert {one["digest"] for one in told} == {records(log)[-2]["policy"]["digest"]}
    assert "contents" not in log.read_text()


def test_file_tools_of_a_task(policy: Policy, log: Path) -> None:
    """A task's are recorded as well, and so are those of a transaction."""
    nsbox.audit.to_file(log)
    with nsbox.Sandbox(policy) as box, box.task() as task:
        task.write("a.txt", "")
    with nsbox.Sandbox(policy) as box, box.transaction() as transaction:
        transaction.write("b.txt", "")
    with pytest.raises(ValueError):
        transaction.read("b.txt")
    told = [record for record in records(log) if record["event"] == "files"]
    assert [record["paths"] for record in told] == [["a.txt"], ["b.txt"], ["b.txt"]]
    assert [record["kind"] for record in told] == ["task", "transaction", "transaction"]
    assert [record["workspace"] for record in told] == [policy.write[0]] * 3
    assert [record["digest"] is None for record in told] == [False, False, True]


# ---- whose records


def test_labels(policy: Policy, log: Path) -> None:
    """Records of what a block starts have its label, also the end after the block; the inner one counts."""
    nsbox.audit.to_file(log)
    with nsbox.Sandbox(policy) as box, box.session() as session:
        with nsbox.audit.label("conversation 7"):
            box.write("a", "")
            session.shell("exit 3")
            job = session.background("cat", open_stdin=True)
            with nsbox.audit.label("inner"):
                session.exec("no-such-program")
            with box.transaction() as transaction:
                transaction.write("b", "")
                transaction.commit()
        job.send_eof()
        job.wait()
        box.exec("true")
    told = [(one["event"], one.get("label")) for one in records(log)]
    seven = "conversation 7"
    assert told == [
        ("files", seven),
        *[("start", seven), ("end", seven), ("start", seven)],
        *[("start", "inner"), ("refused", "inner")],
        *[("files", seven), ("commit", seven)],
        ("end", seven),
        *[("start", None), ("end", None)],
    ]


def test_labels_of_tasks_and_pools(policy: Policy, log: Path) -> None:
    """Labels of asyncio's tasks, of to_thread() and of pool.map() don't mix; a new thread has none."""
    nsbox.audit.to_file(log)

    async def turn(box: nsbox.AsyncSandbox, name: str) -> None:
        with nsbox.audit.label(name):
            await asyncio.gather(box.shell(f"echo {name}"), asyncio.to_thread(nsbox.run, ["true", name], policy=policy))
            await box.write(name, "")

    async def main() -> None:
        async with nsbox.AsyncSandbox(policy) as box:
            await asyncio.gather(turn(box, "a"), turn(box, "b"))

    asyncio.run(main())
    with nsbox.audit.label("c"):
        thread = threading.Thread(target=lambda: nsbox.run(["true", "none"], policy=policy))
        thread.start()
        thread.join()
    found = [(one["label"], one["argv"][-1][-1]) for one in records(log) if one["event"] == "start" and "label" in one]
    assert sorted(found) == [("a", "a"), ("a", "a"), ("b", "b"), ("b", "b")]
    ends = [one.get("label") for one in records(log) if one["event"] == "end"]
    assert sorted(ends, key=str) == [None, "a", "a", "b", "b"]
    assert sorted((one["label"], one["paths"]) for one in records(log) if one["event"] == "files") == [
        ("a", ["a"]),
        ("b", ["b"]),
    ]


def test_wrong_labels(log: Path) -> None:
    """A label is some text, and not too long."""
    for wrong in (7, "", "x" * 201, "\0"):
        with pytest.raises(ValueError), nsbox.audit.label(wrong):  # type: ignore[arg-type]
            pass


def test_a_result_and_its_records(policy: Policy, log: Path) -> None:
    """A ToolResult has the id of its records, also if nothing could be started; without records it has none."""
    with nsbox.Sandbox(policy) as box:
        assert box.shell("true").audit_id is None
        nsbox.audit.to_file(log)
        done, missing = box.shell("exit 3"), box.exec("no-such-program")
    found = records(log)
    assert {one["event"] for one in found if one["id"] == done.audit_id} == {"start", "end"}
    assert [one["event"] for one in found if one["id"] == missing.audit_id] == ["start", "refused"]


def test_file_tools_without_a_record(policy: Policy) -> None:
    """If the record is required and can't be written, the call raises."""
    with nsbox.Sandbox(policy) as box:
        nsbox.audit.to_handler(Full(), required=True)
        with pytest.raises(nsbox.audit.AuditError):
            box.write("a.txt", "")


class Raising(logging.Handler):
    """A handler that doesn't do as the standard library's do, which report what they can't emit."""

    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError("it fails")


def test_a_handler_that_raises(policy: Policy, log: Path) -> None:
    """It breaks no command, unless it is required; the other handlers get their records."""
    nsbox.audit.to_handler(Raising())
    nsbox.audit.to_file(log)
    assert nsbox.run(["true"], policy=policy).returncode == 0
    assert (events(log), nsbox.audit.lost()) == (["start", "end"], 2)
    nsbox.audit.close()
    nsbox.audit.to_handler(Raising(), required=True)
    with pytest.raises(nsbox.audit.AuditError, match="RuntimeError: it fails"):
        nsbox.run(["true"], policy=policy)


def test_a_handler_that_cannot_be_closed(policy: Policy, log: Path) -> None:
    """The other ones are closed all the same."""
    handler = logging.FileHandler("/dev/full")
    nsbox.audit.to_handler(handler)
    nsbox.audit.to_file(log)
    handler.stream.write("x")
    with pytest.raises(OSError, match="No space left"):
        nsbox.audit.close()
    nsbox.run(["true"], policy=policy)
    assert log.read_text() == ""
