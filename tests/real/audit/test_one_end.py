"""One end, all faces: the table in docs/howto/observability.md, row by row, and one shape of what was used."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import nsbox
from nsbox import CancelToken, Policy, Sandbox, ToolResult
from nsbox._python.result import python_schema
from nsbox.integrations._status import shell_status

VALIDATOR = jsonschema.Draft202012Validator(nsbox.audit.schema())
USAGE = jsonschema.Draft202012Validator(python_schema()["properties"]["usage"])
HANDLES = "trap 'exit 0' TERM; echo; sleep 1000 & wait"


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    """A policy whose commands can't reach the log beside their workspace."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work/sub").mkdir()
    (tmp_path / "work/sub/file").write_text("below\n")
    (tmp_path / "work/file").write_text("above\n")
    return Policy.workspace(tmp_path / "work")


class Faces:
    """The faces that hear of each command without being asked: records and spans."""

    def __init__(self, log: Path) -> None:
        self.log, self.exporter = log, InMemorySpanExporter()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        nsbox.audit.to_file(log, required=True)
        nsbox.otel.instrument(tracer_provider=tracers, meter_provider=MeterProvider([]), args=True)

    def records(self, event: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.log.read_text().splitlines()]
        for record in found:
            VALIDATOR.validate(record)
        return [record for record in found if record["event"] == event]

    def span(self) -> dict[str, Any]:
        return dict(self.exporter.get_finished_spans()[-1].attributes or {})


@pytest.fixture
def faces(tmp_path: Path) -> Iterator[Faces]:
    yield Faces(tmp_path / "audit.jsonl")
    nsbox.otel.uninstrument()
    nsbox.audit.close()


def words(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in ("status", "signal", "cause")}


def cancelled(box: Any, line: str) -> ToolResult:
    """Cancel a command once it has printed something."""
    token = CancelToken()
    result: ToolResult = box.shell(line, cancel=token, on_output=lambda event: token.cancel())
    return result


ENDS: dict[str, tuple[Callable[[Any], ToolResult], tuple[int | None, str | None, str], int]] = {
    "exit": (lambda box: box.shell("exit 3"), (3, None, "exit"), 3),
    "zero": (lambda box: box.exec("true"), (0, None, "exit"), 0),
    "term": (lambda box: box.shell("kill -TERM $$"), (None, "SIGTERM", "signal"), 143),
    "kill": (lambda box: box.shell("kill -KILL $$"), (None, "SIGKILL", "signal"), 137),
    "real-time": (lambda box: box.shell("kill -36 $$"), (None, "SIGRTMIN+2", "signal"), 164),
    "timeout": (lambda box: box.shell("sleep 1000", timeout=0.3), (None, "SIGTERM", "timeout"), 143),
    "handled": (lambda box: box.shell(HANDLES, timeout=0.3), (None, "SIGTERM", "timeout"), 143),
    "cancelled": (lambda box: cancelled(box, "echo; sleep 1000"), (None, "SIGTERM", "cancelled"), 143),
    "cancelled-exit": (lambda box: cancelled(box, HANDLES.replace("0", "5", 1)), (5, None, "cancelled"), 5),
    "cancelled-handled": (lambda box: cancelled(box, HANDLES), (None, "SIGTERM", "cancelled"), 143),
    "job": (lambda box: box.background("sleep 1000").kill(at_once=True), (None, "SIGKILL", "cancelled"), 137),
}


@pytest.mark.parametrize("kind", ["box", "session"])
@pytest.mark.parametrize("end", ENDS)
def test_tool_calls(end: str, kind: str, policy: Policy, faces: Faces) -> None:
    """A result, its JSON, its record and its span tell the same end in the same words, and have the same usage."""
    run, expected, code = ENDS[end]
    with Sandbox(policy) as box, box.session() as session:
        result = run(box if kind == "box" else session)
    told, (record,), span = result.as_dict(), faces.records("end"), faces.span()
    assert tuple(words(told).values()) == expected
    assert words(record) == words(told)
    assert result.usage is not None and result.usage.cause == result.cause == told["cause"]
    assert record["usage"] == told["usage"] == result.usage.as_dict()
    USAGE.validate(told["usage"])
    assert (span["nsbox.cause"], span.get("nsbox.signal")) == (expected[2], expected[1])
    assert span["process.exit.code"] == shell_status(result.returncode) == code
    assert (span.get("error.type") == expected[2]) is bool(code)
    assert shell_status(result.returncode) == code  # what frameworks are told


@pytest.mark.parametrize(
    ("line", "number", "expected"),
    [("exit 3", 3, (3, None, "exit")), ("kill -TERM $$", -15, (None, "SIGTERM", "signal"))],
)
def test_popen(line: str, number: int, expected: tuple[Any, ...], policy: Policy, faces: Faces) -> None:
    """Popen.returncode is subprocess's number; the record of the same end has the words."""
    process = nsbox.Popen(["sh", "-c", line], policy=policy)
    assert process.wait() == process.returncode == number
    (record,) = faces.records("end")
    assert tuple(words(record).values()) == expected
    assert process.sandbox.usage is not None and record["usage"] == process.sandbox.usage.as_dict()


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (["sh", "-c", "exit 3"], 3, (3, None, "exit")),
        (["sh", "-c", "kill -TERM $$"], 143, (None, "SIGTERM", "signal")),
        (["--timeout", "0.3", "--", "sleep", "1000"], 124, (None, "SIGTERM", "timeout")),
        (["--timeout", "0.3", "--", "sh", "-c", HANDLES], 124, (None, "SIGTERM", "timeout")),
    ],
)
def test_command_line(
    arguments: list[str], status: int, expected: tuple[Any, ...], policy: Policy, tmp_path: Path
) -> None:
    """The exit status of `nsbox run` is a shell's, 124 for a time limit; its record has the same words as any other."""
    log, separator = tmp_path / "audit.jsonl", [] if "--" in arguments else ["--"]
    command = [sys.executable, "-m", "nsbox", "run", "--audit", str(log), *separator, *arguments]
    done = subprocess.run(command, cwd=policy.workdir, capture_output=True, check=False)
    assert done.returncode == status, done.stderr
    (end,) = [record for record in map(json.loads, log.read_text().splitlines()) if record["event"] == "end"]
    VALIDATOR.validate(end)
    assert tuple(words(end).values()) == expected


def test_not_started(policy: Policy, faces: Faces) -> None:
    """A program that isn't there: 127 and "not-started" for a tool, a record "refused", a span with the exception."""
    with Sandbox(policy) as box:
        told = nsbox.call_tool(box, "exec", {"program": "no-such-program"})
    assert words(told) == {"status": 127, "signal": None, "cause": "not-started"} and told["usage"] is None
    (record,) = faces.records("refused")
    assert record["error"]["type"] == faces.span()["error.type"] == "FileNotFoundError"


@pytest.mark.parametrize("cause", ["timeout", "cancelled"])
def test_code(cause: str, policy: Policy, faces: Faces) -> None:
    """Python code has the same words. A kernel that goes on has no record of an end."""
    token, code = CancelToken(), "print()\nwhile True: pass"
    options: dict[str, Any] = {"timeout": 0.3} if cause == "timeout" else {"cancel": token}
    with Sandbox(policy) as box, box.python() as py:
        result = py.run(code, on_output=lambda event: token.cancel(), **options)
        record, told = faces.records("end")[-1], result.as_dict()
        assert record["kind"] == "python" and record["usage"] == told["usage"]
        assert words(record) == words(told) == {"status": None, "signal": "SIGTERM", "cause": cause}
    token = CancelToken()
    options = {"timeout": 0.3} if cause == "timeout" else {"cancel": token}
    with Sandbox(policy) as box, box.python().kernel() as kernel:
        told = kernel.run(code, on_output=lambda event: token.cancel(), **options).as_dict()
        assert words(told) == {"status": None, "signal": "SIGINT", "cause": cause}
        USAGE.validate(told["usage"])
        assert told["usage"]["cause"] == cause


# ---- what a record says of the command


def test_kept_shell(policy: Policy, faces: Faces) -> None:
    """The record of a session's shell has the caller's line, not what nsbox adds, and the directory it ran in."""
    assert policy.workdir is not None
    with Sandbox(policy) as box, box.session() as session:
        session.shell("cd sub", keep=True)
        assert session.shell("cat file", keep=True).stdout == "below\n"
        session.exec("pwd")
        session.background("pwd", cwd="sub").wait()
        assert session.read("file") == "above\n"
    below = f"{policy.workdir}/sub"
    lines = [("cd sub", policy.workdir), ("cat file", below), ("pwd", policy.workdir), ("pwd", below)]
    starts = faces.records("start")
    assert [(record["argv"][-1], record["cwd"]) for record in starts] == lines
    assert [record["argv"][1:-1] for record in starts] == [["-c"], ["-c"], [], ["-c"]]
    assert faces.records("files")[-1]["cwd"] == policy.workdir
    spans = [dict(span.attributes or {}) for span in faces.exporter.get_finished_spans()]
    assert [span["process.command_args"][-1] for span in spans] == [line for line, _ in lines]
    assert "_nsbox" not in str([span["process.command_args"] for span in spans])


def test_directories(policy: Policy, faces: Faces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record has the directory in which the command starts, as an absolute path, whoever chose it."""
    monkeypatch.chdir(tmp_path)
    nsbox.run(["true"], policy=policy)
    nsbox.run(["true"], policy=policy, cwd="work/sub")
    nsbox.audit.close()
    nsbox.audit.to_file(faces.log)  # commands of the next policy can write to it
    nsbox.run(["true"], policy=Policy.host())
    work = str(tmp_path / "work")
    assert [record["cwd"] for record in faces.records("start")] == [work, f"{work}/sub", str(tmp_path)]


def test_interpreters(policy: Policy, faces: Faces) -> None:
    """Each start of an interpreter says what it is for."""
    with Sandbox(policy) as box, box.python() as py:
        py.run("1")
    starts = [record for record in faces.records("start") if record["kind"] == "interpreter"]
    assert [record["argv"][4] for record in starts] == [
        "[a program of nsbox's: the report of an interpreter before it is made warm]",
        "[a program of nsbox's: the warm interpreter, which all code branches off from]",
    ]


def test_relative_paths(policy: Policy) -> None:
    """What `cd` does counts for kept shells alone: other tools go by the working directory, as their schemas say."""
    with Sandbox(policy) as box, box.session() as session:
        session.shell("cd sub", keep=True)
        for name, key in (("exec", "stdout"), ("shell", "stdout")):
            arguments = {"program": "cat", "args": ["file"]} if name == "exec" else {"command": "cat file"}
            assert nsbox.call_tool(session, name, arguments)[key] == "above\n"
        assert "above" in nsbox.call_tool(session, "read_lines", {"path": "file"})["text"]
        assert nsbox.call_tool(session, "grep", {"pattern": "above", "path": "file"})["matches"]
    for tool in nsbox.tool_schemas(form="mcp"):
        for name in {"path", "source", "destination", "cwd"} & tool["inputSchema"]["properties"].keys():
            text = tool["inputSchema"]["properties"][name]["description"]
            assert "counts from the sandbox's working directory" in text and "`cd`" in text
