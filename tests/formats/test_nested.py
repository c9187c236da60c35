"""Maps, lists, structs and times are the same values in JSON, in cells of CSV and in MessagePack."""

from __future__ import annotations

import json
import struct
from datetime import date, time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clocks import NOW
from tests.engine.factory import EngineFactory
from tests.engine.test_raw import Raw, world  # noqa: F401 a fixture
from windrow.formats.format import format_of
from windrow.formats.settings import FormatSettings
from windrow.model.timestamps import time_text
from windrow.testing.formats import RawLedger

NAMES = st.text("ab", max_size=2)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
INNER = st.fixed_dictionaries({"a": FINITE, "b": st.lists(st.text(max_size=3), min_size=1, max_size=1)})
VALUES: dict[str, Any] = {
    "map<string, int8>": st.dictionaries(NAMES, st.none() | st.integers(-128, 127), max_size=3),
    "list<int8, 2>": st.lists(st.none() | st.integers(-128, 127), min_size=2, max_size=2),
    "list<map<string, bool>>": st.lists(st.none() | st.dictionaries(NAMES, st.booleans(), max_size=2), max_size=3),
    "map<string, struct<a: float64, b: list<string, 1>>>": st.dictionaries(NAMES, INNER, max_size=2),
    "map<string, time[us]>": st.dictionaries(NAMES, st.times().map(time.isoformat), max_size=3),
    "list<date, 1>": st.dates().map(lambda day: [day.isoformat()]),
    "json": st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3)),
}


def rows(content: bytes, **settings: Any) -> tuple[list[Any], list[Any]]:
    """Return the values of the field `x` of the good records, and the details of the others."""
    ledger = RawLedger.of(format_of(FormatSettings(**settings)), [[content]])
    in_order = sorted(ledger.fields(), key=lambda row: row["offset"])
    return [row["x"] for row in in_order], [row["detail"].partition(": ")[2] for row in ledger.rejects()]


def cell(value: Any) -> bytes:
    """Write a value as JSON in a cell of CSV."""
    return b'"' + json.dumps(value).replace('"', '""').encode() + b'"\n'


@pytest.mark.ci
@pytest.mark.parametrize("type_", VALUES)
@given(data=st.data())
def test_same_everywhere(type_, data):
    """A value is the same in JSON, in a cell of CSV and, where it has such values, in MessagePack."""
    values = data.draw(st.lists(VALUES[type_], min_size=1, max_size=4))
    fields = {"x": type_}
    lines = b"".join(json.dumps({"x": value}).encode() + b"\n" for value in values)
    from_json = rows(lines, type="json", fields=fields)
    assert from_json[1] == []
    cells = rows(b"".join(map(cell, values)), type="csv", has_header=False, fields=fields)
    if type_ == "json":
        assert [json.loads(value) for value in cells[0]] == [json.loads(value) for value in from_json[0]] == values
        return
    assert repr(cells) == repr(from_json)
    packed = [msgspec.msgpack.encode({"x": value}) for value in values]
    sized = b"".join(struct.pack(">I", len(body)) + body for body in packed)
    assert repr(rows(sized, type="length-prefixed", byte_order="big", encoding="msgpack", fields=fields)) == repr(
        from_json
    )


@pytest.mark.parametrize(
    ("type_", "text", "detail"),
    [
        ("map<string, int8>", "[1]", "x: '[1]' is not a valid map<string, int8>"),
        ("map<string, int8>", '{"a": 300}', "x: '{\"a\": 300}' is not a valid map<string, int8>"),
        ("list<int8, 2>", "[1]", "x: '[1]' is not a valid list<int8, 2>"),
        ("list<int8>", "[1], 2", "x: '[1], 2' is not a valid list<int8>"),
        ("list<int8>", "[" * 1000, None),
        ("json", "{", "x: '{' is not a valid json"),
        ("list<time[s]>", '["24:00"]', "x: '[\"24:00\"]' is not a valid list<time[s]>"),
    ],
)
def test_bad_cells(type_, text, detail):
    """A cell that is no JSON of its type is bad, and its neighbours are not."""
    good = b"{}\n" if type_.startswith(("map", "json")) else b'"[1,2]"\n' if "2" in type_ else b"[]\n"
    bad = b'"' + text.replace('"', '""').encode() + b'"\n'
    outcome = rows(good + bad + good, type="csv", has_header=False, fields={"x": type_})
    assert len(outcome[0]) == 2
    assert outcome[1] == [detail] if detail else len(outcome[1]) == 1


def test_absent():
    """An empty cell is NULL, and so is the JSON null; an empty map is not."""
    outcome = rows(
        b",a\nnull,a\n{},a\n", type="csv", has_header=False, fields={"x": "map<string, int8>", "y": "string"}
    )
    assert outcome == ([None, None, []], [])


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ("time[us]", b"12:00", time(12)),
        ("time[us]", b"23:59:59.999999", time(23, 59, 59, 999_999)),
        ("time[ms]", b"00:00:00.5000", time(0, 0, 0, 500_000)),
        ("time[s] %I.%M %p", b"1.05 PM", time(13, 5)),
        ("time[s]", b"12", None),
        ("time[s]", b"24:00", None),
        ("time[s]", b"12:00:00.5", None),
        ("time[s]", b"12:00Z", None),
        ("time[s]", b"12:60", None),
        ("time[s]", b"2024-01-01 12:00", None),
    ],
)
def test_times(type_, text, value):
    """A time of day has minutes, maybe seconds and a fraction that its unit can hold, and no zone."""
    values, bad = rows(text + b"\n", type="csv", has_header=False, fields={"x": type_})
    assert (values, len(bad)) == (([value], 0) if value else ([], 1))


def test_native():
    """A list of a fixed length is so many numbers in a row; a bad one makes its record bad."""
    fields = {"x": "list<float64, 2>", "at": "time[ms]", "days": "list<date, 2>"}
    form = "<ddiii"
    good = struct.pack(form, 1.5, -2, 43_200_000, 0, 1)
    bad = [struct.pack(form, 1, 2, 86_400_000, 0, 1), struct.pack(form, 1, 2, 0, 2**30, 2**30)]
    ledger = RawLedger.of(format_of(FormatSettings(type="native", fields=fields)), [[good + b"".join(bad) + good]])
    first = {"x": [1.5, -2.0], "at": time(12), "days": [date(1970, 1, 1), date(1970, 1, 2)]}
    assert [{name: row[name] for name in fields} for row in ledger.fields()] == [first, first]
    assert sorted(row["field"] for row in ledger.rejects()) == ["at", "days"]


@pytest.mark.slow_on_spark
def test_expressions(world: Raw, engine: EngineFactory) -> None:  # noqa: F811 the fixture
    """Expressions take a value out of a map, and a time of day as a text, on both engines."""
    columns = {"source": "'s'", "key": "tags['k']", "type": "'t'", "event_time": "ts", "payload": "at"}
    fields = {"ts": "timestamp[us]", "tags": "map<string, string>", "at": "time[us]", "xs": "list<float64, 2>"}
    record = {"ts": time_text(NOW), "tags": {"k": "a"}, "at": "12:00:01", "xs": [1, 2]}
    world.append(("s", 1, json.dumps(record).encode() + b"\n", True))
    world.run(engine, depot_columns=columns, format={"type": "json", "fields": fields, "max_read_bytes": 1})
    [(_, key, _, [message])] = world.outcomes()[0]
    assert (key, message["payload"]) == ("a", "12:00:01.000000")
