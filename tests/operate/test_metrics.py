import socket
import sys
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.messages import log
from tests.operate.conftest import watch
from tests.probes import fail_times
from windrow.errors import MissingExtraError, RetriesExhaustedError, SettingsError
from windrow.operate import Observer, RunInfo, configured_observers, notify_observers
from windrow.operate.metrics import MetricsServer, PrometheusMetrics, Textfile
from windrow.settings.settings import MetricsSettings, Settings
from windrow.testing.points import Point


def samples(text):
    """Return the values of metrics by name and labels other than the ledger's."""
    values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name != "ledger"}
            values[(sample.name, *labels.values())] = sample.value
    return values


class TestMetrics:
    def test_counted(self, world, embedded):
        """Counters are sums of the history, gauges are of the last microbatch, and each phase is timed."""
        world.publish(*log(versions=4))
        metrics = PrometheusMetrics()
        watch(world, embedded, [metrics], fail_times(Point.BEFORE_COMMIT, times=1), max_messages=60)
        rows, refused = world.history(), [row["reason"] for row in world.rows("rejected")]

        def value(name, **labels):
            return metrics.registry.get_sample_value(f"windrow_{name}", {"ledger": world.ledger} | labels)

        assert value("microbatches_total", kind="data") == 2
        assert value("messages_total") == sum(row["messages_read"] for row in rows)
        assert value("messages_accepted_total") == sum(row["accepted"] for row in rows)
        assert value("batches_opened_total") == sum(row["opened"] for row in rows)
        assert value("batches_closed_total") == len(world.rows("closed"))
        reasons = sorted(set(refused))
        assert len(reasons) > 3
        counted = [value("messages_rejected_total", reason=reason) for reason in reasons]
        assert counted == [refused.count(reason) for reason in reasons]
        assert value("retries_total") == 1
        assert value("open_batches") == len(world.rows("open"))
        assert value("depot_version") == 4
        assert value("run_success") == 1
        assert (
            value("last_commit_timestamp_seconds")
            <= value("run_ended_timestamp_seconds")
            == (world.clock.now() / 1_000_000)
        )
        for phase in ("prime", "plan", "process", "commit"):
            assert value("phase_seconds_count", phase=phase) == 2
            assert value("phase_seconds_sum", phase=phase) > 0

    def test_maintenance_that_fails(self, world, embedded):
        """A maintenance that failed is counted by its table."""
        metrics = PrometheusMetrics()
        with notify_observers(RunInfo("embedded", world.settings(embedded), world.clock), [metrics]) as observers:
            observers.maintenance_failed("depot", OSError("no space left"))
        counted = {
            table: metrics.registry.get_sample_value(
                "windrow_maintenance_failures_total", {"ledger": world.ledger, "table": table}
            )
            for table in ("ledger", "depot")
        }
        assert counted == {"ledger": 0, "depot": 1}


class TestEndpoint:
    def test_served_while_it_runs(self, world, embedded):
        """The metrics are on the loopback port between two commits, and no longer when the run is over."""
        endpoint = MetricsServer(0)
        url = f"http://127.0.0.1:{endpoint.port}/metrics"
        seen = []

        class Scraping(Observer):
            def committed(self, committed):
                with urlopen(url, timeout=10) as answer:
                    seen.append(samples(answer.read().decode())[("windrow_messages_total",)])

        world.publish(*log(versions=2))
        watch(world, embedded, [endpoint, Scraping()], max_messages=30)
        assert seen == [30, 60]
        with pytest.raises(URLError):
            urlopen(url, timeout=10)

    def test_port_that_is_taken(self):
        """A port that is in use is an error that names the setting, before anything runs."""
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(SettingsError, match=rf"metrics.prometheus_port = {port} .*in use"):
                configured_observers(MetricsSettings(prometheus_port=port))


class TestTextfile:
    def test_goes_on(self, world, embedded, tmp_path):
        """A second run adds to the counters and histograms that the first one left, and sets the gauges anew."""
        file = tmp_path / "windrow.prom"
        for rows in log(versions=2):
            world.publish(rows)
            watch(world, embedded, [Textfile(str(file))])
        values = samples(file.read_text())
        assert values[("windrow_messages_total",)] == 60
        assert values[("windrow_batches_closed_total",)] == len(world.rows("closed"))
        assert values[("windrow_phase_seconds_count", "commit")] == 2
        assert values[("windrow_phase_seconds_bucket", "60.0", "commit")] == 2
        assert values[("windrow_open_batches",)] == len(world.rows("open"))
        refused = [row["reason"] for row in world.rows("rejected")]
        assert {reason: values[("windrow_messages_rejected_total", reason)] for reason in set(refused)} == {
            reason: refused.count(reason) for reason in set(refused)
        }

    def test_keeps_what_does_not_happen_again(self, world, embedded, tmp_path):
        """A run that finds nothing leaves every counter as it was."""
        file = tmp_path / "windrow.prom"
        world.publish(*log(versions=1))
        watch(world, embedded, [Textfile(str(file))])
        before = samples(file.read_text())
        watch(world, embedded, [Textfile(str(file))])
        after = samples(file.read_text())
        ended = ("windrow_run_ended_timestamp_seconds",)
        assert after.pop(ended) > before.pop(ended)
        assert after == before

    def test_failure(self, world, embedded, tmp_path):
        """A run that ends with an error writes the file too, with `run_success` 0."""
        file = tmp_path / "windrow.prom"
        world.publish(*log(versions=1))
        with pytest.raises(RetriesExhaustedError):
            watch(world, embedded, [Textfile(str(file))], fail_times(Point.BEFORE_COMMIT, times=1), max_retries=0)
        assert samples(file.read_text())[("windrow_run_success",)] == 0

    @pytest.mark.parametrize("name", ["windrow.txt", "absent/windrow.prom", "spoilt.prom"])
    def test_no_place_for_it(self, tmp_path, name):
        """A file that would not be collected, cannot be written or is not a metrics file is refused at once."""
        (tmp_path / "spoilt.prom").write_text("windrow_messages_total{ 7")
        with pytest.raises(SettingsError, match=r"metrics\.textfile"):
            configured_observers(MetricsSettings(textfile=str(tmp_path / name)))


class TestChosen:
    def test_nothing_but_the_log(self):
        """By default a run is watched by its log alone, and no optional package is needed."""
        assert [type(observer).__name__ for observer in configured_observers(Settings().metrics)] == ["LogObserver"]

    @pytest.mark.parametrize(
        ("package", "part", "extra"),
        [
            ("prometheus_client", {"textfile": "windrow.prom"}, r"windrow-delta\[metrics\]"),
            ("prometheus_client", {"prometheus_port": 9_464}, r"windrow-delta\[metrics\]"),
            ("opentelemetry", {"opentelemetry": True}, r"windrow-delta\[otel\]"),
            ("openlineage.client", {"openlineage": True}, r"windrow-delta\[lineage\]"),
        ],
    )
    def test_missing_package(self, monkeypatch, package, part, extra):
        """A missing package is an error that names its extra."""
        for module in ("windrow.operate.metrics", "windrow.operate.spans", "windrow.operate.lineage"):
            monkeypatch.delitem(sys.modules, module, raising=False)
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(MissingExtraError, match=extra):
            configured_observers(MetricsSettings(**part))
