"""Metrics for Prometheus: `PrometheusMetrics` counts, `MetricsServer` serves them, `Textfile` writes them to a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from windrow.errors import MissingExtraError, SettingsError
from windrow.model.results import ROLES, CommittedMicrobatch, Role
from windrow.operate.log import without_secrets
from windrow.operate.observer import Observer, RunInfo

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server, write_to_textfile
    from prometheus_client.metrics_core import Metric
    from prometheus_client.parser import text_string_to_metric_families
    from prometheus_client.registry import Collector
    from prometheus_client.samples import Sample
except ImportError as missing:
    raise MissingExtraError("metrics need prometheus_client", "pip install 'windrow-delta[metrics]'") from missing

LOOPBACK = "127.0.0.1"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class PrometheusMetrics(Observer):
    """Counts what runs do, in a new registry or yours. Every metric has the ledger as a label."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """Register the metrics; a registry accepts them only once."""
        self.registry = registry or CollectorRegistry()
        self._ledger = ""

        def counter(name: str, says: str, *labels: str) -> Counter:
            return Counter(f"windrow_{name}", says, ("ledger", *labels), registry=self.registry)

        def gauge(name: str, says: str) -> Gauge:
            return Gauge(f"windrow_{name}", says, ("ledger",), registry=self.registry)

        self._microbatches = counter("microbatches", "Microbatches committed", "kind")
        self._messages = counter("messages", "Messages read from the depot")
        self._accepted = counter("messages_accepted", "Messages put into a batch")
        self._rejected = counter("messages_rejected", "Messages rejected", "reason")
        self._opened = counter("batches_opened", "Batches opened")
        self._closed = counter("batches_closed", "Batches closed")
        self._retries = counter("retries", "Failed attempts at a microbatch that were retried")
        self._failures = counter("maintenance_failures", "Failed attempts to maintain a table", "table")
        self._open = gauge("open_batches", "Batches open after the last microbatch")
        self._version = gauge("depot_version", "Depot version that the ledger has reached")
        self._lag = gauge("lag_seconds", "Age of the newest message read, when its microbatch was committed")
        self._committed_at = gauge("last_commit_timestamp_seconds", "When the last microbatch was committed")
        self._ended_at = gauge("run_ended_timestamp_seconds", "When the run ended")
        self._success = gauge("run_success", "1 if the run ended normally, 0 if an error ended it")
        labels = ("ledger", "phase")
        says = "Duration of the phases of microbatches"
        self._phases = Histogram("windrow_phase_seconds", says, labels, buckets=SECONDS, registry=self.registry)

    def started(self, run: RunInfo) -> None:
        """Start counting for the ledger of the run, with all counters at zero."""
        self._clock, self._ledger = run.clock, without_secrets(run.settings.ledger)
        for metric in (self._messages, self._accepted, self._opened, self._closed, self._retries):
            metric.labels(self._ledger)
        for table in ROLES:
            self._failures.labels(self._ledger, table)

    def committed(self, committed: CommittedMicrobatch) -> None:
        """Count a microbatch."""
        ledger = self._ledger
        self._microbatches.labels(ledger, committed.kind).inc()
        self._messages.labels(ledger).inc(committed.message_count)
        self._accepted.labels(ledger).inc(committed.accepted)
        self._opened.labels(ledger).inc(committed.opened)
        self._closed.labels(ledger).inc(committed.closed)
        reasons = {"unknown": committed.rejected} if committed.reasons is None else committed.reasons
        for reason, messages in reasons.items():
            self._rejected.labels(ledger, reason).inc(messages)
        if committed.depot_version is not None:
            self._version.labels(ledger).set(committed.depot_version)
        self._committed_at.labels(ledger).set(self._clock.now() / 1_000_000)
        # Microbatches of other processes, or without messages, lack some measurements.
        if committed.open_batch_count is not None:
            self._open.labels(ledger).set(committed.open_batch_count)
        if committed.lag_ms is not None:
            self._lag.labels(ledger).set(committed.lag_ms / 1_000)
        for phase, took in committed.phases().items():
            self._phases.labels(ledger, phase).observe(took / 1_000)

    def retrying(self, error: Exception, attempt: int) -> None:
        """Count a failed attempt."""
        self._retries.labels(self._ledger).inc()

    def maintenance_failed(self, table: Role, error: Exception) -> None:
        """Count a failed maintenance run."""
        self._failures.labels(self._ledger, table).inc()

    def ended(self, error: BaseException | None) -> None:
        """Record when and how the run ended."""
        self._ended_at.labels(self._ledger).set(self._clock.now() / 1_000_000)
        self._success.labels(self._ledger).set(error is None)


class MetricsServer(PrometheusMetrics):
    """Serves the metrics on a loopback port until the run ends."""

    def __init__(self, port: int) -> None:
        """Start serving. Raises SettingsError if the port is taken."""
        super().__init__()
        try:
            self._server, self._thread = start_http_server(port, LOOPBACK, self.registry)
        except OSError as error:
            raise SettingsError(
                f"metrics.prometheus_port = {port} cannot be served: {error.strerror}", "Choose another port, or 0."
            ) from error
        self.port = self._server.server_port

    def ended(self, error: BaseException | None) -> None:
        """Stop serving."""
        super().ended(error)
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Textfile(PrometheusMetrics):
    """Writes the metrics to a file, because a scheduled job ends before Prometheus can scrape it.

    Counters and histograms continue from the values in the file: otherwise a job that reads 100 messages in each run
    would always show 100.
    """

    def __init__(self, file: str) -> None:
        """Read the file of earlier runs. Raises SettingsError if it cannot be read or does not end in `.prom`."""
        super().__init__()
        self._file = Path(file)
        hint = "Use a file *.prom in the directory that node exporter's textfile collector reads."
        if self._file.suffix != ".prom" or not self._file.parent.is_dir():
            raise SettingsError(f"metrics.textfile = {file!r} is not a *.prom file in an existing directory", hint)
        try:
            left = self._file.read_text(encoding="utf-8") if self._file.exists() else ""
            earlier = list(text_string_to_metric_families(left))
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise SettingsError(f"metrics.textfile = {file!r} cannot be read: {why}", hint) from error
        self._all = RestoredCollector(earlier, self.registry)

    def committed(self, committed: CommittedMicrobatch) -> None:
        """Count a microbatch, and write the file."""
        super().committed(committed)
        self._write()

    def ended(self, error: BaseException | None) -> None:
        """Record the end, and write the file."""
        super().ended(error)
        self._write()

    def _write(self) -> None:
        write_to_textfile(str(self._file), self._all)


class RestoredCollector(Collector):
    """The metrics of a registry, with counters and histograms that continue those of earlier runs."""

    def __init__(self, earlier: list[Metric], registry: CollectorRegistry) -> None:
        self._earlier = {metric.name: _by_labels(metric) for metric in earlier}
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """Yield every metric of the registry, without creation times of counters, because counters continue."""
        for metric in self._registry.collect():
            before, now = self._earlier.get(metric.name, {}), _by_labels(metric)
            if metric.type != "gauge":
                both = before.keys() & now.keys()
                now |= {key: now[key]._replace(value=before[key].value + now[key].value) for key in both}
            whole = Metric(metric.name, metric.documentation, metric.type, metric.unit)
            whole.samples = list((before | now).values())
            yield whole


def _by_labels(metric: Metric) -> dict[tuple[object, ...], Sample]:
    samples = (sample for sample in metric.samples if not sample.name.endswith("_created"))
    return {(sample.name, *sorted(sample.labels.items())): sample for sample in samples}
