import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Command, publish
from tests.messages import SECOND, message


def rows(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


class TestExport:
    def test_file(self, filled: Command, tmp_path: Path) -> None:
        """A file holds the closed batches; what is said counts them, and where the next export goes on."""
        result = filled("export", "--out", "closed.parquet")
        assert (result.status, result.err) == (0, "")
        assert "closed.parquet: 2 batches. Next export: --since 1@" in result.out
        assert pq.read_table(tmp_path / "closed.parquet")["message_count"].to_pylist() == [2, 1]

    def test_since(self, filled: Command, tmp_path: Path) -> None:
        """An export since the last one has what closed later, and only that."""
        first = filled("export", "--out", "first.json", "--json").json()
        assert (first["row_count"], first["what"], first["format"]) == (2, "batches", "json")
        publish(tmp_path, message("a", 190 * SECOND, 190 * SECOND))
        filled("ingest", "messages.parquet")
        filled("run")
        second = filled("export", "--out", "second.json", "--since", first["position"], "--json").json()
        assert second["row_count"] == 1
        ids = [row["id"] for name in ("first", "second") for row in rows((tmp_path / f"{name}.json").read_text())]
        assert sorted(ids) == sorted(row["id"] for row in filled("show", "--closed", "--json").json())

    def test_standard_output(self, filled: Command) -> None:
        """On standard output stand the rows and nothing else."""
        result = filled("export", "--out", "-", "--format", "json", "--messages")
        assert [row["payload"] for row in rows(result.out)] == ["1", None, None]
        assert "3 messages" in result.err
        result = filled("export", "--out", "-", "--format", "csv", "--rejected")
        assert result.out.count("\n") == 2
        assert "1 rejected message." in result.err

    @pytest.mark.parametrize(
        ("flags", "count"),
        [
            (("--key", "k"), 2),
            (("--key", "nobody"), 0),
            (("--source", ""), 2),
            (("--source", "nobody"), 0),
            (("--open",), 3),
            (("--open", "--to", "1970-01-01T00:02:00"), 1),
            (("--from", "1970-01-01T00:02:00Z"), 1),
            (("--to", "1970-01-01T00:02:00"), 1),
            (("--from", "1970-01-01", "--to", "1971-01-01"), 2),
        ],
    )
    def test_filters(self, filled: Command, flags: tuple[str, ...], count: int) -> None:
        """Key, source and times narrow what is written; open batches come besides."""
        assert filled("export", "--out", "some.csv", *flags, "--json").json()["row_count"] == count

    @pytest.mark.parametrize(
        ("flags", "code"),
        [
            (("--out", "mine.csv"), "WINDROW-OUTPUT: mine.csv exists already\nName another file, or add --overwrite"),
            (("--out", "a.csv", "--messages", "--rejected"), "WINDROW-OUTPUT: --messages, --pivot and --rejected"),
            (("--out", "a.csv", "--pivot", "--rejected"), "WINDROW-OUTPUT: --messages, --pivot and --rejected"),
            (("--out", "a.csv", "--open", "--messages"), "WINDROW-OUTPUT: --open goes with neither"),
            (("--out", "a.csv", "--type", "a"), "WINDROW-OUTPUT: --type needs --pivot"),
            (("--out", "-", "--json", "--format", "csv"), "WINDROW-OUTPUT: --json and --out -"),
            (("--out", "a.csv", "--from", "yesterday"), "WINDROW-SETTINGS: --from 'yesterday' is not a time"),
            (("--out", "a.csv", "--since", "yesterday"), "WINDROW-SETTINGS: since = 'yesterday' is not a position"),
        ],
    )
    def test_wrong_usage(self, filled: Command, tmp_path: Path, flags: tuple[str, ...], code: str) -> None:
        """Wrong usage ends with status 2, says what to do, and writes nothing."""
        (tmp_path / "mine.csv").write_text("mine")
        result = filled("export", *flags)
        assert result.status == 2
        assert code in result.err
        assert [(path.name, path.read_text()) for path in tmp_path.glob("*.csv")] == [("mine.csv", "mine")]
        assert filled("export", "--out", "mine.csv", "--overwrite").status == 0

    def test_restored(self, filled: Command) -> None:
        """A position that the ledger has not reached, or no longer holds, ends with status 3."""
        for since in ("2", "1@000000000000"):
            result = filled("export", "--out", "a.csv", "--since", since)
            assert (result.status, "WINDROW-LEDGER-RESTORED" in result.err) == (3, True)

    def test_reader_gone(self, filled: Command, tmp_path: Path) -> None:
        """A reader of standard output that stops early ends the export without an error."""
        script = (
            "import sys; from windrow.cli import main; sys.exit(main(['export', '--out', '-', '--format', 'json']))"
        )
        with subprocess.Popen(
            [sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout
            assert process.stderr
            process.stdout.close()
            assert (process.wait(), process.stderr.read()) == (0, "")

    def test_starts_no_jvm_and_no_compiler(self, filled: Command, tmp_path: Path) -> None:
        """Export loads neither Spark nor the kernel's compiler."""
        script = (
            "import sys; from windrow.cli import main; status = main(['export', '--out', 'a.parquet']); "
            "loaded = {'pyspark', 'numba'} & set(sys.modules); "
            "sys.exit(f'loaded {loaded}' if loaded else status)"
        )
        completed = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert completed.returncode == 0, completed.stderr
