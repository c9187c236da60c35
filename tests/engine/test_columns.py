"""A depot of one's own: a bronze table with other columns, mapped by `[depot.columns]`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.clocks import NOW
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import SECOND, TIME, log, message, table
from windrow.delta.creation import create_depot
from windrow.errors import ExpressionError, MessagesError
from windrow.producer import RawProducer
from windrow.verify import verify

COLUMNS = {
    "source": "site",
    "key": "concat(site, '/', device)",
    "type": "metric.name",
    "event_time": "measured",
    "received_at": "ingested",
    "sequence": "nr",
    "payload": "concat(metric.value, ' ', metric.unit)",
}

FEED_ON = {"delta.enableChangeDataFeed": "true"}


@pytest.fixture
def bronze(world: World) -> World:
    """A world whose depot is a bronze table; `publish` is not for it."""
    shutil.rmtree(world.depot)
    write_deltalake(world.depot, bronze_rows([]), configuration=FEED_ON)
    return world


def bronze_rows(rows: list[dict[str, Any]]) -> pa.Table:
    """Return messages in the columns of a bronze table."""
    metric = pa.struct([("name", pa.string()), ("value", pa.string()), ("unit", pa.string())])
    return pa.table(
        {
            "site": pa.array([row["source"] for row in rows], pa.string()),
            "device": pa.array([row["key"] for row in rows], pa.string()),
            "metric": pa.array([{"name": row["type"], "value": row["payload"], "unit": "C"} for row in rows], metric),
            "measured": pa.array([row["event_time"] for row in rows], TIME),
            "ingested": pa.array([row["received_at"] for row in rows], TIME),
            "nr": pa.array([row["sequence"] for row in rows], pa.int64()),
            "version": pa.array(["1"] * len(rows), pa.string()),
        }
    )


def mapped(row: dict[str, Any]) -> dict[str, Any]:
    """Return a message as COLUMNS make it of its bronze row."""
    missing = row["source"] is None or row["key"] is None
    return row | {
        "key": None if missing else f"{row['source']}/{row['key']}",
        "payload": None if row["payload"] is None else f"{row['payload']} C",
    }


class TestMapped:
    @pytest.mark.ci
    @pytest.mark.slow_on_executors
    @pytest.mark.parametrize("max_driver_messages", [500_000, pytest.param(0, marks=pytest.mark.slow_on_spark)])
    def test_equals_mapped_messages(
        self, bronze: World, engine: EngineFactory, embedded: EngineFactory, tmp_path: Path, max_driver_messages: int
    ) -> None:
        """Batches and rejections over a bronze table are those over a depot of messages that hold the mapped values, on
        either engine and, on Spark, on the executors too; the messages are all accounted for.
        """
        if engine.name == "embedded" and not max_driver_messages:
            pytest.skip("only Spark has executors")
        rows = log(versions=2)
        plain = World(tmp_path / "plain", bronze.clock)
        for part in rows:
            write_deltalake(bronze.depot, bronze_rows(part), mode="append")
        plain.publish(*([mapped(row) for row in part] for part in rows))
        bronze.runner(engine, depot_columns=COLUMNS, max_driver_messages=max_driver_messages).once()
        plain.runner(embedded).once()
        assert bronze.history()[0]["processed_on"] == ("driver" if max_driver_messages else "executors")
        assert bronze.canonical() == plain.canonical()
        bronze.assert_balanced()
        assert verify(bronze.depot, bronze.ledger, columns=COLUMNS).ok

    @pytest.mark.slow
    def test_star(self, bronze: World, spark_engine: EngineFactory) -> None:
        """`to_json(struct(*))` keeps the whole row as it is in the table, without the columns of the change feed."""
        row = log(versions=1)[0][0]
        write_deltalake(bronze.depot, bronze_rows([row]), mode="append")
        columns = COLUMNS | {"payload": "to_json(struct(*))"}
        bronze.runner(spark_engine, depot_columns=columns).once()
        payload = bronze.rows("open")[0]["messages"][0]["payload"]
        assert payload.startswith('{"site":')
        assert payload.endswith('"version":"1"}')
        assert "_commit" not in payload

    def test_deleted_rows(self, bronze: World, embedded: EngineFactory) -> None:
        """Deletions of a mapped depot stop the run as those of any other, or are passed over when told so."""
        write_deltalake(bronze.depot, bronze_rows(log(versions=1)[0]), mode="append")
        DeltaTable(bronze.depot).delete("device = 'k'")
        bronze.runner(embedded, depot_columns=COLUMNS, on_depot_change="ignore").once()
        assert bronze.history()[0]["messages_read"] == 30


class TestRefused:
    @pytest.mark.slow_on_spark
    def test_unmapped(self, bronze: World, engine: EngineFactory) -> None:
        """A depot without the columns of a message, and without a mapping, is refused with what to write; no ledger is
        made.
        """
        with pytest.raises(ExpressionError, match=r"\[depot\.columns\] key, type, event_time, .*they come from"):
            bronze.runner(engine)
        assert not DeltaTable.is_deltatable(bronze.ledger)

    def test_no_arrival(self, bronze: World, embedded: EngineFactory) -> None:
        """Nothing stands in for `received_at` in a depot: late would be impossible to tell."""
        columns = {name: text for name, text in COLUMNS.items() if name != "received_at"}
        with pytest.raises(ExpressionError, match=r"\[depot\.columns\] received_at"):
            bronze.runner(embedded, depot_columns=columns)

    def test_times_that_are_numbers(self, world: World, embedded: EngineFactory) -> None:
        """A time that is a bare number is refused unmapped, because nothing says whether it counts seconds."""
        shutil.rmtree(world.depot)
        rows = table(log(versions=1)[0])
        seconds = pa.array([1_700_000_000] * rows.num_rows, pa.int64())
        at = rows.schema.get_field_index("event_time")
        write_deltalake(
            world.depot,
            rows.set_column(at, "event_time", seconds),
            configuration={"delta.enableChangeDataFeed": "true"},
        )
        with pytest.raises(ExpressionError, match=r"event_time: the column holds numbers"):
            world.runner(embedded)
        world.runner(embedded, depot_columns={"event_time": "timestamp_seconds(event_time)"}).once()
        assert world.history()[0]["messages_read"] == 30

    @pytest.mark.slow_on_spark
    def test_other_in_every_run(self, bronze: World, engine: EngineFactory) -> None:
        """An expression that may differ from run to run is refused, because a retry would give other batches."""
        with pytest.raises(ExpressionError, match="may differ in every run"):
            bronze.runner(engine, depot_columns=COLUMNS | {"sequence": "rand()"})


class TestBadValues:
    @pytest.mark.slow_on_executors
    @pytest.mark.parametrize("raw", [False, pytest.param(True, marks=pytest.mark.slow_on_spark)])
    def test_rejected(
        self, world: World, engine: EngineFactory, embedded: EngineFactory, tmp_path: Path, raw: bool
    ) -> None:
        """A value that cannot be cast is rejected as invalid with its column and text, under a typed payload too, and
        the others go on; each engine gives the same rejections, and verify and check expect them.
        """
        rows = [
            {"device": "a", "at": "2023-11-14 22:13:20", "nr": str(at), "value": value}
            for at, value in enumerate(["1.5", "warm", "2.5", "cold", None])
        ]
        rows += [{**rows[0], "at": "31.12.2023"}, {**rows[0], "nr": "many"}, {**rows[0], "nr": "few"}]
        settings: dict[str, Any] = {
            "depot_columns": {
                "key": "device",
                "type": "concat('t', if(nr = 'few', nr, value))",
                "event_time": "at",
                "received_at": "'2023-11-14 22:13:21'",
                "sequence": "coalesce(CAST(nr AS BIGINT), 7)",
                "payload": "value",
            },
            "payload_type": "DOUBLE",
        }
        place = str(tmp_path / "own")
        if raw:
            settings["format"] = {"type": "json", "fields": dict.fromkeys(rows[0], "string")}
            create_depot(place, None)
            with RawProducer(place, "s") as producer:
                producer.send("".join(f"{json.dumps(row)}\n" for row in rows).encode(), last=True)
        else:
            write_deltalake(place, pa.Table.from_pylist(rows), configuration=FEED_ON)
        world.depot = place
        other = World(tmp_path / "other", world.clock)
        other.depot = place
        world.runner(engine, **settings).once()
        other.runner(embedded, **settings).once()
        assert world.canonical() == other.canonical()
        refused = sorted(world.rows("rejected"), key=lambda row: row["detail"])
        assert [row["detail"] for row in refused] == [
            "event_time: '31.12.2023' is not a valid TIMESTAMP",
            "payload: 'cold' is not a valid DOUBLE",
            "payload: 'warm' is not a valid DOUBLE",
            "sequence: 'few' is not a valid BIGINT",
            "sequence: 'many' is not a valid BIGINT",
            "type is NULL",
        ]
        assert {row["reason"] for row in refused} == {"invalid"}
        assert [row["payload"] for row in refused] == [1.5, None, None, 1.5, 1.5, None]
        world.assert_balanced()
        report = verify(place, world.ledger, columns=settings["depot_columns"])
        assert report.differences == ()

    @pytest.mark.slow_on_spark
    def test_stops(self, bronze: World, engine: EngineFactory) -> None:
        """A failure that is no cast stops the run at once, names the section, and writes nothing; mended, the run reads
        everything.
        """
        row = log(versions=1)[0][0] | {"received_at": NOW, "event_time": NOW - SECOND}
        write_deltalake(bronze.depot, bronze_rows([row]), mode="append")
        where = r".* in depot version 1, row .*'site'" if engine.name == "embedded" else ""
        with pytest.raises(ExpressionError, match=rf"depot\.columns{where}"):
            bronze.runner(engine, depot_columns=COLUMNS | {"sequence": "1 div (nr - nr)"}).once()
        assert bronze.history() == []
        bronze.runner(engine, depot_columns=COLUMNS).once()
        assert [microbatch["messages_read"] for microbatch in bronze.history()] == [1]


def test_messages_as_they_are(world: World, embedded: EngineFactory) -> None:
    """With a few columns mapped, the others keep their names."""
    write_deltalake(world.depot, table(log(versions=1)[0]), mode="append")
    world.runner(embedded, depot_columns={"type": "upper(type)"}).once()
    types = {message["type"] for row in world.rows("open", "closed") for message in row["messages"]}
    assert types
    assert types <= set("ABCDEFGH")


@pytest.mark.slow
def test_session_of_another_zone(bronze: World, spark: Any, spark_engine: EngineFactory) -> None:
    """A time without a zone is UTC, and an impossible value an error, whatever the session that is given says of it."""
    row = log(versions=1)[0][0] | {"payload": "twelve"}
    write_deltalake(bronze.depot, bronze_rows([row]), mode="append")
    there = {"spark.sql.session.timeZone": "Asia/Tokyo", "spark.sql.ansi.enabled": "false"}
    before = {name: spark.conf.get(name) for name in there}
    columns = COLUMNS | {"event_time": "'2023-11-14 22:13:20'", "received_at": "'2023-11-14 22:13:20'"}
    try:
        for name, value in there.items():
            spark.conf.set(name, value)
        impossible = bronze.runner(spark_engine, depot_columns=columns | {"sequence": "1 div (nr - nr)"})
        with pytest.raises(ExpressionError):
            impossible.once()
        bronze.runner(spark_engine, depot_columns=columns).once()
        assert {name: spark.conf.get(name) for name in there} == there
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    assert [int(batch["first_event_time"].timestamp()) for batch in bronze.rows("open")] == [1_700_000_000]


NAMES = {"Source": "source", "KEY": "key", "Type": "type", "Sequence": "sequence", "Payload": "payload"}


@pytest.mark.ci
@pytest.mark.parametrize("other", [list(NAMES), ["Source", "Sequence", "Payload"]])
def test_case_of_names(world: World, embedded: EngineFactory, tmp_path: Path, other: list[str]) -> None:
    """Columns of a message whose names differ in case alone are these columns: no payload, source or sequence is left
    behind, and verify reads the same.
    """
    rows = log(versions=1)
    plain = World(tmp_path / "plain", world.clock)
    plain.publish(*rows)
    plain.runner(embedded).once()
    shutil.rmtree(world.depot)
    renamed = table(rows[0]).rename_columns({NAMES[name]: name for name in other})
    write_deltalake(world.depot, renamed.slice(0, 0), configuration=FEED_ON)
    write_deltalake(world.depot, renamed, mode="append")
    world.runner(embedded).once()
    assert world.canonical() == plain.canonical()
    assert verify(world.depot, world.ledger).ok


# The name of a column, and how an expression writes it.
NAMED = [
    pytest.param("Body", "body", marks=pytest.mark.slow_on_spark),
    pytest.param("bo`dy", "`bo``dy`", marks=pytest.mark.slow_on_spark),
    ("a.b", " `a.b`"),
]


class TestBytes:
    @pytest.mark.slow_on_executors
    @pytest.mark.parametrize(("column", "text"), NAMED)
    def test_kept(self, world: World, engine: EngineFactory, column: str, text: str) -> None:
        """A binary column stays what it is as a payload, however its name is written; verify compares it."""
        if engine.name == "spark" and column != "Body":
            pytest.skip("the type is told before an engine reads")
        binary_rows(world, column)
        world.runner(engine, depot_columns={"payload": text}).once()
        assert world.rows("open")[0]["messages"][0]["payload"] == b"\xff\x00"
        report = verify(world.depot, world.ledger, columns={"payload": text})
        assert report.ok
        assert report.findings == ()

    @pytest.mark.parametrize(("first", "then"), [("Body", "upper('x')"), ("upper('x')", "Body")])
    def test_changed(self, world: World, embedded: EngineFactory, first: str, then: str) -> None:
        """A mapping that makes text of payloads which the ledger holds as bytes, or bytes of text, is refused at the
        start; with the old one the run goes on.
        """
        binary_rows(world, "Body")
        world.runner(embedded, depot_columns={"payload": first}).once()
        with pytest.raises(MessagesError, match="the ledger stores"):
            world.runner(embedded, depot_columns={"payload": then})
        assert world.runner(embedded, depot_columns={"payload": first}).once().microbatches == []


def binary_rows(world: World, column: str) -> None:
    """Make a depot of one message with two bytes, no text, in a column."""
    row = table([message(received_at=NOW, event_time=NOW)]).drop_columns(["payload"])
    shutil.rmtree(world.depot)
    payload = pa.array([b"\xff\x00"], pa.binary())
    write_deltalake(world.depot, row.append_column(column, payload), configuration=FEED_ON)


class TestPayloads:
    @pytest.mark.slow_on_spark
    def test_numbers(self, world: World, engine: EngineFactory) -> None:
        """A payload that is a number is kept as its text, from the first microbatch to the last."""
        rows = [message(received_at=NOW + at, event_time=NOW + at) for at in (0, 60 * SECOND)]
        numbers = table(rows).drop_columns(["payload"]).append_column("payload", pa.array([12, None], pa.int64()))
        shutil.rmtree(world.depot)
        write_deltalake(world.depot, numbers.slice(0, 1), configuration=FEED_ON)
        world.runner(engine).once()
        write_deltalake(world.depot, numbers.slice(1), mode="append")
        world.runner(engine).once()
        (closed,) = world.rows("closed")
        assert closed["messages"][0]["payload"] == "12"
        assert verify(world.depot, world.ledger).ok

    def test_lists(self, world: World, embedded: EngineFactory) -> None:
        """A payload that has no text is refused, by a run as by verify."""
        lists = table([message()]).drop_columns(["payload"]).append_column("payload", pa.array([["a"]]))
        shutil.rmtree(world.depot)
        write_deltalake(world.depot, lists, configuration=FEED_ON)
        with pytest.raises(MessagesError, match="payload"):
            world.runner(embedded).once()
        with pytest.raises(MessagesError, match="another type"):
            verify(world.depot, world.ledger)


@pytest.mark.ci
def test_mapping_that_changes(bronze: World, embedded: EngineFactory) -> None:
    """The history says with which mapping each version was read, so verify maps each as it was, whatever the settings
    say now.
    """
    first, second = log(versions=2)
    write_deltalake(bronze.depot, bronze_rows(first), mode="append")
    bronze.runner(embedded, depot_columns=COLUMNS).once()
    write_deltalake(bronze.depot, bronze_rows(second), mode="append")
    other = COLUMNS | {"payload": "metric.unit", "type": "concat('x', metric.name)"}
    bronze.runner(embedded, depot_columns=other).once()
    assert [json.loads(row["column_mapping"])["payload"] for row in bronze.history()] == [
        COLUMNS["payload"],
        "metric.unit",
    ]
    for columns in (COLUMNS, other, {}):
        report = verify(bronze.depot, bronze.ledger, columns=columns)
        assert (report.ok, report.complete) == (True, True)
