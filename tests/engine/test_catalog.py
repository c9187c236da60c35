"""Tables by name in Spark's session catalog, with their files in a warehouse on disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EngineFactory
from tests.messages import SECOND, log, message, table
from tests.probes import open_tables, runner_on
from windrow import reading
from windrow.cli import main
from windrow.columnar.arrow import to_plain_types
from windrow.errors import EngineUnavailableError, IncompatibleTableError, TableMissingError
from windrow.formats.settings import FormatSettings
from windrow.ingest.ingest import ingest
from windrow.model import chunks, tables
from windrow.model.chunks import Chunk
from windrow.notebook import Notebook
from windrow.rows.frame import frame_of
from windrow.runtime.loop import Runner
from windrow.settings.settings import Settings
from windrow.verify import verify

pytestmark = pytest.mark.spark

VIEWS = {*tables.views("")}


@pytest.fixture
def schema(spark: Any, tmp_path: Any) -> Iterator[str]:
    """A schema of its own, whose tables lie under the test's directory."""
    name = f"s_{tmp_path.name}".replace("-", "_")
    spark.sql(f"CREATE SCHEMA {name} LOCATION '{tmp_path}/warehouse'")
    yield name
    spark.sql(f"DROP SCHEMA {name} CASCADE")


@pytest.fixture
def settings(schema: str) -> Settings:
    """Depot and ledger by name, without idle ticks."""
    return Settings(depot=f"{schema}.depot", ledger=f"{schema}.ledger", engine="spark", idle_timeout="never")


def run(settings: Settings, spark: Any, clock: ManualClock) -> Runner:
    """Run once and return the runner."""
    runner = runner_on(open_tables(settings, spark), clock)
    runner.once()
    return runner


def create_depot(settings: Settings, spark: Any) -> None:
    """Create the depot."""
    open_tables(settings, spark).writer.create(table([]).schema.field("payload").type, "90d")


def tables_in(spark: Any, schema: str) -> set[str]:
    """Return the tables and views of a schema, without temporary views, which belong to the session."""
    return {row.tableName for row in spark.sql(f"SHOW TABLES IN {schema}").collect() if not row.isTemporary}


def publish(spark: Any, name: str, rows: list[dict[str, Any]]) -> None:
    """Append messages to a table by name."""
    frame_of(spark, table(rows)).write.format("delta").mode("append").saveAsTable(name)


@pytest.mark.ci
def test_whole_way(spark: Any, schema: str, settings: Settings, clock: ManualClock, embedded: EngineFactory) -> None:
    """From a depot by name to the views: the batches are those of the same messages in tables by path, the views show
    them under the columns of the interface, and what reads without a JVM finds the tables by their paths.
    """
    create_depot(settings, spark)
    for rows in log(versions=3):
        publish(spark, settings.depot, rows)
    summary = run(settings, spark, clock).summary
    assert summary.total("message_count") == 90
    opened = open_tables(settings, spark)
    depot, ledger = opened.engine.path(settings.depot), opened.ledger.path
    assert "Spark" in DeltaTable(ledger).history(1)[0]["engineInfo"]
    other = embedded.settings(str(depot), f"{ledger}-by-path", idle_timeout="never")
    assert run(other, None, clock).summary.total("closed") == summary.total("closed")
    by_name, by_path = (
        spark.sql(
            f"SELECT * EXCEPT (opened_microbatch, closed_microbatch) FROM {table_} WHERE state = 'closed' ORDER BY id"
        ).toArrow()
        for table_ in (f"{schema}.ledger", f"delta.`{ledger}-by-path`")
    )
    assert to_plain_types(by_name).select(by_path.column_names[:20]) == to_plain_types(by_path).select(
        by_path.column_names[:20]
    )
    assert tables_in(spark, schema) == VIEWS | {"depot", "ledger"}
    assert spark.table(f"{schema}.closed_batches").columns == [name for name, _ in tables.batch_fields(None)]
    assert spark.table(f"{schema}.closed_batches").count() == summary.total("closed")
    message_count = spark.table(f"{schema}.closed_batches").selectExpr("sum(message_count)").collect()[0][0]
    assert spark.table(f"{schema}.closed_messages").count() == message_count
    assert spark.table(f"{schema}.rejected_messages").count() == summary.total("rejected")
    assert spark.table(f"{schema}.microbatches").selectExpr("sum(message_count)").collect()[0][0] == 90
    assert reading.status(str(depot), str(ledger), clock.now()).closed.batch_count == summary.total("closed")
    assert verify(str(depot), str(ledger)).ok


@pytest.mark.slow
def test_ingest(spark: Any, settings: Settings, tmp_path: Path) -> None:
    """A Delta table that has grown is ingested on from where it was left, into a depot by name, also where Spark alone
    knows what the depot's log has recorded.
    """
    bronze = str(tmp_path / "bronze")
    for number in range(3):
        feed = {"delta.enableChangeDataFeed": "true"} if number == 0 else None
        write_deltalake(bronze, table([message(f"t{number}")]), mode="append", configuration=feed)
        for known in (False, True):
            [ingested] = ingest(open_tables(settings, spark).writer, [bronze], {}, "delta")
            assert (ingested.already_ingested, ingested.message_count) == (known, 0 if known else 1)
    assert sorted(row.type for row in spark.table(settings.depot).select("type").collect()) == ["t0", "t1", "t2"]


@pytest.mark.slow
def test_raw(spark: Any, schema: str, settings: Settings, clock: ManualClock) -> None:
    """The views over the ledger of a raw depot show the bytes that a format refused, and how many were read; so do the
    temporary views of a notebook.
    """
    data = b"a,1\nb,none\n"
    raw = settings.model_copy(
        update={
            "depot_columns": {"key": "k", "type": "'t'", "event_time": "received_at", "payload": "cast(v as string)"},
            "format": FormatSettings(type="csv", has_header=False, fields={"k": "string", "v": "int64"}),
        }
    )
    open_tables(raw, spark).writer.create(None, "90d")
    rows = chunks.rows("a file", [Chunk(1, data, last=True)], NOW)
    frame_of(spark, rows).write.format("delta").mode("append").saveAsTable(raw.depot)
    assert run(raw, spark, clock).summary.total("rejected") == 1
    assert tables_in(spark, schema) == VIEWS | {"depot", "ledger"}
    at = Notebook(
        {
            "spark": spark,
            "dbutils": SimpleNamespace(
                widgets=SimpleNamespace(
                    text=lambda name, default: None, get={"depot": raw.depot, "ledger": raw.ledger, "config": ""}.get
                )
            ),
        }
    )
    at.views()
    for home in (f"{schema}.", ""):
        [row] = spark.sql(
            f"SELECT reason, raw_source, chunk, `offset`, content, microbatch FROM {home}rejected_messages"
        ).collect()
        assert tuple(row) == ("format_cast", "a file", 1, 4, bytearray(b"b,none\n"), 1)
        [row] = spark.sql(f"SELECT messages, bytes_read, bytes_rejected, format FROM {home}microbatches").collect()
        assert tuple(row) == (2, 11, 7, raw.format.recorded_text())


@pytest.mark.slow
def test_goes_on(spark: Any, settings: Settings, clock: ManualClock) -> None:
    """A ledger by name is found again: the second run reads only what is new, in one commit with the first rows of
    all.
    """
    create_depot(settings, spark)
    publish(spark, settings.depot, [message()])
    run(settings, spark, clock)
    publish(spark, settings.depot, [message("b"), message("a", NOW + 30 * SECOND, NOW + 30 * SECOND)])
    assert run(settings, spark, clock).summary.total("message_count") == 2
    history = spark.sql(f"DESCRIBE HISTORY {settings.ledger}").orderBy("version").collect()
    assert [row.operation for row in history] == ["CREATE TABLE AS SELECT", "WRITE", "WRITE"]
    kept = DeltaTable(str(open_tables(settings, spark).ledger.path)).metadata().configuration
    assert kept["delta.enableChangeDataFeed"] == "true"
    assert kept["delta.logRetentionDuration"] == "interval 7776000 seconds"


@pytest.mark.slow
def test_created_twice(spark: Any, settings: Settings, clock: ManualClock) -> None:
    """Creating what is there changes nothing."""
    for _ in range(2):
        create_depot(settings, spark)
    run(settings, spark, clock)
    ledger = open_tables(settings, spark).ledger
    first = ledger.live().rows.slice(0, 1)
    ledger.create(first, "90d")
    assert ledger.live().rows.num_rows == 1


@pytest.mark.slow
def test_views_elsewhere(spark: Any, schema: str, settings: Settings, clock: ManualClock) -> None:
    """A view that somebody else has under one of the names is left alone, and the error says which setting helps."""
    create_depot(settings, spark)
    spark.sql(f"CREATE VIEW {schema}.open_batches AS SELECT 1 AS theirs")
    with pytest.raises(IncompatibleTableError, match=r"open_batches.*\n.*views ="):
        run(settings, spark, clock)
    assert spark.table(f"{schema}.open_batches").columns == ["theirs"]
    spark.sql(f"CREATE SCHEMA {schema}_views")
    try:
        run(settings.model_copy(update={"views_schema": f"{schema}_views"}), spark, clock)
        assert tables_in(spark, f"{schema}_views") == VIEWS
    finally:
        spark.sql(f"DROP SCHEMA {schema}_views CASCADE")


@pytest.mark.slow
def test_equal_view_is_left_alone(spark: Any, schema: str, settings: Settings, clock: ManualClock) -> None:
    """A view of the same text is not made again, for not every catalog can replace one; another text replaces it."""
    create_depot(settings, spark)
    run(settings, spark, clock)
    view, ledger = f"{schema}.open_batches", open_tables(settings, spark).ledger
    kept = f"SHOW TBLPROPERTIES {view} ('kept')"
    spark.sql(f"ALTER VIEW {view} SET TBLPROPERTIES ('kept' = 'yes')")
    assert view.split(".")[1] in "".join(ledger.create_views())
    assert spark.sql(kept).head()["value"] == "yes"
    [comment] = [row["data_type"] for row in spark.sql(f"DESCRIBE EXTENDED {view}").collect() if row[0] == "Comment"]
    spark.sql(f"CREATE OR REPLACE VIEW {view} COMMENT '{comment}' AS SELECT 1 AS old")
    ledger.create_views()
    assert "old" not in spark.table(view).columns


@pytest.mark.parametrize("schema_name", ["nowhere", "main.nowhere"], ids=["schema", "catalog"])
def test_no_schema(spark: Any, clock: ManualClock, schema_name: str) -> None:
    """A name in a schema that does not exist is an error that says so, for a depot and for a ledger; so is one of three
    parts where Spark knows no such catalog.
    """
    settings = Settings(depot=f"{schema_name}.depot", ledger=f"{schema_name}.ledger", engine="spark")
    with pytest.raises(TableMissingError, match=rf"there is no depot at {schema_name}\.depot"):
        run(settings, spark, clock)
    quoted = "`" + schema_name.replace(".", "`.`") + "`"
    with pytest.raises(TableMissingError, match=f"there is no schema {quoted}"):
        create_depot(settings, spark)


@pytest.mark.slow
def test_other_format(spark: Any, schema: str, settings: Settings, clock: ManualClock) -> None:
    """A table by name that is not Delta is refused."""
    spark.sql(f"CREATE TABLE {schema}.depot (key STRING) USING PARQUET")
    with pytest.raises(IncompatibleTableError, match="PARQUET"):
        run(settings, spark, clock)


@pytest.mark.slow
def test_embedded(schema: str, settings: Settings) -> None:
    """The embedded engine refuses names, and says how to find the path."""
    with pytest.raises(EngineUnavailableError, match="DESCRIBE DETAIL"):
        open_tables(settings.model_copy(update={"engine": "embedded"}))


@pytest.mark.slow
def test_as_a_job_of_a_platform(
    spark: Any,
    schema: str,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A job takes the session of the platform, tables, views and checkpoints from its flags and the rest from its file,
    in a thread that hears no signals; where nothing can be written beside that file, the run says so and succeeds.
    """
    create_depot(settings, spark)
    publish(spark, settings.depot, [message("a"), message("b")])
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "19")
    (tmp_path / "windrow.toml").write_text('engine = "spark"\n[rules]\nwindow = "7s"\n')
    (tmp_path / ".windrow").touch()
    flags = {
        "config": tmp_path / "windrow.toml",
        "depot": settings.depot,
        "ledger": settings.ledger,
        "views_schema": schema,
        "checkpoint_location": tmp_path / "checkpoints",
    }
    with ThreadPoolExecutor() as thread:
        job = thread.submit(main, ["run", *(f"--{name}={value}" for name, value in flags.items())])
        assert job.result() == 0
    warnings = [line for line in map(json.loads, capfd.readouterr().err.splitlines()) if line["level"] == "warning"]
    assert {line["event"] for line in warnings} == {"paths not noted"}
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1
    [microbatch] = spark.sql(f"SELECT message_count, rules FROM {schema}.microbatches").collect()
    assert (microbatch.message_count, json.loads(microbatch.rules)["window"]) == (2, 7 * SECOND)
