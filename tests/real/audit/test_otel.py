"""OpenTelemetry: spans and metrics of real commands, by the SDK's exporters in memory."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import process_attributes
from opentelemetry.semconv.attributes import error_attributes

import nsbox
from nsbox import Policy
from nsbox._otel import names


class Telemetry:
    """What was exported."""

    def __init__(self) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers, self.meters = TracerProvider(), MeterProvider([self.reader])
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))

    def instrument(self, **options: Any) -> None:
        nsbox.otel.instrument(tracer_provider=self.tracers, meter_provider=self.meters, **options)

    def spans(self) -> list[Any]:
        return list(self.exporter.get_finished_spans())

    def metrics(self) -> dict[str, list[Any]]:
        data: Any = self.reader.get_metrics_data()
        found = data.resource_metrics[0].scope_metrics[0].metrics
        return {metric.name: list(metric.data.data_points) for metric in found}


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    yield Telemetry()
    nsbox.otel.uninstrument()


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    return Policy.workspace(tmp_path)


def test_names() -> None:
    """Our spellings are those of the semantic conventions."""
    for name in ("EXECUTABLE_NAME", "EXIT_CODE", "PID", "COMMAND_ARGS"):
        assert getattr(names, name) == getattr(process_attributes, f"PROCESS_{name}")
    assert error_attributes.ERROR_TYPE == names.ERROR_TYPE


def test_span(policy: Policy, telemetry: Telemetry) -> None:
    """A command has a span below the caller's, without its arguments."""
    telemetry.instrument()
    with telemetry.tracers.get_tracer("test").start_as_current_span("parent") as parent:
        nsbox.run(["sh", "-c", "exit 3"], policy=policy)
    span, _ = telemetry.spans()
    assert span.name == "sh" and span.kind is trace.SpanKind.CLIENT
    assert span.parent.span_id == parent.get_span_context().span_id
    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.attributes["process.exit.code"] == 3 and span.attributes["error.type"] == "exit"
    assert span.attributes["process.pid"] > 0 and span.attributes["nsbox.policy.digest"].startswith("sha256:")
    assert "process.command_args" not in span.attributes


def test_signal(policy: Policy, telemetry: Telemetry) -> None:
    """A command that a signal ended has the exit code of a shell, and no other command's error."""
    telemetry.instrument()
    nsbox.run(["sh", "-c", "kill -9 $$"], policy=policy)
    nsbox.run(["true"], policy=policy)
    killed, good = telemetry.spans()
    assert (killed.attributes["process.exit.code"], killed.attributes["nsbox.signal"]) == (137, "SIGKILL")
    assert "error.type" not in good.attributes and good.status.status_code is trace.StatusCode.UNSET


def test_arguments_are_scrubbed(policy: Policy, telemetry: Telemetry) -> None:
    """With args=True, a span has the arguments, without secrets."""
    telemetry.instrument(args=True)
    nsbox.run(["echo", "--password", "hunter2", b"\xff\n"], policy=policy, stdout=nsbox.DEVNULL)
    (span,) = telemetry.spans()
    assert span.attributes["process.command_args"][:3] == ("echo", "--password", "***")


def test_context_only_if_the_policy_asks(policy: Policy, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command gets its span's context in TRACEPARENT if the policy takes that variable, and not otherwise."""
    monkeypatch.setenv("TRACEPARENT", "the caller's")
    telemetry.instrument()
    line = ["sh", "-c", "echo $TRACEPARENT"]
    assert nsbox.check_output(line, policy=policy) == b"\n"
    asking = policy.with_(pass_env=["TRACEPARENT"])
    told = nsbox.check_output(line, policy=asking, text=True).strip()
    own = telemetry.spans()[-1].get_span_context()
    assert told.startswith(f"00-{own.trace_id:032x}-{own.span_id:016x}-")
    with nsbox.Sandbox(asking) as box:
        told = box.shell(line[2], env={"A": "b"}).stdout.strip()
    own = telemetry.spans()[-1].get_span_context()
    assert told.startswith(f"00-{own.trace_id:032x}-{own.span_id:016x}-")
    assert nsbox.check_output(line, policy=asking, env={"TRACEPARENT": "mine"}) == b"mine\n"


def test_metrics(policy: Policy, telemetry: Telemetry) -> None:
    """Durations, refusals and what runs are measured."""
    telemetry.instrument()
    nsbox.run(["true"], policy=policy)
    with pytest.raises(FileNotFoundError):
        nsbox.run(["/no/such/program"], policy=policy)
    with nsbox.Popen(["cat"], policy=policy, stdin=nsbox.PIPE):
        (active,) = telemetry.metrics()["nsbox.command.active"]
        assert active.value == 1
    found = telemetry.metrics()
    assert found["nsbox.command.active"][0].value == 0
    (duration,) = found["nsbox.command.duration"]
    assert duration.count == 2 and duration.explicit_bounds == names.BUCKETS
    (refusals,) = found["nsbox.command.refusals"]
    assert refusals.value == 1 and refusals.attributes["error.type"] == "FileNotFoundError"
    assert telemetry.spans()[1].attributes["error.type"] == "FileNotFoundError"


def test_both(policy: Policy, telemetry: Telemetry, tmp_path: Path) -> None:
    """A span has the id of its command's records."""
    (tmp_path / "log").mkdir()
    (tmp_path / "work").mkdir()
    telemetry.instrument()
    nsbox.audit.to_file(tmp_path / "log/audit.jsonl")
    try:
        nsbox.run(["true"], policy=Policy.workspace(tmp_path / "work"))
    finally:
        nsbox.audit.close()
    (span,) = telemetry.spans()
    assert f'"id":"{span.attributes["nsbox.audit.id"]}"' in (tmp_path / "log/audit.jsonl").read_text()


def test_nothing_is_imported_unless_used(tmp_path: Path) -> None:
    """A program that runs a command imports neither logging nor anything of records and telemetry."""
    code = (
        "import sys, nsbox; nsbox.run(['true'], policy=nsbox.Policy.workspace('.'))\n"
        "print([n for n in sys.modules if n.split('.')[0] in ('logging', 'opentelemetry') or '_audit' in n or '_otel' in n])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ast.literal_eval(done.stdout) == []
