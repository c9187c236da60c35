"""What is done with a ledger each day, on a session of the restricted server; `test_restricted.py` runs these tests.

All tables have names, and their files are where this process cannot read them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyspark
import pytest
from deltalake import DeltaTable
from grpc import RpcError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import windrow
from tests.clocks import NOW, ManualClock
from tests.engine.factory import EMBEDDED
from tests.engine.world import World
from tests.messages import SECOND, log, message, table
from tests.verify.quality.damages import DAMAGES, damage
from tests.verify.quality.test_check import assert_alike
from windrow.cli import main
from windrow.errors import EngineUnavailableError
from windrow.rows.frame import frame_of
from windrow.settings.settings import Settings
from windrow.topology import Microbatch, SparkMicrobatch, Topology, run_topology
from windrow.topology.replay import replay_topology
from windrow.verify import quality
from windrow.verify.invariants import INVARIANTS

pytestmark = pytest.mark.spark

COLUMNS = "source STRING, key STRING, type STRING, event_time TIMESTAMP, received_at TIMESTAMP, sequence BIGINT, "
CREATE = f"CREATE TABLE {{}} ({COLUMNS}payload STRING) USING DELTA"


@pytest.fixture
def schema(spark: Any) -> Iterator[str]:
    """A schema of its own, whose tables are managed."""
    name = f"windrow_{uuid4().hex}"
    spark.sql(f"CREATE SCHEMA {name}").collect()
    yield name
    spark.sql(f"DROP SCHEMA {name} CASCADE").collect()


@pytest.fixture
def settings(schema: str, tmp_path: Path) -> Settings:
    """Depot and ledger by name; checkpoints of streams elsewhere."""
    values = {
        "depot": f"{schema}.depot",
        "ledger": f"{schema}.ledger",
        "checkpoint_location": str(tmp_path / "checkpoints"),
    }
    return Settings(engine="spark", idle_timeout="never", **values)


@pytest.fixture
def command(settings: Settings, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command as a job does, with flags and a file, and return the JSON that it prints."""
    config = tmp_path / "windrow.toml"
    values = {name: getattr(settings, name) for name in ("engine", "depot", "ledger", "checkpoint_location")}
    lines = [*(f"{name} = {json.dumps(value)}" for name, value in values.items()), 'idle_timeout = "never"']
    config.write_text("\n".join(lines))

    def run(name: str, *flags: str, status: int = 0) -> Any:
        capfd.readouterr()
        ended = main([name, "--config", str(config), "--json", *flags])
        said = capfd.readouterr()
        assert ended == status, said.err[-4_000:]
        assert "JVM stacktrace" not in said.err, said.err[:4_000]
        return json.loads(said.out) if status == 0 else said.err

    return run


def publish(spark: Any, name: str, rows: list[dict[str, Any]]) -> None:
    """Append messages to a depot."""
    frame_of(spark, table(rows)).write.format("delta").mode("append").saveAsTable(name)


OUTCOMES = len(INVARIANTS) + 6  # and the warnings
DAMAGED = ("batch_message_count", "batch_messages_sorted", "message_once", "rejected_duplicate", "source_clock")


REFUSED: dict[str, tuple[Callable[[Any, str], object], str, str]] = {
    "a setting": (
        lambda spark, _: spark.conf.set("spark.databricks.delta.commitInfo.userMetadata", "x"),
        "CONFIG_NOT_AVAILABLE",
        "/spark/conf",
    ),
    "a setting in SQL": (
        lambda spark, _: spark.sql("SET spark.x = 1").collect(),
        "CONFIG_NOT_AVAILABLE",
        "/spark/conf",
    ),
    "persist": (
        lambda spark, _: spark.range(1).persist(StorageLevel.DISK_ONLY),
        "NOT_SUPPORTED_WITH_SERVERLESS",
        "serverless/limitations",
    ),
    "CACHE TABLE": (
        lambda spark, name: spark.sql(f"CACHE TABLE {name}").collect(),
        "NOT_SUPPORTED_WITH_SERVERLESS",
        "serverless/limitations",
    ),
    "a checkpoint": (
        lambda spark, _: spark.range(1).localCheckpoint(),
        "NOT_SUPPORTED_WITH_SERVERLESS",
        "serverless/limitations",
    ),
    "a global view": (
        lambda spark, _: spark.range(1).createGlobalTempView("x"),
        "NOT_SUPPORTED_WITH_SERVERLESS",
        "serverless/limitations",
    ),
    "another trigger": (
        lambda spark, name: spark.readStream.table(name).writeStream.format("noop").start(),
        "INFINITE_STREAMING_TRIGGER_NOT_SUPPORTED",
        "serverless/limitations#streaming",
    ),
    "input_file_name": (
        lambda spark, name: spark.table(name).select(F.input_file_name()).collect(),
        "UC_COMMAND_NOT_SUPPORTED",
        "functions/input_file_name",
    ),
    "a path": (
        lambda spark, name: spark.read.format("delta").load(location(spark, name)).collect(),
        "INVALID_PARAMETER_VALUE.LOCATION_OVERLAP",
        "unity-catalog/paths",
    ),
    "a path in SQL": (
        lambda spark, name: spark.sql(f"SELECT * FROM delta.`{location(spark, name)}`").collect(),
        "INVALID_PARAMETER_VALUE.LOCATION_OVERLAP",
        "unity-catalog/paths",
    ),
    "a JAR": (
        lambda spark, _: spark.addArtifacts(jar()),
        "NOT_SUPPORTED_WITH_SERVERLESS",
        "serverless/limitations",
    ),
    "no deletion vectors": (
        lambda spark, name: spark.sql(
            f"CREATE TABLE {name}_2 (a INT) USING DELTA TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')"
        ),
        "catalog requires table property",
        "UCDeltaCatalogClientImpl",
    ),
    "the JVM": (lambda spark, _: spark.sparkContext, "JVM_ATTRIBUTE_NOT_SUPPORTED", "spark"),
    "much memory": (
        lambda spark, _: spark.range(1).mapInArrow(much_memory, "id LONG").collect(),
        "",
        "MemoryError",
    ),
}


def location(spark: Any, name: str) -> str:
    """Return where the files of a table are."""
    return str(spark.sql(f"DESCRIBE DETAIL {name}").collect()[0]["location"])


def jar() -> str:
    """Return the path of a library for Java."""
    return str(min((Path(pyspark.__file__).parent / "jars").glob("*.jar"), key=lambda file: file.stat().st_size))


def much_memory(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Take more than a function may have, whatever of it Python and its libraries take."""
    taken = bytearray(3 << 30)
    yield from batches
    del taken


def test_refused(spark: Any, schema: str) -> None:
    """
    What Databricks refuses on serverless compute is refused here, each with its condition and with its source; what it
    allows is not.
    """
    name = f"{schema}.depot"
    spark.sql(CREATE.format(name)).collect()
    for what, (attempt, condition, source) in REFUSED.items():
        with pytest.raises((PySparkException, RpcError)) as refused:
            attempt(spark, name)
        assert condition in str(refused.value), what
        assert source in str(refused.value), what
    for setting, value in {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2"}.items():
        spark.conf.set(setting, value)
    stream = spark.readStream.table(name).writeStream.format("noop").trigger(availableNow=True)
    stream.start().awaitTermination()


def test_batches(spark: Any, settings: Settings, command: Callable[..., Any], tmp_path: Path) -> None:
    """
    A depot and a ledger are made, batched, paused, ticked and flushed, as jobs do it; what the commands show and export
    of the ledger is what was published.
    """
    command("init")
    command("init")  # views that are the same are left alone
    publish(spark, settings.depot, [row for rows in log(versions=2) for row in rows])
    done = command("run")
    assert (done["message_count"], done["accepted"] + done["rejected"]) == (60, 60)
    command("pause")
    publish(spark, settings.depot, log(versions=1, seed=2)[0])
    assert command("run")["message_count"] == 0
    command("resume")
    command("tick")
    assert command("run", "--once")["message_count"] == 30
    command("tick", "--all")
    status = command("status")
    assert status["open"]["batch_count"] == 0
    command("export", "--out", str(tmp_path / "closed.parquet"))
    assert command("show", "--key", "k")
    kinds = {row["kind"] for row in command("status", "--history", "20")["microbatches"]}
    assert kinds >= {"data", "tick", "pause", "resume"}
    [counted] = spark.sql(f"SELECT count(*) AS batches FROM {settings.ledger} WHERE state = 'closed'").collect()
    assert status["closed"]["batch_count"] == counted["batches"] > 0


def test_upkeep(spark: Any, settings: Settings, command: Callable[..., Any]) -> None:
    """
    A ledger is verified and maintained.
    """
    assert command("maintain", "--if-exists")["waiting"].startswith("there is no")
    command("init")
    publish(spark, settings.depot, log(versions=1)[0])
    assert command("run")["message_count"] == 30
    assert command("verify")["ok"]
    command("maintain")


def test_examined(spark: Any, settings: Settings, command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A ledger is checked, and the doctor, who needs no Java here, finds no error in it or in its depot.
    """
    assert command("quality", "--if-exists")["waiting"].startswith("there is no")
    command("init")
    publish(spark, settings.depot, log(versions=1)[0])
    assert command("run")["message_count"] == 30
    checked = command("quality")
    assert (checked["ok"], checked["row_counts"]["microbatch"], len(checked["outcomes"])) == (True, 1, OUTCOMES)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    found = {finding["code"]: finding for finding in command("doctor")["findings"]}
    assert not [finding for finding in found.values() if finding["level"] == "error"]
    assert found["ledger-books"]["message"].startswith("the books balance: 30 messages read")
    assert found["depot-readable"]["level"] == "ok"


def test_damaged(spark: Any, schema: str, tmp_path: Path) -> None:
    """
    A check on a Spark that keeps no rows finds what a check without Spark finds.
    """
    world = World(tmp_path, ManualClock())
    for rows in log(versions=3, seed=3):
        world.publish(rows)
        world.runner(EMBEDDED).once()
    for name in DAMAGED:
        damage(world, DAMAGES[name])
    by_spark, by_duckdb = quality.check(spark, world.ledger), quality.check(None, world.ledger)
    assert {*DAMAGED} <= {failure.name for failure in by_spark.failures()}
    assert_alike(by_spark, by_duckdb)


def test_reading(spark: Any, settings: Settings, command: Callable[..., Any], tmp_path: Path) -> None:
    """
    What reads depot and ledger reads them through Spark: other rules are tried, pictures drawn, batches exported and
    shown.
    """
    command("init")
    publish(spark, settings.depot, log(versions=1)[0])
    assert command("run")["message_count"] == 30
    assert command("tune", "--windows", "5s,10s", "--delays", "1s,5s")["message_count"] > 0
    command("tick", "--all")
    for what in ("timeline", "batches", "microbatches"):
        command("plot", "--chart", what, "--out", str(tmp_path / f"{what}.json"))
        assert json.loads((tmp_path / f"{what}.json").read_text())
    exported = command("export", "--out", str(tmp_path / "closed.parquet"))
    assert pq.read_table(tmp_path / "closed.parquet").num_rows > 0
    assert exported


def test_replaying(spark: Any, settings: Settings, command: Callable[..., Any], tmp_path: Path) -> None:
    """
    The record is replayed into a ledger on this disk, whole and from a version on, and is equal; late messages that a
    more patient replay keeps get in by an amendment, which `verify` proves.
    """
    command("init")
    for seed in (1, 2, 3):
        publish(spark, settings.depot, log(versions=1, seed=seed)[0])
        assert command("run")["message_count"] == 30
    command("tick", "--all")
    whole = command("replay")
    assert (whole["equal"], whole["message_count"]) == (True, 90)
    [first, second, third] = (row["depot_version"] for row in _data(command("status", "--history", "20")))
    for flags, messages in ((["--from", str(second)], 60), (["--to", str(second)], 60), (["--from", str(third)], 30)):
        part = command("replay", *flags)
        assert (part["equal"], part["message_count"]) == (True, messages), flags
    assert first < second
    branch = str(tmp_path / "patient")
    assert command("replay", "--max-delay", "8s", "--into", branch)["comparison"]["moved_message_count"] > 0
    assert command("amend", branch)["let_in"] > 0
    assert command("verify")["ok"]


def _data(status: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the microbatches that read messages, in order."""
    return [row for row in status["microbatches"] if row["kind"] == "data"]


NEED_A_PATH = {
    "produce": (["produce", "{lines}", "--id", "gateway"], "windrow.foreach_batch"),
    "produce raw": (["produce", "{lines}", "--raw-source", "gateway"], "windrow.foreach_batch"),
    "ingest raw": (["ingest", "{lines}", "--format", "csv"], "a depot with a path"),
    "bridge": (["bridge", "mqtt", "--broker", "127.0.0.1", "--topic", "t"], "windrow.foreach_batch"),
}


def test_ingesting(spark: Any, settings: Settings, command: Callable[..., Any], tmp_path: Path) -> None:
    """
    Parquet files come into the depot through Spark, each once. What only writes or replays at a path is refused at once
    with what to do instead, and writes nothing.
    """
    pq.write_table(table([message(), message("b")]), tmp_path / "messages.parquet")
    for added in (2, 0):
        assert command("ingest", str(tmp_path / "messages.parquet"))["message_count"] == added
    assert command("run")["message_count"] == 2
    lines = tmp_path / "lines"
    lines.write_text('{"key": "k"}\n')
    for arguments, hint in NEED_A_PATH.values():
        said = command(*(argument.format(lines=lines) for argument in arguments), status=3)
        assert "only Spark reaches the files of" in said, said
        assert hint in said, said
    assert command("run")["message_count"] == 0


def test_depot_without_feed(spark: Any, settings: Settings) -> None:
    """
    A depot without a change data feed is refused once, with the statement that turns it on; what is added after that
    is read by a ledger that begins there.
    """
    spark.sql(CREATE.format(settings.depot)).collect()
    publish(spark, settings.depot, [message()])
    with pytest.raises(EngineUnavailableError, match=r"ALTER TABLE (.*) SET TBLPROPERTIES \(delta") as refused:
        windrow.run(settings, spark=spark)
    statement = (refused.value.hint or "").removeprefix("Run ").split(". ")[0]
    spark.sql(statement).collect()
    [newest] = spark.sql(f"DESCRIBE HISTORY {settings.depot} LIMIT 1").collect()
    publish(spark, settings.depot, [message("b"), message("c")])
    spark.sql(f"DROP TABLE {settings.ledger}").collect()
    later = settings.model_copy(update={"start_from": f"version:{newest['version'] + 1}"})
    assert windrow.run(later, spark=spark).total("message_count") == 2


def add_amounts(microbatch: Microbatch) -> None:
    """Add amounts up, with Arrow."""
    microbatch.state("shops").combine(microbatch.rows("sales"), total=("amount", "sum"))


def append_large(microbatch: SparkMicrobatch) -> None:
    """Append the large amounts to an output, with frames."""
    microbatch.append("large", microbatch.rows("sales").where("amount > 100").select("shop", "amount"))


def append_large_rows(microbatch: Microbatch) -> None:
    """Append the large amounts to an output, with Arrow."""
    sales = microbatch.rows("sales").select(["shop", "amount"])
    microbatch.append("large", sales.filter(pc.greater(sales["amount"], 100)))


def sales_topology(schema: str, *functions: Any) -> Topology:
    """Return a topology that adds up sales by shop, and has an output."""
    topology = Topology("sales", [f"{schema}.sales"], f"{schema}.states", outputs={"large": f"{schema}.large"})
    topology.state("shops", key="shop STRING", value="total BIGINT")
    for function in functions:
        topology.function(function)
    return topology


def sell(spark: Any, schema: str, *amounts: int) -> None:
    """Add sales, and the table of sales if it is missing."""
    columns = "(shop STRING, amount BIGINT) USING DELTA TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    spark.sql(f"CREATE TABLE IF NOT EXISTS {schema}.sales {columns}").collect()
    rows = ", ".join(f"('north', {amount})" for amount in amounts)
    spark.sql(f"INSERT INTO {schema}.sales VALUES {rows}").collect()


def test_topology(spark: Any, schema: str, settings: Settings) -> None:
    """
    A topology on Arrow tables and on frames, with an output, processes each row once; its plans are in a table beside
    that of the states, not in its directory.
    """
    topology = sales_topology(schema, add_amounts, append_large)
    for amounts in ((1, 200), (4, 300)):
        sell(spark, schema, *amounts)
        assert run_topology(topology, settings, spark=spark).total("message_count") == 2
    assert run_topology(topology, settings, spark=spark).total("message_count") == 0
    assert topology.read("shops", spark=spark).to_pylist() == [{"shop": "north", "total": 505}]
    assert pc.sum(spark.table(f"{schema}.large").toArrow()["amount"]).as_py() == 500
    plans = spark.sql(f"DESCRIBE HISTORY {schema}.states_plans").collect()
    assert any("microbatch" in (commit["userMetadata"] or "") for commit in plans)
    with pytest.raises(EngineUnavailableError, match="append_large works with DataFrames"):
        replay_topology(topology, settings, spark=spark)


def test_topology_that_goes_back(
    spark: Any, schema: str, command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The states of a topology are read as they were, verified with a replay, replayed into new tables on this disk, and
    rolled back, after which the rows are read again and appended again; commits here have no notes.
    """
    topology, module = sales_topology(schema, add_amounts, append_large_rows), f"module_{schema}"
    names = "sales_topology, add_amounts, append_large_rows"
    (tmp_path / f"{module}.py").write_text(
        f"from {__name__} import {names}\n\ntopology = sales_topology({schema!r}, add_amounts, append_large_rows)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    place = f"{module}:topology"
    for amounts in ((1, 200), (4, 300), (5, 6)):
        sell(spark, schema, *amounts)
        assert command("run", place)["message_count"] == 2
    assert [total(topology, spark, at) for at in (1, 2, 3, None)] == [201, 505, 516, 516]
    report = command("verify", place, "--replay")
    assert report["ok"], report
    assert (report["depots"][0]["depot_row_count"], report["states"][0]["row_count"]) == (6, 1)
    assert report["states"][0]["replayed"] == report["states"][0]["digest"]
    again = command("replay", place, "--into", str(tmp_path / "again"))
    assert (again["ok"], again["microbatch_count"]) == (True, 3)
    assert DeltaTable(str(tmp_path / "again" / "outputs" / "large")).to_pyarrow_table().num_rows == 2
    assert command("show", place, "--state", "shops", "--microbatch", "1") == [{"shop": "north", "total": 201}]
    command("rollback", place, "--to-microbatch", "1")
    assert total(topology, spark) == 201
    assert command("status", place)["states"] == {"shops": 1}
    assert command("status", place, "--history", "9")["microbatches"][-1]["kind"] == "rollback"
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert not [finding for finding in command("doctor", place)["findings"] if finding["level"] == "error"]
    command("maintain", place)
    assert command("run", place)["message_count"] == 4
    assert [total(topology, spark, at) for at in (1, 3, 4, None)] == [201, 516, 201, 516]
    assert sorted(spark.table(f"{schema}.large").toArrow()["amount"].to_pylist()) == [200, 300, 300]
    assert command("verify", place)["ok"]


def total(topology: Topology, spark: Any, at: int | None = None) -> int:
    """Return the sales of the shop after a microbatch."""
    return int(topology.read("shops", at=at, spark=spark)["total"][0].as_py())


def test_stream_of_the_user(spark: Any, schema: str, settings: Settings, tmp_path: Path) -> None:
    """
    A stream of the user is batched in `foreachBatch` under the name that it was given, each message once, also if its
    checkpoint is lost; without a name the function says that it needs one.
    """
    spark.sql(CREATE.format(f"{schema}.arriving")).collect()
    publish(spark, f"{schema}.arriving", [message(), message("b", NOW + SECOND, NOW + SECOND)])
    for attempt in range(2):
        stream = spark.readStream.table(f"{schema}.arriving").writeStream.trigger(availableNow=True)
        stream = stream.option("checkpointLocation", str(tmp_path / f"stream-{attempt}"))
        stream.foreachBatch(windrow.foreach_batch(settings, stream="arriving")).start().awaitTermination()
    assert spark.table(settings.depot).count() == 2
    with pytest.raises(EngineUnavailableError, match="stream='readings'"):
        windrow.foreach_batch(settings)(spark.table(f"{schema}.arriving"), 0)
    query = f"SELECT sum(messages_read) AS messages FROM {settings.ledger} WHERE state = 'microbatch'"
    assert spark.sql(query).collect()[0]["messages"] == 2
