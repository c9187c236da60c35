"""Exports: what is read back from a file is what the ledger holds."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import SECOND, TIME, Row, log, message
from windrow.errors import LedgerRestoredError, OutputFileError, TableMissingError
from windrow.model import tables
from windrow.reading import closed
from windrow.reading.export import ExportSelection, csv_text, export, format_of, json_lines, json_text

HOSTILE = ["", " ", 'quo"te', "it's", "new\nline\r\n", "nul\0", "a,b;c\t", "\\", "😀", "null", "%2F/", "\x1f\x7f\u2028"]
MESSAGE = ("type", "event_time", "received_at", "sequence", "payload")
BATCH = [name for name, _ in tables.batch_fields(pa.string())]
REJECTED = [name for name, _ in tables.rejected_fields(pa.string())]
WHATS = ("batches", "messages", "rejected")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Tables full of names and payloads that break what is not quoted, in several microbatches."""
    return filled(World(tmp_path_factory.mktemp("hostile"), ManualClock()), str)


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> World:
    """The same with payloads of bytes that are not text."""
    return filled(
        World(tmp_path_factory.mktemp("bytes"), ManualClock(), pa.binary()), lambda text: text.encode("utf-16")
    )


@pytest.fixture
def empty(tmp_path: Path, clock: ManualClock, embedded: EngineFactory) -> World:
    """A ledger that has read nothing."""
    world = World(tmp_path, clock)
    world.runner(embedded)
    return world


def filled(world: World, payload: Any) -> World:
    """Publish hostile messages, some of them too old or without a key, and close what can be closed."""
    times = (NOW, NOW + SECOND, NOW + 30 * SECOND, NOW + 5 * SECOND)
    for at, moment in enumerate(times):
        stamp = max(times[: at + 1])
        rows = [message(name or "t", moment, stamp, key=name, payload=payload(name)) for name in HOSTILE]
        world.publish([*rows, message("b", moment, stamp, payload=None), message("x", moment, stamp, key=None)])
    world.runner(EngineFactory("embedded"), max_messages=1).once()
    return world


def expected(world: World, what: str) -> list[Row]:
    """Return the rows that an export has to have, read with another reader and taken apart here."""
    if what == "rejected":
        return [{name: row[name] for name in REJECTED} for row in world.rows("rejected")]
    batches = world.rows("closed")
    if what == "batches":
        return [{name: row[name] for name in BATCH} for row in batches]
    stream = ("id", "source", "key", "part", "window_start", "window_end")
    return [{name: row[name] for name in stream} | inside for row in batches for inside in row["messages"]]


def in_order(rows: list[Row]) -> list[Row]:
    """Return rows in the order of their ids; messages of one batch stay in theirs."""
    return sorted(rows, key=lambda row: row["id"])


def as_json(value: Any) -> Any:
    """Return a value as a file of text has it."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list):
        return [as_json(element) for element in value]
    if isinstance(value, dict):
        return {name: as_json(field) for name, field in value.items()}
    if hasattr(value, "isoformat"):
        return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value


def read_csv(file: str) -> list[Row]:
    """Return the rows of a csv file as it has them: text, in which only NULL stands without quotes."""
    names = pa.csv.open_csv(file).schema.names
    convert = pa.csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    parse = pa.csv.ParseOptions(newlines_in_values=True)
    return pa.csv.read_csv(file, parse_options=parse, convert_options=convert).to_pylist()


def as_csv(row: Row) -> Row:
    """Return a row as a csv file has it."""
    values = {name: as_json(value) for name, value in row.items()}
    return {
        name: value if value is None or isinstance(value, str | list) else json.dumps(value)
        for name, value in values.items()
    }


@pytest.mark.parametrize("what", WHATS)
class TestRoundTrip:
    @pytest.mark.parametrize("kind", ["hostile", "binary"])
    def test_parquet(self, request, tmp_path, what, kind):
        """A parquet file holds the ledger's rows as they are."""
        world = request.getfixturevalue(kind)
        file = str(tmp_path / "out.parquet")
        exported = export(world.ledger, file, ExportSelection(what))
        table = pq.read_table(file)
        assert in_order(table.to_pylist()) == in_order(expected(world, what))
        assert table.num_rows == exported.row_count > 0
        assert (exported.format, exported.what, exported.file) == ("parquet", what, file)

    @pytest.mark.parametrize("kind", ["hostile", "binary"])
    def test_json(self, request, tmp_path, what, kind):
        """A json file holds an object a line, times as ISO 8601 text and bytes as base64, NULL as null."""
        world = request.getfixturevalue(kind)
        exported = export(world.ledger, str(tmp_path / "out.ndjson"), ExportSelection(what))
        lines = (tmp_path / "out.ndjson").read_text(encoding="utf-8").removesuffix("\n").split("\n")
        assert in_order([json.loads(line) for line in lines]) == in_order(as_json(expected(world, what)))
        assert len(lines) == exported.row_count

    @pytest.mark.parametrize("kind", ["hostile", "binary"])
    def test_csv(self, request, tmp_path, what, kind):
        """A csv file holds the same; messages are JSON text, NULL is empty and the empty string quoted."""
        world = request.getfixturevalue(kind)
        exported = export(world.ledger, str(tmp_path / "out.csv"), ExportSelection(what))
        written = read_csv(str(tmp_path / "out.csv"))
        for row in written:
            if what == "batches":
                row["messages"] = json.loads(row["messages"])
        assert in_order(written) == in_order([as_csv(row) for row in expected(world, what)])
        assert len(written) == exported.row_count

    def test_empty(self, empty, tmp_path, what):
        """An empty ledger gives files without rows that have their columns, and an empty json file."""
        files = {name: tmp_path / f"out.{name}" for name in ("parquet", "csv", "json")}
        for file in files.values():
            assert export(empty.ledger, str(file), ExportSelection(what)).row_count == 0
        names = pq.read_table(files["parquet"]).column_names
        assert names[0] == "id"
        assert files["csv"].read_text(encoding="utf-8") == ",".join(f'"{name}"' for name in names) + "\n"
        assert files["json"].read_bytes() == b""


@pytest.mark.ci
class TestChoice:
    @pytest.mark.parametrize("what", WHATS)
    def test_key(self, hostile, tmp_path, what):
        """A key gives the rows of this key, whatever characters are in it."""
        for at, name in enumerate(HOSTILE):
            file = str(tmp_path / f"{at}.parquet")
            export(hostile.ledger, file, ExportSelection(what, key=name))
            rows = pq.read_table(file).to_pylist()
            assert in_order(rows) == in_order([row for row in expected(hostile, what) if row["key"] == name])
            assert rows

    @pytest.mark.parametrize(("what", "column"), [("batches", "window_start"), ("rejected", "event_time")])
    def test_times(self, hostile, tmp_path, what, column):
        """Times bound the begin of windows, or the event times of rejected messages; the end is not in it."""
        rows = expected(hostile, what)
        moments = sorted({row[column] for row in rows if row[column]})
        assert len(moments) > 1
        first, last = (round(moment.timestamp() * SECOND) for moment in (moments[0], moments[-1]))
        for start, end, included in ((first, last, moments[:-1]), (first + 1, None, moments[1:]), (last + 1, None, [])):
            file = str(tmp_path / "out.parquet")
            export(hostile.ledger, file, ExportSelection(what, start=start, end=end), overwrite=True)
            written = pq.read_table(file).to_pylist()
            assert in_order(written) == in_order([row for row in rows if row[column] in included])

    @pytest.mark.parametrize("what", WHATS)
    def test_since(self, tmp_path, clock, embedded, what):
        """Exports that go on where the last one ended hold every row exactly once."""
        world = World(tmp_path, clock)
        since, written = None, []
        for at, version in enumerate(log(versions=5, seed=4)):
            world.publish(version)
            world.runner(embedded).once()
            file = str(tmp_path / f"{at}.parquet")
            since = export(world.ledger, file, ExportSelection(what, since=since)).position
            written += pq.read_table(file).to_pylist()
        assert in_order(written) == in_order(expected(world, what))
        assert since == closed.read_closed(world.ledger).position


class TestFile:
    def test_existing(self, hostile, tmp_path):
        """A file that is there stays as it is, unless it may be replaced."""
        file = tmp_path / "out.csv"
        file.write_text("mine")
        with pytest.raises(OutputFileError, match="exists already"):
            export(hostile.ledger, str(file))
        assert file.read_text() == "mine"
        export(hostile.ledger, str(file), overwrite=True)
        assert len(read_csv(str(file))) == len(expected(hostile, "batches"))

    def test_failure(self, hostile, tmp_path):
        """An export that fails on its way leaves the old file, and nothing beside it."""
        file = tmp_path / "out.json"
        file.write_text("old")

        def fail(done: int, total: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            export(hostile.ledger, str(file), overwrite=True, progress=fail)
        assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out.json", "old")]

    def test_progress(self, hostile, tmp_path):
        """Progress ends with all ledger rows read, of as many as there are."""
        calls: list[tuple[int, int]] = []
        export(hostile.ledger, str(tmp_path / "out.csv"), progress=lambda *call: calls.append(call))
        total = len(expected(hostile, "batches"))
        assert calls[-1] == (total, total)
        assert [done for done, _ in calls] == sorted({done for done, _ in calls})

    @pytest.mark.parametrize(
        ("out", "format_", "reason"),
        [
            ("out", None, "names no format"),
            ("out.csv", "xml", "no format 'xml'"),
            ("-", None, "names no format"),
            ("-", "parquet", "standard output"),
            ("nowhere/out.csv", None, "no directory"),
            ("directory.csv", None, "is a directory"),
            ("s3://bucket/out.csv", None, "not a local file"),
        ],
    )
    def test_refused(self, hostile, tmp_path, monkeypatch, out, format_, reason):
        """A format or place that cannot be is refused before anything is written."""
        monkeypatch.chdir(tmp_path)
        Path("directory.csv").mkdir()
        with pytest.raises(OutputFileError, match=reason):
            export(hostile.ledger, out, format_=format_)
        assert [path.name for path in tmp_path.iterdir()] == ["directory.csv"]

    def test_endings(self):
        """An ending names a format whatever its case; a format that is given goes before it."""
        assert [format_of(f"a.{end}", None) for end in ("parquet", "CSV", "json", "jsonl", "ndjson")] == [
            "parquet",
            "csv",
            "json",
            "json",
            "json",
        ]
        assert format_of("a.csv", "json") == "json"

    def test_no_longer_whole(self, tmp_path, clock, embedded):
        """A ledger that lost rows, or was made anew since the last export, exports nothing."""
        world = World(tmp_path, clock)
        world.publish(*log(versions=4, seed=4))
        world.runner(embedded).once()
        with pytest.raises(LedgerRestoredError):
            export(world.ledger, str(tmp_path / "out.csv"), ExportSelection(since="1@000000000000"))
        DeltaTable(world.ledger).delete("state = 'rejected' AND reason = 'too_old'")
        with pytest.raises(LedgerRestoredError, match="rejected rows"):
            export(world.ledger, str(tmp_path / "out.csv"), ExportSelection("rejected"))
        with pytest.raises(TableMissingError):
            export(str(tmp_path / "nowhere"), str(tmp_path / "out.csv"))
        assert not (tmp_path / "out.csv").exists()


ROW = st.fixed_dictionaries(
    {
        "text": st.none() | st.text(),
        "number": st.none() | st.integers(-(2**63), 2**63 - 1),
        "flag": st.none() | st.booleans(),
        "bytes": st.none() | st.binary(),
        "time": st.none() | st.integers(-9_000_000_000_000_000, 9_000_000_000_000_000),
        "inside": st.none()
        | st.lists(
            st.none() | st.fixed_dictionaries({"text": st.none() | st.text(), "bytes": st.none() | st.binary()})
        ),
    }
)
INSIDE = pa.struct([("text", pa.string()), ("bytes", pa.binary())])
TYPES = pa.schema(
    [
        ("text", pa.string()),
        ("number", pa.int64()),
        ("flag", pa.bool_()),
        ("bytes", pa.binary()),
        ("time", TIME),
        ("inside", pa.list_(INSIDE)),
    ]
)


class TestText:
    @given(st.lists(ROW), st.integers(0, 3))
    def test_json(self, rows, skipped):
        """What a JSON reader makes of a line is the row, also of a part of a table."""
        batch = pa.RecordBatch.from_pylist(rows, TYPES).slice(skipped)
        lines = bytes(json_lines(batch)).decode().split("\n")
        assert lines.pop() == ""
        assert [json.loads(line) for line in lines] == [as_json(row) for row in batch.to_pylist()]

    def test_nothing_escaped_without_need(self):
        """Only what JSON demands is escaped; all else stays readable."""
        assert json_text("é😀/\u2028") == '"é😀/\u2028"'

    def test_csv_keeps_numbers(self):
        """Csv keeps numbers and booleans as such, so that they stand without quotes."""
        flat = csv_text(pa.RecordBatch.from_pylist([], TYPES))
        kept = [pa.types.is_integer(kind) or pa.types.is_boolean(kind) for kind in flat.schema.types]
        assert kept == [False, True, True, False, False, False]
