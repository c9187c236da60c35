from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.columnar.arrow import (
    TIME,
    byte_count,
    conform,
    copy_nested,
    empty_table,
    filter_rows,
    from_numpy,
    string_array,
    string_scalar,
    times_to_numbers,
    to_numpy,
)
from windrow.errors import InternalError
from windrow.model import tables

TEXTS = st.lists(st.text(max_size=5), max_size=8)
NUMBERS = st.integers(-(2**63), 2**63 - 1)


class TestTexts:
    @given(TEXTS)
    def test_as_pyarrow_makes_them(self, values: list[str]) -> None:
        """Texts of any characters become the array that pyarrow would make; no texts become an empty one."""
        made = string_array(values)
        made.validate(full=True)
        assert made.equals(pa.array(values, pa.string()))

    @given(st.text(max_size=5))
    def test_scalar(self, value: str) -> None:
        """A text becomes the scalar that pyarrow would make of it."""
        assert string_scalar(value).equals(pa.scalar(value, pa.string()))


class TestBytes:
    @pytest.mark.parametrize("large", [False, True])
    def test_of_text(self, large: bool) -> None:
        """Text counts its bytes, not its characters; NULL counts nothing."""
        kinds = (pa.large_string(), pa.large_binary()) if large else (pa.string(), pa.binary())
        assert byte_count(pa.array(["ßß", None, "abc", ""], kinds[0])).tolist() == [4, 0, 3, 0]
        assert byte_count(pa.array([b"\xff\x00", None, b""], kinds[1])).tolist() == [2, 0, 0]

    def test_of_others(self) -> None:
        """A number counts 8 bytes, a boolean 1, a struct the sum of its fields, and a struct that is NULL nothing."""
        assert byte_count(pa.array([1.0, None, 0.0])).tolist() == [8, 0, 8]
        assert byte_count(pa.array([1, None])).tolist() == [8, 0]
        assert byte_count(pa.array([True, None, False])).tolist() == [1, 0, 1]
        whole = pa.StructArray.from_arrays([pa.array([1, 2, None]), pa.array(["ß", "x", "y"])], ["a", "b"])
        hidden = pa.StructArray.from_arrays(whole.flatten(), ["a", "b"], mask=pa.array([False, True, False]))
        assert byte_count(hidden).tolist() == [10, 0, 1]
        assert byte_count(pa.chunked_array([hidden, hidden.slice(2)])).tolist() == [10, 0, 1, 1]


class TestNumbers:
    @given(st.lists(NUMBERS, max_size=8), st.sampled_from([1, 2, -1]))
    def test_from_numpy(self, values: list[int], step: int) -> None:
        """Numbers become the array that pyarrow would make, whatever slice of a larger array they are."""
        part = np.array(values, np.int64)[::step]
        made = from_numpy(part)
        made.validate(full=True)
        assert made.equals(pa.array(part))

    def test_narrow(self) -> None:
        """Numbers of another width keep their values."""
        assert from_numpy(np.array([1, -2], np.int16)).to_pylist() == [1, -2]

    @given(st.lists(st.lists(st.none() | NUMBERS, max_size=4), max_size=4), NUMBERS)
    def test_to_numpy(self, chunks: list[list[int | None]], null: int) -> None:
        """However a column is chunked, its values come out in order, with NULL as the given number."""
        column = pa.chunked_array(chunks, pa.int64())
        array = to_numpy(column.slice(1), null)
        expected = [null if value is None else value for chunk in chunks for value in chunk]
        assert (array.dtype, array.tolist()) == (np.int64, expected[1:])

    @pytest.mark.parametrize("chunks", [[[1, 2]], [[1], [2]], []])
    def test_to_read(self, chunks: list[list[int]]) -> None:
        """The result is read-only, whether it is a copy or Arrow's own memory."""
        assert not to_numpy(pa.chunked_array(chunks, pa.int64())).flags.writeable

    def test_unexpected_null(self) -> None:
        """A NULL without a given number is an error."""
        with pytest.raises(InternalError):
            to_numpy(pa.array([1, None]))

    def test_times(self) -> None:
        """Times come out as numbers."""
        assert to_numpy(pa.array([7], pa.int64()).cast(TIME)).tolist() == [7]


def test_in_columns() -> None:
    """Rows get the columns of a schema in its order and types: others go, and those that they lack are NULL."""
    schema = pa.schema([("a", pa.string()), ("b", pa.int64()), ("c", pa.list_(TIME))])
    made = conform(pa.table({"d": [0, 0], "b": pa.array([1, None], pa.int32()), "a": ["x", "y"]}), schema)
    assert made.schema == schema
    assert made.to_pylist() == [{"a": "x", "b": 1, "c": None}, {"a": "y", "b": None, "c": None}]
    assert conform(schema.empty_table(), schema).num_rows == 0


def test_no_rows() -> None:
    """A table without rows has the columns of its schema, those that must not be NULL and nested ones included."""
    schema = tables.ledger_schema()
    made = empty_table(schema)
    made.validate(full=True)
    assert made.equals(schema.empty_table())


def test_counted() -> None:
    """Times become numbers in columns, lists and structs; all else is unchanged."""
    inside = pa.struct([("at", TIME), ("name", pa.string())])
    rows = pa.table({"at": pa.array([1], TIME), "list": pa.array([[{"at": 2, "name": "a"}]], pa.list_(inside))})
    assert times_to_numbers(rows).to_pylist() == [{"at": 1, "list": [{"at": 2, "name": "a"}]}]


@pytest.mark.parametrize("mask", [[True, True], [True, False], [False, False], [True, None]], ids=str)
def test_where(mask: list[bool | None]) -> None:
    """The rows for which a mask is true are returned; all or none of them without a copy."""
    table = pa.table({"a": [1, 2]})
    filtered = filter_rows(table, pa.array(mask, pa.bool_()))
    assert filtered["a"].to_pylist() == [value for value, holds in zip([1, 2], mask, strict=True) if holds]
    address = table["a"].chunk(0).buffers()[1].address
    assert (filtered["a"].chunk(0).buffers()[1].address == address) == (all(mask) or not any(mask))


def test_copied() -> None:
    """An empty array of texts within lists gets offsets, as Spark before 4.2 sends it without; values and NULL stay."""
    no_bytes, ends = pa.py_buffer(b""), pa.py_buffer(np.zeros(3, np.int32).tobytes())
    texts = pa.Array.from_buffers(pa.string(), 0, [None, no_bytes, no_bytes])
    empty = pa.Array.from_buffers(pa.list_(pa.string()), 2, [None, ends], children=[texts])
    filled = pa.array([["a", None], None], pa.list_(pa.string()))
    rows = pa.table({"empty": empty, "filled": filled, "number": [1, 2]})
    copied = copy_nested(rows)
    assert rows["empty"].chunk(0).values.buffers()[1].size == 0
    assert copied["empty"].chunk(0).values.buffers()[1].size >= 4
    assert copied.equals(rows)
    assert copied.schema == rows.schema
