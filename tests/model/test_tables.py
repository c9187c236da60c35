from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import sqlglot
from hypothesis import given
from hypothesis import strategies as st

from windrow.errors import SettingsError
from windrow.model import messages, tables

PARTS = st.none() | st.text(st.sampled_from("ab%/\0N25F"), max_size=4)
NUMBERS = st.integers(-5, 5)
LEDGER = """
id state revision source key part window_start window_end timeout_at open_reason closed_at close_reason message_count
bytes oversize first_event_time last_event_time messages opened_microbatch closed_microbatch reason detail missed_by_us
floor_raise_us type event_time received_at sequence payload processing_time microbatch attempt kind versions
messages_read accepted rejected opened closed depot_version clocks rules column_mapping engine processed_on commit_mode
started_at prime_ms plan_ms process_ms chain amendment depot_id start_from commit_fingerprint schema_version token
paused clock floor cut seen_at open_batches open_messages open_bytes next_window_end versions_written
versions_obsolete messages_written deleted whole folded superseded_id superseded_by
"""
TABLE = pa.schema([("text", pa.string()), ("number", pa.int32()), ("list", pa.list_(pa.int64()))])


def ids(rows: list[tuple[Any, ...]]) -> list[str]:
    """Return the ids of rows of two texts and a number."""
    texts = [pa.array([row[at] for row in rows], pa.string()) for at in range(2)]
    return tables.identifier("kind", *texts, pa.array([row[2] for row in rows], pa.int64())).to_pylist()


class TestIdentifier:
    @given(st.lists(st.tuples(PARTS, PARTS, NUMBERS), min_size=2, max_size=20, unique=True))
    def test_one_to_one(self, rows: list[tuple[Any, ...]]) -> None:
        """Components that differ give ids that differ, whatever characters they hold, NULL included."""
        assert len(set(ids(rows))) == len(rows)

    def test_readable(self) -> None:
        """An id is the kind and the components between slashes; percent, slash and NUL are encoded, NULL is %N."""
        rows = [("a", "b c", 7), ("a/b", "%N", -1), ("\0", None, 0), ("", "%2F", 1)]
        assert ids(rows) == ["kind/a/b c/7", "kind/a%2Fb/%25N/-1", "kind/%00/%N/0", "kind//%252F/1"]

    def test_chunks(self) -> None:
        """Components may come encoded as a dictionary or in chunks."""
        plain = pa.array(["a/b", None, "a/b"])
        expected = tables.identifier("kind", plain).to_pylist()
        assert expected == ["kind/a%2Fb", "kind/%N", "kind/a%2Fb"]


class TestRows:
    def test_filled(self) -> None:
        """A column is an array, one value for all rows, or NULL where nothing is given; types are those of the
        schema.
        """
        filled = tables.rows(TABLE, {"text": "x", "number": np.array([1, 2])}, 2)
        assert filled.schema == TABLE
        assert filled.to_pylist() == [{"text": "x", "number": at, "list": None} for at in (1, 2)]

    @pytest.mark.parametrize("column", [pa.array([1, None], pa.int64()), pa.chunked_array([[1], [None]], pa.int32())])
    def test_arrays(self, column: pa.Array | pa.ChunkedArray) -> None:
        """Arrays and chunked ones are taken as they are, with NULL, in the type of the column."""
        filled = tables.rows(TABLE, {"number": column}, 2)
        assert (filled["number"].type, filled["number"].to_pylist()) == (pa.int32(), [1, None])

    @pytest.mark.parametrize("count", [0, 3])
    def test_value_for_all(self, count: int) -> None:
        """One value stands in every row, and in none where there are none."""
        assert tables.rows(TABLE, {"number": 7}, count)["number"].to_pylist() == [7] * count


def test_columns() -> None:
    """The columns of the tables have the names that ledgers have which exist."""
    assert tables.ledger_schema().names == LEDGER.split()
    inside = tables.message_type(pa.binary())
    assert [field.name for field in inside] == ["type", "event_time", "received_at", "sequence", "payload"]
    assert messages.schema(pa.binary()).field("payload").type == pa.binary()


def test_schema() -> None:
    """The ledger has each column once, `id` and `state` first; only these are never NULL, payloads have the depot's
    type.
    """
    for payload in (None, pa.binary()):
        schema = tables.ledger_schema(payload)
        assert schema.names[:2] == ["id", "state"]
        assert len(set(schema.names)) == len(schema.names)
        assert [field.name for field in schema if not field.nullable] == ["id", "state"]
        assert schema.field("payload").type == (payload or pa.string())
        assert schema.field("messages").type.value_type.field("payload").type == (payload or pa.string())


def test_retention() -> None:
    """Log and removed files are kept for the same duration, in seconds."""
    assert tables.retention_properties("2h") == {
        "delta.logRetentionDuration": "interval 7200 seconds",
        "delta.deletedFileRetentionDuration": "interval 7200 seconds",
    }
    with pytest.raises(SettingsError, match="retention = 'long'"):
        tables.retention_properties("long")


HISTORY = ["message_count" if name == "messages_read" else name for name, _ in tables.HISTORY]


@pytest.mark.parametrize(
    ("view", "state", "columns"),
    [
        ("open_batches", "open", tables.BATCH_COLUMNS),
        ("closed_batches", "closed", tables.BATCH_COLUMNS),
        ("closed_messages", "closed", ["id", "source", "key", "part", "window_start", "window_end", "*"]),
        ("rejected_messages", "rejected", tables.REJECTED),
        ("microbatches", "microbatch", HISTORY),
    ],
)
def test_views(view: str, state: str, columns: list[str]) -> None:
    """A view has the columns of its kind of rows, from the rows of one state."""
    statement = sqlglot.parse_one(tables.views("delta.`/a/ledger`")[view], dialect="spark")
    assert statement.named_selects == columns
    conditions = {where.this.sql() for where in statement.find_all(sqlglot.exp.Where)}
    assert conditions - {"NOT deleted IS TRUE"} == {f"state = '{state}'"}
    assert statement.find(sqlglot.exp.Table).sql(dialect="spark") == "delta.`/a/ledger`"


@pytest.mark.parametrize(
    ("view", "beside"),
    [
        ("rejected_messages", ["raw_source", "chunk", "offset", "content"]),
        ("microbatches", ["bytes_read", "bytes_framed", "bytes_rejected", "bytes_repeated", "format"]),
        ("closed_batches", []),
    ],
)
def test_views_over_raw(view: str, beside: list[str]) -> None:
    """Over the ledger of a raw depot views have the columns about bytes behind their own."""
    plain, raw = (
        sqlglot.parse_one(tables.views("ledger", raw=raw)[view], dialect="spark").named_selects for raw in (False, True)
    )
    assert raw == plain + beside
    names = tables.ledger_schema(raw=True).names
    assert {*beside} <= {*names}
    assert (tables.reads_raw_depot(names), tables.reads_raw_depot(tables.ledger_schema().names)) == (True, False)


def test_names_of_views() -> None:
    """There are no other views."""
    assert list(tables.views("t")) == [
        "open_batches", "closed_batches", "closed_messages", "current_batches", "amendments", "rejected_messages",
        "microbatches",
    ]  # fmt: skip
