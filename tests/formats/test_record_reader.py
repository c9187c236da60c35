"""A format of another package is trusted with nothing: what it does wrong is a reject, or an error that names it."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from windrow.errors import FormatPluginError, SettingsError
from windrow.formats import Automaton, Field, Format, FormatSettings, ParseResult, Records, per_record
from windrow.formats.format import format_of
from windrow.testing import check_format
from windrow.testing.formats import RawLedger, chunks

READ: dict[bytes, Any] = {
    b"texts": {"a": "1", "b": b"x", "c": "1.5", "d": "2026-01-31"},
    b"values": {"a": 7, "b": True, "c": 0.1, "d": date(2026, 1, 31)},
    b"others": {"a": np.int64(-1), "b": Decimal("1.50"), "c": np.float64(2.5), "d": None, "e": object()},
    b"missing": {"b": "", "a": "", "d": ""},
    b"moment": {"b": datetime(2026, 1, 31, 12, tzinfo=UTC)},
    b"nested": {"b": {"x": [1, None, date(2026, 1, 31)]}},
    b"skipped": None,
    b"wrong type": {"a": 1.5},
    b"no text": {"b": {1, 2}},
    b"list": ["1", "x"],
}
SEVERAL_LINES = b'"a\n"\n'
ERRORS: dict[bytes, Exception] = {
    b"value": ValueError("not good"),
    b"half": ValueError("no pair in \ud800"),
    b"key": KeyError("k"),
    b"encoding": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    b"disk": OSError("the disk is gone"),
}


def read(record: bytes) -> Any:
    if record in ERRORS:
        raise ERRORS[record]
    return READ[record]


def by_line(settings: FormatSettings, fields: tuple[Field, ...]) -> Format:
    return per_record(settings, fields, read)


def by_function(end: Callable[[bytes, int], Any], resume_at: bytes = b"") -> Callable[..., Format]:
    return lambda settings, fields: per_record(
        settings, fields, lambda record: {"b": record[1:]}, ends=end, resume_at=resume_at
    )


def sized(data: bytes, start: int) -> int | None:
    """End a record after as many bytes as its first byte says."""
    end = start + 1 + data[start] % 16
    return end if end <= len(data) else None


def fails(_data: bytes, _begin: int) -> int:
    raise IndexError("out of range")


counted = by_function(sized)
resuming = by_function(sized, b"\n")
stands_still = by_function(lambda _data, start: start)
goes_back = by_function(lambda _data, start: start - 5)
goes_beyond = by_function(lambda data, _begin: len(data) + 1)
says_nothing_sane = by_function(lambda _data, _begin: "7")
raises = by_function(fails)


def bracketed(settings: FormatSettings, fields: tuple[Field, ...]) -> Format:
    """End a record at a closing bracket, unless a backslash stands before it."""
    step = Automaton.of(
        "plain",
        lambda state, byte: (
            "escaped" if byte == 92 and state == "plain" else "plain",
            byte == 93 and state == "plain",
        ),
    )
    return per_record(settings, fields, lambda record: {"b": record[:-1]}, ends=step, resume_at=b"]")


def quoted(settings: FormatSettings, fields: tuple[Field, ...]) -> Format:
    """End a record at a newline outside of quotes."""
    ends = Automaton.of(False, lambda inside, byte: (inside ^ (byte == 34), byte == 10 and not inside), bool)
    return per_record(settings, fields, read, ends)


class Odd:
    """A parser that returns something else than each record once."""

    schema = pa.schema([("b", pa.string())])

    def __init__(self, numbers: Callable[[int], list[int]]) -> None:
        self.numbers = numbers

    def parse(self, records: Records) -> ParseResult:
        """Return rows."""
        numbers = self.numbers(records.count)
        return ParseResult(pa.table({"b": ["x"] * len(numbers)}, self.schema), np.array(numbers, np.int64), NO_REJECTS)


NO_REJECTS = pa.schema(
    [("record", pa.int64()), ("reason", pa.string()), ("column", pa.string()), ("detail", pa.string())]
).empty_table()


def odd(numbers: Callable[[int], list[int]]) -> Callable[..., Format]:
    return lambda settings, fields: Format(per_record(settings, fields, read).framing, Odd(numbers))


loses = odd(lambda count: list(range(count - 1)))
swaps = odd(lambda count: list(range(count))[::-1])
invents = odd(lambda count: list(range(count + 1)))


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Install a function of this module as the format `odd`, and return its settings."""

    def registered(name: str, package: str = "odd") -> dict[str, Any]:
        described = tmp_path / f"{package}-1.0.dist-info"
        described.mkdir()
        (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (described / "entry_points.txt").write_text(f"[windrow.formats]\nodd = {__name__}:{name}\n")
        monkeypatch.syspath_prepend(tmp_path)
        return {"type": "odd", "fields": {"b": "string"}}

    return registered


def ledger_of(settings: dict[str, Any], content: bytes) -> RawLedger:
    """Read a source."""
    return RawLedger.of(format_of(FormatSettings(**settings)), [[content]])


def test_values(register: Any) -> None:
    """Whatever kind of value a format returns, it has the type of its field, or is rejected; the others stay good."""
    settings = register("by_line") | {"fields": {"a": "int64", "b": "string", "c": "float64", "d": "date"}}
    ledger = ledger_of(settings, b"".join(record + b"\n" for record in [*READ, *list(ERRORS)[:4]]))
    rows = {row["offset"]: tuple(row[name] for name in "abcd") for row in ledger.fields()}
    nested = '{"x": [1, null, "2026-01-31"]}'
    assert [rows[at] for at in sorted(rows)] == [
        (1, "x", 1.5, date(2026, 1, 31)), (7, "true", 0.1, date(2026, 1, 31)), (-1, "1.50", 2.5, None),
        (None, None, None, None), (None, "2026-01-31T12:00:00+00:00", None, None), (None, nested, None, None),
    ]  # fmt: skip
    refused = {row["content"].strip(): (row["reason"], row["detail"].partition(": ")[2]) for row in ledger.rejects()}
    assert refused == {
        b"wrong type": ("format_cast", "a: '1.5' is not a valid int64"),
        b"no text": ("format_syntax", "odd: TypeError: a set cannot become text"),
        b"list": ("format_syntax", "odd: TypeError: a row is str, not a mapping"),
        b"value": ("format_syntax", "not good"),
        b"half": ("format_syntax", "no pair in \\ud800"),
        b"key": ("format_syntax", "odd: KeyError: 'k'"),
        b"encoding": (
            "format_encoding",
            "not UTF-8: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
        ),
    }


def deep(settings: FormatSettings, fields: tuple[Field, ...]) -> Format:
    value = {"a": [b"abcd", None, "YQ=="], "b": b"text", "c": {"x": b""}, "d": (np.int64(7), True)}
    return per_record(settings, fields, lambda record: {"all": value, **value})


def test_bytes_inside(register: Any) -> None:
    """Bytes inside of lists, maps and structs stay these bytes where the type is binary, and are text where it is
    not.
    """
    fields = {"a": "list<binary>", "b": "string", "c": "map<string, binary>", "d": "json"}
    fields["all"] = "struct<a: list<binary>, b: string, c: map<string, binary>>"
    (row,) = ledger_of(register("deep") | {"fields": fields}, b"r\n").fields()
    assert [row[name] for name in "abcd"] == [[b"abcd", None, b"a"], "text", [("x", b"")], "[7, true]"]
    assert row["all"] == {name: row[name] for name in "abc"}


def test_passing_failure(register: Any) -> None:
    """A failure that may pass blames no record: the microbatch is tried again."""
    with pytest.raises(FormatPluginError, match="'odd' cannot read a record: OSError: the disk is gone") as caught:
        ledger_of(register("by_line"), b"disk\n")
    assert caught.value.retryable


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("stands_still", "ended a record where it begins, or before: from 0 to 0 of 4 bytes"),
        ("goes_back", "ended a record where it begins, or before"),
        ("goes_beyond", "ended a record beyond the bytes that it was given: from 0 to 5 of 4 bytes"),
        ("says_nothing_sane", "cannot find the end of a record: TypeError"),
        ("raises", "cannot find the end of a record: IndexError: out of range"),
        ("loses", "does not return each of 2 records once"),
        ("swaps", "does not return each of 2 records once"),
        ("invents", "does not return each of 2 records once"),
    ],
)
def test_broken_rules(register: Any, name: str, message: str) -> None:
    """A format that stands still, goes beyond the bytes, raises, or loses or doubles a record stops with its name."""
    with pytest.raises(FormatPluginError) as caught:
        ledger_of(register(name), b"a\nb\n")
    assert caught.value.message.startswith("the format 'odd' ")
    assert message in caught.value.message
    assert not caught.value.retryable


ARROW = pa.RecordBatch.from_pydict(
    {
        "a": pa.array([1, None], pa.uint8()),
        "b": pa.array(["x", "y"]).dictionary_encode(),
        "c": pa.array([0.5, 2], pa.float32()),
        "d": pa.array([0, 86_400_000], pa.timestamp("ms", "Europe/Berlin")),
        "e": [{"x": [1]}, None],
    }
)
SEVERAL: dict[bytes, Any] = {
    b"list": [{"a": 1, "b": ""}, {"a": 2}],
    b"iterator": lambda: ({"a": number} for number in range(3)),
    b"batch": ARROW,
    b"table": pa.Table.from_batches([ARROW, ARROW.slice(1)]),
    b"none": [],
    b"no batch": ARROW.slice(0, 0),
    b"one": {"a": 9},
    b"bad": [{"a": 1}, {"a": "x", "c": "y"}, {"a": "z"}],
    b"bad batch": pa.RecordBatch.from_pydict({"a": ["1", "300", "-"]}),
    b"broken": lambda: iter([{"a": 1}, "x"]),
    b"endless": lambda: itertools.repeat({"a": 1}),
    b"large": pa.RecordBatch.from_pydict({"a": ["1" * 1_200]}),
    b"broken text": pa.RecordBatch.from_arrays(
        [pa.StringArray.from_buffers(1, pa.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0])), pa.py_buffer(b"\xff"))], ["b"]
    ),
    b"broken memory": pa.RecordBatch.from_arrays(
        [pa.StringArray.from_buffers(2, pa.py_buffer(struct.pack("<3i", 0, 99, 1)), pa.py_buffer(b"x"))], ["b"]
    ),
}


def several(settings: FormatSettings, fields: tuple[Field, ...]) -> Format:
    def read(record: bytes) -> Any:
        rows = SEVERAL[record]
        return rows() if callable(rows) else rows

    return per_record(settings, fields, read)


@pytest.mark.ci
def test_several_rows(register: Any) -> None:
    """A record gives all rows that a function returns, numbered at its place, or none of them if one is bad."""
    fields = {"a": "int8", "b": "string", "c": "float64", "d": "timestamp[s]", "e": "json"}
    settings = register("several") | {"fields": fields, "max_decoded_bytes": 1_000}
    ledger = ledger_of(settings, b"".join(record + b"\n" for record in SEVERAL))
    offsets = dict(zip(itertools.accumulate([0, *(len(record) + 1 for record in SEVERAL)]), SEVERAL, strict=False))
    rows: dict[bytes, list[Any]] = {}
    for row in sorted(ledger.fields(), key=lambda row: (row["offset"], row["ordinal"])):
        own = rows.setdefault(offsets[row["offset"]], [])
        assert row["ordinal"] == len(own)
        own.append(tuple(row[name] for name in "abcde"))
    first = (1, "x", 0.5, datetime(1970, 1, 1, tzinfo=UTC), '{"x": [1]}')
    second = (None, "y", 2.0, datetime(1970, 1, 2, tzinfo=UTC), None)
    assert rows == {
        b"list": [(1, None, None, None, None), (2, None, None, None, None)],
        b"iterator": [(number, None, None, None, None) for number in range(3)],
        b"batch": [first, second],
        b"table": [first, second, second],
        b"one": [(9, None, None, None, None)],
    }
    refused = {row["content"].strip(): (row["reason"], row["detail"].partition(": ")[2]) for row in ledger.rejects()}
    large = ("format_oversize", "its rows have more than max_decoded_bytes, 1000")
    memory = refused.pop(b"broken memory")
    assert refused == {
        b"bad": ("format_cast", "a: 'x' is not a valid int8, in row 1"),
        b"bad batch": ("format_cast", "a: '300' is not a valid int8, in row 1"),
        b"broken": ("format_syntax", "odd: TypeError: a row is str, not a mapping"),
        b"endless": large,
        b"large": large,
        b"broken text": ("format_encoding", "b: '\\xff' is not UTF-8"),
    }
    assert memory[0] == "format_syntax"


def headed(settings: FormatSettings, fields: tuple[Field, ...]) -> Format:
    def header(first: bytes) -> Callable[[bytes], Any]:
        if first in ERRORS:
            raise ERRORS[first]
        return lambda record: dict(zip(first.decode(), record.decode(), strict=True))

    return per_record(settings, fields, header=header)


@pytest.mark.ci
@pytest.mark.parametrize(("first", "reason"), [("value", "syntax"), ("encoding", "encoding"), ("key", "syntax")])
def test_header(register: Any, first: str, reason: str) -> None:
    """The first record of each source says how to read the others; a bad one rejects them all."""
    settings = register("headed") | {"fields": {"a": "string", "b": "string"}}
    ledger = RawLedger.of(format_of(FormatSettings(**settings)), [[b"ab\nxy\n"], [b"\nba\nxy\n1\n"]])
    assert [(row["a"], row["b"]) for row in ledger.fields()] == [("x", "y"), ("y", "x")]
    assert [row["content"] for row in ledger.rejects()] == [b"1\n"]
    assert len(check_format(settings, [b"xy\n", b"zz\n"], [b"x\n"], start=b"ab\n")) == 2
    refused = ledger_of(settings, first.encode() + b"\nxy\n").rejects()
    assert [(row["offset"], row["reason"]) for row in refused] == [
        (0, f"format_{reason}"),
        (len(first) + 1, f"format_{reason}"),
    ]


@pytest.mark.ci
def test_braces(register: Any) -> None:
    """A record that a function ends reaches the reader whole, whatever bytes it begins with."""
    ledger = ledger_of(register("counted"), b"\5ab{[c\0")
    assert [row["b"] for row in ledger.fields()] == ["ab{[c", None]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("counted", [b"\1x", b"\0", b"\5abcde"], [b"\1\xff"]),
        ("resuming", [b"\1x", b"\0", b"\5abcde"], [b"\1\xff"]),
        ("bracketed", [b"x]", b"\\]\\\\]", b"]"], [b"\xff]"]),
    ],
)
def test_kit(register: Any, name: str, good: list[bytes], bad: list[bytes]) -> None:
    """Records that a function or an automaton ends are the same for all cuts, orders and damages."""
    rows = check_format(register(name) | {"max_record_bytes": 6}, good, bad, malformed=[b"\x0e" * 40, b"x" * 30])
    assert len(rows) == len(good)


@pytest.mark.parametrize(("name", "kept"), [("counted", []), ("resuming", ["y"])])
def test_too_long(register: Any, name: str, kept: list[str]) -> None:
    """After a record that is too long reading resumes where the format says, and else the source is rejected."""
    ledger = ledger_of(register(name) | {"max_record_bytes": 8}, b"\x0exxxxxxxx\n\1y")
    assert [row["b"] for row in ledger.fields()] == kept
    assert {row["reason"] for row in ledger.rejects()} == {"format_oversize"}


def test_quotes_without_resuming(register: Any) -> None:
    """A bad record of several lines is rejected as a whole where the format does not say where reading resumes."""
    ledger = ledger_of(register("quoted"), SEVERAL_LINES)
    assert [(row["reason"], row["content"]) for row in ledger.rejects()] == [("format_syntax", SEVERAL_LINES)]


def test_one_name_twice(register: Any) -> None:
    """A name that two packages register is an error that names both."""
    settings = register("by_line")
    register("counted", "other")
    with pytest.raises(SettingsError, match="the packages odd and other both provide a format 'odd'"):
        format_of(FormatSettings(**settings))


@pytest.mark.ci
def test_many_records(register: Any) -> None:
    """A function is asked for each record once, however many bytes there are."""
    ledger = RawLedger(format_of(FormatSettings(**register("counted"))))
    ledger.read(chunks([b"\3abc" * 200_000, b"\3abc" * 200_000]))
    assert len(ledger.staged[0].fields) == 400_000


def test_not_installed(register: Any) -> None:
    """Where the package is missing, as on a machine of a cluster, the error names the format."""
    section = FormatSettings(**register("by_line"))
    with pytest.raises(FormatPluginError, match="the format 'other' is not installed here"):
        format_of(section.model_copy(update={"type": "other"}))
