"""Windrow's own formats go through the kit that checks those of other packages."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest

from tests.formats.naive import NaiveCsv
from windrow.testing import check_format

pytestmark = pytest.mark.ci

FIELDS = {"a": "int64", "b": "string", "c": "float64"}
TEXTS = {"a": "string", "b": "string"}
LONG = TEXTS | {"c": "string"}
JSON = [b'{"a": 1, "b": "x", "c": 1.5}', '{"a": 2, "b": "ä\\n", "c": null}'.encode(), b'{"c": -0, "b": "}{", "a": 3}']
NOT_JSON = [b'{"a": "1"}', b'{"a": 1, "b": "\xff"}', b'{"a": 1,}', b"[1]"]


def sized(records: list[bytes], width: int = 2) -> list[bytes]:
    """Return records after their lengths."""
    return [len(record).to_bytes(width, "big") + record for record in records]


CASES: dict[str, dict[str, Any]] = {
    "csv": {
        "settings": {"type": "csv", "has_header": False, "fields": FIELDS},
        "good": [b"1,x,1.5\n", b'2,"a,\n""b""",\r\n', b',"",-0\n'],
        "bad": [b"1,x\n", b"x,x,1\n", b"1,\xff,1\n", b'1,"x\n'],
        "malformed": [b'"', b'1,"x\n2,y,2\n3,"z\n', b"\xef\xbb", b"\r", b",,,\n" * 9],
    },
    "csv of texts": {
        "settings": {"type": "csv", "has_header": False, "fields": TEXTS, "null_values": []},
        "good": [b"1,x\n", b'2,"y, \n""z"""\n', b'3,"w" \r\n', b'4,v"v\n', b"5,\n"],
        "naive": NaiveCsv("ab"),
    },
    "csv with a header": {
        "settings": {"type": "csv", "fields": {"b": "string", "a": "int8"}, "max_record_bytes": 40},
        "start": b"\xef\xbb\xbfa,x,b\n",
        "good": [b"1,x,y\n", b'2,,"y\nz"\n'],
        "bad": [b"128,x,y\n", b"1,y\n", b"1" * 50 + b"\n"],
        "malformed": [b"a,b\n1,2\n", b'"' * 99],
    },
    "long delimiters": {
        "settings": {"type": "csv", "has_header": False, "delimiter": "||", "record_delimiter": "--\r", "fields": LONG}
        | {"escape_char": "\\", "null_values": []},
        "good": [b"1||x||1--\r", b'2||"\\"||--\r"||3--\r', b"3||-||2--\r"],
        "naive": NaiveCsv("abc", b"||", b"--\r", escape=b"\\"),
        "bad": [b"1|2|3--\r"],
        "malformed": [b"--", b'"\\', b"1||x||1-" * 3],
    },
    "json": {
        "settings": {"type": "json", "fields": FIELDS},
        "good": [record + b"\n" for record in JSON],
        "bad": [record + b"\n" for record in NOT_JSON],
        "malformed": [b"{" * 300, b'"\\', b"\n\n \n"],
    },
    "consecutive json": {
        "settings": {"type": "json", "record_delimiter": "", "fields": FIELDS},
        "good": JSON,
        "bad": [b'{"a": "1"}', b'{"a": 1,}'],
        "malformed": [b"{[}]" * 9, b'{"a": "', b"}}{{", b"1 2 3"],
    },
    "lines": {
        "settings": {"type": "lines", "regex": r"(?P<a>\S+) (?P<b>.*)", "fields": {"a": "uint8", "b": "string"}},
        "good": [b"1 x y\n", b"2 \r\n"],
        "bad": [b"256 x\n", b"x\n", b"1 \xff\n"],
        "malformed": [b"\n\r\n", b"1"],
    },
    "native": {
        "settings": {"type": "native", "fields": {"a": "int16", "b": "bool", "c": "string(3)"}},
        "good": [struct.pack("<h?3s", 1, True, b"x"), struct.pack("<h?3s", -1, False, b"abc")],
        "bad": [struct.pack("<hB3s", 1, 2, b"x"), struct.pack("<h?3s", 1, True, b"\xff")],
        "malformed": [b"\0" * 5],
    },
    "length-prefixed": {
        "settings": {"type": "length-prefixed", "length_bytes": 2, "byte_order": "big", "fields": FIELDS}
        | {"max_record_bytes": 200},
        "good": sized(JSON),
        "bad": sized([*NOT_JSON, b" " * 201]),
        "malformed": [b"\0", b"\xff\xff", b"\0\0" * 5],
    },
    "messagepack": {
        "settings": {"type": "length-prefixed", "length_bytes": 1, "encoding": "msgpack", "fields": FIELDS},
        "good": sized([msgspec.msgpack.encode({"a": 1, "b": "ä", "c": 0.5}), msgspec.msgpack.encode({"a": None})], 1),
        "bad": sized([msgspec.msgpack.encode({"a": "1"}), b"\xc1"], 1),
        "malformed": [b"\xff" * 300],
    },
}


SIMILAR = {"csv with a header", "long delimiters"}  # to csv and to lines


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SIMILAR else ()) for name in CASES]
)
def test_own_formats(name: str) -> None:
    """Cut anywhere, in any order, over any microbatches and with any damage: the same records and rejects, all
    bytes.
    """
    case = CASES[name]
    assert len(check_format(**case)) == len(case["good"])
