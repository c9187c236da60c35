import json
import math
import re
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.errors import SettingsError
from windrow.formats.fields import Field
from windrow.formats.format import format_of
from windrow.formats.objects import DEEPEST, Json
from windrow.formats.records import Records
from windrow.formats.settings import FormatSettings
from windrow.testing.formats import RawLedger

INNER = pa.struct([("x", pa.list_(pa.int16())), ("y", pa.string())])
FIELDS = [
    Field("i", pa.int64()),
    Field("small", pa.int8()),
    Field("f", pa.float64()),
    Field("s", pa.string()),
    Field("ok", pa.bool_()),
    Field("d", pa.decimal128(5, 2)),
    Field("n", INNER),
    Field("raw", pa.string(), "json"),
]
SCALARS = st.sampled_from(
    [
        "null",
        "true",
        "false",
        "0",
        "-0",
        "1",
        "-1",
        "127",
        "128",
        "-129",
        "01",
        "1.",
        ".5",
        "1.0",
        "1.5",
        "-1.25",
        "1e2",
        "1e-2",
        "1e400",
        "9223372036854775807",
        "9223372036854775808",
        "NaN",
        "Infinity",
        "-Infinity",
        '""',
        '"a"',
        '"1"',
        '"1.50"',
        '"NaN"',
        '"\\u00e9"',
        '"\\ud83d\\ude00"',
        '"\\ud800"',
        '"\\q"',
        '"a\tb"',
        '"é"',
        '"open',
        "[]",
        "{}",
        "tru",
        "[1]",
        "[1,null,-32769]",
        "[1,]",
        "{}",
        '{"x":[1,2],"y":"z"}',
        '{"x":null}',
        '{"x":[1,"a"]}',
        '{"y":1}',
        '{"x":[[]]}',
        '{"y":"\\u12"}',
        "123456789012345678901234567890",
        "-9223372036854775808",
        "-9223372036854775809",
        "1e-999",
        '"\\ud83d"',
        '"\\udc00\\ud800"',
        '"\\ud800\\u0041"',
        '"\\u0000"',
        '"\\/"',
        "\\u0031",
        "nul",
        "1 2",
        '{"x":[1],"x":[2]}',
        '{"x":"a","x":[2]}',
        '"]"',
        '"}{"',
    ]
)  # fmt: skip
NAMES = st.sampled_from([field.name for field in FIELDS] + ["other", "\\u0069", ""])
MEMBERS = st.lists(st.tuples(NAMES, SCALARS), max_size=4).map(
    lambda members: "{" + ", ".join(f'"{name}": {value}' for name, value in members) + "}"
)
ODD = st.sampled_from(
    [b"", b"  ", b"\r", b"[]", b"1", b"{}{}", b"{} x", b"{", b"}", b'{"s":"\xff"}', b'{"o":"\xc3"}', b"\xef\xbb\xbf{}"]
)
RECORDS = st.lists(
    MEMBERS.map(str.encode) | ODD | st.binary(max_size=6).map(lambda data: data.replace(b"\n", b"")), max_size=12
)


def records(those, between=b"\n"):
    """Put records one behind the other."""
    ends = np.cumsum([len(row) + len(between) for row in those], dtype=np.int64)
    lengths = np.array([len(row) for row in those], np.int64)
    start = ends - lengths - len(between)
    return Records(np.frombuffer(between.join([*those, b""]), np.uint8), start, start + lengths)


def parse(those, fields=FIELDS, between=b"\n"):
    return Json(fields).parse(records(those, between))


def fate(parsed):
    """Return for each record its values, its reason and column, or None where it was skipped."""
    rows = zip(parsed.record.tolist(), (list(row.values()) for row in parsed.fields.to_pylist()), strict=True)
    bad = ((row["record"], (row["reason"], row["column"])) for row in parsed.rejects.to_pylist())
    skipped = [(number, None) for number in parsed.skipped.tolist()]
    everything = [*rows, *bad, *skipped]
    assert len(dict(everything)) == len(everything)
    return [what for _, what in sorted(everything, key=lambda pair: pair[0])]


class Misfit(Exception):
    pass


class Number(str):
    """A number as it is written."""

    __slots__ = ()


def oracle(buffer):
    """Say what becomes of a record, slowly, with nothing but the json module."""
    try:
        text = buffer.decode()
        if not text.strip(" \t\r\n"):
            return None
        document = json.loads(
            text, parse_int=Number, parse_float=Number, parse_constant=refuse, object_pairs_hook=Object
        )
    except UnicodeDecodeError:
        return "format_encoding", None
    except ValueError:
        return "format_syntax", None
    if not isinstance(document, Object):
        return "format_syntax", None
    values, wrong = {}, []
    for name, value in document.pairs:
        field = next((field for field in FIELDS if field.name == name), None)
        if field is None:
            continue
        try:
            values[name] = member(value, field.type) if field.pattern is None else raw(text, name)
        except Misfit:
            wrong.append(name)
    return ("format_cast", wrong) if wrong else [values.get(field.name) for field in FIELDS]


def refuse(constant):
    raise ValueError(constant)


class Object:
    def __init__(self, pairs):
        if any(0xD800 <= ord(letter) < 0xE000 for pair in pairs for text in texts(pair) for letter in text):
            raise ValueError("half a pair")
        self.pairs = pairs


def texts(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for element in value:
            yield from texts(element)


def raw(text, name):
    """Return the text of the last member of a name."""
    member_text, at, decoder = None, text.index("{") + 1, json.JSONDecoder()
    while True:
        at = len(text) - len(text[at:].lstrip(" ,"))
        if text[at] == "}":
            return member_text
        key, at = decoder.raw_decode(text, at)
        at = text.index(":", at) + 1
        at = len(text) - len(text[at:].lstrip(" "))
        _, end = decoder.raw_decode(text, at)
        member_text, at = (text[at:end] if key == name else member_text), end


def member(value, type_):  # noqa: C901, PLR0911, PLR0912
    if value is None:
        return None
    if pa.types.is_struct(type_):
        if not isinstance(value, Object):
            raise Misfit
        types = {field.name: field.type for field in type_}
        inner = [(name, member(inner_value, types[name])) for name, inner_value in value.pairs if name in types]
        return dict.fromkeys(types) | dict(inner)
    if pa.types.is_list(type_):
        if not isinstance(value, list):
            raise Misfit
        return [member(element, type_.value_type) for element in value]
    if pa.types.is_boolean(type_):
        if not isinstance(value, bool):
            raise Misfit
        return value
    if pa.types.is_decimal(type_):
        try:
            exact = Decimal(value) if isinstance(value, str) else None
        except ArithmeticError:
            raise Misfit from None
        if exact is None or not exact.is_finite() or abs(exact) >= 1000 or exact * 100 % 1:
            raise Misfit
        return exact
    if pa.types.is_string(type_):
        if not isinstance(value, str) or isinstance(value, Number):
            raise Misfit
        return value
    if not isinstance(value, Number):
        raise Misfit
    if pa.types.is_floating(type_):
        if math.isinf(float(value)):
            raise Misfit
        return float(value)
    if not re.fullmatch(r"-?\d+", value) or not -(2 ** (type_.bit_width - 1)) <= int(value) < 2 ** (
        type_.bit_width - 1
    ):
        raise Misfit
    return int(value)


@given(RECORDS)
def test_oracle(those):
    """What becomes of a record is what the json module and the types of the fields say; of its bad members one is
    told.
    """
    for actual, expected in zip(fate(parse(those)), map(oracle, those), strict=True):
        if isinstance(expected, tuple) and isinstance(expected[1], list):
            assert actual[0] == expected[0]
            assert actual[1] in expected[1]
        else:
            assert actual == expected


@given(RECORDS, st.sampled_from([b"\n", b"", b"--"]))
def test_neighbours(those, between):
    """A record among others becomes what it becomes alone, whatever stands between them."""
    together = parse(those, between=between)
    alone = [parse([record]) for record in those]
    assert fate(together) == [what for parsed in alone for what in fate(parsed)]
    details = [row["detail"] for parsed in alone for row in parsed.rejects.to_pylist()]
    assert together.rejects["detail"].to_pylist() == details


def test_many():
    """Slices of a long run, each with bad records, are put together in order."""
    those = [b'{"i": %d}' % number if number % 1000 else b"[]" for number in range(20_000)]
    parsed = parse(those, FIELDS[:1])
    assert parsed.record.tolist() == [number for number in range(20_000) if number % 1000]
    assert parsed.fields["i"].to_pylist() == parsed.record.tolist()
    assert parsed.rejects["record"].to_pylist() == list(range(0, 20_000, 1000))


def test_none():
    """No records have no rows, and the columns of the fields."""
    parsed = parse([])
    assert parsed.fields.schema == Json(FIELDS).schema
    assert (parsed.fields.num_rows, parsed.rejects.num_rows, parsed.record.size) == (0, 0, 0)


@pytest.mark.parametrize(
    ("record", "reason", "column", "detail"),
    [
        (b'{"n":{"x":[1,2,3,"oh"]}}', "format_cast", "n", '$.n.x[3]: expected `int | null`, got `str`: "oh"'),
        (b'{"small":128}', "format_cast", "small", "$.small: expected `int` <= 127: 128"),
        (
            b'{"ok":"' + b"1" * 90 + b'"}',
            "format_cast",
            "ok",
            '$.ok: expected `bool | null`, got `str`: "' + "1" * 58 + "…",
        ),
        (b'{"i":1,}', "format_syntax", None, "trailing comma in object at byte 7"),
        (b'{"i":1', "format_syntax", None, "ends within a value, or has half of a surrogate pair"),
        (b'{"i":"a","i":}', "format_syntax", None, "invalid character at byte 13"),
        (b"[1]", "format_syntax", None, "expected `object`, got `array`"),
        (b'{"o":"\xff"}', "format_encoding", None, "not UTF-8 at byte 6: invalid start byte"),
    ],
    ids=["deep", "range", "long", "comma", "short", "syntax first", "array", "encoding"],
)
def test_details(record, reason, column, detail):
    """A bad record is told by its reason, its field, and where in it what is wrong."""
    (row,) = parse([record]).rejects.to_pylist()
    assert row == {"record": 0, "reason": reason, "column": column, "detail": detail}


def test_missing_null_empty():
    """A missing member, null and an empty text are three things in the raw text of a member, two in a string."""
    fields = [Field("s", pa.string()), Field("r", pa.string(), "json")]
    table = parse([b"{}", b'{"s":null,"r":null}', b'{"s":"","r":""}', b'{"r":[1, {"a" :2}]}'], fields).fields
    assert table["s"].to_pylist() == [None, None, "", None]
    assert table["r"].to_pylist() == [None, "null", '""', '[1, {"a" :2}]']


def test_times():
    """Times in texts are read at any depth, without a zone in UTC, and a bad one is told by its path."""
    moment = pa.timestamp("us", "UTC")
    fields = [
        Field("t", moment),
        Field("n", pa.struct([("l", pa.list_(moment))])),
        Field("day", pa.date32(), "%d.%m.%Y"),
    ]
    parsed = parse(
        [
            b'{"t":"2026-01-31T12:00:00.25+01:00","n":{"l":["2026-01-31 00:00",null]},"day":"29.02.2024"}',
            b'{"t":"2026-02-30T12:00:00Z"}',
            b'{"t":null,"n":{"l":null}}',
            b'{"n":{"l":["2026-01-31","soon"]}}',
            b'{"day":"29.02.2025"}',
            b'{"t":1700000000}',
        ],
        fields,
    )
    assert parsed.record.tolist() == [0, 2]
    first, second = parsed.fields.to_pylist()
    assert [str(first["t"]), *map(str, first["n"]["l"]), str(first["day"])] == [
        "2026-01-31 11:00:00.250000+00:00",
        "2026-01-31 00:00:00+00:00",
        "None",
        "2024-02-29",
    ]
    assert second == {"t": None, "n": {"l": None}, "day": None}
    assert [detail.split(":")[0] for detail in parsed.rejects["detail"].to_pylist()] == [
        "$.t",
        "$.n.l[1]",
        "$.day",
        "$.t",
    ]
    assert set(parsed.rejects["reason"].to_pylist()) == {"format_cast"}


@pytest.mark.parametrize(
    ("type_", "good", "bad"),
    [
        (pa.uint64(), [b"0", b"18446744073709551615"], [b"-1", b"18446744073709551616", b"1.0", b"true", b'"1"']),
        (pa.uint8(), [b"255"], [b"256", b"-1"]),
        (pa.float32(), [b"3.4e38", b"1"], [b"3.5e38", b'"1"']),
        (pa.binary(), [b'"YWI="', b'""'], [b'"YWI"', b'"Y WI="', b"1"]),
        (pa.decimal128(38, 0), [b"9" * 38, b'"1e3"'], [b"1" + b"0" * 38, b'"1_0"', b'" 1"', b"0.1"]),
    ],
    ids=str,
)
def test_types(type_, good, bad):
    """A type takes what it can hold exactly, floats the nearest, and nothing else."""
    parsed = parse([b'{"v":' + literal + b"}" for literal in good + bad], [Field("v", type_)])
    assert parsed.record.tolist() == list(range(len(good)))
    assert parsed.fields["v"].null_count == 0


@pytest.mark.parametrize("inner", ['{{"a":{}}}', "[{}]"], ids=["objects", "arrays"])
def test_depth(inner):
    """How deep a record may nest depends neither on the stack of the caller nor on brackets in texts."""

    def nested(depth):
        value = "1"
        for _ in range(depth - 1):
            value = inner.format(value)
        return b'{"o":%s,"s":"%s"}' % (value.encode(), b"[" * DEEPEST)

    def deep(calls):
        return deep(calls - 1) if calls else fate(parse([nested(DEEPEST), nested(DEEPEST + 1), b"[" * 100_000]))

    fields = [None] * len(FIELDS)
    fields[3] = "[" * DEEPEST
    assert deep(0) == deep(300) == [fields, ("format_syntax", None), ("format_syntax", None)]


@pytest.mark.parametrize(
    "fields",
    [
        [Field("a", pa.binary(), width=2)],
        [Field('a"', pa.int8())],
    ],
    ids=["sized", "quote"],
)
def test_refused(fields):
    """Fields that JSON cannot have are refused before any record is read."""
    with pytest.raises(SettingsError):
        Json(fields)


@pytest.mark.parametrize("between", [b",", b";", b"\0", b"\x1e", b"\n\x1e", b", \n", b"|", b""], ids=repr)
def test_anything_separates_consecutive_objects(between):
    """Without a delimiter, objects may have any separator before, between and behind them."""
    format_ = format_of(FormatSettings(type="json", record_delimiter="", fields={"a": "int64"}))
    data = between.join([b"", b'{"a":1}', b'{"a":2}', b""])
    for at in range(len(data)):
        ledger = RawLedger.of(format_, [[data[:at], data[at:]]])
        assert ([row["a"] for row in ledger.fields()], ledger.rejects()) == ([1, 2], [])


def test_values_between_objects_are_rejected():
    """A value that is no object is rejected, not taken for a separator at the end of a source."""
    ledger = RawLedger.of(
        format_of(FormatSettings(type="json", record_delimiter="", fields={"a": "int64"})), [[b'{"a":1} 7']]
    )
    assert [row["content"] for row in ledger.rejects()] == [b" 7"]


@pytest.mark.parametrize("record", [b'{"a": "x", "a": 1}', b'{"a": 1, "a": "x"}', b'{"a": 2, "a": "x", "a": 1}'])
def test_the_wrong_one_of_two_members_is_named(record):
    """Of several members with one name the detail shows the value that does not fit."""
    format_ = format_of(FormatSettings(type="json", fields={"a": "int64"}))
    assert RawLedger.of(format_, [[record]]).rejects()[0]["detail"].endswith('expected `int | null`, got `str`: "x"')


@pytest.mark.parametrize(
    ("type_", "record", "detail"),
    [
        ("struct<x: int64>", b'{"a": {"x": "q", "x": 1}}', '$.a.x: expected `int | null`, got `str`: "q"'),
        ("struct<x: int64>", b'{"a": {"x": 1}, "a": {"x": "q"}}', '$.a.x: expected `int | null`, got `str`: "q"'),
        ("list<struct<x: int64>>", b'{"a": [{"x": "q", "x": 1}]}', '$.a[0].x: expected `int | null`, got `str`: "q"'),
        ("map<string, int64>", b'{"a": {"x": 1, "y": "q"}}', '$.a[...]: expected `int | null`, got `str`: "q"'),
        ("float64", b'{"a": 1e999, "a": 1}', '$.a: number out of range: "1e999"'),
        ("int64", b'{"a": ' + b"9" * 5000 + b', "a": "q"}', "$.a: integer value out of range"),
    ],
)
def test_a_value_that_fits_is_never_blamed(type_, record, detail):
    """The detail shows the value that does not fit its field, at any depth, and none rather than another one."""
    (reject,) = RawLedger.of(format_of(FormatSettings(type="json", fields={"a": type_})), [[record]]).rejects()
    assert reject["detail"].endswith(detail)
