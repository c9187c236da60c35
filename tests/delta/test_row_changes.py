"""What versions of a table changed, read by their files or by the change feed."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from windrow.delta.row_changes import changes
from windrow.model.commits import CHANGE, VERSION

AT = datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
PARTITIONS = {"at": AT, "day": date(2024, 1, 1), "name": "x y%/=", "flag": True}


def read(table: Path, first: int = 0, **options: Any) -> list[dict[str, Any]]:
    """Return the changes from a version on."""
    return changes(DeltaTable(table), first, **options).read_all().to_pylist()


@pytest.mark.parametrize("values", [PARTITIONS, dict.fromkeys(PARTITIONS)], ids=["values", "NULL"])
def test_partitions(tmp_path: Path, values: dict[str, Any]) -> None:
    """The values of partition columns, which no file has, come from the log, a time as one in UTC."""
    types = (pa.timestamp("us", "UTC"), pa.date32(), pa.string(), pa.bool_())
    columns = {name: pa.array([values[name]], type_) for name, type_ in zip(PARTITIONS, types, strict=True)}
    write_deltalake(tmp_path, pa.table({"number": [1], **columns}), partition_by=list(PARTITIONS))
    assert read(tmp_path) == [{"number": 1, **values, CHANGE: "insert", VERSION: 0}]


def test_many_partitions(tmp_path: Path) -> None:
    """Each row has the value of its own partition and its own version, however many small files are read together."""
    written = [{"number": number, "name": f"n{number % 4}"} for number in range(24)]
    for version in range(6):
        rows = pa.Table.from_pylist(written[4 * version : 4 * version + 4])
        write_deltalake(tmp_path, rows, mode="append", partition_by=["name"])
    for name in ("n1", None):
        write_deltalake(tmp_path, pa.table({"number": [99], "name": pa.array([name], pa.string())}), mode="append")
    expected = [row | {CHANGE: "insert", VERSION: number // 4} for number, row in enumerate(written)]
    expected += [
        {"number": 99, "name": name, CHANGE: "insert", VERSION: 6 + at} for at, name in enumerate(("n1", None))
    ]
    assert sorted(read(tmp_path), key=lambda row: (row[VERSION], row["number"])) == expected


def test_columns_that_came_later(tmp_path: Path) -> None:
    """A file that lacks a column, or a member of a struct, has NULL in it."""
    write_deltalake(tmp_path, pa.table({"inside": [{"a": 1}]}))
    grown = pa.table({"inside": [{"a": 2, "b": "x"}], "new": [3]})
    write_deltalake(tmp_path, grown, mode="append", schema_mode="merge")
    old, new = read(tmp_path)
    assert (old["inside"], old["new"]) == ({"a": 1, "b": None}, None)
    assert (new["inside"], new["new"]) == ({"a": 2, "b": "x"}, 3)


def test_times_in_nanoseconds(tmp_path: Path) -> None:
    """INT96, Spark's default for times, is read in microseconds, also beyond the year 2262."""
    far = pa.table({"at": pa.array([datetime(2500, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))})
    write_deltalake(tmp_path, far)
    [file] = tmp_path.glob("*.parquet")
    pq.write_table(far, file, use_deprecated_int96_timestamps=True)
    [row] = read(tmp_path)
    assert row["at"] == datetime(2500, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("columns", [None, [CHANGE, VERSION], ["number", VERSION, CHANGE]])
def test_in_turn(tmp_path: Path, columns: list[str] | None) -> None:
    """Versions that only added rows and those that removed some come in order, and in the columns that are asked
    for.
    """
    configuration = {"delta.enableChangeDataFeed": "true"}
    for number in range(3):
        write_deltalake(tmp_path, pa.table({"number": [number]}), mode="append", configuration=configuration)
    DeltaTable(tmp_path).delete("number = 1")
    write_deltalake(tmp_path, pa.table({"number": [3]}), mode="append")
    rows = read(tmp_path, 1, columns=columns)
    assert list(rows[0]) == (columns or ["number", CHANGE, VERSION])
    assert [(row[VERSION], row[CHANGE]) for row in rows] == [(1, "insert"), (2, "insert"), (3, "delete"), (4, "insert")]
