"""Absurd values in every column: each is a recorded rejection or an ordinary message, on both engines."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.cli.conftest import Command
from tests.clocks import NOW
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.faults.mishaps import assert_sound, assert_whole, run
from tests.messages import HOUR, SCHEMA, SECOND, message, table
from windrow import reading
from windrow.columnar.arrow import to_plain_types
from windrow.errors import DepotUnreadableError, ExpressionError, RetriesExhaustedError
from windrow.ingest.ingest import ingest
from windrow.model.messages import EARLIEST, LATEST
from windrow.reading.export import ExportSelection, export
from windrow.verify import verify

pytestmark = pytest.mark.ci

LEAST, GREATEST = -(2**63), 2**63 - 1
YEAR_1, YEAR_9999 = -62_135_596_800_000_000, 253_402_300_799_999_999
ONE_MEGABYTE = 1_000_000

HOSTILE = [
    "",
    " ",
    "it's",
    'quo"te',
    "back`tick",
    "a/b",
    "..",
    "a\\b",
    "100%",
    "%2F",
    "%00",
    "%N",
    "NULL",
    "nul\0nul",
    "\0",
    "two\nlines",
    "\ttab",
    "\x1b[31mred",
    "\ufeffmark",
    "\U0001f69c\U0001f33e",
    "شكرا",
    "\u202eright to left",
    unicodedata.normalize("NFC", "e\u0301"),
    unicodedata.normalize("NFD", "\u00e9"),
    "'; DROP TABLE ledger; --",
    "[bold]not markup[/bold]",
    "state=open",
    "batch/x/y/1/0",
    "{}",
]


def hostile_rows() -> list[dict[str, object]]:
    """Return messages with each hostile string as source, as key and as type (that one twice), with itself inside."""
    rows = []
    for text in HOSTILE:
        rows += [message(source=text, payload=text), message(source="keys", key=text, payload=text)]
        rows += [message(text, source="types", payload=text)] * 2
    return rows


class TestNull:
    @pytest.mark.parametrize("column", ["source", "key", "type", "event_time", "received_at"])
    def test_in_a_required_column(self, world: World, embedded: EngineFactory, column: str) -> None:
        """A message without a source, key, type, event time or stamp is rejected as invalid with its whole content; the
        message beside it is batched.
        """
        bad = message("a", sequence=7, payload="x") | {column: None}
        world.publish([bad, message("b", payload="y")])
        assert run(world, embedded) == 2
        (refused,) = world.rows("rejected")
        assert (refused["reason"], refused["detail"]) == ("invalid", f"{column} is NULL")
        assert table([{name: refused[name] for name in SCHEMA.names}]) == table([_timed(bad)])
        assert_whole(world)

    @pytest.mark.parametrize("column", ["sequence", "payload"])
    def test_in_an_optional_column(self, world: World, embedded: EngineFactory, column: str) -> None:
        """A message without a sequence or payload is batched, and NULL stays NULL."""
        world.publish([message("a", sequence=7, payload="x") | {column: None}])
        run(world, embedded)
        assert [inside[column] for row in world.rows("open") for inside in row["messages"]] == [None]
        assert_whole(world)

    @pytest.mark.slow  # TestTimes.test_all_on_spark shows that Spark rejects as the embedded engine does
    def test_in_every_column_on_spark(self, world: World, spark_engine: EngineFactory) -> None:
        """Spark rejects the same messages with the same ids, also one that is NULL in every column."""
        empty = dict.fromkeys(SCHEMA.names)
        world.publish(
            [empty, message("b"), *(message(f"no {name}", payload="x") | {name: None} for name in SCHEMA.names)]
        )
        assert run(world, spark_engine) == 9
        assert len(world.rows("rejected")) == 6
        assert_whole(world)


class TestTimes:
    @pytest.mark.slow_unless({"column": "event_time"}, {"reason": "new"}, {"time": EARLIEST}, {"time": LATEST})
    @pytest.mark.parametrize("column", ["event_time", "received_at"])
    @pytest.mark.parametrize(
        ("time", "reason"),
        [
            (LEAST, "invalid"),
            (YEAR_1, "invalid"),
            (EARLIEST - 1, "invalid"),
            (EARLIEST, "old"),
            (-1, "old"),
            (0, "old"),
            (LATEST - 1, "new"),
            (LATEST, "invalid"),
            (YEAR_9999, "invalid"),
            (GREATEST, "invalid"),
        ],
    )
    def test_out_of_range(self, world: World, embedded: EngineFactory, column: str, time: int, reason: str) -> None:
        """A time outside 1678 to 2261 is invalid, one inside is judged by the rules; it moves no clock beyond the
        message beside it, which is batched, and status, show and verify can say all of it.
        """
        reasons = {
            ("old", "event_time"): ("too_old", None),
            ("old", "received_at"): ("too_far_ahead", None),
            ("new", "event_time"): ("too_far_ahead", None),
            ("new", "received_at"): ("clock_ahead", None),
        }
        world.publish([message("a", key="absurd") | {column: time}, message("b")])
        assert run(world, embedded) == 2
        refused = rejected_table(world)
        expected = reasons.get((reason, column), ("invalid", f"{column} is out of range"))
        assert (refused["reason"][0].as_py(), refused["detail"][0].as_py()) == expected
        assert refused[column].cast(pa.int64()).to_pylist() == [time]
        assert [row["message_count"] for row in world.rows("open")] == [1]
        assert [floor for _, floor in world.clocks().values()] == table([message()])["received_at"].to_pylist()
        assert_sound(world)

    @pytest.mark.parametrize("time", [LEAST, GREATEST])
    def test_out_of_range_in_a_file(self, world: World, embedded: EngineFactory, tmp_path: Path, time: int) -> None:
        """A time outside the years 1 to 9999 is exported as its number, and shown by verify where it is missing."""
        world.publish([message("a") | {"event_time": time}, message("b")])
        run(world, embedded)
        for name in ("out.csv", "out.json"):
            export(world.ledger, str(tmp_path / name), ExportSelection("rejected"))
            assert f'"{time} us"' in (tmp_path / name).read_text()
        DeltaTable(world.ledger).delete("state = 'rejected'")
        report = verify(world.depot, world.ledger)
        assert str(time) in json.dumps([difference.examples for difference in report.differences], default=str)

    @pytest.mark.slow_unless({"time": EARLIEST})
    @pytest.mark.parametrize("time", [EARLIEST, -1, 0])
    def test_a_log_of_another_century(self, world: World, embedded: EngineFactory, time: int) -> None:
        """A backfill from long ago is batched like any other, and its last batch closes by an idle tick."""
        world.publish([message("a", time, time), message("b", time, time), message("a", time + SECOND, time + SECOND)])
        run(world, embedded)
        assert_whole(world)
        world.clock.advance(HOUR)
        world.runner(embedded, idle_timeout="1s").once()
        assert sorted(row["message_count"] for row in world.rows("closed")) == [1, 2]
        assert world.rows("open") == []
        assert_sound(world)

    def test_all_on_spark(self, world: World, spark_engine: EngineFactory, embedded: EngineFactory) -> None:
        """Spark decides as the embedded engine does for every absurd time, to the last byte of the ledger's rows."""
        times = [LEAST, YEAR_1, EARLIEST - 1, EARLIEST, -1, 0, NOW, LATEST - 1, LATEST, YEAR_9999, GREATEST]
        absurd = [message("a", time, source=f"event {time}") for time in times]
        absurd += [message("a", NOW, time, source=f"arrival {time}") for time in times]
        world.publish(absurd)
        run(world, spark_engine)
        assert_sound(world)
        theirs = final_table(world)
        world.ledger += "-embedded"
        run(world, embedded)
        assert theirs == final_table(world)


class TestSequences:
    @pytest.mark.slow_unless({"sequence": LEAST}, {"sequence": GREATEST})
    @pytest.mark.parametrize("sequence", [LEAST, -1, 0, GREATEST])
    def test_extremes(self, world: World, embedded: EngineFactory, sequence: int) -> None:
        """Every sequence that a column can hold orders messages and comes back as it was."""
        rows = [message("a", sequence=number, payload=str(number)) for number in (sequence, 5, None)]
        world.publish(rows)
        run(world, embedded)
        numbers = [row["sequence"] for row in world.rows("rejected")]
        numbers += [inside["sequence"] for row in world.rows("open") for inside in row["messages"]]
        assert {sequence, 5, None} == set(numbers)
        assert_whole(world)


class TestStrings:
    @pytest.mark.slow_on_spark
    def test_hostile(self, world: World, engine: EngineFactory) -> None:
        """Quotes, slashes, percent signs, NUL, control characters, emoji, SQL, markup and text from right to left are
        ordinary sources, keys, types and payloads: each comes back as it was, in a batch of its own stream.
        """
        world.publish(hostile_rows())
        assert run(world, engine) == 4 * len(HOSTILE)
        batches = world.rows("open")
        assert {row["source"] for row in batches} >= set(HOSTILE)
        assert {row["key"] for row in batches if row["source"] == "keys"} == set(HOSTILE)
        inside = [part for row in batches if row["source"] == "types" for part in row["messages"]]
        assert {(part["type"], part["payload"]) for part in inside} == {(text, text) for text in HOSTILE}
        assert [row["reason"] for row in world.rows("rejected")] == ["duplicate"] * len(HOSTILE)
        assert_whole(world)

    def test_ids_stay_apart(self, world: World, embedded: EngineFactory) -> None:
        """No two streams share an id, however their names are made up: `a/b` under `c` is not `a` under `b/c`, NULL is
        not `%N`, and the two normal forms of a letter stay two.
        """
        names = ["a", "b", "a/b", "b/a", "/", "", "%", "%2F", "%25", "%N", *HOSTILE]
        pairs = [(source, key) for source in dict.fromkeys(names) for key in dict.fromkeys(names)]
        rows = [message(source=source, key=key) for source, key in pairs]
        rows += [message(source=None, key=key) for key in dict.fromkeys(names)]
        world.publish(rows)
        run(world, embedded)
        assert len({row["id"] for row in world.rows("open")}) == len(pairs)
        assert len({row["id"] for row in world.rows("rejected")}) == len(dict.fromkeys(names))
        assert_sound(world)

    def test_looked_at(self, world: World, embedded: EngineFactory) -> None:
        """`show` finds batches and rejections with hostile names by their ids, and every hostile key."""
        world.publish(hostile_rows())
        run(world, embedded)
        for row in world.rows("open")[::4]:
            assert reading.batch(world.ledger, row["id"])["id"] == row["id"]
        for row in world.rows("rejected")[::4]:
            assert reading.rejection(world.ledger, row["id"])["payload"] == row["payload"]
        for text in HOSTILE:
            (batch,) = reading.batches(world.ledger, "open", key=text, source="keys")
            assert batch["messages"][0]["payload"] == text

    def test_printed(self, world: World, windrow: Command, embedded: EngineFactory) -> None:
        """The commands print hostile names without failing, and take no markup or escape from them: what is shown of
        `[bold]` is `[bold]`.
        """
        world.publish(hostile_rows())
        run(world, embedded)
        tables = ("--depot", world.depot, "--ledger", world.ledger)
        for command in (("status",), ("show", "--open", "--limit", "200"), ("show", "--rejected", "--limit", "200")):
            arguments = tables if command == ("status",) else tables[2:]
            for form in ((), ("--json",)):
                result = windrow(*command, *arguments, *form)
                assert (result.status, result.err) == (0, "")
        assert "[bold]not markup[/bold]" in windrow("show", "--rejected", "--limit", "200", *tables[2:]).out
        assert windrow("verify", *tables).status == 0

    def test_of_a_megabyte(self, world: World, embedded: EngineFactory) -> None:
        """A source, key, type and payload of a megabyte each, sent twice, are one message and one duplicate."""
        big = "x" * ONE_MEGABYTE
        world.publish([message(big, source=big, key=big, payload=big)] * 2)
        run(world, embedded)
        assert [row["bytes"] for row in world.rows("open")] == [2 * ONE_MEGABYTE]
        assert_whole(world)

    def test_larger_than_a_batch(self, world: World, embedded: EngineFactory) -> None:
        """A message larger than `max_batch_bytes` stands alone in its closed batch, flagged oversize; nothing is cut
        off.
        """
        world.publish([message("a", payload="x" * 17 * ONE_MEGABYTE), message("b")])
        run(world, embedded)
        assert_whole(world)
        world.runner(embedded).flush()
        parts = world.rows("closed")
        assert [(row["oversize"], row["message_count"]) for row in parts] == [(True, 1), (False, 1)]
        assert len(parts[0]["messages"][0]["payload"]) == 17 * ONE_MEGABYTE
        assert_sound(world)

    @pytest.mark.parametrize("column", ["key", "payload"])
    def test_not_utf_8_in_the_depot(self, world: World, embedded: EngineFactory, column: str) -> None:
        """Text that is no UTF-8, put into the depot by somebody who does not check, stops the run with the version and
        the reason; the versions behind it are read by a ledger that begins there.
        """
        world.publish([message("a")])
        rows = table([message("b"), message("c")])
        broken = rows.set_column(rows.schema.get_field_index(column), column, not_utf_8())
        write_deltalake(world.depot, broken, mode="append")
        world.publish([message("d")])
        with pytest.raises(DepotUnreadableError, match="versions 2 to 2 have text that is not UTF-8"):
            world.runner(embedded, max_messages=1).once()
        assert [row["messages_read"] for row in world.history()] == [1]
        world.ledger += "-behind"
        assert world.runner(embedded, start_from="version:3").once().total("message_count") == 1

    @pytest.mark.parametrize("max_driver_messages", [pytest.param(500_000, marks=pytest.mark.slow_on_spark), 0])
    def test_not_utf_8_on_spark(self, world: World, spark_engine: EngineFactory, max_driver_messages: int) -> None:
        """Spark, which reads such text, does not bring it into the ledger, whether the driver or executors process
        it.
        """
        rows = table([message("b"), message("c")])
        broken = rows.set_column(rows.schema.get_field_index("payload"), "payload", not_utf_8())
        write_deltalake(world.depot, broken, mode="append")
        with pytest.raises((DepotUnreadableError, RetriesExhaustedError), match="have text that is not UTF-8"):
            world.runner(spark_engine, max_retries=0, max_driver_messages=max_driver_messages).once()
        assert world.history() == []

    @pytest.mark.slow
    def test_not_utf_8_ingested_by_spark(self, world: World, spark_engine: EngineFactory, tmp_path: Path) -> None:
        """Spark takes no file with such text into the depot."""
        rows = table([message("b"), message("c")])
        broken = rows.set_column(rows.schema.get_field_index("key"), "key", not_utf_8())
        pq.write_table(broken, tmp_path / "messages.parquet")
        writer = world.tables(spark_engine).writer
        with pytest.raises(ExpressionError, match="INVALID_UTF8_STRING"):
            list(ingest(writer, [str(tmp_path / "messages.parquet")], {}))
        assert DeltaTable(world.depot).version() == 0


def not_utf_8() -> pa.Array:
    """Return two strings that are none: a stray byte, and one half of a surrogate pair."""
    offsets = pa.array([0, 2, 5], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"\xff\xfe\xed\xa0\x80")])


def rejected_table(world: World) -> pa.Table:
    """Return the rejected rows as Arrow: some of their times are beyond Python's."""
    return to_plain_types(DeltaTable(world.ledger).to_pyarrow_table(filters=[("state", "=", "rejected")]))


def final_table(world: World) -> pa.Table:
    """Return what open batches and rejections say, in the order of their ids, times as numbers."""
    whole = to_plain_types(DeltaTable(world.ledger).to_pyarrow_table(filters=[("state", "in", ["open", "rejected"])]))
    names = ["id", "state", "reason", "detail", "missed_by_us", "floor_raise_us", "message_count", "bytes"]
    times = ["window_start", "window_end", "event_time", "received_at", "processing_time"]
    counted = {name: whole[name].cast(pa.int64()) for name in times}
    texts = {"messages": pc.list_value_length(whole["messages"])}
    return pa.table({name: whole[name] for name in names} | counted | texts).sort_by("id").combine_chunks()


def _timed(row: dict[str, object]) -> dict[str, object]:
    return dict(zip(SCHEMA.names, (column[0].as_py() for column in table([row]).columns), strict=True))
