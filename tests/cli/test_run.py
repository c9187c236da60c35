import json
import signal
import subprocess
import sys
import time
from itertools import takewhile
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.cli.conftest import Command, publish
from tests.messages import SECOND, message


class TestRun:
    def test_says_what_it_did(self, windrow: Command, tmp_path: Path) -> None:
        """A run says how much it read, accepted, rejected, opened and closed; a second one finds nothing."""
        publish(tmp_path, message("a", 100 * SECOND, 100 * SECOND), message("a", 0, 100 * SECOND))
        windrow("ingest", "messages.parquet")
        result = windrow("run")
        assert result.status == 0
        assert "2 messages read, 1 accepted, 1 rejected; 1 batch opened" in result.out
        [started, microbatch, ended] = map(json.loads, result.err.splitlines())
        assert (started["event"], started["engine"]) == ("run started", "embedded")
        assert (microbatch["event"], microbatch["message_count"]) == ("microbatch", 2)
        assert (ended["event"], ended["rejected"]) == ("run ended", 1)
        assert "Nothing new" in windrow("run").out

    def test_accept(self, windrow: Command, tmp_path: Path) -> None:
        """A run stops at a deletion and says how to go on after it; with --skip-version it does."""
        publish(tmp_path, message("a", 100 * SECOND, 100 * SECOND), message("b", 101 * SECOND, 101 * SECOND))
        windrow("ingest", "messages.parquet")
        windrow("run")
        DeltaTable("data/depot").delete("type = 'a'")
        version = DeltaTable("data/depot").version()
        stopped = windrow("run")
        assert (stopped.status, f"`windrow run --skip-version {version}`" in stopped.err) == (3, True)
        assert f"stop    depot version {version} removed or changed rows" in windrow("status").out
        assert windrow("run", "--skip-version", str(version)).status == 0
        output = windrow("status").out
        assert f"skipped depot version {version}: none of the rows were read" in output
        assert "stop " not in output
        assert windrow("run", "--skip-version", str(version + 1)).status == 2

    def test_warns(self, windrow: Command, tmp_path: Path) -> None:
        """When repeated types split most windows, the log warns, status has a hint and the doctor a warning."""
        publish(tmp_path, *(message("a", at * SECOND, at * SECOND) for at in range(150)))
        windrow("ingest", "messages.parquet")
        warnings = [line for line in map(json.loads, windrow("run").err.splitlines()) if line["level"] == "warning"]
        assert [line["event"] for line in warnings] == ["ledger-splits"]
        [hint] = windrow("status", "--json").json()["hints"]
        findings = windrow("doctor", "--json").json()["findings"]
        [finding] = [finding for finding in findings if finding["code"] == "ledger-splits"]
        assert hint == f"{warnings[0]['warning']}. {warnings[0]['hint']}" == f"{finding['message']}. {finding['hint']}"

    def test_json(self, filled: Command, tmp_path: Path) -> None:
        """With --json standard output holds one document with totals and microbatches, and nothing else."""
        publish(tmp_path, message("b", 161 * SECOND, 161 * SECOND))
        filled("ingest", "messages.parquet")
        document = filled("run", "--once", "--json").json()
        assert (document["engine"], document["message_count"], document["accepted"]) == ("embedded", 1, 1)
        [microbatch] = document["microbatches"]
        assert microbatch["kind"] == "data"
        assert {"prime_ms", "plan_ms", "process_ms", "commit_ms"} <= microbatch.keys()

    def test_terminated_after_the_microbatch(self, filled: Command, tmp_path: Path) -> None:
        """SIGTERM ends `run --interval` between two microbatches, with exit status 0."""
        command = "import sys; from windrow.cli import main; sys.exit(main())"
        process = subprocess.Popen(
            [sys.executable, "-c", command, "run", "--interval", "50ms", "--ledger", "other"],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            deadline = time.monotonic() + 60
            while not DeltaTable.is_deltatable(str(tmp_path / "other")) or DeltaTable(tmp_path / "other").version() < 1:
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode == 0
        stopping = [line for line in map(json.loads, errors.splitlines()) if line["event"].startswith("stopping")]
        assert [line["signal"] for line in stopping] == ["SIGTERM"]

    @pytest.mark.ci
    def test_maintains(self, filled: Command, tmp_path: Path) -> None:
        """With --interval the tables are maintained, which log and last sentence say; SIGTERM ends it as before."""
        for _ in range(2):
            filled("tick", "--all")
        publish(tmp_path, message("b", 161 * SECOND, 161 * SECOND))
        filled("ingest", "messages.parquet")
        process = subprocess.Popen(
            [sys.executable, "-m", "windrow", "run", "--interval", "10s", "--maintenance-interval", "1h"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            lines = map(json.loads, process.stderr)
            maintenance_lines = [
                line for line in takewhile(lambda line: line.get("table") != "depot", lines) if "table" in line
            ]
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode == 0
        assert [(line["event"], line["table"]) for line in maintenance_lines] == [("maintenance", "ledger")]
        assert f" {maintenance_lines[0]['files_removed'] + 2} small files compacted into" in out

    @pytest.mark.parametrize("others", [(), ("--once",), ("--dry-run",)])
    def test_maintenance_interval_without_interval(self, windrow: Command, others: tuple[str, ...]) -> None:
        """A run that ends never maintains, and says so to who asks it for that."""
        result = windrow("run", "--maintenance-interval", "1h", *others)
        assert (result.status, "--maintenance-interval needs --interval" in result.err) == (2, True)

    def test_once_and_every_exclude_each_other(self, windrow: Command) -> None:
        """Contradicting flags are wrong usage."""
        result = windrow("run", "--once", "--interval", "1s")
        assert result.status == 2
        assert "WINDROW-SETTINGS" in result.err


class TestLog:
    def test_flags(self, filled: Command) -> None:
        """--log-format and --log-level win over [log] of the file, setting by setting; the document stays alone."""
        Path("windrow.toml").write_text('idle_timeout = "never"\n[log]\nlevel = "warning"\n')
        result = filled("run", "--json")
        assert (result.json()["message_count"], result.err) == (0, "")
        result = filled("run", "--log-level", "info", "--log-format", "pretty")
        assert [line.split("]", 1)[1].split()[:2] for line in result.err.splitlines()] == [
            ["run", "started"],
            ["run", "ended"],
        ]
        result = filled("tick", "--to", "1970-01-01T00:10:00Z", "--log-level", "info")
        assert [json.loads(line)["event"] for line in result.err.splitlines()] == [
            "run started",
            "microbatch",
            "run ended",
        ]
        assert filled("tick", "--all", "--log-level", "loud").status == 2

    def test_textfile(self, filled: Command, tmp_path: Path) -> None:
        """A command leaves its metrics where [metrics] says, but a dry run, which does nothing that counts."""
        Path("windrow.toml").write_text('[metrics]\ntextfile = "windrow.prom"\n')
        assert filled("run", "--dry-run").status == 0
        assert not Path("windrow.prom").exists()
        assert filled("tick", "--all").status == 0
        assert 'windrow_microbatches_total{kind="flush",ledger="data/ledger"} 1.0' in Path("windrow.prom").read_text()


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "status", "says"),
        [
            (("run",), 3, "WINDROW-TABLE-MISSING: there is no depot"),
            (("run", "--engine", "flink"), 2, "WINDROW-SETTINGS"),
            (("run", "--config", "absent.toml"), 2, "absent.toml cannot be read"),
            (("run", "--interval", "soon"), 2, "'soon' is not a duration"),
            (("rum",), 2, "No such command"),
            (("run", "--bogus"), 2, "No such option"),
            (("ingest", "absent.parquet"), 2, "WINDROW-FILE"),
            (("ingest", "x", "--format", "xml"), 2, "Known are parquet, delta"),
        ],
    )
    def test_status_and_message(self, windrow: Command, arguments: tuple[str, ...], status: int, says: str) -> None:
        """Wrong usage ends with 2, a failing world with 3, both with one or two lines and no traceback."""
        result = windrow(*arguments)
        assert result.status == status
        assert says in result.err
        assert len([line for line in result.err.splitlines() if not line.startswith("{")]) <= 3
        assert "Traceback" not in result.err
        assert result.out == ""

    def test_debug_shows_the_traceback(self, windrow: Command) -> None:
        """With --debug the error itself comes through."""
        from windrow.errors import TableMissingError

        with pytest.raises(TableMissingError):
            windrow("run", "--debug")
