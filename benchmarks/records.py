"""What audit records and OpenTelemetry add to a command, and what they cost a program that uses neither.

    pip install "nsbox[otel]" opentelemetry-sdk
    python benchmarks/records.py [--rounds 1000]

/bin/true in a cold sandbox, from before Popen() until wait() has returned. All take turns in one process, in an order
drawn anew in each round. "no hook" is nsbox as it would be without the question whether anybody listens.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import timeit
from collections.abc import Callable

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import nsbox
from nsbox._cli.bench import contenders
from nsbox._cli.bench.parts import Subject, interleave
from nsbox._cli.bench.results.stats import Part
from nsbox._logs import observers
from nsbox._popen import popen

OFF, BARE = "off", "no hook"


def subject(name: str, spawn: Callable[[], float], active: tuple[observers.Observer, ...]) -> Subject:
    """Return one command with these observers, in milliseconds."""

    def measure() -> tuple[float]:
        observers.active, vars(popen)["listen"] = active, bool if name == BARE else observers.listen  # bool() is False
        try:
            return (spawn() * 1e3,)
        finally:
            observers.active, vars(popen)["listen"] = (), observers.listen

    return Subject((name,), measure)


def observed(begin: Callable[[], None]) -> tuple[observers.Observer, ...]:
    """Return what a call adds to the observers, which then hear of nothing."""
    begin()
    active, observers.active = observers.active, ()
    return active


def instrument() -> None:
    """Send spans and metrics to memory."""
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
    nsbox.otel.instrument(tracer_provider=tracers, meter_provider=MeterProvider([InMemoryMetricReader()]))


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as place:
        os.mkdir(f"{place}/work")
        spawn = contenders.nsbox("nsbox", nsbox.Policy.workspace(f"{place}/work")).tried().spawn
        audit = observed(lambda: nsbox.audit.to_file(f"{place}/audit.jsonl", required=True))
        active = {BARE: (), OFF: (), "audit to a file": audit, "otel to memory": observed(instrument)}
        subjects = [subject(name, spawn, of) for name, of in active.items()]
        part = Part("records", "", "ms", interleave(subjects, rounds, min(20, rounds), random.Random(0)))
    part.compare((name, OFF) for name in active if name != OFF)
    part.compare(((name, OFF) for name in active if name != OFF), is_ratio=False)
    for row in part.rows:
        print(f"{row.name:16} p50 {row.p50:.3f} ms")
    for one in part.comparisons:
        unit = "x" if one.is_ratio else " ms"
        print(f"{one.of:16} against {one.against}: {one.value:.3f}{unit} ({one.low:.3f} to {one.high:.3f})")
    count = 100_000
    print(f"the question whether anybody listens: {timeit.timeit(observers.listen, number=count) / count * 1e9:.0f} ns")


if __name__ == "__main__":
    main()
