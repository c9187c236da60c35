import json
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.errors import SettingsError
from windrow.formats.fields import Field
from windrow.formats.json import Json
from windrow.formats.msgpack import MessagePack
from windrow.formats.prefixed import LONGEST, PrefixFraming
from windrow.formats.records import Records

FRAMINGS = st.builds(
    PrefixFraming,
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from(["little", "big"]),
    st.booleans(),
    st.integers(0, 40),
)
BODIES = st.lists(st.binary(max_size=50), max_size=12)
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


def written(framing, bodies):
    own = framing.width if framing.counts_itself else 0
    return b"".join((len(body) + own).to_bytes(framing.width, framing.order) + body for body in bodies)


def together(bodies):
    """Put records one behind the other."""
    ends = np.cumsum([0, *map(len, bodies)])
    return Records(buffer(b"".join(bodies)), ends[:-1], ends[1:])


def oracle(framing, data):
    """Cut bytes the slow way: whole records, refused lengths by position, what is left, and to be skipped."""
    whole, refused, at = [], [], 0
    while len(data) - at >= framing.width:
        length = int.from_bytes(data[at : at + framing.width], framing.order)
        length = min(length, LONGEST) - (framing.width if framing.counts_itself else 0)
        body = at + framing.width
        if not 0 <= length <= framing.most_bytes:
            refused.append((at, length))
        elif body + length > len(data):
            break
        else:
            whole.append(data[body : body + length])
        at = body + max(length, 0)
    return whole, refused, data[at:], max(at - len(data), 0)


def cut(framing, data, skip=0):
    found = framing.cut(buffer(data), skip)
    whole = [found.records.of(number) for number in range(found.records.count)]
    refused = list(zip(found.refused.tolist(), found.lengths.tolist(), strict=True))
    return whole, refused, data[found.unfinished :], found.skip


@given(FRAMINGS, BODIES)
def test_written(framing, bodies):
    """
    What was written with a length before it is what is cut, and what is too long is passed over to the byte.
    """
    bodies = [body for body in bodies if len(body) + framing.width < 256]
    whole, refused, rest, skip = cut(framing, written(framing, bodies))
    assert whole == [body for body in bodies if len(body) <= framing.most_bytes]
    assert [length for _, length in refused] == [len(body) for body in bodies if len(body) > framing.most_bytes]
    assert (rest, skip) == (b"", 0)


@given(FRAMINGS, st.binary(max_size=80) | st.lists(st.sampled_from([0, 1, 4, 255]), max_size=80).map(bytes))
def test_oracle(framing, data):
    """
    Any bytes are cut as one hop after the other says.
    """
    assert cut(framing, data) == oracle(framing, data)


@given(FRAMINGS, BODIES, st.binary(max_size=20), st.lists(st.integers(0, 300)))
def test_any_cutting(framing, bodies, tail, cuts):
    """
    However bytes are cut into chunks, the same records come out, the same are refused and the same is left.
    """
    data = written(framing, [body for body in bodies if len(body) < 240]) + tail
    bounds = sorted({0, len(data), *(min(one, len(data)) for one in cuts)})
    whole, refused, rest, skip, before = [], [], b"", 0, 0
    for begin, end in pairwise(bounds):
        kept = rest
        records, bad, rest, skip = cut(framing, kept + data[begin:end], skip)
        whole += records
        refused += [(at + before, length) for at, length in bad]
        before = end - len(rest)
    assert (whole, refused, rest, skip) == cut(framing, data)


def test_most_records():
    """
    A run may be nothing but empty records, however many.
    """
    found = PrefixFraming(1).cut(buffer(bytes(100_000)))
    assert (found.records.count, found.unfinished) == (100_000, 100_000)
    assert np.array_equal(found.records.begin, np.arange(1, 100_001))


def test_no_such_width():
    """
    A length of three bytes is refused.
    """
    with pytest.raises(SettingsError):
        PrefixFraming(3)


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
    """
    MessagePack and JSON of the same values give the same rows and the same rejects.
    """
    small = [one for one in values if not any(abs(n) >= 2**63 for n in numbers(one))]
    packed = MessagePack(FIELDS).parse(together([msgspec.msgpack.encode(one) for one in small]))
    plain = Json(FIELDS).parse(together([json.dumps(one).encode() for one in small]))
    assert packed.fields.equals(plain.fields)
    assert packed.record.tolist() == plain.record.tolist()
    kept = ["record", "reason", "column"]
    assert packed.rejects.select(kept).equals(plain.rejects.select(kept))


def numbers(value):
    """Yield the whole numbers within."""
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from numbers(one)
    elif isinstance(value, int):
        yield value


@given(
    st.lists(
        st.binary(max_size=12) | MEMBERS.filter(lambda one: "n" not in one).map(msgspec.msgpack.encode), max_size=6
    )
)
def test_neighbours(bodies):
    """
    A record of MessagePack among others becomes what it becomes alone, and each becomes something.
    """
    parser = MessagePack(FIELDS)
    parsed, alone = parser.parse(together(bodies)), [parser.parse(together([body])) for body in bodies]
    assert sorted([*parsed.record.tolist(), *parsed.rejects["record"].to_pylist()]) == list(range(len(bodies)))
    assert parsed.fields.to_pylist() == [row for one in alone for row in one.fields.to_pylist()]
    assert parsed.rejects["detail"].to_pylist() == [one for each in alone for one in each.rejects["detail"].to_pylist()]


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
    """
    A bad record of MessagePack is told by its reason, its field, and where in it what is wrong.
    """
    (row,) = MessagePack(FIELDS).parse(together([body])).rejects.to_pylist()
    assert row == {"record": 0, "reason": reason, "column": column, "detail": detail}


def test_binary():
    """
    Binary needs no base64 here.
    """
    body = msgspec.msgpack.encode({"b": b"\xff\0"})
    assert MessagePack([Field("b", pa.binary())]).parse(together([body])).fields["b"].to_pylist() == [b"\xff\0"]


def test_no_raw_text():
    """
    A json field is refused.
    """
    with pytest.raises(SettingsError):
        MessagePack([Field("r", pa.string(), "json")])
