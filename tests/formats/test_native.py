import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.errors import SettingsError
from windrow.formats.fields import Field
from windrow.formats.native import NativeParser
from windrow.formats.records import Records

FIELDS = [
    Field("small", pa.int8()),
    Field("count", pa.uint32()),
    Field("t", pa.timestamp("us", "UTC")),
    Field("ok", pa.bool_()),
    Field("f", pa.float64()),
    Field("g", pa.float32()),
    Field("mac", pa.binary(), width=3),
    Field("name", pa.string(), width=5),
    Field("day", pa.date32()),
]
CODES = "bIqBdf3s5si"
ROWS = st.lists(
    st.tuples(
        st.integers(-128, 127),
        st.integers(0, 2**32 - 1),
        st.integers(-(10**15), 10**15) | st.sampled_from([2**63 - 1, -(2**63)]),
        st.integers(0, 2),
        st.floats(allow_nan=False),
        st.floats(allow_nan=False, width=32),
        st.binary(min_size=3, max_size=3),
        st.binary(max_size=5) | st.sampled_from(["é", "abcde", "日x"]).map(str.encode),
        st.integers(0, 2 * 10**4) | st.just(2**31 - 1),
    ),
    max_size=6,
)


def packed(rows, order):
    return [struct.pack({"little": "<", "big": ">"}[order] + CODES, *row) for row in rows]


def records(those, gap=0):
    lengths = np.array([len(row) for row in those], np.int64)
    start = np.cumsum(lengths + gap) - lengths
    return Records(np.frombuffer(b"".join(b"\xee" * gap + row for row in those), np.uint8), start, start + lengths)


def expected(row):
    """Return the values of a row, or why it is bad."""
    small, count, moment, truth, fraction, single, mac, name, day = row
    if abs(moment) > 10**18:
        return "format_cast", "t"
    if truth > 1:
        return "format_cast", "ok"
    try:
        text = name.split(b"\0")[0].decode()
    except UnicodeDecodeError:
        return "format_encoding", "name"
    if day > 10**8:
        return "format_cast", "day"
    return [small, count, moment, truth, fraction, single, mac, text, day]


def values(parsed):
    """Return the columns by the row, times as numbers."""
    table = parsed.fields.set_column(2, "t", parsed.fields["t"].cast(pa.int64()))
    table = table.set_column(8, "day", table["day"].cast(pa.int32()))
    return [list(row.values()) for row in table.to_pylist()]


@given(ROWS, st.sampled_from(["little", "big"]), st.integers(0, 2))
def test_packed(rows, order, gap):
    """What a program packs field by field comes out again, in either order of bytes and wherever records stand."""
    parsed = NativeParser(FIELDS, order).parse(records(packed(rows, order), gap))
    fates = [expected(row) for row in rows]
    assert values(parsed) == [fate for fate in fates if isinstance(fate, list)]
    assert parsed.record.tolist() == [number for number, fate in enumerate(fates) if isinstance(fate, list)]
    rejects = [(row["record"], (row["reason"], row["column"])) for row in parsed.rejects.to_pylist()]
    assert rejects == [(number, fate) for number, fate in enumerate(fates) if isinstance(fate, tuple)]


def test_cut_short():
    """A record that is cut short is bad, those before it are not."""
    row = (1, 2, 3, 1, 0.5, 0.5, b"mac", b"name", 4)
    whole = packed([row], "little")[0]
    parsed = NativeParser(FIELDS).parse(records([whole, whole, whole[:-1]]))
    assert parsed.record.tolist() == [0, 1]
    assert parsed.rejects.to_pylist() == [
        {"record": 2, "reason": "format_syntax", "column": None, "detail": "37 bytes instead of 38"}
    ]


def test_details():
    """A bad value is told as it is."""
    fields = [Field("ok", pa.bool_()), Field("name", pa.string(), width=2), Field("day", pa.date32())]
    those = [b"\x02ab\0\0\0\0", b"\x01a\xff\0\0\0\0", b"\x01\xc3\xa9\xff\xff\xff\x7f", b"\x03\xff\xff\0\0\0\0"]
    parsed = NativeParser(fields).parse(records(those))
    assert parsed.rejects["detail"].to_pylist() == [
        "2 is no bool, which is 0 or 1",
        "'a\\xff' is not UTF-8",
        "2147483647 as `date32[day]` is outside the years 1 to 9999",
        "3 is no bool, which is 0 or 1",
    ]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_years(unit):
    """A moment is in the years 1 to 9999, to the last unit."""
    a_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    bounds = [-62_135_596_800 * a_second, 253_402_300_800 * a_second - 1]
    moments = [moment for bound in bounds for moment in (bound - 1, bound, bound + 1) if abs(moment) < 2**63]
    those = [struct.pack("<q", moment) for moment in moments]
    parsed = NativeParser([Field("t", pa.timestamp(unit, "UTC"))]).parse(records(those))
    assert parsed.fields["t"].cast(pa.int64()).to_pylist() == [
        moment for moment in moments if bounds[0] <= moment <= bounds[1]
    ]


def test_none():
    """No records have no rows, and the columns of the fields."""
    parsed = NativeParser(FIELDS).parse(records([]))
    assert parsed.fields.num_rows == parsed.rejects.num_rows == 0
    assert parsed.fields.schema.names == [field.name for field in FIELDS]


@pytest.mark.parametrize(
    "fields",
    [[], [Field("a", pa.string())], [Field("a", pa.list_(pa.int8()))]],
    ids=["none", "string", "list"],
)
def test_refused(fields):
    """Fields without a width are refused before any record is read."""
    with pytest.raises(SettingsError):
        NativeParser(fields)
