import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.engine.factory import EngineFactory
from tests.engine.processes import ROOT
from tests.faults.mishaps import forget_tables
from tests.messages import message, table
from windrow.columnar.arrow import to_plain_types
from windrow.errors import ExpressionError, InputFileError
from windrow.ingest import sample
from windrow.ingest.ingest import IngestResult, ingest

Ingest = Callable[..., list[IngestResult]]


@pytest.fixture
def depot(tmp_path: Path) -> str:
    return str(tmp_path / "depot")


@pytest.fixture
def into(engine: EngineFactory, depot: str, tmp_path: Path) -> Ingest:
    """Ingest files into the depot."""

    def run(*files: Path, columns: dict[str, str] | None = None, **options: Any) -> list[IngestResult]:
        opened = engine.open(depot, str(tmp_path / "ledger")).writer
        return list(ingest(opened, [str(file) for file in files], columns or {}, **options))

    return run


def rows(depot: str) -> list[dict[str, Any]]:
    return to_plain_types(DeltaTable(depot).to_pyarrow_table()).sort_by("event_time").to_pylist()


def written(path: Path, *messages: dict[str, Any]) -> Path:
    pq.write_table(table(messages), path)
    return path


class TestFiles:
    @pytest.mark.slow_on_spark
    def test_appends_each_file_once(self, into: Ingest, depot: str, tmp_path: Path) -> None:
        """A file is one commit of the depot; again, or under another name, it adds nothing."""
        first, second = written(tmp_path / "1", message("a")), written(tmp_path / "2", message("b"), message("c"))
        assert [(result.message_count, result.already_ingested) for result in into(first, second)] == [
            (1, False),
            (2, False),
        ]
        version = DeltaTable(depot).version()
        copy = tmp_path / "copy"
        copy.write_bytes(first.read_bytes())
        assert [(result.message_count, result.already_ingested) for result in into(first, second, copy)] == [
            (0, True)
        ] * 3
        assert DeltaTable(depot).version() == version
        assert sorted(row["type"] for row in rows(depot)) == ["a", "b", "c"]

    @pytest.mark.slow_on_spark
    def test_replaced_meanwhile(self, engine: EngineFactory, into: Ingest, depot: str, tmp_path: Path) -> None:
        """A file that is replaced between being opened and being read is refused, so that no row goes under the hash of
        other content; ingested again, it is there.
        """
        first, second = written(tmp_path / "1", message("a")), written(tmp_path / "2", message("b"))
        opened = engine.open(depot, str(tmp_path / "ledger")).writer
        results = ingest(opened, [str(first), str(second)], {})
        assert next(results).message_count == 1
        written(tmp_path / "other", message("c")).replace(second)
        with pytest.raises(InputFileError, match="changed while it was ingested"):
            next(results)
        assert [(result.message_count, result.already_ingested) for result in into(second)] == [(1, False)]
        assert sorted(row["type"] for row in rows(depot)) == ["a", "c"]

    def test_maps_columns(self, into: Ingest, depot: str, tmp_path: Path) -> None:
        """Expressions make message columns; a column left out is the file's own, or has its default."""
        file = tmp_path / "measurements.parquet"
        measurements = pa.table({"device": ["p/1"], "type": ["heat"], "ms": [1_700_000_000_123], "value": [21.5]})
        pq.write_table(measurements, file)
        columns = {
            "key": "split_part(device, '/', 2)",
            "event_time": "timestamp_millis(ms)",
            "payload": "concat('v', device)",
        }
        [result] = into(file, columns=columns)
        assert result.stamped_by_event_time
        [row] = rows(depot)
        assert (row["source"], row["key"], row["type"], row["payload"]) == ("", "1", "heat", "vp/1")
        assert row["event_time"] == row["received_at"]
        assert row["event_time"].timestamp() * 1_000 == pytest.approx(1_700_000_000_123)

    @pytest.mark.slow_on_spark
    def test_binary_payload_stays_binary(self, into: Ingest, depot: str, tmp_path: Path) -> None:
        """A payload that no text can hold comes through byte by byte."""
        file = tmp_path / "binary.parquet"
        pq.write_table(table([message(payload=b"\xff\x00")], pa.binary()), file)  # type: ignore[arg-type]
        into(file)
        assert [row["payload"] for row in rows(depot)] == [b"\xff\x00"]

    @pytest.mark.slow_on_spark
    def test_empty_file(self, into: Ingest, depot: str, tmp_path: Path) -> None:
        """A file without rows adds none."""
        [result] = into(written(tmp_path / "empty"))
        assert result.message_count == 0
        assert rows(depot) == []


class TestDelta:
    @pytest.mark.slow_on_spark
    def test_goes_on_where_it_was_left(self, into: Ingest, depot: str, tmp_path: Path) -> None:
        """A Delta table is taken as it is, and later only what it added since."""
        bronze = tmp_path / "bronze"
        write_deltalake(bronze, table([message("a")]), configuration={"delta.enableChangeDataFeed": "true"})
        assert into(bronze, format_="delta")[0].message_count == 1
        assert into(bronze, format_="delta")[0].already_ingested
        write_deltalake(bronze, table([message("b")]), mode="append")
        assert into(bronze, format_="delta")[0].message_count == 1
        assert sorted(row["type"] for row in rows(depot)) == ["a", "b"]

    @pytest.mark.slow_on_spark
    def test_set_back(self, into: Ingest, depot: str, tmp_path: Path) -> None:
        """A table whose last versions were lost and written anew is refused, since rows under their numbers would be
        skipped.
        """
        bronze = tmp_path / "bronze"
        write_deltalake(bronze, table([message("a")]), configuration={"delta.enableChangeDataFeed": "true"})
        write_deltalake(bronze, table([message("b")]), mode="append")
        assert into(bronze, format_="delta")[0].message_count == 2
        max((bronze / "_delta_log").glob("*.json")).unlink()
        forget_tables()
        with pytest.raises(InputFileError, match="set back"):
            into(bronze, format_="delta")
        write_deltalake(bronze, table([message("c")]), mode="append")
        forget_tables()
        with pytest.raises(InputFileError, match="set back"):
            into(bronze, format_="delta")
        assert sorted(row["type"] for row in rows(depot)) == ["a", "b"]

    @pytest.mark.slow_on_spark
    def test_changed_rows_are_refused(self, into: Ingest, tmp_path: Path) -> None:
        """A table that deleted rows since cannot be ingested further, and says so."""
        bronze = tmp_path / "bronze"
        write_deltalake(bronze, table([message("a")]), configuration={"delta.enableChangeDataFeed": "true"})
        into(bronze, format_="delta")
        DeltaTable(bronze).delete()
        with pytest.raises(InputFileError, match="deleted or updated"):
            into(bronze, format_="delta")

    @pytest.mark.slow_on_spark
    def test_grown_without_feed(self, engine: EngineFactory, into: Ingest, depot: str, tmp_path: Path) -> None:
        """Of a table without a change feed the embedded engine takes what it added; Spark refuses it, and says what to
        do.
        """
        bronze = tmp_path / "bronze"
        write_deltalake(bronze, table([message("a")]))
        into(bronze, format_="delta")
        write_deltalake(bronze, table([message("b")]), mode="append")
        if engine.name == "embedded":
            assert into(bronze, format_="delta")[0].message_count == 1
        else:
            with pytest.raises(InputFileError, match="grown since version 0, and its change feed cannot be read"):
                into(bronze, format_="delta")
        assert len(rows(depot)) == 1 + (engine.name == "embedded")


class TestElsewhere:
    """Depots on a file system of which only Spark has a driver."""

    @pytest.fixture
    def elsewhere(self, spark: Any, tmp_path: Path) -> Ingest:
        """Ingest files of the local disk into a depot whose files lie in the directory away, on viewfs."""
        session, host = spark.newSession(), uuid4().hex
        (tmp_path / "away").mkdir()
        session.conf.set(f"fs.viewfs.mounttable.{host}.link./mounted", f"file://{tmp_path}/away")
        opened = EngineFactory("spark", session).open(f"viewfs://{host}/mounted/depot", str(tmp_path / "ledger")).writer
        return lambda *files, **options: list(ingest(opened, [str(file) for file in files], {}, **options))

    @pytest.mark.slow
    def test_goes_on_where_it_was_left(self, elsewhere: Ingest, tmp_path: Path) -> None:
        """A table that has grown is read on from any of its versions; one that has not adds nothing, and is said to be
        known. The questions about it leave no commit.
        """
        bronze = tmp_path / "bronze"
        for number in range(6):
            feed = {"delta.enableChangeDataFeed": "true"} if number == 0 else None
            write_deltalake(bronze, table([message(f"{number}a")]), mode="append", configuration=feed)
            if number in {0, 1, 4}:
                [result] = elsewhere(bronze, format_="delta")
                assert (result.message_count, result.already_ingested) == ({0: 1, 1: 1, 4: 3}[number], False)
                assert elsewhere(bronze, format_="delta")[0].already_ingested
        depot = str(tmp_path / "away" / "depot")
        assert sorted(row["type"] for row in rows(depot)) == [f"{number}a" for number in range(5)]
        assert [commit["operation"] for commit in DeltaTable(depot).history()] == ["WRITE"] * 3 + [
            "CREATE TABLE AS SELECT"
        ]

    @pytest.mark.slow
    def test_known_file(self, spark: Any, elsewhere: Ingest, tmp_path: Path) -> None:
        """A file that is there already is said to be known."""
        file = written(tmp_path / "1", message("a"))
        assert [result.already_ingested for _ in range(2) for result in elsewhere(file)] == [False, True]


class TestRefusals:
    @pytest.mark.slow_on_spark
    def test_nothing_is_appended_when_one_file_is_wrong(self, into: Ingest, depot: str, tmp_path: Path) -> None:
        """Files and expressions are checked before the first commit."""
        good, bad = written(tmp_path / "good", message("a")), tmp_path / "bad"
        bad.write_text("no parquet")
        with pytest.raises(InputFileError, match="cannot be read as parquet"):
            into(good, bad)
        with pytest.raises(InputFileError, match="does not exist"):
            into(good, tmp_path / "absent")
        with pytest.raises(ExpressionError):
            into(good, columns={"key": "no_such_column"})
        assert not DeltaTable.is_deltatable(depot)

    @pytest.mark.slow_on_spark
    def test_value_that_an_expression_cannot_take(self, into: Ingest, tmp_path: Path) -> None:
        """Such a value is the fault of the expression, not of the depot, and the error says which value."""
        file = written(tmp_path / "good", message("a", payload="soon"))
        with pytest.raises(ExpressionError, match="soon"):
            into(file, columns={"event_time": "cast(payload as timestamp)"})

    @pytest.mark.slow_unless({"attempt": 0})
    @pytest.mark.parametrize("attempt", range(3))
    def test_ends_after_an_expression_error(self, tmp_path: Path, attempt: int) -> None:
        """A process that cannot map the first row of many files ends with the exit status that says so."""
        values = pa.table({"key": [str(number) for number in range(100_000)]})
        for _ in range(40):
            write_deltalake(tmp_path / "bronze", values, mode="append")
        (tmp_path / "windrow.toml").write_text(
            "[ingest.columns]\ntype = \"'a'\"\nevent_time = \"cast(concat(key, 'x') as timestamp)\"\n"
        )
        command = [sys.executable, "-m", "windrow", "ingest", "bronze", "--format", "delta", "--engine", "embedded"]
        ended = subprocess.run(
            command,
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT / "lib")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (ended.returncode, ended.stderr.split(":")[0]) == (2, "WINDROW-EXPRESSION")

    @pytest.mark.slow_on_spark
    def test_directory_says_what_to_do(self, into: Ingest, tmp_path: Path) -> None:
        """A directory is no parquet file; the hint names --format delta for a Delta table."""
        write_deltalake(tmp_path / "bronze", table([message("a")]))
        with pytest.raises(InputFileError, match="--format delta"):
            into(tmp_path / "bronze")

    @pytest.mark.slow_on_spark
    def test_address_of_a_file(self, engine: EngineFactory, depot: str, tmp_path: Path) -> None:
        """A Parquet file must be local, because its content is hashed; this is said before anything is created."""
        file = written(tmp_path / "one", message("a"))
        with pytest.raises(InputFileError, match="is not a local file"):
            list(ingest(engine.open(depot, str(tmp_path / "ledger")).writer, [file.as_uri()], {}))
        assert not DeltaTable.is_deltatable(depot)


class TestSample:
    @pytest.mark.slow
    def test_same_on_both_engines(self, spark: Any, tmp_path: Path) -> None:
        """The bundled sample becomes the same messages on both engines, none of them invalid."""
        file = sample.copy_into(tmp_path)
        taken = []
        for factory in (EngineFactory("embedded"), EngineFactory("spark", spark)):
            depot = str(tmp_path / factory.name)
            opened = factory.open(depot, str(tmp_path / "ledger")).writer
            [result] = ingest(opened, [str(file)], sample.COLUMNS)
            assert result.message_count == 51_004
            order = [(name, "ascending") for name in ("received_at", "type", "event_time")]
            taken.append(to_plain_types(DeltaTable(depot).to_pyarrow_table()).sort_by(order))
        assert taken[0].equals(taken[1])
        assert taken[0].drop_columns(["sequence"]).column("event_time").null_count == 0
