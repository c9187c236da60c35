"""The types of payloads, and what payloads are compared by."""

from __future__ import annotations

import math
import struct

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.errors import SettingsError
from windrow.model import canonical, payload

TYPES = ["STRING", "BINARY", "DOUBLE", "BIGINT", "BOOLEAN", "STRUCT<a: DOUBLE>", "STRUCT<_1: STRING, b: BIGINT>"]


class TestNames:
    @pytest.mark.parametrize("name", TYPES)
    def test_and_back(self, name: str) -> None:
        """A type has one name, which is read in any case and with any blanks."""
        type_ = payload.parse(f" {name.lower().replace(': ', ' :  ')} ")
        assert payload.name(type_) == name
        assert payload.of_column(pa.schema([("payload", type_)])) == type_

    @pytest.mark.parametrize(
        "text",
        [
            *(
                "",
                "FLOAT",
                "INT",
                "STRUCT",
                "STRUCT<>",
                "STRUCT<a>",
                "STRUCT<a: FLOAT>",
                "STRUCT<a: DOUBLE, A: STRING>",
            ),
            *("STRUCT<a: STRUCT<b: DOUBLE>>", "STRUCT<a-b: DOUBLE>", "STRUCT<a: DOUBLE,>", "ARRAY<DOUBLE>"),
        ],
    )
    def test_refused(self, text: str) -> None:
        """Any other text is refused, with the types that there are."""
        with pytest.raises(SettingsError) as refused:
            payload.parse(text)
        assert "BIGINT" in refused.value.hint

    @pytest.mark.parametrize(
        ("type_", "payload_type"),
        [
            (pa.large_string(), pa.string()),
            (pa.binary_view(), pa.binary()),
            (pa.int32(), pa.string()),
            (pa.list_(pa.string()), pa.string()),
            (pa.struct([("a", pa.large_string())]), pa.struct([("a", pa.string())])),
            (pa.struct([("a", pa.int32())]), pa.string()),
            (pa.struct([]), pa.string()),
        ],
    )
    def test_of_column(self, type_: pa.DataType, payload_type: pa.DataType) -> None:
        """A column that payloads cannot have the type of counts as text."""
        assert payload.of_column(pa.schema([("payload", type_)])) == payload_type
        assert payload.of_column(pa.schema([("other", type_)])) == pa.string()


class TestComparable:
    @given(st.lists(st.none() | st.floats(width=64), max_size=8))
    def test_doubles(self, values: list[float | None]) -> None:
        """A double is compared by its bits, and every NaN is the same."""
        rows = payload.comparable(pa.array(values, pa.float64())).to_pylist()
        assert rows == [None if value is None else bits(value) for value in values]

    def test_structs(self) -> None:
        """A struct is its fields as netstrings; a NULL field is not an empty one, and a NULL struct is NULL."""
        type_ = payload.parse("STRUCT<a: STRING, b: DOUBLE>")
        values = [{"a": "", "b": -0.0}, {"a": None, "b": None}, None]
        rows = payload.comparable(pa.array(values, type_)).to_pylist()
        assert rows == [b"0:,16:8000000000000000,", b"~~", None]

    @pytest.mark.parametrize("values", [pa.array(["b", None, "a"]), pa.array([b"b", None, b"a"])])
    def test_text_and_bytes(self, values: pa.Array) -> None:
        """Text and bytes are compared as they are, and their canonical form is their bytes."""
        assert payload.comparable(values) is values
        assert canonical.encode_values(values).to_pylist() == values.cast(pa.binary()).to_pylist()

    @pytest.mark.parametrize("values", [pa.array([1, None, -(2**63)]), pa.array([True, None, False])])
    def test_sorted(self, values: pa.Array) -> None:
        """What is compared can be sorted."""
        order = pc.sort_indices(payload.comparable(values))
        assert order[-1].as_py() == 1  # NULL


def bits(value: float) -> bytes:
    """Return the bits of a double in hexadecimal digits."""
    return b"7ff8000000000000" if math.isnan(value) else struct.pack(">d", value).hex().encode()
