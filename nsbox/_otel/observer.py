"""Hears of commands, and makes a span of each, and measurements.

The span begins before the command starts, below the span that is current there; if there is none, below the one that
this program's own TRACEPARENT names. It ends with the command, in whatever thread notices that. So it is never the
current span itself.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from nsbox._audit import policies, record
from nsbox._lifetime import ends
from nsbox._logs import logger
from nsbox._otel import names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nsbox._logs.observers import Story
    from nsbox._policy.policy import Policy

_SCOPE = "nsbox"
_log = logging.getLogger(logger.NAME)


class Telemetry:
    """The observer. It raises nothing: what it can't measure must not keep a command from running."""

    def __init__(self, tracer_provider: Any, meter_provider: Any, version: str, *, args: bool) -> None:
        """Make the instruments. None: the provider that the program has set. args: whether spans have arguments."""
        self._args = args
        self._callers = _callers_span()
        self._tracer = trace.get_tracer(_SCOPE, version, tracer_provider)
        meter = metrics.get_meter(_SCOPE, version, meter_provider)
        self._duration = meter.create_histogram(
            names.DURATION,
            unit="s",
            description="How long commands took, from before the start until nothing of them was left.",
            explicit_bucket_boundaries_advisory=names.BUCKETS,
        )
        self._active = meter.create_up_down_counter(names.ACTIVE, unit="{command}", description="Commands that run.")
        self._refusals = meter.create_counter(
            names.REFUSALS, unit="{command}", description="Commands that were not started."
        )
        self._verdicts = meter.create_counter(
            names.NETWORK_VERDICTS, unit="{event}", description="What network lists allowed and refused."
        )
        self._spans: dict[str, Any] = {}

    # ---- what it hears

    def begin(self, story: Story) -> None:
        """Begin the span; hand its context to the command if the policy takes TRACEPARENT from the environment."""
        _guarded(self._begin, story)

    def started(self, story: Story) -> None:
        """Count it."""
        _guarded(self._started, story)

    def refused(self, story: Story, error: BaseException) -> None:
        """End the span of a command that was not started, and count it."""
        _guarded(self._refused, story, error)

    def ended(self, story: Story) -> None:
        """End the span, and measure."""
        _guarded(self._ended, story)

    def note(self, event: str, id: str, facts: Mapping[str, Any]) -> None:
        """Do nothing: a record has it."""

    def forget(self) -> None:
        """In a forked child, forget the parent's spans."""
        self._spans.clear()

    # ---- what it does

    def _begin(self, story: Story) -> None:
        attributes: dict[str, Any] = {
            names.EXECUTABLE_NAME: names.executable(story),
            names.KIND: story.kind,
            names.RECORD_ID: story.id,
        }
        if story.policy is not None:
            attributes[names.POLICY_DIGEST] = policies.digest(story.policy)
        if story.plan is not None:
            attributes[names.BACKEND] = story.plan.backend
        if self._args:
            attributes[names.COMMAND_ARGS] = [
                text.encode("utf-8", "replace").decode() for text in record.command(story)["argv"]
            ]
        has_current = trace.get_current_span().get_span_context().is_valid
        span = self._tracer.start_span(
            names.executable(story),
            context=None if has_current else trace.set_span_in_context(self._callers),
            kind=trace.SpanKind.CLIENT,
            attributes=attributes,
            start_time=story.began_ns,
        )
        self._spans[story.id] = span
        if story.policy is not None:
            story.environment |= _variables(span, story.policy)

    def _started(self, story: Story) -> None:
        self._spans[story.id].set_attribute(names.PID, story.pid)
        self._active.add(1, self._common(story))

    def _refused(self, story: Story, error: BaseException) -> None:
        if story.id not in self._spans:
            self._begin(story)
        span, kind = self._spans.pop(story.id), record.type_name(error)
        span.set_attribute(names.ERROR_TYPE, kind)
        span.set_status(trace.StatusCode.ERROR)
        span.end()
        self._refusals.add(1, {names.KIND: story.kind, names.ERROR_TYPE: kind})

    def _ended(self, story: Story) -> None:
        span = self._spans.pop(story.id, trace.INVALID_SPAN)
        sandbox = story.popen.sandbox
        usage = sandbox.usage
        cause = "unknown" if usage is None else usage.cause
        status = ends.returncode(story.popen.returncode, cause)
        common = self._common(story)
        self._active.add(-1, common)
        outcome = common | {names.CAUSE: cause}
        span.set_attributes({names.EXIT_CODE: names.exit_code(status), names.CAUSE: cause})
        if (name := ends.signal_name(status)) is not None:
            span.set_attribute(names.SIGNAL, name)
        if status != 0:
            outcome[names.ERROR_TYPE] = cause
            span.set_attribute(names.ERROR_TYPE, cause)
            span.set_status(trace.StatusCode.ERROR)
        if usage is not None:
            self._duration.record(usage.wall, outcome)
        for verdict, reason, count in sandbox.network.tally:
            self._verdicts.add(count, {names.VERDICT: verdict, names.REASON: reason})
        span.end()

    @staticmethod
    def _common(story: Story) -> dict[str, Any]:
        return {names.KIND: story.kind, names.BACKEND: story.plan.backend}


def _callers_span() -> trace.Span:
    """Return the span that started this program, as its environment names it; an invalid one if it names none."""
    carrier = {name.lower(): os.environ[name] for name in names.VARIABLES if name in os.environ}
    return trace.get_current_span(TraceContextTextMapPropagator().extract(carrier, Context()))


def _variables(span: trace.Span, policy: Policy) -> dict[str, str]:
    """Return the variables that name a span, as far as the command is to have them.

    An inherited one would name this program's caller. A TRACESTATE belongs to one trace, so another one's is emptied.
    """
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, trace.set_span_in_context(span))
    parent, state = names.VARIABLES
    if parent.lower() not in carrier or not _passes(policy, parent):
        return {}
    told = {parent: carrier[parent.lower()]}
    return told | {state: carrier.get(state.lower(), "")} if _passes(policy, state) else told


def _passes(policy: Policy, name: str) -> bool:
    return name in policy.pass_env or (policy.inherit_env and name in os.environ)


def _guarded(call: Callable[..., None], *values: Any) -> None:
    try:
        call(*values)
    except Exception:
        _log.exception("telemetry of a command failed")
