"""Records of what never started, and of commands whose caller gets SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from nsbox_testing.verdicts import LONG

import nsbox
from nsbox import NsboxError, Policy, Sandbox

NSBOX = [sys.executable, "-P", "-m", "nsbox"]
VALIDATOR = jsonschema.Draft202012Validator(nsbox.audit.schema())
READY = "echo ready; while :; do sleep 1000; done"


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """No other test has records."""
    yield
    nsbox.audit.close()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A file that commands can't reach."""
    (tmp_path / "log").mkdir()
    return tmp_path / "log/audit.jsonl"


def records(log: Path) -> list[dict[str, Any]]:
    """Return the records of a file, each of which is as the schema says."""
    found = [json.loads(text) for text in log.read_text().splitlines()]
    for record in found:
        VALIDATOR.validate(record)
    return found


def events(log: Path) -> list[str]:
    return [record["event"] for record in records(log)]


# ---- what the command line refuses


@pytest.mark.parametrize(
    ("subcommand", "options", "status", "said"),
    [
        ("run", ["--write", "/nonexistent/x"], 2, "/nonexistent/x: No such file or directory"),
        ("run", ["--home", "nowhere"], 2, "'nowhere' is unknown"),
        ("run", ["--publish", "80", "--network", "host"], 2, "doesn't go with the host's network"),
        ("run", ["--allow-net", "b/c"], 2, "a path can't be allowed"),
        ("run", ["--policy", "missing.toml"], 2, "missing.toml"),
        ("run", ["--net-log", "/nonexistent/log"], 2, "--net-log: /nonexistent/log: No such file or directory"),
        ("run", ["--net-log", "log"], 2, "--net-log: log is where the command can write"),
        ("run", ["--transaction", "--host"], 2, "is needed"),
        ("shell", ["--home", "nowhere"], 2, "'nowhere' is unknown"),
        ("python", ["--home", "nowhere"], 2, "'nowhere' is unknown"),
        ("python", ["--python", "/nonexistent"], 125, "/nonexistent"),
        ("mcp", ["--home", "nowhere"], 2, "'nowhere' is unknown"),
    ],
)
def test_a_start_that_the_command_line_refuses(
    workspace: Path, log: Path, subcommand: str, options: list[str], status: int, said: str
) -> None:
    """Nothing starts, and there is one record that says which command, and why."""
    words = {"run": ["--", "touch", "made"], "python": ["-c", "open('made', 'w')"]}.get(subcommand, [])
    done = subprocess.run(
        [*NSBOX, subcommand, "--audit", str(log), *options, *words],
        cwd=workspace,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert not (workspace / "made").exists()
    refused = [record for record in records(log) if record["kind"] != "interpreter"]
    assert [record["event"] for record in refused] == ["refused"]
    assert said in refused[0]["error"]["message"] and refused[0]["error"]["type"]
    assert (
        refused[0]["argv"] == {"run": ["touch", "made"], "shell": ["sh"], "python": ["python"], "mcp": []}[subcommand]
    )


@pytest.mark.parametrize("subcommand", ["run", "python"])
def test_a_start_that_it_allows(workspace: Path, log: Path, subcommand: str) -> None:
    """The control: the same command with a policy that can be had starts and ends, and no record says "refused"."""
    words = {"run": ["--", "touch", "made"], "python": ["-c", "open('made', 'w')"]}[subcommand]
    command = [*NSBOX, subcommand, "--audit", str(log), "--home", "private", *words]
    assert subprocess.run(command, cwd=workspace, stdin=subprocess.DEVNULL, check=False).returncode == 0
    assert (workspace / "made").exists()
    own = [record["event"] for record in records(log) if record["kind"] != "interpreter"]
    assert own == ["start", "end"]


def test_a_line_of_the_shell(workspace: Path, log: Path) -> None:
    """The record has the line, with its secrets masked, and the directory."""
    line = "curl --password hunter2hunter2 host"
    command = [*NSBOX, "run", "--audit", str(log), "--home", "nowhere", "-C", "/tmp", "-c", line, "word"]
    assert subprocess.run(command, cwd=workspace, capture_output=True, check=False).returncode == 2
    (record,) = records(log)
    assert record["argv"][:2] == ["sh", "-c"] and record["argv"][-1] == "word" and record["cwd"] == "/tmp"
    assert "hunter2hunter2" not in json.dumps(record) and "curl" in record["argv"][2]


# ---- what a program can't start


@pytest.mark.parametrize("what", ["sandbox", "session", "task", "transaction", "python"])
def test_what_has_no_command_yet(workspace: Path, log: Path, what: str) -> None:
    """A Sandbox, a session, a task, a transaction or a Python that can't be made has a record. The control: it can."""
    bad = Policy.workspace(workspace, backend="passthrough", require="nothing", network=["a.example"])
    good = Policy.workspace(workspace)

    def make(policy: Policy) -> None:
        box = Sandbox(policy)
        try:
            if what == "sandbox":
                box.start()
            elif what == "python":
                box.python().start()
            else:
                with getattr(box, what)():
                    pass
        finally:
            box.close()

    nsbox.audit.to_file(log)
    with pytest.raises(NsboxError):
        make(bad)
    (record,) = [one for one in records(log) if one["kind"] == what]
    assert record["event"] == "refused" and record["error"]["type"].startswith("nsbox.")
    assert record["policy"]["network"] == ["a.example"]
    make(good)
    assert events(log).count("refused") == 1


# ---- SIGTERM


def terminated(command: list[str], workspace: Path, *, terminal: bool = False) -> int:
    """Start it, wait for its command's first line, and send it SIGTERM; return its status."""
    ours, theirs = os.openpty() if terminal else os.pipe()
    process = subprocess.Popen(
        command, cwd=workspace, stdin=theirs if terminal else subprocess.DEVNULL, stdout=theirs, start_new_session=True
    )
    try:
        os.close(theirs)
        seen = b""
        while b"ready" not in seen:
            seen += os.read(ours, 1000)
        process.send_signal(signal.SIGTERM)
        return process.wait(LONG)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.parametrize(
    ("options", "script", "expected"),
    [
        ([], READY, "SIGTERM"),
        (["--grace", "0.1"], f"trap '' TERM; {READY}", "SIGKILL"),
        (["--transaction"], READY, "SIGTERM"),
        (["--keep-session"], READY, "SIGTERM"),
        (["--net-log", "/dev/null"], READY, "SIGTERM"),
    ],
)
@pytest.mark.parametrize("terminal", [False, True])
def test_nsbox_run(
    workspace: Path, log: Path, options: list[str], script: str, expected: str, *, terminal: bool
) -> None:
    """`nsbox run` ends its command at SIGTERM, and writes the record of that end before its own."""
    command = [*NSBOX, "run", "--audit", str(log), *options, "--", "sh", "-c", script]
    status = terminated(command, workspace, terminal=terminal)
    assert status == 128 + signal.Signals[expected]
    assert events(log) == ["start", "end"]
    assert (records(log)[1]["signal"], records(log)[1]["cause"]) == (expected, "signal")


def test_nsbox_python(workspace: Path, log: Path) -> None:
    """So does `nsbox python`."""
    code = "import time; print('ready', flush=True); time.sleep(1000)"
    assert terminated([*NSBOX, "python", "--audit", str(log), "-c", code], workspace) == 128 + signal.SIGTERM
    own = [record for record in records(log) if record["kind"] == "python"]
    assert [record["event"] for record in own] == ["start", "end"] and own[1]["signal"] == "SIGTERM"


PROGRAM = """
import signal, sys
import nsbox
nsbox.audit.to_file(sys.argv[1])
if sys.argv[2] != "default":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
process = nsbox.Popen(["sh", "-c", "while :; do sleep 1000; done"], policy=nsbox.Policy.workspace("."))
if sys.argv[2] == "run":
    with process:
        try:
            print("ready", flush=True)
            process.wait()
        except BaseException:
            process.kill()
            raise
print("ready", flush=True)  # only now: during the start, a handler that raises refuses it
signal.pause()
"""


@pytest.mark.parametrize(
    ("how", "status", "expected"),
    [
        ("run", 143, ["start", "end"]),  # as nsbox.run() does
        ("handler", 143, ["start", "left"]),
        ("default", -signal.SIGTERM, ["start"]),  # the kernel ends Python: nothing of it runs any more
    ],
)
def test_a_program(workspace: Path, log: Path, how: str, status: int, expected: list[str]) -> None:
    """A program writes the end, or that it has left the command, if SIGTERM is an exception there; else nothing."""
    assert terminated([sys.executable, "-c", PROGRAM, str(log), how], workspace) == status
    assert events(log) == expected


def test_what_is_no_start(log: Path, workspace: Path) -> None:
    """Wrong types, and a Sandbox that can't be, have no record; the control is a command that the same policy refuses."""
    nsbox.audit.to_file(log, required=True)
    open_to_all = Policy.workspace(workspace, network="host")
    wrong: Any = 3
    for options in ({"policy": wrong}, {"policy": open_to_all, "on_connect": wrong}):
        with pytest.raises(TypeError):
            nsbox.run(["true"], **options)
    with pytest.raises(NsboxError, match="on_connect can't be asked"):
        Sandbox(open_to_all, on_connect=lambda event: True)
    assert events(log) == []
    with pytest.raises(NsboxError, match="on_connect can't be asked"):
        nsbox.run(["true"], policy=open_to_all, on_connect=lambda event: True)
    assert events(log) == ["refused"]
