"""Spans for OpenTelemetry: one per microbatch, with its phases as children. Your SDK decides where spans go."""

from __future__ import annotations

from itertools import accumulate

from windrow.errors import MissingExtraError, first_line
from windrow.model.results import CommittedMicrobatch
from windrow.operate.log import without_secrets
from windrow.operate.observer import Observer, RunInfo
from windrow.version import VERSION

try:
    from opentelemetry import trace
    from opentelemetry.trace import Status, StatusCode, TracerProvider
except ImportError as missing:
    raise MissingExtraError("spans need opentelemetry-api", "pip install 'windrow-delta[otel]'") from missing

COUNTS = ("message_count", "accepted", "rejected", "opened", "closed", "open_batch_count")
NANOSECONDS = 1_000  # per microsecond


class TraceSpans(Observer):
    """Creates a span `windrow.microbatch` after each commit, from the durations of its phases."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        """Use this provider, or the process-wide one."""
        self._tracer = trace.get_tracer("windrow", VERSION, provider)

    def started(self, run: RunInfo) -> None:
        """Prepare the attributes that all spans share."""
        self._clock = run.clock
        ledger = without_secrets(run.settings.ledger)
        self._common: dict[str, str] = {"windrow.engine": run.engine, "windrow.ledger": ledger}

    def committed(self, committed: CommittedMicrobatch) -> None:
        """Create the spans of a microbatch; they end now."""
        names = ("kind", "attempt", "depot_version", "processed_on", *COUNTS)
        known = {f"windrow.{name}": getattr(committed, name) for name in names}
        described = {name: value for name, value in known.items() if value is not None}
        took = [round(milliseconds * 1_000) * NANOSECONDS for milliseconds in committed.phases().values()]
        ends = list(accumulate(took, initial=self._clock.now() * NANOSECONDS - sum(took)))
        span = self._tracer.start_span(
            "windrow.microbatch",
            attributes=self._common | {"windrow.microbatch": committed.microbatch} | described,
            start_time=ends[0],
        )
        inside = trace.set_span_in_context(span)
        for phase, start, end in zip(committed.phases(), ends, ends[1:], strict=False):
            self._tracer.start_span(f"windrow.{phase}", context=inside, start_time=start).end(end)
        span.end(ends[-1])

    def retrying(self, error: Exception, attempt: int) -> None:
        """Create a span for a failed attempt; it has no duration, since the start of the attempt is unknown."""
        now = self._clock.now() * NANOSECONDS
        span = self._tracer.start_span(
            "windrow.retry", attributes=self._common | {"windrow.attempt": attempt}, start_time=now
        )
        span.set_status(Status(StatusCode.ERROR, without_secrets(first_line(error))))
        span.end(now)
