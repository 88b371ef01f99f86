"""OpenTelemetry: spans and metrics of real commands, by the SDK's exporters in memory."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.metrics import NoOpMeterProvider
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


def test_documented() -> None:
    """The tables of the page have each attribute and each metric, and no other."""
    page = Path(__file__).parents[3] / "docs/howto/observability.md"
    if not page.exists():
        pytest.skip("the tests were copied without the documents")
    told = {*re.findall(r"`((?:nsbox|process|error)\.[a-z_.]*[a-z])`", page.read_text().partition("### Spans")[2])}
    known = {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    assert {name for name in told if not name.startswith("nsbox.otel")} == known


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


CALLERS = "00-11111111111111111111111111111111-2222222222222222-01"


def test_callers_trace(policy: Policy, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    """A span joins the trace of the program's TRACEPARENT, unless another span is current, or it makes no sense."""
    monkeypatch.setenv("TRACEPARENT", CALLERS)
    telemetry.instrument()
    nsbox.run(["true"], policy=policy)
    with telemetry.tracers.get_tracer("test").start_as_current_span("parent") as parent:
        nsbox.run(["true"], policy=policy)
    for value in ("", "x", CALLERS.replace("1", "0"), CALLERS.upper() + "-"):
        monkeypatch.setenv("TRACEPARENT", value)
        telemetry.instrument()
        nsbox.run(["true"], policy=policy)
    first, second, _, *others = telemetry.spans()
    assert f"{first.context.trace_id:x}-{first.parent.span_id:x}" == CALLERS[3:52] and first.parent.is_remote
    assert second.parent.span_id == parent.get_span_context().span_id
    assert len(others) == 4 and not any(span.parent for span in others)


def test_callers_decision(policy: Policy, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the caller's trace isn't sampled, neither is a command's span; the command still belongs to that trace."""
    monkeypatch.setenv("TRACEPARENT", CALLERS[:-1] + "0")
    telemetry.instrument()
    asking = policy.with_(pass_env=["TRACEPARENT"])
    told = nsbox.check_output(["sh", "-c", "echo $TRACEPARENT"], policy=asking, text=True).strip()
    assert telemetry.spans() == []
    assert told.startswith(CALLERS[:36]) and told.endswith("-00") and told[36:52] != CALLERS[36:52]


@pytest.mark.parametrize("is_instrumented", [False, True])
def test_what_a_command_is_told(
    is_instrumented: bool, policy: Policy, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRACEPARENT reaches a command only if its policy says so; and then it never names a span beside the command's."""
    monkeypatch.setenv("TRACEPARENT", CALLERS)
    monkeypatch.setenv("TRACESTATE", "vendor=callers")
    if is_instrumented:
        telemetry.instrument()
    line = ["sh", "-c", 'echo "$TRACEPARENT" "$TRACESTATE" "$BAGGAGE"']

    def told(policy: Policy) -> list[str]:
        return nsbox.check_output(line, policy=policy, text=True).rstrip("\n").split(" ")

    def own() -> str:
        if not is_instrumented:
            return CALLERS
        span = telemetry.spans()[-1].get_span_context()
        return f"00-{span.trace_id:032x}-{span.span_id:016x}-01"

    assert told(policy) == ["", "", ""]
    assert told(policy.with_(pass_env=["TRACEPARENT"])) == [own(), "", ""]
    assert told(policy.with_(pass_env=["TRACEPARENT", "TRACESTATE"])) == [own(), "vendor=callers", ""]
    assert told(policy.with_(pass_env=["TRACESTATE"])) == ["", "vendor=callers", ""]
    host = Policy.host()
    assert host.inherit_env and told(host) == [own(), "vendor=callers", ""]
    with telemetry.tracers.get_tracer("test").start_as_current_span("another trace"):
        state = "" if is_instrumented else "vendor=callers"
        assert told(host)[1:] == [state, ""]


def test_without_a_sdk(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no provider is set, nothing is made, and a command is told of the caller's span."""
    monkeypatch.setenv("TRACEPARENT", CALLERS)
    nsbox.otel.instrument(tracer_provider=trace.NoOpTracerProvider(), meter_provider=NoOpMeterProvider())
    try:
        asking = policy.with_(pass_env=["TRACEPARENT"])
        assert nsbox.check_output(["sh", "-c", "echo $TRACEPARENT"], policy=asking, text=True) == CALLERS + "\n"
    finally:
        nsbox.otel.uninstrument()


def test_no_secret_in_telemetry(policy: Policy, telemetry: Telemetry) -> None:
    """Neither spans nor metrics have arguments, environments, directories or contents, unless args=True."""
    assert policy.workdir is not None
    secret = "open-sesame-1"
    place = Path(policy.workdir, secret)
    place.mkdir()
    telemetry.instrument()
    with nsbox.Sandbox(policy.with_(env={"A": secret})) as box:
        box.shell(f"echo {secret} >f; cat f; cat /root/{secret}", env={"B": secret}, cwd=secret, secrets={"C": secret})
        box.python().run(f"print({secret!r})")
    with pytest.raises(FileNotFoundError):
        nsbox.run([f"/no/{secret}/program", secret], policy=policy, cwd=place)
    told = " ".join(span.to_json() for span in telemetry.spans()) + telemetry.reader.get_metrics_data().to_json()
    assert len(telemetry.spans()) >= 3 and "/no" not in told and "sesame" not in told


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
    """A program that runs a command imports neither logging nor anything of records and telemetry, nor makes a story."""
    code = (
        "import sys, nsbox; nsbox.run(['true'], policy=nsbox.Policy.workspace('.'))\n"
        "print([n for n in sys.modules if n.split('.')[0] in ('logging', 'opentelemetry') or '_audit' in n or '_otel' in n"
        " or n.endswith('.story')])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ast.literal_eval(done.stdout) == []


def test_benchmark(tmp_path: Path) -> None:
    """The benchmark of records runs, and says what each way adds."""
    path = Path(__file__).parents[3] / "benchmarks/records.py"
    if not path.exists():
        pytest.skip("the tests were copied without the benchmarks")
    command = [sys.executable, "-P", "-W", "ignore", path, "--rounds", "3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    for name in ("no hook", "audit to a file", "otel to memory"):
        assert sum(line.startswith(name) and " against off: " in line for line in done.stdout.splitlines()) == 2
