import logging

import pytest
from deltalake import DeltaTable
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.messages import log
from tests.operate.conftest import watch
from tests.probes import fail_times
from windrow.columnar.arrow import to_plain_types
from windrow.errors import TableMissingError
from windrow.model import tables
from windrow.model.results import read_committed
from windrow.operate import LogObserver, Observer, RunInfo, notify_observers
from windrow.operate.metrics import PrometheusMetrics
from windrow.operate.spans import TraceSpans
from windrow.testing.points import Point


class RecordingObserver(Observer):
    """Records the calls."""

    def __init__(self):
        self.told = []

    def started(self, run):
        """Note the engine."""
        self.told.append(run.engine)

    def committed(self, committed):
        """Note the number."""
        self.told.append(committed.microbatch)

    def retrying(self, error, attempt):
        """Note the attempt."""
        self.told.append((str(error), attempt))

    def ended(self, error):
        """Note the error's type."""
        self.told.append(error and type(error))


class Broken(Observer):
    """Always raises."""

    def started(self, run):
        """Fail."""
        raise OSError("no space left")

    committed = retrying = ended = started


class TestObserved:
    def test_in_order(self, world, embedded):
        """Observers are called at the start, for each failed attempt and each commit in order, and at the end."""
        world.publish(*log(versions=2))
        noting = RecordingObserver()
        watch(world, embedded, [noting], fail_times(Point.BEFORE_COMMIT, times=1), max_messages=30)
        assert noting.told == ["embedded", ("the disk failed before_commit", 1), 1, 2, None]

    def test_error(self, world, embedded):
        """A run without a depot calls `started` and `ended`, and raises its error."""
        world.depot = "absent"
        noting = RecordingObserver()
        with pytest.raises(TableMissingError):
            watch(world, embedded, [noting])
        assert noting.told == ["embedded", TableMissingError]

    def test_one_that_raises(self, world, embedded, caplog):
        """An observer that always raises changes neither the result nor the calls of the next one; the log names it."""
        world.publish(*log(versions=2))
        noting = RecordingObserver()
        watch(world, embedded, [Broken(), noting], max_messages=30)
        assert noting.told == ["embedded", 1, 2, None]
        assert world.canonical() == world.expected()
        assert [row["attempt"] for row in world.history()] == [1, 1]
        logged = [(record.levelno, record.observer, record.told, record.error) for record in caplog.records]
        assert logged == [
            (logging.WARNING, "Broken", call, "no space left")
            for call in ("started", "committed", "committed", "ended")
        ]


class TestElsewhere:
    def test_what_only_the_history_tells(self, world, embedded, caplog):
        """For a microbatch of another process, log, metrics and spans report only what its history row has."""
        caplog.set_level(logging.INFO, "windrow")
        world.publish(*log(versions=2))
        watch(world, embedded, [])
        history = to_plain_types(DeltaTable(world.ledger).to_pyarrow_table(filters=[("state", "=", "microbatch")]))
        [committed] = read_committed(history.select([name for name, _ in tables.HISTORY]))
        assert (committed.reasons, committed.open_batch_count, committed.lag_ms, committed.commit_ms) == (None,) * 4
        exporter, provider, metrics = InMemorySpanExporter(), TracerProvider(), PrometheusMetrics()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        run = RunInfo("spark", world.settings(embedded), world.clock)
        with notify_observers(run, [LogObserver(), metrics, TraceSpans(provider)]) as observers:
            observers.committed(committed)
        assert [record.msg for record in caplog.records] == ["run started", "microbatch", "run ended"]
        assert caplog.records[1].rejected == len(world.rows("rejected"))
        labels = {"ledger": world.ledger, "reason": "unknown"}
        value = metrics.registry.get_sample_value
        assert value("windrow_messages_rejected_total", labels) == len(world.rows("rejected"))
        assert value("windrow_open_batches", {"ledger": world.ledger}) is None
        names = [span.name.removeprefix("windrow.") for span in exporter.get_finished_spans()]
        assert names == ["prime", "plan", "process", "microbatch"]
