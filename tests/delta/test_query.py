"""Querying the rows of a table: which files DuckDB reads, and what it finds where a file does not tell all."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake

from windrow.delta.database import memory_limit
from windrow.delta.query import Relation, TableRows, execute
from windrow.errors import TableUnreadableError

STATES = ("new", "old")


def written(path: Path, *parts: pa.Table) -> DeltaTable:
    """Write a table of these parts, each a file for each state."""
    for part in parts:
        write_deltalake(path, part, mode="append", partition_by=["state"], schema_mode="merge")
    return DeltaTable(path)


def numbers(state: str, first: int, count: int = 10) -> pa.Table:
    """Return rows with numbers, names and times."""
    number = pa.array(range(first, first + count))
    time = number.cast(pa.timestamp("s", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))
    return pa.table({"state": [state] * count, "number": number, "time": time, "name": number.cast(pa.string())})


def asked(table: DeltaTable, statement: str, where: str = "true", states: tuple[str, ...] = STATES) -> list[dict]:
    """Return the answer to a statement over the rows of some states."""
    named = Relation(states, [field.name for field in table.schema().fields], where)
    with TableRows(table, table.table_uri, "ledger").connect({"rows": named}, {}) as connection:
        return execute(connection, statement).read_all().to_pylist()


class TestFiles:
    def test_only_those_that_are_needed(self, tmp_path: Path) -> None:
        """Files of other states, and of other values by the statistics of the log, stay closed."""
        table = written(tmp_path, numbers("new", 0), numbers("new", 100), numbers("old", 0))
        kept = DeltaTable(tmp_path).file_uris(file_pruning_predicate="state = 'new' AND number >= 100")
        for file in {*table.file_uris()} - {*kept}:
            Path(file).unlink()
        counted = "SELECT count(*) AS rows, min(number) AS first FROM rows"
        for where in ("number >= 100", "time > '1970-01-01T00:01:00Z' OR number = 100"):
            assert asked(table, counted, where, ("new",)) == [{"rows": 10, "first": 100}]
        with pytest.raises(TableUnreadableError, match=r"lacks a file that its log names: .*parquet"):
            asked(table, counted)

    def test_a_condition_that_delta_rs_does_not_know(self, tmp_path: Path) -> None:
        """What only DuckDB understands leaves out no file."""
        table = written(tmp_path, numbers("new", 0), numbers("new", 100))
        assert asked(table, "SELECT count(*) AS rows FROM rows", "epoch_us(time) > 5_000_000") == [{"rows": 20}]

    def test_columns_that_came_later(self, tmp_path: Path) -> None:
        """A column that a file lacks is NULL, in a struct too."""
        early = numbers("new", 0, 1).append_column("inside", pa.array([{"a": 1}]))
        late = numbers("new", 1, 1).append_column("inside", pa.array([{"a": 2, "b": "x"}])).append_column("more", [[7]])
        table = written(tmp_path, early, late)
        result_rows = asked(table, "SELECT more, inside FROM rows ORDER BY number")
        assert result_rows == [{"more": None, "inside": {"a": 1, "b": None}}, {"more": 7, "inside": {"a": 2, "b": "x"}}]

    @pytest.mark.parametrize("name", ["it's", "a*b", "100%", "ünï code"])
    def test_paths(self, tmp_path: Path, name: str) -> None:
        """A file is read wherever it is, and no other one that its path would match as a pattern."""
        if "*" in name:
            written(tmp_path / name.replace("*", "x"), numbers("new", 0, 3))
        table = written(tmp_path / name, numbers("new", 0, 2))
        assert asked(table, "SELECT count(*) AS rows FROM rows") == [{"rows": 2}]

    def test_what_files_do_not_tell(self, tmp_path: Path) -> None:
        """Of a table with deletion vectors delta-rs reads the same rows, in the same types, as DuckDB by its files."""
        table = written(tmp_path, numbers("new", 0), numbers("old", 50))
        statement, where = "SELECT * FROM rows ORDER BY number", "number > 5"
        by_files = asked(table, statement, where, ("old",))
        table.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
        assert asked(DeltaTable(tmp_path), statement, where, ("old",)) == by_files
        assert len(by_files) == 10


class TestMemory:
    def test_beyond_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What does not fit into memory goes to temporary files, of which nothing is left."""
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        table = written(tmp_path / "table", numbers("new", 0, 100))
        many = "SELECT count(DISTINCT number || repeat('x', 200) || range) AS rows FROM rows, range(20_000)"
        with memory_limit(1):
            assert asked(table, many) == [{"rows": 2_000_000}]
        assert [path.name for path in tmp_path.iterdir()] == ["table"]
