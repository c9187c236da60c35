from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.messages import TIME, message, table
from windrow.errors import MessagesError
from windrow.model import messages

NAMES = ["source", "key", "type", "event_time", "received_at", "sequence", "payload"]
LAST = 2**53 + 1  # a float does not hold it


def with_column(name: str, column: pa.Array) -> pa.Table:
    """Return a table of messages with one column replaced."""
    whole = table([message() for _ in range(len(column))])
    return whole.set_column(NAMES.index(name), name, column)


def conformed(name: str, column: pa.Array) -> pa.ChunkedArray:
    """Return one column after conforming."""
    return messages.conform(with_column(name, column))[name]


def micros(times: pa.ChunkedArray) -> list[int | None]:
    """Return times as numbers."""
    return times.cast(pa.int64()).to_pylist()


class TestConform:
    def test_order_and_rest(self) -> None:
        """The columns of a message come first in their order, and others are kept behind them."""
        original = table([message()]).append_column("version", pa.array([7]))
        turned = original.select(original.column_names[::-1])
        assert messages.conform(turned).equals(original)

    @pytest.mark.parametrize(
        ("name", "default", "kind"),
        [("source", "", pa.string()), ("sequence", None, pa.int64()), ("payload", None, pa.string())],
    )
    def test_defaults(self, name: str, default: str | None, kind: pa.DataType) -> None:
        """Without source, sequence or payload a message has the empty source, and NULL in the others."""
        column = messages.conform(table([message(), message()]).drop_columns([name]))[name]
        assert (column.to_pylist(), column.type) == ([default, default], kind)

    @pytest.mark.parametrize("name", ["key", "type", "event_time", "received_at"])
    def test_missing(self, name: str) -> None:
        """Without key, type or a time the error names the column, and shows those that are there."""
        with pytest.raises(MessagesError, match=f"no column '{name}'\nThey have .*sequence"):
            messages.conform(table([message()]).drop_columns([name]))

    @pytest.mark.parametrize(
        ("name", "column"),
        [("event_time", ["2026-01-01"]), ("sequence", ["x"]), ("received_at", [1.5])],
    )
    def test_other_type(self, name: str, column: list[Any]) -> None:
        """A column that holds something else is an error that names it."""
        with pytest.raises(MessagesError, match=f"column '{name}' is"):
            conformed(name, pa.array(column))

    @pytest.mark.parametrize(
        ("kind", "expected"),
        [
            (pa.string(), pa.string()),
            (pa.large_string(), pa.string()),
            (pa.dictionary(pa.int32(), pa.string()), pa.string()),
            (pa.binary(), pa.binary()),
            (pa.large_binary(), pa.binary()),
            (pa.dictionary(pa.int32(), pa.binary()), pa.binary()),
        ],
    )
    def test_payload(self, kind: pa.DataType, expected: pa.DataType) -> None:
        """A payload is text or bytes, however Arrow holds it."""
        values = [b"x", None] if expected == pa.binary() else ["x", None]
        plain = pa.array(values, expected)
        column = conformed("payload", plain.dictionary_encode() if pa.types.is_dictionary(kind) else plain.cast(kind))
        assert (column.type, column.to_pylist()) == (expected, values)

    def test_text_as_a_dictionary(self) -> None:
        """A key may be encoded as a dictionary."""
        assert conformed("key", pa.array(["k", "l", "k"]).dictionary_encode()).to_pylist() == ["k", "l", "k"]

    @pytest.mark.parametrize("sources", [["k", "l", None], ["k", "k", "k"], ["l", "k", None]])
    def test_dictionaries(self, sources: list[str | None]) -> None:
        """Source, key and type get dictionaries and keep their values, whether source and key are alike or not."""
        plain = table([message(source=source, key=key) for source, key in zip(sources, ["k", "l", None], strict=True)])
        coded = messages.with_dictionaries(plain)
        assert [pa.types.is_dictionary(coded[name].type) for name in NAMES] == [True] * 3 + [False] * 4
        assert coded.to_pylist() == plain.to_pylist()

    @pytest.mark.parametrize("zone", [None, "UTC", "Asia/Kolkata"])
    def test_nanoseconds_are_floored(self, zone: str | None) -> None:
        """Finer times go down to the microsecond before them, before 1970 too; without a zone they are UTC."""
        times = pa.array([1_999, -1, None, 1_000 * LAST + 999], pa.timestamp("ns", tz=zone))
        assert micros(conformed("event_time", times)) == [1, -1, None, LAST]

    def test_numbers_are_microseconds(self) -> None:
        """A time may be a whole number of microseconds since the epoch."""
        assert micros(conformed("event_time", pa.array([LAST, -1, None]))) == [LAST, -1, None]

    @pytest.mark.parametrize(("unit", "size"), [("s", 1_000_000), ("ms", 1_000), ("us", 1)])
    @pytest.mark.parametrize("zone", [None, "Asia/Kolkata"])
    def test_coarser_times(self, unit: str, size: int, zone: str | None) -> None:
        """Coarser times are that many microseconds; without a zone they are UTC."""
        column = conformed("received_at", pa.array([3, None, -2], pa.timestamp(unit, tz=zone)))
        assert (column.type, micros(column)) == (TIME, [3 * size, None, -2 * size])


class TestNumbers:
    def test_times_and_back(self) -> None:
        """Microseconds become times and are read back, every one of them; NULL reads as 0."""
        counts, valid = np.array([LAST, -LAST, 5], np.int64), np.array([True, True, False])
        assert messages.microseconds(messages.times(counts)).tolist() == counts.tolist()
        masked = messages.times(counts, valid)
        assert (masked.type, masked.null_count) == (TIME, 1)
        assert messages.microseconds(pa.chunked_array([masked, masked])).tolist() == [LAST, -LAST, 0] * 2

    @pytest.mark.parametrize("payload", [None, pa.binary()])
    def test_schema(self, payload: pa.DataType | None) -> None:
        """A message has seven columns, and its payload the type that the depot gives it, text unless told."""
        schema = messages.schema(payload)
        assert schema.names == NAMES
        assert schema.field("payload").type == (payload or pa.string())
        assert schema.field("sequence").type == pa.int64()
