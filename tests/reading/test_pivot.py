"""Closed batches as rows of numbers: in Python, as an export, and as a view on Spark."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from tests.clocks import NOW, ManualClock
from tests.engine.factory import EMBEDDED
from tests.engine.world import World
from tests.messages import SECOND, Row, message
from windrow.errors import IncompatibleTableError, OutputFileError, SettingsError, TableMissingError
from windrow.model.payload import name
from windrow.reading.export import ExportSelection, export

Figures = dict[str, Any]


def row(type_: str, at: int, payload: Any, key: str = "k") -> Row:
    """Return a message some seconds after the beginning."""
    return message(type_, NOW + at * SECOND, NOW + at * SECOND, payload=payload, key=key)


def closed(tmp_path: Path, rows: list[Row], payload: pa.DataType, **rules: Any) -> World:
    """Return a world in which the batches of some messages are closed."""
    world = World(tmp_path, ManualClock(), payload)
    world.publish(rows, [row("end", 60, None)])
    kind = "" if payload == pa.string() else name(payload)
    world.runner(EMBEDDED, payload_type=kind, rules=rules).once()
    return world


def numbers(rows: list[Figures]) -> list[Figures]:
    """Return the columns of types, without those of the batch."""
    batch = {"id", "source", "key", "part", "window_start", "window_end"}
    return [{name: value for name, value in row.items() if name not in batch} for row in rows]


SPLIT = [row("a", 0, 1.5), row("b", 1, -0.0), row("a", 2, math.inf), row("key", 3, 2.0), row("c", 3, None)]
KEPT = [row("a", 0, 3), row("a", 1, None), row("a", 2, -5), row("a", 3, 4), row("b", 1, 2**62), row("c", 2, None)]
TEXTS = [
    ("1.5", 1.5), ("-2", -2.0), (".5e1", 5.0), ("7.", 7.0), ("1e999", math.inf), ("0x1", None), ("NaN", None),
    (" 1", None), ("1\n", None), ("1,5", None), ("12:1", None), ("", None), ("1d", None), ("\u0661", None),
]  # fmt: skip


class TestSplit:
    def test_one_column_a_type(self, tmp_path: Path) -> None:
        """A batch is one row, a type one column with its number, NULL where it has none; odd names get a prefix."""
        world = closed(tmp_path, SPLIT, pa.float64())
        closed_batches = windrow.read_closed(world.ledger, pivot=True)
        assert numbers(closed_batches.batches.to_pylist()) == [
            {"a": 1.5, "b": -0.0, "c": None, "type.key": None},
            {"a": math.inf, "b": None, "c": None, "type.key": 2.0},
        ]
        assert closed_batches.batches["id"].to_pylist() == [row["id"] for row in world.rows("closed")]
        assert closed_batches.batches.schema.field("a").type == pa.float64()
        assert closed_batches.position == windrow.read_closed(world.ledger).position

    def test_given_types(self, tmp_path: Path) -> None:
        """Types that are given are the columns, in this order, also if nothing came of them."""
        world = closed(tmp_path, SPLIT, pa.float64())
        batches = windrow.read_closed(world.ledger, pivot=True, types=["z", "a"]).batches
        assert numbers(batches.to_pylist()) == [{"z": None, "a": 1.5}, {"z": None, "a": math.inf}]

    def test_no_list_of_types(self, tmp_path: Path) -> None:
        """One text is no list of types, of which each letter would be one; and types without a pivot are a mistake."""
        world = closed(tmp_path, SPLIT, pa.float64())
        with pytest.raises(SettingsError, match="types = 'load' is not a list"):
            windrow.read_closed(world.ledger, types="load", pivot=True)
        with pytest.raises(SettingsError, match="chooses columns of a pivot"):
            windrow.read_closed(world.ledger, types=["load"])

    def test_texts(self, tmp_path: Path) -> None:
        """A text is a number if it is nothing but one in decimal digits."""
        rows = [row(f"t{number}", 0, text) for number, (text, _) in enumerate(TEXTS)]
        world = closed(tmp_path, rows, pa.string())
        [numbers_by_type] = numbers(windrow.read_closed(world.ledger, pivot=True).batches.to_pylist())
        assert [numbers_by_type[f"t{number}"] for number in range(len(TEXTS))] == [value for _, value in TEXTS]

    @pytest.mark.parametrize("payload", [pa.binary(), pa.bool_(), pa.struct([("x", pa.float64())])])
    def test_no_numbers(self, tmp_path: Path, payload: pa.DataType) -> None:
        """Payloads that are no numbers are refused, not guessed."""
        world = closed(tmp_path, [row("a", 0, None)], payload)
        with pytest.raises(OutputFileError, match=f"the payloads are {name(payload)[:4]}"):
            windrow.read_closed(world.ledger, pivot=True)


class TestKept:
    def test_six_columns_a_type(self, tmp_path: Path) -> None:
        """Where repeats are kept, a type has the first, last, least and greatest number, their mean and count."""
        world = closed(tmp_path, KEPT, pa.int64(), on_repeat="keep")
        batches = windrow.read_closed(world.ledger, pivot=True).batches
        a, b = [3, 4, -5, 4, 2 / 3, 3], [2**62, 2**62, 2**62, 2**62, float(2**62), 1]
        nothing = [None, None, None, None, None, 0]
        kinds = ("first", "last", "min", "max", "mean", "count")
        expected = {
            f"{type_}.{kind}": value
            for type_, values in (("a", a), ("b", b), ("c", nothing))
            for kind, value in zip(kinds, values, strict=True)
        }
        assert numbers(batches.to_pylist()) == [expected]
        assert batches.schema.field("a.min").type == pa.int64()

    def test_nan(self, tmp_path: Path) -> None:
        """The least and the greatest number pass over NaN."""
        rows = [row("a", 0, math.nan), row("a", 1, 2.0), row("a", 2, 1.0), row("b", 0, math.nan)]
        world = closed(tmp_path, rows, pa.float64(), on_repeat="keep")
        [batch] = windrow.read_closed(world.ledger, pivot=True).batches.to_pylist()
        assert (batch["a.min"], batch["a.max"], batch["b.min"], batch["b.count"]) == (1.0, 2.0, None, 1)
        assert math.isnan(batch["a.first"])
        assert math.isnan(batch["a.mean"])


class TestExport:
    @pytest.mark.parametrize("ending", ["parquet", "csv", "json"])
    def test_files(self, tmp_path: Path, ending: str) -> None:
        """An export has the same rows and columns, whatever the format."""
        world = closed(tmp_path, [*SPLIT, row("b", 1, 7.25, key="l")], pa.float64())
        out = tmp_path / f"out.{ending}"
        assert export(world.ledger, str(out), ExportSelection("pivot", key="k", types=["a", "b"])).row_count == 2
        if ending == "parquet":
            written = pq.read_table(out).to_pylist()
            assert numbers(written) == [{"a": 1.5, "b": 0.0}, {"a": math.inf, "b": None}]
        elif ending == "csv":
            lines = out.read_text().splitlines()
            assert lines[0].endswith('"window_end","a","b"')
            assert [line.rsplit(",", 2)[1:] for line in lines[1:]] == [["1.5", "-0"], ["inf", ""]]
        else:
            written = [json.loads(line) for line in out.read_text().splitlines()]
            assert numbers(written) == [{"a": 1.5, "b": 0.0}, {"a": "Infinity", "b": None}]


@pytest.mark.spark
class TestView:
    @pytest.mark.ci
    @pytest.mark.slow_unless({"kind": "split"})
    @pytest.mark.parametrize("kind", ["split", "kept", "texts"])
    def test_same_as_python(self, spark: Any, tmp_path: Path, kind: str) -> None:
        """The view on Spark has the rows and columns of `read_closed`."""
        if kind == "split":
            world = closed(tmp_path, [*SPLIT, row("it's `b`\\", 0, 1.0)], pa.float64())
        elif kind == "kept":
            world = closed(tmp_path, KEPT, pa.int64(), on_repeat="keep")
        else:
            texts = [row(f"t{number}", 0, text) for number, (text, _) in enumerate(TEXTS)]
            world = closed(tmp_path, texts, pa.string())
        windrow.create_pivot_view(spark, world.ledger, "wide")
        ours = windrow.read_closed(world.ledger, pivot=True).batches
        theirs = spark.table("wide").orderBy("window_start").toArrow()
        assert theirs.column_names == ours.column_names
        assert theirs.cast(ours.schema).to_pylist() == ours.to_pylist()

    def test_refused(self, spark: Any, tmp_path: Path) -> None:
        """Two types that differ in case alone are too much for Spark, which says so; one of them is not."""
        world = closed(tmp_path, [row("a", 0, 1.0), row("A", 0, 2.0)], pa.float64())
        with pytest.raises(IncompatibleTableError, match="cannot be created"):
            windrow.create_pivot_view(spark, world.ledger, "wide")
        windrow.create_pivot_view(spark, world.ledger, "wide", ["A"])
        assert spark.table("wide").collect()[0]["A"] == 2.0

    @pytest.mark.slow
    def test_in_a_catalog(self, spark: Any, tmp_path: Path) -> None:
        """Ledger and view may be tables of a catalog; other sessions see the view; a missing ledger is told."""
        world = closed(tmp_path, SPLIT, pa.float64())
        spark.sql(f"CREATE SCHEMA IF NOT EXISTS pivots LOCATION '{tmp_path / 'pivots'}'")
        try:
            spark.sql(f"CREATE TABLE pivots.ledger USING DELTA LOCATION '{world.ledger}'")
            windrow.create_pivot_view(spark, "pivots.ledger", "pivots.wide", ["a"])
            rows = spark.newSession().sql("SELECT a FROM pivots.wide ORDER BY window_start").collect()
            assert [row["a"] for row in rows] == [1.5, math.inf]
            with pytest.raises(TableMissingError, match="there is no ledger"):
                windrow.create_pivot_view(spark, "pivots.nothing", "pivots.wide")
        finally:
            spark.sql("DROP SCHEMA pivots CASCADE")


class TestEarly:
    def test_open_batches(self, tmp_path: Path) -> None:
        """With open batches a pivot has one row for each batch, and a column that says which may still change."""
        world = World(tmp_path, ManualClock(), pa.float64())
        for rows in ([row("a", 0, 1.0)], [row("b", 20, 2.0)], [row("a", 21, 3.0), row("state", 22, 4.0)]):
            world.publish(rows)
            world.runner(EMBEDDED, payload_type="DOUBLE", rules={"window": "10s"}).once()
        out = tmp_path / "wide.json"
        choice = ExportSelection("pivot", early=True)
        exported = export(world.ledger, str(out), choice)
        written = [json.loads(line) for line in out.read_text().splitlines()]
        assert exported.row_count == 2
        assert sorted(((batch["state"], *numbers([batch])[0].values()) for batch in written), key=str) == [
            ("closed", "closed", 1.0, None, None),
            ("open", "open", 3.0, 2.0, 4.0),
        ]
        again = export(
            world.ledger, str(tmp_path / "later.json"), ExportSelection("pivot", since=exported.position, early=True)
        )
        assert again.row_count == 1  # the open one

    @pytest.mark.spark
    def test_view(self, tmp_path: Path, spark: Any) -> None:
        """A view of Spark has the same rows."""
        world = World(tmp_path, ManualClock(), pa.float64())
        for rows in ([row("a", 0, 1.0)], [row("b", 20, 2.0)], [row("a", 21, 3.0)]):
            world.publish(rows)
            world.runner(EMBEDDED, payload_type="DOUBLE", rules={"window": "10s"}).once()
        windrow.create_pivot_view(spark, world.ledger, "early", early=True)
        batches = spark.sql("SELECT state, a, b FROM early ORDER BY state").collect()
        assert [tuple(batch) for batch in batches] == [("closed", 1.0, None), ("open", 3.0, 2.0)]


def test_of_a_table(tmp_path: Path) -> None:
    """Batches from elsewhere, such as those that a topology reads, become the same rows."""
    world = closed(tmp_path, SPLIT, pa.float64())
    expected = windrow.read_closed(world.ledger, pivot=True, types=["a", "b"]).batches
    assert windrow.pivot(windrow.read_closed(world.ledger).batches, ["a", "b"]).equals(expected)


def test_of_a_table_that_keeps_repeats(tmp_path: Path) -> None:
    """A batch with several messages of a type is no row with one of them: it is refused, unless all are asked for."""
    world = closed(tmp_path, KEPT, pa.int64(), on_repeat="keep")
    batches = windrow.read_closed(world.ledger).batches
    with pytest.raises(OutputFileError, match="several messages of type"):
        windrow.pivot(batches, ["a", "b"])
    expected = windrow.read_closed(world.ledger, pivot=True, types=["a", "b"]).batches
    assert windrow.pivot(batches, ["a", "b"], repeats=True).equals(expected)
