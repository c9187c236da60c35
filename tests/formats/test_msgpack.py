import json

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.errors import SettingsError
from windrow.formats.fields import Field
from windrow.formats.objects import Json, MessagePack
from windrow.formats.records import Records

FIELDS = [
    Field("i", pa.int8()),
    Field("f", pa.float64()),
    Field("s", pa.string()),
    Field("n", pa.struct([("l", pa.list_(pa.int64())), ("ok", pa.bool_())])),
    Field("d", pa.decimal128(5, 2)),
    Field("t", pa.timestamp("us", "UTC")),
]


def buffer(data):
    return np.frombuffer(data, np.uint8)


def together(bodies):
    """Put records one behind the other."""
    ends = np.cumsum([0, *map(len, bodies)])
    return Records(buffer(b"".join(bodies)), ends[:-1], ends[1:])


MEMBERS = st.fixed_dictionaries(
    {},
    optional={
        "i": st.integers(-200, 200) | st.none() | st.booleans(),
        "f": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**60), 2**60),
        "s": st.text(max_size=3) | st.just(1),
        "n": st.none()
        | st.fixed_dictionaries(
            {"l": st.lists(st.integers() | st.none() | st.just("x"), max_size=2)}, optional={"ok": st.booleans()}
        ),
        "d": st.sampled_from(["1.50", "1.505", 1, 1000, 1.25, "NaN", True]),
        "t": st.sampled_from(["2026-01-31T12:00:00Z", "soon", 1]),
        "other": st.just([{}]),
    },
)


@given(st.lists(MEMBERS | st.just([1]), max_size=6))
def test_twins(values):
    """MessagePack and JSON of the same values give the same rows and the same rejects."""
    small = [value for value in values if not any(abs(n) >= 2**63 for n in numbers(value))]
    packed = MessagePack(FIELDS).parse(together([msgspec.msgpack.encode(value) for value in small]))
    plain = Json(FIELDS).parse(together([json.dumps(value).encode() for value in small]))
    assert packed.fields.equals(plain.fields)
    assert packed.record.tolist() == plain.record.tolist()
    kept = ["record", "reason", "column"]
    assert packed.rejects.select(kept).equals(plain.rejects.select(kept))


def numbers(value):
    """Yield the whole numbers within."""
    if isinstance(value, dict | list):
        for element in value.values() if isinstance(value, dict) else value:
            yield from numbers(element)
    elif isinstance(value, int):
        yield value


@given(
    st.lists(
        st.binary(max_size=12) | MEMBERS.filter(lambda members: "n" not in members).map(msgspec.msgpack.encode),
        max_size=6,
    )
)
def test_neighbours(bodies):
    """A record of MessagePack among others becomes what it becomes alone, and each becomes something."""
    parser = MessagePack(FIELDS)
    parsed, alone = parser.parse(together(bodies)), [parser.parse(together([body])) for body in bodies]
    assert sorted([*parsed.record.tolist(), *parsed.rejects["record"].to_pylist()]) == list(range(len(bodies)))
    assert parsed.fields.to_pylist() == [row for each in alone for row in each.fields.to_pylist()]
    assert parsed.rejects["detail"].to_pylist() == [
        detail for each in alone for detail in each.rejects["detail"].to_pylist()
    ]


@pytest.mark.parametrize(
    ("body", "reason", "column", "detail"),
    [
        (b"", "format_syntax", None, "ends too early"),
        (b"\xc1", "format_syntax", None, "invalid opcode '\\xc1' at byte 0"),
        (b"\x80x", "format_syntax", None, "trailing characters at byte 1"),
        (b"\x91\x01", "format_syntax", None, "expected `object`, got `array`"),
        (b"\x91" * 5000, "format_syntax", None, "nests too deeply"),
        (b"\x82\xa1i\xa1x\xa1z\xc1", "format_syntax", None, "invalid opcode '\\xc1' at byte 7"),
        (b"\x81\xa1s\xa1\xff", "format_encoding", None, "a text is not UTF-8: invalid start byte"),
        (b"\x81\xa1i\xcc\xff", "format_cast", "i", "$.i: expected `int` <= 127: 255"),
        (b"\x81\xa1s\xc4\x01x", "format_cast", "s", "$.s: expected `str | null`, got `bytes`: \"b'x'\""),
    ],
    ids=["empty", "opcode", "trailing", "array", "deep", "syntax first", "encoding", "range", "binary"],
)
def test_details(body, reason, column, detail):
    """A bad record of MessagePack is told by its reason, its field, and where in it what is wrong."""
    (row,) = MessagePack(FIELDS).parse(together([body])).rejects.to_pylist()
    assert row == {"record": 0, "reason": reason, "column": column, "detail": detail}


def test_binary():
    """Binary needs no base64 here."""
    body = msgspec.msgpack.encode({"b": b"\xff\0"})
    assert MessagePack([Field("b", pa.binary())]).parse(together([body])).fields["b"].to_pylist() == [b"\xff\0"]


def test_no_raw_text():
    """A json field is refused."""
    with pytest.raises(SettingsError):
        MessagePack([Field("r", pa.string(), "json")])


def test_a_value_that_fits_is_never_blamed():
    """Of a name that comes twice the detail shows no value, as only the last one is known."""
    twice = b"\x82" + b"".join(map(msgspec.msgpack.encode, ["i", "x", "i", 1]))
    parsed = MessagePack(FIELDS).parse(together([twice]))
    assert parsed.rejects["detail"].to_pylist() == ["$.i: expected `int | null`, got `str`"]
