"""Only fields that an expression uses are converted: a bad value in another one does not reject its record."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from windrow.formats import Field, Format, FormatSettings, per_record
from windrow.formats.format import format_of
from windrow.formats.raw.spans import narrow_format
from windrow.source.conversion import mapping_of
from windrow.testing.formats import RawLedger

pytestmark = pytest.mark.ci

FIELDS = {"a": "int64", "b": "int64", "c": "string"}
PACKED = msgspec.msgpack.encode({"a": 1, "b": "x", "c": "z"})
CASES: dict[str, tuple[dict[str, Any], bytes]] = {
    "csv": ({"type": "csv", "has_header": False}, b"1,x,z\n"),
    "csv with a header": ({"type": "csv"}, b"c,b,a\nz,x,1\n"),
    "json": ({"type": "json"}, b'{"a": 1, "b": "x", "c": "z"}\n'),
    "messagepack": (
        {"type": "length-prefixed", "encoding": "msgpack", "length_bytes": 1},
        bytes([len(PACKED)]) + PACKED,
    ),
    "lines": ({"type": "lines", "regex": "(?P<a>.) (?P<b>.) (?P<c>.)"}, b"1 x z\n"),
    "native": (
        {"type": "native", "fields": {"a": "int64", "b": "bool", "c": "string(1)"}},
        struct.pack("<qB1s", 1, 2, b"z"),
    ),
}


def ledger_of(settings: dict[str, Any], content: bytes, used: set[str]) -> RawLedger:
    return RawLedger.of(format_of(FormatSettings(**{"fields": FIELDS} | settings)).using(used), [[content]])


@pytest.mark.parametrize("name", CASES)
def test_unused(name: str) -> None:
    """The record is good and its unused field is not there, unless the format is strict."""
    settings, content = CASES[name]
    ledger = ledger_of(settings, content, {"a", "c"})
    assert [(row["a"], row["c"], "b" in row) for row in ledger.fields()] == [(1, "z", False)]
    strict = ledger_of(settings | {"strict": True}, content, {"a", "c"})
    assert (strict.fields(), [row["field"] for row in strict.rejects()]) == ([], ["b"])


@pytest.mark.parametrize("name", CASES)
def test_still_framed(name: str) -> None:
    """What is no record is rejected whatever is used, and without any field that is used the first one is."""
    settings, content = CASES[name]
    ledger = ledger_of(settings, content, set())
    assert [row["a"] for row in ledger.fields()] == [1]
    broken = {"native": content[:-1], "messagepack": content[:-1]}.get(name, content[:-2] + b'"\n')
    assert ledger_of(settings, broken, {"a"}).rejects() if name not in {"csv", "lines"} else True


def test_package() -> None:
    """Formats that are read record by record convert what is used as well."""
    part = FormatSettings(type="csv", fields=FIELDS)
    fields = (Field("a", pa.int64()), Field("b", pa.int64()))
    built: Format = per_record(part, fields, lambda record: {"a": record, "b": "x"})
    assert [row["a"] for row in RawLedger.of(built.using({"a"}), [[b"1\n"]]).fields()] == [1]


def test_by_mapping() -> None:
    """The fields of all expressions are used, in any case and within calls; without a mapping those of a message."""
    format_ = format_of(FormatSettings(type="csv", has_header=False, fields=FIELDS | {"ts": "timestamp[us]"}))
    columns = {"key": "C", "type": "'t'", "event_time": "coalesce(ts, received_at)", "received_at": "received_at"}
    names = [*format_.parser.schema.names, "raw_source", "received_at"]
    schema = pa.schema([(name, pa.string()) for name in names])
    used, _ = narrow_format(mapping_of(columns, schema, rejects=True), format_)
    assert used.parser.schema.names == ["c", "ts"]
    plain = {"key": "string", "type": "string", "event_time": "timestamp[us]", "note": "int8"}
    used, _ = narrow_format(None, format_of(FormatSettings(type="csv", has_header=False, fields=plain)))
    assert used.parser.schema.names == ["key", "type", "event_time"]


def test_recorded() -> None:
    """What the history recorded before there was `strict` is read as it was then."""
    assert FormatSettings.of_record('{"type": "csv"}').strict
    part = FormatSettings(type="csv", fields=FIELDS)
    assert FormatSettings.of_record(part.recorded_text()) == part
