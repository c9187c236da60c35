"""The last messages of a depot, read without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.clocks import NOW
from tests.messages import SECOND, log, message, table
from windrow.errors import ExpressionError, NotFoundError, TableMissingError
from windrow.reading.feed import recent

FEED = {"delta.enableChangeDataFeed": "true"}
COLUMNS = {"key": "device", "type": "'t'", "event_time": "measured", "received_at": "measured"}


@pytest.fixture
def depot(tmp_path: Path) -> str:
    """Return a depot of five versions with ten messages each."""
    for rows in log(5, size=10):
        write_deltalake(tmp_path / "depot", table(rows), mode="append", configuration=FEED)
    return str(tmp_path / "depot")


class TestRecent:
    def test_all(self, depot: str) -> None:
        """Below the limit all messages are there, each with the version it came in, and nothing was cut."""
        newest = recent(depot)
        assert (newest.messages.num_rows, newest.first, newest.last, newest.truncated) == (50, 0, 4, False)
        counted = newest.messages.group_by("version").aggregate([([], "count_all")])
        assert counted["count_all"].to_pylist() == [10] * 5

    def test_the_last(self, depot: str) -> None:
        """Above it the latest versions are there, of the oldest of them those received last, and it says so."""
        newest = recent(depot, most=25)
        assert (newest.messages.num_rows, newest.first, newest.last, newest.truncated) == (25, 2, 4, True)
        whole = recent(depot).messages.to_pylist()
        stamps = sorted(row["received_at"] for row in whole if row["version"] == 2)
        kept = sorted(row["received_at"] for row in newest.messages.to_pylist() if row["version"] == 2)
        assert kept == stamps[-5:]

    def test_whole_versions_are_exact(self, depot: str) -> None:
        """A limit that whole versions meet exactly reads these, and still says that there were more."""
        newest = recent(depot, most=20)
        assert (newest.messages.num_rows, newest.first, newest.truncated) == (20, 3, True)

    def test_exactly_all(self, tmp_path: Path) -> None:
        """A limit that all messages meet exactly cuts nothing, also where the first version has none."""
        for rows in (table(log(1)[0]).slice(0, 0), table(log(1, size=3)[0])):
            write_deltalake(tmp_path, rows, mode="append", configuration=FEED)
        assert not recent(str(tmp_path), most=3).truncated
        assert recent(str(tmp_path), most=2).truncated

    def test_range(self, tmp_path: Path) -> None:
        """A range takes what was received in it, from its begin to just before its end."""
        rows = [message("a", NOW + n * SECOND, NOW + n * SECOND) for n in range(5)]
        write_deltalake(tmp_path, table(rows), configuration=FEED)
        newest = recent(str(tmp_path), start=NOW + SECOND, end=NOW + 3 * SECOND)
        assert newest.messages["received_at"].cast(pa.int64()).to_pylist() == [NOW + SECOND, NOW + 2 * SECOND]
        assert not newest.truncated
        with pytest.raises(NotFoundError, match="no message in this range"):
            recent(str(tmp_path), start=NOW + 9 * SECOND)

    def test_rewritten_files_bring_nothing(self, depot: str) -> None:
        """A version that only rewrote files has no messages."""
        DeltaTable(depot).optimize.compact()
        assert recent(depot, most=10).first == 4

    def test_gone(self, depot: str) -> None:
        """Where the oldest versions can no longer be read, those that can are there."""
        removed = DeltaTable(depot).to_pyarrow_table().num_rows
        DeltaTable(depot).optimize.compact()
        write_deltalake(depot, table([message()]), mode="append")
        DeltaTable(depot).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        newest = recent(depot)
        assert removed == 50
        assert (newest.messages.num_rows, newest.first, newest.truncated) == (1, 6, True)

    def test_mapped(self, tmp_path: Path) -> None:
        """A depot with other columns is mapped; without a mapping the error names the first that is missing."""
        stamps = pa.array([NOW, NOW + SECOND], pa.timestamp("us", tz="UTC"))
        write_deltalake(tmp_path, pa.table({"device": ["p", "q"], "measured": stamps}), configuration=FEED)
        newest = recent(str(tmp_path), COLUMNS, most=1)
        assert newest.messages.select(["key", "type", "version"]).to_pylist() == [
            {"key": "q", "type": "t", "version": 0}
        ]
        with pytest.raises(ExpressionError, match="key"):
            recent(str(tmp_path))

    def test_nothing_there(self, tmp_path: Path) -> None:
        """No table and no message are errors that say what brings some."""
        with pytest.raises(TableMissingError):
            recent(str(tmp_path / "nowhere"))
        DeltaTable.create(tmp_path / "empty", table([]).schema, configuration=FEED)
        with pytest.raises(NotFoundError, match="has no message") as raised:
            recent(str(tmp_path / "empty"))
        assert "windrow ingest" in str(raised.value)
