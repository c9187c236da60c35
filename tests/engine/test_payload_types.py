"""Payloads of each type: numbers, booleans, bytes and structs, on either engine."""

from __future__ import annotations

import json
import math
import signal
import struct
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import windrow
from tests.clocks import NOW, ManualClock
from tests.engine.factory import EMBEDDED, EngineFactory
from tests.engine.processes import drivers
from tests.engine.world import World
from tests.messages import SECOND, Row, log, message, table
from windrow import reading
from windrow.columnar.arrow import to_plain_types
from windrow.delta.creation import create_depot
from windrow.errors import MessagesError
from windrow.model.payload import name, parse
from windrow.model.tables import ledger_schema
from windrow.producer import RawProducer
from windrow.reading.digests import digests
from windrow.reading.export import ExportSelection, export
from windrow.testing.points import Point
from windrow.verify import verify
from windrow.verify.quality import check

LEAST, GREATEST = -(2**63), 2**63 - 1
ODD_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_BEEF))[0]
STRUCT = "STRUCT<celsius: DOUBLE, unit: STRING, raw: BINARY, nr: BIGINT, ok: BOOLEAN>"
# Values at the edges of each type, and how many bytes each counts.
VALUES: dict[str, list[tuple[Any, int]]] = {
    "DOUBLE": [(value, 8) for value in (0.0, -0.0, math.nan, ODD_NAN, math.inf, -math.inf, 5e-324, 1.7e308)],
    "BIGINT": [(value, 8) for value in (0, 1, -1, LEAST, GREATEST)],
    "BOOLEAN": [(True, 1), (False, 1)],
    "BINARY": [(b"", 0), (b"\xff\x00", 2), (b"text", 4)],
    STRUCT: [
        ({"celsius": -0.0, "unit": "°C", "raw": b"\xff", "nr": LEAST, "ok": True}, 8 + 3 + 1 + 8 + 1),
        ({"celsius": math.nan, "unit": "", "raw": b"", "nr": None, "ok": False}, 8 + 1),
        ({"celsius": None, "unit": None, "raw": None, "nr": None, "ok": None}, 0),
    ],
}
TYPES = list(VALUES)


def typed(kind: str, rows: list[Row]) -> list[Row]:
    """Return messages with a value of the type in place of each payload, some of them NULL."""
    values = [*(value for value, _ in VALUES[kind]), None]
    for row in rows:
        if isinstance(row["payload"], str):
            row["payload"] = values[int(row["payload"].partition(".")[2]) % len(values)]
    return rows


@pytest.fixture(params=TYPES, ids=[kind.partition("<")[0] for kind in TYPES])
def kind(request: pytest.FixtureRequest) -> str:
    """Each type in turn."""
    return str(request.param)


@pytest.fixture
def typed_world(tmp_path: Path, clock: ManualClock, kind: str) -> World:
    """A world whose payloads have the type."""
    return World(tmp_path, clock, parse(kind))


def all_payloads(world: World) -> Iterator[Any]:
    """Yield the payloads in batches and rejections."""
    for row in world.rows("open", "closed"):
        yield from (message["payload"] for message in row["messages"])
    yield from (row["payload"] for row in world.rows("rejected"))


def written(value: Any) -> str:
    """Return a value so that -0.0 and 0.0 differ, and one NaN is as another."""
    return repr(value)


class TestKept:
    @pytest.mark.ci
    @pytest.mark.slow_on_spark
    def test_ledgers_alike(self, typed_world: World, engine: EngineFactory, kind: str, tmp_path: Path) -> None:
        """Every engine keeps each payload as it is, and gives the same digests; verify, replay and one microbatch over
        the whole log agree.
        """
        reference = World(tmp_path, typed_world.clock, typed_world.payload, ledger="reference")
        for part in log(versions=3):
            typed_world.publish(typed(kind, part))
            typed_world.runner(engine, payload_type=kind).once()
        reference.runner(EMBEDDED, payload_type=kind).once()
        assert digests(typed_world.ledger).total == digests(reference.ledger).total
        report = verify(typed_world.depot, typed_world.ledger)
        assert report.differences == ()
        assert report.books[0].matched == 90
        assert typed_world.replayed(payload_type=kind).equal
        sent = typed_world.arrived()["payload"].to_pylist()
        assert sorted(map(written, sent)) == sorted(map(written, all_payloads(typed_world)))

    @pytest.mark.slow
    def test_engines_in_turn(self, typed_world: World, spark_engine: EngineFactory, kind: str) -> None:
        """Either engine goes on with the batches that the other has left open."""
        for number, part in enumerate(log(versions=4, size=12)):
            typed_world.publish(typed(kind, part))
            typed_world.runner((EMBEDDED, spark_engine)[number % 2], payload_type=kind).once()
        assert {row["engine"] for row in typed_world.history()} == {"embedded", "spark"}
        assert verify(typed_world.depot, typed_world.ledger).differences == ()
        assert typed_world.replayed(payload_type=kind).equal

    @pytest.mark.ci
    @pytest.mark.slow_unless({"kind": STRUCT, "point": Point.AFTER_COMMIT})
    @pytest.mark.parametrize("point", [Point.BEFORE_COMMIT, Point.AFTER_COMMIT])
    def test_killed(self, typed_world: World, embedded: EngineFactory, kind: str, tmp_path: Path, point: Point) -> None:
        """A driver that is killed before or after a commit leaves a ledger from which the next run reaches the result
        of an undisturbed run.
        """
        typed_world.publish(*(typed(kind, part) for part in log(versions=4)))
        options = {"payload_type": kind, "max_messages": 60}
        with drivers(typed_world, "embedded", kill=[point.value, 2], **options) as (driver,):
            driver.start()
            assert driver.status() == -signal.SIGKILL
        typed_world.runner(embedded, **options).once()
        reference = World(tmp_path, typed_world.clock, typed_world.payload, ledger="reference")
        reference.runner(embedded, payload_type=kind).once()
        assert digests(typed_world.ledger).total == digests(reference.ledger).total
        assert typed_world.replayed(payload_type=kind).equal


class TestSame:
    @pytest.mark.ci
    @pytest.mark.parametrize("backwards", [False, True])
    def test_first_wins(self, typed_world: World, embedded: EngineFactory, kind: str, backwards: bool) -> None:
        """Of messages that differ in their payload alone the same one wins, in whatever order a commit has them."""
        values = [*(value for value, _ in VALUES[kind]), None]
        rows = [message(payload=value) for value in values]
        typed_world.publish(rows[::-1] if backwards else rows)
        typed_world.runner(embedded, payload_type=kind).once()
        [batch] = typed_world.rows("open")
        assert [row["payload"] for row in batch["messages"]] == [None]  # NULL comes first
        assert [row["reason"] for row in typed_world.rows("rejected")] == ["duplicate"] * (len(values) - 1)
        assert verify(typed_world.depot, typed_world.ledger).differences == ()

    def test_zeros_differ(self, tmp_path: Path, clock: ManualClock, embedded: EngineFactory) -> None:
        """0.0 and -0.0 are two payloads, all NaNs are one: the digests say so, and verify tells which zero was lost."""
        totals = []
        for number, value in enumerate([0.0, -0.0, math.nan, ODD_NAN]):
            world = World(tmp_path / str(number), clock, pa.float64())
            world.publish([message(payload=value)])
            world.runner(embedded, payload_type="DOUBLE").once()
            totals.append(digests(world.ledger).total)
        assert len(set(totals)) == 3
        assert totals[2] == totals[3]


class TestBytes:
    @pytest.mark.slow_on_spark
    def test_counted(self, typed_world: World, engine: EngineFactory, kind: str) -> None:
        """`bytes` of a batch counts 8 for a number, 1 for a boolean, the length of text and bytes, the sum of a struct,
        and nothing for NULL.
        """
        for number, (value, _) in enumerate(VALUES[kind]):
            typed_world.publish([message(payload=value, key=f"k{number}")])
        typed_world.publish([message(payload=None, key="null")])
        typed_world.runner(engine, payload_type=kind).once()
        counted = {row["key"]: row["bytes"] for row in typed_world.rows("open")}
        assert counted == {f"k{at}": 1 + size for at, (_, size) in enumerate(VALUES[kind])} | {"null": 1}

    def test_limit(self, tmp_path: Path, clock: ManualClock, embedded: EngineFactory) -> None:
        """`max_batch_bytes` splits a window of numbers where their bytes exceed it."""
        world = World(tmp_path, clock, pa.float64())
        world.publish([message(f"t{at}", NOW + at, NOW + at, payload=1.5) for at in range(7)])
        world.publish([message("end", NOW + 60 * SECOND, NOW + 60 * SECOND, payload=0.0)])
        world.runner(embedded, payload_type="DOUBLE", rules={"max_batch_bytes": 30}).once()
        assert [row["message_count"] for row in world.rows("closed")] == [3, 3, 1]
        assert verify(world.depot, world.ledger).differences == ()


class TestType:
    def test_never_changes(self, tmp_path: Path, clock: ManualClock, embedded: EngineFactory) -> None:
        """A ledger keeps its type: settings that ask for another one, or for none, are refused with what to set."""
        world = World(tmp_path, clock, pa.float64())
        world.publish([message(payload=1.5)])
        world.runner(embedded, payload_type="DOUBLE").once()
        with pytest.raises(MessagesError, match="has payloads of type STRING, but the ledger stores DOUBLE") as refused:
            world.runner(embedded)
        assert "payload_type = 'DOUBLE'" in refused.value.hint
        with pytest.raises(MessagesError, match="has payloads of type BIGINT"):
            world.runner(embedded, payload_type="BIGINT", depot_columns={"payload": "CAST(payload AS BIGINT)"})
        assert world.runner(embedded, payload_type="double").once().microbatches == []

    @pytest.mark.slow_on_spark
    def test_text_unless_set(self, tmp_path: Path, clock: ManualClock, engine: EngineFactory) -> None:
        """Without the setting a depot of numbers gives text, as ever."""
        world = World(tmp_path, clock, pa.float64())
        world.publish([message(payload=1.5)])
        world.runner(engine).once()
        assert list(all_payloads(world)) == ["1.5"]
        assert verify(world.depot, world.ledger).differences == ()

    def test_conversion_must_be_written(self, tmp_path: Path, clock: ManualClock, embedded: EngineFactory) -> None:
        """Text becomes no number unless an expression says so."""
        world = World(tmp_path, clock)
        world.publish([message(payload="1.5")])
        with pytest.raises(MessagesError, match="payload_type is DOUBLE, but the depot has payloads of type STRING"):
            world.runner(embedded, payload_type="DOUBLE")
        assert not DeltaTable.is_deltatable(world.ledger)

    @pytest.mark.parametrize("kind", ["DOUBLE", "STRING"])
    def test_type_that_no_payload_has(self, tmp_path: Path, kind: str) -> None:
        """The error names the type of the depot's column, also one that no payload has."""
        depot, ledger = str(tmp_path / "depot"), str(tmp_path / "ledger")
        singles = table(log(1)[0]).drop_columns(["payload"])
        write_deltalake(depot, singles.append_column("payload", pa.repeat(pa.scalar(1.5, pa.float32()), len(singles))))
        settings = windrow.Settings(depot=depot, ledger=ledger, engine="embedded", payload_type=kind)
        with pytest.raises(MessagesError, match=f"payload_type is {kind}, but the depot has payloads of type float"):
            windrow.run(settings)


# What a depot of one's own has, what it is mapped by, the type, and the payloads that come out.
MAPPED = [
    (pa.array(["1.5", "-0", " 2e-3 ", None]), "value", "DOUBLE", [1.5, -0.0, 0.002, None]),
    (pa.array([0.1, None, 2.0, 3.0], pa.float32()), "value", "DOUBLE", [0.10000000149011612, None, 2.0, 3.0]),
    (pa.array(["true", "N", "1", None]), "value", "BOOLEAN", [True, False, True, None]),
    (
        pa.array([{"Unit": "K", "celsius": 1, "other": 2}, None, {"celsius": None}, {"Unit": "C"}]),
        "value",
        "STRUCT<celsius: DOUBLE, unit: STRING>",
        [{"celsius": 1.0, "unit": "K"}, None, {"celsius": None, "unit": None}, {"celsius": None, "unit": "C"}],
    ),
    (
        pa.array([1, 2, 3, None], pa.int32()),
        "named_struct('nr', value, 'text', concat('#', value))",
        "STRUCT<text: STRING, nr: BIGINT>",
        [{"text": f"#{nr}", "nr": nr} for nr in (1, 2, 3)] + [{"text": None, "nr": None}],
    ),
    (
        pa.array([1, 2, 3, None]),
        "struct(value)",
        "STRUCT<value: DOUBLE>",
        [{"value": nr} for nr in (1.0, 2.0, 3.0, None)],
    ),
]


@pytest.mark.ci
@pytest.mark.slow_unless({"engine": "embedded"}, {"engine": "spark", "expression": "struct(value)"})
@pytest.mark.parametrize(("values", "expression", "kind", "expected"), MAPPED)
def test_mapped(
    world: World, engine: EngineFactory, values: pa.Array, expression: str, kind: str, expected: list[Any]
) -> None:
    """An expression makes payloads of the type that is set, on either engine; a struct takes its fields by their
    names.
    """
    world = World(Path(world.depot).parent / "own", world.clock)
    rows = [message(event_time=NOW + at, received_at=NOW + at, sequence=at) for at in range(len(values))]
    own = pa.Table.from_pylist(rows).drop_columns(["payload"]).append_column("value", values)
    times = {name: own[name].cast(pa.timestamp("us", "UTC")) for name in ("event_time", "received_at")}
    for name_, column in times.items():
        own = own.set_column(own.column_names.index(name_), name_, column)
    place = f"{world.depot}-own"
    write_deltalake(place, own, configuration={"delta.enableChangeDataFeed": "true"})
    world.depot = place
    columns = {"payload": expression}
    world.runner(engine, depot_columns=columns, payload_type=kind, rules={"on_repeat": "keep"}).once()
    [batch] = world.rows("open")
    assert list(map(written, (row["payload"] for row in batch["messages"]))) == list(map(written, expected))
    assert name(parse(kind)) == kind
    assert verify(place, world.ledger, columns=columns).differences == ()


class TestRead:
    def test_read_closed(self, typed_world: World, embedded: EngineFactory, kind: str) -> None:
        """Closed batches are read with payloads of their type; `show` and `trace` give JSON, in which no number is
        NaN.
        """
        values = [*(value for value, _ in VALUES[kind]), None]
        typed_world.publish([message(f"t{at}", payload=value) for at, value in enumerate(values)])
        typed_world.publish([message("end", NOW + 60 * SECOND, NOW + 60 * SECOND)])
        typed_world.runner(embedded, payload_type=kind).once()
        batches = windrow.read_closed(typed_world.ledger).batches
        assert batches.schema.field("messages").type.value_type.field("payload").type == parse(kind)
        [batch] = batches.to_pylist()
        assert [written(row["payload"]) for row in batch["messages"]] == [written(value) for value in values]
        shown = reading.batch(typed_world.ledger, batch["id"])
        json.dumps(shown, allow_nan=False)
        arrivals = reading.trace(typed_world.depot, typed_world.ledger, "k", NOW)
        json.dumps([asdict(arrival) for arrival in arrivals], allow_nan=False)
        assert [arrival.outcome for arrival in arrivals] == ["closed"] * len(values)
        payloads = [row["payload"] for row in shown["messages"]]
        assert sorted(map(written, payloads)) == sorted(written(arrival.payload) for arrival in arrivals)

    def test_export(self, typed_world: World, embedded: EngineFactory, kind: str, tmp_path: Path) -> None:
        """An export has the payloads in parquet as they are, in JSON as JSON, and in csv as what csv can hold."""
        values = [*(value for value, _ in VALUES[kind]), None]
        typed_world.publish([message(f"t{at}", payload=value) for at, value in enumerate(values)])
        typed_world.publish([message("end", NOW + 60 * SECOND, NOW + 60 * SECOND)])
        typed_world.runner(embedded, payload_type=kind).once()
        for ending in ("parquet", "json", "csv"):
            assert export(
                typed_world.ledger, str(tmp_path / f"out.{ending}"), ExportSelection("messages")
            ).row_count == len(values)
        table = pq.read_table(tmp_path / "out.parquet")
        assert [written(row) for row in table["payload"].to_pylist()] == [written(value) for value in values]
        rows = [
            json.loads(line, parse_constant=pytest.fail) for line in (tmp_path / "out.json").read_text().splitlines()
        ]
        assert len(rows) == len(values)
        assert len((tmp_path / "out.csv").read_text().splitlines()) == len(values) + 1

    @pytest.mark.ci
    def test_checked(self, typed_world: World, embedded: EngineFactory, kind: str) -> None:
        """The suites of Great Expectations find nothing wrong with payloads of the type."""
        typed_world.publish(*(typed(kind, part) for part in log(versions=2)))
        typed_world.runner(embedded, payload_type=kind).once()
        assert check(None, typed_world.ledger).failures() == ()

    def test_zero_that_changed_its_sign(self, tmp_path: Path, clock: ManualClock, embedded: EngineFactory) -> None:
        """Verify finds a payload that is -0.0 where the depot has 0.0: one message is lost, another is unexpected."""
        world = World(tmp_path, clock, pa.float64())
        world.publish([message(payload=0.0)])
        world.runner(embedded, payload_type="DOUBLE").once()
        rows = to_plain_types(DeltaTable(world.ledger).to_pyarrow_table())
        negative = [
            row | {"messages": [message_row | {"payload": -0.0} for message_row in row["messages"] or []] or None}
            for row in rows.to_pylist()
        ]
        changed = pa.Table.from_pylist(negative, ledger_schema(pa.float64()))
        write_deltalake(world.ledger, changed, mode="overwrite", partition_by=["state", "folded"])
        findings = {difference.check: difference.found for difference in verify(world.depot, world.ledger).differences}
        assert findings["lost"] == "1 messages"
        assert findings["unexpected"] == "1 messages"


@pytest.mark.slow
def test_streams_of_spark(spark: Any, tmp_path: Path, kind: str) -> None:
    """A user's stream through `foreach_batch`, the stream of closed batches and the quality checks on Spark keep each
    payload as it is.
    """
    values = [*(value for value, _ in VALUES[kind]), None]
    rows = [message(f"t{at}", payload=value) for at, value in enumerate(values)]
    rows.append(message("end", NOW + 60 * SECOND, NOW + 60 * SECOND, payload=None))
    (tmp_path / "files").mkdir()
    pq.write_table(table(rows, parse(kind)), tmp_path / "files" / "one.parquet")
    settings = EngineFactory("spark").settings(
        str(tmp_path / "depot"), str(tmp_path / "ledger"), payload_type=kind, idle_timeout="never"
    )
    files, target = str(tmp_path / "files"), str(tmp_path / "target")
    users = spark.readStream.schema(spark.read.parquet(files).schema).parquet(files).writeStream
    users = users.foreachBatch(windrow.foreach_batch(settings)).option("checkpointLocation", f"{settings.depot}-read")
    users.trigger(availableNow=True).start().awaitTermination()
    closed = windrow.stream_closed(spark, settings.ledger).writeStream.format("delta")
    closed = closed.option("checkpointLocation", f"{target}-read").trigger(availableNow=True)
    closed.start(target).awaitTermination()
    [batch] = to_plain_types(DeltaTable(target).to_pyarrow_table()).to_pylist()
    assert [written(row["payload"]) for row in batch["messages"]] == [written(value) for value in values]
    assert check(spark, settings.ledger).failures() == ()
    assert verify(settings.depot, settings.ledger).differences == ()


class TestPure:
    def test_batch(self) -> None:
        """`windrow.batch` keeps the type that it is told, and makes text of numbers otherwise."""
        rows = table([message(payload=value) for value in (2.5, -0.0)], pa.float64())
        kept = windrow.batch(rows, windrow.Rules(), payload_type="double")
        assert kept.batches["messages"].to_pylist()[0][0]["payload"] == 2.5
        assert kept.batches["bytes"].to_pylist() == [9]
        assert kept.rejected["payload"].to_pylist() == [-0.0]
        text = windrow.batch(rows, windrow.Rules())
        assert text.batches["messages"].to_pylist()[0][0]["payload"] == "2.5"


@pytest.mark.ci
def test_raw(tmp_path: Path, clock: ManualClock, embedded: EngineFactory) -> None:
    """Records of a raw depot become payloads of a type too: a number field, or a struct of fields."""
    fields = {"key": "string", "at": "timestamp[us]", "celsius": "float64", "nr": "int64"}
    columns = {"type": "'t'", "event_time": "at", "received_at": "at"}
    for kind, expression, expected in (
        ("DOUBLE", "celsius", [1.5, None]),
        (
            "STRUCT<nr: BIGINT, celsius: DOUBLE>",
            "struct(celsius, nr)",
            [{"nr": 3, "celsius": 1.5}, {"nr": -4, "celsius": None}],
        ),
    ):
        root = tmp_path / kind[:6]
        root.mkdir()
        settings = embedded.settings(
            str(root / "depot"),
            str(root / "ledger"),
            payload_type=kind,
            depot_columns=columns | {"payload": expression},
            format={"type": "csv", "fields": fields},
            rules={"on_repeat": "keep"},
            idle_timeout="never",
        )
        create_depot(settings.depot, None)
        (root / "in.csv").write_text("key,at,celsius,nr\nk,2026-01-31T12:00:00Z,1.5,3\nk,2026-01-31T12:00:01Z,,-4\n")
        with RawProducer(settings.depot, "s") as producer:
            producer.send((root / "in.csv").read_bytes(), last=True)
        windrow.run(settings)
        [batch] = reading.batches(settings.ledger, "open")
        assert [message["payload"] for message in batch["messages"]] == expected
        assert verify(settings.depot, settings.ledger).differences == ()
