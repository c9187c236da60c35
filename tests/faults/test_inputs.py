"""Files to ingest that are broken, foreign or not what they say: refused with the reason, and the depot as it was."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.cli.conftest import Command
from tests.clocks import NOW
from tests.engine.factory import EngineFactory
from tests.faults.mishaps import rights, without_root
from tests.faults.test_values import not_utf_8
from tests.messages import message, table
from windrow.errors import InputFileError
from windrow.ingest.ingest import ingest


@pytest.fixture
def depot(windrow: Command, tmp_path: Path) -> str:
    """An empty depot."""
    assert windrow("init", "--json").status == 0
    return str(tmp_path / "data" / "depot")


def write_text(file: Path) -> None:
    file.write_text("hello, I am no parquet file")


def write_nothing(file: Path) -> None:
    file.touch()


def write_half(file: Path) -> None:
    pq.write_table(many(), file)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def write_damaged_pages(file: Path) -> None:
    pq.write_table(many(), file, row_group_size=5_000, compression="none", use_dictionary=False)
    content = bytearray(file.read_bytes())
    middle = len(content) * 2 // 3
    content[middle : middle + 20_000] = b"\xff" * 20_000
    file.write_bytes(content)


def write_not_utf_8(file: Path) -> None:
    rows = table([message("a"), message("b")])
    pq.write_table(rows.set_column(rows.schema.get_field_index("payload"), "payload", not_utf_8()), file)


def write_other_columns(file: Path) -> None:
    pq.write_table(pa.table({"colour": ["red"]}), file)


def many() -> pa.Table:
    """Return messages for some pages."""
    return table(message("a", NOW + at, payload=f"{at}" * 9) for at in range(20_000))


class TestFile:
    @pytest.mark.parametrize(
        ("write", "says"),
        [
            (write_text, "WINDROW-FILE"),
            (write_nothing, "WINDROW-FILE"),
            (write_half, "WINDROW-FILE"),
            (write_damaged_pages, "cannot be read to its end"),
            (write_not_utf_8, "Invalid UTF8"),
            (write_other_columns, "WINDROW-EXPRESSION"),
            (Path.mkdir, "is a directory"),
        ],
    )
    def test_refused(self, windrow: Command, depot: str, tmp_path: Path, write: object, says: str) -> None:
        """A file that is no parquet, empty, cut short, damaged inside, with text that is none, or without the columns
        of a message is refused in one or two lines with status 2; the depot is as it was, and takes the next file.
        """
        write(tmp_path / "messages.parquet")
        result = windrow("ingest", "messages.parquet", "--json")
        assert (result.status, result.out) == (2, "")
        assert says in result.err
        assert len(result.err.strip().splitlines()) <= 2
        assert DeltaTable(depot).version() == 0
        pq.write_table(table([message()]), tmp_path / "good.parquet")
        assert windrow("ingest", "good.parquet", "--json").json()["message_count"] == 1

    def test_not_ours_to_read(self, common: Path, embedded: EngineFactory) -> None:
        """A file that may not be read is refused with that reason."""
        file = common / "messages.parquet"
        pq.write_table(table([message()]), file)
        writer = embedded.open(str(common / "depot"), str(common / "ledger")).writer
        with rights(0, file), without_root(), pytest.raises(InputFileError, match="Permission denied"):
            list(ingest(writer, [str(file)], {}))
        assert not DeltaTable.is_deltatable(str(common / "depot"))

    def test_some_of_several(self, windrow: Command, depot: str, tmp_path: Path) -> None:
        """When one of several files is refused, none of them is taken that was not before: all are opened first."""
        pq.write_table(table([message()]), tmp_path / "good.parquet")
        write_text(tmp_path / "bad.parquet")
        assert windrow("ingest", "good.parquet", "bad.parquet", "--json").status == 2
        assert DeltaTable(depot).version() == 0

    def test_no_rows(self, windrow: Command, depot: str, tmp_path: Path) -> None:
        """A file without rows is taken, adds nothing, and does not stop the run."""
        pq.write_table(table([]), tmp_path / "none.parquet")
        assert windrow("ingest", "none.parquet", "--json").json()["message_count"] == 0
        assert windrow("run", "--json").json()["message_count"] == 0


class TestColumns:
    @pytest.mark.parametrize(
        ("columns", "says"),
        [
            ('ky = "type"', "Did you mean 'key'?"),
            ('key = ""', "not a single expression"),
            ('key = "(("', "WINDROW-EXPRESSION"),
            ('key = "\'; DROP TABLE depot"', "a quote or comment is not closed"),
            ('key = "nothing"', "no column 'nothing'"),
            ('key = "rand()"', "may differ in every run"),
            ('event_time = "payload"', "event_time = payload"),
            ('sequence = "payload"', "sequence = payload"),
            ("key = 3", "ingest.columns.key = 3"),
        ],
    )
    def test_without_sense(self, windrow: Command, depot: str, tmp_path: Path, columns: str, says: str) -> None:
        """An expression that is none, names no column, is not the same in every run, or gives no value of the column's
        type is refused with the column; the depot is as it was.
        """
        pq.write_table(table([message(payload="no time")]), tmp_path / "messages.parquet")
        (tmp_path / "windrow.toml").write_text(f"[ingest.columns]\n{columns}\n")
        result = windrow("ingest", "messages.parquet", "--json")
        assert (result.status, result.out) == (2, "")
        assert says in result.err
        assert len(result.err.strip().splitlines()) <= 2
        assert DeltaTable(depot).version() == 0


def test_hostile_rows_come_through(windrow: Command, depot: str, tmp_path: Path) -> None:
    """NULLs, absurd times and hostile strings of a file are no reason to refuse it: they reach the depot as they
    are.
    """
    rows = [message(key=None), message(event_time=2**63 - 1), message(key="'; --\0", payload="\u202e")]
    pq.write_table(table(rows), tmp_path / "messages.parquet")
    assert windrow("ingest", "messages.parquet", "--json").json()["message_count"] == 3
    document = windrow("run", "--json").json()
    assert (document["accepted"], document["rejected"]) == (1, 2)
