"""Floats of CSV and JSON: one value for one text, whichever format and whichever way of reading it."""

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.test_conversion import nearest
from tests.formats.test_csv import records_of
from windrow.formats.csv import CsvParser
from windrow.formats.fields import parse
from windrow.formats.objects import Json

BITS = {"float32": "<f", "float64": "<d"}
# Half way between two floats of 32 bits, and a little beside it: by less than a float64 can tell.
HALF_WAY = [
    "1.00000005960464477539062500001", "1.00000017881393432617187499", "1.000000178813934326171875", "16777217",
    "16777217.0000000000001", "16777218.9999999999999", "0.50000002980232238769531250001", "9007199791611905",
    "3.40282356779733661637539395458142568447e38", "3.40282356779733661637539395458142568448e38",
    "7.006492321624086e-46", "7.00649232162408535461864791644958e-46",
]  # fmt: skip
ODD = ["-0", "-0.0", "-0e5", "0", "-0e400", "-1e-400", "1e23", "9007199254740993", "5e-324", "2.4703282292062328e-324"]
ODD += [
    "2.4703282292062327e-324",
    "1.7976931348623158e308",
    "1.7976931348623159e308",
    "1e400",
    "3.5e38",
    "-1",
    "1" * 400,
]
BEYOND = {"1e99999999999999999999": None, "-0.1e-99999999999999999999": -0.0}


def bits(values, type_):
    return [None if value is None else struct.pack(BITS[type_], value).hex() for value in values]


def everywhere(texts, type_):
    """Return the bits of each text, or None where it is bad, from CSV and from flat, escaped and nested JSON."""
    field = parse({"value": type_})
    nested = parse({"in": f"struct<a: {type_}, more: list<{type_}>>"})
    escaped = [f'{{"value":{text},"\\u0061":-0}}' for text in texts]
    inner = [f'{{"in":{{"a":{text},"more":[0,{text}],"other":-0}}}}' for text in texts]
    flat = [f'{{"value":{text}}}' for text in texts]
    made = []
    for parser, lines in (
        (CsvParser(field), texts), (Json(field), flat), (Json(field), escaped), (Json(nested), inner),
    ):  # fmt: skip
        parsed = parser.parse(records_of([line.encode() for line in lines]))
        values = [None] * len(texts)
        for number, (value,) in zip(
            parsed.record.tolist(), (row.values() for row in parsed.fields.to_pylist()), strict=True
        ):
            values[number] = value
        if parser.schema.names == ["in"]:
            assert all(value is None or bits(value["more"][1:], type_) == bits([value["a"]], type_) for value in values)
            values = [value and value["a"] for value in values]
        made.append(bits(values, type_))
    return made


@pytest.mark.parametrize("type_", BITS)
def test_odd(type_):
    """A text is rounded once, and keeps its sign, in CSV and in all forms of JSON records."""
    expected = {text: nearest(text, type_) for text in HALF_WAY + ODD} | BEYOND
    signed = [
        value if value is None else np.copysign(value, -1 if text[0] == "-" else 1) for text, value in expected.items()
    ]
    for values in everywhere(list(expected), type_):
        assert dict(zip(expected, values, strict=True)) == dict(zip(expected, bits(signed, type_), strict=True))


@given(
    st.lists(
        st.floats(allow_nan=False, allow_infinity=False).map(repr)
        | st.floats(allow_nan=False, allow_infinity=False, width=32).map(lambda value: f"{value:.30e}")
        | st.integers(-(2**70), 2**70).map(str),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from(list(BITS)),
)
def test_twins(texts, type_):
    """CSV and JSON give the same float for a text."""
    first, *others = everywhere(texts, type_)
    assert all(other == first for other in others)


def test_integers_beside():
    """A zero with a sign is 0 in an integer and unchanged in the text of a member, in a record whose floats keep the
    sign.
    """
    fields = parse({"f": "float64", "i": "int64", "raw": "json", "d": "decimal(3, 1)"})
    line = b'{"f":-0,"i":-0,"raw":[-0],"d":-0}'
    (row,) = Json(fields).parse(records_of([line])).fields.to_pylist()
    assert (str(row["f"]), row["i"], row["raw"], row["d"]) == ("-0.0", 0, "[-0]", 0)


def test_huge_exponent_of_a_decimal():
    """A decimal with an exponent beyond all bounds is bad, as a number and as a text, and stops nothing."""
    lines = [b'{"d":1e99999999999999999999}', b'{"d":"1e99999999999999999999"}', b'{"d":1}']
    parsed = Json(parse({"d": "decimal(3, 1)"})).parse(records_of(lines))
    assert parsed.record.tolist() == [2]
    assert parsed.rejects["reason"].to_pylist() == ["format_cast"] * 2


def test_arrow_type():
    """The columns have the type of the field, however the record was read."""
    for line in (b'{"v":0.1}', b'{"v":0.1,"\\u0061":1}'):
        assert Json(parse({"v": "float32"})).parse(records_of([line])).fields["v"].type == pa.float32()
