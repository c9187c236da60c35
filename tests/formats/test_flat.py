import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.test_json import RECORDS, SCALARS, fate, parse, records
from windrow.formats import fields as types
from windrow.formats.flat import FlatJsonReader
from windrow.formats.objects import Json

TYPES = {
    "i": "int64", "small": "int8", "u": "uint64", "f": "float64", "f32": "float32", "d": "decimal(5, 2)",
    "wide": "decimal(38, 10)", "ok": "bool", "s": "string", "day": "date", "at": "timestamp[us]",
    "told": "timestamp[s] %d.%m.%Y", "b": "binary", "list": "list<int64>", "raw": "json", "é": "string",
}  # fmt: skip
FIELDS = types.parse(TYPES)
MORE = st.sampled_from(
    [
        "-0", "-0.0", "-0e0", "0e999", "0e-999", "1e5", "1.50", "1.500", "1.505", "999.99", "1000", "3.4028235e38",
        "3.4028236e38", "1.00000005960464477539062500001", "16777217.0", "18446744073709551615", "18446744073709551616",
        "-", "+1", "1e", "1e+", "1.e1", "00", "-01", "1a", "truex", "nulll", "True", "9" * 39, "0." + "1" * 40,
        '"1e2"', '"+1.5"', '".5"', '"1_0"', '" 1"', '"2026-02-28"', '"2026-02-29"', '"2026-02-28T01:02:03.5Z"',
        '"28.02.2026"', '"YWI="', '"a\x7f"', '"a\x1f"', '"a\x00"', '"\\n"', '"äöü"', '"' + "x" * 200 + '"',
        '"' + "x" * 63 + '"', '"' + "x" * 64 + '"', '"' + "x" * 70 + '\\"',
    ]
)  # fmt: skip
BLANKS = st.sampled_from(["", " ", "\t", " \r", "\x0b", "\x00", "\f", "\u00a0"])
NAMES = st.sampled_from([*TYPES, "other", "\\u0069", "", "i ", "I", "smal", "smalll", "e" * 80, 'a\\"b'])


@st.composite
def objects(draw):
    """Write an object, most of it as one should."""
    blank = BLANKS if draw(st.integers(0, 3)) == 0 else st.just("")
    numbers = st.integers(-(2**65), 2**65).map(str) | st.floats(allow_nan=False, allow_infinity=False).map(repr)
    value = MORE | SCALARS | numbers | st.text(max_size=5).map(json.dumps)
    members = [
        f'{draw(blank)}"{draw(NAMES)}"{draw(blank)}:{draw(blank)}{draw(value)}{draw(blank)}'
        for _ in range(draw(st.integers(0, 5)))
    ]
    text = f"{draw(blank)}{{{','.join(members)}}}{draw(blank)}"
    end = draw(st.integers(0, len(text))) if draw(st.integers(0, 9)) == 0 else len(text)
    return text[:end].encode()


def judged(those):
    """Return what becomes of records when each is decoded as a whole."""
    judge = Json(FIELDS)
    judge._flat = Nothing.of(FIELDS)
    return judge.parse(records(those))


class Nothing(FlatJsonReader):
    """It finds no record plain."""

    def read(self, records, chosen):  # noqa: D102
        return super().read(records, chosen[:0])


@given(st.lists(objects(), max_size=8) | RECORDS, st.sampled_from([b"\n", b"", b"--"]))
def test_judge(those, between):
    """What is read at once is what one gets when each record is decoded: the same values and signs, the same
    reasons.
    """
    parsed, expected = parse(those, FIELDS, between), judged(those)
    parsed.fields.validate(full=True)
    assert repr(fate(parsed)) == repr(fate(expected))
    assert parsed.rejects.equals(expected.rejects)
    assert parsed.skipped.tolist() == expected.skipped.tolist()


@pytest.mark.parametrize(
    ("member", "plain"),
    [
        ('"i": 7', True), ('"i":-7', True), ('"u":18446744073709551615', True), ('"f":1e-7', True),
        ('"f32":0.1', True), ('"d":"1.50"', True), ('"d":1.5', True), ('"ok":false', True), ('"s":"é"', True),
        ('"at":"2026-01-01"', True), ('"told":"01.01.2026"', True), ('"list":null', True), ('"raw":"x"', True),
        ('"other": true', True), ('"s":"\\n"', False), ('"list":[1]', False), ('"i":1,"i":1', False),
        ('"other":{}', False), ('"b":"YWI="', False), ('"f":-0', True), ('"d":"1e1"', True),
    ],
)  # fmt: skip
def test_plain(member, plain):
    """What is flat is read at once, in any order of the members; what has escapes, repeats or nests is left to
    others.
    """
    those = [b"{%s}" % member.encode(), b'{"other":1, %s ,"more":2}' % member.encode()]
    _, read = FlatJsonReader.of(FIELDS).read(records(those), np.arange(2))
    assert read.tolist() == ([0, 1] if plain else [])


def test_order():
    """Records that were decoded stand where they stood, between those that were read at once."""
    those = [b'{"i":%d,"s":"%s"}' % (number, b"\\n" if number % 3 else b"x") for number in range(1000)]
    parsed = parse(those, FIELDS)
    assert parsed.record.tolist() == parsed.fields["i"].to_pylist() == list(range(1000))
    assert parsed.fields["s"].to_pylist() == ["\n" if number % 3 else "x" for number in range(1000)]


def test_many_members():
    """A record may have more members, and a format more fields, than names are remembered by their place."""
    count = 200
    fields = types.parse({f"f{number}": "int64" for number in range(count)})
    forth = [f'"f{number}":{number}' for number in range(count)]
    those = [b"{%s}" % ",".join(members).encode() for members in (forth, forth[::-1], forth[50:], forth[::2])]
    _, read = FlatJsonReader.of(fields).read(records(those), np.arange(4))
    rows = parse(those, fields).fields.to_pylist()
    assert read.tolist() == [0, 1, 2, 3]
    names = [f"f{number}" for number in range(count)]
    assert rows[0] == rows[1] == dict(zip(names, range(count), strict=True))
    assert rows[2] == rows[0] | dict.fromkeys(names[:50])
    assert rows[3] == rows[0] | dict.fromkeys(names[1::2])


def test_memory_ends():
    """Nothing is read behind the bytes, wherever a record ends in them."""
    for length in range(200):
        record = b'{"s":"' + b"x" * length + b'"}'
        memory = np.frombuffer(record + b'"}', np.uint8)
        whole = replace(records([record]), buffer=memory[: len(record)])
        assert Json(FIELDS).parse(whole).fields["s"].to_pylist() == ["x" * length]
        cut = replace(records([record[:-2]]), buffer=memory[: len(record) - 2])
        assert Json(FIELDS).parse(cut).rejects["reason"].to_pylist() == ["format_syntax"]
