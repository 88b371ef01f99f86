"""OpenTelemetry: a span for each command, and metrics; needs the extra `otel`.

    nsbox.otel.instrument()

Spans and metrics go to the providers that the program has set, as for every instrumentation.
docs/howto/observability.md lists them.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from nsbox._logs import observers
from nsbox._tools.arguments import check_flags

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from nsbox._otel.observer import Telemetry

__all__ = ["instrument", "uninstrument"]

_current: Telemetry | None = None


def instrument(
    *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None, args: bool = False
) -> None:
    """Make a span of each command from now on, and measure it, until uninstrument(). A second call replaces the first.

    A command's span is below the span that is current where the command starts. If there is none, it is below the one
    that this program's TRACEPARENT names now. If a command's policy has TRACEPARENT in pass_env, or inherits it, the
    command gets the context of its own span in that variable, and in TRACESTATE if it has that too.

    tracer_provider, meter_provider: where they go. Default: None, for the program's own.
    args: whether spans have the command's arguments, with secrets masked as in audit records. Default: False.

    Raises ImportError without opentelemetry-api, and TypeError.
    """
    check_flags(args=args)
    try:
        from nsbox._otel.observer import Telemetry as OwnTelemetry
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "opentelemetry":
            raise
        raise ImportError('nsbox.otel needs OpenTelemetry: pip install "nsbox[otel]"', name="opentelemetry") from None
    global _current
    made = OwnTelemetry(tracer_provider, meter_provider, sys.modules["nsbox"].__version__, args=args)
    uninstrument()
    _current = made
    observers.add(made)


def uninstrument() -> None:
    """Make no more spans. Those of commands that run end when these do."""
    global _current
    current, _current = _current, None
    if current is not None:
        observers.remove(current)


def _after_fork() -> None:
    if _current is not None:
        _current.forget()


os.register_at_fork(after_in_child=_after_fork)
