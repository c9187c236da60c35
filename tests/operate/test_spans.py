from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tests.messages import log
from tests.operate.conftest import watch
from tests.probes import fail_times
from windrow.operate.spans import TraceSpans
from windrow.testing.points import Point

MILLISECOND = 1_000_000
PHASES = ["windrow.prime", "windrow.plan", "windrow.process", "windrow.commit"]


class TestSpans:
    def test_microbatch_with_its_phases(self, world, embedded):
        """Each microbatch is a span with its counts and phases as children; a failed attempt is one with the reason."""
        exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        world.publish(*log(versions=2))
        watch(world, embedded, [TraceSpans(provider)], fail_times(Point.BEFORE_COMMIT, times=1), max_messages=30)
        spans = exporter.get_finished_spans()
        whole = [span for span in spans if span.name == "windrow.microbatch"]
        for span, row in zip(whole, world.history(), strict=True):
            assert span.attributes["windrow.microbatch"] == row["microbatch"]
            assert span.attributes["windrow.message_count"] == row["messages_read"]
            assert span.attributes["windrow.closed"] == row["closed"]
            assert span.attributes["windrow.ledger"] == world.ledger
            assert span.parent is None
            parts = [part for part in spans if part.parent and part.parent.span_id == span.context.span_id]
            assert [part.name for part in parts] == PHASES
            assert [part.end_time - part.start_time for part in parts] == [MILLISECOND] * 4
            times = [span.start_time, *(part.end_time for part in parts)]
            assert [part.start_time for part in parts] == times[:-1]
            assert times[-1] == span.end_time
        [retry] = [span for span in spans if span.name == "windrow.retry"]
        assert retry.status.status_code is StatusCode.ERROR
        assert retry.status.description == "the disk failed before_commit"
        assert len(spans) == 2 * 5 + 1
